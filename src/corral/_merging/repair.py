"""The session that made a branch repairs it: it resolves a conflict, or what the gate has found.

It works in a worktree that has both sides: the files of the target with the changes of the branch,
and conflict markers if there is a conflict. What it leaves becomes a commit of the branch, with
both sides as parents, if the branch was not moved meanwhile. Nothing is taken that still has
markers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import msgspec

from corral._merging import owners
from corral._merging.owners import Ask, BranchOwner
from corral._merging.queue import MergeEntry
from corral._merging.rebase import REPAIR, both_sides, reference
from corral._system import fs
from corral._system.git import repository
from corral._system.git.worktree import TaskWorktree, task_folder
from corral._system.threads import in_thread

LARGEST_FILE = 64 * 1024 * 1024
"""Bytes of a file that is searched for conflict markers."""


async def repair(
    root: Path,
    entry: MergeEntry,
    owner: BranchOwner,
    tree: str,
    tip: str,
    ask: Ask,
    *,
    into: str,
) -> tuple[str, float]:
    """Ask the owner to repair the branch, in a worktree with these files: those of the commit
    ``tip`` of the target, and of the branch. Returns why the branch cannot be queued again, empty
    if it can, and what the session has spent in USD. Raises ``CorralError`` if it cannot be
    started."""
    both = [entry.commit, tip]
    start = await in_thread(repository.commit, root, tree, both, f"corral: {entry.branch}")
    prompt = await in_thread(_prompt, root, into, entry, tip)
    place = await in_thread(_place, root, entry, owner)
    async with clean_worktree(root, start, place) as worktree:
        result = await ask(owner, prompt, worktree.place)
        if result.resume_token:
            asked = msgspec.structs.replace(
                owner, session=result.resume_token, folder=str(worktree.place)
            )
            await in_thread(owners.record, root, entry.branch, asked)
        reason = ""
        if not result.ok:
            failure = result.error.message if result.error else result.status
            reason = f"its session has failed: {failure}"
        else:
            reason = await _take(root, entry, worktree)
    return reason, result.cost.usd or 0.0


async def _take(root: Path, entry: MergeEntry, worktree: TaskWorktree) -> str:
    """Move the branch to what the session left; returns why that is not possible."""
    aside = f"refs/corral/repaired/{entry.branch}"
    change = await worktree.commit_to(aside, f"{REPAIR}{entry.branch}")
    left = await in_thread(_with_markers, worktree.place, entry.files)
    if left:
        done = f"; what it did is {aside}" if change is not None else ""
        return f"its session left conflict markers in {', '.join(left)}{done}"
    if change is None:
        return "its session changed nothing"
    # One transaction: if this process is killed, the commit is at one of the two.
    moves = (
        f"update {reference(entry.branch)} {change.commit} {entry.commit}\n",
        f"delete {aside} {change.commit}\n",
    )
    feed = [line.encode("utf-8", "surrogateescape") for line in moves]
    moved = await in_thread(repository.call, root, "update-ref", "--stdin", feed=feed)
    if moved.code:
        return f"the branch was moved meanwhile; what its session did is {aside}"
    return ""


def _place(root: Path, entry: MergeEntry, owner: BranchOwner) -> Path:
    """The folder of the worktree: that in which the session has worked, if it is free."""
    if owner.folder and not fs.exists(owner.folder):
        return Path(owner.folder)
    return task_folder(root, "merge", entry.branch, "owner")


@contextlib.asynccontextmanager
async def clean_worktree(root: Path, commit: str, place: Path) -> AsyncGenerator[TaskWorktree]:
    """A clean worktree of a commit within the block."""
    tree = await TaskWorktree.make(root, commit, place)
    try:
        yield tree
    finally:
        await asyncio.shield(tree.remove())


def _prompt(root: Path, into: str, entry: MergeEntry, tip: str) -> str:
    head = (
        f"Your branch {entry.branch} is to be merged into {into}, which has changed since"
        " you began. This folder has both: the current files, with your changes merged in."
    )
    if entry.files:
        sides = both_sides(root, tip, entry.commit, entry.files)
        return (
            f"{head} There is a conflict in: {', '.join(entry.files)}. These files have conflict"
            " markers. Resolve the conflict so that both intentions are kept, and remove the"
            f" markers. Change nothing else. You need not commit.\n\n{sides}"
        )
    return (
        f"{head} Now this check fails: {entry.reason}.\n\n```\n{entry.output}\n```\n\nRepair your"
        " change so that the check succeeds. Do not weaken the check. You need not commit."
    )


def _with_markers(place: Path, files: Sequence[str]) -> list[str]:
    """Of these files, those that have conflict markers."""
    left: list[str] = []
    for name in files:
        data = fs.read_small(place / name, LARGEST_FILE) or b""
        lines = data.splitlines()
        if all(any(line.startswith(sign) for line in lines) for sign in (b"<<<<<<< ", b">>>>>>> ")):
            left.append(name)
    return left
