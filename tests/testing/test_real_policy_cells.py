"""Every cell of every agent's policy table, tried out with its real program: what the table says is
allowed happens, and nothing else does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from gemini_cli.hands import notes_server, returned
from installed import installed, mark_of

import corral
from corral import agents
from corral.agents.profile import Agent, Probe, Row
from corral.errors import PolicyNotEnforceable
from corral.events import Json
from corral.options import Run
from corral.policy import PRESETS, Policy
from corral.testing import Call, ModelServer, Request, Turn
from corral.testing.stage import Stage

AGENTS = {agent.name: agent for agent in agents.every() if agent.probe is not None}
POLICIES = {"nothing approved": Policy(), **{str(name): made for name, made in PRESETS.items()}}
KEEP = {"gemini": "mcp_notes_keep", "opencode": "notes_keep", "copilot": "notes-keep"}
"""What the tool ``keep`` of the server ``notes`` is called, where not ``mcp__notes__keep``."""
REFUSED = {("copilot-cli", "edits")}
"""What an agent cannot enforce: its rules cannot protect what is below ``.git``."""
TOUCH = "touch shell.txt"
"""The command of every agent's probe."""
PAGE = "http://127.0.0.1/page"
FETCH: dict[str, tuple[str, dict[str, Any]]] = {
    "claude": ("WebFetch", {"url": PAGE, "prompt": "What is there?"}),
    "cline": ("fetch_web_content", {"requests": [{"url": PAGE, "prompt": "What is there?"}]}),
    "opencode": ("webfetch", {"url": PAGE, "format": "text"}),
    "qwen": ("web_fetch", {"url": PAGE, "prompt": "What is there?"}),
    "corral": ("web_fetch", {"url": PAGE}),
}
"""What fetches an address. The web tools of the others reach no address of this machine: there a
command goes to it."""


def cases() -> Iterator[object]:
    for name, agent in AGENTS.items():
        marks = [getattr(pytest.mark, mark_of(name))] if agent.programs else []
        for policy in POLICIES:
            yield pytest.param(name, policy, marks=marks)


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = [pattern for agent in agents.every() for pattern in agent.env_family]
    for name in list(os.environ):
        if any(fnmatch(name, pattern) for pattern in patterns):
            monkeypatch.delenv(name)


@contextlib.asynccontextmanager
async def page() -> AsyncGenerator[tuple[str, list[int]], None]:
    """An address, and a mark for each time that somebody came there."""
    came: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(1)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", came


def to_address(family: str, probe: Probe, address: str) -> tuple[str, dict[str, Any]]:
    """A call that goes there."""
    if family in FETCH:
        tool, given = FETCH[family]
        return tool, {key: with_that(value, PAGE, address) for key, value in given.items()}
    port = address.rstrip("/").rpartition(":")[2]
    connect = f"import socket; socket.create_connection(('127.0.0.1', {port})).close()"
    tool, given = probe.shell
    command = f'{sys.executable} -c "{connect}"'
    return tool, {key: with_that(value, TOUCH, command) for key, value in given.items()}


def with_that(value: Json, old: str, new: str) -> Json:
    """The same with another text in the place of one, however deep it stands."""
    if isinstance(value, dict):
        return {key: with_that(each, old, new) for key, each in value.items()}
    if isinstance(value, list):
        return [with_that(each, old, new) for each in value]
    return new if value == old else value


def report(agent: Agent, policy: str, **options: Any) -> tuple[Row, ...]:
    return agent.compile(POLICIES[policy], Run.build(agent.name, options)).report


class Model:
    """Makes one call after the other, whatever becomes of them, and then has done."""

    def __init__(self, calls: list[tuple[str, dict[str, Any]]]) -> None:
        self.left = calls
        self.last: Request | None = None

    def __call__(self, request: Request) -> Turn:
        if not request.tools and not self.left:
            return Turn(text="x")
        self.last = request
        if not self.left:
            return Turn(text="done")
        return Turn(calls=[Call(*self.left.pop(0))])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "policy"), [*cases()])
async def test_what_the_table_allows_happens_and_nothing_else(
    name: str, policy: str, workspace: Path, tmp_path: Path
) -> None:
    agent: Agent = AGENTS[name]
    told = {row.capability: row for row in report(agent, policy)}
    if (name, policy) in REFUSED:
        with pytest.raises(PolicyNotEnforceable):
            await corral.run(name, "x", cwd=workspace, policy=POLICIES[policy])
        return
    assert {row.enforcement for row in told.values()} <= {"native", "brokered"}
    allowed = {capability for capability, row in told.items() if row.verdict == "allow"}
    notes = tmp_path / "notes"
    notes.mkdir()
    (workspace / "here.txt").write_text("seed words\n")
    family = name.partition("-")[0]
    servers = [notes_server(notes)] if "mcp_servers" in agent.supports else []
    options: dict[str, Any] = {"policy": POLICIES[policy], "timeout": 240}
    if agent.programs:
        options["program"] = installed(name)
    with_servers = {row.enforcement for row in report(agent, policy, mcp_servers=servers)}
    if with_servers - {"native", "brokered"}:
        whole: dict[str, Any] = {**options, "cwd": workspace, "mcp_servers": servers}
        with pytest.raises(PolicyNotEnforceable, match="mcp="):
            await corral.run(name, "x", **whole)
        servers = []
    if servers:
        options["mcp_servers"] = servers
    async with ModelServer() as server, page() as (address, came):
        stage = Stage(name, agent, server, workspace, options={}, scenario=policy)
        calls = [stage.probe.write, stage.probe.shell]
        if stage.probe.read is not None:
            calls.insert(0, stage.probe.read)
        if servers:
            calls.append((KEEP.get(family, "mcp__notes__keep"), {"text": "remember"}))
        calls.append(to_address(family, stage.probe, address))
        model = Model(calls)
        async with corral.session(name, **stage.scripted(model, **options)) as session:
            result = await session.run("do it")
            for _ in range(len(model.left)):  # with some a refusal ends the turn
                result = await session.run("do it")
    assert not model.left, result.error
    assert model.last is not None
    happened = {
        "write": (workspace / "probe.txt").exists(),
        "shell": (workspace / "shell.txt").exists(),
        "network": bool(came),
    }
    if stage.probe.read is not None:
        happened["read"] = "seed words" in returned(model.last)
    if servers:
        happened["mcp"] = (notes / "note.txt").exists()
    assert happened == {key: key in allowed for key in happened}, (result.error, result.denied)
