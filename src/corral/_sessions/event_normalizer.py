"""Turns the raw items of any backend into a valid event stream.

Theory of operation
-------------------

A backend translates what its agent says into raw items: texts, events without a number, and
``TurnEnd``. Agents send them in any order: results without a call, calls without a result, the
same id twice, text before ``init``, a second end. The normalizer is the only place that repairs
this. There is one normalizer per turn. It is synchronous: it does not wait, and it does not touch
the disk; the time comes in as ``ts``.

Callers: ``Turn`` calls ``take(items, ts)`` for each batch, and ``close(ts, error)`` once, after
the backend's last item. ``Turn`` and the backend's ``explain`` read ``finish``, ``answered``,
``worked``, ``denied`` and ``written``.

States of the stream:

- *before init*: log lines, errors and model calls are queued (``MAX_BEFORE_INIT`` of them). The
  agent's own ``init``, completed from our defaults, or any other item starts the stream; if it was
  not an ``init``, a default one is emitted first. Then the queue is emitted.
- *running*: items become events. A second ``init`` becomes a ``vendor`` event.
- *finished*: a ``TurnEnd`` was taken. If it was a success, a later one becomes the ``vendor`` event
  ``late_result``; a failure can still be replaced.
- *closed*: ``close`` has cancelled the open calls and emitted ``error`` (if any) and ``done``.

States of a tool call:

- *open*: from ``tool_use`` to ``tool_result``. An id that is empty or was used before is replaced
  by a new one; results and output for the agent's id go to its oldest open call.
- *closed*: a later result or output of this id becomes a ``vendor`` event. At least the last
  ``MAX_CLOSED_IDS`` ids are remembered, at most twice as many.

Guarantees:

- ``init`` is first and ``done`` is last, each exactly once; ``seq`` counts from 1 without gaps.
- Every ``tool_result`` and ``tool_output`` follows a ``tool_use`` with its id. Every ``tool_use``
  gets exactly one ``tool_result``, ``cancelled`` if the turn ended first.
- Every ``question`` gets exactly one ``question_answer``, ``cancelled`` if the turn ended first.
- A file is reported as changed only after its tool succeeded, or if the tool reported it itself.
- Usage and cost are plausible numbers or unknown; JSON that is nested too deeply is left out.

On a crash of the agent, ``Turn`` calls ``close`` with the error: the stream still ends with
``done``. If this process crashes, nothing of the normalizer is stored; the transcript ends after
the last event that was handed out.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import force_setattr, replace

from corral._core.nesting import TOO_DEEP, is_too_deep
from corral._protocol.common_events import PERMISSION_DENIED
from corral._protocol.ndjson import RawEvent, TurnEnd
from corral.errors import CorralError
from corral.events import (
    CALLS_NOT_ASSIGNED,
    OWN_VENDOR_EVENTS,
    AgentQuestion,
    Done,
    Error,
    Event,
    FileChange,
    FileKind,
    Init,
    Log,
    ModelCall,
    PermissionDecision,
    PermissionRequest,
    QuestionAnswer,
    Text,
    ToolOutput,
    ToolResult,
    ToolUse,
    Unknown,
    UsageReport,
    Vendor,
)
from corral.values import (
    MAX_TOKENS,
    AskedQuestion,
    Cost,
    DeniedCall,
    Json,
    Usage,
    UsageSource,
    add_by_model,
)

E = TypeVar("E", bound=Event)

MAX_BEFORE_INIT = 1000
"""Log lines that may come before the agent's own ``init``; then one is made up."""
_WRITING = frozenset({"edit", "delete", "move"})
"""Kinds of tools that change files."""
MAX_CLOSED_IDS = 4096
"""Ids of closed calls that are remembered at least, to recognize late results."""


class _Open(msgspec.Struct, gc=False):
    use: ToolUse
    agent_id: str
    """The agent's own id, which it may have used before."""
    since: float


_NOTHING_SPENT = Usage(), Cost()


class _Spent(NamedTuple):
    usage: Usage
    by_model: dict[str, Usage]
    cost: Cost
    source: UsageSource


class EventNormalizer:
    """The normalizer of one turn. ``existed`` tells whether a path existed before the turn."""

    def __init__(
        self,
        init: Init,
        *,
        started: float,
        existed: Callable[[str], bool | None] = lambda _path: None,
    ) -> None:
        self._default_init = init
        self._started = started
        self._existed_before = existed
        self._run_id, self._agent, self._node = init.run_id, init.agent, init.node
        self._label, self._cwd = init.label, init.cwd
        self._session_id = init.session_id
        self._before_init: list[Log | Error | ModelCall] = []
        self._open: OrderedDict[str, _Open] = OrderedDict()
        """By our own ids, in the order they came. Ordered: its first is found at once."""
        self._renamed: dict[str, deque[str]] = {}
        """The agent's id → ours, where it used one for several calls; the oldest first. Some may be
        closed by now."""
        self._closed: dict[str, None] = {}
        self._self_reported: set[str] = set()
        """Calls whose tool reported its file changes itself."""
        self._written_for_agent: set[str] = set()
        """Paths that we wrote for the agent: the result of its call reports no further change."""
        self._metered: list[ModelCall] = []
        self.denied: list[DeniedCall] = []
        self._asked: dict[str, AgentQuestion] = {}
        """Questions without an answer, by their ids."""
        self._questions: list[AskedQuestion] = []
        self._denial_rules: dict[str, str] = {}
        """The agent's id of a call → why corral denied it."""
        self.written: dict[str, FileKind] = {}
        """Paths that the agent's tools confirmed to have written."""
        self._seq = 0
        self._calls = 0
        self._usage, self._cost = self._earlier = _NOTHING_SPENT
        """``_earlier``: what processes of the agent reported that ended before the turn."""
        self._misses_calls = False
        """Not all model calls of the turn were counted."""
        self._warned_implausible = False
        self.finish: TurnEnd | None = None
        self.answered: bool = False
        """Whether any answer text came."""
        self.worked: bool = False
        """Whether any tool ran."""

    @property
    def session_id(self) -> str | None:
        return self._session_id

    def take(self, items: Iterable[RawEvent], ts: float) -> list[Event]:
        """The events for these items."""
        out: list[Event] = []
        append, seq = out.append, self._seq
        text = self._with_envelope(Text(""), ts)
        for item in items:
            if type(item) is str and seq:  # the hot path: text, by the hundred thousand
                seq += 1
                self.answered = self.answered or bool(item)
                append(replace(text, delta=item, seq=seq))
            else:
                self._seq = seq
                # The most frequent ones first.
                if seq and type(item) is ToolUse:
                    self._open_call(item, ts, out)
                elif seq and type(item) is ToolResult:
                    self._close_call(item, ts, out)
                else:
                    self._handle_item(Text(item) if isinstance(item, str) else item, ts, out)
                    text = self._with_envelope(Text(""), ts)
                seq = self._seq
        self._seq = seq
        return out

    def restart(self, ts: float, *, adds_usage: bool) -> list[Event]:
        """The agent's process has ended, and the turn goes on in another one. Open tools are closed
        as cancelled. ``adds_usage``: what the next process reports is its own usage alone."""
        out: list[Event] = []
        for call_id in list(self._open):
            self._close_call(ToolResult(call_id, "cancelled"), ts, out)
        finish, self.finish = self.finish, None
        if adds_usage:
            usage = finish.usage if finish is not None and finish.usage != Usage() else self._usage
            cost = finish.cost if finish is not None and finish.cost != Cost() else self._cost
            self._earlier = _add(self._earlier, (usage, cost))
            self._usage, self._cost = Usage(), Cost()
        return out

    def close(
        self, ts: float, error: CorralError | None, ending: Done | None = None
    ) -> list[Event]:
        """The end: open tools closed as cancelled, then ``done``. ``ending`` has what the
        normalizer has not seen."""
        out: list[Event] = []
        if not self._seq:
            self._begin(Init(), ts, out)
        for call_id in list(self._open):
            self._close_call(ToolResult(call_id, "cancelled"), ts, out)
        for request_id in list(self._asked):
            self._handle_answer(QuestionAnswer(request_id, "cancelled", reason="the end"), ts, out)
        if error is not None:
            self._emit(error.event(), ts, out)
        finish = self.finish or TurnEnd(ok=False)
        spent = self._spent(finish)
        done = replace(
            ending or Done("success"),
            status=error.status if error else "success",
            stop_reason=finish.stop_reason,
            model=finish.model,
            usage=spent.usage,
            usage_by_model=spent.by_model,
            cost=spent.cost,
            usage_source=spent.source,
            denied=tuple(self.denied),
            questions=tuple(self._questions),
            duration_ms=max(0, round((ts - self._started) * 1000)),
            error=error.event() if error else None,
        )
        self._emit(done, ts, out)
        return out

    def _spent(self, finish: TurnEnd) -> _Spent:
        """What corral counted; if it counted nothing, what the agent reported."""
        usage = finish.usage if finish.usage != Usage() else self._usage
        cost = finish.cost if finish.cost != Cost() else self._cost
        usage, cost = _add(self._earlier, (usage, cost))
        if not self._metered or self._misses_calls:
            source: UsageSource = "unknown" if usage == Usage() else "reported"
            return _Spent(usage, finish.usage_by_model, cost, source)
        counted, by_model = Usage(), dict[str, Usage]()
        for call in self._metered:
            counted += call.usage
            by_model = add_by_model(by_model, {call.model: call.usage})
        costs = [call.cost for call in self._metered if call.cost.usd is not None]
        # Billed by an amount that is not known. Of a call that was cut, what is known counts.
        unknown = any(
            call.cost.usd is None
            and (call.usage != Usage() or (call.partial and call.error is None))
            for call in self._metered
        )
        if costs and not unknown:
            cost = sum(costs[1:], start=costs[0])
        by_model = {name: usage for name, usage in by_model.items() if usage != Usage()}
        return _Spent(counted, by_model, cost, "metered")

    def _handle_item(self, item: Event | TurnEnd, ts: float, out: list[Event]) -> None:
        match item:
            case TurnEnd():
                self._handle_turn_end(item, ts, out)
                return
            case ModelCall():
                self._metered.append(item)
            case Error() if item.code == CALLS_NOT_ASSIGNED:
                self._misses_calls = True
            case AgentQuestion():
                self._asked[item.request_id] = item
            case PermissionDecision(decision="deny", call_id=str(call_id), rule=str(rule)):
                self._denial_rules[call_id] = rule
            case _:
                pass
        if not self._seq:
            has_room = len(self._before_init) < MAX_BEFORE_INIT
            if isinstance(item, Log | Error | ModelCall) and has_room:
                self._before_init.append(item)
                return
            self._begin(item if isinstance(item, Init) else Init(), ts, out)
            if isinstance(item, Init):
                return
        self._handle_event(item, ts, out)

    def _handle_event(self, item: Event, ts: float, out: list[Event]) -> None:
        match item:
            case Init():
                self._session_id = item.session_id or self._session_id
                data: Json = msgspec.json.decode(msgspec.json.encode(item))
                self._emit(Vendor("init", data), ts, out)
            case ToolUse():
                self._open_call(item, ts, out)
            case ToolResult():
                self._close_call(item, ts, out)
            case ToolOutput():
                self._handle_output(item, ts, out)
            case Done():
                self._emit(Vendor("done", msgspec.to_builtins(item)), ts, out)
            case Text():
                # Codex reports the empty message of a model that did not answer.
                self.answered = self.answered or bool(item.delta)
                self._emit(item, ts, out)
            case FileChange():
                # The tool reported it itself, which is more exact than a guess from the tool's
                # kind.
                self.written[item.path] = item.kind
                if item.call_id is not None:
                    self._self_reported.add(item.call_id)
                else:
                    self._written_for_agent.add(item.path)
                self._emit(item, ts, out)
            case UsageReport():
                self._handle_usage(item, ts, out)
            case QuestionAnswer():
                self._handle_answer(item, ts, out)
            case _:
                self._emit(item, ts, out)

    def _handle_answer(self, answer: QuestionAnswer, ts: float, out: list[Event]) -> None:
        """One answer for each question."""
        question = self._asked.pop(answer.request_id, None)
        if question is None:
            return
        from corral._core.question_replies import summary

        self._questions.append(summary(question, answer))
        self._emit(answer, ts, out)

    def _handle_turn_end(self, finish: TurnEnd, ts: float, out: list[Event]) -> None:
        """A turn that ended well keeps its status: a later result is reported, nothing more."""
        if self.finish is not None and self.finish.ok:
            if self._seq:
                self._emit(Vendor("late_result", msgspec.to_builtins(finish)), ts, out)
            return
        usage, cost = finish.usage.plausible(), finish.cost.plausible()
        by_model_reported = {
            name: used for name, used in finish.usage_by_model.items() if used != Usage()
        }
        by_model = {name: used.plausible() for name, used in by_model_reported.items()}
        self.finish = replace(finish, usage=usage, usage_by_model=by_model, cost=cost)
        if (usage, cost, by_model) != (finish.usage, finish.cost, by_model_reported):
            self._warn_implausible(ts, out)

    def _handle_usage(self, report: UsageReport, ts: float, out: list[Event]) -> None:
        usage, size = report.usage.plausible(), report.context_size
        cost = report.cost.plausible() if report.cost else None
        if size is not None and not 0 <= size <= MAX_TOKENS:
            size = None
        is_plausible = (usage, cost, size) == (report.usage, report.cost, report.context_size)
        self._usage = usage
        self._cost = cost or self._cost
        self._emit(replace(report, usage=usage, cost=cost, context_size=size), ts, out)
        if not is_plausible:
            self._warn_implausible(ts, out)

    def _warn_implausible(self, ts: float, out: list[Event]) -> None:
        """Warn once per turn, and never before ``init``."""
        if self._seq and not self._warned_implausible:
            self._warned_implausible = True
            message = "the agent reported an impossible usage or cost, which is taken as unknown"
            warning = Error(
                "implausible_usage", message, recoverable=True, level="warning", phase="response"
            )
            self._emit(warning, ts, out)

    def _begin(self, init: Init, ts: float, out: list[Event]) -> None:
        self._session_id = init.session_id or self._session_id
        names = ("model", "cwd", "tools", "agent_version", "auth", "capabilities", "resumed")
        fields = {name: value for name in names if (value := getattr(init, name))}
        complete = replace(self._default_init, session_id=self._session_id, **fields)
        self._emit(complete, ts, out)
        if isinstance(emitted := out[-1], Init):
            self._default_init = emitted  # the same object that the caller may hold
        for queued in self._before_init:
            self._emit(queued, ts, out)
        self._before_init.clear()

    def _open_call(self, use: ToolUse, ts: float, out: list[Event]) -> str:
        self.worked = True
        agent_id = call_id = use.call_id
        if not call_id or call_id in self._open or call_id in self._closed:
            while not call_id or call_id in self._open or call_id in self._closed:
                self._calls += 1
                call_id = f"{agent_id or 'call'}#{self._calls}"
            use = replace(use, call_id=call_id)
            self._renamed.setdefault(agent_id, deque()).append(call_id)
        if is_too_deep(use.input):
            use = replace(use, input=f"(left out: {TOO_DEEP})")
        self._open[call_id] = _Open(use, agent_id, ts)
        self._number(use, ts, out)
        return call_id

    def _open_call_id(self, agent_id: str) -> str | None:
        """Our id of the open call that the agent means: the oldest with that id, or of all."""
        if agent_id in self._open:
            return agent_id
        if not agent_id:
            return next(iter(self._open), None)
        renamed = self._renamed.get(agent_id)
        while renamed:
            if renamed[0] in self._open:
                return renamed[0]
            renamed.popleft()
        self._renamed.pop(agent_id, None)
        return None

    def _handle_output(self, output: ToolOutput, ts: float, out: list[Event]) -> None:
        call_id = self._open_call_id(output.call_id)
        if call_id is None and output.call_id in self._closed:
            self._emit(Vendor("late_tool_output", msgspec.to_builtins(output)), ts, out)
            return
        if call_id is None:
            call_id = self._open_call(ToolUse(output.call_id, name="unknown"), ts, out)
        self._emit(replace(output, call_id=call_id), ts, out)

    def _close_call(self, result: ToolResult, ts: float, out: list[Event]) -> None:
        agent_id = call_id = result.call_id
        opened = self._open.pop(agent_id, None)
        if opened is None:
            open_id = self._open_call_id(agent_id)
            if open_id is None and agent_id in self._closed:
                self._emit(Vendor("late_tool_result", msgspec.to_builtins(result)), ts, out)
                return
            if open_id is None:
                use = ToolUse(agent_id, name=result.name or "unknown")
                open_id = self._open_call(use, ts, out)
            call_id, opened = open_id, self._open.pop(open_id)
        self._closed[call_id] = None
        if len(self._closed) > 2 * MAX_CLOSED_IDS:
            for oldest in [*islice(self._closed, MAX_CLOSED_IDS)]:
                del self._closed[oldest]
        took = result.duration_ms
        if took is None or took < 0:
            # The event was just created by the backend, and nothing else refers to it yet.
            took = round((ts - opened.since) * 1000) if ts > opened.since else 0
            force_setattr(result, "duration_ms", took)
        if agent_id != call_id:
            force_setattr(result, "call_id", call_id)
        if not result.name:
            force_setattr(result, "name", opened.use.name)
        self._number(result, ts, out)
        tool = opened.use
        if result.status == "denied":
            self.denied.append(
                DeniedCall(
                    tool.name,
                    title=tool.title,
                    reason=result.error,
                    call_id=result.call_id,
                    rule=self._denial_rules.get(opened.agent_id)
                    or (result.output if result.error == PERMISSION_DENIED else None),
                )
            )
        elif (
            result.status == "success"
            and tool.kind in _WRITING
            and opened.agent_id not in self._self_reported
        ):
            for path in tool.paths:
                self._report_file_change(path, tool.kind, result.call_id, ts, out)

    def _report_file_change(
        self, path: str, kind: str, call_id: str, ts: float, out: list[Event]
    ) -> None:
        absolute = os.path.normpath(os.path.join(self._cwd or os.sep, path))
        if absolute in self._written_for_agent:
            self._written_for_agent.remove(absolute)
            return
        if kind == "edit":
            before = self.written.get(absolute)
            new = self._existed_before(absolute) is False
            change: FileKind = "modified" if before or not new else "created"
        else:
            change = "deleted" if kind == "delete" else "moved"
        if self.written.get(absolute) != "created" or change == "deleted":
            self.written[absolute] = change
        self._emit(FileChange(absolute, change, call_id=call_id), ts, out)

    def _emit(self, event: Event, ts: float, out: list[Event]) -> None:
        field = _JSON_FIELDS.get(type(event))
        if field is not None and is_too_deep(getattr(event, field)):
            event = replace(event, **{field: f"(left out: {TOO_DEEP})"})
        if isinstance(event, Vendor) and event.name in OWN_VENDOR_EVENTS:
            # Of the agent or its model: the user's prompt, and what corral says of a run, must not
            # be what they wrote.
            event = replace(event, name=f"agent:{event.name}")
        self._number(event, ts, out)

    def _number(self, event: Event, ts: float, out: list[Event]) -> None:
        self._seq += 1
        out.append(self._with_envelope(event, ts))

    def _with_envelope(self, event: E, ts: float) -> E:
        return replace(
            event,
            seq=self._seq,
            ts=ts,
            run_id=self._run_id,
            session_id=event.session_id or self._session_id,
            agent=self._agent,
            node=self._node,
            label=self._label,
        )


def with_envelope_of(event: E, other: Event) -> E:
    """The event with the number, the time and the origin of another one."""
    return replace(
        event,
        seq=other.seq,
        ts=other.ts,
        run_id=other.run_id,
        session_id=other.session_id,
        agent=other.agent,
        node=other.node,
        label=other.label,
    )


def _add(first: tuple[Usage, Cost], second: tuple[Usage, Cost]) -> tuple[Usage, Cost]:
    amounts = [cost.usd for _, cost in (first, second) if cost.usd is not None]
    source = second[1].source if second[1].usd is not None else first[1].source
    return first[0] + second[0], Cost(sum(amounts), source) if amounts else second[1]


_JSON_FIELDS: dict[type[Event], str] = {
    PermissionRequest: "input",
    Vendor: "data",
    Unknown: "frame",
}
"""The fields with arbitrary JSON of the agent."""
