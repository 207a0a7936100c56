"""A git worktree for one task: a folder of its own at a commit; what was done there, a branch.

The repository's hooks do not run, and nothing of the person's own tree is touched: neither
its files, nor its index, nor its branch. An agent that worked there may have put another
repository in its place, with settings that name programs: so git is told where the real one
is, and never looks.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral.errors import ConfigError, StorageFailed
from corral.io import git

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+|\.{2,}|^[.-]+|\.lock$|\.$")
LARGEST_PATCH = 256 * 1024
"""Bytes."""

_one_at_a_time: dict[tuple[int, str], asyncio.Lock] = {}
"""git makes and removes worktrees of one repository badly at the same time."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What was done in a worktree."""

    branch: str
    commit: str
    files: tuple[str, ...]
    patch: str
    """Empty where it would be too large."""


def root_of(folder: Path) -> tuple[Path, str]:
    """The repository around a folder, and the commit it is at. Raises ``ConfigError``. Blocking."""
    git.require("a worktree")
    try:
        root = git.run(folder, "rev-parse", "--show-toplevel")
        return Path(root), git.run(folder, "rev-parse", "--verify", "HEAD^{commit}")
    except StorageFailed as error:
        raise ConfigError(
            f"a worktree needs a git repository with a commit: {folder} is none",
            hint=error.message,
        ) from error


def branch_of(*parts: str) -> str:
    """A branch's name of these parts, whatever they are made of; different for different ones."""
    return "/".join(("corral", *(_plain(part) for part in parts)))


def _plain(part: str) -> str:
    kept = _UNFIT.sub("-", part)[:80].strip("-.") or "task"
    if kept == part:
        return kept
    return f"{kept}-{blake2b(part.encode('utf-8', 'replace'), digest_size=3).hexdigest()}"


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    root: Path
    """Of the repository."""
    commit: str
    place: Path
    settings: Path
    """What git keeps of it, in the repository."""


async def make(root: Path, commit: str, place: Path) -> Tree:
    """A worktree at this commit. What an earlier one left at the place is gone. Raises
    ``StorageFailed``."""
    async with _alone(root):
        await asyncio.to_thread(_remove, root, place)
        await _call(root, "worktree", "add", "--detach", "--force", str(place), commit)
        settings = await _call(place, "rev-parse", "--absolute-git-dir")
    return Tree(root=root, commit=commit, place=place, settings=Path(settings))


async def remove(tree: Tree) -> None:
    """With whatever is in it."""
    async with _alone(tree.root):
        await asyncio.to_thread(_remove, tree.root, tree.place)


async def keep(made: Tree, branch: str, message: str) -> Change | None:
    """What was changed there since the commit, as a branch of the repository; None where
    nothing was. Raises ``StorageFailed``."""
    root, commit = made.root, made.commit
    there = (f"--git-dir={made.settings}", f"--work-tree={made.place}")
    await _call(made.place, *there, "add", "--all")
    tree = await _call(made.place, *there, "write-tree")
    if tree == await _call(root, "rev-parse", f"{commit}^{{tree}}"):
        return None
    head = await _call(made.place, *there, "rev-parse", "HEAD")
    if await _call(root, "rev-parse", f"{head}^{{tree}}") != tree:
        head = await asyncio.to_thread(git.commit, root, tree, [head], message)
    await _call(root, "update-ref", f"refs/heads/{branch}", head)
    patch = await asyncio.to_thread(
        git.run,
        root,
        *("diff", "--binary", "--no-ext-diff", "--no-textconv", commit, head),
        strip=False,
    )
    fits = len(patch.encode("utf-8", "replace")) <= LARGEST_PATCH
    return Change(
        branch=branch,
        commit=head,
        files=await asyncio.to_thread(git.changed_files, root, commit, head),
        patch=patch if fits else "",
    )


def _alone(root: Path) -> asyncio.Lock:
    key = id(asyncio.get_running_loop()), str(root)
    return _one_at_a_time.setdefault(key, asyncio.Lock())


def _remove(root: Path, place: Path) -> None:
    if place.exists():
        shutil.rmtree(place, ignore_errors=True)
    git.run(root, "worktree", "prune")


async def _call(folder: Path, *words: str) -> str:
    return await asyncio.to_thread(git.run, folder, *words)
