"""ATIF 1.8, the Agent Trajectory Interchange Format: one JSON document per run.

A prompt is a step of the user, what a model did at once is a step of the agent (``core.steps``),
errors are steps of the system. A sub-agent has its own trajectory inside that of its parent, and
the result of the call that started it refers to it. In a pipeline run each node is a step without a
model call, and the agents of the node are its sub-trajectories.

The document is written while the events come: first the steps, then what is known only at the end.
Sub-trajectories are collected in temporary files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import IO

import msgspec

from corral._core.steps import ModelStep, StepCall, StepTracker
from corral._core.terminal_text import json_bytes
from corral._pipelines.events import (
    InterviewCompleted,
    PipelineCompleted,
    PipelineEvent,
    PipelineFailed,
    PipelineStarted,
    RunEvent,
    StepCompleted,
    StepFailed,
    StepStarted,
)
from corral._system import fs
from corral.events import Done, Error, Init, ToolResult, ToolUse, Vendor
from corral.values import Cost, Json, JsonObject, Usage, as_object, as_texts, is_object
from corral.version import __version__

SCHEMA = "ATIF-v1.8"
IMAGE_TYPES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
}
AUDIO_TYPES = {
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "m4a": "audio/mp4",
    "aac": "audio/aac",
    "ogg": "audio/ogg",
    "flac": "audio/flac",
    "webm": "audio/webm",
    "aiff": "audio/aiff",
}
IN_MEMORY = 256 * 1024
"""Bytes of a sub-trajectory; a longer one goes to a temporary file."""

Write = Callable[[bytes], object]
_encoder = msgspec.json.Encoder()


def write(
    events: Iterable[RunEvent], out: Write, *, session_id: str, prompts: Iterable[str] = ()
) -> None:
    """Write the trajectory of the events of a session or of a pipeline run. Stored events have the
    prompts. For those of ``on_event`` or of a session, ``prompts`` has one for each turn."""
    document = _Document(out, session_id)
    root: _AgentTrajectory | _PipelineTrajectory | None = None
    for event in events:
        if root is None and isinstance(event, PipelineEvent):
            root = _PipelineTrajectory(document)
        elif root is None:
            root = _AgentTrajectory(document, prompts)
        root.add(event)
    (root or _AgentTrajectory(document)).end()


def trajectory(
    events: Iterable[RunEvent], *, session_id: str, prompts: Iterable[str] = ()
) -> JsonObject:
    """The trajectory of these events as an object; see ``write``."""
    parts: list[bytes] = []
    write(events, parts.append, session_id=session_id, prompts=prompts)
    return as_object(msgspec.json.decode(b"".join(parts)))


def _encode(value: JsonObject) -> bytes:
    return json_bytes(_encoder.encode(value))


class _TrajectoryTotals(msgspec.Struct):
    usage: Usage = Usage()
    usd: float | None = None
    duration_ms: int = 0

    def add(self, usage: Usage, cost: Cost, duration_ms: int) -> None:
        self.usage = self.usage + usage
        self.duration_ms += duration_ms
        if cost.usd is not None:
            self.usd = (self.usd or 0.0) + cost.usd


class _Document:
    """One trajectory: its steps are written at once, the rest by ``finish``."""

    def __init__(self, out: Write, session_id: str, trajectory_id: str | None = None) -> None:
        self._out = out
        self.session_id = session_id
        self._steps = 0
        self._inner: IO[bytes] | None = None
        self._inner_ids: set[str] = set()
        head: JsonObject = {
            "schema_version": SCHEMA,
            "session_id": session_id,
            "trajectory_id": trajectory_id or session_id,
        }
        out(_encode(head)[:-1] + b',"steps":[')

    def step(self, source: str, message: Json, ts: float, more: JsonObject | None = None) -> None:
        self._steps += 1
        step: JsonObject = {"step_id": self._steps, "source": source, "message": message}
        if ts > 0:
            step["timestamp"] = datetime.fromtimestamp(ts, UTC).isoformat().replace("+00:00", "Z")
        self._out((b"," if self._steps > 1 else b"") + _encode({**step, **(more or {})}))

    def new_inner_id(self, name: str) -> str:
        """An id for a sub-trajectory that no other one has."""
        number, found = 1, name
        while found in self._inner_ids:
            number += 1
            found = f"{name}-{number}"
        self._inner_ids.add(found)
        return found

    def add_inner(self, file: IO[bytes]) -> None:
        """Add a complete sub-trajectory."""
        if self._inner is None:
            self._inner = fs.temporary_file(IN_MEMORY)  # closed by finish
        elif self._inner.tell():
            self._inner.write(b",")
        _copy(file, self._inner.write)

    def finish(self, agent: JsonObject, totals: _TrajectoryTotals, extra: JsonObject) -> None:
        metrics = _metrics(totals.usage, totals.usd)
        more = as_object(metrics.pop("extra", None))
        final: JsonObject = {f"total_{name}": value for name, value in metrics.items()}
        if totals.duration_ms:
            more["duration_ms"] = totals.duration_ms
        if more:
            final["extra"] = more
        tail: JsonObject = {
            "agent": agent,
            "final_metrics": {**final, "total_steps": self._steps},
            "extra": {"exporter": f"corral {__version__}", **extra},
        }
        self._out(b"]," + _encode(tail)[1:-1])
        if self._inner is not None:
            self._out(b',"subagent_trajectories":[')
            _copy(self._inner, self._out)
            self._inner.close()
            self._out(b"]")
        self._out(b"}")


def _copy(file: IO[bytes], out: Write) -> None:
    file.seek(0)
    while piece := file.read(1024 * 1024):
        out(piece)


class _SubTrajectory(msgspec.Struct):
    """A sub-agent, or a node, that is under way."""

    id: str
    file: IO[bytes]
    parent: _Document
    document: _Document

    @classmethod
    def begin(cls, name: str, parent: _Document) -> _SubTrajectory:
        file = fs.temporary_file(IN_MEMORY)  # closed by close
        found = parent.new_inner_id(name)
        return cls(found, file, parent, _Document(file.write, parent.session_id, found))

    def close(self) -> None:
        self.parent.add_inner(self.file)
        self.file.close()


class _AgentTrajectory:
    """The turns of one agent. ``prompts`` are those that the events do not have."""

    def __init__(self, document: _Document, prompts: Iterable[str] = ()) -> None:
        self._document = document
        self._prompts = iter(prompts)
        self._tracker = StepTracker()
        self._agent: JsonObject = {"name": "unknown", "version": "unknown"}
        self._model: str | None = None
        self._totals = _TrajectoryTotals()
        self._prompt: Vendor | None = None
        self._files: JsonObject = {}
        self._errors: list[Error] = []
        """They are written after the step during which they came."""
        self._last_agent_step: tuple[ModelStep, int] | None = None
        self._turn_steps = 0
        self._has_metrics = False
        self._subs: dict[str, _SubTrajectory] = {}
        """Sub-agents that are under way, by the call that started them."""
        self._sub_ids: dict[str, str] = {}
        """The same of the whole turn: call → id of the trajectory."""
        self._call_parents: dict[str, str | None] = {}
        self._status = "unfinished"

    def add(self, event: RunEvent) -> None:
        if isinstance(event, PipelineEvent):
            return
        if isinstance(event, Done):
            self._end_turn(event)
            return
        self._write_steps(self._tracker.add(event))
        match event:
            case Init():
                self._flush()
                self._sub_ids.clear()
                self._call_parents.clear()
                self._turn_steps, self._has_metrics = 0, False
                self._status = "unfinished"
                self._model = event.model or self._model
                if (text := next(self._prompts, None)) is not None:
                    self._prompt = Vendor("prompt", text, ts=event.ts)
                self._agent = {
                    "name": event.agent or "unknown",
                    "version": event.agent_version or "unknown",
                    "tools": list(event.tools),
                }
                if self._model:
                    self._agent["model_name"] = self._model
            case Vendor(name="prompt", data=str()):
                self._prompt = event
            case Vendor(name="prompt_files"):
                self._files = as_object(event.data)
            case ToolUse():
                self._call_parents[event.call_id] = event.parent
            case ToolResult() if event.call_id in self._subs:
                self._close_sub(event.call_id)
            case Error():
                self._errors.append(event)
            case _:
                pass

    def end(self) -> None:
        """Complete the document."""
        self._write_steps(self._tracker.end())
        self._flush()
        tools = self._agent.pop("tools", None)
        extra: JsonObject = {"status": self._status}
        if tools:
            extra["tools"] = tools
        self._document.finish({**self._agent}, self._totals, extra)

    def _flush(self) -> None:
        """Write what waits for more events of its turn."""
        self._write_prompt()
        for call_id in reversed(list(self._subs)):
            self._close_sub(call_id)
        self._write_held(None)
        self._write_errors()

    def _write_prompt(self) -> None:
        prompt, self._prompt = self._prompt, None
        if prompt is not None:
            text = prompt.data if isinstance(prompt.data, str) else ""
            parts: list[Json] = [{"type": "text", "text": text}]
            for kind, types in (("image", IMAGE_TYPES), ("audio", AUDIO_TYPES)):
                for path in as_texts(self._files.get(kind)):
                    media_type = types.get(path.rpartition(".")[2].lower())
                    if media_type is not None:
                        source: Json = {"media_type": media_type, "path": path}
                        parts.append({"type": kind, "source": source})
            self._document.step("user", parts if len(parts) > 1 else text, prompt.ts)
        self._files = {}

    def _write_steps(self, steps: list[ModelStep]) -> None:
        for step in steps:
            if step.parent is not None:
                sub = self._sub(step.parent)
                sub.document.step("agent", str(step.text), step.ended, self._facts(step))
                continue
            self._write_prompt()
            if self._last_agent_step is not None:
                self._write_held(None)
                self._write_errors()
            self._turn_steps += 1
            self._last_agent_step = (step, self._turn_steps)

    def _write_held(self, done: Done | None) -> None:
        """Write the agent's last step. It is held back until the next one or the end of the turn:
        the usage of the turn may belong to it."""
        if self._last_agent_step is None:
            return
        (step, count), self._last_agent_step = self._last_agent_step, None
        facts = self._facts(step)
        if done is not None and not self._has_metrics and _has_counts(done.usage):
            facts["metrics"] = _metrics(done.usage, done.cost.usd)
            facts["llm_call_count"] = count
        self._has_metrics = self._has_metrics or "metrics" in facts
        self._document.step("agent", str(step.text), step.ended, facts)

    def _write_errors(self) -> None:
        errors, self._errors = self._errors, []
        for error in errors:
            self._document.step("system", error.message, error.ts, _error_facts(error))

    def _end_turn(self, done: Done) -> None:
        self._write_steps(self._tracker.add(done))
        self._write_prompt()
        self._write_held(done)
        self._flush()
        self._status = done.status
        self._totals.add(done.usage, done.cost, done.duration_ms)
        if done.model:
            self._model = self._agent["model_name"] = done.model
        if done.status != "success":
            why = f": {done.error.message}" if done.error else ""
            facts: JsonObject = {"extra": {"status": done.status}}
            if done.error is not None:
                facts = _error_facts(done.error)
            self._document.step("system", f"The turn ended: {done.status}{why}", done.ts, facts)

    def _sub(self, call_id: str) -> _SubTrajectory:
        if call_id not in self._subs:
            above = self._call_parents.get(call_id)
            parent = self._sub(above).document if above is not None else self._document
            sub = self._subs[call_id] = _SubTrajectory.begin(call_id, parent)
            self._sub_ids[call_id] = sub.id
        return self._subs[call_id]

    def _close_sub(self, call_id: str) -> None:
        for inner in [each for each in self._subs if self._call_parents.get(each) == call_id]:
            self._close_sub(inner)
        sub = self._subs.pop(call_id)
        agent = {key: value for key, value in self._agent.items() if key != "tools"}
        sub.document.finish(agent, _TrajectoryTotals(), {"call_id": call_id})
        sub.close()

    def _facts(self, step: ModelStep) -> JsonObject:
        facts: JsonObject = {}
        if self._model:
            facts["model_name"] = self._model
        if thinking := str(step.thinking):
            facts["reasoning_content"] = thinking
        if step.calls:
            facts["tool_calls"] = [_tool_call(call) for call in step.calls]
            answered = [call for call in step.calls if call.result is not None or call.has_steps]
            results = [self._result(call) for call in answered]
            if results:
                facts["observation"] = {"results": [*results]}
        if _has_counts(step.usage):
            facts["metrics"] = _metrics(step.usage, step.cost_usd)
        extra: JsonObject = {"turn": step.turn}
        if step.plan is not None:
            extra["plan"] = [as_object(msgspec.to_builtins(entry)) for entry in step.plan.entries]
        if cut := step.text.cut + step.thinking.cut:
            extra["characters_left_out"] = cut
        return {**facts, "extra": extra}

    def _result(self, call: StepCall) -> JsonObject:
        result: JsonObject = {"source_call_id": call.use.call_id}
        output = call.output
        error = call.result.error if call.result is not None else None
        if text := str(output) or error:
            result["content"] = text
        if call.has_steps:
            call_id = call.use.call_id
            sub = self._sub_ids.get(call_id) or self._sub(call_id).id
            result["subagent_trajectory_ref"] = [{"trajectory_id": sub}]
        extra: JsonObject = {"status": call.status}
        if error:
            extra["error"] = error
        if call.result is not None and call.result.duration_ms is not None:
            extra["duration_ms"] = call.result.duration_ms
        if output.cut:
            extra["characters_left_out"] = output.cut
        result.setdefault("content", "")
        return {**result, "extra": extra}


class _PipelineTrajectory:
    """The nodes of a pipeline run."""

    def __init__(self, document: _Document) -> None:
        self._document = document
        self._kinds: dict[str, str] = {}
        """Visits that are under way, and the kinds of their nodes."""
        self._nodes: dict[str, tuple[_SubTrajectory, _AgentTrajectory]] = {}
        self._totals = _TrajectoryTotals()
        self._extra: JsonObject = {"status": "unfinished"}

    def add(self, event: RunEvent) -> None:
        match event:
            case PipelineStarted():
                self._extra.setdefault("pipeline", event.name)
                if event.goal:
                    self._document.step("user", event.goal, event.ts)
            case StepStarted():
                self._kinds[event.visit] = event.kind
            case StepCompleted() | StepFailed():
                self._node_ended(event)
            case InterviewCompleted():
                extra: JsonObject = {"node": event.node, "by": event.by}
                self._document.step("user", event.answer, event.ts, {"extra": extra})
            case PipelineCompleted():
                self._extra["status"] = "success"
            case PipelineFailed():
                self._extra["status"] = "cancelled" if event.cancelled else "fail"
                self._document.step("system", f"The run ended: {event.reason}", event.ts)
            case _:
                if not isinstance(event, PipelineEvent):
                    node = event.node or ""
                    if node not in self._nodes:
                        sub = _SubTrajectory.begin(node or "agent", self._document)
                        self._nodes[node] = (sub, _AgentTrajectory(sub.document))
                    self._nodes[node][1].add(event)
                    if isinstance(event, Done):
                        self._totals.add(event.usage, event.cost, event.duration_ms)

    def end(self) -> None:
        for sub, agent in self._nodes.values():  # their nodes had not ended
            agent.end()
            sub.close()
        name: JsonObject = {"name": "corral", "version": __version__}
        self._document.finish(name, self._totals, self._extra)

    def _node_ended(self, event: StepCompleted | StepFailed) -> None:
        kind, node = self._kinds.pop(event.visit, "node"), event.node or ""
        if isinstance(event, StepFailed):
            status, notes = "fail", event.reason
        else:
            status, notes = event.status, event.notes
        result: JsonObject = {
            "source_call_id": event.visit,
            "content": notes or status,
            "extra": {"status": status, "attempts": event.attempts},
        }
        if (found := self._nodes.pop(node, None)) is not None:
            sub, agent = found
            agent.end()
            sub.close()
            result["subagent_trajectory_ref"] = [{"trajectory_id": sub.id}]
        call: JsonObject = {
            "tool_call_id": event.visit,
            "function_name": kind,
            "arguments": {"node": node},
        }
        facts: JsonObject = {"tool_calls": [call], "observation": {"results": [result]}}
        self._document.step("agent", f"node {node}", event.ts, {**facts, "llm_call_count": 0})


def _tool_call(call: StepCall) -> JsonObject:
    given = call.use.input
    extra: JsonObject = {"kind": call.use.kind}
    if call.use.title:
        extra["title"] = call.use.title
    if call.decision is not None:
        extra["permission"] = f"{call.decision.decision} by {call.decision.by}"
        if call.decision.rule:
            extra["rule"] = call.decision.rule
    arguments: JsonObject = given if is_object(given) else {}
    if given is not None and not is_object(given):
        arguments = {"input": given}
    return {
        "tool_call_id": call.use.call_id,
        "function_name": call.use.name,
        "arguments": arguments,
        "extra": extra,
    }


def _error_facts(error: Error) -> JsonObject:
    extra: JsonObject = {"code": error.code, "level": error.level, "recoverable": error.recoverable}
    return {"extra": extra}


def _has_counts(usage: Usage) -> bool:
    return usage.input is not None or usage.output is not None


def _metrics(usage: Usage, usd: float | None) -> JsonObject:
    found: JsonObject = {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "cached_tokens": usage.cache_read,
        "cost_usd": usd,
    }
    extra: JsonObject = {"reasoning_tokens": usage.reasoning, "cache_write": usage.cache_write}
    if any(value is not None for value in extra.values()):
        found["extra"] = {key: value for key, value in extra.items() if value is not None}
    return {key: value for key, value in found.items() if value is not None}
