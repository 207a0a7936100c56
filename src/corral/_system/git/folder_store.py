"""The files of a folder at several moments, as git trees.

The trees are in a bare repository of corral's own, readable by its owner only. The folder need not
be in a git repository. If it is, the repository's objects are used as an alternate store, so that
only files that differ from the current commit are stored, and nothing is written to the
repository. Ignored files are left out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

import msgspec

from corral._system.git import command, repository, scan, settings
from corral._system.git import tree as git_tree
from corral._system.git.repository import TreeDifference, TreeEntry
from corral._system.git.scan import Rules, Scope
from corral.errors import StorageFailed

_GENERATED = Scope((Rules(b"node_modules/\n__pycache__/\n.venv/\nvenv/\n.hg/\n.svn/\n"),))
"""What counts as ignored in a folder that is in no repository: generated, and very large."""

Entries = dict[bytes, TreeEntry]


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
        self._entries: dict[str, Entries] = {}
        self.base_tree: str = ""
        self.commit: str = ""
        """The current commit, once ``base`` was called; empty if there is none."""

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
        known, scope = self.entries(base), self.scope()
        self._check_size(known, scope)
        if self._known is not None and not self._cache:
            # Of a file that is not as in the base, the content is not in this store.
            self._cache = {
                path: file
                for path, file in git_tree.read_cache(self._known).items()
                if (entry := known.get(path)) is not None and entry.id == file.id
            }
        now = git_tree.store_files(self.own, self._folder, known, self._cache, scope)
        tree = base if now == known else git_tree.make_tree(self.own, now)
        self._entries[tree] = now
        if self._known is not None:
            with contextlib.suppress(OSError):
                git_tree.write_cache(self._known, self._cache)
        return tree

    def entries(self, tree: str) -> Entries:
        """The files of a tree that is stored."""
        if tree not in self._entries:
            self._entries[tree] = repository.entries(self.own, tree)
        return self._entries[tree]

    def differences(self, old: str, new: str) -> list[TreeDifference]:
        """What differs between two trees that are stored."""
        return git_tree.compare_entries(self.entries(old), self.entries(new))

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
                words = ("rev-parse", "--verify", "--end-of-options", name)
                self.base_tree = repository.run(self.own, *words)
                self.commit = commit
                return self.base_tree
            except StorageFailed:  # no commit yet, or none with this folder
                pass
        self.base_tree = repository.run(self.own, "mktree")
        return self.base_tree

    @property
    def base_entries(self) -> Entries:
        """The files of the commit that was current when ``base`` was last called."""
        return self.entries(self.base_tree)

    def _check_size(self, known: Collection[bytes], scope: Scope) -> None:
        """Raises ``StorageFailed`` if the folder is too large. ``known``: files that are stored."""
        limits = LIMITS
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
