"""``corral mcp`` as a program: with the official SDK's client, and with clients that misbehave."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from support.builtin_agent import COMMAND, BuiltinAgent, model_env
from support.mcp_messages import modern
from support.processes import processes_matching

from corral._cli import mcp
from corral._cli.main import command
from corral._protocol import jsonrpc
from corral._serving.mcp import wire
from corral.testing import Request, Turn, hang, say

if TYPE_CHECKING:
    from mcp import ClientSession, StdioServerParameters

pytest_plugins = ("support.builtin_agent_fixture",)
AGENT = ("--agent", "corral", "--model", "gemini:gemini-2.5-flash")


def saying_ok(_: Request) -> Turn:
    return say("ok")


def saying_much(_: Request) -> Turn:
    return say("x" * 20_000)


def hanging(_: Request) -> Turn:
    return hang()


def environment(ours: BuiltinAgent, script: Any) -> dict[str, str]:
    return {**os.environ, **model_env(ours.add_lane(script))}


@contextmanager
def started(ours: BuiltinAgent, script: Any, *options: str) -> Generator[subprocess.Popen[bytes]]:
    """The program with pipes."""
    argv = [*COMMAND, "mcp", *AGENT, *options]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=ours.workspace, env=environment(ours, script),
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def send(
    process: subprocess.Popen[bytes], method: str, id: int | None = None, **params: Any
) -> None:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    write(process, json.dumps(message if id is None else {**message, "id": id}).encode() + b"\n")


def write(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.flush()


def read(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def server_of(ours: BuiltinAgent, script: Any, *options: str) -> StdioServerParameters:
    """The program, for the official client."""
    from mcp import StdioServerParameters

    return StdioServerParameters(
        command=COMMAND[0],
        args=[*COMMAND[1:], "mcp", *AGENT, *options],
        env=environment(ours, script),
        cwd=str(ours.workspace),
    )


@asynccontextmanager
async def sdk_client(
    ours: BuiltinAgent, script: Any, *options: str
) -> AsyncGenerator[ClientSession]:
    """The official client, with the handshake."""
    from mcp import ClientSession
    from mcp.client.stdio import stdio_client

    async with (
        stdio_client(server_of(ours, script, *options)) as (incoming, outgoing),
        ClientSession(incoming, outgoing) as session,
    ):
        await session.initialize()
        yield session


async def test_the_official_client_runs_an_agent(ours: BuiltinAgent) -> None:
    async with sdk_client(ours, [say("It is fine.")], "--approve", "edits") as client:
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools][:2] == ["list_agents", "run"]
        result = await client.call_tool("run", {"prompt": "review"})
        assert not result.is_error
        assert "It is fine." in str(result.content)
        refused = await client.call_tool("run", {"prompt": "x", "policy": "all"})
        assert refused.is_error
        assert "set by the one who started corral mcp: --approve edits" in str(refused.content)


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_official_client_without_a_handshake(ours: BuiltinAgent, transport: str) -> None:
    """The protocol of 2026-07-28. Not in the event loop of the test: the SDK leaves a generator."""
    from mcp.client.client import Client
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    async def use(opened: Any) -> None:
        async with Client(opened) as client:
            assert client.protocol_version == wire.MODERN
            tools = await client.list_tools()
            assert "run" in [tool.name for tool in tools.tools]

            async def ignore(progress: float, total: float | None, message: str | None) -> None:
                pass

            result = await client.call_tool("run", {"prompt": "x"}, progress_callback=ignore)
            assert "ok" in str(result.content)

    async def use_http(url: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
            await use(streamable_http_client(url, http_client=http))

    if transport == "stdio":
        asyncio.run(use(stdio_client(server_of(ours, [say("ok")]))))
        return
    with started(ours, [say("ok")], "--http") as process:
        asyncio.run(use_http(*http_address(process)))


def http_address(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    assert process.stdout is not None
    url = process.stdout.readline().decode().strip()
    token = process.stdout.readline().decode().strip().removeprefix("Authorization: Bearer ")
    return url, token


def request(url: str, body: bytes, *headers: str, method: str = "POST") -> tuple[int, bytes]:
    """Status and body, with curl: a client that is not ours."""
    args = [part for header in headers for part in ("-H", header)]
    ended = subprocess.run(
        ["curl", "-sS", "-X", method, "-w", "%{http_code}", "--data-binary", "@-", *args, url],
        input=body, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    return int(ended.stdout[-3:]), ended.stdout[:-3]


def test_http_refuses_what_has_no_token_and_what_is_no_message(ours: BuiltinAgent) -> None:
    with started(ours, saying_ok, "--http") as process:
        url, token = http_address(process)
        bearer, ping = f"Authorization: Bearer {token}", b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        assert request(url, ping)[0] == 401
        assert request(url, ping, "Authorization: Bearer wrong")[0] == 401
        assert request(url, ping, bearer) == (200, b'{"jsonrpc":"2.0","id":1,"result":{}}')
        for origin in ("https://evil.example", "http://[", "http://[::1", "null"):
            assert request(url, ping, bearer, f"Origin: {origin}")[0] == 403
        assert request(url, ping, bearer, method="GET")[0] == 405
        assert request(url.replace("/mcp", "/x"), ping, bearer)[0] == 404
        assert request(url, b"{", bearer)[0] == 400
        assert request(url, b"[" * 100_000, bearer)[0] == 400
        assert request(url, b'{"jsonrpc":"2.0","method":"notifications/initialized"}', bearer) == (
            202, b"")  # fmt: skip
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": modern()}}
        status, answer = request(url, json.dumps(body).encode(), bearer)
        assert (status, json.loads(answer)["error"]["code"]) == (400, -32020)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_lines_that_are_no_messages_have_an_error_and_end_nothing(ours: BuiltinAgent) -> None:
    with started(ours, []) as process:
        for line in (b"hello\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n", b"null\n", b"{}\n"):
            write(process, line)
            assert read(process)["error"]["code"] in (jsonrpc.PARSE_ERROR, jsonrpc.INVALID_REQUEST)
        write(process, b"\n\n")
        send(process, "no/such/method", 1)
        assert read(process)["error"]["code"] == jsonrpc.METHOD_NOT_FOUND
        big = {"name": "run", "arguments": {"prompt": "x" * 50_000_000}}
        send(process, "tools/call", 2, **big)
        result = read(process)["result"]
        assert result["isError"]
        assert "the prompt has more than" in result["content"][0]["text"]
        send(process, "ping", 3)
        assert read(process) == {"jsonrpc": "2.0", "id": 3, "result": {}}


@pytest.mark.parametrize("leaves", ["closes", "signals"])
def test_a_client_that_goes_away_leaves_nothing_running(ours: BuiltinAgent, leaves: str) -> None:
    label = f"label-{ours.workspace}"  # others serve at the same time
    with started(ours, hanging, "--label", label) as process:
        send(process, "tools/call", 1, name="start", arguments={"prompt": "x"})
        run = read(process)["result"]["structuredContent"]["run"]
        if leaves == "closes":
            assert process.stdin is not None
            process.stdin.close()
        else:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert not processes_matching(label)
        home = Path(os.environ["CORRAL_HOME"])
        assert "interrupted" in (home / "sessions" / run / "events.ndjson").read_text()


def test_runs_that_are_kept_outlive_a_client_that_kills_its_server(ours: BuiltinAgent) -> None:
    gate = ours.workspace / "gate"

    def answer(_: object) -> Turn:
        while not gate.exists():
            time.sleep(0.02)
        return say("finished without its caller")

    with started(ours, answer, "--keep-runs") as process:
        send(process, "tools/call", 1, name="start", arguments={"prompt": "x"})
        run = read(process)["result"]["structuredContent"]["run"]
        process.kill()
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)
        gate.touch()
        log = Path(os.environ["CORRAL_HOME"]) / "sessions" / run / "events.ndjson"
        for _ in range(500):
            text = log.read_text() if log.exists() else ""
            if "finished without" in text and not processes_matching(f"mcp {' '.join(AGENT)}"):
                break
            time.sleep(0.05)
        else:
            pytest.fail("the run did not end by itself")
    with started(ours, []) as process:
        send(process, "tools/call", 1, name="result", arguments={"run": run})
        text = read(process)["result"]["content"][0]["text"]
        assert text.startswith("finished without its caller")


@pytest.mark.deep
def test_wrong_options_are_said_before_anything_is_served(ours: BuiltinAgent) -> None:
    for options, message in (
        (["--agent", "no-such-agent"], "no agent is called 'no-such-agent'"),
        (["--folder", "/no/such/folder"], "/no/such/folder"),
        (["--pipeline", "missing.dot"], "missing.dot"),
        (["--port", "8080"], "--port and --listen need --http"),
        (["--concurrency", "0"], "--concurrency"),
        (["--timeout", "0"], "--timeout must be more than 0"),
    ):
        ended = subprocess.run(
            [*COMMAND, "mcp", *options], cwd=ours.workspace, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert ended.returncode == 2, ended.stderr
        assert message in ended.stderr
        assert ended.stdout == ""


@pytest.mark.parametrize("passes_it_on", [True, False])
def test_a_server_inside_a_run_of_a_caller_refuses_to_start_further_agents(
    ours: BuiltinAgent, passes_it_on: bool
) -> None:
    """Also if the agent does not pass on its variables."""
    given = [*COMMAND, "mcp", *AGENT]
    script = shlex.join(given if passes_it_on else ["env", "-u", "CORRAL_DEPTH", *given])
    env = {**environment(ours, []), "CORRAL_DEPTH": "1"}
    with subprocess.Popen(
        ["sh", "-c", f"{script}; true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        cwd=ours.workspace, env=env,
    ) as process:  # fmt: skip
        send(process, "tools/call", 1, name="run", arguments={"prompt": "x"})
        text = read(process)["result"]["content"][0]["text"]
        assert process.stdin is not None
        process.stdin.close()
    assert "a run at depth 2 of agents that call agents is not permitted: at most 1" in text


def test_the_program_does_not_load_the_sdk() -> None:
    """It starts in a tenth of the time without."""
    code = "import sys, corral._cli.mcp, corral._serving.mcp.server, corral._serving.mcp.http_app;"
    code += "print([m for m in ('mcp', 'pydantic', 'uvicorn', 'starlette') if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


async def test_a_client_that_stops_reading_blocks_no_run(ours: BuiltinAgent) -> None:
    with started(ours, saying_much) as process:
        for number in range(40):
            send(process, "tools/list", number)
        send(process, "tools/call", 99, name="start", arguments={"prompt": "x"})
        home = Path(os.environ["CORRAL_HOME"]) / "sessions"
        for _ in range(500):
            if any("success" in log.read_text() for log in home.glob("*/events.ndjson")):
                break
            await asyncio.sleep(0.02)
        else:
            pytest.fail("the run did not end while nobody read")
        assert {read(process)["id"] for _ in range(41)} == {*range(40), 99}


def test_the_settings_of_clients_in_the_docs_start_the_command(
    ours: BuiltinAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "mcp-server.md").read_text()
    blocks = re.findall(r"^```text\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    found = 0
    for block in blocks:
        if not block.startswith(("{", "[")):
            continue
        settings = json.loads(block) if block.startswith("{") else tomllib.loads(block)
        (servers,) = settings.values()
        (server,) = servers.values()
        words: list[str] = server.get("args") or server["command"][1:]
        with command.make_context("corral", [*words, "--help"], resilient_parsing=True):
            found += 1
        assert words[0] == "mcp"
        mcp.command.make_context("mcp", [*words[1:]]).close()
    assert found == 5
