"""The agent side of the protocol, as bytes in and commands out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._protocol.acp.client import AcpClient, CallFinished, Offer, read_initialize
from corral._protocol.acp.frames import MessageChunk, PromptParams, TextBlock, TextContent
from corral._protocol.acp.server import (
    STEERING,
    AcpServer,
    CallCancelled,
    ClientCall,
    ClientProblem,
    RequestAnswered,
    ServerCommand,
    UpdateEncoder,
)
from corral._protocol.jsonrpc import SendBytes

INITIALIZE: dict[str, Any] = {"id": 0, "method": "initialize", "params": {"protocolVersion": 1}}
NEW: dict[str, Any] = {"id": 1, "method": "session/new", "params": {"cwd": "/w", "mcpServers": []}}
PROMPT: dict[str, Any] = {
    "id": 2,
    "method": "session/prompt",
    "params": {"sessionId": "s", "prompt": [{"type": "text", "text": "hi"}]},
}


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def sent(commands: list[ServerCommand]) -> list[Any]:
    """What is written to the client."""
    data = b"".join(each.data for each in commands if isinstance(each, SendBytes))
    return [json.loads(each) for each in data.splitlines()]


def error_of(commands: list[ServerCommand]) -> tuple[object, int]:
    """The id and the code of the only error."""
    [written] = sent(commands)
    assert len(commands) == 1
    return written["id"], written["error"]["code"]


@pytest.fixture
def server() -> AcpServer:
    """With an open session."""
    server = AcpServer({"loadSession": True})
    server.receive(line(INITIALIZE))
    server.receive(line(NEW))
    server.reply(1, {"sessionId": "s"}, opens="s")
    return server


def test_initialize_is_answered_as_the_client_side_reads_it() -> None:
    client, server = AcpClient(), AcpServer({"loadSession": True}, version="1.2")
    _, data = client.initialize(Offer(read_files=True, questions=True))
    [reply] = server.receive(data)
    assert isinstance(reply, SendBytes)
    [finished] = client.receive(reply.data)
    assert isinstance(finished, CallFinished)
    about = read_initialize(finished.result)
    assert (about.name, about.version, about.agent_capabilities.load_session) == (
        "corral",
        "1.2",
        True,
    )
    assert server.client.fs.read_text_file
    assert not server.client.fs.write_text_file
    assert server.client.elicitation.form == {}


@pytest.mark.parametrize(
    ("text", "id", "code"),
    [
        (b"{not json}\n", None, -32700),
        (b"hello\n", None, -32700),
        (b'{"id": 5, "method": "x"\n', None, -32700),
        (b"\xff\xfe{}\n", None, -32700),
        (b"[]\n", None, -32600),
        (b"42\n", None, -32600),
        (b"{}\n", None, -32600),
        (b'{"id": 5, "method": 7}\n', 5, -32600),
        (b'{"id": true, "method": "session/list"}\n', None, -32600),
        (b'{"id": null, "method": "session/list"}\n', None, -32600),
        (b'[{"id": 5, "method": "session/list"}]\n', None, -32600),
        (b'{"id": 5, "method": "session/fly"}\n', 5, -32601),
        (b'{"id": 5, "method": "_session/steering", "params": {}}\n', 5, -32601),
        (b'{"id": 5, "method": "session/new"}\n', 5, -32602),
        (b'{"id": 5, "method": "session/new", "params": [1]}\n', 5, -32602),
        (b'{"id": 5, "method": "session/new", "params": {"cwd": 3}}\n', 5, -32602),
        (b'{"id": 5, "method": "session/close", "params": {"sessionId": "other"}}\n', 5, -32002),
        (b'{"id": 5.5, "method": "session/fly"}\n', 5.5, -32601),
        (
            b'{"id": "a", "method": "session/prompt", "params": {"sessionId": "s",'
            b' "prompt": [{"type": "smell", "data": ""}]}}\n',
            "a",
            -32602,
        ),
        (
            b'{"id": 5, "method": "session/list", "params": ' + b"[" * 400 + b"]" * 400 + b"}\n",
            5,
            -32602,
        ),
    ],
)
def test_what_the_protocol_does_not_allow_is_an_error_and_reading_goes_on(
    server: AcpServer, text: bytes, id: object, code: int
) -> None:
    assert error_of(server.receive(text)) == (id, code)
    [call] = server.receive(line({"id": 6, "method": "session/list"}))
    assert isinstance(call, ClientCall)


def test_nothing_may_be_called_before_initialize() -> None:
    server = AcpServer({})
    assert error_of(server.receive(line(NEW))) == (1, -32600)
    server.receive(line(INITIALIZE))
    assert isinstance(server.receive(line(NEW))[0], ClientCall)


def test_a_message_that_is_too_long_is_rejected_with_its_id() -> None:
    server = AcpServer({}, limit=1000)
    server.receive(line(INITIALIZE))
    message = {**PROMPT, "params": {"sessionId": "s", "prompt": "x" * 2000}}
    text = line(message)
    assert server.receive(text[:700]) == []
    assert server.receive(text[700:1500]) == []
    assert error_of(server.receive(text[1500:])) == (2, -32600)
    assert error_of(server.receive(line({"x": "y" * 2000}))) == (None, -32600)
    assert isinstance(server.receive(line(NEW))[0], ClientCall)


def test_a_second_prompt_in_a_session_is_rejected_until_the_first_has_its_reply(
    server: AcpServer,
) -> None:
    [call] = server.receive(line(PROMPT))
    assert call == ClientCall(2, "session/prompt", "s", PromptParams("s", [TextBlock("hi")]))
    assert error_of(server.receive(line({**PROMPT, "id": 3}))) == (3, -32600)
    assert sent(server.reply(2, {"stopReason": "end_turn"}))[0]["id"] == 2
    assert isinstance(server.receive(line({**PROMPT, "id": 4}))[0], ClientCall)


def test_sessions_are_prompted_at_the_same_time(server: AcpServer) -> None:
    server.receive(line({**NEW, "id": 7}))
    server.reply(7, {"sessionId": "t"}, opens="t")
    server.receive(line(PROMPT))
    params: dict[str, Any] = {"sessionId": "t", "prompt": []}
    [call] = server.receive(line({"id": 8, "method": "session/prompt", "params": params}))
    assert isinstance(call, ClientCall)


def test_the_id_of_an_open_call_is_not_used_twice(server: AcpServer) -> None:
    server.receive(line(PROMPT))
    listing = {"id": 2, "method": "session/list"}
    assert error_of(server.receive(line(listing))) == (None, -32600)
    server.reply(2, {})
    assert isinstance(server.receive(line(listing))[0], ClientCall)


def test_a_call_gets_one_reply(server: AcpServer) -> None:
    server.receive(line(PROMPT))
    assert len(server.reject(2, -32603, "no", {"a": 1})) == 1
    assert server.reply(2, {}) == []
    assert server.reject(2, -32603, "no") == []
    assert server.reply(99, {}, opens="x") == []
    assert not server.is_open("x")


def test_a_prompt_is_cancelled_in_two_ways(server: AcpServer) -> None:
    server.receive(line(PROMPT))
    cancel = {"method": "session/cancel", "params": {"sessionId": "s"}}
    assert server.receive(line(cancel)) == [CallCancelled(2)]
    withdraw = {"method": "$/cancel_request", "params": {"requestId": 2}}
    assert server.receive(line(withdraw)) == [CallCancelled(2)]
    server.reply(2, {"stopReason": "cancelled"})
    assert server.receive(line(cancel) + line(withdraw)) == []


@pytest.mark.parametrize(
    "notice",
    [
        {"method": "session/cancel"},
        {"method": "session/cancel", "params": {"sessionId": "other"}},
        {"method": "$/cancel_request", "params": {"requestId": {}}},
        {"method": "$/cancel_request", "params": []},
        {"method": "$/other"},
        {"method": "session/prompt", "params": PROMPT["params"]},
    ],
)
def test_other_notifications_are_ignored(server: AcpServer, notice: object) -> None:
    server.receive(line(PROMPT))
    assert server.receive(line(notice)) == []


def test_closing_a_session_cancels_its_prompt_and_ends_it(server: AcpServer) -> None:
    server.receive(line(PROMPT))
    close = {"id": 3, "method": "session/close", "params": {"sessionId": "s"}}
    cancelled, call = server.receive(line(close))
    assert cancelled == CallCancelled(2)
    assert isinstance(call, ClientCall)
    assert error_of(server.receive(line({**close, "id": 4}))) == (4, -32002)
    server.reply(2, {"stopReason": "cancelled"})
    server.reply(3, {})
    assert not server.is_open("s")
    assert error_of(server.receive(line({**PROMPT, "id": 5}))) == (5, -32002)


def test_our_requests_are_answered_once(server: AcpServer) -> None:
    server.receive(line(PROMPT))
    first, data = server.request("session/request_permission", "s", {"sessionId": "s"})
    assert json.loads(data.data)["method"] == "session/request_permission"
    second, _ = server.request("fs/read_text_file", "s", {})
    third, _ = server.request("fs/read_text_file", "s", {})
    # Some clients send the id as text.
    answered = server.receive(line({"id": str(first), "result": {"a": 1}}))
    assert answered == [RequestAnswered(first, {"a": 1})]
    [failed] = server.receive(line({"id": second, "error": {"code": -32601, "message": "no"}}))
    assert isinstance(failed, RequestAnswered)
    assert failed.error
    assert sent(server.withdraw(third))[0]["params"] == {"requestId": third}
    assert server.withdraw(third) == []
    # Replies that come again, or too late, are dropped.
    for id in (first, second, third):
        assert server.receive(line({"id": id, "result": {}})) == []
    [problem] = server.receive(line({"id": 77, "result": {}}))
    assert isinstance(problem, ClientProblem)
    assert sent([problem]) == []


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (b'{"jsonrpc":"2.0","id":1,"error":"no"}\n', "not a message of JSON-RPC"),
        (b'{"id":1,"result":{"content":"%b"}}\n' % (b"x" * 1000), "bytes is too long"),
    ],
)
def test_a_reply_that_is_no_message_is_the_error_of_its_request(reply: bytes, problem: str) -> None:
    """It is not answered: the client would take that for the reply to one of its calls."""
    server = AcpServer({}, limit=500)
    server.receive(line(INITIALIZE))
    server.receive(line(NEW))
    server.reply(1, {"sessionId": "s"}, opens="s")
    id, _ = server.request("fs/read_text_file", "s", {"path": "/w/a"})
    assert id == 1
    [answered] = server.receive(reply)
    assert isinstance(answered, RequestAnswered)
    assert answered.error
    assert problem in answered.error.message
    [late] = server.receive(reply)
    assert isinstance(late, ClientProblem)


def test_requests_end_with_the_prompt_that_they_belong_to(server: AcpServer) -> None:
    server.receive(line(PROMPT))
    request, _ = server.request("session/request_permission", "s", {})
    other, _ = server.request("session/request_permission", "other", {})
    out = server.reply(2, {"stopReason": "end_turn"})
    assert [each.id for each in out if isinstance(each, RequestAnswered)] == [request]
    withdrawn, reply = sent(out)
    assert withdrawn == {
        "jsonrpc": "2.0",
        "method": "$/cancel_request",
        "params": {"requestId": request},
    }
    assert reply["id"] == 2
    assert server.withdraw(other)


def test_when_the_client_goes_away_everything_ends(server: AcpServer) -> None:
    server.receive(line(PROMPT))
    request, _ = server.request("session/request_permission", "s", {})
    answered, cancelled = server.end()
    assert isinstance(answered, RequestAnswered)
    assert (answered.id, answered.error is None) == (request, False)
    assert cancelled == CallCancelled(2)


def test_steering_is_offered_where_turns_take_texts() -> None:
    server = AcpServer({}, steering=True)
    [about] = sent(server.receive(line(INITIALIZE)))
    assert about["result"]["_meta"] == {"steering": {"supported": True}}
    server.receive(line(NEW))
    server.reply(1, {}, opens="s")
    [call] = server.receive(line({**PROMPT, "method": STEERING}))
    assert isinstance(call, ClientCall)
    assert isinstance(server.receive(line({**PROMPT, "id": 3}))[0], ClientCall)


def test_nulls_are_fields_that_are_not_there(server: AcpServer) -> None:
    params = {"cwd": "/w", "mcpServers": None, "additionalDirectories": None, "_meta": None}
    [call] = server.receive(line({"id": 3, "method": "session/new", "params": params}))
    assert isinstance(call, ClientCall)


def test_updates_are_lines() -> None:
    encoder = UpdateEncoder('s"1')
    lines = encoder.lines(
        [MessageChunk(TextContent("a\n")), {"sessionUpdate": "current_mode_update"}]
    )
    first, second = [json.loads(each) for each in lines.splitlines()]
    assert first == {
        "jsonrpc": "2.0",
        "method": "session/update",
        "params": {
            "sessionId": 's"1',
            "update": {
                "sessionUpdate": "agent_message_chunk",
                "content": {"type": "text", "text": "a\n"},
            },
        },
    }
    assert second["params"]["update"] == {"sessionUpdate": "current_mode_update"}


PIECES = st.sampled_from(
    [
        line(NEW),
        line(PROMPT),
        line({"method": "session/cancel", "params": {"sessionId": "s"}}),
        line({"id": 1, "result": {}}),
        line({"id": 3, "method": "session/close", "params": {"sessionId": "s"}}),
        b"\n",
        b"}\n",
        b'{"id":1',
        b"\xc3",
        b'{"id":4,"method":"session/load","params":{"sessionId":"s","cwd":"/"}}\n',
    ]
)


@given(st.lists(PIECES | st.binary(max_size=20), max_size=30), st.data())
def test_no_input_raises_and_every_call_gets_one_reply(pieces: list[bytes], data: Any) -> None:
    server = AcpServer({})
    server.receive(line(INITIALIZE))
    waiting: list[ClientCall] = []
    calls = replies = 0
    for piece in pieces:
        for command in server.receive(piece):
            if isinstance(command, ClientCall):
                waiting.append(command)
                calls += 1
        if waiting and data.draw(st.booleans()):
            call = waiting.pop()
            out = server.reply(call.id, {}, opens="s" if "load" in call.method else None)
            replies += len([each for each in sent(out) if "result" in each])
    for call in waiting:
        replies += len(sent(server.reject(call.id, -32603, "no")))
    assert replies == calls


def test_a_long_line_with_an_invalid_id_has_an_error_without_one() -> None:
    server = AcpServer({}, limit=100)
    [sent] = server.receive(b'{"id":007,"params":"' + b"x" * 200 + b'"}\n')
    assert isinstance(sent, SendBytes)
    assert json.loads(sent.data)["id"] is None
