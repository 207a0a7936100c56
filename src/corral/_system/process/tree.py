"""Which processes belong to a run, how they are ended, and the registry of those that run.

Theory of operation
-------------------
A run is a root, the process that corral started, and everything that descends from it, whatever
sessions or process groups the descendants create. The tree is not stored. It is found again at
each look, because processes fork and exit at any time.

How a process is found:

- While the root runs, its descendants are found through their parents.
- An orphan, whose parent has exited, becomes a child of corral, which is the sub-reaper of its
  descendants (Linux). It is assigned to a run by what it inherited: the stamp (a resource limit,
  see ``platform.new_stamp``), the mark in its environment, or the root's session.
- An orphan may have removed all of these: a new session, an empty environment, a lowered limit.
  But the stamp is a hard limit, which no process without privileges can raise again (``spawn``
  takes that privilege from root's runs). A limit below our own proves that the orphan descends
  from a run whose stamp is higher. If several runs are possible, the last of them ends it. An
  orphan without such a proof is left alone: it may be the caller's own.

States of a tree:

- running: ``live_processes`` returns what runs. Zombies that became our children are reaped.
- ending: ``end_steps`` sends TERM to every process once, waits until the deadline of
  ``set_deadline``, then sends KILL until nothing is left or ``FINAL`` seconds of pauses passed.
- gone: ``gone`` is true if the last attempt to end the run left nothing.
- dying: KILL was sent, and the wait ended before everything had died. On a busy machine, or for a
  process that is stuck in the kernel, this takes a while. ``reap_leftovers`` looks again.
- reaped: the root has been waited for. Its pid may belong to another process from here on.

Who calls: ``process.Child`` from the event loop, for one run each. ``ProcessRegistry`` for
runs whose owner died: these are not our descendants, so only the mark, the stamp and the start time
identify them. All calls block only briefly; ``kill`` blocks for its patience.

Guaranteed:

- A signal reaches only processes of the run. The root is not reaped before the tree is gone: as
  long as it is a zombie, its pid, group and session cannot be reused. Other processes are
  signalled through a pidfd after their start time was checked.
- Every process of the run that runs at the end of ``end_steps`` or ``kill`` is one that KILL could
  not end in time: it is stuck in the kernel.

Crashes: if corral is killed, the kernel ends the root (parent-death signal, where available), and
the next corral process ends the rest from the registry.

Without free descriptors no process can be found. Then the soft limit is raised for a moment
(``platform.extra_descriptors``). Where the hard limit forbids that, only the root is known and
signalled; ``is_blind`` says so, and a caller that can close descriptors does so and calls ``kill``.

The registry
------------
``ProcessRegistry`` is a folder with one small file for each process that runs. The files stay if
corral is killed: then another corral process finds in them what it left running, and ends it. A
process counts as the registered one only if its start time is the same, or if it has the run's
mark. The folder is for one machine only.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from corral._system import fs, paths, platform
from corral.values import decode_as

MARK = "CORRAL_RUN_MARK"
"""In the environment of everything a run starts. A run inside a run appends its own."""
FINAL = 3.0
"""Seconds of pauses after KILL. Only a process that is stuck in the kernel takes longer. Only the
pauses count, not the clock: on a busy machine the processes need more time too."""
KILL_PATIENCE = 0.25
"""Seconds that ``kill`` waits for the end of what it killed. It blocks the event loop."""
PAUSES = (0.001, 0.1)
"""Seconds between two looks, growing from the first value to the second."""
ZOMBIE_LOOKS = 5
"""Looks at a run that has only zombies left, until they are reaped."""
SWEEPS = 2
"""Further looks at all processes that must find nothing: a process that forks and exits while the
list is read can be missed. Our own children cannot be missed."""
REAPING = 2.0
"""Seconds for one run to end after KILL. If it takes longer, its entry stays."""

_roots: dict[int, int | None] = {}
"""Roots that are not reaped yet, with their stamps. They are never orphans of another run."""
_without_orphans = -math.inf
"""When a look at our children last began that found no orphan of any run. A run whose root had
exited by then has no process left, and needs no look of its own: each costs time for each child."""
_dying: dict[ProcessTree, int] = {}
"""Runs that were killed and had not died when the wait ended, with the pid of the process that
started them: a fork has a copy of this."""


def environment_with(mark: str, env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process of this run."""
    outer = os.environ.get(MARK)
    return {**env, MARK: f"{outer}.{mark}" if outer else mark}


class ProcessTree:
    """The processes of one run, found again at each look."""

    def __init__(
        self, root: int, mark: str, number: int | None, *, start_time: str | None = None
    ) -> None:
        """``root`` is our child, just started with this mark and stamp. With its ``start_time`` it
        is that of a run whose owner died: the tree consists of processes with its mark, of its root
        if the start time is the same, and of their descendants. A pid alone proves nothing."""
        self._ours = start_time is None
        self.root = root
        self.mark = mark
        self.number = number
        self.root_exit_time: float = math.inf if self._ours else 0.0
        """Set by the watcher of the root, when it has exited; saves a look at it."""
        self.is_sandboxed = False
        """The root is the program that made the sandbox. TERM would end it and thereby, at once,
        everything inside, so only what is inside gets TERM. The root ends after it."""
        self.gone: bool = False
        """Whether the last attempt to end the run left nothing of it."""
        self.is_blind: bool = False
        """Whether the last look found no processes, or one could not be signalled, because there
        was no free descriptor."""
        self.registry: ProcessRegistry | None = None
        """It has an entry of this run, which is removed as soon as nothing of the run is left."""
        self.reaped: bool = not self._ours
        self._patience = math.inf
        self._known = {} if start_time is None else {root: start_time}
        if self._ours:
            _roots[root] = number
            platform.apply_stamp(root, number)

    def live_processes(self) -> list[platform.ProcessInfo]:
        """Every process of the run that runs. Zombies that became our children are reaped."""
        for _ in range(ZOMBIE_LOOKS):
            found = self._find()
            living = [proc for proc in found if proc.alive]
            # A zombie may have lost its parent just after the look.
            if living or all(proc.pid == self.root for proc in found):
                return living
        return []

    def _find(self) -> list[platform.ProcessInfo]:
        found: dict[int, platform.ProcessInfo] = {}
        self._walk([] if self.reaped or self.root_exit_time < math.inf else [self.root], found)
        known = (platform.get_process(pid) for pid in self._known)
        self._walk([p.pid for p in known if p and self._known[p.pid] == p.start_time], found)
        # Orphans last: a process that loses its parent during the walk becomes ours meanwhile.
        while fresh := self._orphans(found):
            self._walk(fresh, found)
        self._known = {proc.pid: proc.start_time for proc in found.values()}
        return list(found.values())

    def _walk(
        self, pids: list[int], found: dict[int, platform.ProcessInfo], below: int = 0
    ) -> None:
        for pid in pids:
            proc = None if pid in found or pid == os.getpid() else platform.get_process(pid)
            # A child that has another parent now is an orphan, or another process with its pid.
            if proc and (not below or proc.ppid == below):
                found[pid] = proc
                if proc.alive:
                    self._walk(platform.children(pid), found, below=pid)
                elif self._ours and proc.pid != self.root and proc.ppid == os.getpid():
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(proc.pid, os.WNOHANG)

    def _orphans(self, found: dict[int, platform.ProcessInfo]) -> list[int]:
        global _without_orphans  # noqa: PLW0603
        mine: list[int] = []
        if not self._ours:
            strays = platform.all_pids()
        elif self.root_exit_time <= _without_orphans:
            return mine
        else:
            now = time.monotonic()
            strays = platform.orphan_candidates(_roots)
            if not strays:
                _without_orphans = now
        for pid in strays:
            if pid in found or pid in _roots:
                continue
            proc = platform.get_process(pid)
            if proc and (
                (not self.reaped and self.root in (proc.sid, proc.pgid))
                or (pid != os.getpid() and platform.has_mark(pid, self.mark, self.number))
                or self._unmarked(proc)
            ):
                mine.append(pid)
        return mine

    def _unmarked(self, proc: platform.ProcessInfo) -> bool:
        """Whether an orphan without marks descends from this run, and from no other running one:
        then that run ends it."""
        if not self._ours or self.number is None or proc.ppid != os.getpid():
            return False
        limit = platform.lowered_stamp(proc.pid)
        if limit is None or limit >= self.number:
            return False
        others = (number for root, number in _roots.items() if root != self.root)
        return not any(number is not None and number >= limit for number in others)

    def set_deadline(self, grace: float) -> None:
        """Send KILL after ``grace`` seconds, or earlier if an earlier deadline was set."""
        self._patience = min(self._patience, time.monotonic() + grace)

    def end_steps(self) -> Iterator[float]:
        """End the run: TERM, wait until the deadline, KILL. Yields how long to wait before the next
        step. Stops when nothing of the run is left, or after FINAL seconds of pauses."""
        terminated: set[int] = set()
        pause, left = PAUSES[0], FINAL
        while (living := self._look()) and left > 0:
            now, patience = time.monotonic(), self._patience
            if now >= patience:
                self._send(living, signal.SIGKILL)
                left -= pause
            elif not terminated or not any(proc.pid == self.root for proc in living):
                # What a root forks after TERM is its own cleanup: it is not signalled.
                spared = {*terminated, self.root} if self.is_sandboxed else terminated
                self._send([p for p in living if p.pid not in spared], signal.SIGTERM)
                terminated.update(proc.pid for proc in living)
            yield min(pause, max(patience - now, 0.001)) if now < patience else pause
            pause = min(pause * 1.5, PAUSES[1])
        self.gone = not living

    def _look(self) -> list[platform.ProcessInfo]:
        self.is_blind = False
        with contextlib.suppress(OSError):
            return self.live_processes()
        with contextlib.suppress(OSError), platform.extra_descriptors():
            return self.live_processes()
        self.is_blind = True
        return [] if self.reaped else [platform.ProcessInfo(self.root, "", 0, self.root, 0, True)]

    def _send(self, living: list[platform.ProcessInfo], sig: int) -> None:
        if not self.reaped and any(proc.pgid == self.root for proc in living):
            platform.signal_group(self.root, sig)
        for proc in living:
            if self.reaped or proc.pgid != self.root:
                try:
                    platform.send_signal(proc, sig)
                except OSError:
                    try:
                        with platform.extra_descriptors():
                            platform.send_signal(proc, sig)
                    except OSError:
                        self.is_blind = True

    def kill(self, patience: float | None = None) -> None:
        """Send KILL to everything and wait until it is gone, at most ``patience`` seconds (by
        default ``KILL_PATIENCE``). Blocks."""
        until = time.monotonic() + (KILL_PATIENCE if patience is None else patience)
        looks = 0 if self._ours else SWEEPS
        while (living := self._look()) or looks:
            looks -= not living
            self._send(living, signal.SIGKILL)
            if time.monotonic() > until:
                break
            time.sleep(0.001)
        self.gone = not living

    def reap(self) -> None:
        """Reap the root. Its pid may belong to another process afterwards. A run that KILL has not
        ended yet is reaped later, by ``reap_leftovers``."""
        reap_leftovers()
        if not self.reaped and not (self.gone and self.reap_root()):
            _dying[self] = os.getpid()

    def reap_root(self) -> bool:
        """Reap the root if it has died; then nothing of the run is left. Whether it was reaped."""
        try:
            self.reaped = os.waitpid(self.root, os.WNOHANG)[0] == self.root
        except ChildProcessError:
            self.reaped = True
        if self.reaped:
            _roots.pop(self.root, None)
            if self.registry is not None:
                self.registry.remove(self.mark)
        return self.reaped


def reap_leftovers() -> bool:
    """Reap the runs that took long to die. Whether some have still not died."""
    for tree, owner in list(_dying.items()):
        if owner == os.getpid():
            tree.kill(patience=0.0)
        if owner != os.getpid() or (tree.gone and tree.reap_root()):
            _dying.pop(tree, None)
    return bool(_dying)


class RegistryEntry(msgspec.Struct, frozen=True):
    """A started process, and the process that started it."""

    pid: int
    start_time: str
    """Its start time, as the system counts it: together with the pid it identifies the process."""
    mark: str
    number: int | None
    owner: int
    owner_start_time: str
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
        return owner is None or not owner.alive or owner.start_time != self.owner_start_time


class ProcessRegistry(msgspec.Struct, frozen=True):
    """The registry in one folder. Several processes may write and reap at the same time."""

    folder: Path
    agent: str = ""
    """Written into each entry, for people who read it."""

    def announce(self, mark: str, number: int | None, program: str) -> RegistryEntry:
        """Register a process before it starts: if we die before its pid is known, the mark is
        enough to find it. Raises ``OSError``."""
        us = platform.get_process(os.getpid())
        entry = RegistryEntry(
            pid=0,
            start_time="",
            mark=mark,
            number=number,
            owner=os.getpid(),
            owner_start_time=us.start_time if us else "",
            boot=platform.boot_id(),
            pid_space=platform.pid_namespace(),
            agent=self.agent,
            program=program,
        )
        self._create(entry)
        return entry

    def add(self, announced: RegistryEntry, pid: int) -> None:
        """Complete the entry of an announced process, which has just started. Raises
        ``OSError``."""
        root = platform.get_process(pid)
        entry = msgspec.structs.replace(
            announced, pid=pid, start_time=root.start_time if root else ""
        )
        # It is longer than the entry without a pid, so it replaces that completely.
        try:
            fs.overwrite_start(self._file(entry.mark), msgspec.json.encode(entry))
        except FileNotFoundError:  # somebody removed it
            self._create(entry)

    def _create(self, entry: RegistryEntry) -> None:
        # Not synced: a crash of the machine ends the process too.
        file, data = self._file(entry.mark), msgspec.json.encode(entry)
        try:
            fs.create_complete(file, data)
        except FileNotFoundError:
            paths.make_dir(self.folder)
            fs.create_complete(file, data)

    def remove(self, mark: str) -> None:
        """Remove the entry of a process that is gone."""
        with contextlib.suppress(OSError):
            self._file(mark).unlink(missing_ok=True)

    def entries(self) -> list[RegistryEntry]:
        """All entries; ``is_orphaned`` says whether the owner is gone. Entries of another container
        on this machine are left out: their pids mean nothing here."""
        entries: list[RegistryEntry] = []
        for file in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                entry = decode_as(file.read_bytes(), RegistryEntry)
                if entry.boot != platform.boot_id() or entry.pid_space == platform.pid_namespace():
                    entries.append(entry)
        return entries

    def reap(self) -> list[RegistryEntry]:
        """End what is left of runs whose owner is gone, and remove their entries. Returns the
        removed entries. Blocks."""
        removed: list[RegistryEntry] = []
        for entry in self.entries():
            if not entry.is_orphaned:
                continue
            if entry.boot == platform.boot_id():
                tree = ProcessTree(entry.pid, entry.mark, entry.number, start_time=entry.start_time)
                tree.kill(REAPING)
                if not tree.gone:
                    continue
            self.remove(entry.mark)
            removed.append(entry)
        return removed

    def _file(self, mark: str) -> Path:
        return self.folder / f"{mark}.json"


@functools.lru_cache(maxsize=16)
def shared_registry(folder: Path, agent: str) -> ProcessRegistry:
    """The registry in this folder, as one object for all processes of an agent."""
    return ProcessRegistry(folder, agent)
