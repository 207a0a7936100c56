"""The ledger: a folder with one small file for each process that runs.

It outlives us. If we are killed, another process finds here what we left running,
and ends it: a process counts as the one written down only if its start time is the
same, or if it bears the run's mark. The folder belongs to one machine.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from corral.system import fs, paths
from corral.system.process import platform
from corral.system.process.tree import Tree

REAPING = 2.0
"""Seconds for one run to be gone after KILL; what takes longer stays written down."""


class Entry(msgspec.Struct, frozen=True):
    """A process that was started, and who started it."""

    pid: int
    born: str
    """Its start time as the system counts it: with the pid it names one process."""
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
    def orphaned(self) -> bool:
        """Whether the process that started it is gone."""
        if self.boot != platform.boot():
            return True
        owner = platform.look(self.owner)
        return owner is None or not owner.alive or owner.born != self.owner_born


class ProcessRegistry(msgspec.Struct, frozen=True):
    """Several processes may write and reap in one folder at once."""

    folder: Path
    agent: str = ""
    """Written into each entry, for the person who reads it."""

    def announce(self, mark: str, number: int | None, program: str) -> None:
        """Write down what is about to be started: if we die before its pid is known, its
        mark is enough to find it. Raises OSError when that fails."""
        self._write(0, "", mark, number, program)

    def add(self, tree: Tree, program: str) -> None:
        """Write down a process just started. Raises OSError when that fails."""
        root = platform.look(tree.root)
        self._write(tree.root, root.born if root else "", tree.mark, tree.number, program)

    def _write(self, pid: int, born: str, mark: str, number: int | None, program: str) -> None:
        us = platform.look(os.getpid())
        entry = Entry(
            pid=pid,
            born=born,
            pgid=pid,
            mark=mark,
            number=number,
            owner=os.getpid(),
            owner_born=us.born if us else "",
            boot=platform.boot(),
            pid_space=platform.pid_space(),
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
        """Strike out a process that is gone."""
        with contextlib.suppress(OSError):
            self._file(mark).unlink(missing_ok=True)

    def live(self) -> list[Entry]:
        """What is written down and has not been struck out; ``orphaned`` says whether
        its owner is gone. Entries of another container on this machine are not ours to
        judge and left out."""
        entries: list[Entry] = []
        for file in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                entry = msgspec.json.decode(file.read_bytes(), type=Entry)
                if entry.boot != platform.boot() or entry.pid_space == platform.pid_space():
                    entries.append(entry)
        return entries

    def reap(self) -> list[Entry]:
        """End, blocking, all that is left of runs whose owner is gone, and strike them
        out. Returns those that were struck out."""
        struck: list[Entry] = []
        for entry in self.live():
            if entry.orphaned and (entry.boot != platform.boot() or _end(entry)):
                self.remove(entry.mark)
                struck.append(entry)
        return struck

    def _file(self, mark: str) -> Path:
        return self.folder / f"{mark}.json"


def _end(entry: Entry) -> bool:
    tree = Tree.left_behind(entry.pid, entry.born, entry.mark, entry.number)
    tree.kill(REAPING)
    return tree.gone
