"""The ACP client in conversations: bytes in, commands out."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stream_checks import no_deadline

from corral._protocol.acp.client import (
    AcpClient,
    AcpPermissionRequest,
    CallFinished,
    Command,
    Emit,
    FileRequest,
    Offer,
    PermissionWithdrawn,
    read_initialize,
    read_session,
)
from corral._protocol.acp.frames import (
    AudioBlock,
    ImageBlock,
    LinkBlock,
    PermissionOption,
    Resource,
    ResourceBlock,
    TextBlock,
    mcp_server,
)
from corral._protocol.acp.quirks import DEFAULT_QUIRKS, AcpQuirks
from corral._protocol.jsonrpc import SendBytes
from corral._protocol.ndjson import RawEvent, TurnEnd
from corral.errors import ConfigError, InvalidRequest, PromptError, StreamBroken
from corral.events import (
    Error,
    Log,
    Plan,
    PlanEntry,
    Text,
    Thinking,
    ToolOutput,
    ToolResult,
    ToolUse,
    Unknown,
    UsageReport,
    Vendor,
)
from corral.values import Cost, Json, McpServer, Usage


def line(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n"


def update(what: str, session: str = "s", /, **fields: Any) -> bytes:
    params = {"sessionId": session, "update": {"sessionUpdate": what, **fields}}
    return line(method="session/update", params=params)


def chunk(text: str, session: str = "s", /, **more: Any) -> bytes:
    return update("agent_message_chunk", session, content={"type": "text", "text": text}, **more)


def content(text: str) -> list[Json]:
    return [{"type": "content", "content": {"type": "text", "text": text}}]


def prompted(quirks: AcpQuirks = DEFAULT_QUIRKS, session: str = "s") -> AcpClient:
    acp = AcpClient(quirks, servers=["x"])
    acp.prompt(session, [TextBlock("go")])
    return acp


def items(data: bytes, quirks: AcpQuirks = DEFAULT_QUIRKS) -> list[RawEvent]:
    """Of one session, in a turn."""
    found: list[RawEvent] = []
    for command in prompted(quirks).receive(data):
        assert isinstance(command, Emit), command
        assert command.session_id == "s"
        found += command.events
    return found


OPTIONS = [
    {"optionId": "always", "name": "Always", "kind": "allow_always"},
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


def permission(id: Any = 0, session: str = "s", /, **call: Any) -> bytes:
    params = {"sessionId": session, "toolCall": call, "options": OPTIONS}
    return line(id=id, method="session/request_permission", params=params)


def sent(command: Command) -> Any:
    assert isinstance(command, SendBytes)
    return json.loads(command.data)


def only(data: tuple[int, bytes]) -> Any:
    message = json.loads(data[1])
    assert message["id"] == data[0]
    return message["method"], message["params"]


# What we say.


def test_every_request_has_the_form_of_the_protocol() -> None:
    acp = AcpClient(AcpQuirks(set_model="session/set_model"))
    assert only(acp.initialize(Offer(write_files=True), name="n", version="1")) == (
        "initialize",
        {
            "protocolVersion": 1,
            "clientCapabilities": {
                "fs": {"readTextFile": False, "writeTextFile": True},
                "terminal": False,
            },
            "clientInfo": {"name": "n", "version": "1"},
        },
    )
    assert only(acp.new_session("/w")) == ("session/new", {"cwd": "/w", "mcpServers": []})
    named: dict[str, Json] = {"sessionId": "s", "cwd": "/w", "mcpServers": []}
    assert only(acp.load_session("s", "/w")) == ("session/load", named)
    assert only(acp.load_session("s", "/w", replays=False)) == ("session/resume", named)
    model = {"sessionId": "s", "modelId": "x"}
    assert only(acp.set_model("s", "x")) == ("session/set_model", model)
    option = {"sessionId": "s", "configId": "model", "value": "x"}
    assert only(AcpClient().set_model("s", "x")) == ("session/set_config_option", option)
    with pytest.raises(ConfigError):
        AcpClient(AcpQuirks(set_model=None)).set_model("s", "x")


def test_mcp_servers_have_the_form_of_the_protocol() -> None:
    assert mcp_server(McpServer("m", url="http://x", headers={"A": "b"})) == {
        "type": "http",
        "name": "m",
        "url": "http://x",
        "headers": [{"name": "A", "value": "b"}],
    }
    assert mcp_server(McpServer("m", ("/bin/m", "-v"), env={"A": "b"})) == {
        "name": "m",
        "command": "/bin/m",
        "args": ["-v"],
        "env": [{"name": "A", "value": "b"}],
    }


def test_a_prompt_contains_text_images_audio_and_files() -> None:
    _, params = only(
        AcpClient().prompt(
            "s",
            [
                TextBlock("look"),
                ImageBlock("aGk=", "image/png"),
                AudioBlock("aGk=", "audio/wav"),
                ResourceBlock(Resource("file:///a", text="b", mime_type="text/plain")),
                LinkBlock("file:///a", "a"),
            ],
        )
    )
    assert params["prompt"] == [
        {"type": "text", "text": "look"},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
        {
            "type": "resource",
            "resource": {"uri": "file:///a", "text": "b", "mimeType": "text/plain"},
        },
        {"type": "resource_link", "uri": "file:///a", "name": "a"},
    ]


def test_an_empty_prompt_is_never_sent() -> None:
    for blocks in ([], [TextBlock("")], [TextBlock(" \n")]):
        with pytest.raises(PromptError):
            AcpClient().prompt("s", blocks)


def test_a_prompt_that_looks_like_a_command_is_escaped() -> None:
    quirks = AcpQuirks(command_prefixes=("/", "$"), command_escape="\n")
    for text, expected_text in (
        ("/help me", "\n/help me"),
        ("$x", "\n$x"),
        ("help /me", "help /me"),
    ):
        _, params = only(AcpClient(quirks).prompt("s", [TextBlock(text)]))
        assert params["prompt"][0]["text"] == expected_text
    assert only(AcpClient().prompt("s", [TextBlock("/x")]))[1]["prompt"][0]["text"] == "/x"


# What the agent says.

UPDATES: list[tuple[str, bytes, list[RawEvent]]] = [
    ("text", chunk("a") + chunk("") + chunk("b"), ["a", "b"]),
    (
        "messages",
        chunk("a", messageId="1") + chunk("b", messageId="1") + chunk("c", messageId="2"),
        [Text("a", message_id="1"), "b", Text("c", message_id="2")],
    ),
    (
        "thought",
        update("agent_thought_chunk", content={"type": "text", "text": "hm"}, messageId="1"),
        [Thinking("hm", message_id="1")],
    ),
    ("echo", update("user_message_chunk", content={"type": "text", "text": "go"}), []),
    ("echo-of-a-picture", update("user_message_chunk", content={"type": "image"}), []),
    (
        "picture",
        update("agent_message_chunk", content={"type": "image", "data": "x"}),
        [Vendor("agent_message_chunk", {"content": {"type": "image", "data": "x"}})],
    ),
    (
        "plan",
        update("plan", entries=[{"content": "a", "status": "pending", "priority": "high"}]),
        [Plan((PlanEntry("a", "pending", "high"),))],
    ),
    (
        "usage",
        update("usage_update", used=5, size=9, cost={"amount": 0.25, "currency": "USD"}),
        [UsageReport(Usage(), context_size=5, cost=Cost(0.25, "reported"))],
    ),
    (
        "usage-in-another-currency",
        update("usage_update", used=5, size=9, cost={"amount": 1, "currency": "EUR"}),
        [UsageReport(Usage(), context_size=5, cost=Cost())],
    ),
    ("commands", update("available_commands_update", availableCommands=[]),
     [Vendor("available_commands_update", {"availableCommands": []})]),
    ("mode", update("current_mode_update", currentModeId="x"),
     [Vendor("current_mode_update", {"currentModeId": "x"})]),
    ("invented", update("invented", x=1), [Unknown({"sessionUpdate": "invented", "x": 1})]),
    ("known-in-another-shape", update("plan", entries=7),
     [Unknown({"sessionUpdate": "plan", "entries": 7})]),
    (
        "tool",
        update("tool_call", toolCallId="1", title="T", kind="search", status="in_progress",
               rawInput={"q": 1}, locations=[{"path": "/a", "line": 3}])
        + update("tool_call_update", toolCallId="1", status="completed", content=content("out")),
        [
            ToolUse("1", "search", kind="search", title="T", input={"q": 1}, paths=("/a",)),
            ToolResult("1", "success", name="search", output="out"),
        ],
    ),
    (
        "diff",
        update("tool_call", toolCallId="1", kind="edit", status="in_progress", locations=None,
               content=[{"type": "diff", "path": "/a", "oldText": None, "newText": "b"}]),
        [ToolUse("1", "edit", kind="edit", paths=("/a",),
                 input={"changes": [{"path": "/a", "old_text": None, "new_text": "b"}]})],
    ),
    (
        "failed",
        update("tool_call", toolCallId="1", kind="execute", status="in_progress")
        + update("tool_call_update", toolCallId="1", status="failed", rawOutput="boom"),
        [ToolUse("1", "execute", kind="execute"),
         ToolResult("1", "error", name="execute", error="boom")],
    ),
    (
        "filled-by-updates",
        update("tool_call", toolCallId="1", kind="execute", status="pending", rawInput={})
        + update("tool_call_update", toolCallId="1", rawInput={"command": "ls"})
        + update("tool_call_update", toolCallId="1", rawInput={"command": "ls", "why": "x"})
        + chunk("a"),
        [ToolUse("1", "execute", kind="execute", input={"command": "ls", "why": "x"}), "a"],
    ),
    (
        "opened-together-and-filled-later",
        update("tool_call", toolCallId="1", status="pending", rawInput={})
        + update("tool_call", toolCallId="2", status="pending", rawInput={})
        + update("tool_call_update", toolCallId="1", status="in_progress", rawInput={"x": 1})
        + update("tool_call_update", toolCallId="2", status="in_progress", rawInput={"x": 2}),
        [ToolUse("1", "other", input={"x": 1}), ToolUse("2", "other", input={"x": 2})],
    ),
    (
        "growing-output",
        update("tool_call", toolCallId="1", kind="execute", status="in_progress")
        + update("tool_call_update", toolCallId="1", content=content("a"))
        + update("tool_call_update", toolCallId="1", content=content("ab"))
        + update("tool_call_update", toolCallId="1", content=content("ab"))
        + update("tool_call_update", toolCallId="1", content=content("x"))
        + update("tool_call_update", toolCallId="1", status="completed"),
        [
            ToolUse("1", "execute", kind="execute"),
            ToolOutput("1", "a"),
            ToolOutput("1", "b"),
            ToolOutput("1", "x"),
            ToolResult("1", "success", name="execute", output="x"),
        ],
    ),
    (
        "no-ids",
        update("tool_call", kind="read", status="in_progress")
        + update("tool_call", kind="search", status="in_progress")
        + update("tool_call_update", status="completed")
        + update("tool_call_update", status="completed"),
        [
            ToolUse("call-1", "read", kind="read"),
            ToolUse("call-2", "search", kind="search"),
            ToolResult("call-1", "success", name="read"),
            ToolResult("call-2", "success", name="search"),
        ],
    ),
    (
        "update-of-nothing",
        update("tool_call_update", toolCallId="1", kind="fetch", status="completed"),
        [ToolUse("1", "fetch", kind="fetch"), ToolResult("1", "success", name="fetch")],
    ),
    (
        "code-execution",
        update("tool_call", toolCallId="1", kind="code_execution", status="in_progress"),
        [ToolUse("1", "code_execution", kind="execute")],
    ),
    (
        "born-complete",
        update("tool_call", toolCallId="1", kind="read", status="completed", content=content("x")),
        [ToolUse("1", "read", kind="read", input={"description": "x"}),
         ToolResult("1", "success", name="read", output="x")],
    ),
    (
        "late-word",
        update("tool_call", toolCallId="1", kind="read", status="completed")
        + update("tool_call_update", toolCallId="1", status="failed")
        + update("tool_call_update", toolCallId="1", title="T"),
        [
            ToolUse("1", "read", kind="read"),
            ToolResult("1", "success", name="read"),
            Vendor("late_tool_call_update", {"call_id": "1", "status": "failed", "title": None}),
        ],
    ),
    ("nulls", update("tool_call", toolCallId="1", title=None, kind=None, status="in_progress",
                     content=None, locations=None, rawInput=None),
     [ToolUse("1", "other")]),
]  # fmt: skip


LATE = [
    ("open-call", "1", {"status": "completed"}),
    ("ended-call", "2", {"status": "failed"}),
    ("unknown-call", "9", {"status": "completed"}),
    ("without-id", "", {"status": "cancelled"}),
    ("no-end", "9", {"status": "in_progress"}),
]


@pytest.mark.parametrize(
    ("id", "fields", "next_turn"),
    # An unknown call of the next turn is a new one, as far as anyone can tell.
    [(*late[1:], False) for late in LATE] + [(*late[1:], True) for late in LATE[:2]],
)
def test_an_update_of_a_call_after_the_reply_opens_no_call(
    id: str, fields: dict[str, Any], next_turn: bool
) -> None:
    acp = prompted()
    acp.receive(
        update("tool_call", toolCallId="1", kind="read", status="in_progress")
        + update("tool_call", toolCallId="2", kind="read", status="completed")
        + line(id=1, result={"stopReason": "end_turn"})
    )
    if next_turn:
        acp.prompt("s", [TextBlock("go")])
    late = {"call_id": id, "status": fields["status"], "title": None}
    data = update("tool_call_update", toolCallId=id, **fields)
    assert acp.receive(data) == [Emit("s", [Vendor("late_tool_call_update", late)])]


@pytest.mark.parametrize("repeats", [False, True])
def test_the_next_turn_may_use_the_id_of_a_call_again(repeats: bool) -> None:
    acp = prompted(AcpQuirks(repeats_finished_calls=repeats))
    call = update("tool_call", toolCallId="1", kind="read", status="in_progress")
    end = update("tool_call_update", toolCallId="1", status="completed")
    acp.receive(call + end + line(id=1, result={"stopReason": "end_turn"}))
    acp.prompt("s", [TextBlock("go")])
    (emitted,) = acp.receive(call + end)
    assert isinstance(emitted, Emit)
    assert emitted.events == [
        ToolUse("1", "read", kind="read"),
        ToolResult("1", "success", name="read"),
    ]


@pytest.mark.parametrize(
    ("data", "expected"), [t[1:] for t in UPDATES], ids=[t[0] for t in UPDATES]
)
def test_an_update_becomes_these_items(data: bytes, expected: list[RawEvent]) -> None:
    assert items(data) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(kind, kind) for kind in ("read", "edit", "delete", "move", "search", "execute", "fetch")]
    + [("think", "think"), ("switch_mode", "think"), ("other", "other"), ("invented", "other")],
)
def test_tool_kinds_are_mapped_and_an_unknown_kind_is_other(kind: str, expected: str) -> None:
    (use,) = items(update("tool_call", toolCallId="1", kind=kind, status="in_progress"))
    assert isinstance(use, ToolUse)
    assert use.kind == expected


@pytest.mark.parametrize(
    ("quirks", "fields", "name", "kind"),
    [
        (AcpQuirks(name_from_id="__"), {"toolCallId": "read_file__1__2"}, "read_file", "other"),
        (AcpQuirks(name_from_id="__"), {"toolCallId": "plain", "kind": "read"}, "read", "read"),
        (AcpQuirks(name_from_meta=("a", "b")), {"_meta": {"a": {"b": "Bash"}}}, "Bash", "other"),
        (AcpQuirks(name_from_meta=("a", "b")), {"_meta": {"a": 7}, "kind": "read"}, "read", "read"),
        (AcpQuirks(name_from_title=True), {"title": "bash"}, "bash", "other"),
        (
            AcpQuirks(name_before_text=": "),
            {"title": "bash: ls: x", "kind": "read"},
            "bash",
            "read",
        ),
        (AcpQuirks(name_before_text=": "), {"title": "bash"}, "bash", "other"),
        (AcpQuirks(mcp_prefixes=("mcp_",)), {"name": "mcp_x_add"}, "mcp_x_add", "mcp"),
        (AcpQuirks(server_prefix="{}_"), {"name": "x_add"}, "x_add", "mcp"),
        (AcpQuirks(server_prefix="{}_"), {"name": "y_add"}, "y_add", "other"),
        (DEFAULT_QUIRKS, {"name": "Write", "title": "Write a"}, "Write", "other"),
    ],
)
def test_the_name_of_a_tool_is_read_where_the_agent_sends_it(
    quirks: AcpQuirks, fields: dict[str, Any], name: str, kind: str
) -> None:
    (use,) = items(update("tool_call", status="in_progress", **fields), quirks)
    assert isinstance(use, ToolUse)
    assert (use.name, use.kind) == (name, kind)


@pytest.mark.parametrize(
    ("text", "status", "given"),
    [
        ('{"a":2}', "in_progress", {"a": 2}),
        ('{"a":2}', "completed", {"description": '{"a":2}'}),  # its result
        ("[2]", "in_progress", {"description": "[2]"}),
        ("adds", "in_progress", {"description": "adds"}),
    ],
)
def test_arguments_of_an_mcp_tool_that_are_sent_as_text_are_its_input(
    text: str, status: str, given: Json
) -> None:
    content = [{"type": "content", "content": {"type": "text", "text": text}}]
    call = update("tool_call", name="mcp_x_add", status=status, content=content)
    use, *_ = items(call, AcpQuirks(mcp_prefixes=("mcp_",)))
    assert isinstance(use, ToolUse)
    assert use.input == given


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ({"path": "/a", "text": "x"}, ("/a",)),
        ({"files": [{"path": "/a"}, {"path": "b", "line": 1}, "c"]}, ("/a", "b")),
        ({"path": 7, "files": {"path": "/a"}}, ()),
    ],
)
def test_the_files_of_a_call_are_found_in_its_input(given: Json, paths: tuple[str, ...]) -> None:
    call = update("tool_call", toolCallId="1", status="in_progress", rawInput=given)
    for quirks, expected in ((AcpQuirks(path_key="path"), paths), (DEFAULT_QUIRKS, ())):
        (use,) = items(call, quirks)
        assert isinstance(use, ToolUse)
        assert use.paths == expected


def test_a_finished_call_that_is_sent_again_is_not_a_new_call() -> None:
    began = update("tool_call", toolCallId="1", kind="read", status="in_progress")
    ended = update("tool_call_update", toolCallId="1", status="failed")
    twice = (began + ended) * 2
    for quirks, calls in ((AcpQuirks(repeats_finished_calls=True), 1), (DEFAULT_QUIRKS, 2)):
        reported = items(twice, quirks)
        for kind in (ToolUse, ToolResult):
            assert sum(isinstance(item, kind) for item in reported) == calls


def test_a_call_that_reports_an_unavailable_tool_is_denied() -> None:
    quirks = AcpQuirks(name_from_title=True, unavailable_tool="No such tool")
    given = {"tool": "bash", "error": "No such tool 'bash'"}
    began = update("tool_call", toolCallId="1", title="bash", status="pending")
    ended = update("tool_call_update", toolCallId="1", status="completed", rawInput=given)
    result = items(began + ended, quirks)[-1]
    assert isinstance(result, ToolResult)
    assert (result.name, result.status) == ("bash", "denied")
    plain = items(began + ended, AcpQuirks(name_from_title=True))[-1]
    assert isinstance(plain, ToolResult)
    assert plain.status == "success"


def test_a_call_that_the_agents_own_rules_denied_is_reported_as_denied() -> None:
    output = {"message": "denied due to the following rules", "code": "denied"}
    began = update("tool_call", toolCallId="1", title="run it", kind="execute", status="pending")
    ended = update("tool_call_update", toolCallId="1", status="failed", rawOutput=output)
    for quirks, status in ((AcpQuirks(denied_code="denied"), "denied"), (DEFAULT_QUIRKS, "error")):
        result = items(began + ended, quirks)[-1]
        assert isinstance(result, ToolResult)
        assert (result.status, result.error) == (status, output["message"])


def test_a_permission_request_for_a_path_outside_counts_as_an_edit() -> None:
    quirks = AcpQuirks(outside_title="Access paths outside")
    asked = permission(
        0, "s", toolCallId="1", title="Access paths outside", kind="read", rawInput={"path": "/x"}
    )
    (ask,) = [c for c in prompted(quirks).receive(asked) if isinstance(c, AcpPermissionRequest)]
    assert ask.call.kind == "edit"
    (plain,) = [c for c in prompted().receive(asked) if isinstance(c, AcpPermissionRequest)]
    assert plain.call.kind == "read"


@pytest.mark.parametrize(
    ("chunks", "usage", "failed"),
    [
        (["Half. ", "Error: no key (HTTP 401)"], None, True),
        (["Error: no key (HTTP 401)"], {"inputTokens": 1, "outputTokens": 2}, False),
        (["Error: so it was called", " by the model"], None, False),
        (["all is well"], None, False),
    ],
)
def test_an_error_sent_as_the_answer_is_an_error_if_no_tokens_were_counted(
    chunks: list[str], usage: Json, *, failed: bool
) -> None:
    data = b"".join(chunk(text) for text in chunks)
    data += line(id=1, result={"stopReason": "end_turn", "usage": usage})
    emitted = prompted(AcpQuirks(error_text="Error: ")).receive(data)
    reported = [item for command in emitted if isinstance(command, Emit) for item in command.events]
    finish = reported[-1]
    assert isinstance(finish, TurnEnd)
    assert finish.ok is not failed
    assert finish.message == ("no key (HTTP 401)" if failed else None)


def last(data: bytes, quirks: AcpQuirks) -> TurnEnd:
    emitted = prompted(quirks).receive(data)
    reported = [item for command in emitted if isinstance(command, Emit) for item in command.events]
    assert isinstance(reported[-1], TurnEnd)
    return reported[-1]


COUNTED: Json = {"inputTokens": 10, "outputTokens": 2}


def test_an_error_that_matches_the_pattern_is_found_after_successful_model_calls() -> None:
    quirks = AcpQuirks(error_text="Error: ", error_pattern=r"^Error: \d{3} ")
    end = line(id=1, result={"stopReason": "end_turn", "usage": COUNTED})
    failed = last(chunk("Half. ") + chunk("Error: 402 Pay.") + end, quirks)
    assert (failed.ok, failed.message) == (False, "402 Pay.")
    assert last(chunk("Error: that is what it printed") + end, quirks).ok


def test_an_error_is_found_if_the_token_count_of_the_session_did_not_change() -> None:
    quirks = AcpQuirks(error_text="Error: ", usage="session")
    acp = prompted(quirks)
    acp.receive(chunk("fine") + line(id=1, result={"stopReason": "end_turn", "usage": COUNTED}))
    acp.prompt("s", [TextBlock("more")])
    end = line(id=2, result={"stopReason": "end_turn", "usage": COUNTED})
    emitted = acp.receive(chunk("Error: no network") + end)
    (finish,) = [
        item
        for command in emitted
        if isinstance(command, Emit)
        for item in command.events
        if isinstance(item, TurnEnd)
    ]
    assert (finish.ok, finish.message) == (False, "no network")


def test_a_last_chunk_without_an_id_is_an_error_whatever_was_counted() -> None:
    quirks = AcpQuirks(errors_without_message_id=True)
    end = line(id=1, result={"stopReason": "end_turn", "usage": COUNTED})
    failed = last(chunk("status 402") + end, quirks)
    assert (failed.ok, failed.message) == (False, "status 402")
    call = update("tool_call", toolCallId="1", title="t", kind="read", status="completed")
    assert last(chunk("Reconnecting") + call + end, quirks).ok


def test_text_that_the_agent_injects_is_not_part_of_the_answer() -> None:
    quirks = AcpQuirks(injected_text=("[MODE_UPDATE]",))
    data = chunk("[MODE_UPDATE] yolo") + chunk("a")
    assert items(data, quirks) == [Vendor("injected_text", "[MODE_UPDATE] yolo"), "a"]


def test_history_is_dropped_until_the_prompt_also_after_the_reply() -> None:
    acp = AcpClient()
    acp.load_session("s", "/w")
    replay = (
        update("user_message_chunk", content={"type": "text", "text": "old"})
        + chunk("old answer")
        + update("tool_call", toolCallId="1", status="completed")
        + update("plan", entries=[])
        + update("usage_update", used=1, cost={"amount": 2.0})
    )
    assert acp.receive(replay) == []
    assert acp.receive(line(id=1, result={}) + chunk("old still")) == [
        CallFinished(1, "session/load", "s", result={})
    ]
    acp.prompt("s", [TextBlock("go")])
    assert acp.receive(chunk("new")) == [Emit("s", ["new"])]
    (reported,) = acp.receive(update("usage_update", used=1, cost={"amount": 2.5}))
    assert reported == Emit("s", [UsageReport(Usage(), context_size=1, cost=Cost(0.5, "reported"))])


@pytest.mark.parametrize("reason", ["max_tokens", "max_turn_requests", "refusal", "cancelled"])
def test_an_incomplete_turn_is_not_a_success_and_has_a_message(reason: str) -> None:
    emit, settled = prompted().receive(line(id=1, result={"stopReason": reason}))
    assert isinstance(emit, Emit)
    (finish,) = emit.events
    assert isinstance(finish, TurnEnd)
    assert (finish.ok, finish.stop_reason, finish.kind) == (False, reason, reason)
    assert finish.message
    assert isinstance(settled, CallFinished)


def finish_of(result: Json, quirks: AcpQuirks = DEFAULT_QUIRKS) -> TurnEnd:
    emit = prompted(quirks).receive(line(id=1, result=result))[0]
    assert isinstance(emit, Emit)
    (finish,) = emit.events
    assert isinstance(finish, TurnEnd)
    return finish


def test_a_turn_that_ended_is_a_success() -> None:
    assert finish_of({"stopReason": "end_turn"}) == TurnEnd(ok=True, stop_reason="end_turn")


@pytest.mark.parametrize("result", [None, {}, {"stopReason": "invented"}, {"stopReason": 7}, [], 7])
def test_an_unknown_stop_reason_is_not_a_success(result: Any) -> None:
    finish = finish_of(result)
    assert not finish.ok
    assert finish.message


def test_usage_sent_with_text_chunks_is_added_up_within_the_turn() -> None:
    usage = {"inputTokens": 10, "outputTokens": 1, "totalTokens": 11}
    acp = prompted(AcpQuirks(usage="chunks"))
    acp.receive(chunk("", _meta={"usage": usage}) + chunk("", _meta={"usage": usage}))
    (emit, _) = acp.receive(line(id=1, result={"stopReason": "end_turn"}))
    assert isinstance(emit, Emit)
    (finish,) = emit.events
    assert isinstance(finish, TurnEnd)
    assert finish.usage == Usage(input=20, output=2, coverage="complete")


def test_tokens_counted_for_the_session_are_reported_for_the_turn() -> None:
    acp = prompted(AcpQuirks(usage="session"))
    reported: list[int | None] = []
    for number, tokens in ((1, 10), (2, 30)):
        usage = {"inputTokens": tokens, "outputTokens": 1}
        emit = acp.receive(line(id=number, result={"stopReason": "end_turn", "usage": usage}))[0]
        assert isinstance(emit, Emit)
        reported += [item.usage.input for item in emit.events if isinstance(item, TurnEnd)]
        acp.prompt("s", [TextBlock("go on")])
    assert reported == [10, 20]


def test_cost_is_reported_for_the_turn_and_not_for_the_session() -> None:
    acp = prompted()
    costs: list[float | None] = []
    for id, amount in ((1, 0.25), (2, 0.75)):
        paid = update("usage_update", used=1, cost={"amount": amount})
        emit = acp.receive(paid + line(id=id, result={"stopReason": "end_turn"}))[0]
        assert isinstance(emit, Emit)
        assert isinstance(emit.events[-1], TurnEnd)
        costs.append(emit.events[-1].cost.usd)
        acp.prompt("s", [TextBlock("more")])
    assert costs == [0.25, 0.5]


def test_an_error_reply_to_a_prompt_ends_the_turn() -> None:
    error = {"code": 429, "message": "slow down", "data": {"details": "in a minute"}}
    emit, settled = prompted().receive(line(id=1, error=error))
    assert emit == Emit("s", [TurnEnd(ok=False, kind="429", message="slow down: in a minute")])
    assert isinstance(settled, CallFinished)
    assert settled.error is not None
    assert settled.error.code == 429


def test_an_agent_with_another_protocol_version_is_rejected() -> None:
    assert read_initialize({"protocolVersion": 1}).agent_capabilities.load_session is False
    for version in (2, 0, None, "2025-01-01"):
        with pytest.raises(InvalidRequest) as raised:
            read_initialize({"protocolVersion": version})
        assert raised.value.phase == "handshake"
        assert raised.value.hint


def test_a_session_without_an_id_is_rejected() -> None:
    with pytest.raises(StreamBroken):
        read_session({})
    with pytest.raises(StreamBroken):
        read_session({"sessionId": 7})
    assert read_session({}, "s").session_id == "s"
    assert read_session(None, "s").models == ()


# What the agent asks.


def test_permission_is_requested_and_granted() -> None:
    acp = prompted()
    call = {"toolCallId": "1", "title": "Write a", "kind": "edit", "status": "pending"}
    emit, ask = acp.receive(permission(**call))
    use = ToolUse("1", "edit", kind="edit", title="Write a")
    assert emit == Emit("s", [use])
    assert isinstance(ask, AcpPermissionRequest)
    assert (ask.request_id, ask.call, len(ask.options)) == (0, use, 3)
    (answer,) = acp.answer_permission(0, "yes")
    assert sent(answer)["result"] == {"outcome": {"outcome": "selected", "optionId": "yes"}}
    assert acp.answer_permission(0, "no") == []
    assert acp.receive(update("tool_call_update", toolCallId="1", status="completed")) == [
        Emit("s", [ToolResult("1", "success", name="edit")])
    ]


def test_an_option_that_was_not_offered_is_never_sent() -> None:
    acp = prompted()
    acp.receive(permission(toolCallId="1"))
    with pytest.raises(ValueError, match="bogus"):
        acp.answer_permission(0, "bogus")
    assert len(acp.answer_permission(0, "no")) == 1


@pytest.mark.parametrize("silent", [True, False])
def test_a_denied_tool_is_reported_even_if_the_agent_sends_no_update(silent: bool) -> None:
    acp = prompted(AcpQuirks(no_update_after_denial=silent))
    acp.receive(permission(toolCallId="1", kind="execute"))
    commands = acp.answer_permission(0, "no")
    commands += acp.receive(chunk("then not") + line(id=1, result={"stopReason": "end_turn"}))
    found = [item for command in commands if isinstance(command, Emit) for item in command.events]
    denied = ToolResult("1", "denied", name="execute", error="permission was refused")
    assert found[:2] == ([denied, "then not"] if silent else ["then not", denied])
    assert found.count(denied) == 1


def test_a_denial_that_the_agent_reports_is_reported_once_with_its_message() -> None:
    acp = prompted()
    acp.receive(permission(toolCallId="1"))
    acp.answer_permission(0, "no")
    failed = update("tool_call_update", toolCallId="1", status="failed", rawOutput="refused")
    commands = acp.receive(failed + line(id=1, result={"stopReason": "end_turn"}))
    assert commands[0] == Emit(
        "s",
        [
            ToolResult("1", "denied", name="other", error="refused"),
            TurnEnd(ok=True, stop_reason="end_turn"),
        ],
    )


def test_a_permission_request_adds_details_to_a_known_call() -> None:
    acp = prompted()
    acp.receive(update("tool_call", toolCallId="1", kind="execute", status="in_progress"))
    (ask,) = acp.receive(permission(toolCallId="1", rawInput={"command": ["bash", "-lc", "ls"]}))
    assert isinstance(ask, AcpPermissionRequest)
    assert ask.command == "ls"


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ({"command": "ls -l"}, "ls -l"),
        ({"cmd": "ls"}, "ls"),
        ({"command": ["/bin/sh", "-c", "a && b"]}, "a && b"),
        ({"command": ["ls", "a b"]}, "ls 'a b'"),
        ({"command": ["rm", "-c", "ls"]}, "rm -c ls"),
        ({"command": "git", "args": ["push", "a b"]}, "git push 'a b'"),
        ({"command": "git status", "args": []}, "git status"),
        ({"command": [1]}, None),
        ({"command": []}, None),
        ({"commands": ["a", "b c"]}, "a\nb c"),
        ({"commands": ["a", 1]}, None),
        ({"path": "/a"}, None),
    ],
)
def test_the_command_in_a_request_is_found(given: Json, command: str | None) -> None:
    ask = prompted().receive(permission(toolCallId="1", kind="execute", rawInput=given))[-1]
    assert isinstance(ask, AcpPermissionRequest)
    assert ask.command == command


def test_a_title_is_a_command_only_for_agents_with_that_quirk() -> None:
    call = permission(toolCallId="1", kind="execute", title="rm x", content=content("why"))
    plain = prompted().receive(call)[-1]
    known = prompted(AcpQuirks(title_is_command=True)).receive(call)[-1]
    assert isinstance(plain, AcpPermissionRequest)
    assert isinstance(known, AcpPermissionRequest)
    assert plain.command is None
    assert known.command == "rm x"
    assert known.call.input == {"description": "why", "command": "rm x"}


def test_a_decision_never_grants_more_than_was_decided() -> None:
    def asking(*kinds: str) -> AcpPermissionRequest:
        options = tuple(
            PermissionOption(f"{kind}-{at}", kind=kind) for at, kind in enumerate(kinds)
        )
        return AcpPermissionRequest("s", 0, ToolUse("1", "x"), options)

    usual = asking("allow_always", "allow_once", "reject_once")
    assert usual.option_for("allow_once") == "allow_once-1"
    assert usual.option_for("allow_session") == "allow_always-0"
    assert usual.option_for("deny") == "reject_once-2"
    assert usual.option_for("cancel") is None
    two = asking("allow_always", "allow_always", "allow_once", "reject_always")
    assert two.option_for("allow_session") == "allow_once-2"
    assert two.option_for("deny") == "reject_always-3"
    assert asking("allow_always").option_for("allow_once") is None
    assert asking("allow_once", "invented").option_for("deny") is None


def test_cancel_answers_open_permission_requests_after_the_notification() -> None:
    acp = prompted()
    acp.prompt("other", [TextBlock("x")])
    acp.receive(permission(5, toolCallId="1") + permission("six", "other", toolCallId="2"))
    notice, answer, withdrawn = acp.cancel("s")
    assert sent(notice)["method"] == "session/cancel"
    assert "id" not in sent(notice)
    assert sent(answer) == {
        "jsonrpc": "2.0",
        "id": 5,
        "result": {"outcome": {"outcome": "cancelled"}},
    }
    assert withdrawn == PermissionWithdrawn("s", 5)
    assert acp.answer_permission(5, "yes") == []
    assert len(acp.answer_permission("six", "yes")) == 1


def test_a_tool_that_fails_after_cancel_is_cancelled() -> None:
    acp = prompted()
    acp.receive(update("tool_call", toolCallId="1", status="in_progress"))
    acp.cancel("s")
    assert acp.receive(update("tool_call_update", toolCallId="1", status="failed")) == [
        Emit("s", [ToolResult("1", "cancelled", name="other")])
    ]


def test_a_permission_request_is_withdrawn_when_its_turn_ends() -> None:
    acp = prompted()
    acp.receive(permission(toolCallId="1"))
    commands = acp.receive(line(id=1, result={"stopReason": "end_turn"}))
    assert PermissionWithdrawn("s", 0) in commands
    assert acp.answer_permission(0, "yes") == []


READ: dict[str, Json] = {"sessionId": "s", "path": "/a"}


def test_files_are_served_only_if_that_was_offered() -> None:
    acp = AcpClient()
    acp.initialize(Offer(read_files=True))
    assert acp.receive(line(id=0, method="fs/read_text_file", params=READ)) == [
        FileRequest("s", 0, "fs/read_text_file", READ)
    ]
    (answer,) = acp.answer_file_request(0, {"content": "x"})
    assert sent(answer)["result"] == {"content": "x"}
    assert acp.answer_file_request(0, {"content": "y"}) == []
    refused, reported = acp.receive(line(id=1, method="fs/write_text_file", params=READ))
    assert sent(refused)["error"]["code"] == -32601
    assert isinstance(reported, Emit)


def test_a_missing_file_is_answered_in_the_way_the_agent_can_handle() -> None:
    for quirk in (True, False):
        acp = AcpClient(AcpQuirks(missing_file_is_empty=quirk, calls_unoffered_fs=True))
        acp.receive(line(id=0, method="fs/read_text_file", params=READ))
        (answer,) = acp.answer_missing_file(0, "/a")
        assert ("result" in sent(answer)) is quirk


@pytest.mark.parametrize("method", ["terminal/create", "elicitation/create", "_x/y", ""])
def test_a_method_that_was_not_offered_is_rejected_at_once(method: str) -> None:
    refused, reported = AcpClient().receive(line(id="q", method=method, params={}))
    assert sent(refused)["id"] == "q"
    assert sent(refused)["error"]["code"] == -32601
    assert reported == Emit(None, [Vendor("refused_call", {"method": method, "params": {}})])


def test_an_invalid_permission_request_is_rejected_and_reported() -> None:
    refused, reported = AcpClient().receive(
        line(id=0, method="session/request_permission", params=[])
    )
    assert sent(refused)["error"]["code"] == -32602
    assert reported == Emit(None, [Unknown([])])


def test_a_request_with_the_id_of_an_open_request_is_rejected() -> None:
    acp = AcpClient()
    assert any(isinstance(command, AcpPermissionRequest) for command in acp.receive(permission(7)))
    repeated = acp.receive(permission(7, toolCallId="other"))
    assert not any(isinstance(command, AcpPermissionRequest) for command in repeated)
    [sent] = [command for command in repeated if isinstance(command, SendBytes)]
    assert b"-32600" in sent.data


def test_unknown_notifications_of_an_agent_are_reported() -> None:
    commands = AcpClient().receive(line(method="_auth/status", params={"x": 1}))
    assert commands == [Emit(None, [Vendor("_auth/status", {"x": 1})])]
    assert AcpClient().receive(line(method="session/update", params=7)) == [
        Emit(None, [Unknown(7)])
    ]


# Streams.


def test_garbage_between_frames_is_reported_and_no_frame_is_lost() -> None:
    commands = prompted().receive(chunk("a") + b"banner\n{oops\n" + chunk("b"))
    first, between, second = commands
    assert (first, second) == (Emit("s", ["a"]), Emit("s", ["b"]))
    assert isinstance(between, Emit)
    assert between.session_id is None
    log, error = between.events
    assert log == Log("banner")
    assert isinstance(error, Error)


def test_a_reply_without_a_call_is_reported_and_ends_no_turn() -> None:
    acp = prompted()
    (reported,) = acp.receive(line(id=99, result={"stopReason": "end_turn"}))
    assert isinstance(reported, Emit)
    assert reported.session_id is None
    commands = acp.receive(line(id="1", result={"stopReason": "end_turn"}))
    assert any(isinstance(command, CallFinished) for command in commands)


def test_the_end_of_the_agent_fails_pending_calls_and_reports_open_tool_calls() -> None:
    acp = prompted()
    id, _ = acp.new_session("/w")
    acp.receive(permission(toolCallId="1", kind="read"))
    acp.receive(update("tool_call", toolCallId="2", kind="edit", status="pending"))
    commands = acp.end("it died")
    assert commands[0] == Emit("s", [ToolUse("2", "edit", kind="edit")])
    assert commands[1] == PermissionWithdrawn("s", 0)
    settled = [command for command in commands if isinstance(command, CallFinished)]
    assert [(s.id, s.method, s.session_id) for s in settled] == [
        (1, "session/prompt", "s"),
        (id, "session/new", None),
    ]
    assert all(s.error is not None and s.error.message == "it died" for s in settled)
    assert acp.end() == []


FRAMES = st.one_of(
    st.builds(chunk, st.text(max_size=6), st.sampled_from("st")),
    st.sampled_from(
        [
            *(data for _, data, _ in UPDATES),
            permission(toolCallId="p"),
            permission("q", "t", toolCallId="p", rawInput={"command": "ls"}),
            line(id=1, result={"stopReason": "end_turn"}),
            line(id=2, error={"code": 1, "message": "x"}),
            line(id=7, result=1),
            line(method="_x"),
            b"banner\n",
            b"{oops\n",
            b"\xff\n",
            b"\n",
        ]
    ),
)


def play(data: bytes, size: int) -> list[Any]:
    acp = prompted()
    acp.prompt("t", [TextBlock("go")])
    commands: list[Command] = []
    for start in range(0, len(data), size):
        commands += acp.receive(data[start : start + size])
    flat: list[Any] = []
    for command in [*commands, *acp.end()]:
        if isinstance(command, Emit):
            flat += [(command.session_id, item) for item in command.events]
        else:
            flat.append(command)
    return flat


@no_deadline
@given(frames=st.lists(FRAMES, max_size=12), size=st.integers(1, 80))
def test_the_result_does_not_depend_on_where_bytes_are_cut(frames: list[bytes], size: int) -> None:
    data = b"".join(frames)
    assert play(data, size) == play(data, len(data) or 1)


@no_deadline
@given(data=st.binary(max_size=200))
def test_no_input_raises(data: bytes) -> None:
    prompted().receive(data)


STEPS: list[Callable[[str], bytes]] = [
    lambda s: chunk("a", s),
    lambda s: update("tool_call", s, toolCallId="1", kind="read", status="pending", rawInput={}),
    lambda s: update("tool_call_update", s, toolCallId="1", rawInput={"x": s}),
    lambda s: chunk("b", s),
    lambda s: permission(s, s, toolCallId="2", kind="edit"),
    lambda s: update("tool_call_update", s, toolCallId="1", status="completed"),
    lambda s: line(id={"s": 1, "t": 2}[s], result={"stopReason": "end_turn"}),
]  # fmt: skip


@no_deadline
@given(order=st.permutations(["s"] * len(STEPS) + ["t"] * len(STEPS)))
def test_events_of_two_sessions_are_never_mixed(order: list[str]) -> None:
    acp = prompted()
    acp.prompt("t", [TextBlock("go")])
    at = {"s": 0, "t": 0}
    received: dict[str | None, list[RawEvent]] = {"s": [], "t": []}
    for session in order:
        for command in acp.receive(STEPS[at[session]](session)):
            if isinstance(command, Emit):
                received[command.session_id] += command.events
        at[session] += 1
    for session in ("s", "t"):
        assert received[session] == [
            "a",
            ToolUse("1", "read", kind="read", input={"x": session}),
            "b",
            ToolUse("2", "edit", kind="edit"),
            ToolResult("1", "success", name="read"),
            TurnEnd(ok=True, stop_reason="end_turn"),
        ]


@pytest.mark.deep
def test_many_updates_leave_no_state_behind() -> None:
    acp = prompted()
    tool = update("tool_call", toolCallId="1", status="in_progress")
    tool += update("tool_call_update", toolCallId="1", status="completed")
    block = chunk("x") * 1000 + tool * 50
    acp.receive(block)
    gc.collect()
    before = sys.getallocatedblocks()

    def received() -> int:
        emits = [command for command in acp.receive(block) if isinstance(command, Emit)]
        return sum(isinstance(item, str) for emit in emits for item in emit.events)

    assert sum(received() for _ in range(100)) == 100_000
    gc.collect()
    assert sys.getallocatedblocks() - before < 1000


@pytest.mark.deep
def test_many_turns_leave_no_state_behind() -> None:
    acp = AcpClient()

    def turn(number: int) -> None:
        id, _ = acp.prompt("s", [TextBlock("go")])
        acp.receive(permission(number, toolCallId=f"t{number}") + chunk("x"))
        acp.answer_permission(number, "no")
        acp.receive(line(id=id, result={"stopReason": "end_turn"}))

    for number in range(100):
        turn(number)
    gc.collect()
    before = sys.getallocatedblocks()
    for number in range(1000):
        turn(number)
    gc.collect()
    assert sys.getallocatedblocks() - before < 1000


@pytest.mark.timeout(60)
@pytest.mark.deep
def test_the_cost_of_an_update_does_not_grow_with_the_calls_that_are_open() -> None:
    """With a search through all open calls this takes minutes."""
    many = 25_000
    acp = prompted()
    opened_calls = b"".join(update("tool_call", toolCallId=f"c{n}") for n in range(many))
    acp.receive(opened_calls)
    found = acp.receive(chunk("x") * many)
    assert sum(len(command.events) for command in found if isinstance(command, Emit)) == many
    acp.receive(update("tool_call", toolCallId="") * many)
    ended = acp.receive(update("tool_call_update", toolCallId="", status="completed") * many)
    assert sum(len(command.events) for command in ended if isinstance(command, Emit)) == 2 * many
