"""The files of a folder at several moments, as git trees.

The trees are in a bare repository of corral's own, readable by its owner only. The folder need not
be in a git repository. If it is, the repository's objects are used as an alternate store, so that
only files that differ from the current commit are stored, and nothing is written to the
repository. Ignored files are left out.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from corral._system.git import command, repository, scan, settings
from corral._system.git import tree as git_tree
from corral._system.git.scan import Rules, Scope
from corral.errors import StorageFailed

_GENERATED = Scope((Rules(b"node_modules/\n__pycache__/\n.venv/\nvenv/\n.hg/\n.svn/\n"),))
"""What counts as ignored in a folder that is in no repository: generated, and very large."""


class StoreLimits(msgspec.Struct, frozen=True):
    stored: int = 64 * 1024 * 1024
    """Bytes of files that are not in the current commit."""
    read: int = 512 * 1024 * 1024
    """Bytes of all files."""
    files: int = 50_000


LIMITS = StoreLimits()


class FolderStore:
    """All methods block. They raise ``StorageFailed``, also if the folder is too large or git is
    not installed."""

    def __init__(
        self, own: Path, folder: Path, *, known: Path | None = None, more: Path | None = None
    ) -> None:
        """``own``: where the repository of corral's own is made. ``known``: a file in which the ids
        of unchanged files are remembered for other stores of the same folder. ``more``: another
        store, whose files this one may use."""
        self.own = own
        self._folder = folder
        self._known = known
        self._more = more
        self._cache: git_tree.Cache = {}

    def take(self, since: str = "") -> str:
        """The id of a tree with the files that the folder has now. ``since``: an earlier tree; its
        files count also if they are ignored now, whatever the repository has become."""
        command.require("the history of files")
        try:
            if not (self.own / "HEAD").exists():
                found = scan.find_repository(self._folder)
                kind = settings.object_format(found.common) if found is not None else "sha1"
                others = (None if found is None else found.common, self._more)
                repository.make_bare(self.own, kind, *filter(None, others))
        except OSError as error:
            raise StorageFailed(f"{self.own} cannot be written: {error.strerror}") from error
        base = since or self.base()
        scope = self.scope()
        self._check_size(base, scope)
        if self._known is not None and not self._cache:
            self._cache = self._read_known(base)
        tree = git_tree.write_tree(self.own, self._folder, base, self._cache, scope)
        if self._known is not None:
            with contextlib.suppress(OSError):
                git_tree.write_cache(self._known, self._cache)
        return tree

    def _read_known(self, base: str) -> git_tree.Cache:
        """What is remembered of files that are as in ``base``: others are not in this store."""
        cache = {} if self._known is None else git_tree.read_cache(self._known)
        entries = repository.entries(self.own, base) if cache else {}
        return {
            path: known
            for path, known in cache.items()
            if (entry := entries.get(path)) is not None and entry.id == known.id
        }

    def scope(self) -> Scope:
        """Which files of the folder are ignored."""
        return scan.scope_of(self._folder) or _GENERATED

    def base(self) -> str:
        """The tree of the current commit for the folder; an empty tree if there is none."""
        found = scan.find_repository(self._folder)
        if found is not None and found.top is not None and found.head is not None:
            below = os.path.relpath(os.path.abspath(self._folder), found.top)
            try:
                commit = repository.commit_of(self._folder, "HEAD")
                name = f"{commit}^{{tree}}" if below == "." else f"{commit}:{below}"
                return repository.run(self.own, "rev-parse", "--verify", "--end-of-options", name)
            except StorageFailed:  # no commit yet, or none with this folder
                pass
        return repository.run(self.own, "mktree")

    def _check_size(self, base: str, scope: Scope) -> None:
        """Raises ``StorageFailed`` if the folder is too large."""
        limits = LIMITS
        known = repository.entries(self.own, base).keys()
        top = os.fsencode(self._folder)
        read = stored = count = 0
        try:
            for path in scan.files(self._folder, scope, known):
                size = 0
                with contextlib.suppress(OSError):
                    size = os.lstat(os.path.join(top, path)).st_size
                read, count = read + size, count + 1
                stored += 0 if path in known else size
                if read > limits.read or stored > limits.stored or count > limits.files:
                    raise StorageFailed("the folder has too many or too large files to be stored")
        except scan.TooManyFiles as error:
            raise StorageFailed("the folder has too many files to be stored") from error
