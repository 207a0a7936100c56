"""Input from the user: typed at the terminal, or written in their editor and saved."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from corral._core.terminal_text import clean
from corral._system import platform
from corral.errors import ConfigError

_FOLDER_ITSELF = 0x400 | 0x800 | 0x8000
"""The folder was removed, moved away, or can no longer be watched."""


class Watch:
    """``with Watch(folder, "answer.md") as watch:`` and then ``await watch.wait_saved(seconds)``.

    A file counts as saved when a writer closed it or when it was moved into place: then it is
    complete. Nothing runs in between, except for a check from time to time.
    """

    WITH_EVENTS = 60.0
    """Seconds between two checks if the kernel reports saves: on a network file system it reports
    only those made on this machine."""
    WITHOUT_EVENTS = 2.0
    """The same if the kernel cannot report saves."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = os.fsencode(name)
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._fd = -1

    @property
    def pause(self) -> float:
        """Seconds after which to check without a report."""
        return Watch.WITHOUT_EVENTS if self._fd < 0 else Watch.WITH_EVENTS

    def __enter__(self) -> Watch:
        with contextlib.suppress(OSError):  # not available: checks from time to time must do
            self._fd = platform.inotify_open()
            platform.inotify_add(self._fd, self._folder, platform.SAVED)
            self._loop.add_reader(self._fd, self._ready.set)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    async def wait_saved(self, seconds: float) -> bool:
        """True when the file was saved, or its folder is gone; False after ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self._ready.wait()
                    self._ready.clear()
                    # All reports of the kernel are read, also those after ours.
                    events = platform.inotify_events(self._fd)
                    if any(name == self._name or mask & _FOLDER_ITSELF for _, mask, name in events):
                        return True
        except TimeoutError:
            return False


EDITOR_GRACE = 5.0
"""Seconds for an editor to end after the caller was cancelled."""


def is_interactive() -> bool:
    """Whether a question can be shown to a user and answered here."""
    streams = (sys.stdin, sys.stderr)
    with contextlib.suppress(ValueError):  # closed
        return all(stream is not None and stream.isatty() for stream in streams)  # pyright: ignore[reportUnnecessaryComparison]
    return False


def read_from_terminal() -> None:
    """Let stdin be the terminal of this process, if stderr is one and what was piped to stdin is
    not needed any more: a person who pipes something into a command can still be asked."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stdin.isatty() or not sys.stderr.isatty():
            return
        descriptor = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        try:
            # In the background, reading would stop the process.
            if os.tcgetpgrp(descriptor) == os.getpgrp():
                os.dup2(descriptor, sys.stdin.fileno(), inheritable=False)
        finally:
            os.close(descriptor)


async def read_typed(question: str) -> str:
    """Return what the user types until Ctrl-D or a line with a single dot.

    It uses no thread: a thread that reads cannot be stopped.
    """
    sys.stderr.write(clean(question))
    sys.stderr.flush()
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    descriptor = sys.stdin.fileno()
    text = b""
    loop.add_reader(descriptor, ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            # Not through the buffer of sys.stdin: data in that buffer would not wake the loop.
            line = os.read(descriptor, 65_536)
            text += line
            if not line or text == b".\n" or text.endswith(b"\n.\n"):
                break
    finally:
        loop.remove_reader(descriptor)
    return text.removesuffix(b".\n" if text.endswith(b".\n") and line else b"").decode(
        "utf-8", "replace"
    )


def editor_command() -> tuple[str, ...]:
    """The command of the user's editor. Raises ``ConfigError`` if there is none."""
    import shlex
    import shutil

    for name in ("VISUAL", "EDITOR"):
        if command := os.environ.get(name, "").strip():
            try:
                return tuple(shlex.split(command))
            except ValueError as error:
                raise ConfigError(f"{name} is not a command line: {command!r}: {error}") from error
    if found := shutil.which("vi"):
        return (found,)
    raise ConfigError("there is no editor", hint="Set VISUAL or EDITOR.")


async def edit(command: tuple[str, ...], path: Path) -> int:
    """Let the user edit the file; return the editor's exit code. Raises ``ConfigError`` if it
    cannot be started."""
    try:
        process = await asyncio.create_subprocess_exec(*command, str(path))
    except OSError as error:
        raise ConfigError(
            f"the editor {command[0]!r} cannot be started: {error.strerror}",
            hint="Set VISUAL or EDITOR.",
        ) from error
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            for end in (process.terminate, process.kill):
                with contextlib.suppress(ProcessLookupError):
                    end()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(EDITOR_GRACE):
                        await process.wait()
                        break
