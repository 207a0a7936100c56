"""The chat-completions wire, read with a plain HTTP client."""

from __future__ import annotations

import json
from http.client import IncompleteRead, RemoteDisconnected
from typing import Any

import pytest
from support.raw_answers import send as answer

from corral.testing import Call, Expect, Lane, ModelServer, Turn, call, fail, say

HELLO = [{"role": "user", "content": "hello"}]


def send(
    at: ModelServer | Lane, body: object, path: str = "/v1/chat/completions", **more: Any
) -> tuple[int, dict[str, str], str]:
    return answer(at, path, body, **more)


def ask(at: ModelServer | Lane, messages: Any = HELLO, **more: Any) -> tuple[int, Any]:
    status, _, text = send(at, {"model": "m", "messages": messages, **more})
    return status, json.loads(text)


def stream(at: ModelServer | Lane, messages: Any = HELLO, **more: Any) -> list[Any]:
    """The chunks; the last must be the mark of the end."""
    body = {"model": "m", "messages": messages, "stream": True, **more}
    status, headers, text = send(at, body)
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    lines = text.split("\n\n")
    assert lines.pop() == ""
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def deltas(chunks: list[Any]) -> list[Any]:
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]


def test_an_answer_is_sent_in_one_piece_without_a_stream() -> None:
    turn = Turn(
        thoughts=("hm, ", "yes"),
        text=("Hel", "lo"),
        usage={"input": 100, "cached": 20, "output": 5, "thoughts": 3},
    )
    with ModelServer([turn]) as server:
        status, reported = ask(server)
    assert status == 200
    assert reported["object"] == "chat.completion"
    assert reported["model"] == "m"
    (choice,) = reported["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {
        "role": "assistant",
        "content": "Hello",
        "refusal": None,
        "reasoning_content": "hm, yes",
    }
    assert reported["usage"] == {
        "prompt_tokens": 100,
        "completion_tokens": 8,
        "total_tokens": 108,
        "prompt_tokens_details": {"cached_tokens": 20},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }


def test_a_stream_has_a_chunk_for_each_piece_then_its_reason_then_its_end() -> None:
    with ModelServer([Turn(thoughts="hm", text=("Hel", "lo"))]) as server:
        chunks = stream(server)
    assert deltas(chunks) == [
        {"role": "assistant", "reasoning_content": "hm"},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None, None, None, "stop"]
    assert not any("usage" in chunk for chunk in chunks)


def test_usage_is_the_last_chunk_and_only_if_requested() -> None:
    wanted = {"include_usage": True}
    with ModelServer([say("a", usage={"input": 7, "output": 2}), Turn(usage=False)]) as server:
        chunks = stream(server, stream_options=wanted)
        without = stream(server, stream_options=wanted)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 9
    assert not any("usage" in chunk for chunk in without)


def test_calls_are_deltas_with_an_index() -> None:
    made = [Call("read", {"path": "a"}, "mine"), Call("write", {"path": "b", "text": "é\n"})]
    with ModelServer([Turn(text="so", calls=made)]) as server:
        chunks = stream(server)
    calls: dict[int, dict[str, str]] = {}
    for delta in deltas(chunks):
        for part in delta.get("tool_calls", ()):
            complete = calls.setdefault(part["index"], {"arguments": ""})
            complete["arguments"] += part["function"]["arguments"]
            complete |= {"id": part["id"], "name": part["function"]["name"]} if "id" in part else {}
    assert [(c["id"], c["name"], json.loads(c["arguments"])) for c in calls.values()] == [
        ("mine", "read", {"path": "a"}),
        ("call_1", "write", {"path": "b", "text": "é\n"}),
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_an_unstreamed_answer_contains_its_calls() -> None:
    with ModelServer([call("read", path="a")]) as server:
        _, reported = ask(server)
    (made,) = reported["choices"][0]["message"]["tool_calls"]
    assert made == {
        "id": "call_0",
        "type": "function",
        "function": {"name": "read", "arguments": '{"path":"a"}'},
    }
    assert reported["choices"][0]["message"]["content"] is None


def test_a_request_is_decoded_independent_of_the_vendor() -> None:
    messages = [
        {"role": "system", "content": "Be good."},
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image_url"}]},
        {
            "role": "assistant",
            "content": "so",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "function": {"name": "read", "arguments": '{"path": "a"}'}},
                {"id": "c2", "function": {"name": "odd", "arguments": "{no json"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "words"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "more"}]},
        "nonsense",
    ]
    tools = [{"type": "function", "function": {"name": "read"}}, {"type": "odd"}]
    expect = Expect(tools="read", results=["read", "odd"], text="Be brief.", model="m")
    with ModelServer([Turn(text="ok", expect=expect)]) as server:
        assert ask(server, messages, tools=tools)[0] == 200
        (request,) = server.requests
        assert server.failures == []
    assert request.method == "chat.completions"
    assert request.system == "Be good.\nBe brief."
    assert request.last_text == "look"
    assert [m.role for m in request.history] == ["user", "model", "user", "user"]
    assert request.history[1].thoughts == ("hm",)
    assert request.tool_calls == [Call("read", {"path": "a"}, "c1"), Call("odd", {}, "c2")]
    assert request.tool_results == [("read", "words"), ("odd", "more")]
    assert request.tools == ("read",)


def test_a_late_error_replaces_the_end_of_the_stream() -> None:
    late = Turn(text="one", status=500, late=True, message="no")
    error = {"message": "no", "type": "server_error", "param": None, "code": None}
    with ModelServer([late, late]) as server:
        body = {"model": "m", "messages": HELLO, "stream": True}
        status, _, text = send(server, body)
        assert status == 200
        output, reported, rest = text.split("\n\n")
        assert '"one"' in output
        assert json.loads(reported.removeprefix("data: ")) == {"error": error}
        assert rest == ""
        assert ask(server) == (500, {"error": error})


def test_every_answer_has_an_id_and_the_remaining_quota() -> None:
    with ModelServer([say("a"), say("b"), fail(429, retry_after=90)]) as server:
        reported = [send(server, {"model": "m", "messages": HELLO, "n": n})[1] for n in range(3)]
    assert len({headers["x-request-id"] for headers in reported}) == 3
    left = [headers["x-ratelimit-remaining-requests"] for headers in reported]
    assert left == ["4999", "4999", "0"]
    assert reported[2]["x-ratelimit-reset-requests"] == "90s"


@pytest.mark.parametrize(
    ("finish", "reported"),
    [("MAX_TOKENS", "length"), ("SAFETY", "content_filter"), ("Odd", "odd"), ("", None)],
)
def test_finish_reasons_are_converted_for_the_wire(finish: str, reported: str | None) -> None:
    with ModelServer([say("a", finish=finish), say("a", finish=finish)]) as server:
        assert ask(server)[1]["choices"][0]["finish_reason"] == reported
        assert stream(server)[-1]["choices"][0]["finish_reason"] == reported


def test_a_blocked_prompt_is_a_filtered_answer() -> None:
    turn = Turn(text="never", block_reason="SAFETY", message="not this")
    with ModelServer([turn, turn]) as server:
        choice = ask(server)[1]["choices"][0]
        assert choice["message"]["refusal"] == "not this"
        assert choice["message"]["content"] is None
        assert choice["finish_reason"] == "content_filter"
        assert deltas(stream(server)) == [{"role": "assistant", "refusal": "not this"}, {}]


def test_models_are_listed_for_calls_with_a_bearer_token() -> None:
    google = {"x-goog-api-key": "k"}
    with ModelServer([]) as server:
        for path in ("/v1/models", "/models"):
            status, _, text = send(server, "", verb="GET", path=path)
            assert status == 200
            assert {model["object"] for model in json.loads(text)["data"]} == {"model"}
        one = send(server, "", verb="GET", path="/v1/models/mine")[2]
        assert json.loads(one)["id"] == "mine"
        theirs = send(server, "", verb="GET", path="/v1/models", headers=google)[2]
        assert "models" in json.loads(theirs)


def test_an_answer_can_be_cut_or_malformed() -> None:
    streamed = {"model": "m", "messages": HELLO, "stream": True}
    script = [
        Turn(text=("one", "two"), cut=1),
        Turn(cut=0),
        Turn(text="one", malformed="json"),
        Turn(malformed="html"),
        Turn(malformed=b"\xc3\xa9"),
        say("on"),
    ]
    with ModelServer(script) as server:
        with pytest.raises(IncompleteRead) as raised:
            send(server, streamed)
        assert b'"one"' in raised.value.partial
        assert b'"two"' not in raised.value.partial
        with pytest.raises(RemoteDisconnected):
            send(server, streamed)
        half = send(server, streamed)[2]
        assert '"one"' in half
        assert "[DONE]" not in half
        assert send(server, streamed)[1]["content-type"] == "text/html"
        assert send(server, streamed)[2] == "é"
        assert ask(server)[1]["choices"][0]["message"]["content"] == "on"
