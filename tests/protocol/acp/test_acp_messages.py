"""Calls and replies of JSON-RPC as lines: all input is a message or is reported, and every call
ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stream_checks import no_deadline

from corral._protocol.acp.client import AcpClient, CallFinished, Command, Emit
from corral._protocol.jsonrpc import CLOSED, RpcError, SendBytes
from corral._protocol.ndjson import RawEvent
from corral.events import Error, Log, Unknown, Vendor


def line(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n"


def chunk(text: str, **more: Any) -> bytes:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return line(method="session/update", params={"sessionId": "s", "update": update}, **more)


def waiting(*methods: str) -> AcpClient:
    acp = AcpClient()
    for method in methods:
        acp.call(method, None, {})
    return acp


def errors(commands: list[Command]) -> list[Error]:
    """The errors that are reported for the process. Nothing else is done."""
    found: list[Error] = []
    for command in commands:
        assert isinstance(command, Emit)
        assert command.session_id is None
        for item in command.events:
            assert isinstance(item, Error)
            assert item.recoverable
            found.append(item)
    return found


def open_calls(acp: AcpClient) -> list[int]:
    return [command.id for command in acp.end() if isinstance(command, CallFinished)]


def test_a_call_is_a_line_with_a_new_id() -> None:
    acp = AcpClient()
    assert acp.call("a", None, {"x": 1}) == (
        1,
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":1}}\n',
    )
    assert acp.call("b", None, None)[0] == 2


def reply(result: Any) -> list[Command]:
    return [CallFinished(1, "a", None, result)]


def event(item: RawEvent) -> list[Command]:
    return [Emit(None, [item])]


CONVERSATIONS: list[tuple[str, bytes, list[Command]]] = [
    ("reply", line(id=1, result={"x": 1}), reply({"x": 1})),
    ("null-result", line(id=1, result=None), reply(None)),
    ("no-result", line(id=1), reply(None)),
    ("null-error-beside-a-result", line(id=1, result=2, error=None), reply(2)),
    ("text-id", line(id="1", result=2), reply(2)),
    ("float-id", line(id=1.0, result=2), reply(2)),
    (
        "failure",
        line(id=2, error={"code": -32000, "message": "no", "data": [1]}),
        [CallFinished(2, "b", None, error=RpcError(-32000, "no", [1]))],
    ),
    ("bare-failure", line(id=2, error={}), [CallFinished(2, "b", None, error=RpcError())]),
    ("note", line(method="tell", params=[1]), event(Vendor("tell", [1]))),
    ("null-id-note", line(id=None, method="tell"), event(Vendor("tell", None))),
    ("common", chunk("x"), [Emit("s", ["x"])]),
    ("half-a-character", b'{"method":"a","params":"\\ud83d"}\n', event(Vendor("a", "\ufffd"))),
    ("bad-bytes", b'{"method":"a","params":"\xff"}\n', event(Vendor("a", "\ufffd"))),
    ("terminal-codes", b"\x1b[0m" + line(id=1, result=1), reply(1)),
    ("log", b"Loading...\n", event(Log("Loading..."))),
    ("no-message", b'{"jsonrpc":"2.0"}\n', event(Unknown({"jsonrpc": "2.0"}))),
    ("coloured-no-message", b'\x1b[0m{"x":"\\ud83d"}\n', event(Unknown({"x": "\ufffd"}))),
    ("batch", b'[{"id":1,"result":1}]\n', event(Unknown([{"id": 1, "result": 1}]))),
    (
        "wrong-types",
        line(id=[], method=7),
        event(Unknown({"jsonrpc": "2.0", "id": [], "method": 7})),
    ),
    ("blank", b"\n \r\n", []),
]


@pytest.mark.parametrize(("data", "expected"), [c[1:] for c in CONVERSATIONS],
                         ids=[c[0] for c in CONVERSATIONS])  # fmt: skip
def test_a_line_becomes_a_command(data: bytes, expected: list[Command]) -> None:
    assert waiting("a", "b").receive(data) == expected


@pytest.mark.parametrize("id", [0, "u-1"])
def test_a_call_of_the_agent_is_answered_with_its_id(id: Any) -> None:
    refused, _ = AcpClient().receive(line(id=id, method="ask", params={"y": 2}))
    assert isinstance(refused, SendBytes)
    assert json.loads(refused.data) == {
        "jsonrpc": "2.0",
        "id": id,
        "error": {"code": -32601, "message": "Method not found: ask", "data": {"method": "ask"}},
    }


def test_an_update_with_an_id_is_a_call() -> None:
    refused, _ = AcpClient().receive(chunk("x", id=5))
    assert isinstance(refused, SendBytes)


@pytest.mark.parametrize("id", [7, "7", "nobody", -1, 1e300, 0])
def test_a_reply_to_an_unknown_call_is_reported(id: Any) -> None:
    acp = waiting("a")
    (error,) = errors(acp.receive(line(id=id, result=1)))
    assert error.code == "stray_reply"
    assert f"answered unknown call {id!r}" in error.message
    assert open_calls(acp) == [1]


def test_a_second_reply_to_a_call_is_reported_and_changes_nothing() -> None:
    first, *others = waiting("a").receive(
        line(id=1, result=1) + line(id=1, result=2) + line(id=1, error={"code": 1, "message": "x"})
    )
    assert [first] == reply(1)
    assert [error.message for error in errors(others)] == ["the agent answered call 1 twice"] * 2


def test_an_error_without_an_id_is_reported_with_its_message() -> None:
    acp = waiting("a")
    (error,) = errors(acp.receive(line(id=None, error={"code": -32700, "message": "Parse error"})))
    assert error.message == "the agent rejected one of our lines: Parse error"
    assert open_calls(acp) == [1]


def test_every_pending_call_fails_when_the_agent_exits() -> None:
    acp = waiting("a", "b", "c")
    acp.receive(line(id=2, result=1))
    assert acp.end("gone") == [
        CallFinished(1, "a", None, error=RpcError(CLOSED, "gone")),
        CallFinished(3, "c", None, error=RpcError(CLOSED, "gone")),
    ]
    assert acp.end("gone") == []
    assert len(errors(acp.receive(line(id=1, result=1)))) == 1


def test_a_last_reply_without_its_newline_counts() -> None:
    acp = waiting("a")
    assert acp.receive(line(id=1, result=1).rstrip()) == []
    assert acp.end() == reply(1)


def test_an_oversized_message_is_one_error_and_the_next_is_read() -> None:
    acp = AcpClient(limit=200)
    reported, text = acp.receive(line(method="tell", params="x" * 299) + chunk("y"))
    assert [error.code for error in errors([reported])] == ["oversized_line"]
    assert text == Emit("s", ["y"])


def test_every_message_is_cleaned_before_anything_sees_it() -> None:
    acp = AcpClient(clean=lambda data: data.replace(b"s3cret", b"[gone]"))
    assert acp.receive(line(method="tell", params="s3cret")) == event(Vendor("tell", "[gone]"))


@pytest.mark.parametrize(
    "id", ["1.5", "1.0001", '"1.5"', '" 1"', '"1_0"', "1e400", '"\uff11"', "-1"]
)
def test_an_id_that_is_only_similar_to_that_of_a_call_matches_no_call(id: str) -> None:
    acp = waiting("a")
    found = acp.receive(b'{"jsonrpc":"2.0","id":%s,"result":{}}\n' % id.encode())
    assert not any(isinstance(command, CallFinished) for command in found)
    assert open_calls(acp) == [1]


@pytest.mark.parametrize(
    "data",
    [
        chunk("x")[:-1] + b" " + chunk("x") + b"\n",
        chunk("x")[:-1] + chunk("x") + b" \n",
        chunk("x").replace(b'"params"', b'\n"params"') + chunk("x"),
    ],
)
def test_each_line_is_one_message_whether_the_lines_come_together_or_not(data: bytes) -> None:
    acp = AcpClient()
    apart = [command for byte in data for command in acp.receive(bytes([byte]))]
    assert flat(AcpClient().receive(data)) == flat(apart)
    assert any(isinstance(item, Error) for _, item in flat(apart))


def flat(commands: list[Command]) -> list[tuple[str | None, RawEvent | Command]]:
    found: list[tuple[str | None, RawEvent | Command]] = []
    for command in commands:
        if isinstance(command, Emit):
            found += [(command.session_id, item) for item in command.events]
        else:
            found.append((None, command))
    return found


LINES = st.one_of(
    st.sampled_from([data.rstrip(b"\n") for _, data, _ in CONVERSATIONS]),
    st.binary(max_size=12),
    st.text(max_size=12).map(lambda text: line(method="tell", params=text)[:-1]),
    st.text(max_size=2).map(lambda text: chunk(text)[:-1]),
)


@no_deadline
@given(data=st.lists(LINES).map(b"\n".join), size=st.integers(1, 50))
def test_any_bytes_in_any_chunks_become_the_same_commands(data: bytes, size: int) -> None:
    complete, cut = waiting("a", "b"), waiting("a", "b")
    found: list[Command] = []
    for start in range(0, len(data), size):
        found += cut.receive(data[start : start + size])
    assert flat([*found, *cut.end()]) == flat([*complete.receive(data), *complete.end()])
