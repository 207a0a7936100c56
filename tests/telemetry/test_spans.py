"""Events as spans: names, parents, usage, errors, and ids that any process computes alike."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.event_samples import SESSION, pipeline_events, session_events

from corral._export.otel import spans_of
from corral._telemetry import trace_context
from corral._telemetry.spans import Span, as_otlp_json, provider_name
from corral._telemetry.trace_context import TraceContext
from corral.events import (
    Done,
    Event,
    Init,
    ModelCall,
    Text,
    ToolResult,
    ToolUse,
    UsageReport,
    Vendor,
)
from corral.values import Cost, Usage

PARENT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


def tree(spans: list[Span]) -> dict[str, list[str]]:
    names = {span.context.span_id: span.name for span in spans}
    found: dict[str, list[str]] = {}
    for span in spans:
        found.setdefault(names.get(span.parent_id or "", ""), []).append(span.name)
    return found


def named(spans: list[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


def test_a_session_has_a_span_for_each_turn_model_call_tool_and_sub_agent() -> None:
    spans = list(spans_of(session_events()))
    assert tree(spans) == {
        "": ["invoke_agent codex-cli", "invoke_agent codex-cli"],
        "invoke_agent codex-cli": [
            "chat gpt-5", "execute_tool shell", "execute_tool read",
            "chat gpt-5", "execute_tool task",
            "chat gpt-5", "execute_tool shell",
            "chat gpt-5",
            "chat gpt-5", "execute_tool shell",
        ],
        "execute_tool task": ["invoke_agent task", "invoke_agent task"],
        "invoke_agent task": [
            "chat gpt-5", "execute_tool shell", "chat gpt-5", "chat gpt-5", "execute_tool task",
            "chat gpt-5",
        ],
    }  # fmt: skip
    assert len({span.context.span_id for span in spans}) == len(spans)
    assert all(span.start <= span.end for span in spans)
    turn = [span for span in spans if span.name == "invoke_agent codex-cli"]
    assert turn[0].attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "openai",
        "gen_ai.agent.name": "codex-cli",
        "gen_ai.agent.version": "1.2.3",
        "gen_ai.conversation.id": SESSION,
        "gen_ai.request.model": "gpt-5",
        "gen_ai.response.model": "gpt-5-2026",
        "gen_ai.response.finish_reasons": ["end_turn"],
        "gen_ai.usage.input_tokens": 300,
        "gen_ai.usage.output_tokens": 80,
        "gen_ai.usage.cache_read.input_tokens": 50,
        "gen_ai.usage.reasoning.output_tokens": 10,
        "corral.run.id": f"{SESSION}.1",
        "corral.status": "success",
        "corral.files.changed": 1,
        "corral.calls.denied": 0,
        "corral.cost.usd": 0.04,
        "corral.cost.source": "reported",
    }
    assert (turn[0].error, turn[1].error) == (None, "the run was cancelled")
    assert turn[1].attributes["error.type"] == "interrupted"
    assert [note.name for note in turn[1].notes] == ["corral.error"]
    denied = [span for span in spans if span.attributes.get("error.type") == "denied"]
    assert [span.attributes["corral.permission"] for span in denied] == ["deny by policy"]
    chat = next(span for span in spans if span.name == "chat gpt-5")
    assert chat.attributes["gen_ai.usage.input_tokens"] == 100


def counted(ts: float, model: str, tokens: int, **fields: Any) -> ModelCall:
    usage = Usage(input=tokens, output=1, cache_write=2)
    cost = Cost(tokens / 1000, "metered")
    return ModelCall(model, usage, cost, ts=ts, duration_ms=500, **fields)


def test_each_counted_call_is_a_chat_with_what_the_model_got_and_wrote() -> None:
    model = "gemini:gemini-2.5-flash"
    events: list[Event] = [
        Init(ts=1.0, run_id="s.1", agent="corral", model=model, metered=True),
        Vendor("prompt", "Read it", ts=1.0),
        counted(2.0, "gemini-2.5-flash-lite", 7, side=True),  # beside the conversation
        ModelCall(model, ts=2.0, status=429, error="too many requests"),
        Text("Reading", ts=3.0),
        counted(3.5, model, 100, first_byte_ms=250),  # after its text
        UsageReport(Usage(input=100), ts=3.5),
        ToolUse("c1", "read_file", input={"path": "a"}, ts=4.0),
        ToolResult("c1", "success", output="hello", ts=5.0),
        counted(6.0, model, 200),  # before its text
        Text("Done.", ts=6.5),
        Done("success", text="Done.", model=model, ts=7.0),
    ]
    spans = list(spans_of(events, content=True))
    chats = [span for span in spans if span.attributes["gen_ai.operation.name"] == "chat"]
    assert [span.name for span in chats] == [
        "chat gemini-2.5-flash", "chat gemini-2.5-flash-lite",
        "chat gemini-2.5-flash", "chat gemini-2.5-flash",
    ]  # fmt: skip
    assert [span.attributes.get("gen_ai.usage.input_tokens") for span in chats] == [
        None, 7, 100, 200,
    ]  # fmt: skip
    refused, _, first, last = chats
    assert (refused.error, refused.attributes["error.type"]) == ("too many requests", "429")
    assert (first.start, first.end) == (3.0, 3.5)
    messages = '[{"role":"user","parts":[{"type":"text","content":"Read it"}]}]'
    call = {"type": "tool_call", "id": "c1", "name": "read_file", "arguments": {"path": "a"}}
    wrote: dict[str, object] = {
        "role": "assistant",
        "parts": [{"type": "text", "content": "Reading"}, call],
        "finish_reason": "tool_call",
    }
    assert first.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": "gemini-2.5-flash",
        "gen_ai.response.model": "gemini-2.5-flash",
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 1,
        "gen_ai.usage.cache_write.input_tokens": 2,
        "corral.cost.usd": 0.1,
        "corral.cost.source": "metered",
        "gen_ai.input.messages": messages,
        "gen_ai.output.messages": json.dumps([wrote], separators=(",", ":")),
    }
    result = {"type": "tool_call_response", "id": "c1", "response": "hello"}
    assert json.loads(str(last.attributes["gen_ai.input.messages"]))[1:] == [
        wrote, {"role": "tool", "parts": [result]},
    ]  # fmt: skip
    turn = named(spans, "invoke_agent corral")
    assert turn.attributes["gen_ai.response.model"] == "gemini-2.5-flash"
    answer = json.loads(str(turn.attributes["gen_ai.output.messages"]))
    assert answer[0]["finish_reason"] == "stop"


def test_each_chat_has_its_part_of_the_cost_that_the_agent_reports() -> None:
    events: list[Event] = [
        Init(ts=1.0, run_id="s.1", agent="opencode-cli", metered=True),
        ModelCall("some-model", Usage(input=10), ts=1.5),  # without a known price
        Text("Reading", ts=2.0),
        ToolUse("c1", "read", ts=2.1),
        ToolResult("c1", "success", ts=2.2),
        UsageReport(Usage(input=10), cost=Cost(0.25, "reported"), ts=2.3),
        ModelCall("some-model", Usage(input=20), ts=2.5),
        Text("Done.", ts=3.0),
        Done("success", cost=Cost(1.0, "reported"), ts=4.0),
    ]
    chats = [span for span in spans_of(events) if span.name == "chat some-model"]
    assert [span.attributes["corral.cost.usd"] for span in chats] == [0.25, 0.75]
    assert [span.attributes["gen_ai.usage.input_tokens"] for span in chats] == [10, 20]


def test_a_sub_agent_that_works_after_its_call_has_a_span() -> None:
    model = "gemini:gemini-2.5-flash"
    events: list[Event] = [
        Init(ts=1.0, run_id="s.1", agent="corral", model=model),
        Text("Go", ts=1.5),
        ToolUse("c1", "spawn_agent", input={"task": "Look"}, ts=2.0),
        ToolResult("c1", "success", output="agent-1 works on the task", ts=2.1),
        counted(2.9, model, 50, parent="c1"),
        Text("Found it", parent="c1", ts=3.0),
        counted(3.5, model, 100),
        Text("Done.", ts=4.0),
        Done("success", ts=5.0),
    ]
    spans = list(spans_of(events, content=True))
    assert tree(spans)["execute_tool spawn_agent"] == ["invoke_agent spawn_agent"]
    sub_agent = named(spans, "invoke_agent spawn_agent")
    assert (sub_agent.start, sub_agent.end) == (2.0, 3.0)
    (chat,) = [span for span in spans if span.parent_id == sub_agent.context.span_id]
    assert chat.attributes["gen_ai.usage.input_tokens"] == 50
    assert "Look" in str(chat.attributes["gen_ai.input.messages"])
    assert "Found it" in str(chat.attributes["gen_ai.output.messages"])


def test_a_pipeline_run_is_a_workflow_with_its_nodes_and_agents() -> None:
    spans = list(spans_of(pipeline_events(), PARENT))
    found = tree(spans)
    assert found[""] == ["invoke_workflow ship"]
    assert found["invoke_workflow ship"] == ["node test", "node build", "node ask"]
    assert found["node build"] == ["invoke_agent codex-cli"]
    assert named(spans, "invoke_workflow ship").parent_id == PARENT.span_id
    assert {span.context.trace_id for span in spans} == {PARENT.trace_id}
    test, ask = named(spans, "node test"), named(spans, "node ask")
    assert (test.attributes["corral.attempts"], test.error) == (2, None)
    assert [note.name for note in test.notes] == ["corral.retry"]
    assert (ask.error, ask.attributes["error.type"]) == ("nobody", "node_failed")


def test_a_pipeline_run_has_the_last_answer_as_its_output() -> None:
    spans = list(spans_of(pipeline_events(), content=True))
    agents = named(spans, "invoke_agent codex-cli").attributes["output.value"]
    assert named(spans, "invoke_workflow ship").attributes["output.value"] == agents
    plain = named(list(spans_of(pipeline_events())), "invoke_workflow ship")
    assert "output.value" not in plain.attributes


def test_texts_are_left_out_unless_they_are_asked_for() -> None:
    def sent(*, content: bool) -> str:
        return as_otlp_json(list(spans_of(session_events(), content=content))).decode()

    texts = ("Fix the **parser**", "Let me look.", "rm -rf", "inner answer")
    assert not [text for text in texts if text in sent(content=False)]
    assert [text for text in texts if text in sent(content=True)] == [*texts]


def test_the_ids_are_those_that_other_processes_compute() -> None:
    spans = list(spans_of(pipeline_events()))
    visit = trace_context.of_visit("ship-1a2b", "build.1", None)
    assert named(spans, "node build").context == visit
    turn = trace_context.of_turn("node-1.1", visit)
    assert named(spans, "invoke_agent codex-cli").context == turn
    assert spans == list(spans_of(pipeline_events()))
    inner = trace_context.parent_of_pipeline("ship-1a2b/build.1", PARENT)
    assert inner == trace_context.of_visit("ship-1a2b", "build.1", PARENT)


def test_a_run_that_has_not_ended_has_spans_that_say_so() -> None:
    spans = list(spans_of(session_events()[:9]))
    errors = {span.name: span.attributes.get("error.type") for span in spans}
    assert errors == {
        "chat gpt-5": None,
        "execute_tool shell": "unfinished",
        "execute_tool read": "unfinished",
        "invoke_agent codex-cli": "unfinished",
    }
    assert list(spans_of([])) == []


@pytest.mark.parametrize(
    ("agent", "model", "provider"),
    [
        ("gemini-cli", None, "gcp.gemini"),
        ("claude-cli", "opus", "anthropic"),
        ("corral", "gemini:gemini-2.5-flash", "gcp.gemini"),
        ("opencode-cli", None, "opencode-cli"),
        ("", None, "unknown"),
    ],
)
def test_the_provider_has_the_name_of_the_conventions(
    agent: str, model: str | None, provider: str
) -> None:
    assert provider_name(agent, model) == provider


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "00-0-0-00",
        f"ff-{'a' * 32}-{'b' * 16}-01",
        f"00-{'0' * 32}-{'b' * 16}-01",
        "x" * 55,
    ],
)
def test_an_invalid_traceparent_is_ignored(text: str | None) -> None:
    assert trace_context.parse(text) is None


def test_a_traceparent_is_read_as_it_is_written() -> None:
    assert trace_context.parse(PARENT.header) == PARENT
    assert trace_context.parse(f"01-{PARENT.trace_id}-{PARENT.span_id}-00-more") == PARENT


def test_spans_are_written_as_otlp_json() -> None:
    events: list[Event] = [
        Init(ts=1.5, run_id="s.1", agent="codex-cli"),
        Vendor("prompt", "Hi", ts=1.5),
        Done(ts=2.0, status="success"),
    ]
    (resource,) = json.loads(as_otlp_json(list(spans_of(events, PARENT))))["resourceSpans"]
    assert {"key": "service.name", "value": {"stringValue": "corral"}} in (
        resource["resource"]["attributes"]
    )
    (span,) = resource["scopeSpans"][0]["spans"]
    assert (span["traceId"], span["parentSpanId"]) == (PARENT.trace_id, PARENT.span_id)
    assert (span["startTimeUnixNano"], span["endTimeUnixNano"]) == ("1500000000", "2000000000")
    assert {"key": "corral.files.changed", "value": {"intValue": "0"}} in span["attributes"]


def test_an_integer_that_otlp_cannot_hold_is_written_as_a_number() -> None:
    used = UsageReport(Usage(input=2**63, output=2**63 - 1))
    events: list[Event] = [Init(run_id="s.1", agent="codex-cli"), Text("Hi."), used]
    written = as_otlp_json(list(spans_of([*events, Done(status="success")], PARENT)))
    assert b'"intValue":"9223372036854775807"' in written
    assert b'"doubleValue":9223372036854775808' in written
