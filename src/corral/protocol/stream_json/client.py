"""Agents whose stream of JSON lines goes both ways, as a state machine.

Frames come in and items go out; questions go out as ``PermissionRequest`` with what is
needed to answer them kept in ``asks``, and what is to be written to the agent's stdin
is bytes that the functions here return or ``replies`` holds. Nothing waits.

What shaped it, seen in runs of the real programs:

- A block comes as deltas and then once more whole. So the whole one counts only where no
  delta of its message came.
- An API error is a ``result`` that says ``success``; ``is_error`` tells. Its text comes as
  an answer of a made-up model too, and is no answer.
- With sub-agents at work in the background a ``result`` comes early, another at their end.
- A tool that was refused, one that is hidden and one that was stopped differ only in
  details of their result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from corral.events import (
    Init,
    Json,
    Log,
    PermissionDecision,
    PermissionRequest,
    Text,
    Thinking,
    ToolKind,
    ToolResult,
    ToolStatus,
    ToolUse,
    UsageReport,
    Vendor,
)
from corral.messages import Part
from corral.protocol.ndjson import RawEvent, TurnEnd
from corral.protocol.notices import warning
from corral.protocol.stream_json import frames
from corral.protocol.stream_json.fields import (
    bare,
    changes,
    summed,
    summed_up,
    tokens,
    totals,
    tries_again,
    words,
    written,
)
from corral.protocol.stream_json.quirks import StreamQuirks
from corral.protocol.tool_fields import call, table

SILENT = frozenset({"status", "thinking_tokens"})
"""Signs of life, several a second, that say nothing."""
INTERRUPT = "corral-interrupt"


class PermissionAsked(msgspec.Struct, frozen=True):
    """What the agent wants leave for."""

    request_id: str
    name: str
    kind: ToolKind
    call_id: str | None
    input: Json
    command: str | None
    paths: tuple[str, ...]
    own: bool


class Control:
    """One turn. ``translate`` is for a ``Stream`` of ``control_frames.Frames``."""

    def __init__(self, quirks: StreamQuirks) -> None:
        self._quirks = quirks
        self._cwd = ""
        self._pieces: set[str] = set()
        """Messages that came in pieces."""
        self._speaking: dict[str | None, str] = {}
        """By sub-agent: the message that is coming."""
        self._cut = ""
        """The message that came in pieces and not yet whole: one that breaks off never does,
        though its end is told."""
        self._held: str | None = None
        """The message in pieces that looks like the agent's word on a failure, and no answer."""
        self._refused: set[str] = set()
        self._agents = 0
        self._interrupted = False
        self._wants_schema = False
        self._failure: tuple[str | None, str] | None = None
        self._spent: dict[str, frames.Spent] = {}
        self.asks: dict[str, PermissionAsked] = {}
        """Open questions, by their id."""
        self.replies: list[bytes] = []
        """What is to be written now; the reader takes them out."""

    def translate(self, batch: list[Any]) -> list[RawEvent]:
        items: list[RawEvent] = []
        for frame in batch:
            match frame:
                case frames.Piece():
                    self._piece(frame, items)
                case frames.AssistantFrame():
                    self._said(frame, items)
                case frames.Returned():
                    self._returned(frame, items)
                case frames.SystemFrame():
                    self._told(frame, items)
                case frames.Ended():
                    self._ended(frame, items)
                case frames.ControlRequest():
                    self._asked(frame, items)
                case frames.Withdrawn():
                    if self.asks.pop(frame.request_id, None) is not None:
                        items.append(PermissionDecision(frame.request_id, "cancel", "agent"))
                case frames.Answered():
                    if frame.response.subtype == "error":
                        told = frame.response.error or "a request was rejected"
                        items.append(warning("control_refused", told))
                case frames.Busy():
                    pass  # a sign of life, though nothing to tell
                case _:
                    raise TypeError(f"not a frame of this protocol: {frame!r}")
        return items

    def interrupt(self) -> bytes:
        """What stops the agent, the commands that it runs included."""
        self._interrupted = True
        return _request(INTERRUPT, {"subtype": "interrupt"})

    def answer(
        self, ask: PermissionAsked, *, allow: bool, message: str, stop: bool = False
    ) -> bytes:
        """The reply to a question; ``stop`` ends the turn with it."""
        self.asks.pop(ask.request_id, None)
        verdict: dict[str, Json] = {"behavior": "allow", "updatedInput": ask.input}
        if not allow:
            self._refused.add(ask.call_id or "")
            verdict = {"behavior": "deny", "message": message, "interrupt": stop}
        self._interrupted = self._interrupted or stop
        return _reply(ask.request_id, verdict)

    def _piece(self, frame: frames.Piece, items: list[RawEvent]) -> None:
        event, parent = frame.event, frame.parent_tool_use_id
        if event.type == "content_block_delta" and event.delta is not None:
            message = self._speaking.get(parent)
            if self._is_complaint(event.delta.text):
                self._held = message
            if self._held is not None and self._held == message:
                return  # it comes once more, whole
            if event.delta.text:
                items.append(Text(event.delta.text, message_id=message, parent=parent))
            elif event.delta.thinking:
                items.append(Thinking(event.delta.thinking, message_id=message, parent=parent))
            else:
                return
            self._pieces.add(message or "")
            self._cut = message or "" if parent is None else self._cut
        elif event.type == "message_start" and event.message is not None:
            self._speaking[parent] = event.message.id
            self._begun_again(parent, items)
        elif event.type == "message_stop" and self._quirks.id_a_block:
            self._speaking.pop(parent, None)

    def _begun_again(self, parent: str | None, items: list[RawEvent]) -> None:
        """A stream that broke off is asked for anew, and by then its words were told."""
        if parent is None and self._cut:
            self._cut = ""
            told = "the answer broke off and began again: what follows may repeat what came before"
            items.append(warning("text_repeated", told))

    def _said(self, frame: frames.AssistantFrame, items: list[RawEvent]) -> None:
        message, parent = frame.message, frame.parent_tool_use_id
        blocks = message.content if isinstance(message.content, list) else []
        said = "".join(block.text for block in blocks)
        if frame.is_api_error_message or self._is_complaint(said):
            self._failure = (frame.error, said)
            return
        id = self._speaking.get(parent, message.id) if self._quirks.id_a_block else message.id
        in_pieces = id in self._pieces
        if id == self._cut:
            self._cut = ""
        for block in blocks:
            match block.type:
                case "text" if block.text and not in_pieces:
                    self._begun_again(parent, items)
                    items.append(Text(block.text, message_id=id, parent=parent))
                case "thinking" if block.thinking and not in_pieces:
                    items.append(Thinking(block.thinking, message_id=id, parent=parent))
                case "tool_use":
                    items.append(self._use(block.id, block.name, block.input, parent))
                case _:
                    pass

    def _is_complaint(self, text: str) -> bool:
        sign = self._quirks.error_text
        return bool(sign) and text.lstrip().startswith(sign)

    def _use(self, id: str, name: str, given: Any, parent: str | None) -> ToolUse:
        return call(id, name, given, kind=self._kind(name), parent=parent)

    def _kind(self, name: str) -> ToolKind:
        if name.startswith(self._quirks.mcp_prefix):
            return "mcp"
        return self._quirks.tools.get(name, "other")

    def _returned(self, frame: frames.Returned, items: list[RawEvent]) -> None:
        """Words in it are the prompt, or the program's own: never an answer."""
        content, parent = frame.message.content, frame.parent_tool_use_id
        unrun = {meta.id for meta in frame.tool_result_meta if meta.non_execution_kind}
        for block in content if isinstance(content, list) else []:
            if block.type != "tool_result":
                continue
            said = words(block.content)
            status: ToolStatus = "error" if block.is_error else "success"
            if self._interrupted and block.tool_use_id in unrun - self._refused:
                status = "cancelled"
            elif block.is_error and self._was_refused(block.tool_use_id, unrun, said):
                status = "denied"
            if status == "success":
                items += changes(block.tool_use_id, frame.tool_use_result, self._cwd)
            items.append(
                ToolResult(
                    block.tool_use_id,
                    status,
                    output=said if status == "success" else None,
                    error=bare(said) if status != "success" else None,
                    parent=parent,
                )
            )

    def _was_refused(self, call_id: str, unrun: set[str], said: str) -> bool:
        signs = self._quirks.refusal_signs
        return call_id in unrun | self._refused or any(sign in said for sign in signs)

    def _told(self, frame: frames.SystemFrame, items: list[RawEvent]) -> None:
        match frame.subtype:
            case "init":
                self._cwd = frame.cwd or self._cwd
                self._wants_schema = "StructuredOutput" in frame.tools
                items.append(
                    Init(
                        model=frame.model,
                        cwd=frame.cwd,
                        tools=frame.tools,
                        session_id=frame.session_id,
                    )
                )
                for server in frame.mcp_servers:
                    if server.status not in ("connected", "pending"):
                        told = f"the tool server {server.name} is {server.status}"
                        items.append(warning("mcp_failed", told))
            case "api_retry" | "retry":
                items.append(tries_again(frame))
            case "permission_denied":
                self._refused.add(frame.tool_use_id or "")
            case "background_tasks_changed":
                self._agents = sum(task.task_type == "local_agent" for task in frame.tasks)
            case "informational":
                items.append(Log(words(frame.content), level="warning"))
            case subtype if subtype not in SILENT:
                data: Json = msgspec.to_builtins(frame)
                items.append(Vendor(subtype, data))
            case _:
                pass

    def _asked(self, frame: frames.ControlRequest, items: list[RawEvent]) -> None:
        request = frame.request
        if request.subtype != "can_use_tool":
            self.replies.append(_refusal(frame.request_id, f"{request.subtype} is not offered"))
            return
        use = self._use(request.tool_use_id or "", request.tool_name, request.input, None)
        command = table(request.input).get("command")
        blocked = (request.blocked_path,) if request.blocked_path else ()
        self.asks[frame.request_id] = PermissionAsked(
            frame.request_id,
            use.name,
            use.kind,
            request.tool_use_id,
            request.input,
            command if isinstance(command, str) else None,
            (*use.paths, *blocked),
            use.name.startswith(self._quirks.own_prefix),
        )
        items.append(
            PermissionRequest(
                frame.request_id,
                call_id=request.tool_use_id,
                kind=use.kind,
                title=use.title,
                input=request.input,
            )
        )

    def _ended(self, frame: frames.Ended, items: list[RawEvent]) -> None:
        for name, more in frame.model_usage_since_last_result.items():
            self._spent[name] = summed(self._spent.get(name), more)
        usage, cost, model = totals(self._spent)
        if self._quirks.sums_up:
            usage = summed_up(frame.usage)
        if self._agents and not frame.is_error:
            items.append(UsageReport(usage, cost=cost))
            return
        ok = frame.subtype == "success" and not frame.is_error
        kind, said = self._failure or (None, "")
        if ok and self._is_complaint(said):  # the model's own words after all
            items.append(Text(said))
        if frame.structured_output is not msgspec.UNSET and frame.structured_output is not None:
            items.append(Text(msgspec.json.encode(frame.structured_output).decode()))
        elif ok and self._wants_schema:
            items.append(
                warning("schema_not_met", "the model never handed in what fits the schema")
            )
        if frame.subtype != "success":
            kind = frame.subtype
        told = frame.result or "; ".join(frame.errors) or table(frame.error).get("message") or said
        items.append(
            TurnEnd(
                ok=ok,
                stop_reason=frame.terminal_reason or frame.stop_reason,
                usage=usage,
                usage_by_model={name: tokens(each) for name, each in self._spent.items()},
                cost=cost,
                model=model,
                kind=None if ok else kind or str(frame.api_error_status or "error"),
                message=None if ok else told,
            )
        )


def prompt(text: str, beside: Sequence[Part] = (), media: frozenset[str] = frozenset()) -> bytes:
    """What the program is to read first: the handshake, the user's words, and what goes along.
    Raises ``MediaInvalid`` for what is not among the ``media`` that the program takes."""
    hello = _request("corral-initialize", {"subtype": "initialize"})
    content: Json = text
    if beside:
        content = [{"type": "text", "text": text}, *(written(part, media) for part in beside)]
    said: Json = {"role": "user", "content": content}
    line: dict[str, Json] = {"type": "user", "session_id": "", "message": said}
    return hello + _line({**line, "parent_tool_use_id": None})


def _request(id: str, request: dict[str, Json]) -> bytes:
    return _line({"type": "control_request", "request_id": id, "request": request})


def _reply(id: str, response: dict[str, Json]) -> bytes:
    whole: dict[str, Json] = {"subtype": "success", "request_id": id, "response": response}
    return _line({"type": "control_response", "response": whole})


def _refusal(id: str, message: str) -> bytes:
    whole: dict[str, Json] = {"subtype": "error", "request_id": id, "error": message}
    return _line({"type": "control_response", "response": whole})


def _line(frame: dict[str, Json]) -> bytes:
    return msgspec.json.encode(frame) + b"\n"
