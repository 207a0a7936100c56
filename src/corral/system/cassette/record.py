"""Run a program as a transparent middle-man, and write down what is said.

Bytes pass both ways as soon as they are there, signals and the exit too; nothing that
goes wrong with the recording changes what the program does. A byte is written down
before it is passed on: so no answer stands before its question.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from corral.errors import CorralError, StorageFailed
from corral.system import platform
from corral.system.cassette import format
from corral.system.cassette.format import Head, Writer
from corral.system.environment import SecretRedactor, named_secrets
from corral.system.process import spawn

CHUNK = 256 * 1024
PIPE_SIZE = 1024 * 1024
"""A program that exits without flushing loses what does not fit into its pipe."""
POLL = 0.01
QUIET, LINGER = 0.25, 2.0
"""Seconds that others may keep the output open after the program has exited, as in
``corral.system.process.process``."""

RUN = "CORRAL_CASSETTE_RUN"
"""The run of a take: takes of one run share a file."""
SECRETS = "CORRAL_CASSETTE_SECRETS"
"""Further secrets, as JSON, which only the caller knows."""

_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")


def record(
    path: str,
    argv: Sequence[str],
    *,
    words: int = 1,
    agent: str | None = None,
    version: str | None = None,
) -> int:
    """Run ``argv`` to its end on our own stdin, stdout and stderr. Its exit code; where it was
    killed, so are we. Raises ``StorageFailed``, and ``NotInstalled`` and its kin: then nothing
    was started."""
    env = {name: value for name, value in os.environ.items() if name not in (RUN, SECRETS)}
    secrets = {**named_secrets(env), **open_environment(os.environ.get(SECRETS))}
    take = os.urandom(4).hex()
    head = Head(
        cassette=format.FORMAT,
        take=take,
        run=os.environ.get(RUN) or take,
        argv=tuple(argv),
        words=words,
        places=format.places(os.getcwd(), env),
        secrets=tuple(sorted(secrets)),
        agent=agent,
        version=version,
        recorded=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    longest = max((len(json.dumps(value)) for value in secrets.values()), default=0)
    try:
        writer = Writer(path, head, SecretRedactor(secrets), longest)
    except OSError as error:
        raise StorageFailed(
            f"cannot write the recording {path}: {error.strerror}",
            hint="Choose a file in a writable folder.",
        ) from error
    return _Middle(writer, head, env).run()


def open_environment(names: str | None) -> dict[str, str]:
    """The secrets that the run passed to the recorder."""
    return cast("dict[str, str]", json.loads(names)) if names else {}


class _Middle:
    """Copies bytes between the process that started the recorder and the program."""

    def __init__(self, writer: Writer, head: Head, env: dict[str, str]) -> None:
        self._writer = writer
        self._head = head
        self._typed = bytearray()
        self._tail = _Tail() if stat.S_ISREG(os.fstat(1).st_mode) else None
        self._heard = 0.0
        self._over = threading.Event()
        program = spawn.find_program(head.argv[0], Path.cwd(), env)
        try:
            # A group of its own: Ctrl-C reaches the program once, through us.
            self._popen = subprocess.Popen(
                head.argv,
                env=env,
                stdin=subprocess.PIPE,
                stdout=self._tail.child_fd if self._tail else subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                process_group=0 if hasattr(os, "setpgid") else None,
            )
        except (OSError, ValueError) as error:
            writer.ended(127, None)
            raise spawn.spawn_error(error, head.argv[0], Path.cwd(), program) from error

    def run(self) -> int:
        popen = self._popen
        self._note_files("\n".join(self._head.args))
        self._pass_signals_on()
        assert popen.stdin is not None  # noqa: S101
        assert popen.stderr is not None  # noqa: S101
        threading.Thread(target=self._feed, args=(popen.stdin.fileno(),), daemon=True).start()
        pumps = [threading.Thread(target=self._complain, args=(popen.stderr.fileno(),))]
        if self._tail is not None:
            pumps.append(threading.Thread(target=self._follow, args=(self._tail,)))
        elif popen.stdout is not None:
            platform.grow_pipe(popen.stdout.fileno(), PIPE_SIZE)
            pumps.append(threading.Thread(target=self._answer, args=(popen.stdout.fileno(),)))
        for pump in pumps:
            pump.daemon = True  # whoever holds the output open does not hold us
            pump.start()
        code = _end_of(popen)
        self._over.set()
        self._listen_on(pumps)
        self._writer.ended(code if code >= 0 else None, -code if code < 0 else None)
        if self._writer.failure is not None:
            said = f"corral record: the recording is incomplete: {self._writer.failure.strerror}\n"
            write(2, said.encode())
        if code < 0:
            die(-code)
        return code

    def _pass_signals_on(self) -> None:
        def pass_on(number: int, _: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                self._popen.send_signal(number)

        for name in _PASSED_ON:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, pass_on)

    def _listen_on(self, pumps: list[threading.Thread]) -> None:
        began = self._heard = time.monotonic()
        while any(pump.is_alive() for pump in pumps):
            now = time.monotonic()
            if now > began + LINGER or now > self._heard + QUIET:
                return
            time.sleep(POLL)

    def _feed(self, child: int) -> None:
        is_text = True
        while data := _read(0):
            if not self._typed:
                is_text = not data.lstrip().startswith(b"{")
            if is_text:
                self._typed += data
            self._writer.said("in", data)
            if not write(child, data):
                # It reads no more: whoever writes to us is to learn that, too.
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                return
        self._note_files(self._typed.decode("utf-8", "replace"))
        self._writer.closed()
        os.close(child)

    def _note_files(self, text: str) -> None:
        for name, content in format.pointed_at(text, self._head.places).items():
            self._writer.given(name, content)

    def _answer(self, child: int) -> None:
        self._pump(lambda: _read(child), "out", 1)
        # Whoever read our output has gone: the program is to meet that itself.
        os.close(child)

    def _complain(self, child: int) -> None:
        self._pump(lambda: _read(child), "err", 2)

    def _follow(self, tail: _Tail) -> None:
        while self._pump(tail.read, "out", 1):
            if self._over.is_set():
                self._pump(tail.read, "out", 1)
                return
            time.sleep(POLL)

    def _pump(self, read: Callable[[], bytes], dir: format.Direction, to: int) -> bool:
        """Until nothing comes; False when nobody takes it any more."""
        while data := read():
            self._heard = time.monotonic()
            self._writer.said(dir, data)
            if not write(to, data):
                return False
        return True


class _Tail:
    """Where our own output is a file, the program's is one too: into a pipe it might exit
    without flushing."""

    def __init__(self) -> None:
        folder = Path(tempfile.gettempdir())
        self._fd, self.child_fd, _ = platform.scratch_file(folder)

    def read(self) -> bytes:
        return os.read(self._fd, CHUNK)


def _end_of(popen: subprocess.Popen[bytes]) -> int:
    """Its exit, heard so that a signal to us is never missed: one that comes just before a
    blocking ``waitpid`` would wait there for the program's end, which may wait for the signal."""
    if not hasattr(signal, "SIGCHLD"):
        return popen.wait()
    heard, told = os.pipe()
    os.set_blocking(heard, False)
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _wake)
    while (code := popen.poll()) is None:
        select.select([heard], [], [])
        with contextlib.suppress(BlockingIOError):
            os.read(heard, CHUNK)
    return code


def _wake(_number: int, _frame: object) -> None:
    """A signal without a handler would not be heard."""


def _read(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, CHUNK)
        except BlockingIOError:
            select.select([fd], [], [])
        except OSError:
            return b""


def write(fd: int, data: bytes) -> bool:
    """All of it; False when nobody reads there any more."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            select.select([], [fd], [])
        except OSError:
            return False
    return True


def die(number: int) -> None:
    """As the program did: whoever started us sees the signal and not a number for it."""
    with contextlib.suppress(OSError, ValueError):  # KILL and STOP have no handler
        signal.signal(number, signal.SIG_DFL)
    sys.stderr.flush()
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def main(words: Sequence[str]) -> None:
    """``FILE COUNT AGENT VERSION COMMAND…``: how a run starts it; COUNT is of the words that
    are the program itself."""
    path, count, agent, version, *argv = words
    # Not sys.exit: a thread still waits for our input, and nothing is left to flush.
    try:
        code = record(path, argv, words=int(count), agent=agent, version=version or None)
    except CorralError as error:
        write(2, f"corral record: {error}\n".encode())
        code = 127
    os._exit(code)
