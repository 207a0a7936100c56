"""Keys and tokens with real agents: where they must arrive, and where they must never be."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.files import files_containing
from support.mcp_servers import PROGRAM, notes_server
from support.model_scripts import sent_json
from support.real_agents import KEY, RealAgent, for_agents

from corral import McpServer, result_from_events, to_json
from corral.events import Event
from corral.testing import Call, Turn, say

pytestmark = pytest.mark.timeout(400)

TOKEN = "canary-of-the-notes-token-88bb"
HEADER = "canary-of-the-header-99cc"
HISTORY = {"gemini-cli": "/chats/", "claude-cli": "/.claude/projects/", "codex-cli": "/sessions/"}
"""Where an agent keeps its conversations, with what its tools returned."""


def to_text(events: list[Event]) -> str:
    return "".join(to_json(event).decode() for event in events)


@for_agents("gemini-cli", "claude-cli", "codex-cli")
async def test_secrets_are_in_no_event_and_no_file_and_the_shell_gets_named_variables_only(
    agent: RealAgent, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://stays-at-home")
    monkeypatch.setenv("OTHER_API_KEY", "another-vendors-key")
    monkeypatch.setenv("PLAIN_SETTING", "not-passed-on")
    monkeypatch.setenv("COLOUR", "passed-on")
    notes = tmp_path / "notes"
    notes.mkdir()
    calls = [
        agent.shell("env"),
        agent.shell(f'echo "key: ${agent.record.probe.key_env}."'),
        agent.mcp_tool("notes", "keep", text="remember"),
    ]
    script = [*(Turn(calls=[call]) for call in calls), Turn(text="done", repeat="forever")]
    model = agent.record.mcp_model or agent.record.probe.model
    events = await agent.events(
        script,
        model=model,
        policy="all",
        env={"MOOD": "given-here"},
        pass_env=["COLOUR", "NOT_SET_ANYWHERE"],
        mcp_servers=[notes_server(notes, NOTES_TOKEN=TOKEN)],
        record=True,
    )
    result = result_from_events(events)
    assert result.ok
    sent = sent_json(agent.requests)
    assert "COLOUR=passed-on" in sent
    assert "MOOD=given-here" in sent
    assert TOKEN in sent  # it reached the server, which says it
    assert any(KEY in value for value in agent.turns[0].headers.values())  # the model API got it
    for secret in ("stays-at-home", "another-vendors-key", "not-passed-on"):
        assert secret not in sent
        assert secret not in to_text(events)
        assert files_containing(tmp_path / "corral-home", secret) == []
    for secret in (KEY, TOKEN):
        assert secret not in to_text(events)
        found = files_containing(tmp_path / "corral-home", secret)
        assert [path for path in found if HISTORY[agent.name] not in path] == []
        assert files_containing(workspace, secret) == []
    transcripts = list((tmp_path / "corral-home" / "sessions").glob("*/events.ndjson"))
    assert len(transcripts) == 1
    assert (
        transcripts[0].read_text().count("\n") == len(events) + 2
    )  # with the prompt and the facts of the run
    assert transcripts[0].stat().st_mode & 0o777 == 0o600


@for_agents("gemini-cli")
async def test_secrets_of_mcp_servers_reach_them_and_no_file_and_a_secret_is_redacted(
    agent: RealAgent, tmp_path: Path
) -> None:
    """Also if the agent says it."""
    notes = tmp_path / "notes"
    notes.mkdir()
    calls = [
        agent.mcp_tool("notes", "keep", text="remember"),
        Call("mcp_web_keep", {}),
        agent.shell("env"),
        agent.shell("tr '\\0' '\\n' < /proc/$PPID/environ | grep GEMINI_API_KEY"),
    ]
    script = [*(Turn(calls=[call]) for call in calls), say(f"It is {TOKEN}!")]
    with web_notes() as (url, headers):
        events = await agent.events(
            script,
            policy="all",
            mcp_servers=[
                notes_server(notes, NOTES_TOKEN=TOKEN),
                McpServer("web", url=url, headers={"Authorization": f"Bearer {HEADER}"}),
            ],
            record=True,
        )
    result = result_from_events(events)
    assert result.ok
    assert result.denied == ()
    assert agent.requests[0].last_text == "do it"
    returned = [json.dumps(response) for _, response in agent.requests[-1].tool_results]
    assert f"kept, with token {TOKEN}" in returned[0]  # the model sees what the tool returns
    assert "kept on the web" in returned[1]
    assert {seen["Authorization"] for seen in headers} == {f"Bearer {HEADER}"}
    for secret in (TOKEN, HEADER):
        assert secret not in to_text(events)
        assert secret not in returned[2]
    assert result.text == "It is [notes:NOTES_TOKEN redacted]!"
    assert KEY not in to_text(events)
    home = tmp_path / "corral-home"
    transcript = next((home / "sessions").glob("*/events.ndjson")).read_text()
    assert KEY not in transcript
    assert "redacted" in transcript
    assert files_containing(home, HEADER) == []
    found = files_containing(home, TOKEN)
    assert [path for path in found if HISTORY["gemini-cli"] not in path] == []


SHOWS_VARIABLES = (
    "import json, os, pathlib, runpy, sys; path = pathlib.Path(sys.argv.pop(1));"
    " path.write_text(json.dumps({**os.environ})); sys.argv.pop(0);"
    " runpy.run_path(sys.argv[0], run_name='__main__')"
)
"""Writes its variables into a file, and is the server of notes then."""


@for_agents(lambda record: record.supports("mcp_servers"))
async def test_the_variables_of_an_mcp_server_reach_that_server_only(
    agent: RealAgent, tmp_path: Path
) -> None:
    """Neither the agent uses them, nor does its shell or another server see them."""
    probe = agent.record.probe
    own = {
        probe.key_env: f"{TOKEN}-key",
        probe.url_env: f"http://127.0.0.1:9/{TOKEN}",
        "PATH": f"/{TOKEN}/bin",
        "HOME": f"/{TOKEN}/home",
        "http_proxy": f"{TOKEN}-lower",
        "HTTP_PROXY": f"{TOKEN}-upper",
    }
    servers: list[McpServer] = []
    for name, env in (("one", own), ("two", {"OTHER": "x"})):
        (tmp_path / name).mkdir()
        words = (str(tmp_path / f"{name}.json"), str(PROGRAM), str(tmp_path / name))
        servers.append(
            McpServer(name, command=(sys.executable, "-c", SHOWS_VARIABLES, *words), env=env)
        )
    calls = [agent.shell("env"), agent.mcp_tool("one", "keep", text="remember")]
    script = [*(Turn(calls=[call]) for call in calls), Turn(text="done", repeat="forever")]
    model = agent.record.mcp_model or probe.model
    assert (await agent.run(script, policy="all", model=model, mcp_servers=servers)).ok
    one, two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert own.items() <= one.items()
    assert TOKEN not in str(two)
    assert agent.turns
    for request in agent.requests:
        assert TOKEN not in json.dumps({**request.headers})
    assert TOKEN not in sent_json(agent.requests)
    assert "PATH=" in sent_json(agent.requests)  # of the shell


@contextmanager
def web_notes() -> Generator[tuple[str, list[dict[str, str]]], None, None]:
    """The URL of an MCP server over HTTP with one tool, and the headers of every call."""
    headers: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            headers.append({"Authorization": self.headers.get("Authorization", "")})
            call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answers: dict[str, dict[str, Any]] = {
                "initialize": {
                    "protocolVersion": call.get("params", {}).get("protocolVersion"),
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "web", "version": "1"},
                },
                "tools/list": {"tools": [{"name": "keep", "inputSchema": {"type": "object"}}]},
                "tools/call": {"content": [{"type": "text", "text": "kept on the web"}]},
            }
            self.send_response(200 if "id" in call else 202)
            body = b""
            if "id" in call:
                result = answers.get(call["method"], {})
                body = json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result}).encode()
                self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.send_error(405)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp", headers
        finally:
            server.shutdown()
            thread.join(10)
