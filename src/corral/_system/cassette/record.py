"""Run a program and record its input and output, transparently.

Bytes are passed on in both directions as soon as they arrive, and so are signals and the exit. An
error of the recording does not change what the program does. Bytes are recorded before they are
passed on, so no reply is recorded before its request.
"""

from __future__ import annotations

import contextlib
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
from pathlib import Path

from corral._core.stored_formats import RECORDING
from corral._system import platform
from corral._system.cassette import format
from corral._system.cassette.format import Head, Writer
from corral._system.environment import SecretRedactor, named_secrets
from corral._system.process.process import find_program
from corral._system.process.start_errors import spawn_error
from corral.errors import StorageFailed

CHUNK = 256 * 1024
PIPE_SIZE = 1024 * 1024
"""A program that exits without flushing loses what does not fit into its pipe."""
POLL = 0.01
QUIET, LINGER = 0.25, 2.0
"""After the program has exited, others may still have its output open. What the program wrote is
copied in any case, however long that takes; what others write is copied until nothing came for
QUIET seconds, at most for LINGER seconds."""

_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")


def record(path: str, argv: Sequence[str], *, agent: str | None = None) -> int:
    """Run ``argv`` to its end on our own stdin, stdout and stderr. Return its exit code. If it was
    killed by a signal, this process ends with the same signal. Raises ``StorageFailed``, and
    ``NotInstalled`` and other errors of the start: then nothing was started."""
    env = {name: value for name, value in os.environ.items() if name != format.RUN}
    secrets = named_secrets(env)
    head = Head(
        cassette=RECORDING,
        run=os.environ.get(format.RUN) or os.urandom(8).hex(),
        argv=tuple(argv),
        places=format.places(os.getcwd(), env),
        secrets=tuple(sorted(secrets)),
        agent=agent,
    )
    try:
        writer = Writer(path, head, SecretRedactor(secrets))
    except OSError as error:
        raise StorageFailed(
            f"cannot write the recording {path}: {error.strerror}",
            hint="Choose a file in a writable folder.",
        ) from error
    return _Recorder(writer, head, env).run()


class _Recorder:
    """Copies bytes between the process that started the recorder and the program."""

    def __init__(self, writer: Writer, head: Head, env: dict[str, str]) -> None:
        self._writer = writer
        self._head = head
        self._input = bytearray()
        self._file: int | None = None
        """The output of the program, if our own output is a file: a program that writes to a pipe
        may exit without flushing."""
        output = subprocess.PIPE
        if stat.S_ISREG(os.fstat(1).st_mode):
            self._file, output = platform.scratch_file(Path(tempfile.gettempdir()))
        self._last_output = 0.0
        self._copied: dict[format.Direction, int] = {"out": 0, "err": 0}
        """Bytes that were copied."""
        self._writing: set[format.Direction] = set()
        """Where data was read and is not yet written: its reader may be slow."""
        self._exited = threading.Event()
        program = find_program(head.argv[0], Path.cwd(), env)
        try:
            # Its own process group: so Ctrl-C reaches the program once, through us.
            self._popen = subprocess.Popen(
                head.argv,
                env=env,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.PIPE,
                bufsize=0,
                process_group=0,
            )
        except (OSError, ValueError) as error:
            writer.ended(127, None)
            raise spawn_error(error, head.argv[0], Path.cwd(), program) from error

    def run(self) -> int:
        popen = self._popen
        self._note_files("\n".join(self._head.args))

        def pass_on(number: int, _: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                self._popen.send_signal(number)

        for name in _PASSED_ON:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, pass_on)
        assert popen.stdin is not None  # noqa: S101
        assert popen.stderr is not None  # noqa: S101
        feed = threading.Thread(target=self._feed, args=(popen.stdin.fileno(),), daemon=True)
        feed.start()
        stderr = popen.stderr.fileno()
        # Not waited for at the end: another process may keep the output open.
        pumps = [
            threading.Thread(target=self._pump, args=(lambda: _read(stderr), "err", 2), daemon=True)
        ]
        if self._file is not None:
            pumps.append(threading.Thread(target=self._copy_file, args=(self._file,), daemon=True))
        elif popen.stdout is not None:
            stdout = popen.stdout.fileno()
            platform.grow_pipe(stdout, PIPE_SIZE)
            pumps.append(threading.Thread(target=self._copy_stdout, args=(stdout,), daemon=True))
        for pump in pumps:
            pump.start()
        code = _end_of(popen)
        with contextlib.suppress(OSError):
            if select.select([0], [], [], 0)[0]:
                # There is input, or its end, that was not read yet: it may have been closed before
                # the program was ended, and a replay waits for that.
                feed.join(LINGER)
        self._exited.set()
        self._read_rest(pumps)
        self._writer.ended(code if code >= 0 else None, -code if code < 0 else None)
        if self._writer.failure is not None:
            reason = self._writer.failure.strerror
            write(2, f"corral fake record: the recording is incomplete: {reason}\n".encode())
        if code < 0:
            die(-code)
        return code

    def _read_rest(self, pumps: list[threading.Thread]) -> None:
        began = self._last_output = time.monotonic()
        unread = PIPE_SIZE * 2
        if self._file is not None:
            read = os.lseek(self._file, 0, os.SEEK_CUR)
            unread = PIPE_SIZE + os.fstat(self._file).st_size - read
        own = sum(self._copied.values()) + unread  # at most this much is of the program itself
        while any(pump.is_alive() for pump in pumps):
            now = time.monotonic()
            if not self._writing and now > self._last_output + QUIET:
                return
            if now > began + LINGER and sum(self._copied.values()) >= own:
                return
            time.sleep(POLL)

    def _feed(self, child: int) -> None:
        is_text = True
        while data := _read(0):
            if not self._input:
                is_text = not data.lstrip().startswith(b"{")
            if is_text:
                self._input += data
            self._writer.data("in", data)
            if not write(child, data):
                # The program has stopped reading: our own writer must notice that too.
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                return
        self._note_files(self._input.decode("utf-8", "replace"))
        self._writer.closed()
        os.close(child)

    def _note_files(self, text: str) -> None:
        for name, content in format.named_files(text, self._head.places).items():
            self._writer.given(name, content)

    def _copy_stdout(self, child: int) -> None:
        self._pump(lambda: _read(child), "out", 1)
        # If our reader is gone, the program must get the same error when it writes.
        os.close(child)

    def _copy_file(self, file: int) -> None:
        def read() -> bytes:
            return os.read(file, CHUNK)

        while self._pump(read, "out", 1):
            if self._exited.is_set():
                self._pump(read, "out", 1)
                return
            time.sleep(POLL)

    def _pump(self, read: Callable[[], bytes], dir: format.Direction, to: int) -> bool:
        """Copy until ``read`` returns nothing. Return False if the reader of ``to`` is gone."""
        while data := read():
            self._writing.add(dir)
            self._writer.data(dir, data)
            is_taken = write(to, data)
            self._copied[dir] += len(data)
            self._last_output = time.monotonic()
            self._writing.discard(dir)
            if not is_taken:
                return False
        return True


def _end_of(popen: subprocess.Popen[bytes]) -> int:
    """Wait for the exit so that no signal to us is missed. A signal that arrives just before a
    blocking ``waitpid`` would be handled only after the program's end, and the program may wait for
    that signal."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    # Without a handler, the signal would not wake the loop.
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    while (code := popen.poll()) is None:
        select.select([readable], [], [])
        with contextlib.suppress(BlockingIOError):
            os.read(readable, CHUNK)
    return code


def _read(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, CHUNK)
        except BlockingIOError:
            select.select([fd], [], [])
        except OSError:
            return b""


def write(fd: int, data: bytes) -> bool:
    """Write all bytes. Return False if the reader is gone."""
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
    """End with this signal, as the program did, so that our parent sees the signal."""
    with contextlib.suppress(OSError, ValueError):  # KILL and STOP have no handler
        signal.signal(number, signal.SIG_DFL)
    sys.stderr.flush()
    os.kill(os.getpid(), number)
    os._exit(128 + number)
