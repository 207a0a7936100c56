"""One ACP session: turns the agent's updates into raw events, and the reply to a prompt into the
end of its turn.

A tool call goes through these states: *open* (announced, perhaps without details), *reported* (its
``tool_use`` event was emitted) and *closed* (its ``tool_result`` event was emitted). Agents open a
call without details and fill it by updates (``OpenToolCall``). One ``tool_use`` event is emitted:
as soon as the call has started, or has details and something else arrives. ``AcpClient`` describes
the states of the session. Nothing here waits.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Literal

import msgspec

from corral._protocol.acp.frames import (
    PASSED_THROUGH,
    MessageChunk,
    PlanUpdate,
    PromptResult,
    PromptTokens,
    Quota,
    QuotaTokens,
    ThoughtChunk,
    ToolCallFrame,
    ToolCallUpdate,
    ToolFields,
    Update,
    UsageUpdate,
    UserChunk,
)
from corral._protocol.acp.quirks import AcpQuirks
from corral._protocol.acp.tool_calls import FINAL_STATUSES, OpenToolCall
from corral._protocol.jsonrpc import RpcError
from corral._protocol.ndjson import RawEvent, TurnEnd
from corral.events import Plan, PlanEntry, Text, Thinking, ToolUse, Unknown, UsageReport, Vendor
from corral.values import Cost, Json, Usage, as_object, convert_to, subtract_by_model

MAX_DETAIL = 500
"""Characters of an error's ``data`` that are copied into the message."""
MESSAGES = {
    "max_tokens": "the model reached its token limit before the answer was complete",
    "max_turn_requests": "the agent reached its limit of model requests in one turn",
    "refusal": "the model refused to answer",
    "cancelled": "the turn was cancelled",
}
MAX_CLOSED_IDS = 1024
"""Ids of closed calls that are remembered, to tell a late update from a new call."""


class AcpConversation:
    """``replaying``: updates before the first prompt are history and are dropped."""

    def __init__(self, session_id: str, quirks: AcpQuirks, *, replaying: bool = False) -> None:
        self.session_id = session_id
        self.update_count = 0
        """Incremented with each batch of updates."""
        self._quirks = quirks
        self._has_marked_text = bool(
            quirks.errors_without_message_id or quirks.error_text or quirks.injected_text
        )
        """Some chunks of the answer are not of the model."""
        self._error_chunk: str | None = None
        self._reported_usage = Usage()
        self._reported_by_model: dict[str, Usage] = {}
        """Usage of earlier turns, for agents whose reply counts the entire session."""
        self._replaying = replaying
        self.is_cancelling: bool = False
        """The turn was cancelled, and its end has not come yet."""
        self._message_id: str | None = None
        self._open: dict[str, OpenToolCall] = {}
        """Open calls by id, in order of arrival."""
        self._ready: dict[str, OpenToolCall] = {}
        """Open calls that have details and are not reported yet."""
        self._without_id: OrderedDict[str, OpenToolCall] = OrderedDict()
        """Open calls that came without an id, the oldest first."""
        self._closed: dict[str, None] = {}
        """Calls of this turn that have ended, and those that were open when it ended."""
        self._earlier: dict[str, None] = {}
        """Those of the turns before it, whose ids a new call may have."""
        self._is_between_turns = False
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
            if self._has_marked_text and self._is_injected(text, update.message_id):
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

    def _is_injected(self, text: str, message_id: str | None) -> bool:
        """Whether the agent itself wrote this text. Also notes one that may be an error."""
        quirks = self._quirks
        if quirks.errors_without_message_id:
            self._error_chunk = text if message_id is None else None
        elif quirks.error_text:
            self._error_chunk = text if text.startswith(quirks.error_text) else None
        return bool(quirks.injected_text) and text.startswith(quirks.injected_text)

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
        self._replaying = self._is_between_turns = False
        self._earlier |= self._closed
        self._closed.clear()
        _forget_oldest(self._earlier)
        self.is_cancelling = False
        self._error_chunk = None
        self._usage = Usage()
        if self._cost is not None:
            self._cost_before = self._cost
        self._cost = None

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
        self.abandon_turn(items)
        ended = turn_end(result, self._quirks, self._usage, self._cost_so_far(), items)
        if self._quirks.usage == "session" and (session_total := ended.usage) != Usage():
            by_model = ended.usage_by_model
            ended = msgspec.structs.replace(
                ended,
                usage=session_total - self._reported_usage,
                usage_by_model=subtract_by_model(by_model, self._reported_by_model),
            )
            self._reported_usage, self._reported_by_model = session_total, by_model
        text, quirks = self._error_chunk, self._quirks
        # Whether the last chunk of the answer is an error and not text of the model.
        if (
            ended.ok
            and text is not None
            and (
                quirks.errors_without_message_id
                or (quirks.error_pattern and re.search(quirks.error_pattern, text))
                or not ended.usage.total
            )
        ):
            message = text.removeprefix(quirks.error_text)
            ended = msgspec.structs.replace(ended, ok=False, kind="agent_error", message=message)
        items.append(ended)

    def fail_turn(self, error: RpcError, items: list[RawEvent]) -> None:
        self.abandon_turn(items)
        items.append(failed_turn_end(error))

    def _handle_rare_update(self, update: Update, items: list[RawEvent]) -> None:
        match update:
            case UsageUpdate():
                if update.cost is not None and update.cost.currency == "USD":
                    self._cost = update.cost.amount
                    if self._replaying:
                        self._cost_before = update.cost.amount
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
            case ToolCallFrame() | ToolCallUpdate():
                self._handle_tool_call(update, items)
            case PlanUpdate():
                self._report_ready(items)
                entries = [PlanEntry(e.content, e.status, e.priority) for e in update.entries]
                items.append(Plan(tuple(entries)))
            case UserChunk() | MessageChunk():
                pass

    def _handle_tool_call(
        self, update: ToolCallFrame | ToolCallUpdate, items: list[RawEvent]
    ) -> None:
        id, is_new = update.tool_call_id, isinstance(update, ToolCallFrame)
        call = self._open.get(id) if is_new else self._find_open_call(id)
        # An update without a call: after the reply to the prompt, or the end of an earlier one.
        is_end = update.status in FINAL_STATUSES and id in self._earlier
        is_late = not is_new and (self._is_between_turns or is_end)
        if call is None and (id in self._closed or is_late):
            if is_new and self._quirks.repeats_finished_calls:
                return
            if not is_new:
                if update.status is not None:
                    late = {"call_id": id, "status": update.status, "title": update.title}
                    items.append(Vendor("late_tool_call_update", {**late}))
                return
        if call is None:
            if is_new:  # no more details will come for the others
                self._report_ready(items)
                self._error_chunk = None
            call = self._open_call(id)
        self._merge_fields(call, update)
        if call.has_started:
            self._report(call, items)
        if update.status in FINAL_STATUSES:
            self._report(call, items)
            items.append(call.result(update, cancelling=self.is_cancelling))
            self._close_call(call.id)
        elif not is_new and (output := call.output_delta(update)) is not None:
            items.append(output)

    def _open_call(self, agent_id: str) -> OpenToolCall:
        self._closed.pop(agent_id, None)
        id = agent_id
        while not id or id in self._open:
            self._generated_ids += 1
            id = f"call-{self._generated_ids}"
        call = self._open[id] = OpenToolCall(id, self._quirks)
        if not agent_id:
            self._without_id[id] = call
        return call

    def _merge_fields(self, call: OpenToolCall, fields: ToolFields) -> None:
        call.merge(fields)
        if not call.is_reported and call.has_details:
            self._ready[call.id] = call

    def _find_open_call(self, agent_id: str) -> OpenToolCall | None:
        """The open call with this id; for an empty id the oldest call without one."""
        if agent_id:
            return self._open.get(agent_id)
        return next(iter(self._without_id.values()), None)

    def _report(self, call: OpenToolCall, items: list[RawEvent]) -> None:
        if not call.is_reported:
            call.is_reported = True
            self._ready.pop(call.id, None)
            items.append(call.tool_use())

    def _report_ready(self, items: list[RawEvent]) -> None:
        """Report the calls that have details: something else arrived, so no more details are
        expected. Calls without details stay: some agents open several before they fill them."""
        for call in list(self._ready.values()):
            self._report(call, items)

    def _close_call(self, id: str) -> None:
        del self._open[id]
        self._ready.pop(id, None)
        self._without_id.pop(id, None)
        self._closed[id] = None
        _forget_oldest(self._closed)

    def abandon_turn(self, items: list[RawEvent]) -> None:
        """The turn has ended, or the agent has exited: open calls are reported."""
        for call in self._open.values():
            self._report(call, items)
            if call.outcome:
                items.append(call.result_without_update())
        self._closed |= dict.fromkeys(self._open)
        self._open.clear()
        self._ready.clear()
        self._without_id.clear()
        self.is_cancelling = False
        self._is_between_turns = True

    def _add_chunk_usage(self, meta: Json, items: list[RawEvent]) -> None:
        """Add the usage that some agents send with text chunks, once per model call."""
        if self._quirks.usage != "chunks" or not isinstance(meta, dict):
            return
        try:
            tokens = convert_to(meta.get("usage"), PromptTokens | None)
        except msgspec.ValidationError:
            items.append(Unknown(meta))
            return
        if tokens is not None:
            self._usage = self._usage + usage_from_tokens(tokens)
            items.append(UsageReport(self._usage))

    def _cost_so_far(self) -> Cost:
        """The cost of this turn. Agents report the cost of the session."""
        if self._cost is None or self._cost_before is None:  # unknown for some loaded sessions
            return Cost()
        return Cost(usd=round(max(0.0, self._cost - self._cost_before), 9), source="reported")


def _forget_oldest(ids: dict[str, None]) -> None:
    for id in [*ids][: len(ids) - MAX_CLOSED_IDS] if len(ids) > MAX_CLOSED_IDS else ():
        del ids[id]


def _without_tag(update: Json) -> Json:
    return {key: value for key, value in as_object(update).items() if key != "sessionUpdate"}


def turn_end(
    result: Json, quirks: AcpQuirks, chunk_usage: Usage, cost: Cost, items: list[RawEvent]
) -> TurnEnd:
    """The end of a turn. ``chunk_usage`` and ``cost`` were reported during the turn. A usage that
    cannot be read is added to ``items``: the answer is complete without it."""
    result = {} if result is None else result
    try:
        reply = convert_to(result, PromptResult)
    except msgspec.ValidationError as error:
        known = {"stopReason": result.get("stopReason")} if isinstance(result, dict) else result
        try:
            reply = convert_to(known, PromptResult)
        except msgspec.ValidationError:
            return TurnEnd(
                ok=False, kind="malformed_reply", message=f"the end of the turn is invalid: {error}"
            )
        items.append(Unknown(result))
    reason = reply.stop_reason
    ok = reason == "end_turn"
    quota = (reply.meta.quota if reply.meta else None) or Quota()
    counts = {used.model: used.token_count or QuotaTokens() for used in quota.model_usage or ()}
    by_model = {model: _usage_from_quota(count) for model, count in counts.items()}
    # The model with most output answered: a small router model may be listed too.
    written = {model: c.output_tokens or c.camel_output or 0 for model, c in counts.items()}
    reported_usage = _turn_usage(reply, quota, complete=quirks.usage != "last_step")
    message = None
    if not ok:
        message = MESSAGES.get(reason, f"the turn ended for an unknown reason: {reason!r}")
    return TurnEnd(
        ok=ok,
        stop_reason=reason or None,
        usage=reported_usage if reported_usage != Usage() else chunk_usage,
        usage_by_model={model: used for model, used in by_model.items() if used != Usage()},
        cost=cost,
        model=max(written, key=written.__getitem__, default=None),
        kind=None if ok else reason,
        message=message,
    )


def failed_turn_end(error: RpcError) -> TurnEnd:
    """The end of a turn whose prompt got an error reply; details come from its ``data``."""
    match error.data:
        case (
            str(detail)
            | {"details": str(detail)}
            | {"message": str(detail)}
            | {"error": {"message": str(detail)}}
            | [{"message": str(detail)}, *_]
        ):
            detail = detail[:MAX_DETAIL]
        case _:
            detail = ""
    text = error.message
    if detail and detail not in text:
        text = f"{text}: {detail}".strip(": ")
    return TurnEnd(ok=False, kind=str(int(error.code)), message=text)


def usage_from_tokens(reply: PromptTokens, *, complete: bool = True) -> Usage:
    """Usage as we count it. Agents differ in whether ``input`` includes cached tokens and
    ``output`` includes reasoning; the total shows which."""
    if reply.input_tokens is None and reply.output_tokens is None:
        return Usage()
    read, written = reply.input_tokens or 0, reply.output_tokens or 0
    cached = (reply.cached_read_tokens or 0) + (reply.cached_write_tokens or 0)
    thought = reply.thought_tokens or 0
    for more_in, more_out in ((0, 0), (cached, 0), (cached, thought), (0, thought)):
        if read + more_in + written + more_out == reply.total_tokens:
            read, written = read + more_in, written + more_out
            break
    return Usage(
        input=read if reply.input_tokens is not None else None,
        output=written if reply.output_tokens is not None else None,
        reasoning=reply.thought_tokens,
        cache_read=reply.cached_read_tokens,
        cache_write=reply.cached_write_tokens,
        coverage="complete" if complete else "partial",
    )


def _turn_usage(reply: PromptResult, quota: Quota, *, complete: bool) -> Usage:
    if reply.usage is not None:
        return usage_from_tokens(reply.usage, complete=complete)
    count = quota.token_count or QuotaTokens()
    if count.input_tokens is None and count.output_tokens is None:
        return Usage()
    return Usage(input=count.input_tokens, output=count.output_tokens, coverage="partial")


def _usage_from_quota(count: QuotaTokens) -> Usage:
    if count.input_tokens is not None or count.output_tokens is not None:
        return Usage(input=count.input_tokens, output=count.output_tokens, coverage="partial")
    written = count.camel_write if count.camel_write is not None else count.camel_write_input
    reply = PromptTokens(
        input_tokens=count.camel_input,
        output_tokens=count.camel_output,
        cached_read_tokens=count.camel_read,
        cached_write_tokens=written,
        thought_tokens=count.camel_thought,
        total_tokens=count.camel_total,
    )
    return usage_from_tokens(reply)
