"""Find a repository's folders by reading files, without starting git.

git itself would obey the configuration of whatever repository it finds. Here only the names of
folders are read: ``.git`` may be a folder, a link to one, or a file that names one (linked
worktrees, submodules), and ``commondir`` names the folder that linked worktrees share.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from corral.system.fs import read_small

_SMALL = 64 * 1024
_HEX = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    top: Path | None
    """The work tree that was found; None for a bare repository."""
    git_dir: Path
    """Holds ``HEAD`` and ``index``."""
    common: Path
    """Holds ``objects``, ``refs`` and ``config``. Differs from ``git_dir`` in linked worktrees."""

    @property
    def head(self) -> str | None:
        """What HEAD holds: the full name of a reference, or a commit's id."""
        return read_head(self.git_dir)


def find(folder: Path) -> Layout | None:
    """The repository around a folder, or a bare repository that is the folder or around it."""
    folder = Path(os.path.abspath(folder))
    for each in (folder, *folder.parents):
        if (git_dir := _pointed_to(each / ".git")) is not None:
            common = _common(git_dir)
            if common is not None:
                return Layout(top=each, git_dir=git_dir, common=common)
        if (common := _common(each)) is not None:
            return Layout(top=None, git_dir=each, common=common)
    return None


def read_head(git_dir: Path) -> str | None:
    data = read_small(git_dir / "HEAD", _SMALL)
    text = (data or b"").decode("utf-8", "replace").strip()
    if text.startswith("ref:"):
        name = text.removeprefix("ref:").strip()
        return name if name.startswith("refs/") else None
    return text if _HEX.fullmatch(text) else None


def _pointed_to(dot_git: Path) -> Path | None:
    if dot_git.is_dir():
        return dot_git.resolve()
    text = _line(dot_git)
    if not text.startswith("gitdir:"):
        return None
    return Path(os.path.normpath(dot_git.parent / text.removeprefix("gitdir:").strip()))


def _common(git_dir: Path) -> Path | None:
    """Where its objects are; None if this is no git folder."""
    if read_head(git_dir) is None:
        return None
    other = _line(git_dir / "commondir")
    common = Path(os.path.normpath(git_dir / other)) if other else git_dir
    is_one = (common / "objects").is_dir() and (common / "refs").is_dir()
    return common if is_one else None


def _line(path: Path) -> str:
    data = read_small(path, _SMALL)
    return os.fsdecode(data or b"").strip()
