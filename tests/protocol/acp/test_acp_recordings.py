"""Recorded conversations with real agents, and the commands that they become.

``tests/recordings/acp/NAME.ndjson`` has both directions. What the client sent is
sent again through ``AcpClient``; what the agent sent is fed to it as bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.goldens import check_golden
from support.stream_checks import check_stream

from corral._protocol.acp.client import (
    AcpClient,
    AcpPermissionRequest,
    AcpQuestion,
    CallFinished,
    Command,
    Emit,
    FileRequest,
    Offer,
    PermissionWithdrawn,
    read_initialize,
    read_session,
)
from corral._protocol.acp.frames import PASSED_THROUGH, Block
from corral._protocol.acp.quirks import AcpQuirks
from corral._protocol.jsonrpc import SendBytes
from corral._protocol.ndjson import RawEvent, TurnEnd
from corral._sessions.event_normalizer import EventNormalizer
from corral.errors import StreamBroken
from corral.events import Event, Init, Text, ToolResult, ToolUse, Unknown, Vendor, to_json
from corral.values import McpServer

FOLDER = Path(__file__).parents[2] / "recordings" / "acp"
GOLDENS = Path(__file__).parent / "goldens"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ndjson"))

BLOCKS = msgspec.json.Decoder(Block)

QUIRKS = {
    "acp_": AcpQuirks(
        name_from_id="__",
        mcp_prefixes=("mcp_",),
        injected_text=("[MODE_UPDATE]",),
        no_update_after_denial=True,
        title_is_command=True,
        model_list_complete=False,
        set_model="session/set_model",
        missing_file_is_empty=True,
    ),
    "acp-claude": AcpQuirks(name_from_meta=("claudeCode", "toolName"), mcp_prefixes=("mcp__",)),
    "acp-opencode": AcpQuirks(name_from_title=True, usage="last_step", calls_unoffered_fs=True),
    "acp-codex-e500": AcpQuirks(errors_without_message_id=True),
    "acp-": AcpQuirks(),
}


def quirks_of(name: str) -> AcpQuirks:
    return next(quirks for prefix, quirks in QUIRKS.items() if name.startswith(prefix))


def frames(name: str) -> Iterator[tuple[bool, Any]]:
    """Whether the agent said it, and what."""
    for line in (FOLDER / f"{name}.ndjson").read_text("utf-8").splitlines():
        response = json.loads(line)
        if isinstance(response["msg"], dict):
            yield response["dir"] in ("<", "agent->client"), response["msg"]


def say(acp: AcpClient, message: dict[str, Any]) -> list[Command]:
    """Send with our client what the recorded client sent. Ids count from 1 in both."""
    params: dict[str, Any] = message.get("params") or {}
    session_id = params.get("sessionId", "")
    servers = [as_server(server) for server in params.get("mcpServers", ())]
    method: str = message.get("method", "")
    match method:
        case "":
            return reply(acp, message)
        case "initialize":
            fs = params["clientCapabilities"].get("fs", {})
            offer = Offer(fs.get("readTextFile", False), fs.get("writeTextFile", False))
            sent = acp.initialize(offer, **params["clientInfo"])
        case "session/new" if "cwd" in params:
            sent = acp.new_session(params["cwd"], servers)
        case "session/load":
            sent = acp.load_session(session_id, params["cwd"], servers)
        case "session/set_model":
            sent = acp.set_model(session_id, params["modelId"])
        case "session/prompt" if is_plain(params.get("prompt")):
            sent = acp.prompt(session_id, [BLOCKS.decode(json.dumps(b)) for b in params["prompt"]])
        case "session/cancel":
            return acp.cancel(session_id)
        case _:
            sent = acp.call(method, session_id or None, params)
    assert sent[0] == message["id"]
    if method not in ("initialize", "session/new", "session/load"):
        assert json.loads(sent[1]) == message
    return []


def is_plain(prompt: Any) -> bool:
    match prompt:
        case [{"type": "text"}, *_]:
            return True
        case _:
            return False


def as_server(form: dict[str, Any]) -> McpServer:
    pairs = {pair["name"]: pair["value"] for pair in form.get("headers", form.get("env", ()))}
    if "url" in form:
        return McpServer(form["name"], url=form["url"], headers=pairs)
    return McpServer(form["name"], (form["command"], *form["args"]), env=pairs)


def reply(acp: AcpClient, message: dict[str, Any]) -> list[Command]:
    match message:
        case {"error": {"message": str(text), "code": int(code)}}:
            return acp.reject_file_request(message["id"], text, code)
        case {"result": {"outcome": {"outcome": "selected", "optionId": str(option)}}}:
            try:
                return acp.answer_permission(message["id"], option)
            except ValueError:  # one recording answers with an option that was not offered
                return acp.answer_permission(message["id"], None)
        case {"result": {"outcome": {"outcome": "cancelled"}}}:
            return acp.answer_permission(message["id"], None)
        case _:
            return acp.answer_file_request(message["id"], message["result"])


def play(name: str, size: int = 1 << 20) -> list[Command]:
    acp = AcpClient(quirks_of(name))
    found: list[Command] = []
    for of_agent, message in frames(name):
        if of_agent:
            line = json.dumps(message, ensure_ascii=False).encode() + b"\n"
            for start in range(0, len(line), size):
                found += acp.receive(line[start : start + size])
        else:
            found += say(acp, message)
    return [*found, *acp.end()]


def items_of(commands: list[Command]) -> dict[str | None, list[RawEvent]]:
    found: dict[str | None, list[RawEvent]] = {}
    for command in commands:
        if isinstance(command, Emit):
            found.setdefault(command.session_id, []).extend(command.events)
    return found


def as_json(command: Command) -> Iterator[dict[str, Any]]:
    match command:
        case Emit():
            for item in command.events:
                yield {"session": command.session_id, **shown(item)}
        case AcpPermissionRequest():
            yield {
                "ask": command.request_id,
                "call": command.call.call_id,
                "kind": command.call.kind,
                "command": command.command,
                "options": {option.option_id: option.kind for option in command.options},
            }
        case CallFinished():
            error = command.error and f"{command.error.code} {command.error.message}"
            yield {"settled": command.id, "method": command.method, "error": error}
        case FileRequest():
            yield {"serve": command.request_id, "method": command.method, "params": command.params}
        case PermissionWithdrawn():
            yield {"withdrawn": command.request_id}
        case SendBytes():
            yield {"send": json.loads(command.data)}
        case AcpQuestion():
            yield {"question": command.request_id}


def shown(item: RawEvent) -> dict[str, Any]:
    match item:
        case str():
            return {"text": item}
        case TurnEnd():
            return {"finish": msgspec.to_builtins(item)}
        case Vendor() if item.name in PASSED_THROUGH and isinstance(item.data, dict):
            return {"vendor": item.name, "keys": sorted(item.data)}
        case _:
            shape: dict[str, Any] = json.loads(to_json(item))
            return shape


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_becomes_these_commands(name: str) -> None:
    lines = [
        json.dumps(line, ensure_ascii=False)
        for response in play(name)
        for line in as_json(response)
    ]
    check_golden(GOLDENS / f"{name}.ndjson", "".join(line + "\n" for line in lines))


@pytest.mark.parametrize("name", NAMES)
def test_where_the_bytes_are_cut_changes_nothing(name: str) -> None:
    assert items_of(play(name, 7)) == items_of(play(name))


@pytest.mark.parametrize("name", NAMES)
def test_no_frame_of_a_real_agent_is_unknown_or_malformed(name: str) -> None:
    for items in items_of(play(name)).values():
        assert not [item for item in items if isinstance(item, Unknown)]
    assert None not in items_of(play(name)) or name.startswith("acp-")


def guarded(items: list[RawEvent]) -> list[Event]:
    """As the events of one run, lawful or red."""
    guard = EventNormalizer(Init(run_id="r", agent="a", cwd="/workspace"), started=0.0)
    events = guard.take(items, 0.0)
    ok = guard.finish is not None and guard.finish.ok
    return check_stream([*events, *guard.close(0.0, None if ok else StreamBroken("cut"))])


@pytest.mark.parametrize("name", NAMES)
def test_every_session_fulfils_the_guarantees(name: str) -> None:
    for session_id, items in items_of(play(name)).items():
        if session_id is not None:
            guarded(items)


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_has_no_history_and_no_injected_text(name: str) -> None:
    response: dict[str, str] = {}
    loaded: set[str] = set()
    for of_agent, message in frames(name):
        params: dict[str, Any] = message.get("params") or {}
        session_id: str = params.get("sessionId", "")
        if not of_agent and message.get("method") == "session/load":
            loaded.add(session_id)
        elif not of_agent and message.get("method") == "session/prompt":
            loaded.discard(session_id)
        elif message.get("method") == "session/update" and session_id not in loaded:
            update = params["update"]
            if update["sessionUpdate"] == "agent_message_chunk":
                text = update["content"]["text"]
                if not text.startswith("[MODE_UPDATE]"):
                    response[session_id] = response.get(session_id, "") + text
    received = {
        session_id: text
        for session_id, items in items_of(play(name)).items()
        if session_id and (text := "".join(filter(None, map(text_of, items))))
    }
    assert received == {session_id: text for session_id, text in response.items() if text}


def text_of(item: RawEvent) -> str | None:
    return item.delta if isinstance(item, Text) else item if isinstance(item, str) else None


def all_items(name: str) -> list[RawEvent]:
    return [item for items in items_of(play(name)).values() for item in items]


def one(name: str, kind: type[Any]) -> Any:
    (found,) = [item for item in all_items(name) if isinstance(item, kind)]
    return found


def test_every_call_of_every_recording_gets_a_result() -> None:
    for name in NAMES:
        made = [message["id"] for ours, message in frames(name) if not ours and "id" in message]
        calls = {id for id in made if id >= 1}
        settled = [command.id for command in play(name) if isinstance(command, CallFinished)]
        assert len(settled) == len(set(settled))
        assert set(settled) <= calls
        assert not {2, 1} & calls - set(settled)


REFUSED = {
    "acp_write_reject": "write_file",
    "acp-claude-agent099-shell-reject": "Bash",
    "acp-copilot-shell-reject": "execute",
    "acp-opencode-shell-reject": "bash",
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_denied_tool_is_reported_once_whether_the_agent_reports_it_or_not(name: str) -> None:
    result = one(name, ToolResult)
    assert (result.status, result.name) == ("denied", REFUSED[name])


def test_a_call_that_is_completed_by_updates_is_reported_once() -> None:
    use = one("acp-claude-agent099-write-allow", ToolUse)
    assert use.name == "Write"
    assert use.kind == "edit"
    assert use.input == {"file_path": "/workspace/hello.txt", "content": "hello world\n"}
    assert use.paths == ("/workspace/hello.txt",)


def test_permission_for_a_shell_command_shows_the_command() -> None:
    for name, command in (
        ("acp_shell_allow", "echo hi; pwd; echo err >&2; exit 3"),
        ("acp-opencode-shell-reject", "touch by-shell.txt && echo hi-from-shell"),
    ):
        (ask,) = [command for command in play(name) if isinstance(command, AcpPermissionRequest)]
        assert ask.command == command


COUNTED = {
    "acp-claude-agent099-write-allow": (3068, 112, None),
    "acp-codex-write-ro-allow": (2468, 112, 14),
    "acp-copilot-write-allow": (2468, 112, 14),
    "acp-opencode-write-allow": (1234, 56, 7),
    "acp_write_reject": (222, 44, None),
}
"""The scripted model sent the same to all: they count it each in their own way."""


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_usage_is_counted_in_the_same_way_for_every_agent(name: str) -> None:
    usage = one(name, TurnEnd).usage
    assert (usage.input, usage.output, usage.reasoning) == COUNTED[name]
    partly = name in ("acp_write_reject", "acp-opencode-write-allow")
    assert usage.coverage == ("partial" if partly else "complete")


def test_the_model_that_was_used_is_reported() -> None:
    assert one("acp_write_reject", TurnEnd).model == "gemini-2.5-flash"
    assert one("acp-codex-write-ro-allow", TurnEnd).model == "gpt-5.5"


def replies(name: str, method: str) -> list[CallFinished]:
    return [
        response
        for response in play(name)
        if isinstance(response, CallFinished) and response.method == method
    ]


def test_what_an_agent_offers_is_read_from_its_replies() -> None:
    (settled,) = replies("acp-claude-agent099-plain", "initialize")
    agent = read_initialize(settled.result).agent_capabilities
    assert agent.load_session
    assert all(map(agent.offers, ("resume", "list", "close")))
    taken = agent.prompt_capabilities
    assert (taken.image, taken.audio, taken.embedded_context) == (True, False, True)
    assert agent.mcp_capabilities.http
    session = read_session(replies("acp-opencode-todo", "session/new")[0].result)
    assert session.model == "fake/fake-model"
    assert "fake/fake-model" in session.models
    session = read_session(replies("acp_write_reject", "session/new")[0].result)
    assert session.model == "gemini-2.5-flash"
    assert session.modes == ("default", "autoEdit", "yolo", "plan")
