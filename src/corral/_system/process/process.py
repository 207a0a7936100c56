"""Run a program, and end it together with everything it started.

Theory of operation
-------------------
``Process`` is the public handle. It has no thread and no task. The event loop in which it was
started holds a ``ChildProcess`` (callbacks for the exit, stdout, stderr and stdin), which holds a
``ProcessTree``. The loop never holds the ``Process``: if the caller drops it, the run is
killed, also at the end of the interpreter. Thousands of them run at the same time: what is not
needed while a program runs is not held, and what few need is made when they need it.

States:

1. starting: ``start`` creates the pipes, writes a registry entry that has the mark only, starts
   the program with the mark and the stamp, and completes the registry entry with the pid. Every
   step is undone if a later one fails.
2. running: ``read`` returns output as soon as there is any. ``write`` queues input.
3. exited: the program has exited and ``exit`` is set. What it started may still run, and may still
   write to its stdout. That output is read until nothing came for a moment, then ``read`` returns
   the end.
4. ended: ``end`` or ``kill_now`` has returned. Nothing of the run is left, the descriptors are
   closed and the registry entry is removed.

Who calls: one task reads stdout at a time. ``write``, ``interrupt_read``, ``wait`` and ``end`` may
be called from any task of the same loop, ``kill_now`` from any thread.

Guaranteed:

- Everything that the program started ends with ``end``, whatever sessions, forks and signal
  handlers it made.
- ``end`` takes at most ``grace`` and 3 seconds, and after a sandbox the time for a look at the
  folders that it could write. It finishes when its caller is cancelled, and
  passes the cancellation on afterwards. It may be called several times, also at the same time:
  the shortest grace applies.
- No output is lost that was written before the end, within the limits of the chosen ``stdout``.
- A program that stops reading its input never blocks or fails the caller.
- Memory is bounded: nothing is read ahead.

Crashes: if corral is killed, the kernel kills the program where it can. The registry entry stays,
and the next corral process ends what is left (``ProcessRegistry.reap``). The entry is written
before the program starts, so there is no moment at which a started program is not registered.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

import msgspec

from corral._system import fs, paths, platform
from corral._system.process.streams import (
    FollowedFile,
    Pipe,
    Stderr,
    StdinPipe,
    read_input,
    stdin_file,
)
from corral._system.process.tree import (
    ProcessRegistry,
    ProcessTree,
    environment_with,
    reap_leftovers,
)
from corral._system.threads import in_thread

if TYPE_CHECKING:
    from corral._system.cassette.format import Writer
    from corral._system.sandbox.box import Wrapped
    from corral._system.sandbox.gateway import Gateway
    from corral._system.sandbox.repository_guard import RepositoryGuard
    from corral._system.sandbox.sandbox import Sandbox

_log = logging.getLogger("corral.process")

_LOSE_LIMITS_RIGHT = ("--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource")
"""Options of setpriv. Without this capability no process, not even one of root, can raise a hard
limit again. So no descendant can remove the stamp, which is a hard limit."""
NOT_STARTED = 127
"""The exit code in the recording of a program that could not be started, as shells have it."""
QUIET = 0.25
LINGER = 2.0
"""After the program has exited, others may still have its stdout open. What they write is read
until nothing came for QUIET seconds, at most for LINGER seconds."""
YIELD = 0.02
"""Seconds of continuous reading after which other tasks of the loop run."""
REAP_PAUSES = (0.02, 2.0)
"""Seconds between two attempts to reap what was killed and has not died yet, growing from the first
value to the second."""


class Exit(msgspec.Struct, frozen=True):
    """How a program ended. Both fields are None if other code reaped it, or if KILL could not
    end it in time."""

    code: int | None
    signal: int | None


class ProcessSpec(msgspec.Struct, frozen=True):
    """What to start, and how its streams are connected."""

    argv: Sequence[str]
    cwd: str | Path
    env: Mapping[str, str]
    """The complete environment. The run's mark is added."""
    stdin: bytes | Path | None = None
    """Written completely, then closed. With ``keep_stdin_open`` it stays open for ``write``."""
    keep_stdin_open: bool = False
    stdout: Literal["pipe", "file"] = "pipe"
    """``"file"`` is for programs that exit with unflushed output: nothing of it is lost. The file
    has no name, so it cannot be left behind."""
    scratch: Path | None = None
    """The folder of that file. Default: the system's folder for temporary files."""
    registry: ProcessRegistry | None = None
    """Gets an entry while the process runs."""
    on_stderr: Callable[[bytes], None] | None = None
    """Called with what the program writes to stderr. It must not reference the ``Process``, because
    the event loop holds it."""
    stderr_tail: int = 16_384
    """How many bytes of stderr are kept."""
    sandbox: Sandbox | None = None
    """Run it in a sandbox."""
    recording: Writer | None = None
    """Gets the input when it is queued, and the output when it is read: so a reply comes after its
    request. It is ended with the process, also if that cannot be started. The program has no
    access to it."""


class Process:
    """A program and everything it starts. It belongs to the loop in which it was started."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child
        _running.add(child)

    def __del__(self) -> None:
        # The loop holds the child, never this object: so dropping it is noticed.
        self._child.kill_now()

    @property
    def pid(self) -> int:
        return self._child.tree.root

    @classmethod
    async def start(cls, spec: ProcessSpec) -> Process:
        """Start the program with the run's mark, in its own session.

        Raises NotInstalled, BrokenInstall, ConfigError, PromptError, ProcessFailed or
        StorageFailed, all in the phase ``spawn``; then nothing was started.
        """
        loop = asyncio.get_running_loop()
        registry, sandbox = spec.registry, spec.sandbox
        files = spec.scratch
        if files is None:
            import tempfile  # slow to load, and mostly not needed

            files = Path(tempfile.gettempdir())
        mark = os.urandom(16).hex()
        env = environment_with(mark, spec.env if sandbox is None else sandbox.environment(spec.env))
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as child_ends:
            if spec.recording is not None:
                undo.callback(spec.recording.ended, NOT_STARTED, None)
            guard = None
            if sandbox is not None and sandbox.box.guarded:
                with _writing(paths.home()):
                    guard = await in_thread(sandbox.guard)
                undo.callback(guard.drop)
            with _writing(files):
                feed, stdin, out, err = _open_streams(loop, spec, files, undo, child_ends)
                wrapped = _open_sandbox(sandbox, guard, undo, child_ends)
            platform.adopt_orphans(mark)
            undo.callback(platform.release_orphans, mark)
            number = platform.new_stamp()
            entry = None
            with _writing(registry.folder if registry else files):
                if registry is not None:
                    undo.callback(registry.remove, mark)
                    entry = registry.announce(mark, number, spec.argv[0])
            popen = _spawn(spec, env, (stdin, out.child_fd, err.child_fd), number, wrapped)
            tree = ProcessTree(popen.pid, mark, number)
            tree.is_sandboxed = wrapped is not None and wrapped.is_container
            undo.callback(tree.reap)
            undo.callback(tree.kill)
            with _writing(registry.folder if registry else files):
                if registry is not None and entry is not None:
                    registry.add(entry, popen.pid)
                    tree.registry = registry
                child = ChildProcess(
                    loop, spec, popen=popen, tree=tree, feed=feed, out=out, err=err, guard=guard
                )
            undo.pop_all()
        if sandbox is not None and wrapped is not None and wrapped.control is not None:
            from corral._system.sandbox.gateway import Gateway

            child.gateway = Gateway(loop, wrapped, wrapped.control, sandbox.box)
            try:
                await child.gateway.open()  # then the program starts
            except BaseException:
                child.kill_now()
                raise
        _log.info("started %s as process %s", spec.argv[0], popen.pid)
        return cls(child)

    async def read(self) -> bytes:
        """Return the next chunk of stdout as soon as there is one. ``b""`` at the end: the program
        has exited and all its output was returned, or ``end()`` was called."""
        while (chunk := await self._child.read()) is None:
            pass
        return chunk

    def read_interruptible(self) -> Coroutine[Any, Any, bytes | None]:
        """Like ``read``, but return None if ``interrupt_read`` is called."""
        return self._child.read()

    def read_now(self) -> bytes:
        """Return the output that is available and was not read; empty if there is none."""
        return self._child.take() or b""

    def interrupt_read(self) -> None:
        """Make ``read_interruptible`` return None: the running call, or the next one that waits."""
        self._child.interrupt_read()

    def write(self, data: bytes) -> None:
        """Queue data for stdin. Never raises: a program may stop reading."""
        if self._child.feed is not None:
            self._child.feed.write(data)

    async def drain(self) -> None:
        """Wait until the program has read all that was written, or has stopped reading."""
        if self._child.feed is not None:
            await self._child.feed.drain()

    def close_stdin(self) -> None:
        """Close stdin after what is queued has been written."""
        if self._child.feed is not None:
            self._child.feed.finish()

    async def wait(self) -> Exit:
        """Wait until the program has exited. What it started may run until ``end()``."""
        return await asyncio.shield(self._child.exited)

    @property
    def exit(self) -> Exit | None:
        return self._child.exit

    @property
    def stderr(self) -> str:
        """The last part of what it wrote to stderr, without colors. Complete after its exit."""
        return self._child.err.text

    @property
    def stderr_is_cut(self) -> bool:
        """Whether it wrote more to stderr before the text in ``stderr``. The cut may have split a
        secret: redact with ``SecretRedactor.clean_text_part``."""
        return self._child.err.is_cut

    @property
    def recording_failure(self) -> OSError | None:
        """Why the recording is not complete."""
        recording = self._child.recording
        return None if recording is None else recording.failure

    async def end(self, grace: float = 5.0) -> Exit:
        """End the program and everything it started: TERM, ``grace`` seconds, KILL.

        When this returns or raises, nothing of it is left, also if the program had exited by
        itself. Cancellation is passed on afterwards. Can be called again, also while
        it is under way: the shortest grace applies. Takes at most ``grace`` and 3 s, plus
        the delays of a busy event loop.
        """
        return await self._child.end(grace)

    async def check_repositories(self) -> None:
        """Make harmless what a sandboxed program has done to repositories so far, and report it.
        ``end`` does it for the last time."""
        guard = self._child.guard
        if guard is not None:
            guard.tell(await in_thread(guard.check))

    def kill_now(self) -> None:
        """Send KILL to everything, without a loop: for finalizers. Blocks for a moment."""
        self._child.kill_now()


@contextlib.contextmanager
def _writing(folder: Path) -> Generator[None]:
    """Convert ``OSError`` while something is written to this folder before the start."""
    try:
        yield
    except OSError as error:
        from corral._system.process.start_errors import write_error

        raise write_error(error, folder) from error


def _open_sandbox(
    sandbox: Sandbox | None,
    guard: RepositoryGuard | None,
    undo: contextlib.ExitStack,
    child_ends: contextlib.ExitStack,
) -> Wrapped | None:
    if sandbox is None:
        return None
    wrapped = sandbox.wrap(guard.read_only if guard is not None else ())
    for number in wrapped.passed:
        child_ends.callback(os.close, number)
    if wrapped.control is not None:
        undo.callback(wrapped.control.close)
    return wrapped


def _open_streams(
    loop: asyncio.AbstractEventLoop,
    spec: ProcessSpec,
    files: Path,
    undo: contextlib.ExitStack,
    child_ends: contextlib.ExitStack,
) -> tuple[StdinPipe | None, int, Pipe | FollowedFile, Pipe]:
    """The pipe to write to, if it stays open, the child's stdin, and its stdout and stderr. What
    the child gets is closed here when the child has it."""
    feed = None
    if spec.keep_stdin_open:
        feed = StdinPipe(loop, spec.recording)
        stdin = feed.child_fd
        undo.callback(feed.close)
    else:
        stdin = stdin_file(spec.stdin)
    child_ends.callback(os.close, stdin)
    if feed is not None:
        feed.write(read_input(spec.stdin))
    elif spec.recording is not None:
        spec.recording.data("in", read_input(spec.stdin))
        spec.recording.closed()
    out = FollowedFile(loop, files) if spec.stdout == "file" else Pipe(loop)
    undo.callback(out.close)
    child_ends.callback(os.close, out.child_fd)
    err = Pipe(loop, big=False)
    undo.callback(err.close)
    child_ends.callback(os.close, err.child_fd)
    return feed, stdin, out, err


class ChildProcess:
    """What the event loop holds of a process, and what must be released when it is dropped."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        spec: ProcessSpec,
        *,
        popen: subprocess.Popen[bytes],
        tree: ProcessTree,
        feed: StdinPipe | None,
        out: Pipe | FollowedFile,
        err: Pipe,
        guard: RepositoryGuard | None,
    ) -> None:
        self.loop = loop
        self.tree = tree
        self.feed = feed
        self.out = out
        self.recording: Writer | None = spec.recording
        self.err: Stderr = Stderr(loop, err, spec.stderr_tail, spec.on_stderr, spec.recording)
        self.gateway: Gateway | None = None
        """The connections of a sandboxed program."""
        self.guard = guard
        """Protects the repositories that a sandboxed program can reach."""
        self.exit: Exit | None = None
        self._exited: asyncio.Future[Exit] | None = None
        # Linux needs only its pid, which is the tree's.
        self._popen = None if platform.LINUX else popen
        self._home = os.getpid(), threading.get_ident()
        self._ended: asyncio.Future[None] | None = None
        self._closed = False
        self._over = False
        self._interrupted = False
        self._waiter: asyncio.Future[None] | None = None
        self._last_output = 0.0
        self._exit_time = 0.0
        self._yielded = 0.0
        self._unwatch = platform.on_exit(loop, popen, self._note_exit)

    @property
    def exited(self) -> asyncio.Future[Exit]:
        """Done when the program has exited, or nothing of it is left."""
        if self._exited is None:
            self._exited = self.loop.create_future()
            if self.exit is not None or self._closed:
                self._exited.set_result(self.exit or Exit(None, None))
        return self._exited

    def _note_exit(self) -> None:
        child = self._popen or self.tree.root
        status = platform.exit_status(child) if self.exit is None else None
        if status is not None:
            self.exit = Exit(*status)
            _log.info("process %s exited: code %s, signal %s", self.tree.root, *status)
            self._exit_time = self.tree.root_exit_time = time.monotonic()
            self.err.drain()
            if self.feed is not None:
                self.feed.close()
            self._set_exited(self.exit)
            self._wake()

    def _set_exited(self, exit: Exit) -> None:
        if self._exited is not None and not self._exited.done() and not self.loop.is_closed():
            self._exited.set_result(exit)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done() and not self.loop.is_closed():
            self._waiter.set_result(None)

    def interrupt_read(self) -> None:
        self._interrupted = True
        self._wake()

    def take(self) -> bytes | None:
        """The output that is available; ``b""`` at its end, None if there is nothing now."""
        data = self.out.take()
        if data and self.recording is not None:
            self.recording.data("out", data)
        return data

    async def read(self) -> bytes | None:
        if self._waiter is not None:
            raise RuntimeError("stdout is being read already")
        while not self._over:
            if time.monotonic() - self._yielded > YIELD:
                # A program that writes continuously must not block the timers of the loop.
                await asyncio.sleep(0)
                self._yielded = time.monotonic()
            data = self.take()
            if data is None and self.exit is not None and not self.tree.live_processes():
                # No process is left that could write: this is the rest of the output.
                data = self.take() or b""
            if data:
                self._last_output = time.monotonic()
                return data
            pause = None
            if self.exit is not None:
                quiet = max(self._last_output, self._exit_time) + QUIET
                pause = min(quiet, self._exit_time + LINGER) - time.monotonic()
                self._over = data is not None or pause <= 0
            if self._interrupted:
                self._interrupted = False
                return None
            if self._over:
                break
            self._waiter = self.loop.create_future()
            timer = self.loop.call_later(pause, self._wake) if pause is not None else None
            if data is None:
                self.out.arm(self._wake)
            try:
                # Here and not in a function: its frame would be held as long as the agent works.
                await self._waiter
            finally:
                self._waiter = None
                self._yielded = time.monotonic()
                self.out.disarm()
                if timer is not None:
                    timer.cancel()
        return b""

    async def end(self, grace: float) -> Exit:
        self.tree.set_deadline(grace)
        cancelled = False
        if self._ended is not None:
            cancelled = await _wait_uncancelled(self._ended)
        elif not self._closed:
            self._ended = self.loop.create_future()
            try:
                # An event loop that was closed in the middle of the run cannot wait.
                for pause in () if self.loop.is_closed() else self.tree.end_steps():
                    # Until the next look at the processes, or until the program exits.
                    waited: Coroutine[Any, Any, object]
                    if self.exit is None:
                        waited = asyncio.wait([self.exited], timeout=pause)
                    else:
                        waited = asyncio.sleep(pause)
                    cancelled |= await _wait_uncancelled(self.loop.create_task(waited))
            finally:
                if not self.tree.gone and not self._closed:
                    self.tree.kill()
                self._close()
            if self.gateway is not None and not self.loop.is_closed():
                await self.gateway.wait_closed()
            if self.guard is not None:
                try:
                    check = self.loop.run_in_executor(None, self.guard.finish)
                except RuntimeError:  # no thread can be started, or the loop is being closed
                    self.guard.tell(self.guard.finish())
                else:
                    cancelled |= await _wait_uncancelled(check)
                    self.guard.tell(check.result())
        if cancelled:
            raise asyncio.CancelledError
        return self.exit or Exit(None, None)

    def kill_now(self) -> None:
        pid, thread = self._home
        # A fork of this process has copies of everything but owns nothing.
        if self._closed or os.getpid() != pid:
            return
        self.tree.kill()
        if self.loop.is_running() and threading.get_ident() != thread:
            # Dropped in another thread, where the loop must not be used.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._close_dropped)
                return
        self._close_dropped()

    def _close_dropped(self) -> None:
        self._close()
        if self.guard is not None:
            self.guard.tell(self.guard.finish())

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = self._over = True
        _running.discard(self)
        self._unwatch()
        self._note_exit()
        self.err.drain()
        for file in (self.out, self.err, self.feed, self.gateway):
            if file is not None:
                file.close()
        if self.recording is not None:
            exit = self.exit or Exit(None, None)
            self.recording.ended(exit.code, exit.signal)
        if self.tree.is_blind:
            # The descriptors that were just closed are enough to find what is left.
            self.tree.kill()
        self.tree.reap()
        if self._popen is not None:
            self._popen.returncode = 0
        platform.release_orphans(self.tree.mark)
        if not self.loop.is_closed():
            self._set_exited(self.exit or Exit(None, None))
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)
            self._wake()
            if not self.tree.reaped:
                _reap_later(self.loop, REAP_PAUSES[0])


_running: WeakSet[ChildProcess] = WeakSet()
"""Those that were started and have not ended. Weak: a child refers to the task that reads from it,
and so to its ``Process``, which must be dropped with a loop that was closed in the middle."""


@atexit.register
def _kill_all() -> None:
    """What the caller still holds when the interpreter ends."""
    for child in list(_running):
        child.kill_now()


def _reap_later(loop: asyncio.AbstractEventLoop, pause: float) -> None:
    """Without this, what dies after the wait for it would stay a zombie until another run ends."""

    def reap() -> None:
        if reap_leftovers():
            _reap_later(loop, min(pause * 1.5, REAP_PAUSES[1]))

    loop.call_later(pause, reap)


async def _wait_uncancelled(future: asyncio.Future[Any]) -> bool:
    """Wait to the end despite cancellation. Return True if the caller was cancelled."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            cancelled = True
    return cancelled


def _spawn(
    spec: ProcessSpec,
    env: Mapping[str, str],
    streams: tuple[int, int, int],
    number: int | None,
    wrapped: Wrapped | None,
) -> subprocess.Popen[bytes]:
    """Start the program in its own session, with the stamp ``number`` set before it runs. Where the
    kernel supports that, it is killed when we die."""
    argv, cwd = spec.argv, Path(spec.cwd)
    program = find_program(argv[0], cwd, env)
    try:
        contained = wrapped is not None and wrapped.is_container
        runs = program and _is_runnable(program)
        launcher = _launcher(number, contained=contained) if runs else []
        popen = subprocess.Popen(
            [*launcher, *(wrapped.argv if wrapped else ()), *argv],
            cwd=cwd,
            env=env,
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            start_new_session=True,
            close_fds=True,
            pass_fds=wrapped.passed if wrapped else (),
        )
    except (OSError, ValueError) as error:
        from corral._system.process.start_errors import spawn_error

        raise spawn_error(error, argv[0], cwd, program) from error
    popen.args = argv[0]  # not held while it runs
    if platform.LINUX:
        # Otherwise subprocess would warn about a child that is not reaped yet, and reap it itself.
        popen.returncode = 0
    return popen


def _launcher(number: int | None, *, contained: bool) -> list[str]:
    """The command that is put before ``argv``. Each part sets one thing and then executes the next,
    so the program never runs without it. An error of exec would look like the program's own exit:
    so this is used only for programs that will run. ``contained``: the sandbox drops all rights
    and ends with us."""
    parts: list[str] = []
    if number is not None and _works("prlimit", f"--rttime={1 << 60}"):
        parts += [_tool("prlimit") or "", f"--rttime={number}:{number}", "--"]
    options: list[str] = []
    if contained:
        return parts
    if parts and platform.can_drop_limits_right() and _works("setpriv", *_LOSE_LIMITS_RIGHT):
        options += _LOSE_LIMITS_RIGHT
    # The kernel binds the child to the thread that started it, and only the first
    # thread lives as long as the process.
    of_first_thread = threading.current_thread() is threading.main_thread()
    if of_first_thread and _works("setpriv", "--pdeathsig", "KILL"):
        options += ["--pdeathsig", "KILL"]
    if options:
        parts += [_tool("setpriv") or "", *options, "--"]
    return parts


@functools.cache
def _tool(name: str) -> str | None:
    return fs.find_program(name) if platform.LINUX else None


@functools.cache
def _works(name: str, *options: str) -> bool:
    """Whether the tool exists and supports the options; busybox and old versions do not."""
    tool = _tool(name)
    if tool is None:
        return False
    key = paths.answer_key(tool, *options)
    answer = paths.known_answer("launchers", key)
    if answer is None:
        probe = subprocess.run([tool, *options, "--", "true"], capture_output=True, check=False)
        answer = "works" if probe.returncode == 0 else "fails"
        paths.remember_answer("launchers", key, answer)
    return answer == "works"


def find_program(name: str, cwd: Path, env: Mapping[str, str]) -> str | None:
    """The file that would be run for ``name`` in ``cwd``, whether or not it is executable."""
    places = [""] if os.path.dirname(name) else os.get_exec_path(env)
    programs = [path for place in places if os.path.isfile(path := os.path.join(cwd, place, name))]
    first = programs[0] if programs else None
    return next((path for path in programs if os.access(path, os.X_OK)), first)


def _is_runnable(program: str) -> bool:
    """Whether the kernel can run this: a binary of this machine, or a script for one."""
    head = _head(program) if os.access(program, os.X_OK) else b""
    if head.startswith(b"#!"):
        interpreter = os.fsdecode(head[2:].split(b"\n")[0].strip()).split()
        program = interpreter[0] if interpreter else ""
        head = _head(program) if os.access(program, os.X_OK) else b""
    # Class, byte order and machine must be those of the running interpreter.
    ours = _head(sys.executable)
    return head.startswith(b"\x7fELF") and (head[4:6], head[18:20]) == (ours[4:6], ours[18:20])


def _head(file: str) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(256)
