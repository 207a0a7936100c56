"""A git worktree for one task: a folder of its own at a commit; what was done there, a branch.

The repository's hooks do not run, and nothing of the person's own tree is touched: neither
its files, nor its index, nor its branch. An agent that worked there may have put another
repository in its place, with settings that name programs: so git is told where the real one
is, and never looks.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral.errors import ConfigError, StorageFailed

_SAFE = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0")
_NOBODY = ("-c", "user.name=corral", "-c", "user.email=corral@localhost")
"""Who commits where the person has told git no name."""
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+|\.{2,}|^[.-]+|\.lock$|\.$")
TIMEOUT = 300.0
"""Seconds for one call of git."""
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
    if shutil.which("git") is None:
        raise ConfigError("a worktree for each task needs git, which is not installed")
    try:
        root = _git(folder, "rev-parse", "--show-toplevel")
        return Path(root), _git(folder, "rev-parse", "--verify", "HEAD^{commit}")
    except StorageFailed as error:
        raise ConfigError(
            f"a worktree for each task needs a git repository with a commit: {folder} is none",
            hint=error.message,
        ) from error


def commit_of(root: Path, name: str) -> str:
    """The commit that a branch, a tag or part of an id stands for. Raises ``StorageFailed``.
    Blocking."""
    return _git(root, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")


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
        named = await asyncio.to_thread(_has_a_name, root)
        who = () if named else _NOBODY
        head = await _call(root, *who, "commit-tree", tree, "-p", head, "-m", message)
    await _call(root, "update-ref", f"refs/heads/{branch}", head)
    between = (commit, head)
    names = await _call(root, "diff", "--name-only", "-z", "--no-ext-diff", *between)
    patch = await _call(
        root, "diff", "--binary", "--no-ext-diff", "--no-textconv", *between, strip=False
    )
    fits = len(patch.encode("utf-8", "replace")) <= LARGEST_PATCH
    return Change(
        branch=branch,
        commit=head,
        files=tuple(name for name in names.split("\0") if name),
        patch=patch if fits else "",
    )


def _alone(root: Path) -> asyncio.Lock:
    key = id(asyncio.get_running_loop()), str(root)
    return _one_at_a_time.setdefault(key, asyncio.Lock())


def _remove(root: Path, place: Path) -> None:
    if place.exists():
        shutil.rmtree(place, ignore_errors=True)
    _git(root, "worktree", "prune")


def _has_a_name(root: Path) -> bool:
    try:
        return bool(_git(root, "config", "user.email"))
    except StorageFailed:
        return False


async def _call(folder: Path, *words: str, strip: bool = True) -> str:
    return await asyncio.to_thread(_git, folder, *words, strip=strip)


def _git(folder: Path, *words: str, strip: bool = True) -> str:
    command = ["git", *_SAFE, "-C", str(folder), *words]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            env=_environment(),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StorageFailed(f"git {_shown(words)}: {error}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise StorageFailed(f"git {_shown(words)}: {said[-1] if said else done.returncode}")
    out = done.stdout.decode("utf-8", "replace")
    return out.strip() if strip else out


def _environment() -> dict[str, str]:
    """Without what would lead git elsewhere, as inside a hook of its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


def _shown(words: Sequence[str]) -> str:
    return " ".join(word for word in words if not word.startswith("-"))[:80]
