"""One ACP session: turns the agent's updates into raw events.

A tool call goes through these states: *open* (announced, perhaps without details), *reported* (its
``tool_use`` event was emitted) and *closed* (its ``tool_result`` event was emitted). Agents open a
call without details and fill it by updates (``OpenToolCall``). One ``tool_use`` event is emitted:
as soon as the call has started, or has details and something else arrives. A content list
*replaces* the earlier one, so an output event holds what was added. ``AcpClient`` describes the
states of the session. Nothing here waits.
"""

from __future__ import annotations

import re
import shlex
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from corral.events import (
    Plan,
    PlanEntry,
    Text,
    Thinking,
    ToolKind,
    ToolOutput,
    ToolResult,
    ToolStatus,
    ToolUse,
    Unknown,
    UsageReport,
    Vendor,
)
from corral.protocol.acp import methods
from corral.protocol.acp.frames import (
    PASSED_THROUGH,
    MessageChunk,
    PlanUpdate,
    PromptTokens,
    ThoughtChunk,
    ToolCallFrame,
    ToolCallUpdate,
    ToolContent,
    ToolFields,
    Update,
    UsageUpdate,
    UserChunk,
)
from corral.protocol.acp.quirks import AcpQuirks
from corral.protocol.common_events import PERMISSION_DENIED, split_denial, unavailable_message
from corral.protocol.ndjson import RawEvent
from corral.values import (
    Cost,
    Json,
    JsonObject,
    Usage,
    as_object,
    as_texts,
    convert_to,
    subtract_by_model,
)

KINDS: dict[str, ToolKind] = {
    "read": "read",
    "edit": "edit",
    "delete": "delete",
    "move": "move",
    "search": "search",
    "execute": "execute",
    "think": "think",
    "fetch": "fetch",
    "switch_mode": "think",
}
"""The protocol's kinds. Any other is ``other``, which a policy treats like the shell."""


class OpenToolCall:
    """The state of one call. ``id`` is unique in its conversation and never empty."""

    def __init__(self, id: str, quirks: AcpQuirks) -> None:
        self.id = id
        self._quirks = quirks
        self._fields = ToolFields()
        self._tool_name: str | None = None
        self._output = ""
        self.is_reported = False
        """Its ``tool_use`` event was emitted."""
        self.outcome: Literal["denied", "cancelled"] | None = None
        """How we answered its permission request. The agent's final update may still come."""

    @property
    def has_details(self) -> bool:
        """Whether input or content is known."""
        return bool(self._fields.raw_input or self._fields.content)

    @property
    def has_started(self) -> bool:
        return self._fields.status not in (None, "pending")

    def merge(self, fields: ToolFields) -> None:
        """Take over what the update sets. Empty values do not replace earlier ones."""
        mine = self._fields
        if self._tool_name is None:
            self._tool_name = _name_from_fields(fields, self._quirks)
        mine.title = fields.title or mine.title
        mine.kind = fields.kind or mine.kind
        mine.status = fields.status or mine.status
        mine.raw_input = fields.raw_input or mine.raw_input
        mine.content = fields.content or mine.content
        mine.locations = fields.locations or mine.locations

    def tool_use(self) -> ToolUse:
        """The ``tool_use`` event for what is known now."""
        fields, quirks = self._fields, self._quirks
        match fields.raw_input:
            case {"server": str(server), "tool": str(tool)} if quirks.mcp_from_input:
                name = f"mcp__{server}__{tool}"
            case _:
                name = self._unavailable_tool() or self._tool_name or fields.kind or "other"
        kind = quirks.kinds.get(name) or KINDS.get(fields.kind or "", "other")
        if quirks.outside_title and fields.title == quirks.outside_title:
            kind = "edit"
        elif quirks.mcp_prefixes and name.startswith(quirks.mcp_prefixes):
            kind = "mcp"
        input = fields.raw_input
        if not input:
            input = _input_from_content(fields.content or ())
            if kind == "execute" and quirks.title_is_command and fields.title:
                input = {**(input or {}), "command": fields.title}
        paths = [location.path for location in fields.locations or ()]
        paths += [part.path for part in fields.content or () if part.type == "diff"]
        paths += _values_of_key(quirks.path_key, fields.raw_input) if quirks.path_key else ()
        named = tuple(dict.fromkeys(filter(None, paths)))
        return ToolUse(self.id, name, kind=kind, title=fields.title, input=input, paths=named)

    def _unavailable_tool(self) -> str | None:
        """The name of the unavailable tool that the model called, if this call reports that."""
        prefix = self._quirks.unavailable_tool
        match self._fields.raw_input:
            case {"tool": str(name), "error": str(error)} if prefix and error.startswith(prefix):
                return name
            case _:
                return None

    def output_delta(self, fields: ToolFields) -> ToolOutput | None:
        """What this update adds to the output of a running call."""
        text = _content_text(fields.content or ())
        if self._fields.status != "in_progress" or not text or text == self._output:
            return None
        added = text.removeprefix(self._output)
        self._output = text
        return ToolOutput(self.id, added)

    def result(self, fields: ToolFields, *, cancelling: bool) -> ToolResult:
        """The ``tool_result`` event for an update with a final status."""
        text = _result_text(fields) or self._output or None
        if fields.status == "completed" and (missing := self._unavailable_tool()):
            error = unavailable_message(missing)
            return ToolResult(self.id, "denied", name=missing, error=error)
        if fields.status == "completed":
            return ToolResult(self.id, "success", name=self.tool_use().name, output=text)
        quirks, code = self._quirks, as_object(fields.raw_output).get("code")
        # The agent's own rules denied the call.
        if (quirks.denied_code and code == quirks.denied_code) or any(
            denied in (text or "") for denied in quirks.denied_texts
        ):
            reason, rule = split_denial(text)
            return ToolResult(
                self.id, "denied", name=self.tool_use().name, output=rule, error=reason
            )
        was_cancelled = cancelling or fields.status in ("cancelled", "canceled")
        status: ToolStatus = self.outcome or ("cancelled" if was_cancelled else "error")
        text = text or (PERMISSION_DENIED if status == "denied" else None)
        return ToolResult(self.id, status, name=self.tool_use().name, error=text)

    def result_without_update(self) -> ToolResult:
        """The ``tool_result`` event of a denied call for which no final update came."""
        name = self.tool_use().name
        if self.outcome == "denied":
            return ToolResult(self.id, "denied", name=name, error=PERMISSION_DENIED)
        return ToolResult(self.id, "cancelled", name=name)


FINAL_STATUSES = frozenset({"completed", "failed", "cancelled", "canceled"})


def shell_command(call: ToolUse) -> str | None:
    """The shell command that the call would run, if its input has one."""
    match call.input:
        case {"command": str(command), "args": [*words]} if words:
            return shlex.join([command, *map(str, words)])
        case {"command": str(command)} | {"cmd": str(command)}:
            return command
        case {"command": [str(program), "-c" | "-lc", str(command)]} if program.rpartition("/")[
            2
        ] in ("sh", "bash", "dash", "zsh"):
            return command
        case {"command": list(words)} if words and all(isinstance(word, str) for word in words):
            return shlex.join(as_texts(words))
        case {"commands": list(lines)} if lines and all(isinstance(line, str) for line in lines):
            return "\n".join(as_texts(lines))
        case _:
            return None


def _name_from_fields(fields: ToolFields, quirks: AcpQuirks) -> str | None:
    if fields.name:
        return fields.name
    found = fields.meta if quirks.name_from_meta else None
    for key in quirks.name_from_meta:
        found = as_object(found).get(key)
    if isinstance(found, str) and found:
        return found
    if quirks.name_from_id and quirks.name_from_id in fields.tool_call_id:
        return fields.tool_call_id.split(quirks.name_from_id)[0] or None
    if quirks.name_before_text and fields.title:
        return fields.title.partition(quirks.name_before_text)[0]
    return fields.title if quirks.name_from_title else None


def _values_of_key(key: str, input: Json) -> Iterator[str]:
    """The values of this key in an object and in the lists of objects inside it."""
    if isinstance(input, dict):
        found = input.get(key)
        if isinstance(found, str):
            yield found
        for value in input.values():
            for each in value if isinstance(value, list) else ():
                yield from _values_of_key(key, each)


def _input_from_content(content: Iterable[ToolContent]) -> JsonObject | None:
    """An input made from the content, for a call whose input was not sent."""
    changes: list[Json] = [
        {"path": part.path, "old_text": part.old_text, "new_text": part.new_text}
        for part in content
        if part.type == "diff"
    ]
    if changes:
        return {"changes": changes}
    text = _content_text(content)
    return {"description": text} if text else None


def _content_text(content: Iterable[ToolContent]) -> str:
    found: list[str] = []
    for part in content:
        match part.content:
            case {"text": str(text)} | {"resource": {"text": str(text)}}:
                found.append(text)
            case _:
                pass
    return "\n".join(found)


def _result_text(fields: ToolFields) -> str | None:
    """The text of the result. Raw output is preferred: content is formatted for display."""
    raw = fields.raw_output
    shown = _content_text(fields.content or ())
    match raw:
        case str(text) if text:
            return text
        case (
            {"error": str(text)}
            | {"output": str(text)}
            | {"content": str(text)}
            | {"message": str(text)}
        ):
            return shown or text
        case None | "" | {} | []:
            return shown or None
        case _:
            return shown or msgspec.json.encode(raw).decode()


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
        self._open: dict[str, OpenToolCall] = {}
        """Open calls by id, in order of arrival."""
        self._ready: dict[str, OpenToolCall] = {}
        """Open calls that have details and are not reported yet."""
        self._without_id: OrderedDict[str, OpenToolCall] = OrderedDict()
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
        ended = methods.turn_end(result, self._quirks, self._usage, self._cost_so_far(), items)
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
            message = text.removeprefix(self._error_text)
            ended = msgspec.structs.replace(ended, ok=False, kind="agent_error", message=message)
        items.append(ended)

    def fail_turn(self, code: int, message: str, data: Json, items: list[RawEvent]) -> None:
        self._close_all_calls(items)
        items.append(methods.failed_turn_end(code, message, data))

    def abandon_turn(self, items: list[RawEvent]) -> None:
        """The agent has exited: open calls are reported. There is no ``TurnEnd``."""
        self._close_all_calls(items)

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
            case ToolCallFrame():
                self._handle_tool_call(update, items)
            case ToolCallUpdate():
                self._handle_tool_update(update, items)
            case PlanUpdate():
                self._report_ready(items)
                entries = [PlanEntry(e.content, e.status, e.priority) for e in update.entries]
                items.append(Plan(tuple(entries)))
            case UserChunk() | MessageChunk():
                pass

    def _handle_tool_call(self, update: ToolCallFrame, items: list[RawEvent]) -> None:
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

    def _finish_call(self, call: OpenToolCall, fields: ToolFields, items: list[RawEvent]) -> None:
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
            tokens = convert_to(meta.get("usage"), PromptTokens | None)
        except msgspec.ValidationError:
            items.append(Unknown(meta))
            return
        if tokens is not None:
            self._usage = self._usage + methods.usage_from_tokens(tokens)
            items.append(UsageReport(self._usage))

    def _cost_so_far(self) -> Cost:
        """The cost of this turn. Agents report the cost of the session."""
        if self._cost is None or self._cost_before is None:  # unknown for some loaded sessions
            return Cost()
        return Cost(usd=round(max(0.0, self._cost - self._cost_before), 9), source="reported")


def _without_tag(update: Json) -> Json:
    return {key: value for key, value in as_object(update).items() if key != "sessionUpdate"}
