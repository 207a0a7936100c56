"""One session of an agent: its updates → items. It never waits."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Literal, cast

import msgspec

from corral.events import (
    Json,
    Plan,
    PlanEntry,
    Text,
    Thinking,
    ToolUse,
    Unknown,
    UsageReport,
    Vendor,
)
from corral.protocol.acp import replies
from corral.protocol.acp.frames import (
    ASIDES,
    MessageChunk,
    Money,
    PlanUpdate,
    ThoughtChunk,
    Tokens,
    ToolCall,
    ToolCallUpdate,
    ToolFields,
    Update,
    UsageUpdate,
    UserChunk,
)
from corral.protocol.acp.quirks import AcpQuirks
from corral.protocol.acp.tool_calls import FINAL, OpenCall
from corral.protocol.ndjson import RawEvent, TurnEnd
from corral.values import Cost, Usage, since_by_model

CLOSED_REMEMBERED = 1024
"""Ids of calls that ended in this turn, to tell a late word from a new call."""


class Conversation:
    """``replaying``: what comes before the first prompt is history, and is dropped."""

    def __init__(self, session_id: str, quirks: AcpQuirks, *, replaying: bool = False) -> None:
        self.session_id = session_id
        self.heard = 0
        """Grows with each batch of updates."""
        self._quirks = quirks
        self._injected = quirks.injected_text
        self._error_text = quirks.error_text
        self._complaint: str | None = None
        self._told_usage = Usage()
        self._told_by_model: dict[str, Usage] = {}
        """Of the turns before, where a reply counts them too."""
        self._replaying = replaying
        self._cancelling = False
        self._message_id: str | None = None
        self._open: dict[str, OpenCall] = {}
        """In the order they came."""
        self._known: dict[str, OpenCall] = {}
        """Those whose ``tool_use`` is not out yet, though there is something to tell."""
        self._nameless: OrderedDict[str, OpenCall] = OrderedDict()
        """Those that came without an id; the oldest first."""
        self._closed: dict[str, None] = {}
        self._calls = 0
        self._usage = Usage()
        self._spent: float | None = None if replaying else 0.0
        """The session's cost when the turn began; ``None``: not known."""
        self._cost: float | None = None

    def take(self, update: Update, items: list[RawEvent]) -> None:
        """The hot loop: an update → what it means, at the end of ``items``."""
        if type(update) is MessageChunk:
            if self._replaying:
                return
            if self._known:
                self._tell_known(items)
            text = update.content.text
            if self._quirks.nameless_errors:
                self._complaint = text if update.message_id is None else None
            elif self._error_text:
                self._complaint = text if text.startswith(self._error_text) else None
            if self._injected and text.startswith(self._injected):
                items.append(Vendor("injected_text", text))
            elif text and update.message_id != self._message_id:
                self._message_id = update.message_id
                items.append(Text(text, message_id=update.message_id))
            elif text:
                items.append(text)
            if update.meta is not None:
                self._count(update.meta, items)
        else:
            self._take_rarer(update, items)

    def aside(self, update: Json, items: list[RawEvent]) -> None:
        """An update that is no frame of ours."""
        match update:
            case {"sessionUpdate": str(kind)} if kind in ASIDES:
                items.append(Vendor(kind, _rest(update)))
            case {"sessionUpdate": "user_message_chunk"}:
                pass
            case {"sessionUpdate": ("agent_message_chunk" | "agent_thought_chunk") as kind}:
                if not self._replaying:  # an image, a link: what no answer text can hold
                    items.append(Vendor(kind, _rest(update)))
            case _:
                items.append(Unknown(update))

    def begin(self) -> None:
        """A prompt goes out: what comes from here on is the answer."""
        self._replaying = False
        self._cancelling = False
        self._complaint = None
        self._usage = Usage()
        if self._cost is not None:
            self._spent = self._cost
        self._cost = None

    def cancel(self) -> None:
        self._cancelling = True

    def ask(self, fields: ToolFields, items: list[RawEvent]) -> ToolUse:
        """The call that leave is asked for; told first, where it was not yet."""
        call = self._meant(fields.tool_call_id) or self._opened(fields.tool_call_id)
        self._learn(call, fields)
        self._tell(call, items)
        return call.use()

    def refuse(
        self, call_id: str, fate: Literal["denied", "cancelled"], items: list[RawEvent]
    ) -> None:
        """We gave no leave. What the agent stays silent on is closed here."""
        call = self._open.get(call_id)
        if call is None:
            return
        call.fate = fate
        if self._quirks.rejected_tools_stay_silent:
            items.append(call.unheard())
            self._close(call_id)

    def finish(self, result: Json, items: list[RawEvent]) -> None:
        self._end(items)
        ended = replies.finish(result, self._quirks, self._usage, self._cost_so_far())
        if self._quirks.usage == "session" and (whole := ended.usage) != Usage():
            by_model = ended.usage_by_model
            ended = msgspec.structs.replace(
                ended,
                usage=whole - self._told_usage,
                usage_by_model=since_by_model(by_model, self._told_by_model),
            )
            self._told_usage, self._told_by_model = whole, by_model
        if ended.ok and self._complaint is not None and self._is_error(self._complaint, ended):
            told = self._complaint.removeprefix(self._error_text)
            ended = msgspec.structs.replace(ended, ok=False, kind="agent_error", message=told)
        items.append(ended)

    def _is_error(self, text: str, ended: TurnEnd) -> bool:
        """Whether the last piece of the answer is an error and not the model's text."""
        quirks = self._quirks
        is_certain = bool(quirks.error_signs) and re.search(quirks.error_signs, text) is not None
        return quirks.nameless_errors or is_certain or not ended.usage.total

    def fail(self, code: int, message: str, data: Json, items: list[RawEvent]) -> None:
        self._end(items)
        items.append(replies.failed(code, message, data))

    def abandon(self, items: list[RawEvent]) -> None:
        """The agent is gone: what was held back is told, and there is no last word."""
        self._end(items)

    def _take_rarer(self, update: Update, items: list[RawEvent]) -> None:
        match update:
            case UsageUpdate():
                self._pay(update.cost)
                if not self._replaying:
                    self._tell_known(items)
                    cost = self._cost_so_far() if update.cost else None
                    items.append(UsageReport(self._usage, context_size=update.used, cost=cost))
            case _ if self._replaying:
                pass
            case ThoughtChunk():
                self._tell_known(items)
                if update.content.text:
                    items.append(Thinking(update.content.text, message_id=update.message_id))
            case ToolCall():
                self._tool_call(update, items)
            case ToolCallUpdate():
                self._tool_update(update, items)
            case PlanUpdate():
                self._tell_known(items)
                entries = [PlanEntry(e.content, e.status, e.priority) for e in update.entries]
                items.append(Plan(tuple(entries)))
            case UserChunk() | MessageChunk():
                pass

    def _tool_call(self, update: ToolCall, items: list[RawEvent]) -> None:
        call = self._open.get(update.tool_call_id)
        if call is None and self._quirks.told_again and update.tool_call_id in self._closed:
            return
        if call is None:  # one more call; the others are complete by now
            self._tell_known(items)
            self._complaint = None
            call = self._opened(update.tool_call_id)
        self._learn(call, update)
        if call.begun:
            self._tell(call, items)
        if update.status in FINAL:
            self._ended(call, update, items)

    def _tool_update(self, update: ToolCallUpdate, items: list[RawEvent]) -> None:
        call = self._meant(update.tool_call_id)
        if call is None and update.tool_call_id in self._closed:
            if update.status is not None:
                late = {"call_id": update.tool_call_id, "status": update.status}
                items.append(Vendor("late_tool_call_update", {**late, "title": update.title}))
            return
        if call is None:
            call = self._opened(update.tool_call_id)
        self._learn(call, update)
        if call.begun:
            self._tell(call, items)
        if update.status in FINAL:
            self._ended(call, update, items)
        elif (output := call.output(update)) is not None:
            items.append(output)

    def _opened(self, theirs: str) -> OpenCall:
        self._closed.pop(theirs, None)
        id = theirs
        while not id or id in self._open:
            self._calls += 1
            id = f"call-{self._calls}"
        call = self._open[id] = OpenCall(id, self._quirks)
        if not theirs:
            self._nameless[id] = call
        return call

    def _learn(self, call: OpenCall, fields: ToolFields) -> None:
        call.learn(fields)
        if not call.told and call.known:
            self._known[call.id] = call

    def _meant(self, theirs: str) -> OpenCall | None:
        """The open call of that id; without an id, the oldest that came without one."""
        if theirs:
            return self._open.get(theirs)
        return next(iter(self._nameless.values()), None)

    def _tell(self, call: OpenCall, items: list[RawEvent]) -> None:
        if not call.told:
            call.told = True
            self._known.pop(call.id, None)
            items.append(call.use())

    def _tell_known(self, items: list[RawEvent]) -> None:
        """Something else came: what is held back will hardly get more to it. A call that
        nothing is known of waits on: some agents open several before they fill them."""
        for call in list(self._known.values()):
            self._tell(call, items)

    def _ended(self, call: OpenCall, fields: ToolFields, items: list[RawEvent]) -> None:
        self._tell(call, items)
        items.append(call.result(fields, cancelling=self._cancelling))
        self._close(call.id)

    def _close(self, id: str) -> None:
        del self._open[id]
        self._known.pop(id, None)
        self._nameless.pop(id, None)
        self._closed[id] = None
        if len(self._closed) > CLOSED_REMEMBERED:
            del self._closed[next(iter(self._closed))]

    def _end(self, items: list[RawEvent]) -> None:
        for call in self._open.values():
            self._tell(call, items)
            if call.fate:
                items.append(call.unheard())
        self._open.clear()
        self._known.clear()
        self._nameless.clear()
        self._closed.clear()
        self._cancelling = False

    def _count(self, meta: Json, items: list[RawEvent]) -> None:
        """Tokens told beside the text, a model call at a time."""
        if self._quirks.usage != "chunks" or not isinstance(meta, dict):
            return
        try:
            told = msgspec.convert(meta.get("usage"), Tokens | None)
        except msgspec.ValidationError:
            items.append(Unknown(meta))
            return
        if told is not None:
            self._usage = self._usage + replies.tokens(told)
            items.append(UsageReport(self._usage))

    def _pay(self, money: Money | None) -> None:
        if money is not None and money.currency == "USD":
            self._cost = money.amount
            if self._replaying:
                self._spent = money.amount

    def _cost_so_far(self) -> Cost:
        """Of this turn. Agents tell that of the session."""
        if self._cost is None or self._spent is None:  # of a loaded session, perhaps for ever
            return Cost()
        return Cost(usd=round(max(0.0, self._cost - self._spent), 9), source="reported")


def _rest(update: Json) -> Json:
    members = cast("dict[str, Json]", update)
    return {key: value for key, value in members.items() if key != "sessionUpdate"}
