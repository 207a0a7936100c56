"""Read input from the user: typed at the terminal, or written in their editor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from corral.core.terminal_text import clean
from corral.errors import ConfigError

EDITOR_GRACE = 5.0
"""Seconds for an editor to end after the caller was cancelled."""


def is_interactive() -> bool:
    """Whether a question can be shown to a user and answered here."""
    streams = (sys.stdin, sys.stderr)
    with contextlib.suppress(ValueError):  # closed
        return all(stream is not None and stream.isatty() for stream in streams)  # pyright: ignore[reportUnnecessaryComparison]
    return False


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
            await _end_editor(process)


async def _end_editor(process: asyncio.subprocess.Process) -> None:
    for end in (process.terminate, process.kill):
        with contextlib.suppress(ProcessLookupError):
            end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EDITOR_GRACE):
                await process.wait()
                return
