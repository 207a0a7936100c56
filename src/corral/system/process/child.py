"""A running process in the event loop: its callbacks and its resources. See ``process``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
import time

import msgspec

from corral.system.process import platform
from corral.system.process.registry import ProcessRegistry
from corral.system.process.stdin import StdinPipe
from corral.system.process.stdout import FollowedFile, Pipe, Stderr
from corral.system.process.tree import ProcessTree

QUIET = 0.25
LINGER = 2.0
"""After the program has exited, others may still have its stdout open. What they write is read
until nothing came for QUIET seconds, at most for LINGER seconds."""
YIELD = 0.02
"""Seconds of continuous reading after which other tasks of the loop run."""


class Exit(msgspec.Struct, frozen=True):
    """How a program ended. Both fields are None if somebody else reaped it, or if KILL could not
    end it in time."""

    code: int | None
    signal: int | None


class Child:
    """What the event loop holds of a process, and what must be released when it is dropped."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        popen: subprocess.Popen[bytes],
        tree: ProcessTree,
        feed: StdinPipe | None,
        out: Pipe | FollowedFile,
        err: Stderr,
        registry: ProcessRegistry | None,
    ) -> None:
        self.loop = loop
        self.tree = tree
        self.feed = feed
        self.out = out
        self.err = err
        self.exit: Exit | None = None
        self.exited: asyncio.Future[Exit] = loop.create_future()
        self._popen = popen
        self._registry = registry
        self._home = os.getpid(), threading.get_ident()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._ending = False
        self._closed = False
        self._over = False
        self._nudged = False
        self._waiter: asyncio.Future[None] | None = None
        self._last_output = 0.0
        self._exit_time = 0.0
        self._yielded = 0.0
        self._unwatch = platform.on_exit(loop, popen, self._note_exit)

    def _note_exit(self) -> None:
        status = platform.exit_status(self._popen) if self.exit is None else None
        if status is not None:
            self.exit = Exit(*status)
            self.tree.root_exited = True
            self._exit_time = time.monotonic()
            self.err.drain()
            if self.feed is not None:
                self.feed.close()
            if not self.exited.done() and not self.loop.is_closed():
                self.exited.set_result(self.exit)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done() and not self.loop.is_closed():
            self._waiter.set_result(None)

    def interrupt_read(self) -> None:
        self._nudged = True
        self._wake()

    async def read(self) -> bytes | None:
        if self._waiter is not None:
            raise RuntimeError("stdout is being read already")
        while not self._over:
            if time.monotonic() - self._yielded > YIELD:
                # A program that writes continuously must not block the timers of the loop.
                await asyncio.sleep(0)
                self._yielded = time.monotonic()
            data = self.out.take()
            if data is None and self.exit is not None and not self.tree.live_processes():
                # Nobody is left to write: this is the rest of the output.
                data = self.out.take() or b""
            if data:
                self._last_output = time.monotonic()
                return data
            pause = None
            if self.exit is not None:
                pause = self._seconds_left()
                self._over = data is not None or pause <= 0
            if self._nudged:
                self._nudged = False
                return None
            if not self._over:
                await self._wait_woken(pause, listen=data is None)
        return b""

    def _seconds_left(self) -> float:
        quiet = max(self._last_output, self._exit_time) + QUIET
        return min(quiet, self._exit_time + LINGER) - time.monotonic()

    async def _wait_woken(self, seconds: float | None, *, listen: bool) -> None:
        self._waiter = self.loop.create_future()
        timer = self.loop.call_later(seconds, self._wake) if seconds is not None else None
        if listen:
            self.out.arm(self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._yielded = time.monotonic()
            self.out.disarm()
            if timer is not None:
                timer.cancel()

    async def end(self, grace: float) -> Exit:
        self.tree.set_deadline(grace)
        cancelled = False
        if self._ending:
            cancelled = await _wait_uncancelled(self._ended)
        elif not self._closed:
            self._ending = True
            try:
                for pause in self.tree.end_steps():
                    cancelled |= await self._pause(pause)
            finally:
                # Also if the event loop is being closed: then without a grace period.
                if not self.tree.gone and not self._closed:
                    self.tree.kill()
                self._close()
        if cancelled:
            raise asyncio.CancelledError
        return self.exit or Exit(None, None)

    async def _pause(self, seconds: float) -> bool:
        over: asyncio.Future[None] = self.loop.create_future()

        def wake(_: object = None) -> None:
            if not over.done():
                over.set_result(None)

        timer = self.loop.call_later(seconds, wake)
        if not self.exited.done():
            self.exited.add_done_callback(wake)
        try:
            return await _wait_uncancelled(over)
        finally:
            timer.cancel()
            self.exited.remove_done_callback(wake)

    def kill_now(self) -> None:
        pid, thread = self._home
        # A fork of this process has copies of everything but owns nothing.
        if self._closed or os.getpid() != pid:
            return
        self.tree.kill()
        if self.loop.is_running() and threading.get_ident() != thread:
            # Dropped in another thread, where the loop must not be used.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._close)
                return
        self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = self._over = True
        self._unwatch()
        self._note_exit()
        self.err.drain()
        for file in (self.out, self.err, self.feed):
            if file is not None:
                file.close()
        self.tree.reap()
        self._popen.returncode = 0
        if self._registry is not None and self.tree.gone:
            self._registry.remove(self.tree.mark)
        platform.release_orphans(self.tree.mark)
        if not self.loop.is_closed():
            if not self.exited.done():
                self.exited.set_result(self.exit or Exit(None, None))
            if not self._ended.done():
                self._ended.set_result(None)
            self._wake()


async def _wait_uncancelled(future: asyncio.Future[None]) -> bool:
    """Wait to the end despite cancellation. Return True if the caller was cancelled."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            cancelled = True
    return cancelled
