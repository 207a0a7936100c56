"""A git worktree for one task: its own folder at a commit. The work done there becomes a branch.

Nothing of the user's own work tree is changed: no files, no index, no branch. No hook and no filter
runs, whoever configured it. See ``corral.system.git.command``.
"""

from __future__ import annotations

import re
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral.errors import ConfigError, StorageFailed
from corral.system import git, paths
from corral.system.git import repository, worktree
from corral.system.threads import in_thread

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+|\.{2,}|^[.-]+|\.lock$|\.$")
LARGEST_PATCH = 256 * 1024
"""Bytes."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What was done in a worktree."""

    branch: str
    commit: str
    files: tuple[str, ...]
    patch: str
    """Empty where it would be too large, or is not UTF-8."""


def root_of(folder: Path) -> tuple[Path, str]:
    """The repository around a folder, and the commit it is at. Raises ``ConfigError``. Blocking."""
    git.require("a worktree")
    try:
        root = git.locate(folder).top
        if root is None:
            raise StorageFailed(f"{folder} is in a bare repository")
        return root, git.commit_of(folder, "HEAD")
    except StorageFailed as error:
        raise ConfigError(
            f"a worktree needs a git repository with a commit, got: {folder}",
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


def place_of(root: Path, batch: str, task: str, run: str) -> Path:
    """The folder for a task's worktree: always the same for the same names. It is in
    corral's home, which stays, unlike a run's folder."""
    key = "\0".join((str(root), batch, task, run)).encode("utf-8", "surrogateescape")
    name = f"{_plain(task)[:40]}-{blake2b(key, digest_size=8).hexdigest()}"
    return paths.home() / "worktrees" / name / "tree"


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    root: Path
    """Of the repository."""
    commit: str
    place: Path
    notes: Path
    """What git notes about the worktree: HEAD and its index."""


async def make(root: Path, commit: str, place: Path) -> Tree:
    """A worktree at this commit. What an earlier one left at the place is removed. Raises
    ``StorageFailed``."""
    notes = place.with_name(f"{place.name}.git")
    await in_thread(worktree.add, root, place, notes, commit, commit)
    return Tree(root=root, commit=commit, place=place, notes=notes)


async def remove(tree: Tree) -> None:
    """With whatever is in it."""
    await in_thread(_remove, tree)


def _remove(tree: Tree) -> None:
    worktree.remove(tree.place, tree.notes)
    with suppress(OSError):  # somebody else's files are beside it
        tree.place.parent.rmdir()


async def keep(made: Tree, branch: str, message: str) -> Change | None:
    """Put what was changed since the commit on a branch of the repository; None where nothing
    was. Raises ``StorageFailed``: then the worktree must stay, as its work is nowhere else."""
    return await in_thread(_keep, made, branch, message)


def _keep(made: Tree, branch: str, message: str) -> Change | None:
    root, commit = made.root, made.commit
    tree = worktree.write_tree(root, made.place, commit)
    if tree == git.tree_of(root, commit):
        return None
    head = worktree.head(root, made.notes, commit)
    if git.tree_of(root, head) != tree:
        head = git.commit(root, tree, [head], message)
    git.run(root, "update-ref", f"refs/heads/{branch}", head)
    return Change(
        branch=branch,
        commit=head,
        files=git.changed_files(root, commit, head),
        patch=repository.patch(root, commit, head, LARGEST_PATCH),
    )
