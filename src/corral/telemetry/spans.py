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

This module is pure. Spans are returned when they have ended; the ids are known before
(``trace_context``), so a child may be sent before its parent.
"""

from __future__ import annotations

from functools import cache

import msgspec

from corral.core.steps import Step, StepCall, StepTracker
from corral.errors import CorralError
from corral.events import Done, Error, Event, Init, Vendor
from corral.telemetry import trace_context
from corral.telemetry.trace_context import TraceContext
from corral.values import Usage

Value = str | int | float | bool | list[str]
MAX_CONTENT = 64 * 1024
"""Characters of a text in an attribute."""


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
        found: list[Span] = []
        if isinstance(event, Init):
            found = self.end()
            self._init = event
            self._prompt, self._steps, self._notes = "", 0, []
        self._last = max(self._last, event.ts)
        found += self._of_steps(self._tracker.add(event))
        match event:
            case Vendor(name="prompt", data=str(data)):
                self._prompt = data
            case Error():
                facts: dict[str, Value] = {"error.type": event.code, "corral.level": event.level}
                self._notes.append(SpanNote("corral.error", event.ts, facts))
            case Done():
                found += self._of_turn(event)
            case _:
                pass
        return found

    def end(self) -> list[Span]:
        return [*self._of_steps(self._tracker.end()), *self._of_turn(None)]

    def _of_turn(self, done: Done | None) -> list[Span]:
        init, self._init = self._init, None
        if init is None:
            return []
        session = init.run_id.rpartition(".")[0] or init.run_id
        found: dict[str, Value | None] = {
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
        attributes = {key: value for key, value in found.items() if value is not None}
        error: str | None = None
        if done is None:
            error = attributes["error.type"] = "unfinished"
        else:
            attributes |= _end_facts(done)
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

    def _of_steps(self, steps: list[Step]) -> list[Span]:
        init = self._init
        if init is None:
            return []
        turn = self._turn_context(init)
        return [span for step in steps for span in self._of_step(step, init, turn)]

    def _of_step(self, step: Step, init: Init, turn: TraceContext) -> list[Span]:
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
            given = msgspec.json.encode(use.input).decode()
            attributes["gen_ai.tool.call.arguments"] = given[:MAX_CONTENT]
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
        return [tool, _sub_agent(tool, call, init)] if call.has_steps else [tool]


def _sub_agent(tool: Span, call: StepCall, init: Init) -> Span:
    """The sub-agent that a tool call started."""
    agent_id = trace_context.span_id(init.run_id, "agent", call.use.call_id)
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": provider_name(init.agent, init.model),
        "gen_ai.agent.name": call.use.name,
        "gen_ai.agent.id": call.use.call_id,
    }
    if tool.error is not None:
        attributes["error.type"] = tool.error
    return Span(
        context=TraceContext(tool.context.trace_id, agent_id),
        parent_id=tool.context.span_id,
        name=f"invoke_agent {call.use.name}",
        start=tool.start,
        end=tool.end,
        attributes=attributes,
        error=tool.error,
    )


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
    found = {
        "gen_ai.usage.input_tokens": usage.input,
        "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
    }
    return {key: value for key, value in found.items() if value is not None}


def _end_facts(done: Done) -> dict[str, Value]:
    found: dict[str, Value] = {
        **_usage_facts(done.usage),
        "corral.status": done.status,
        "corral.files.changed": len(done.files),
        "corral.calls.denied": len(done.denied),
    }
    if done.model:
        found["gen_ai.response.model"] = done.model
    if done.stop_reason:
        found["gen_ai.response.finish_reasons"] = [done.stop_reason]
    if done.cost.usd is not None:
        found["corral.cost.usd"] = done.cost.usd
        found["corral.cost.source"] = done.cost.source
    return found


def _messages(role: str, text: str) -> str:
    """A message in the form of the conventions."""
    part = {"type": "text", "content": text[:MAX_CONTENT]}
    return msgspec.json.encode([{"role": role, "parts": [part]}]).decode()
