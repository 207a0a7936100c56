"""What the turns of a conversation changed in a folder: show it as a diff, and undo it.

Before and after each turn the files of the folder are stored as a git tree, in a bare repository
of corral's own, readable by its owner only. The folder need not be in a git repository. If it is,
the repository's objects are used as an alternate store, so that only files that differ from the
current commit are stored, and nothing is written to the repository. Ignored files are left out.

``undo`` changes a file only if it still has the content that the turn gave it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Literal

import msgspec

from corral._system import paths
from corral._system.git import command, repository, scan, settings, tree
from corral._system.git import tree as git_tree
from corral._system.git.scan import Scope
from corral.errors import StorageFailed
from corral.values import decode_as, printable_path

LARGEST_STORED = 64 * 1024 * 1024
"""Bytes of files that are not in the current commit."""
LARGEST_READ = 512 * 1024 * 1024
"""Bytes of all files."""
MOST_FILES = 50_000
LARGEST_PATCH = 4 * 1024 * 1024

_TURNS = "turns.json"


class ChangedTurn(msgspec.Struct, frozen=True):
    """The files before and after a turn that changed some: ids of git trees."""

    before: str
    after: str


class FileHistory:
    """The changes of a folder, stored in the folder ``own``. All methods block. They raise
    ``StorageFailed``, also if the folder is too large or git is not installed."""

    def __init__(self, own: Path, folder: Path) -> None:
        self._own = own
        self._folder = folder
        self._cache: git_tree.Cache = {}
        self._before: str | None = None
        self._turns: list[ChangedTurn] | None = None

    @property
    def turns(self) -> list[ChangedTurn]:
        """The turns that changed files and were not undone, the oldest first."""
        if self._turns is None:
            try:
                data = (self._own / _TURNS).read_bytes()
                self._turns = decode_as(data, list[ChangedTurn])
            except (OSError, msgspec.MsgspecError):
                self._turns = []
        return self._turns

    def begin_turn(self) -> None:
        self._before = None
        self._before = self._snapshot()

    def end_turn(self) -> None:
        """Store what the turn changed, if it was started."""
        before, self._before = self._before, None
        if before is not None and (after := self._snapshot()) != before:
            self._save([*self.turns, ChangedTurn(before, after)])

    def diff(self, *, all_turns: bool = False) -> str:
        """What the last turn that changed files changed, or all turns: a patch. Empty if nothing
        was changed."""
        if not self.turns:
            return ""
        first, last = self.turns[0 if all_turns else -1], self.turns[-1]
        found = repository.patch(self._own, first.before, last.after, LARGEST_PATCH)
        if not found and first.before != last.after:
            raise StorageFailed("the changes are too large to show, or are not UTF-8")
        return found

    def undo(self) -> dict[str, Literal["restored", "removed"]]:
        """Undo the last turn that changed files. Returns the names of the files; those that the
        turn created are removed. Nothing is touched if one of them was changed since."""
        if not self.turns:
            return {}
        turn = self.turns[-1]
        changes = repository.differences(self._own, turn.after, turn.before)
        tree.update(self._own, self._folder, changes, force=False)
        self._save(self.turns[:-1])
        return {
            printable_path(os.fsdecode(change.path)): "restored" if change.new else "removed"
            for change in changes
        }

    def _save(self, turns: list[ChangedTurn]) -> None:
        self._turns = turns
        try:
            paths.write_private(self._own / _TURNS, msgspec.json.encode(turns))
        except OSError as error:
            raise StorageFailed(f"{self._own} cannot be written: {error.strerror}") from error

    def _snapshot(self) -> str:
        """The id of a tree with the files of the folder."""
        command.require("the history of files")
        try:
            if not (self._own / "HEAD").exists():
                found = scan.find_repository(self._folder)
                kind = settings.object_format(found.common) if found is not None else "sha1"
                repository.make_bare(self._own, kind, found.common if found is not None else None)
        except OSError as error:
            raise StorageFailed(f"{self._own} cannot be written: {error.strerror}") from error
        base = self._base()
        scope = scan.scope_of(self._folder) or Scope()
        self._check_size(base, scope)
        return git_tree.write_tree(self._own, self._folder, base, self._cache, scope)

    def _base(self) -> str:
        """The tree of the current commit for the folder; an empty tree if there is none."""
        found = scan.find_repository(self._folder)
        if found is not None and found.top is not None and found.head is not None:
            below = os.path.relpath(os.path.abspath(self._folder), found.top)
            try:
                commit = repository.commit_of(self._folder, "HEAD")
                name = f"{commit}^{{tree}}" if below == "." else f"{commit}:{below}"
                return repository.run(self._own, "rev-parse", "--verify", "--end-of-options", name)
            except StorageFailed:  # no commit yet, or none with this folder
                pass
        return repository.run(self._own, "mktree")

    def _check_size(self, base: str, scope: Scope) -> None:
        """Raises ``StorageFailed`` if the folder is too large."""
        known = repository.entries(self._own, base).keys()
        top = os.fsencode(self._folder)
        read = stored = count = 0
        try:
            for path in scan.files(self._folder, scope, known):
                size = 0
                with contextlib.suppress(OSError):
                    size = os.lstat(os.path.join(top, path)).st_size
                read, count = read + size, count + 1
                stored += 0 if path in known else size
                if read > LARGEST_READ or stored > LARGEST_STORED or count > MOST_FILES:
                    raise StorageFailed("the folder has too many or too large files to be stored")
        except scan.TooManyFiles as error:
            raise StorageFailed("the folder has too many files to be stored") from error
