"""The events of a run as spans, with the names of OpenTelemetry's conventions for GenAI.

::

    invoke_workflow NAME          a pipeline run
      node ID                     one visit of a node
        invoke_agent AGENT        one turn of an agent
          chat MODEL              one step: what the model wrote at once
          execute_tool NAME       a tool call
            invoke_agent          a sub-agent that the call started

A session has one ``invoke_agent`` span for each turn, without the two levels above. Without a
parent each turn is its own trace; ``gen_ai.conversation.id`` connects them.

Texts of people, models and tools are left out unless ``content`` is set.

``as_otlp_json`` writes them in OTLP's JSON form.

This module is pure. Spans are returned when they have ended; the ids are known before
(``trace_context``), so a child may be sent before its parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import msgspec

from corral.core.steps import ModelStep, StepCall, StepTracker
from corral.errors import CorralError
from corral.events import Done, Error, Event, Init, Vendor
from corral.telemetry import trace_context
from corral.telemetry.trace_context import TraceContext
from corral.values import Json, JsonObject, Usage
from corral.version import __version__

Value = str | int | float | bool | list[str]
MAX_CONTENT = 64 * 1024
"""Characters of a text in an attribute."""
SCOPE = "corral"
INTERNAL = 1
ERROR = 2


class SpanNote(msgspec.Struct, frozen=True):
    """Something that happened during a span."""

    name: str
    ts: float
    attributes: dict[str, Value]


class Span(msgspec.Struct, kw_only=True):
    """A finished span."""

    context: TraceContext
    parent_id: str | None
    name: str
    start: float
    """Seconds since the epoch."""
    end: float
    attributes: dict[str, Value]
    error: str | None = None
    """What failed; None: nothing."""
    notes: list[SpanNote] = []


class AgentSpans:
    """The spans of an agent's turns."""

    def __init__(self, parent: TraceContext | None = None, *, content: bool = False) -> None:
        self._parent = parent
        self._content = content
        self._limit = MAX_CONTENT if content else 0
        self._tracker = StepTracker(self._limit)
        self._init: Init | None = None
        self._prompt = ""
        self._notes: list[SpanNote] = []
        self._steps = 0
        self._last = 0.0

    def add(self, event: Event) -> list[Span]:
        ended: list[Span] = []
        if isinstance(event, Init):
            ended = self.end()
            self._init = event
            self._prompt, self._steps, self._notes = "", 0, []
        self._last = max(self._last, event.ts)
        ended += self._of_steps(self._tracker.add(event))
        match event:
            case Vendor(name="prompt", data=str(data)):
                self._prompt = data
            case Error():
                facts: dict[str, Value] = {"error.type": event.code, "corral.level": event.level}
                self._notes.append(SpanNote("corral.error", event.ts, facts))
            case Done():
                ended += self._of_turn(event)
            case _:
                pass
        return ended

    def end(self) -> list[Span]:
        return [*self._of_steps(self._tracker.end()), *self._of_turn(None)]

    def _of_turn(self, done: Done | None) -> list[Span]:
        init, self._init = self._init, None
        if init is None:
            return []
        session = init.run_id.rpartition(".")[0] or init.run_id
        facts: dict[str, Value | None] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": provider_name(init.agent, init.model),
            "gen_ai.agent.name": init.agent,
            "gen_ai.agent.version": init.agent_version,
            "gen_ai.conversation.id": session,
            "gen_ai.request.model": init.model,
            "corral.run.id": init.run_id,
            "corral.label": init.label,
            "corral.node.id": init.node,
            "corral.sandbox": init.sandbox,
        }
        attributes = {key: value for key, value in facts.items() if value is not None}
        error: str | None = None
        if done is None:
            error = attributes["error.type"] = "unfinished"
        else:
            attributes |= {
                **_usage_facts(done.usage),
                "corral.status": done.status,
                "corral.files.changed": len(done.files),
                "corral.calls.denied": len(done.denied),
            }
            if done.model:
                attributes["gen_ai.response.model"] = done.model
            if done.stop_reason:
                attributes["gen_ai.response.finish_reasons"] = [done.stop_reason]
            if done.cost.usd is not None:
                attributes["corral.cost.usd"] = done.cost.usd
                attributes["corral.cost.source"] = done.cost.source
            if done.status != "success":
                code = done.error.code if done.error is not None else done.status
                attributes["error.type"] = code
                error = done.error.message if done.error is not None else done.status
        if self._content:
            attributes["gen_ai.input.messages"] = _messages("user", self._prompt)
            if done is not None:
                attributes["gen_ai.output.messages"] = _messages("assistant", done.text)
        span = Span(
            context=self._turn_context(init),
            parent_id=None if self._parent is None else self._parent.span_id,
            name=f"invoke_agent {init.agent}".strip(),
            start=init.ts,
            end=self._last if done is None else max(done.ts, init.ts),
            attributes=attributes,
            error=error,
            notes=self._notes,
        )
        return [span]

    def _turn_context(self, init: Init) -> TraceContext:
        return trace_context.of_turn(init.run_id, self._parent)

    def _of_steps(self, steps: list[ModelStep]) -> list[Span]:
        init = self._init
        if init is None:
            return []
        turn = self._turn_context(init)
        return [span for step in steps for span in self._of_step(step, init, turn)]

    def _of_step(self, step: ModelStep, init: Init, turn: TraceContext) -> list[Span]:
        self._steps += 1
        parent = turn.span_id
        if step.parent is not None:
            parent = trace_context.span_id(init.run_id, "agent", step.parent)
        model = init.model or ""
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider_name(init.agent, init.model),
            **({"gen_ai.request.model": model} if model else {}),
            **_usage_facts(step.usage),
        }
        if self._content:
            attributes["gen_ai.output.messages"] = _messages("assistant", str(step.text))
        chat = Span(
            context=TraceContext(
                turn.trace_id, trace_context.span_id(init.run_id, "chat", str(self._steps))
            ),
            parent_id=parent,
            name=f"chat {model}".strip(),
            start=step.started,
            end=step.ended,
            attributes=attributes,
        )
        calls = [span for call in step.calls for span in self._of_call(call, init, turn, parent)]
        return [chat, *calls]

    def _of_call(self, call: StepCall, init: Init, turn: TraceContext, parent: str) -> list[Span]:
        use, result = call.use, call.result
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": use.name,
            "gen_ai.tool.call.id": use.call_id,
            "gen_ai.tool.type": "extension" if use.kind == "mcp" else "function",
            "corral.tool.kind": use.kind,
        }
        if call.decision is not None:
            attributes["corral.permission"] = f"{call.decision.decision} by {call.decision.by}"
        if self._content:
            arguments = msgspec.json.encode(use.input).decode()
            attributes["gen_ai.tool.call.arguments"] = arguments[:MAX_CONTENT]
            attributes["gen_ai.tool.call.result"] = str(call.output)
        error: str | None = None
        if call.status != "success":
            error = attributes["error.type"] = call.status
        tool = Span(
            context=TraceContext(
                turn.trace_id, trace_context.span_id(init.run_id, "tool", use.call_id)
            ),
            parent_id=parent,
            name=f"execute_tool {use.name}",
            start=use.ts,
            end=max(self._last if result is None else result.ts, use.ts),
            attributes=attributes,
            error=error,
        )
        if not call.has_steps:
            return [tool]
        # The sub-agent that the tool call started.
        agent_attributes: dict[str, Value] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": provider_name(init.agent, init.model),
            "gen_ai.agent.name": use.name,
            "gen_ai.agent.id": use.call_id,
        }
        if error is not None:
            agent_attributes["error.type"] = error
        agent_id = trace_context.span_id(init.run_id, "agent", use.call_id)
        sub_agent = Span(
            context=TraceContext(turn.trace_id, agent_id),
            parent_id=tool.context.span_id,
            name=f"invoke_agent {use.name}",
            start=tool.start,
            end=tool.end,
            attributes=agent_attributes,
            error=error,
        )
        return [tool, sub_agent]


@cache
def provider_name(agent: str, model: str | None) -> str:
    """How OpenTelemetry names the vendor of the model: of ``vendor:model``, else of the agent. For
    an agent with models of several vendors, it is the agent's own name."""
    from corral.agents import registry as agents
    from corral.models import registry as models

    try:
        vendor = agents.find(agent).vendor
        if model is not None and models.is_model_name(model):
            vendor = model.partition(":")[0]
        if not vendor:
            return agent
        provider = models.find_provider(vendor)
        return provider.otel_name or provider.name
    except CorralError:
        return agent or "unknown"


def _usage_facts(usage: Usage) -> dict[str, Value]:
    facts = {
        "gen_ai.usage.input_tokens": usage.input,
        "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _messages(role: str, text: str) -> str:
    """A message in the form of the conventions."""
    part = {"type": "text", "content": text[:MAX_CONTENT]}
    return msgspec.json.encode([{"role": role, "parts": [part]}]).decode()


# OTLP's JSON form.


def as_otlp_json(spans: Sequence[Span]) -> bytes:
    """The spans as one ``ExportTraceServiceRequest`` on one line, without the newline: as the file
    exporter of the OpenTelemetry collector writes them and its file receiver reads them."""
    return msgspec.json.encode(
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": _attributes(resource())},
                    "scopeSpans": [
                        {
                            "scope": {"name": SCOPE, "version": __version__},
                            "spans": [_as_object(span) for span in spans],
                        }
                    ],
                }
            ]
        }
    )


def resource() -> dict[str, Value]:
    """What sent the spans."""
    return {"service.name": SCOPE, "service.version": __version__}


def nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000) * 1000


def _as_object(span: Span) -> JsonObject:
    fields: JsonObject = {
        "traceId": span.context.trace_id,
        "spanId": span.context.span_id,
        "name": span.name,
        "kind": INTERNAL,
        "startTimeUnixNano": str(nanoseconds(span.start)),
        "endTimeUnixNano": str(nanoseconds(span.end)),
        "attributes": [*_attributes(span.attributes)],
    }
    if span.parent_id is not None:
        fields["parentSpanId"] = span.parent_id
    if span.notes:
        fields["events"] = [
            {
                "name": note.name,
                "timeUnixNano": str(nanoseconds(note.ts)),
                "attributes": [*_attributes(note.attributes)],
            }
            for note in span.notes
        ]
    if span.error is not None:
        fields["status"] = {"code": ERROR, "message": span.error}
    return fields


def _attributes(values: dict[str, Value]) -> list[Json]:
    listed: list[Json] = []
    for key, value in values.items():
        typed: JsonObject
        match value:
            case bool():
                typed = {"boolValue": value}
            case int():
                typed = {"intValue": str(value)}
            case float():
                typed = {"doubleValue": value}
            case str():
                typed = {"stringValue": value}
            case _:
                typed = {"arrayValue": {"values": [{"stringValue": item} for item in value]}}
        listed.append({"key": key, "value": typed})
    return listed
