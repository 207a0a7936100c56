"""Keys and tokens: where they must arrive, and where they must never be seen."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.gemini_tools import (
    files_containing,
    notes_server,
    sent_json,
    shell,
    steps,
    tool_results_json,
)

from corral import McpServer, result_from_events, to_json
from corral.errors import AuthenticationFailed
from corral.testing import Call, say

if TYPE_CHECKING:
    from support.real_gemini import Gemini

pytestmark = pytest.mark.gemini_cli

CANARY = "canary-of-the-api-key-77aa"
TOKEN = "canary-of-the-notes-token-88bb"
HEADER = "canary-of-the-header-99cc"


async def test_the_shell_sees_what_was_passed_by_name_and_no_secret(
    gemini: Gemini, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://stays-at-home")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "another-vendors-key")
    monkeypatch.setenv("PLAIN_SETTING", "not-passed-on")
    monkeypatch.setenv("COLOUR", "passed-on")
    script = steps(shell("env"), shell("printenv"), shell('echo "key: $GEMINI_API_KEY."'))

    events = await gemini.events(
        script,
        policy="all",
        env={"GEMINI_API_KEY": CANARY, "MOOD": "given-here"},
        pass_env=["COLOUR", "NOT_SET_ANYWHERE"],
        record=True,
    )

    result = result_from_events(events)
    assert result.ok
    told = tool_results_json(gemini.requests[-1])
    assert gemini.requests[0].headers["x-goog-api-key"] == CANARY  # it did arrive
    assert "COLOUR=passed-on" in told
    assert "MOOD=given-here" in told
    assert "key: ." in told
    for secret in (CANARY, "stays-at-home", "another-vendors-key", "not-passed-on"):
        assert secret not in sent_json(gemini.requests)
        assert secret not in "".join(to_json(event).decode() for event in events)
        assert files_containing(tmp_path / "corral-home", secret) == []
    transcripts = list((tmp_path / "corral-home" / "sessions").glob("*/events.ndjson"))
    assert len(transcripts) == 1
    assert transcripts[0].read_text().count("\n") == len(events) + 1  # with the prompt
    assert transcripts[0].stat().st_mode & 0o777 == 0o600


async def test_a_secret_that_the_agent_says_aloud_is_struck_out_of_everything_we_write(
    gemini: Gemini, tmp_path: Path
) -> None:
    script = [*steps(shell("tr '\\0' '\\n' < /proc/$PPID/environ"))[:-1], say(f"It is {CANARY}!")]

    events = await gemini.events(script, policy="all", env={"GEMINI_API_KEY": CANARY}, record=True)

    result = result_from_events(events)
    assert result.ok
    assert result.text == "It is [GEMINI_API_KEY redacted]!"
    assert CANARY not in "".join(to_json(event).decode() for event in events)
    transcript = next((tmp_path / "corral-home" / "sessions").glob("*/events.ndjson"))
    assert CANARY not in transcript.read_text()
    assert "redacted" in transcript.read_text()


async def test_secrets_of_mcp_servers_reach_them_and_no_file(
    gemini: Gemini, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    with web_notes() as (url, headers):
        events = await gemini.events(
            steps(
                Call("mcp_notes_keep", {"text": "remember"}),
                Call("mcp_web_keep", {}),
                shell("env"),
            ),
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
    assert gemini.requests[0].last_text == "do it"
    told = [json.dumps(response) for _, response in gemini.requests[-1].tool_results]
    assert f"kept, with token {TOKEN}" in told[0]  # the model hears what the tool says,
    assert "kept on the web" in told[1]
    assert {seen["Authorization"] for seen in headers} == {f"Bearer {HEADER}"}
    for secret in (TOKEN, HEADER):
        assert secret not in "".join(to_json(event).decode() for event in events)  # we do not
        assert secret not in told[2]
    kept = tmp_path / "corral-home"
    assert files_containing(kept, HEADER) == []
    history = {path for path in files_containing(kept, TOKEN) if "/chats/" in path}
    assert set(files_containing(kept, TOKEN)) == history  # the CLI's own memory of what it was told


@contextmanager
def web_notes() -> Generator[tuple[str, list[dict[str, str]]], None, None]:
    """An MCP server over HTTP with one tool; it notes the headers of every call."""
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
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp", headers
        finally:
            server.shutdown()
            thread.join(10)


async def test_without_credentials_nothing_is_started(gemini: Gemini, tmp_path: Path) -> None:
    started = tmp_path / "started"
    program = tmp_path / "gemini"
    program.write_text(f"#!/bin/sh\n[ $1 = --version ] || touch {started}\necho 0.61.0\n")
    program.chmod(0o755)

    with pytest.raises(AuthenticationFailed) as caught:
        await gemini.run(
            [], program=program, env={"GEMINI_API_KEY": "", "GOOGLE_GEMINI_BASE_URL": ""}
        )

    assert "GEMINI_API_KEY" in (caught.value.hint or "")
    assert caught.value.phase == "config"
    assert not started.exists()
