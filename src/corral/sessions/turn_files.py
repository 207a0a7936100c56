"""The files that a turn changes: what was there before, what is different afterwards.

A snapshot of the workspace is taken before the agent may change it, and another one at the end. If
another turn of this process works in the same folder meanwhile, its changes cannot be told apart,
and the list is not complete (``FolderClaim``).
"""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from corral.events import Error
from corral.sessions.event_normalizer import EventNormalizer
from corral.system.threads import NoThread, in_thread
from corral.values import FileChanged, printable_path

if TYPE_CHECKING:
    from corral.system.git.changes import Snapshot

KEPT_CONTENTS = 4 * 1024 * 1024
"""Bytes of files that are kept in memory during a recorded turn, for the diff of what it changes.
Files that git has as they are do not count."""


class _FolderUse(msgspec.Struct, gc=False):
    """The turns in progress in this process that work in one folder (``here``), or there and in the
    folders below it (``within``)."""

    here: int = 0
    within: int = 0
    last_here: int = 0
    """The number of the last turn that started there."""
    last_within: int = 0


claimed_folders: dict[str, _FolderUse] = {}
_folders_lock = threading.RLock()
"""Turns may run in several threads, each with its event loop. Re-entrant: a claim that is dropped
is released in the middle of anything."""
_claim_numbers = itertools.count(1)


class FolderClaim:
    """A turn works in this folder. Tells whether another turn of this process did so too meanwhile,
    there, below or above. The cost does not depend on the number of turns."""

    def __init__(self, folder: str) -> None:
        self._folder: str | None = folder
        with _folders_lock:
            self._number = number = next(_claim_numbers)
            first, *above = _with_parents(folder)
            use = claimed_folders.setdefault(first, _FolderUse())
            self._is_shared = use.within > 0
            use.here, use.last_here = use.here + 1, number
            use.within, use.last_within = use.within + 1, number
            for parent in above:
                use = claimed_folders.setdefault(parent, _FolderUse())
                self._is_shared |= use.here > 0
                use.within, use.last_within = use.within + 1, number

    def release(self) -> bool:
        """The turn has ended. Returns whether it shared the folder with another one."""
        with _folders_lock:
            folder, self._folder = self._folder, None
            if folder is None:
                return self._is_shared
            first, *above = _with_parents(folder)
            self._is_shared |= claimed_folders[first].last_within > self._number
            self._is_shared |= any(claimed_folders[path].last_here > self._number for path in above)
            claimed_folders[first].here -= 1
            for path in (first, *above):
                claimed_folders[path].within -= 1
                if not claimed_folders[path].within:
                    del claimed_folders[path]
            return self._is_shared

    def __del__(self) -> None:
        self.release()


def _with_parents(folder: str) -> list[str]:
    folders = [folder]
    while (parent := os.path.dirname(folder)) != folder:
        folders.append(folder := parent)
    return folders


class TurnFiles:
    """``look`` before the agent may change files, ``claim`` when it works, ``compare`` at the end,
    ``release`` in any case."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._claim: FolderClaim | None = None
        self.before: Snapshot | None = None
        """What was there before; None if files are not tracked."""

    async def look(self, *, keeps_contents: bool) -> None:
        """Take the first snapshot. ``keeps_contents``: a diff is wanted later."""

        def take() -> Snapshot:
            from corral.system.git import changes  # in the thread, while the agent starts

            return changes.take_snapshot(
                Path(self._cwd), room=KEPT_CONTENTS if keeps_contents else 0
            )

        self.before = await in_thread(take)

    def claim(self) -> None:
        self._claim = FolderClaim(self._cwd)

    def release(self) -> bool:
        """Returns whether another turn worked in the folder too. May be called more than once."""
        return self._claim is None or self._claim.release()

    def existed(self, path: str) -> bool | None:
        """Whether the file was there before; None if that is not known."""
        return None if self.before is None else self.before.has(path)

    async def compare(
        self, normalizer: EventNormalizer, warnings: list[Error]
    ) -> tuple[tuple[FileChanged, ...], bool]:
        """What changed, and whether that is everything. Without snapshots it is what the agent's
        tools reported. What could not be done is added to ``warnings``."""
        is_shared = self.release()
        reported = tuple(
            FileChanged(printable_path(path), kind, by_tool=True)
            for path, kind in normalizer.written.items()
        )
        if self.before is None:
            return reported, False
        from corral.system.git import changes

        try:
            after = await in_thread(changes.take_snapshot_after, self.before)
        except NoThread as error:  # the answer is there, and is worth more than its files
            from corral.sessions.turn_warnings import files_unknown

            warnings.append(files_unknown(error))
            return reported, False
        changed = changes.compare(self.before, after, normalizer.written)
        return changed, self.before.complete and after.complete and not is_shared
