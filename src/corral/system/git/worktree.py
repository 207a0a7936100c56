"""A linked work tree of a repository, in folders of corral's own.

git's notes about the work tree (``HEAD``, ``index``) are in a folder beside it, not in the
repository: nothing there is locked, listed or left behind. Who works in the tree can use git as
in any linked work tree: objects and branches are those of the repository. git's own commands for
work trees are not used, since they run hooks and filters that the repository names.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from corral.errors import StorageFailed
from corral.system import paths
from corral.system.git import checkout, layout, listing, repository
from corral.system.git import tree as git_tree
from corral.system.git.listing import Scope


def add(root: Path, place: Path, notes: Path, files: str, head: str) -> None:
    """A work tree at ``place`` with the files of one commit and HEAD at another (mostly the same).
    What was at ``place`` or in ``notes`` is removed. Raises ``StorageFailed``."""
    remove(place, notes)
    common = repository.locate(root).common
    try:
        place.mkdir(parents=True)
        notes.mkdir(parents=True)
        checkout.fill(root, place, files, notes / "index")
        _write(notes / "HEAD", head)
        _write(notes / "commondir", str(common))
        _write(notes / "gitdir", str(place / ".git"))
        _write(place / ".git", f"gitdir: {notes}")
        entries = repository.entries(root, files)
        git_tree.write_cache(_cache(place), git_tree.fresh_cache(place, entries))
    except OSError as error:
        raise StorageFailed(f"the worktree {place} cannot be made: {error}") from error
    if files != head:
        repository.run(root, "read-tree", head, env={"GIT_INDEX_FILE": str(notes / "index")})


def remove(place: Path, notes: Path) -> None:
    """With whatever is in it."""
    for each in (place, notes):
        if each.is_symlink():
            each.unlink()
        shutil.rmtree(each, ignore_errors=True)
    _cache(place).unlink(missing_ok=True)


def write_tree(root: Path, place: Path, at: str) -> str:
    """The id of a tree with all files that are there now. ``at``: the commit whose files are
    tracked. Raises ``StorageFailed``."""
    cache = git_tree.read_cache(_cache(place))
    tree = git_tree.write_tree(root, place, at, cache, _scope(root, place))
    with suppress(OSError):
        git_tree.write_cache(_cache(place), cache)
    return tree


def head(root: Path, notes: Path, default: str) -> str:
    """The commit that HEAD is at; ``default`` where it cannot be read."""
    named = layout.read_head(notes)
    if named is None:
        return default
    try:
        return repository.commit_of(root, named)
    except StorageFailed:
        return default


def move_head(root: Path, notes: Path, commit: str) -> None:
    """Put HEAD and the index at a commit; files stay. Raises ``StorageFailed``."""
    try:
        notes.mkdir(parents=True, exist_ok=True)
        (notes / "index.lock").unlink(missing_ok=True)
        _write(notes / "HEAD", commit)
    except OSError as error:
        raise StorageFailed(f"{notes} cannot be written: {error}") from error
    repository.run(root, "read-tree", commit, env={"GIT_INDEX_FILE": str(notes / "index")})


def _scope(root: Path, place: Path) -> Scope:
    return listing.scope_below(place, place, repository.locate(root).common)


def _cache(place: Path) -> Path:
    return place.with_name(f"{place.name}.files")


def _write(path: Path, text: str) -> None:
    paths.write_private(path, f"{text}\n".encode("utf-8", "surrogateescape"))
