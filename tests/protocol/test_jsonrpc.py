"""Calls and replies as lines: all input is a message or is reported, and every call ends."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stream_checks import no_deadline

from corral.events import Error, Log, Unknown
from corral.protocol import jsonrpc
from corral.protocol.jsonrpc import (
    CLOSED,
    CallFailure,
    CallReply,
    IncomingCall,
    Message,
    Notification,
    Peer,
)


class Tick(msgspec.Struct, tag_field="method", tag="tick"):
    params: list[int]
    id: msgspec.UnsetType = msgspec.UNSET


def line(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n"


def waiting(*methods: str) -> Peer[Tick]:
    peer = Peer(Tick)
    for method in methods:
        peer.call(method, {})
    return peer


def test_a_call_is_a_line_with_a_new_id() -> None:
    peer = Peer(Tick)
    assert peer.call("a", {"x": 1}) == (
        1,
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":1}}\n',
    )
    assert peer.call("b", None)[0] == 2
    assert peer.pending == {1: "a", 2: "b"}


CONVERSATIONS: list[tuple[str, bytes, list[Message | Tick]]] = [
    ("reply", line(id=1, result={"x": 1}), [CallReply(1, "a", {"x": 1})]),
    ("null-result", line(id=1, result=None), [CallReply(1, "a", None)]),
    ("no-result", line(id=1), [CallReply(1, "a", None)]),
    ("null-error-beside-a-result", line(id=1, result=2, error=None), [CallReply(1, "a", 2)]),
    ("text-id", line(id="1", result=2), [CallReply(1, "a", 2)]),
    ("float-id", line(id=1.0, result=2), [CallReply(1, "a", 2)]),
    (
        "failure",
        line(id=2, error={"code": -32000, "message": "no", "data": [1]}),
        [CallFailure(2, "b", -32000, "no", [1])],
    ),
    ("bare-failure", line(id=2, error={}), [CallFailure(2, "b", 0, "")]),
    ("call", line(id=0, method="ask", params={"y": 2}), [IncomingCall(0, "ask", {"y": 2})]),
    ("text-call", line(id="u-1", method="ask"), [IncomingCall("u-1", "ask", None)]),
    ("note", line(method="tell", params=[1]), [Notification("tell", [1])]),
    ("null-id-note", line(id=None, method="tell"), [Notification("tell", None)]),
    ("common", line(method="tick", params=[1]), [Tick([1])]),
    ("common-in-another-shape", line(method="tick", params={}), [Notification("tick", {})]),
    ("common-as-a-call", line(method="tick", params=[1], id=5), [IncomingCall(5, "tick", [1])]),
    (
        "half-a-character",
        b'{"method":"tell","params":"\\ud83d"}\n',
        [Notification("tell", "\ufffd")],
    ),
    ("bad-bytes", b'{"method":"tell","params":"\xff"}\n', [Notification("tell", "\ufffd")]),
    ("terminal-codes", b"\x1b[0m" + line(id=1, result=1), [CallReply(1, "a", 1)]),
    ("log", b"Loading...\n", [Log("Loading...")]),
    ("no-message", b'{"jsonrpc":"2.0"}\n', [Unknown({"jsonrpc": "2.0"})]),
    ("coloured-no-message", b'\x1b[0m{"x":"\\ud83d"}\n', [Unknown({"x": "\ufffd"})]),
    ("batch", b'[{"id":1,"result":1}]\n', [Unknown([{"id": 1, "result": 1}])]),
    ("wrong-types", line(id=[], method=7), [Unknown({"jsonrpc": "2.0", "id": [], "method": 7})]),
    ("blank", b"\n \r\n", []),
]


@pytest.mark.parametrize(("data", "expected"), [c[1:] for c in CONVERSATIONS],
                         ids=[c[0] for c in CONVERSATIONS])  # fmt: skip
def test_a_line_becomes_a_message(data: bytes, expected: list[Message | Tick]) -> None:
    assert waiting("a", "b").receive(data) == expected


def test_a_malformed_line_is_reported_and_the_next_is_read() -> None:
    error, reply = waiting("a").receive(b'{"id":1,\n' + line(id=1, result=3))
    assert isinstance(error, Error)
    assert (error.code, error.recoverable) == ("malformed_line", True)
    assert reply == CallReply(1, "a", 3)


@pytest.mark.parametrize("id", [7, "7", "nobody", -1, 1e300, 0])
def test_a_reply_without_a_call_is_reported(id: Any) -> None:
    peer = waiting("a")
    (error,) = peer.receive(line(id=id, result=1))
    assert isinstance(error, Error)
    assert (error.code, error.recoverable) == ("stray_reply", True)
    assert "unknown call" in error.message
    assert peer.pending == {1: "a"}


def test_a_second_reply_to_a_call_is_reported_and_changes_nothing() -> None:
    first, second, third = waiting("a").receive(
        line(id=1, result=1) + line(id=1, result=2) + line(id=1, error={"code": 1, "message": "x"})
    )
    assert first == CallReply(1, "a", 1)
    for repeated in (second, third):
        assert isinstance(repeated, Error)
        assert "twice" in repeated.message


def test_an_error_without_an_id_is_reported_with_its_message() -> None:
    peer = waiting("a")
    (error,) = peer.receive(line(id=None, error={"code": -32700, "message": "Parse error"}))
    assert isinstance(error, Error)
    assert "Parse error" in error.message
    assert peer.pending == {1: "a"}


def test_every_pending_call_fails_when_the_other_side_exits() -> None:
    peer = waiting("a", "b", "c")
    peer.receive(line(id=2, result=1))
    assert peer.fail_pending("gone") == [
        CallFailure(1, "a", CLOSED, "gone"),
        CallFailure(3, "c", CLOSED, "gone"),
    ]
    assert peer.fail_pending("gone") == []
    (late,) = peer.receive(line(id=1, result=1))
    assert isinstance(late, Error)


def test_a_last_line_without_its_newline_counts() -> None:
    peer = waiting("a")
    assert peer.receive(line(id=1, result=1).rstrip()) == []
    assert peer.end() == [CallReply(1, "a", 1)]


def test_an_oversized_line_is_one_error_and_the_next_is_read() -> None:
    peer = Peer(Tick, limit=60)
    error, tick = peer.receive(
        line(method="tell", params="x" * 99) + line(method="tick", params=[])
    )
    assert isinstance(error, Error)
    assert error.code == "oversized_line"
    assert tick == Tick([])


def test_every_line_is_cleaned_before_anything_sees_it() -> None:
    peer = Peer(Tick, clean=lambda data: data.replace(b"s3cret", b"[gone]"))
    assert peer.receive(line(method="tell", params="s3cret")) == [Notification("tell", "[gone]")]
    assert b"s3cret" not in peer.last_line


def test_the_sample_of_an_oversized_line_is_cleaned_before_it_is_cut() -> None:
    peer = Peer(Tick, clean=lambda data: data.replace(b"secret", b"*"), limit=250)
    [error] = peer.receive(b"x" * 197 + b"secret" + b"y" * 100 + b"\n")
    assert isinstance(error, Error)
    assert error.facts["sample"] == "x" * 197 + "*yy"


@pytest.mark.parametrize(
    "id", ["1.5", "1.0001", '"1.5"', '" 1"', '"1_0"', "1e400", '"\uff11"', "-1"]
)
def test_an_id_that_is_only_similar_to_that_of_a_call_matches_no_call(id: str) -> None:
    peer = Peer(Tick)
    peer.call("a", {})
    found = peer.receive(b'{"jsonrpc":"2.0","id":%s,"result":{}}\n' % id.encode())
    assert not any(isinstance(message, CallReply | CallFailure) for message in found)
    assert list(peer.pending) == [1]


@pytest.mark.parametrize("id", ["1", '"1"', "1.0"])
def test_an_id_may_come_back_as_text_or_with_a_zero_fraction(id: str) -> None:
    peer = Peer(Tick)
    peer.call("a", {})
    [reply] = peer.receive(b'{"jsonrpc":"2.0","id":%s,"result":{}}\n' % id.encode())
    assert isinstance(reply, CallReply)


def test_the_other_side_can_read_what_is_written() -> None:
    there = Peer(Tick)
    id, call = there.call("ask", {"ü": "\n"})
    assert Peer(Tick).receive(call) == [IncomingCall(id, "ask", {"ü": "\n"})]
    assert there.receive(jsonrpc.result(id, {"x": 1})) == [CallReply(id, "ask", {"x": 1})]
    id, _ = there.call("ask", None)
    assert there.receive(jsonrpc.failure(id, 5, "no", {"y": 2})) == [
        CallFailure(id, "ask", 5, "no", {"y": 2})
    ]
    id, _ = there.call("what", None)
    (refused,) = there.receive(jsonrpc.method_not_found(id, "what"))
    assert isinstance(refused, CallFailure)
    assert refused.code == -32601
    assert there.receive(jsonrpc.notification("tell", [1])) == [Notification("tell", [1])]


@pytest.mark.parametrize(
    "data",
    [
        b'{"method":"tick","params":[]} {"method":"tick","params":[]}\n\n',
        b'{"method":"tick","params":[]}{"method":"tick","params":[]}\n \n',
        b'{"method":\n"tick","params":[]}\n{"method":"tick","params":[]}\n',
    ],
)
def test_each_line_is_one_message_whether_the_lines_come_together_or_not(data: bytes) -> None:
    peer = Peer(Tick)
    apart = [message for byte in data for message in peer.receive(bytes([byte]))]
    assert Peer(Tick).receive(data) == apart
    assert any(isinstance(message, Error) for message in apart)


LINES = st.one_of(
    st.sampled_from([data.rstrip(b"\n") for _, data, _ in CONVERSATIONS]),
    st.binary(max_size=12),
    st.text(max_size=12).map(lambda text: line(method="tell", params=text)[:-1]),
    st.lists(st.integers(), max_size=2).map(lambda ns: line(method="tick", params=ns)[:-1]),
)


@no_deadline
@given(data=st.lists(LINES).map(b"\n".join), size=st.integers(1, 50))
def test_any_bytes_in_any_chunks_become_the_same_messages(data: bytes, size: int) -> None:
    complete, cut = waiting("a", "b"), waiting("a", "b")
    found: list[Message | Tick] = []
    for start in range(0, len(data), size):
        found += cut.receive(data[start : start + size])
    assert [*found, *cut.end()] == [*complete.receive(data), *complete.end()]
    assert cut.pending == complete.pending
