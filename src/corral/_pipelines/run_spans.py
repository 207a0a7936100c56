"""The spans of a pipeline run: see ``corral._telemetry.spans``, which makes those of its agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from corral._pipelines.events import (
    PipelineCompleted,
    PipelineEvent,
    PipelineFailed,
    PipelineStarted,
    RunEvent,
    StepCompleted,
    StepFailed,
    StepRetrying,
    StepStarted,
)
from corral._pipelines.graph import Graph
from corral._system.environment import SecretRedactor, named_secrets, variables
from corral._telemetry import trace_context
from corral._telemetry.sender import sender_for, with_content
from corral._telemetry.spans import (
    CHAIN,
    KIND,
    AgentSpans,
    Span,
    SpanNote,
    Value,
    input_facts,
    output_facts,
)
from corral._telemetry.trace_context import TraceContext
from corral.events import Done, Vendor


class _OpenRun(msgspec.Struct, kw_only=True):
    """A pipeline run that has not ended."""

    started: PipelineStarted
    visits: dict[str, StepStarted] = {}
    notes: dict[str, list[SpanNote]] = {}
    """Visit → its retries."""


class PipelineSpans:
    """The spans of a pipeline run, of the pipelines that its nodes start, and of its agents, if
    their events are in the stream."""

    def __init__(
        self,
        parent: TraceContext | None = None,
        *,
        content: bool = False,
        prompts: Mapping[str, str] | None = None,
    ) -> None:
        """``prompts``: of the nodes, by their ids. Without one, a node has that of its agent."""
        self._parent = parent
        self._content = content
        self._prompts: Mapping[str, str] = {} if prompts is None else prompts
        self.output: str = ""
        """What the run gave; unless it is set, the last answer of an agent in the stream."""
        self._agent_prompts: dict[str, str] = {}
        self._runs: dict[str, _OpenRun] = {}
        self._nodes: dict[str, TraceContext] = {}
        """Node → the span of its visit."""
        self._agents: dict[str, AgentSpans] = {}
        self._last = 0.0

    def add(self, event: RunEvent) -> list[Span]:
        self._last = max(self._last, event.ts)
        run = self._runs.get(event.run_id)
        match event:
            case PipelineStarted():
                self._runs.setdefault(event.run_id, _OpenRun(started=event))
            case StepStarted() if run is not None:
                run.visits[event.visit] = event
                context = trace_context.of_visit(event.run_id, event.visit, self._parent)
                self._nodes[event.node or ""] = context
            case StepRetrying() if run is not None:
                facts: dict[str, Value] = {"corral.attempt": event.attempt}
                note = SpanNote("corral.retry", event.ts, facts)
                run.notes.setdefault(event.visit, []).append(note)
            case StepCompleted() | StepFailed() if run is not None:
                return self._of_visit(run, event.visit, event)
            case PipelineCompleted() | PipelineFailed() if run is not None:
                return self._of_run(event.run_id, event)
            case _:
                if not isinstance(event, PipelineEvent):
                    node = event.node or ""
                    if isinstance(event, Vendor) and event.name == "prompt":
                        self._agent_prompts.setdefault(node, str(event.data))
                    elif isinstance(event, Done):
                        self.output = event.text
                    if node not in self._agents:
                        parent = self._nodes.get(node, self._parent)
                        self._agents[node] = AgentSpans(parent, content=self._content)
                    return self._agents[node].add(event)
        return []

    def end(self) -> list[Span]:
        found = [span for agent in self._agents.values() for span in agent.end()]
        for run_id in reversed(list(self._runs)):
            found += self._of_run(run_id, None)
        return found

    def _of_visit(
        self, run: _OpenRun, visit: str, end: StepCompleted | StepFailed | None
    ) -> list[Span]:
        started = run.visits.pop(visit, None)
        if started is None:
            return []
        node = started.node or ""
        agent = self._agents.pop(node, None)
        context = trace_context.of_visit(started.run_id, visit, self._parent)
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "execute_node",
            KIND: CHAIN,
            "corral.run.id": started.run_id,
            "corral.node.id": node,
            "corral.node.kind": started.kind,
            "corral.visit": visit,
        }
        from_agent = self._agent_prompts.pop(node, "")
        if self._content and (prompt := self._prompts.get(node) or from_agent):
            attributes |= input_facts(prompt)
        error: str | None = None
        match end:
            case StepCompleted():
                attributes["corral.attempts"] = end.attempts
                attributes["corral.status"] = end.status
                error = (end.notes or end.status) if end.status == "fail" else None
            case StepFailed():
                attributes["corral.attempts"] = end.attempts
                error = end.reason or "fail"
            case None:
                error = "unfinished"
        if error is not None:
            attributes["error.type"] = "unfinished" if end is None else "node_failed"
        span = Span(
            context=context,
            parent_id=trace_context.of_pipeline(started.run_id, self._parent).span_id,
            name=f"node {node}",
            start=started.ts,
            end=self._last if end is None else end.ts,
            attributes=attributes,
            error=error,
            notes=run.notes.pop(visit, []),
        )
        return [*(agent.end() if agent is not None else ()), span]

    def _of_run(self, run_id: str, end: PipelineCompleted | PipelineFailed | None) -> list[Span]:
        run = self._runs.pop(run_id)
        parent = trace_context.parent_of_pipeline(run_id, self._parent)
        found = [span for visit in list(run.visits) for span in self._of_visit(run, visit, None)]
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "invoke_workflow",
            KIND: CHAIN,
            "gen_ai.workflow.name": run.started.name,
            "gen_ai.conversation.id": run_id,
            "corral.run.id": run_id,
        }
        if self._content and run.started.goal:
            attributes |= input_facts(run.started.goal)
        error: str | None = None
        match end:
            case PipelineFailed():
                error = end.reason or "fail"
                attributes["error.type"] = "cancelled" if end.cancelled else "pipeline_failed"
            case None:
                error = attributes["error.type"] = "unfinished"
            case _:
                pass
        if self._content and self.output:
            attributes |= output_facts(self.output, ok=error is None)
        span = Span(
            context=trace_context.of_pipeline(run_id, self._parent),
            parent_id=None if parent is None else parent.span_id,
            name=f"invoke_workflow {run.started.name}".strip(),
            start=run.started.ts,
            end=self._last if end is None else end.ts,
            attributes=attributes,
            error=error,
        )
        return [*found, span]


class LivePipelineSpans:
    """Sends the spans of a pipeline run or a batch while it goes on. Those of its agents are sent
    where the agents run."""

    def __init__(self, endpoint: str, env: Mapping[str, str], graph: Graph | None = None) -> None:
        """Raises ``ConfigError``."""
        self._redactor = SecretRedactor(named_secrets(variables(env)))
        self._prompts: dict[str, str] = {}
        self._has_content = with_content()
        self._spans = PipelineSpans(
            trace_context.parent_in(env), content=self._has_content, prompts=self._prompts
        )
        for node in () if graph is None else graph.nodes.values():
            self.set_prompt(node.id, node.text("prompt"))
        self._sender = sender_for(endpoint)

    def set_prompt(self, node: str, prompt: str) -> None:
        """Before the node ends."""
        if self._has_content:
            self._prompts[node] = self._redactor.clean_text(prompt)

    def set_output(self, text: str) -> None:
        """Before the run ends."""
        if self._has_content:
            self._spans.output = self._redactor.clean_text(text)

    def add(self, event: PipelineEvent) -> None:
        self._sender.put(self._spans.add(event))

    def resume(self, events: Iterable[RunEvent]) -> None:
        """Take events whose spans another process has sent."""
        for event in events:
            self._spans.add(event)

    async def close(self) -> None:
        """Wait a limited time until the spans are sent."""
        await self._sender.flush_soon()
