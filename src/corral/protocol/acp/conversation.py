"""One ACP session: turns the agent's updates into raw events.

A tool call goes through these states: *open* (announced, perhaps without details), *reported* (its
``tool_use`` event was emitted) and *closed* (its ``tool_result`` event was emitted). It is reported
as soon as it has started, or has details and something else arrives. ``AcpClient`` describes the
states of the session. Nothing here waits.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Literal

import msgspec

from corral.events import (
    Plan,
    PlanEntry,
    Text,
    Thinking,
    ToolUse,
    Unknown,
    UsageReport,
    Vendor,
)
from corral.protocol.acp import methods
from corral.protocol.acp.frames import (
    PASSED_THROUGH,
    CostAmount,
    MessageChunk,
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
from corral.protocol.acp.tool_calls import FINAL_STATUSES, OpenCall
from corral.protocol.ndjson import RawEvent, TurnEnd
from corral.values import Cost, Json, Usage, as_object, convert_to, subtract_by_model

MAX_CLOSED_IDS = 1024
"""Ids of closed calls that are remembered, to tell a late update from a new call."""


class AcpConversation:
    """``replaying``: updates before the first prompt are history and are dropped."""

    def __init__(self, session_id: str, quirks: AcpQuirks, *, replaying: bool = False) -> None:
        self.session_id = session_id
        self.update_count = 0
        """Incremented with each batch of updates."""
        self._quirks = quirks
        self._injected_text = quirks.injected_text
        self._error_text = quirks.error_text
        self._error_chunk: str | None = None
        self._reported_usage = Usage()
        self._reported_by_model: dict[str, Usage] = {}
        """Usage of earlier turns, for agents whose reply counts the entire session."""
        self._replaying = replaying
        self._cancelling = False
        self._message_id: str | None = None
        self._open: dict[str, OpenCall] = {}
        """Open calls by id, in order of arrival."""
        self._ready: dict[str, OpenCall] = {}
        """Open calls that have details and are not reported yet."""
        self._without_id: OrderedDict[str, OpenCall] = OrderedDict()
        """Open calls that came without an id, the oldest first."""
        self._closed: dict[str, None] = {}
        self._generated_ids = 0
        self._usage = Usage()
        self._cost_before: float | None = None if replaying else 0.0
        """The session's cost when the turn began; ``None`` if unknown."""
        self._cost: float | None = None

    def handle_update(self, update: Update, items: list[RawEvent]) -> None:
        """Append the events of one update. This is the hot path: keep it small."""
        if type(update) is MessageChunk:
            if self._replaying:
                return
            if self._ready:
                self._report_ready(items)
            text = update.content.text
            if self._quirks.errors_without_message_id:
                self._error_chunk = text if update.message_id is None else None
            elif self._error_text:
                self._error_chunk = text if text.startswith(self._error_text) else None
            if self._injected_text and text.startswith(self._injected_text):
                items.append(Vendor("injected_text", text))
            elif text and update.message_id != self._message_id:
                self._message_id = update.message_id
                items.append(Text(text, message_id=update.message_id))
            elif text:
                items.append(text)
            if update.meta is not None:
                self._add_chunk_usage(update.meta, items)
        else:
            self._handle_rare_update(update, items)

    def handle_untyped_update(self, update: Json, items: list[RawEvent]) -> None:
        """Append the events of an update that matched no frame type."""
        match update:
            case {"sessionUpdate": str(kind)} if kind in PASSED_THROUGH:
                items.append(Vendor(kind, _without_tag(update)))
            case {"sessionUpdate": "user_message_chunk"}:
                pass
            case {"sessionUpdate": ("agent_message_chunk" | "agent_thought_chunk") as kind}:
                if not self._replaying:  # an image or a link, which is not text
                    items.append(Vendor(kind, _without_tag(update)))
            case _:
                items.append(Unknown(update))

    def start_turn(self) -> None:
        """A prompt was sent: updates from here on belong to its turn."""
        self._replaying = False
        self._cancelling = False
        self._error_chunk = None
        self._usage = Usage()
        if self._cost is not None:
            self._cost_before = self._cost
        self._cost = None

    def cancel_turn(self) -> None:
        self._cancelling = True

    def add_permission_request(self, fields: ToolFields, items: list[RawEvent]) -> ToolUse:
        """The call that needs permission, reported first if it was not yet."""
        call = self._find_open_call(fields.tool_call_id) or self._open_call(fields.tool_call_id)
        self._merge_fields(call, fields)
        self._report(call, items)
        return call.tool_use()

    def deny_call(
        self, call_id: str, outcome: Literal["denied", "cancelled"], items: list[RawEvent]
    ) -> None:
        """Permission was denied. Closes the call if the agent sends no update for it."""
        call = self._open.get(call_id)
        if call is None:
            return
        call.outcome = outcome
        if self._quirks.no_update_after_denial:
            items.append(call.result_without_update())
            self._close_call(call_id)

    def finish_turn(self, result: Json, items: list[RawEvent]) -> None:
        self._close_all_calls(items)
        ended = methods.turn_end(result, self._quirks, self._usage, self._cost_so_far())
        if self._quirks.usage == "session" and (session_total := ended.usage) != Usage():
            by_model = ended.usage_by_model
            ended = msgspec.structs.replace(
                ended,
                usage=session_total - self._reported_usage,
                usage_by_model=subtract_by_model(by_model, self._reported_by_model),
            )
            self._reported_usage, self._reported_by_model = session_total, by_model
        if ended.ok and self._error_chunk is not None and self._is_error(self._error_chunk, ended):
            message = self._error_chunk.removeprefix(self._error_text)
            ended = msgspec.structs.replace(ended, ok=False, kind="agent_error", message=message)
        items.append(ended)

    def _is_error(self, text: str, ended: TurnEnd) -> bool:
        """Whether the last chunk of the answer is an error and not text of the model."""
        quirks = self._quirks
        is_certain = (
            bool(quirks.error_pattern) and re.search(quirks.error_pattern, text) is not None
        )
        return quirks.errors_without_message_id or is_certain or not ended.usage.total

    def fail_turn(self, code: int, message: str, data: Json, items: list[RawEvent]) -> None:
        self._close_all_calls(items)
        items.append(methods.failed_turn_end(code, message, data))

    def abandon_turn(self, items: list[RawEvent]) -> None:
        """The agent has exited: open calls are reported. There is no ``TurnEnd``."""
        self._close_all_calls(items)

    def _handle_rare_update(self, update: Update, items: list[RawEvent]) -> None:
        match update:
            case UsageUpdate():
                self._record_cost(update.cost)
                if not self._replaying:
                    self._report_ready(items)
                    cost = self._cost_so_far() if update.cost else None
                    items.append(UsageReport(self._usage, context_size=update.used, cost=cost))
            case _ if self._replaying:
                pass
            case ThoughtChunk():
                self._report_ready(items)
                if update.content.text:
                    items.append(Thinking(update.content.text, message_id=update.message_id))
            case ToolCall():
                self._handle_tool_call(update, items)
            case ToolCallUpdate():
                self._handle_tool_update(update, items)
            case PlanUpdate():
                self._report_ready(items)
                entries = [PlanEntry(e.content, e.status, e.priority) for e in update.entries]
                items.append(Plan(tuple(entries)))
            case UserChunk() | MessageChunk():
                pass

    def _handle_tool_call(self, update: ToolCall, items: list[RawEvent]) -> None:
        call = self._open.get(update.tool_call_id)
        if (
            call is None
            and self._quirks.repeats_finished_calls
            and update.tool_call_id in self._closed
        ):
            return
        if call is None:  # a new call: no more details will come for the others
            self._report_ready(items)
            self._error_chunk = None
            call = self._open_call(update.tool_call_id)
        self._merge_fields(call, update)
        if call.has_started:
            self._report(call, items)
        if update.status in FINAL_STATUSES:
            self._finish_call(call, update, items)

    def _handle_tool_update(self, update: ToolCallUpdate, items: list[RawEvent]) -> None:
        call = self._find_open_call(update.tool_call_id)
        if call is None and update.tool_call_id in self._closed:
            if update.status is not None:
                late = {"call_id": update.tool_call_id, "status": update.status}
                items.append(Vendor("late_tool_call_update", {**late, "title": update.title}))
            return
        if call is None:
            call = self._open_call(update.tool_call_id)
        self._merge_fields(call, update)
        if call.has_started:
            self._report(call, items)
        if update.status in FINAL_STATUSES:
            self._finish_call(call, update, items)
        elif (output := call.output_delta(update)) is not None:
            items.append(output)

    def _open_call(self, agent_id: str) -> OpenCall:
        self._closed.pop(agent_id, None)
        id = agent_id
        while not id or id in self._open:
            self._generated_ids += 1
            id = f"call-{self._generated_ids}"
        call = self._open[id] = OpenCall(id, self._quirks)
        if not agent_id:
            self._without_id[id] = call
        return call

    def _merge_fields(self, call: OpenCall, fields: ToolFields) -> None:
        call.merge(fields)
        if not call.is_reported and call.has_details:
            self._ready[call.id] = call

    def _find_open_call(self, agent_id: str) -> OpenCall | None:
        """The open call with this id; for an empty id the oldest call without one."""
        if agent_id:
            return self._open.get(agent_id)
        return next(iter(self._without_id.values()), None)

    def _report(self, call: OpenCall, items: list[RawEvent]) -> None:
        if not call.is_reported:
            call.is_reported = True
            self._ready.pop(call.id, None)
            items.append(call.tool_use())

    def _report_ready(self, items: list[RawEvent]) -> None:
        """Report the calls that have details: something else arrived, so no more details are
        expected. Calls without details stay: some agents open several before they fill them."""
        for call in list(self._ready.values()):
            self._report(call, items)

    def _finish_call(self, call: OpenCall, fields: ToolFields, items: list[RawEvent]) -> None:
        self._report(call, items)
        items.append(call.result(fields, cancelling=self._cancelling))
        self._close_call(call.id)

    def _close_call(self, id: str) -> None:
        del self._open[id]
        self._ready.pop(id, None)
        self._without_id.pop(id, None)
        self._closed[id] = None
        if len(self._closed) > MAX_CLOSED_IDS:
            del self._closed[next(iter(self._closed))]

    def _close_all_calls(self, items: list[RawEvent]) -> None:
        for call in self._open.values():
            self._report(call, items)
            if call.outcome:
                items.append(call.result_without_update())
        self._open.clear()
        self._ready.clear()
        self._without_id.clear()
        self._closed.clear()
        self._cancelling = False

    def _add_chunk_usage(self, meta: Json, items: list[RawEvent]) -> None:
        """Add the usage that some agents send with text chunks, once per model call."""
        if self._quirks.usage != "chunks" or not isinstance(meta, dict):
            return
        try:
            tokens = convert_to(meta.get("usage"), Tokens | None)
        except msgspec.ValidationError:
            items.append(Unknown(meta))
            return
        if tokens is not None:
            self._usage = self._usage + methods.usage_from_tokens(tokens)
            items.append(UsageReport(self._usage))

    def _record_cost(self, money: CostAmount | None) -> None:
        if money is not None and money.currency == "USD":
            self._cost = money.amount
            if self._replaying:
                self._cost_before = money.amount

    def _cost_so_far(self) -> Cost:
        """The cost of this turn. Agents report the cost of the session."""
        if self._cost is None or self._cost_before is None:  # unknown for some loaded sessions
            return Cost()
        return Cost(usd=round(max(0.0, self._cost - self._cost_before), 9), source="reported")


def _without_tag(update: Json) -> Json:
    return {key: value for key, value in as_object(update).items() if key != "sessionUpdate"}
