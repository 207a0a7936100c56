"""The process registry: a folder with one small file for each process that runs.

The files outlive their writer. If corral is killed, another corral process finds here what it
left running, and ends it. A process counts as the registered one only if its start time is the
same, or if it has the run's mark. The folder is for one machine only.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from corral.system import fs, paths, platform
from corral.system.process.tree import ProcessTree

REAPING = 2.0
"""Seconds for one run to end after KILL. If it takes longer, its entry stays."""


class Entry(msgspec.Struct, frozen=True):
    """A started process, and the process that started it."""

    pid: int
    born: str
    """Its start time, as the system counts it: together with the pid it identifies the process."""
    pgid: int
    mark: str
    number: int | None
    owner: int
    owner_born: str
    boot: str
    pid_space: str
    agent: str
    program: str

    @property
    def is_orphaned(self) -> bool:
        """Whether the process that started it is gone."""
        if self.boot != platform.boot_id():
            return True
        owner = platform.get_process(self.owner)
        return owner is None or not owner.alive or owner.born != self.owner_born


class ProcessRegistry(msgspec.Struct, frozen=True):
    """The registry in one folder. Several processes may write and reap at the same time."""

    folder: Path
    agent: str = ""
    """Written into each entry, for people who read it."""

    def announce(self, mark: str, number: int | None, program: str) -> None:
        """Register a process before it starts: if we die before its pid is known, the mark is
        enough to find it. Raises ``OSError``."""
        self._write(0, "", mark, number, program)

    def add(self, tree: ProcessTree, program: str) -> None:
        """Register a process that has just started. Raises ``OSError``."""
        root = platform.get_process(tree.root)
        self._write(tree.root, root.born if root else "", tree.mark, tree.number, program)

    def _write(self, pid: int, born: str, mark: str, number: int | None, program: str) -> None:
        us = platform.get_process(os.getpid())
        entry = Entry(
            pid=pid,
            born=born,
            pgid=pid,
            mark=mark,
            number=number,
            owner=os.getpid(),
            owner_born=us.born if us else "",
            boot=platform.boot_id(),
            pid_space=platform.pid_namespace(),
            agent=self.agent,
            program=program,
        )
        # Not synced: a crash of the machine ends the process too.
        data = msgspec.json.encode(entry)
        try:
            fs.write_atomically(self._file(mark), data)
        except FileNotFoundError:
            paths.write_private(self._file(mark), data)

    def remove(self, mark: str) -> None:
        """Remove the entry of a process that is gone."""
        with contextlib.suppress(OSError):
            self._file(mark).unlink(missing_ok=True)

    def entries(self) -> list[Entry]:
        """All entries; ``is_orphaned`` says whether the owner is gone. Entries of another container
        on this machine are left out: their pids mean nothing here."""
        entries: list[Entry] = []
        for file in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                entry = msgspec.json.decode(file.read_bytes(), type=Entry)
                if entry.boot != platform.boot_id() or entry.pid_space == platform.pid_namespace():
                    entries.append(entry)
        return entries

    def reap(self) -> list[Entry]:
        """End what is left of runs whose owner is gone, and remove their entries. Returns the
        removed entries. Blocks."""
        removed: list[Entry] = []
        for entry in self.entries():
            if entry.is_orphaned and (entry.boot != platform.boot_id() or _end(entry)):
                self.remove(entry.mark)
                removed.append(entry)
        return removed

    def _file(self, mark: str) -> Path:
        return self.folder / f"{mark}.json"


def _end(entry: Entry) -> bool:
    tree = ProcessTree.left_behind(entry.pid, entry.born, entry.mark, entry.number)
    tree.kill(REAPING)
    return tree.gone
