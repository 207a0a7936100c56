"""The events of a run as spans, with the names of OpenTelemetry's conventions for GenAI.

::

    invoke_workflow NAME          a pipeline run, or a batch
      node ID                     one visit of a node, or a task of the batch
        invoke_agent AGENT        one turn of an agent
          chat MODEL              one model call
          execute_tool NAME       a tool call
            invoke_agent          a sub-agent that the call started

A ``chat`` span is a call that corral counted, with the step of the agent that it gave; of an agent
whose calls are not counted it is a step, with the usage that the agent reports.

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

from corral._core.steps import ModelStep, StepCall, StepTracker
from corral._telemetry import trace_context
from corral._telemetry.trace_context import TraceContext
from corral.errors import CorralError
from corral.events import Done, Error, Event, Init, ModelCall, ToolResult, ToolUse, Vendor
from corral.values import Cost, Json, JsonObject, Usage
from corral.version import __version__

Value = str | int | float | bool | list[str]
MAX_CONTENT = 64 * 1024
"""Characters of a text in an attribute."""
SCOPE = "corral"
KIND, CHAIN = "openinference.span.kind", "CHAIN"
"""Of spans that are neither an agent nor a model nor a tool. The conventions have no such kind;
this is the attribute of OpenInference."""
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


class _SubAgent(msgspec.Struct, kw_only=True):
    """A tool call that may have started a sub-agent. It can work on when the call has ended."""

    name: str
    prompt: str
    started: float
    ended: float = 0.0
    """When it did something last; 0: it is no sub-agent."""
    error: str | None = None


class AgentSpans:
    """The spans of an agent's turns."""

    def __init__(self, parent: TraceContext | None = None, *, content: bool = False) -> None:
        self._parent = parent
        self._content = content
        self._limit = MAX_CONTENT if content else 0
        self._tracker = StepTracker(self._limit)
        self._init: Init | None = None
        self._start_turn(None)
        self._last = 0.0

    def _start_turn(self, init: Init | None) -> None:
        self._init = init
        self._prompt = ""
        self._steps = 0
        self._notes: list[SpanNote] = []
        self._is_counted = False
        """Whether corral counts the model calls: then the agent's own reports repeat them."""
        self._sub_agents: dict[str, _SubAgent] = {}
        self._messages: dict[str | None, MessageLog] = {}
        """Of the agent (None) and of each sub-agent: what its model gets next."""

    def add(self, event: Event) -> list[Span]:
        ended: list[Span] = []
        if isinstance(event, Init):
            ended = self.end()
            self._start_turn(event)
        self._last = max(self._last, event.ts)
        self._follow_sub_agents(event)
        ended += self._of_steps(self._tracker.add(event))
        match event:
            case Vendor(name="prompt", data=str(data)):
                self._prompt = data
            case Error():
                facts: dict[str, Value] = {"error.type": event.code, "corral.level": event.level}
                self._notes.append(SpanNote("corral.error", event.ts, facts))
            case ModelCall():
                self._is_counted = True
            case Done():
                ended += self._of_turn(event)
            case _:
                pass
        return ended

    def end(self) -> list[Span]:
        return [*self._of_steps(self._tracker.end()), *self._of_turn(None)]

    def _follow_sub_agents(self, event: Event) -> None:
        if event.parent in self._sub_agents:
            self._sub_agents[event.parent].ended = event.ts
        match event:
            case ToolUse():
                prompt = _prompt_in(event.input)[: self._limit]
                self._sub_agents[event.call_id] = _SubAgent(
                    name=event.name, prompt=prompt, started=event.ts
                )
            case ToolResult(call_id=call_id) if call_id in self._sub_agents:
                sub_agent = self._sub_agents[call_id]
                if event.status != "success":
                    sub_agent.error = event.status
                if sub_agent.ended:
                    sub_agent.ended = event.ts
            case _:
                pass

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
            "gen_ai.request.model": bare_model(init.model),
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
                **usage_facts(done.usage),
                **cost_facts(done.cost),
                "corral.status": done.status,
                "corral.files.changed": len(done.files),
                "corral.calls.denied": len(done.denied),
            }
            if model := bare_model(done.model):
                attributes["gen_ai.response.model"] = model
            if done.stop_reason:
                attributes["gen_ai.response.finish_reasons"] = [done.stop_reason]
            if done.status != "success":
                code = done.error.code if done.error is not None else done.status
                attributes["error.type"] = code
                error = done.error.message if done.error is not None else done.status
        if self._content:
            attributes |= input_facts(self._prompt)
            if done is not None:
                attributes |= output_facts(done.text, ok=done.status == "success")
        turn = self._turn_context(init)
        span = Span(
            context=turn,
            parent_id=None if self._parent is None else self._parent.span_id,
            name=f"invoke_agent {init.agent}".strip(),
            start=init.ts,
            end=self._last if done is None else max(done.ts, init.ts),
            attributes=attributes,
            error=error,
            notes=self._notes,
        )
        return [*self._of_sub_agents(init, turn), span]

    def _of_sub_agents(self, init: Init, turn: TraceContext) -> list[Span]:
        """They are sent at the end of the turn: only then it is known that they have ended."""
        spans: list[Span] = []
        for call_id, sub_agent in self._sub_agents.items():
            if not sub_agent.ended:
                continue
            attributes: dict[str, Value] = {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.provider.name": provider_name(init.agent, init.model),
                "gen_ai.agent.name": sub_agent.name,
                "gen_ai.agent.id": call_id,
            }
            if sub_agent.error is not None:
                attributes["error.type"] = sub_agent.error
            if self._content and sub_agent.prompt:
                attributes |= input_facts(sub_agent.prompt)
            span = Span(
                context=TraceContext(
                    turn.trace_id, trace_context.span_id(init.run_id, "agent", call_id)
                ),
                parent_id=trace_context.span_id(init.run_id, "tool", call_id),
                name=f"invoke_agent {sub_agent.name}",
                start=sub_agent.started,
                end=sub_agent.ended,
                attributes=attributes,
                error=sub_agent.error,
            )
            spans.append(span)
        return spans

    def _turn_context(self, init: Init) -> TraceContext:
        return trace_context.of_turn(init.run_id, self._parent)

    def _of_steps(self, steps: list[ModelStep]) -> list[Span]:
        """The spans of these steps, and of model calls that are no step of the agent."""
        init, calls = self._init, self._tracker.take_other_calls()
        if init is None:
            return []
        turn = self._turn_context(init)
        spans = [self._of_chat(call, None, init, turn) for call in calls]
        for step in steps:
            spans.append(self._of_chat(step.model_call, step, init, turn))
            spans += [self._of_call(call, init, turn, step.parent) for call in step.calls]
        return spans

    def _of_chat(
        self, call: ModelCall | None, step: ModelStep | None, init: Init, turn: TraceContext
    ) -> Span:
        """A model call, and what came of it: ``step`` is what the agent reported of the response,
        ``call`` what corral counted. There is at least one of them."""
        self._steps += 1
        row = step.parent if step is not None else call.parent if call is not None else None
        counted = None if call is None else call.model
        model = bare_model(counted or init.model)
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider_name(init.agent, counted or init.model),
            **({"gen_ai.request.model": model} if model else {}),
        }
        error: str | None = None
        started, ended, usage, cost = 0.0, 0.0, Usage(), Cost()
        if step is not None:
            started, ended = step.started, step.ended
            cost = Cost(step.cost_usd, "reported") if step.cost_usd is not None else cost
            usage = usage if self._is_counted else step.usage
            if self._content:
                attributes |= self._content_of(step)
        if call is not None:
            started, ended, usage = call.ts - call.duration_ms / 1000, call.ts, call.usage
            cost = call.cost if call.cost.usd is not None else cost
            attributes["gen_ai.response.model"] = model or call.model
            if call.first_byte_ms is not None:
                attributes["gen_ai.response.time_to_first_chunk"] = call.first_byte_ms / 1000
            if call.error is not None or (call.status or 200) >= 400:
                error = call.error or f"HTTP status {call.status}"
                attributes["error.type"] = str(call.status or "no_response")
        return Span(
            context=TraceContext(
                turn.trace_id, trace_context.span_id(init.run_id, "chat", str(self._steps))
            ),
            parent_id=self._span_of_row(row, init, turn),
            name=f"chat {model or ''}".strip(),
            start=started,
            end=ended,
            attributes={**attributes, **usage_facts(usage), **cost_facts(cost)},
            error=error,
        )

    def _content_of(self, step: ModelStep) -> dict[str, Value]:
        """What the model got, as far as the events of the turn show it, and what it wrote."""
        log = self._messages.get(step.parent)
        if log is None:
            sub_agent = self._sub_agents.get(step.parent or "")
            log = self._messages[step.parent] = MessageLog()
            log.add(message("user", [text_part(sub_agent.prompt if sub_agent else self._prompt)]))
        parts: list[Json] = []
        if thinking := str(step.thinking):
            parts.append({"type": "reasoning", "content": thinking})
        if text := str(step.text):
            parts.append(text_part(text))
        for call in step.calls:
            use = call.use
            arguments = use.input if len(msgspec.json.encode(use.input)) <= MAX_CONTENT else None
            parts.append(
                {"type": "tool_call", "id": use.call_id, "name": use.name, "arguments": arguments}
            )
        output = message("assistant", parts, "tool_call" if step.calls else "stop")
        facts: dict[str, Value] = {
            "gen_ai.input.messages": log.json,
            "gen_ai.output.messages": f"[{output}]",
        }
        log.add(output)
        for call in step.calls:
            log.add(message("tool", [result_part(call.use.call_id, str(call.output))]))
        return facts

    def _span_of_row(self, row: str | None, init: Init, turn: TraceContext) -> str:
        """The span of the agent (None), or of a sub-agent."""
        if row is None:
            return turn.span_id
        return trace_context.span_id(init.run_id, "agent", row)

    def _of_call(self, call: StepCall, init: Init, turn: TraceContext, row: str | None) -> Span:
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
        return Span(
            context=TraceContext(
                turn.trace_id, trace_context.span_id(init.run_id, "tool", use.call_id)
            ),
            parent_id=self._span_of_row(row, init, turn),
            name=f"execute_tool {use.name}",
            start=use.ts,
            end=max(self._last if result is None else result.ts, use.ts),
            attributes=attributes,
            error=error,
        )


def _prompt_in(arguments: Json) -> str:
    """The task in the arguments of a tool call that starts a sub-agent."""
    named = arguments if isinstance(arguments, dict) else {}
    found = (named.get(key) for key in ("prompt", "task", "message", "instructions"))
    return next((text for text in found if isinstance(text, str)), "")


@cache
def provider_name(agent: str, model: str | None) -> str:
    """How OpenTelemetry names the vendor of the model: of ``vendor:model``, else of the agent. For
    an agent with models of several vendors, it is the agent's own name."""
    from corral._agents import registry as agents
    from corral._models import registry as models

    try:
        if model is not None and models.is_model_name(model):
            vendor = model.partition(":")[0]
        else:
            vendor = agents.find(agent).vendor
        if not vendor:
            return agent
        provider = models.find_provider(vendor)
        return provider.otel_name or provider.name
    except CorralError:
        return agent or "unknown"


@cache
def bare_model(model: str | None) -> str | None:
    """The vendor's own name of the model, by which receivers know its price."""
    from corral._models import registry as models

    return model.partition(":")[2] if model and models.is_model_name(model) else model


def usage_facts(usage: Usage) -> dict[str, Value]:
    facts = {
        "gen_ai.usage.input_tokens": usage.input,
        "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
        "gen_ai.usage.cache_write.input_tokens": usage.cache_write,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
    }
    return {key: value for key, value in facts.items() if value is not None}


def cost_facts(cost: Cost) -> dict[str, Value]:
    """The conventions have no names for it yet."""
    if cost.usd is None:
        return {}
    return {"corral.cost.usd": cost.usd, "corral.cost.source": cost.source}


# Messages in the form of the conventions. Those of the model have a ``finish_reason``: without it
# Phoenix ignores them.


def text_part(text: str) -> Json:
    return {"type": "text", "content": text[:MAX_CONTENT]}


def result_part(call_id: str, output: str) -> Json:
    return {"type": "tool_call_response", "id": call_id, "response": output[:MAX_CONTENT]}


def message(role: str, parts: list[Json], finish_reason: str | None = None) -> str:
    """One message, as JSON."""
    fields: JsonObject = {"role": role, "parts": parts}
    if finish_reason is not None:
        fields["finish_reason"] = finish_reason
    return msgspec.json.encode(fields).decode()


def as_messages(role: str, text: str, finish_reason: str | None = None) -> str:
    """A list of one message, as JSON."""
    return f"[{message(role, [text_part(text)], finish_reason)}]"


def input_facts(prompt: str) -> dict[str, Value]:
    """A prompt, also as plain text: lists of Phoenix and MLflow show that."""
    return {
        "gen_ai.input.messages": as_messages("user", prompt),
        "input.value": prompt[:MAX_CONTENT],
    }


def output_facts(text: str, *, ok: bool) -> dict[str, Value]:
    """The answer to a prompt, or what a run gave, in the same two forms."""
    return {
        "gen_ai.output.messages": as_messages("assistant", text, "stop" if ok else "error"),
        "output.value": text[:MAX_CONTENT],
    }


class MessageLog:
    """A conversation. Of a long one the first message and the newest are kept."""

    def __init__(self) -> None:
        self._messages: list[str] = []
        self._size = 0

    def add(self, text: str) -> None:
        self._messages.append(text)
        self._size += len(text)
        while self._size > MAX_CONTENT and len(self._messages) > 2:
            self._size -= len(self._messages.pop(1))

    @property
    def json(self) -> str:
        return f"[{','.join(self._messages)}]"


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
            case int() if -(2**63) <= value < 2**63:
                typed = {"intValue": str(value)}
            case int() | float():
                typed = {"doubleValue": value}
            case str():
                typed = {"stringValue": value}
            case _:
                typed = {"arrayValue": {"values": [{"stringValue": item} for item in value]}}
        listed.append({"key": key, "value": typed})
    return listed
