"""The client of MCP servers, and the check of servers before an agent starts."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path

import pytest
import uvicorn
from support.mcp_servers import notes_server
from support.processes import processes_matching
from support.scripted_acp import agent as scripted_agent

import corral
from corral import McpServer
from corral._sessions.prepare import prepare
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.tools.mcp_client import (
    McpClient,
    McpTool,
    open_servers,
    result_text,
    server_tools,
)
from corral.errors import ToolFailed
from corral.run_kwargs import RunKwargs
from corral.values import JsonObject


def prepared_run(folder: Path, **options: object) -> PreparedRun:
    return prepare(scripted_agent(), {"cwd": folder, **options})


async def test_a_program_is_used_and_ends_with_the_connection(tmp_path: Path) -> None:
    server = notes_server(tmp_path, NOTES_TOKEN="t")
    client = await McpClient.open(server, prepared_run(tmp_path))
    (tool,) = server_tools([client])
    assert (tool.name, tool.description) == ("mcp__notes__keep", "Keeps a note.")
    result = await client.call("keep", {"text": "one"})
    assert result_text(result) == "kept, with token t"
    assert (tmp_path / "note.txt").read_text() == "one"
    assert processes_matching(str(tmp_path))
    await client.close()
    assert not processes_matching(str(tmp_path))


@pytest.mark.deep
async def test_a_connection_that_is_dropped_or_cancelled_leaves_no_program(tmp_path: Path) -> None:
    prepared = prepared_run(tmp_path)
    client = await McpClient.open(notes_server(tmp_path), prepared)
    assert processes_matching(str(tmp_path))
    del client
    gc.collect()
    silent = McpServer(
        "silent", (sys.executable, "-c", f"import sys; sys.stdin.read() # {tmp_path}")
    )
    (tmp_path / "started").unlink(missing_ok=True)
    opening = asyncio.create_task(open_servers([notes_server(tmp_path), silent], prepared))
    async with asyncio.timeout(60):
        while not (tmp_path / "started").exists():
            await asyncio.sleep(0.01)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with asyncio.timeout(60):
        while processes_matching(str(tmp_path)):
            await asyncio.sleep(0.01)


async def test_a_program_that_ends_fails_its_calls_with_what_it_wrote_last(tmp_path: Path) -> None:
    client = await McpClient.open(notes_server(tmp_path), prepared_run(tmp_path))
    with pytest.raises(ToolFailed, match="'notes' ended with exit code 1: the disk is full"):
        await client.call("keep", {"text": "crash"})
    assert not client.is_open
    await client.close()


@pytest.mark.deep
async def test_the_sdks_own_server_is_used_over_http_with_sessions_and_events() -> None:
    from mcp.server import MCPServer

    before = asyncio.all_tasks()
    oracle = MCPServer("oracle")

    @oracle.tool()
    async def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    config = uvicorn.Config(oracle.streamable_http_app(), port=0, log_config=None, ws="none")
    web = uvicorn.Server(config)
    serving = asyncio.create_task(web.serve())
    async with asyncio.timeout(60):
        while not web.started:
            await asyncio.sleep(0.01)
    port = web.servers[0].sockets[0].getsockname()[1]
    server = McpServer("oracle", url=f"http://127.0.0.1:{port}/mcp")
    client = await McpClient.open(server, prepared_run(Path.cwd()))
    assert [tool.name for tool in client.tools] == ["add"]
    results = await asyncio.gather(*(client.call("add", {"a": n, "b": 1}) for n in range(3)))
    assert [result_text(result) for result in results] == ["1", "2", "3"]
    wrong = await client.call("add", {"a": "x"})
    assert wrong.get("isError") is True
    await client.close()
    web.should_exit = True
    await serving
    left = asyncio.all_tasks() - before  # of the SDK's library for events
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": [], "structuredContent": {"n": 1}}, '{"n":1}'),
        ({"content": [{"type": "resource", "resource": {"uri": "u", "text": "r"}}]}, "r"),
        (
            {"content": [{"type": "image", "data": "", "mimeType": "image/png"}]},
            "[image: image/png]",
        ),
        ({"content": "odd"}, ""),
    ],
)
def test_the_text_of_a_result(result: JsonObject, text: str) -> None:
    assert result_text(result) == text


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("print('{', flush=True); input()", "wrote something that is not JSON-RPC"),
        ("import time; time.sleep(60)", "did not answer within 1 s"),
        (
            'print(\'hello\'); print(\'{"id": 1, "error": {"message": "too old"}}\', flush=True);'
            " input(); input()",
            "refused initialize: too old",
        ),
    ],
)
async def test_a_program_that_does_not_speak_the_protocol_says_how(
    tmp_path: Path, source: str, why: str
) -> None:
    limit = 1 if "sleep" in source else 60
    server = McpServer("odd", (sys.executable, "-c", f"{source} # {tmp_path}"))
    with pytest.raises(ToolFailed, match=why):
        await McpClient.open(server, prepared_run(tmp_path, startup_timeout=limit))
    assert not processes_matching(str(tmp_path))


def test_long_and_odd_names_of_tools_are_names_that_models_accept() -> None:
    client = McpClient(McpServer("s", ("x",)), transport=None)  # type: ignore[arg-type]
    client.tools = (McpTool("a.b/c"), McpTool("x" * 80), McpTool("x" * 80 + "y"))
    odd, first, second = (tool.name for tool in server_tools([client]))
    assert odd == "mcp__s__a_b_c"
    assert len(first) == len(second) == 64
    assert first != second


async def test_a_session_and_a_pool_check_each_server_once(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    counted = ("/bin/sh", "-c", f'printf x >> {starts}; exec "$0" "$@"')
    server = McpServer("notes", (*counted, *notes_server(tmp_path).command))
    options: RunKwargs = {"policy": "all", "mcp_servers": [server], "cwd": tmp_path}
    async with corral.session(scripted_agent(), **options) as session:
        for _ in range(2):
            assert (await session.run("text hello")).ok
    assert starts.read_text() == "x"
    async with corral.pool(scripted_agent(), **options) as pool:
        for _ in range(2):
            assert (await pool.run("text hello")).ok
    assert starts.read_text() == "xx"


async def test_a_prompt_is_cancelled_while_a_server_is_silent(tmp_path: Path) -> None:
    started = tmp_path / "started"
    silent = McpServer("silent", ("/bin/sh", "-c", f"touch {started}; exec cat >/dev/null"))
    options: RunKwargs = {"policy": "all", "mcp_servers": [silent], "cwd": tmp_path}
    async with corral.session(scripted_agent(), **options) as session, asyncio.timeout(30):
        turn = session.prompt("text hello")
        reading = asyncio.create_task(turn.collect())
        while not started.exists():
            await asyncio.sleep(0.01)
        turn.cancel()
        assert (await reading).status == "interrupted"
