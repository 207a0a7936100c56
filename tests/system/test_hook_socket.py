"""The socket and the program with which an agent's hook asks about a tool call."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path

import msgspec
import pytest

from corral._system.hook_socket import HookSocket
from corral.values import JsonObject

WAIT = 60.0
"""Seconds that anything here may take."""
CALL = b'{"tool_name": "write_file", "tool_input": {"path": "a.txt"}}'


async def run_hook(command: str, call: bytes = CALL) -> tuple[int | None, bytes, bytes]:
    """Exit code, stdout and stderr of the command, started as agents start it."""
    process = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WAIT):
        out, err = await process.communicate(call)
    return process.returncode, out, err


@pytest.mark.parametrize("sandboxed", [False, True])
async def test_a_call_is_answered(sandboxed: bool) -> None:
    async def decide(call: JsonObject) -> JsonObject:
        return {"decision": "deny", "reason": f"no {call['tool_name']}"}

    socket = HookSocket(decide, sandboxed=sandboxed)
    await socket.open()
    code, out, err = await run_hook(socket.command)
    await socket.close()
    assert (code, err) == (0, b"")
    assert json.loads(out) == {"decision": "deny", "reason": "no write_file"}


async def test_another_user_who_does_not_know_the_secret_gets_no_answer() -> None:
    asked: list[JsonObject] = []

    async def decide(call: JsonObject) -> JsonObject:
        asked.append(call)
        return {}

    socket = HookSocket(decide, sandboxed=True)
    await socket.open()
    assert Path(socket.folder).stat().st_mode & 0o077 == 0
    for secret in (b"", b"0" * 32 + b"\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", socket.port)
        writer.write(secret + CALL)
        writer.write_eof()
        async with asyncio.timeout(WAIT):
            assert await reader.read() == b""
        writer.close()
    await socket.close()
    assert asked == []


async def test_a_call_that_is_not_answered_is_denied() -> None:
    async def decide(_: JsonObject) -> JsonObject:
        raise msgspec.ValidationError("not understood")

    socket = HookSocket(decide)
    await socket.open()
    failed = await run_hook(socket.command)
    nonsense = await run_hook(socket.command, b"not JSON")
    await socket.close()
    closed = await run_hook(socket.command)
    for code, out, err in (failed, nonsense, closed):
        assert (code, out) == (2, b"")
        assert b"not shown to on_tool_call" in err


async def test_closing_ends_a_decision_that_waits() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def decide(_: JsonObject) -> JsonObject:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return {}

    socket = HookSocket(decide)
    await socket.open()
    hook = asyncio.create_task(run_hook(socket.command))
    async with asyncio.timeout(WAIT):
        await started.wait()
        await socket.close()
        assert ended.is_set()
        assert (await hook)[0] == 2


async def test_a_dropped_socket_leaves_no_file() -> None:
    async def decide(_: JsonObject) -> JsonObject:
        return {}

    socket = HookSocket(decide)
    await socket.open()
    folder = Path(socket.command.split()[4]).parent
    assert folder.is_dir()
    del socket
    gc.collect()
    assert not folder.exists()
