"""The openai SDK reads from the Responses wire what the script contains."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.openai_client import MODEL, SEALED, ask, ask_both_ways, client, events, stream
from support.raw_answers import events as raw_events
from support.raw_answers import post

from corral.testing import Call, Expect, ModelServer, ToolResult, Turn, call, say

PATH = "/v1/responses"
READ: Any = {"type": "function", "name": "read", "parameters": {"type": "object"}, "strict": False}


def test_text() -> None:
    answer = ask_both_ways(say("Hel", "lo\u2028\u0085", "."))
    assert answer.output_text == "Hello\u2028\u0085."
    assert answer.model == MODEL
    assert answer.status == "completed"
    (message,) = answer.output
    assert message.type == "message"
    assert message.status == "completed"


def test_thoughts_are_a_summary_and_encrypted_if_requested() -> None:
    turn = Turn(thoughts=("hm, ", "yes"), text="So.", signature="sig")
    thought, message = ask_both_ways(turn, include=SEALED).output
    assert thought.type == "reasoning"
    assert [part.text for part in thought.summary] == ["hm, yes"]
    assert thought.encrypted_content == "c2ln"
    assert message.type == "message"
    unsealed = ask_both_ways(turn).output[0]
    assert unsealed.type == "reasoning"
    assert unsealed.encrypted_content is None


def test_a_signature_alone_is_reasoning_without_a_summary() -> None:
    thought = ask_both_ways(Turn(signature="sig", text="So."), include=SEALED).output[0]
    assert thought.type == "reasoning"
    assert (thought.summary, thought.encrypted_content) == ([], "c2ln")


def test_parallel_calls_keep_their_ids_or_get_one() -> None:
    made = [Call("read", {"path": "a"}, "mine"), Call("write", {"text": "é\n", "n": [1, {}]})]
    answer = ask_both_ways(Turn(text="so", calls=made))
    calls = [item for item in answer.output if item.type == "function_call"]
    assert [(c.call_id, c.name, json.loads(c.arguments)) for c in calls] == [
        ("mine", "read", {"path": "a"}),
        ("call_1", "write", {"text": "é\n", "n": [1, {}]}),
    ]
    assert len({c.id for c in calls}) == 2
    assert answer.status == "completed"


def test_a_call_has_the_form_in_which_its_tool_was_declared() -> None:
    patch: Any = {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}
    notes: Any = {"type": "namespace", "name": "mcp__notes", "description": "", "tools": [READ]}
    made = [
        Call("apply_patch", {"input": "*** Begin\n+é"}, "p"),
        Call("mcp__notes__read", {"path": "a"}, "n"),
        Call("read", {"path": "b"}, "r"),
    ]
    answer = ask_both_ways(Turn(calls=made), tools=[patch, notes, READ])
    reported: list[Any] = [item.to_dict() for item in answer.output]
    assert [item["type"] for item in reported] == [
        "custom_tool_call",
        "function_call",
        "function_call",
    ]
    assert (reported[0]["name"], reported[0]["input"]) == ("apply_patch", "*** Begin\n+é")
    assert (reported[1]["namespace"], reported[1]["name"]) == ("mcp__notes", "read")
    assert "namespace" not in reported[2]
    search: Any = {"type": "tool_search", "execution": "client"}
    with ModelServer([Turn(calls=made[1:2])] * 3) as server:
        assert [ask(server, tools=t).output[0].to_dict()["name"] for t in ([search], [READ])] == [
            "read",
            "mcp__notes__read",
        ]
        ask(server, tools=[patch, notes, search])
        assert server.requests[-1].tools == ("apply_patch", "mcp__notes__read", "tool_search")
    with ModelServer([Turn(calls=made[:1])]) as server:  # as Codex declares them for some models
        among: Any = [
            {"type": "additional_tools", "tools": [{"name": "functions", "tools": [patch]}]}
        ]
        assert [e.type for e in events(server, among) if e.type.endswith("input.delta")]


def test_a_conversation_is_decoded_independent_of_the_vendor() -> None:
    called = Turn(thoughts="hm", text="I read.", calls=[Call("read", {"n": 1}), Call("read")])
    expect = Expect(tools="read", results="read", text=["Be good.", "I read."], model=MODEL)
    with ModelServer([called, Turn(text="Done.", expect=expect)]) as server:
        first = ask(server, tools=[READ], include=SEALED)
        ids = [item.call_id for item in first.output if item.type == "function_call"]
        sent = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            *first.output,
            {"type": "function_call_output", "call_id": ids[0], "output": "words"},
            {
                "type": "function_call_output",
                "call_id": ids[1],
                "output": [
                    {"type": "input_text", "text": "a"},
                    {"type": "input_text", "text": "b"},
                ],
            },
        ]
        done = stream(server, sent, tools=[READ], instructions="Be good.")
        assert done.output_text == "Done."
        assert server.failures == []
        request = server.requests[1]
    assert request.method == "responses"
    assert request.tools == ("read",)
    assert request.system == "Be good.\nBe brief."
    assert request.last_text == "hello"
    assert [message.role for message in request.history] == ["user", "model", "user", "user"]
    printed = request.history[1]
    assert (printed.thoughts, printed.texts) == (("hm",), ("I read.",))
    assert printed.signatures == ("scripted-signature",)
    assert printed.calls == (Call("read", {"n": 1}, "call_0"), Call("read", {}, "call_1"))
    assert request.history[2].results == (ToolResult("read", "words", "call_0"),)
    assert request.tool_results == [("read", "words"), ("read", "a\nb")]


def test_plain_tools_and_invalid_values_are_accepted() -> None:
    sent = [
        {"role": "assistant", "content": "so"},
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        {"type": "function_call", "name": "odd", "arguments": "{no json"},
        {"type": "odd"},
        "nonsense",
    ]
    tools = [{"type": "custom", "name": "patch"}, {"type": "web_search"}]
    with ModelServer([say("ok")]) as server:
        post(server, PATH, {"model": "m", "input": sent, "tools": tools})
        (request,) = server.requests
    assert request.tools == ("patch",)
    assert request.tool_calls == [Call("patch", {"input": "*** Begin"}, "c"), Call("odd")]
    assert request.tool_results == [("patch", "done")]
    assert [message.role for message in request.history] == ["model", "user", "model"]


def test_generated_ids_differ_from_earlier_ones() -> None:
    before = {"type": "function_call", "call_id": "call_0", "name": "read", "arguments": "{}"}
    with ModelServer([call("read")]) as server:
        (made,) = ask(server, [before]).output
    assert made.type == "function_call"
    assert made.call_id == "call_1"


def test_usage_counts_the_cache_as_input_and_reasoning_as_output() -> None:
    usage = {"input": 100, "cached": 60, "written": 30, "output": 5, "thoughts": 3}
    reported = ask_both_ways(Turn(text="a", usage=usage)).usage
    assert reported is not None
    assert (reported.input_tokens, reported.output_tokens, reported.total_tokens) == (100, 8, 108)
    assert reported.input_tokens_details.cached_tokens == 60
    assert reported.input_tokens_details.cache_write_tokens == 30
    assert reported.output_tokens_details.reasoning_tokens == 3


def test_usage_is_estimated_unless_the_script_switches_it_off() -> None:
    counted = ask_both_ways(say("four" * 4)).usage
    assert counted is not None
    assert counted.output_tokens == 4
    assert ask_both_ways(Turn(text="a", usage=False)).usage is None


@pytest.mark.parametrize(
    ("finish", "reason"), [("MAX_TOKENS", "max_output_tokens"), ("SAFETY", "content_filter")]
)
def test_an_answer_that_was_cut_is_incomplete(finish: str, reason: str) -> None:
    answer = ask_both_ways(say("a", finish=finish))
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == reason
    assert answer.output_text == "a"
    (message,) = answer.output
    assert message.type == "message"
    assert message.status == "incomplete"


def test_a_response_can_fail_and_still_be_an_answer() -> None:
    turn = Turn(text="a", finish="FAILED", message="Try again.", error_status="rate_limit_exceeded")
    answer = ask_both_ways(turn)
    assert answer.status == "failed"
    assert answer.error is not None
    assert (answer.error.code, answer.error.message) == ("rate_limit_exceeded", "Try again.")


def test_a_refusal_has_text_or_is_a_filtered_answer() -> None:
    answer = ask_both_ways(Turn(text="never", block_reason="SAFETY", message="not this"))
    assert answer.status == "completed"
    (message,) = answer.output
    assert message.type == "message"
    assert [part.to_dict() for part in message.content] == [
        {"type": "refusal", "refusal": "not this"}
    ]
    filtered = ask_both_ways(Turn(text="never", block_reason="SAFETY"))
    assert filtered.output == []
    assert filtered.incomplete_details is not None
    assert filtered.incomplete_details.reason == "content_filter"


def test_the_events_of_a_stream_are_the_vendors_in_their_order() -> None:
    turn = Turn(thoughts="hm", text=("a", "b"), calls=[Call("read", {"n": 1})])
    with ModelServer([turn]) as server:
        reported = raw_events(post(server, PATH, {"model": "m", "stream": True}))
    assert [event["sequence_number"] for event in reported] == list(range(len(reported)))
    assert [event["type"].removeprefix("response.") for event in reported] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    items = [event["output_index"] for event in reported if "output_index" in event]
    assert items == [0] * 6 + [1] * 7 + [2] * 5


def test_a_refusal_is_streamed_as_one() -> None:
    with ModelServer([Turn(block_reason="SAFETY", message="not this")]) as server:
        reported = [event.type for event in events(server)]
    assert "response.refusal.delta" in reported
    assert "response.refusal.done" in reported


def test_the_sdks_own_assembler_agrees() -> None:
    from openai import AsyncOpenAI

    async def talk() -> None:
        turn = Turn(thoughts="hm", text=("a", "b"), calls=[Call("read", {"n": 1})])
        async with ModelServer([turn]) as server:
            url = server.env["OPENAI_BASE_URL"]
            async with (
                AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as sdk,
                sdk.responses.stream(model=MODEL, input="hello") as reported,
            ):
                answer = await reported.get_final_response()
        assert answer.output_text == "ab"
        assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]

    asyncio.run(talk())


def test_without_a_finish_reason_the_stream_just_ends() -> None:
    with ModelServer([Turn(text="a", finish=None), Turn(finish="")]) as server:
        first, second = events(server), events(server)
    assert first[-1].type == "response.output_item.done"
    assert [event.type for event in second] == ["response.created", "response.in_progress"]


def test_a_response_repeats_fields_of_its_request() -> None:
    more: Any = {"instructions": "Be good.", "max_output_tokens": 9, "tools": [READ]}
    answer = ask_both_ways(say("a"), **more)
    assert answer.instructions == "Be good."
    assert answer.max_output_tokens == 9
    assert [tool.type for tool in answer.tools] == ["function"]


def test_two_requests_have_different_response_ids() -> None:
    with ModelServer([say("a")] * 3) as server:
        one, two = ask(server), ask(server, "other")
        assert one.id != two.id
        assert ask(server).id == one.id


def test_any_path_prefix_and_a_lane_are_accepted() -> None:
    with ModelServer([]) as server:
        lane = server.lane("mine", [say("a"), say("b")])
        assert ask(lane).output_text == "a"
        body = {"model": "m", "input": "hello"}
        assert "resp_" in post(lane, "/proxy/openai/responses?api-version=1", body)
        assert [request.lane for request in server.requests] == ["mine", "mine"]
        assert [request.last_text for request in server.requests] == ["hello", "hello"]


def test_one_script_works_on_both_openai_wires() -> None:
    with ModelServer([say("a"), say("b")]) as server, client(server) as sdk:
        assert ask(server).output_text == "a"
        chat = sdk.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hello"}]
        )
        assert chat.choices[0].message.content == "b"
        assert [r.method for r in server.requests] == ["responses", "chat.completions"]


def test_the_environment_directs_the_sdk_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from openai import OpenAI

    with ModelServer([say("a")], key="right") as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        with OpenAI(max_retries=0) as sdk:
            assert sdk.responses.create(model=MODEL, input="hello").output_text == "a"
            assert MODEL in [model.id for model in sdk.models.list()]
