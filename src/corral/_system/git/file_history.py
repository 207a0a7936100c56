"""What the turns of a conversation changed in a folder: show it as a diff, and undo it.

Before and after each turn the files of the folder are stored (``folder_store``). Ignored files are
left out.

``undo`` changes a file only if it still has the content that the turn gave it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from corral._system import paths
from corral._system.git import repository, tree
from corral._system.git.folder_store import FolderStore
from corral.errors import StorageFailed
from corral.values import decode_as, printable_path

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
        self._store = FolderStore(own, folder)
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
        self._before = self._store.take()

    def end_turn(self) -> None:
        """Store what the turn changed, if it was started."""
        before, self._before = self._before, None
        if before is not None and (after := self._store.take()) != before:
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
