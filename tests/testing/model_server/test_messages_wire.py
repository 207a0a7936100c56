"""The anthropic SDK reads from the server what the script contains."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from support.anthropic_client import HELLO, MODEL, ask, ask_both_ways, client, stream
from support.raw_answers import events, post

from corral.testing import Call, Expect, ModelServer, ToolResult, Turn, call, say

if TYPE_CHECKING:
    from anthropic.types import MessageParam, ToolParam

pytestmark = pytest.mark.usefixtures("anthropic_sdk")
PATH = "/v1/messages?beta=true"
READ: ToolParam = {"name": "read", "input_schema": {"type": "object"}}


def test_text() -> None:
    answer = ask_both_ways(say("Hel", "lo\u2028\u0085", "."))
    assert [block.to_dict() for block in answer.content] == [
        {"type": "text", "text": "Hello\u2028\u0085."}
    ]
    assert answer.role == "assistant"
    assert answer.model == MODEL
    assert answer.stop_reason == "end_turn"


def test_thoughts_come_first_and_are_signed() -> None:
    answer = ask_both_ways(Turn(thoughts=("hm, ", "yes"), text="So.", signature="sig"))
    assert [block.to_dict() for block in answer.content] == [
        {"type": "thinking", "thinking": "hm, yes", "signature": "c2ln"},
        {"type": "text", "text": "So."},
    ]


def test_omitted_and_redacted_thoughts_have_a_signature() -> None:
    omitted = ask_both_ways(Turn(thoughts="", text="So.")).content[0]
    assert omitted.type == "thinking"
    assert omitted.thinking == ""
    assert omitted.signature
    redacted = ask_both_ways(Turn(signature="sig", text="So.")).content[0]
    assert redacted.to_dict() == {"type": "redacted_thinking", "data": "c2ln"}


def test_parallel_calls_keep_their_ids_or_get_one() -> None:
    made = [Call("read", {"path": "a"}, "mine"), Call("write", {"text": "é\n", "n": [1, {}]})]
    answer = ask_both_ways(Turn(text="so", calls=made))
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert [(c.id, c.name, c.input) for c in calls] == [
        ("mine", "read", {"path": "a"}),
        ("toolu_1", "write", {"text": "é\n", "n": [1, {}]}),
    ]
    assert answer.stop_reason == "tool_use"


def test_a_conversation_is_decoded_independent_of_the_vendor() -> None:
    called = Turn(thoughts="hm", text="I read.", calls=[Call("read", {"n": 1}), Call("read")])
    expect = Expect(tools="read", results="read", text=["Be good.", "I read."], model=MODEL)
    with ModelServer([called, Turn(text="Done.", expect=expect)]) as server:
        first = ask(server, tools=[READ])
        ids = [block.id for block in first.content if block.type == "tool_use"]
        messages: list[MessageParam] = [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>Files.</system-reminder>"},
                    {"type": "text", "text": "hello"},
                ],
            },
            {"role": "assistant", "content": first.content},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": ids[0], "content": "words"},
                    {
                        "type": "tool_result",
                        "tool_use_id": ids[1],
                        "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "!"}],
                        "is_error": True,
                    },
                ],
            },
        ]
        system: Any = [{"type": "text", "text": "Be good."}]
        assert stream(server, messages, tools=[READ], system=system).stop_reason == "end_turn"
        assert server.failures == []
        request = server.requests[1]
    assert request.method == "messages"
    assert request.tools == ("read",)
    assert request.system == "Be good."
    assert request.last_text == "hello"
    assert [message.role for message in request.history] == ["user", "model", "user"]
    asked, output, returned = request.history
    assert asked.context == ("<system-reminder>Files.</system-reminder>",)
    assert (output.thoughts, output.signatures) == (("hm",), ("scripted-signature",))
    assert output.calls == (Call("read", {"n": 1}, "toolu_0"), Call("read", {}, "toolu_1"))
    assert returned.results == (
        ToolResult("read", "words", "toolu_0"),
        ToolResult("read", "no\n!", "toolu_1", failed=True),
    )
    assert request.tool_results == [("read", "words"), ("read", "no\n!")]


def test_redacted_thoughts_and_invalid_values_are_accepted() -> None:
    body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "c2ln"}, 7]},
            {"role": "user", "content": [{"type": "odd"}, {"type": "tool_result"}]},
            "nonsense",
        ],
        "tools": "none",
    }
    with ModelServer([say("ok")]) as server:
        post(server, PATH, body)
        (request,) = server.requests
    assert request.system == "Be brief."
    assert request.history[0].signatures == ("sig",)
    assert request.history[1].results == (ToolResult("", None),)


def test_generated_ids_differ_from_earlier_ones() -> None:
    repeated: list[MessageParam] = [
        *HELLO,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "toolu_0", "name": "read", "input": {}}],
        },
    ]
    with ModelServer([call("read")]) as server:
        (block,) = ask(server, repeated).content
    assert block.type == "tool_use"
    assert block.id == "toolu_1"


def test_the_cache_is_counted_separately_and_thoughts_as_output() -> None:
    usage = {"input": 100, "cached": 60, "written": 30, "output": 5, "thoughts": 3}
    reported = ask_both_ways(Turn(text="a", usage=usage)).usage
    assert (reported.input_tokens, reported.cache_read_input_tokens) == (10, 60)
    assert reported.cache_creation_input_tokens == 30
    assert reported.output_tokens == 8
    assert reported.output_tokens_details is not None
    assert reported.output_tokens_details.thinking_tokens == 3


def test_usage_is_estimated_unless_the_script_switches_it_off() -> None:
    assert ask_both_ways(say("four" * 4)).usage.output_tokens == 4
    with ModelServer([Turn(text="a", usage=False)] * 2) as server:
        assert "usage" not in json.loads(post(server, PATH, {"model": "m"}))
        assert "usage" not in post(server, PATH, {"model": "m", "stream": True})


@pytest.mark.parametrize(
    ("finish", "reported"),
    [
        ("STOP", "end_turn"),
        ("MAX_TOKENS", "max_tokens"),
        ("SAFETY", "refusal"),
        ("PAUSE_TURN", "pause_turn"),
    ],
)
def test_finish_reasons_are_converted_for_the_wire(finish: str, reported: str) -> None:
    assert ask_both_ways(say("a", finish=finish)).stop_reason == reported


def test_a_stop_sequence_is_one_of_the_request() -> None:
    answer = ask_both_ways(say("a", finish="STOP_SEQUENCE"), stop_sequences=["END", "FIN"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "END")


def test_a_blocked_prompt_is_a_refusal_without_text() -> None:
    answer = ask_both_ways(Turn(text="never", block_reason="CYBER", message="not this"))
    assert answer.content == []
    assert answer.stop_reason == "refusal"
    assert answer.stop_details is not None
    assert (answer.stop_details.category, answer.stop_details.explanation) == ("cyber", "not this")
    unnamed = ask_both_ways(Turn(block_reason="PROHIBITED_CONTENT")).stop_details
    assert unnamed is not None
    assert unnamed.category is None


def test_the_events_of_a_stream_are_the_vendors_in_their_order() -> None:
    turn = Turn(thoughts="hm", text=("a", "b"), calls=[Call("read", {"n": 1})])
    with ModelServer([turn]) as server:
        reported = events(post(server, PATH, {"model": "m", "stream": True}))
    kinds = [
        data["delta"]["type"] if data["type"] == "content_block_delta" else data["type"]
        for data in reported
    ]
    assert kinds == [
        "message_start",
        "ping",
        "content_block_start",
        "thinking_delta",
        "signature_delta",
        "content_block_stop",
        "content_block_start",
        "text_delta",
        "text_delta",
        "content_block_stop",
        "content_block_start",
        "input_json_delta",
        "input_json_delta",
        "input_json_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [data["index"] for data in reported if data["type"] == "content_block_stop"] == [0, 1, 2]
    assert reported[0]["message"]["usage"]["output_tokens"] == 1


def test_without_a_finish_reason_the_stream_just_ends() -> None:
    with ModelServer([Turn(text="a", finish=None), Turn(finish="")]) as server:
        first = events(post(server, PATH, {"model": "m", "stream": True}))
        second = events(post(server, PATH, {"model": "m", "stream": True}))
    assert first[-1]["type"] == "content_block_stop"
    assert [data["type"] for data in second] == ["message_start", "ping"]


def test_two_requests_have_different_response_ids() -> None:
    with ModelServer([say("a")] * 3) as server:
        one, two = ask(server), ask(server, [{"role": "user", "content": "other"}])
        assert one.id != two.id
        assert ask(server).id == one.id


def test_tokens_are_counted_without_a_turn_unless_the_script_has_one() -> None:
    scripted = Turn(usage={"input": 77}, for_method="messages.count_tokens")
    with ModelServer([scripted, say("a")]) as server, client(server) as sdk:
        counted = [
            sdk.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens for _ in range(2)
        ]
        assert counted == [77, 2]
        assert ask(server).stop_reason == "end_turn"
        assert [request.aside for request in server.requests] == [True, True, False]


def test_models_are_listed_for_calls_with_a_version_header() -> None:
    bearer = {"authorization": "Bearer k"}
    with ModelServer([]) as server, client(server) as sdk:
        assert MODEL in [model.id for model in sdk.models.list()]
        assert sdk.models.retrieve("mine").id == "mine"
        theirs = httpx2.get(f"{server.url}/v1/models", headers=bearer).json()
        ours = {"anthropic-version": "2023-06-01"}
        mine = httpx2.get(f"{server.url}/v1/models", headers=bearer | ours).json()
    assert theirs["object"] == "list"
    assert mine["has_more"] is False


def test_any_path_prefix_and_a_lane_are_accepted() -> None:
    with ModelServer([]) as server:
        lane = server.lane("mine", [say("a"), say("b")])
        assert ask(lane).stop_reason == "end_turn"
        assert "msg_" in post(lane, "/proxy/anthropic/v1/messages?beta=true", {"model": "m"})
        assert [request.lane for request in server.requests] == ["mine", "mine"]


def test_the_environment_directs_the_sdk_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from anthropic import Anthropic

    with ModelServer([say("a")], key="right") as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        with Anthropic(max_retries=0) as sdk:
            sdk.messages.create(model=MODEL, max_tokens=9, messages=HELLO)
        assert len(server.requests) == 1
