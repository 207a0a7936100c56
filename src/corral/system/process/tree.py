"""Which processes belong to a run, and how they are ended.

A run is what its first process, the root, has brought forth: its children and
theirs, whatever session or group they made for themselves. While the root lives
they hang below it. Orphans fall to us (we are their sub-reaper) and are told apart
by what they inherited: the stamp, the mark in the environment, the root's session.

An orphan may have removed all of these: a session of its own, an empty environment, a
stamp that it lowered. But the stamp is a hard limit, which nobody without privileges can
raise again (root's runs are started without that privilege, see ``spawn``): a limit below
our own proves that an orphan descends from a run whose stamp is higher. Where several runs
could be meant, the last of them ends it. An orphan without such a proof is left alone: it
may be the caller's own.

The root is not reaped before the tree is gone. As long as it is a zombie its pid,
group and session are nobody else's, so signals to them cannot hit a stranger.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator

from corral.system.process import platform

FINAL = 3.0
"""Seconds of pauses after KILL. Only a process stuck in the kernel takes longer. It is not the
clock that counts: where we come late to each look, the dying are as short of time."""
PAUSES = (0.001, 0.1)
"""Between two looks, growing from the first to the second."""
LOOKS = 5
"""At a run of which only zombies are left, until they are reaped."""
SWEEPS = 2
"""More looks at all processes that must find nothing: what forks and exits while the
list is gone through can slip by one. Our own children cannot."""

_roots: dict[int, int | None] = {}
"""Roots not reaped yet, with their stamps. They are never anyone's orphans."""
_unreaped: set[int] = set()
"""Roots that were killed and had not died yet when nobody could wait any longer."""


class Tree:
    """The processes of one run, found anew at each look."""

    def __init__(self, root: int, mark: str, number: int | None) -> None:
        """``root`` is a child of ours, just started with this mark and stamp."""
        _roots[root] = number
        self.root = root
        self.mark = mark
        self.number = number
        platform.stamp(root, number)
        self.root_exited = False
        """Said by who watches it; spares looking at it."""
        self.gone = False
        """Whether the last attempt to end the run left nothing of it."""
        self.reaped = False
        self._ours = True
        self._patience = math.inf
        self._known: dict[int, str] = {}

    @classmethod
    def left_behind(cls, root: int, born: str, mark: str, number: int | None) -> Tree:
        """The tree of a run whose owner died. What bears its mark counts, what was born
        as its root, and what hangs below these; a pid alone proves nothing by now."""
        tree = cls.__new__(cls)
        tree.root, tree.mark, tree.number = root, mark, number
        tree.root_exited, tree.gone, tree.reaped, tree._ours = True, False, True, False
        tree._known = {root: born}
        return tree

    def living(self) -> list[platform.Proc]:
        """Every process of the run that runs. Zombies that fell to us are reaped."""
        for _ in range(LOOKS):
            found = self._find()
            living = [proc for proc in found if proc.alive]
            # A zombie may have lost its parent just after it was looked at.
            if living or all(proc.pid == self.root for proc in found):
                return living
        return []

    def _find(self) -> list[platform.Proc]:
        found: dict[int, platform.Proc] = {}
        self._walk([] if self.reaped or self.root_exited else [self.root], found)
        known = (platform.look(pid) for pid in self._known)
        self._walk([p.pid for p in known if p and self._known[p.pid] == p.born], found)
        # Orphans last: what loses its parent during the walk falls to us meanwhile.
        while fresh := self._orphans(found):
            self._walk(fresh, found)
        self._known = {proc.pid: proc.born for proc in found.values()}
        return list(found.values())

    def _walk(self, pids: list[int], found: dict[int, platform.Proc], below: int = 0) -> None:
        for pid in pids:
            proc = None if pid in found or pid == os.getpid() else platform.look(pid)
            # A child that has another parent now is an orphan, or a stranger by its pid.
            if proc and (not below or proc.ppid == below):
                found[pid] = proc
                if proc.alive:
                    self._walk(platform.children(pid), found, below=pid)
                else:
                    self._reap_orphan(proc)

    def _orphans(self, found: dict[int, platform.Proc]) -> list[int]:
        strays = platform.strays() if self._ours else platform.pids()
        mine: list[int] = []
        for pid in strays:
            if pid in found or pid in _roots:
                continue
            proc = platform.look(pid)
            if proc and (self._in_session(proc) or self._carries(pid) or self._unmarked(proc)):
                mine.append(pid)
        return mine

    def _unmarked(self, proc: platform.Proc) -> bool:
        """Whether an orphan without marks descends from this run, and from no other that
        still runs: then that one ends it."""
        if not self._ours or self.number is None or proc.ppid != os.getpid():
            return False
        limit = platform.lowered_stamp(proc.pid)
        if limit is None or limit >= self.number:
            return False
        others = (number for root, number in _roots.items() if root != self.root)
        return not any(number is not None and number >= limit for number in others)

    def _in_session(self, proc: platform.Proc) -> bool:
        return not self.reaped and self.root in (proc.sid, proc.pgid)

    def _carries(self, pid: int) -> bool:
        return pid != os.getpid() and platform.carries(pid, self.mark, self.number)

    def _reap_orphan(self, proc: platform.Proc) -> None:
        if self._ours and proc.pid != self.root and proc.ppid == os.getpid():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(proc.pid, os.WNOHANG)

    def hurry(self, grace: float) -> None:
        """KILL what is left after so many seconds, or when it was due already if sooner."""
        self._patience = min(self._patience, time.monotonic() + grace)

    def ending(self) -> Iterator[float]:
        """End the run: TERM, the time that ``hurry`` gives, KILL. Yields how long to wait
        before going on; ends when nothing of the run is left, or FINAL has passed."""
        told: set[int] = set()
        pause, left = PAUSES[0], FINAL
        while (living := self._look()) and left > 0:
            now, patience = time.monotonic(), self._patience
            if now >= patience:
                self._send(living, platform.KILL)
                left -= pause
            elif not told or not any(proc.pid == self.root for proc in living):
                # What a root forks after TERM is its own tidying up: leave it be.
                self._send([p for p in living if p.pid not in told], signal.SIGTERM)
                told.update(proc.pid for proc in living)
            yield min(pause, max(patience - now, 0.001)) if now < patience else pause
            pause = min(pause * 1.5, PAUSES[1])
        self.gone = not living

    def _look(self) -> list[platform.Proc]:
        try:
            return self.living()
        except OSError:
            # Out of descriptors: the root is all that can be named without any.
            return [] if self.reaped else [platform.Proc(self.root, "", 0, self.root, 0, True)]

    def _send(self, living: list[platform.Proc], sig: int) -> None:
        if not self.reaped and any(proc.pgid == self.root for proc in living):
            platform.send_group(self.root, sig)
        for proc in living:
            if self.reaped or proc.pgid != self.root:
                with contextlib.suppress(OSError):
                    platform.send(proc, sig)

    def kill(self, patience: float = 0.25) -> None:
        """KILL everything at once and wait, blocking, a moment for it to be gone."""
        until = time.monotonic() + patience
        looks = 0 if self._ours else SWEEPS
        while (living := self._look()) or looks:
            looks -= not living
            self._send(living, platform.KILL)
            if time.monotonic() > until:
                break
            time.sleep(0.001)
        self.gone = not living

    def reap(self) -> None:
        """Let go of the root; its pid may be another's from here on."""
        reap_leftovers()
        if not self.reaped:
            self.reaped = True
            if not _gone(self.root):
                _unreaped.add(self.root)
            _roots.pop(self.root, None)


def reap_leftovers() -> None:
    """Reap roots that took long to die."""
    for pid in list(_unreaped):
        if _gone(pid):
            _unreaped.discard(pid)


def _gone(pid: int) -> bool:
    if platform.WINDOWS:
        return True
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
