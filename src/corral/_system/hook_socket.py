"""A socket on which the hooks of an agent ask about its tool calls (``hook_relay``).

The agent runs ``command`` before each call, with the call as JSON on stdin. Each connection is one
call: ``decide`` gets it and returns the answer, as the agent expects it. If ``decide`` fails, or
the socket is closed first, nothing is answered, and the relay denies the call.

It is a Unix socket. In a sandbox no Unix socket can be opened: then it is a TCP socket of this
machine, which the sandbox lets through (``port``). A secret in a file that only the user can read
comes first on each connection, because other users could connect too.

The event loop holds ``decide`` but not the ``HookSocket``: a socket that is dropped without
``close`` is closed when it is garbage-collected. So ``decide`` must not hold the agent's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import shlex
import shutil
import sys
import tempfile
import weakref
from collections.abc import Awaitable, Callable

import msgspec

from corral._core.nesting import decode_json
from corral._system import fs, hook_relay
from corral.values import JsonObject

LONGEST_FOLDER = 60
"""Characters of the folder for temporary files; with a longer one the socket's path, of which
systems allow 104 or 108 bytes, might be too long."""
CLOSE_TIMEOUT = 5.0
"""Seconds that decisions get to end once they are cancelled."""

Decide = Callable[[JsonObject], Awaitable[JsonObject]]


class HookSocket:
    """Answers while it is open. ``open`` is called once."""

    def __init__(self, decide: Decide, *, sandboxed: bool = False) -> None:
        """``sandboxed``: the agent runs in a sandbox."""
        self._decide = decide
        self._sandboxed = sandboxed
        self._tasks: set[asyncio.Task[None]] = set()
        self._discard: Callable[[], object] | None = None
        self.command: str = ""
        """The command line of the hook, for a POSIX shell; empty until it is open."""
        self.folder: str = ""
        """What the command reads."""
        self.port: int | None = None
        """What it connects to, for a sandbox."""

    async def open(self) -> None:
        base = tempfile.gettempdir()
        short = "/tmp"  # noqa: S108 (the new folder in it is private)
        self.folder = tempfile.mkdtemp("", "corral-", base if len(base) < LONGEST_FOLDER else short)
        address = os.path.join(self.folder, "address")
        if self._sandboxed:
            secret = os.urandom(16).hex()
            answer = _answering(self._decide, self._tasks, f"{secret}\n".encode())
            server = await asyncio.start_server(answer, "127.0.0.1")
            self.port = server.sockets[0].getsockname()[1]
            fs.create_complete(address, f"{self.port} {secret}".encode())
        else:
            server = await asyncio.start_unix_server(_answering(self._decide, self._tasks), address)
        self._discard = weakref.finalize(self, _discard, server, self.folder)
        relay = (sys.executable, "-I", "-S", hook_relay.__file__, address)
        self.command = f"{shlex.join(relay)} || exit 2"

    async def close(self) -> None:
        """No call is answered any more."""
        if self._discard is not None:
            self._discard()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks], timeout=CLOSE_TIMEOUT)


def _answering(
    decide: Decide, tasks: set[asyncio.Task[None]], secret: bytes = b""
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        with contextlib.closing(writer), contextlib.suppress(OSError, msgspec.MsgspecError):
            sent = await reader.read()
            if not hmac.compare_digest(sent[: len(secret)], secret):
                return
            call = decode_json(sent[len(secret) :], JsonObject)
            writer.write(msgspec.json.encode(await decide(call)))
            await writer.drain()

    return answer


def _discard(server: asyncio.Server, folder: str) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        server.close()
    shutil.rmtree(folder, ignore_errors=True)
