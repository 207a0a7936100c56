"""The laws of the stream, kept in one place for every backend.

Items come in as a dialect made them; events go out lawful: ``init`` first and
``done`` last, each once, numbered without gaps, every tool result with its
use, every open tool closed. Nothing here waits or touches a disk.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import force_setattr, replace

from corral.errors import CorralError
from corral.events import (
    Done,
    Error,
    Event,
    FileChange,
    FileKind,
    Init,
    Log,
    PermissionRequest,
    Text,
    ToolOutput,
    ToolResult,
    ToolUse,
    Unknown,
    UsageReport,
    Vendor,
)
from corral.nesting import TOO_DEEP, too_deep
from corral.protocol.ndjson import RawEvent, TurnEnd
from corral.values import MOST_TOKENS, Cost, DeniedCall, FileChanged, Usage

HELD_BEFORE_INIT = 1000
"""Log lines that may come before the agent's own ``init``; then one is made up."""
CLOSED_REMEMBERED = 4096
"""Ids of closed tools, to tell a late result from an unknown one."""


class _Open(msgspec.Struct):
    theirs: str
    """The agent's own id, which it may have used before."""
    name: str
    kind: str
    title: str | None
    paths: tuple[str, ...]
    since: float


class EventNormalizer:
    """One turn's guard. ``existed`` says whether a path was there before the turn."""

    def __init__(
        self,
        init: Init,
        *,
        started: float,
        existed: Callable[[str], bool | None] = lambda _path: None,
    ) -> None:
        self._made_up = init
        self._started = started
        self._existed = existed
        self._run_id, self._agent, self._node = init.run_id, init.agent, init.node
        self._label = init.label
        self._session_id = init.session_id
        self._seq = 0
        self._held: list[Log | Error] = []
        self._open: OrderedDict[str, _Open] = OrderedDict()
        """By our own ids, in the order they came. Ordered: its first is found at once."""
        self._renamed: dict[str, deque[str]] = {}
        """The agent's id → ours, where it used one for several calls; the oldest first. Some
        may be closed by now."""
        self._closed: dict[str, None] = {}
        self._calls = 0
        self._telling: set[str] = set()
        """Calls whose tool told of its changes itself."""
        self._served: set[str] = set()
        """Paths that we wrote for a call under way: its result confirms no further change."""
        self._usage = Usage()
        self._cost = Cost()
        self._disbelieved = False
        self.finish: TurnEnd | None = None
        self.answered = False
        """Whether any answer text came."""
        self.worked = False
        """Whether any tool ran."""
        self.denied: list[DeniedCall] = []
        self.written: dict[str, FileKind] = {}
        """Paths that the agent's tools confirmed to have written."""

    @property
    def session_id(self) -> str | None:
        return self._session_id

    def take(self, items: Iterable[RawEvent], ts: float) -> list[Event]:
        """The lawful events that these items become."""
        out: list[Event] = []
        append = out.append
        run_id, agent, node, session_id = self._run_id, self._agent, self._node, self._session_id
        seq, label = self._seq, self._label
        for item in items:
            if type(item) is str and seq:  # the hot path: text, by the hundred thousand
                seq += 1
                self.answered = True
                append(
                    Text(
                        item,
                        seq=seq,
                        ts=ts,
                        run_id=run_id,
                        session_id=session_id,
                        agent=agent,
                        node=node,
                        label=label,
                    )
                )
            else:
                self._seq = seq
                self._take_one(Text(item) if isinstance(item, str) else item, ts, out)
                seq, session_id = self._seq, self._session_id
        self._seq = seq
        return out

    def close(
        self,
        ts: float,
        error: CorralError | None,
        *,
        files: tuple[FileChanged, ...] = (),
        files_complete: bool = True,
        denied_complete: bool = True,
        resume_token: str | None = None,
        cost: Cost | None = None,
    ) -> list[Event]:
        """The end: open tools closed as cancelled, then ``done``."""
        out: list[Event] = []
        if not self._seq:
            self._begin(Init(), ts, out)
        for call_id in list(self._open):
            self._result(ToolResult(call_id, "cancelled"), ts, out)
        if error is not None:
            self._emit(error.event(), ts, out)
        finish = self.finish or TurnEnd(ok=False)
        done = Done(
            status=error.status if error else "success",
            stop_reason=finish.stop_reason,
            model=finish.model,
            usage=finish.usage if finish.usage != Usage() else self._usage,
            usage_by_model=finish.usage_by_model,
            cost=cost or (finish.cost if finish.cost != Cost() else self._cost),
            files=files,
            files_complete=files_complete,
            denied=tuple(self.denied),
            denied_complete=denied_complete,
            resume_token=resume_token,
            duration_ms=max(0, round((ts - self._started) * 1000)),
            error=error.event() if error else None,
        )
        self._emit(done, ts, out)
        return out

    def _take_one(self, item: Event | TurnEnd, ts: float, out: list[Event]) -> None:
        if isinstance(item, TurnEnd):
            self._finished(item, ts, out)
            return
        if not self._seq and not self._begin_or_hold(item, ts, out):
            return
        match item:
            case Init():
                self._again(item, ts, out)
            case ToolUse():
                self._use(item, ts, out)
            case ToolResult():
                self._result(item, ts, out)
            case ToolOutput():
                self._output(item, ts, out)
            case Done():
                self._emit(Vendor("done", msgspec.to_builtins(item)), ts, out)
            case Text():
                self.answered = True
                self._emit(item, ts, out)
            case FileChange():
                # Told by the tool itself: it knows better than we could guess from its kind.
                self.written[item.path] = item.kind
                if item.call_id is not None:
                    self._telling.add(item.call_id)
                else:
                    self._served.add(item.path)
                self._emit(item, ts, out)
            case UsageReport():
                self._count(item, ts, out)
            case _:
                self._emit(item, ts, out)

    def _finished(self, finish: TurnEnd, ts: float, out: list[Event]) -> None:
        """A turn that ended well keeps its status: a later result is reported, nothing more."""
        if self.finish is not None and self.finish.ok:
            if self._seq:
                self._emit(Vendor("late_result", msgspec.to_builtins(finish)), ts, out)
            return
        usage, cost = finish.usage.plausible(), finish.cost.plausible()
        told = {name: each for name, each in finish.usage_by_model.items() if each != Usage()}
        by_model = {name: each.plausible() for name, each in told.items()}
        self.finish = replace(finish, usage=usage, usage_by_model=by_model, cost=cost)
        if (usage, cost, by_model) != (finish.usage, finish.cost, told):
            self._disbelieve(ts, out)

    def _count(self, report: UsageReport, ts: float, out: list[Event]) -> None:
        usage, size = report.usage.plausible(), report.context_size
        cost = report.cost.plausible() if report.cost else None
        if size is not None and not 0 <= size <= MOST_TOKENS:
            size = None
        is_believed = (usage, cost, size) == (report.usage, report.cost, report.context_size)
        self._usage = usage
        self._cost = cost or self._cost
        self._emit(replace(report, usage=usage, cost=cost, context_size=size), ts, out)
        if not is_believed:
            self._disbelieve(ts, out)

    def _disbelieve(self, ts: float, out: list[Event]) -> None:
        """Said once a turn, and never before ``init``."""
        if self._seq and not self._disbelieved:
            self._disbelieved = True
            message = "the agent reported an impossible usage or cost, which is taken as unknown"
            warning = Error(
                "implausible_usage", message, recoverable=True, level="warning", phase="response"
            )
            self._emit(warning, ts, out)

    def _begin_or_hold(self, item: Event, ts: float, out: list[Event]) -> bool:
        """Whether the stream has begun and the item is still to be taken."""
        if isinstance(item, Log | Error) and len(self._held) < HELD_BEFORE_INIT:
            self._held.append(item)
            return False
        is_init = isinstance(item, Init)
        self._begin(item if isinstance(item, Init) else Init(), ts, out)
        return not is_init

    def _begin(self, init: Init, ts: float, out: list[Event]) -> None:
        ours = self._made_up
        self._session_id = init.session_id or self._session_id
        whole = replace(
            init,
            model=init.model or ours.model,
            cwd=init.cwd or ours.cwd,
            tools=init.tools or ours.tools,
            agent_version=init.agent_version or ours.agent_version,
            auth=init.auth or ours.auth,
            capabilities=init.capabilities or ours.capabilities,
            resumed=init.resumed or ours.resumed,
        )
        self._emit(whole, ts, out)
        for held in self._held:
            self._emit(held, ts, out)
        self._held.clear()

    def _again(self, init: Init, ts: float, out: list[Event]) -> None:
        self._session_id = init.session_id or self._session_id
        self._emit(Vendor("init", msgspec.to_builtins(init)), ts, out)

    def _use(self, use: ToolUse, ts: float, out: list[Event]) -> str:
        self.worked = True
        theirs = call_id = use.call_id
        while not call_id or call_id in self._open or call_id in self._closed:
            self._calls += 1
            call_id = f"{theirs or 'call'}#{self._calls}"
        if call_id != theirs:
            use = replace(use, call_id=call_id)
            self._renamed.setdefault(theirs, deque()).append(call_id)
        self._open[call_id] = _Open(theirs, use.name, use.kind, use.title, use.paths, ts)
        self._emit(use, ts, out)
        return call_id

    def _meant(self, theirs: str) -> str | None:
        """Our id of the open tool that the agent means: the oldest of that id, or of all."""
        if theirs in self._open:
            return theirs
        if not theirs:
            return next(iter(self._open), None)
        renamed = self._renamed.get(theirs)
        while renamed:
            if renamed[0] in self._open:
                return renamed[0]
            renamed.popleft()
        self._renamed.pop(theirs, None)
        return None

    def _output(self, output: ToolOutput, ts: float, out: list[Event]) -> None:
        call_id = self._meant(output.call_id)
        if call_id is None and output.call_id in self._closed:
            self._emit(Vendor("late_tool_output", msgspec.to_builtins(output)), ts, out)
            return
        if call_id is None:
            call_id = self._use(ToolUse(output.call_id, name="unknown"), ts, out)
        self._emit(replace(output, call_id=call_id), ts, out)

    def _result(self, result: ToolResult, ts: float, out: list[Event]) -> None:
        call_id = self._meant(result.call_id)
        if call_id is None and result.call_id in self._closed:
            self._emit(Vendor("late_tool_result", msgspec.to_builtins(result)), ts, out)
            return
        if call_id is None:
            call_id = self._use(ToolUse(result.call_id, name=result.name or "unknown"), ts, out)
        tool = self._open.pop(call_id)
        self._closed[call_id] = None
        if len(self._closed) > CLOSED_REMEMBERED:
            del self._closed[next(iter(self._closed))]
        took = result.duration_ms
        if took is None or took < 0:
            took = max(0, round((ts - tool.since) * 1000))
        named = replace(result, call_id=call_id, name=result.name or tool.name, duration_ms=took)
        self._emit(named, ts, out)
        if named.status == "denied":
            self.denied.append(
                DeniedCall(tool.name, title=tool.title, reason=named.error, call_id=call_id)
            )
        elif (
            named.status == "success"
            and tool.kind in ("edit", "delete", "move")
            and tool.theirs not in self._telling
        ):
            for path in tool.paths:
                self._written(path, tool.kind, call_id, ts, out)

    def _written(self, path: str, kind: str, call_id: str, ts: float, out: list[Event]) -> None:
        whole = os.path.normpath(os.path.join(self._made_up.cwd or os.sep, path))
        if whole in self._served:
            self._served.discard(whole)
            return
        if kind == "edit":
            before = self.written.get(whole)
            new = self._existed(whole) is False
            change: FileKind = "modified" if before or not new else "created"
        else:
            change = "deleted" if kind == "delete" else "moved"
        if self.written.get(whole) != "created" or change == "deleted":
            self.written[whole] = change
        self._emit(FileChange(whole, change, call_id=call_id), ts, out)

    def _emit(self, event: Event, ts: float, out: list[Event]) -> None:
        self._seq += 1
        held = _json_of(event)
        if held is not None and too_deep(getattr(event, held)):
            event = replace(event, **{held: f"(left out: {TOO_DEEP})"})
        # The event is fresh from the dialect and nobody else has seen it yet.
        force_setattr(event, "seq", self._seq)
        force_setattr(event, "ts", ts)
        force_setattr(event, "run_id", self._run_id)
        force_setattr(event, "session_id", event.session_id or self._session_id)
        force_setattr(event, "agent", self._agent)
        force_setattr(event, "node", self._node)
        force_setattr(event, "label", self._label)
        out.append(event)


def _json_of(event: Event) -> str | None:
    """The field that holds whatever JSON the agent sent."""
    match event:
        case ToolUse() | PermissionRequest():
            return "input"
        case Vendor():
            return "data"
        case Unknown():
            return "frame"
        case _:
            return None
