"""The two-way JSON stream of Claude Code and Qwen Code, as a state machine without I/O.

Theory of operation
===================

The agent writes one JSON object per line to stdout and reads such lines from stdin. One
``StreamJsonClient`` is one turn in one process. The caller (``_sessions/backends/stream.py``)
decodes the lines into ``frames`` and calls ``translate`` with them; it writes what
``encode_prompt``, ``answer`` and ``interrupt`` return, and whatever ``replies`` holds after each
call of ``translate``.

States of the turn:

- *started*: the handshake and the prompt were written (``encode_prompt``);
- *running*: the ``init`` frame came. Text, thinking, tool calls and results follow;
- *waiting for permission*: ``open_requests`` is not empty. The agent pauses that tool call until
  ``answer`` is written, or withdraws the request;
- *waiting for a person*: the same for ``open_questions`` and ``answer_question``;
- *interrupted*: after ``interrupt``, or after ``answer`` with ``stop``. Tool calls that were not
  executed count as cancelled;
- *ended*: the ``result`` frame became a ``TurnEnd``. With sub-agents running in the background an
  early ``result`` comes first; it only updates the usage, and the turn continues.

What the real programs do, and what follows from it:

- A block comes as deltas and then once more as a body. The body block is used only if no delta
  of its message came.
- A message that breaks off is requested again by the agent, and its text repeats. A warning
  (``text_repeated``) is emitted, as the first part was already passed on.
- An API error comes as a ``result`` with the subtype ``success``; only ``is_error`` shows it. Its
  text also comes as an answer of a synthetic model. It is withheld from the answer.
- Denied, hidden and cancelled tools differ only in details of their result.

Guarantees: nothing here waits or does I/O; a permission request is emitted once and is in
``open_requests`` until it is answered or withdrawn, and so are questions; other control requests
get an error reply.

Crash of the agent: the caller sees the end of stdout without a ``TurnEnd`` and reports the exit.
No state here needs cleanup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from corral._protocol.common_events import build_tool_use, named_paths, warning
from corral._protocol.ndjson import RawEvent, TurnEnd
from corral._protocol.stream_json import frames
from corral._protocol.stream_json.frames import (
    StreamQuirks,
    add_model_usage,
    content_text,
    encode_part,
    error_kind,
    error_message,
    file_changes,
    retry_warning,
    session_usage,
    strip_error_tags,
    to_usage,
    total_usage,
)
from corral.events import (
    AgentQuestion,
    Init,
    Log,
    PermissionDecision,
    PermissionRequest,
    QuestionAnswer,
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
from corral.values import Json, JsonObject, as_object

IGNORED_SUBTYPES = frozenset({"status", "thinking_tokens"})
"""Progress frames that carry no information; several come per second."""
INTERRUPT_ID = "corral-interrupt"


class StreamPermissionRequest(msgspec.Struct, frozen=True):
    """A permission request of the agent, with what is needed to decide and answer it."""

    request: PermissionRequest
    name: str
    command: str | None
    paths: tuple[str, ...]
    """All paths that the call names."""
    own: bool
    """The tool is one of the caller's own server."""


class StreamQuestion(msgspec.Struct, frozen=True):
    """A question of the agent, with what is needed to answer it."""

    request_id: str
    call_id: str | None
    body: JsonObject
    """The input of the tool, or the schema of an MCP server's form."""
    from_tool: bool


class StreamJsonClient:
    """The state of one turn. ``translate`` is for an ``NdjsonStream`` of ``frames.Frames``."""

    def __init__(self, quirks: StreamQuirks) -> None:
        self._quirks = quirks
        self._cwd = ""
        self._streamed_ids: set[str] = set()
        """Ids of messages of which deltas came."""
        self._current_message: dict[str | None, str] = {}
        """Sub-agent (``None``: the agent itself) → id of the message that is being streamed."""
        self._unfinished_id = ""
        """The id of a streamed message that did not come as a body yet. A message that breaks
        off never does, although its end is reported."""
        self._withheld_id: str | None = None
        """The id of a streamed message that looks like an API error and not like an answer."""
        self._denied_ids: set[str] = set()
        self._background_agents = 0
        self._interrupted = False
        self._wants_schema = False
        self._api_error: tuple[str | None, str] | None = None
        self._model_usage: dict[str, frames.StreamModelUsage] = {}
        self.open_requests: dict[str, StreamPermissionRequest] = {}
        """Permission requests without an answer, by id."""
        self.open_questions: dict[str, StreamQuestion] = {}
        """Questions without an answer, by id."""
        self.replies: list[bytes] = []
        """Lines to write to the agent now. The caller removes them."""

    def translate(self, batch: list[object]) -> list[RawEvent]:
        items: list[RawEvent] = []
        for frame in batch:
            if isinstance(frame, frames.StreamEventFrame):  # by far the most frequent
                self._handle_stream_event(frame, items)
            else:
                self._handle_frame(frame, items)
        return items

    def _handle_frame(self, frame: object, items: list[RawEvent]) -> None:
        match frame:
            case frames.AssistantFrame():
                self._handle_assistant(frame, items)
            case frames.UserFrame():
                self._handle_user(frame, items)
            case frames.SystemFrame():
                self._handle_system(frame, items)
            case frames.TurnResultFrame():
                self._handle_result(frame, items)
            case frames.ControlRequest():
                self._handle_control_request(frame, items)
            case frames.ControlCancel():
                if self.open_requests.pop(frame.request_id, None) is not None:
                    items.append(PermissionDecision(frame.request_id, "cancel", "agent"))
                elif self.open_questions.pop(frame.request_id, None) is not None:
                    items.append(QuestionAnswer(frame.request_id, "cancelled", reason="the agent"))
            case frames.ControlResponse():
                if frame.response.subtype == "error":
                    message = frame.response.error or "a request was rejected"
                    items.append(warning("control_refused", message))
            case frames.ToolProgress():
                pass  # a tool is still running: there is nothing to report
            case _:
                raise TypeError(f"not a frame of this protocol: {frame!r}")

    def interrupt(self) -> bytes:
        """The line that stops the agent and the commands that it runs."""
        self._interrupted = True
        return _control_request(INTERRUPT_ID, {"subtype": "interrupt"})

    def answer(
        self, ask: StreamPermissionRequest, *, allow: bool, message: str, stop: bool = False
    ) -> bytes:
        """The line that answers a permission request; ``stop`` also ends the turn."""
        request = ask.request
        self.open_requests.pop(request.request_id, None)
        verdict: JsonObject = {"behavior": "allow", "updatedInput": request.input}
        if not allow:
            self._denied_ids.add(request.call_id or "")
            verdict = {"behavior": "deny", "message": message, "interrupt": stop}
        self._interrupted = self._interrupted or stop
        return _success_reply(request.request_id, verdict)

    def answer_question(
        self, asked: StreamQuestion, answers: Mapping[str, Json] | None, *, message: str, stop: bool
    ) -> bytes:
        """The line that answers a question; without ``answers`` it is declined, with ``message``.
        ``stop`` also ends the turn."""
        from corral._protocol.question_forms import choice_answers, schema_answers

        self.open_questions.pop(asked.request_id, None)
        self._interrupted = self._interrupted or stop
        if not asked.from_tool:
            reply: JsonObject = {"action": "cancel" if stop else "decline"}
            if answers is not None:
                reply = {"action": "accept", "content": schema_answers(asked.body, answers)}
        elif answers is None:
            reply = {"behavior": "deny", "message": message, "interrupt": stop}
        else:
            given: JsonObject = {**asked.body, "answers": choice_answers(answers)}
            reply = {"behavior": "allow", "updatedInput": given}
        return _success_reply(asked.request_id, reply)

    def _handle_stream_event(self, frame: frames.StreamEventFrame, items: list[RawEvent]) -> None:
        event, parent = frame.event, frame.parent_tool_use_id
        if event.type == "content_block_delta" and event.delta is not None:
            message = self._current_message.get(parent)
            if self._is_error_text(event.delta.text):
                self._withheld_id = message
            if self._withheld_id is not None and self._withheld_id == message:
                return  # it comes again as a body
            if event.delta.text:
                items.append(Text(event.delta.text, message_id=message, parent=parent))
            elif event.delta.thinking:
                items.append(Thinking(event.delta.thinking, message_id=message, parent=parent))
            else:
                return
            self._streamed_ids.add(message or "")
            self._unfinished_id = message or "" if parent is None else self._unfinished_id
        elif event.type == "message_start" and event.message is not None:
            self._current_message[parent] = event.message.id
            self._warn_if_restarted(parent, items)
        elif event.type == "message_stop" and self._quirks.id_per_block:
            self._current_message.pop(parent, None)

    def _warn_if_restarted(self, parent: str | None, items: list[RawEvent]) -> None:
        """Warn that text may repeat: a message broke off, and the agent requested it again."""
        if parent is None and self._unfinished_id:
            self._unfinished_id = ""
            message = "the answer broke off and started again: text may be repeated"
            items.append(warning("text_repeated", message))

    def _handle_assistant(self, frame: frames.AssistantFrame, items: list[RawEvent]) -> None:
        message, parent = frame.message, frame.parent_tool_use_id
        blocks = message.content if isinstance(message.content, list) else []
        text = "".join(block.text for block in blocks)
        if frame.is_api_error_message or self._is_error_text(text):
            self._api_error = (frame.error, text)
            return
        id = (
            self._current_message.get(parent, message.id)
            if self._quirks.id_per_block
            else message.id
        )
        was_streamed = id in self._streamed_ids
        if id == self._unfinished_id:
            self._unfinished_id = ""
        for block in blocks:
            match block.type:
                case "text" if block.text and not was_streamed:
                    self._warn_if_restarted(parent, items)
                    items.append(Text(block.text, message_id=id, parent=parent))
                case "thinking" if block.thinking and not was_streamed:
                    items.append(Thinking(block.thinking, message_id=id, parent=parent))
                case "tool_use":
                    items.append(self._tool_use(block.id, block.name, block.input, parent))
                case _:
                    pass

    def _is_error_text(self, text: str) -> bool:
        prefix = self._quirks.error_text
        return bool(prefix) and text.lstrip().startswith(prefix)

    def _tool_use(self, id: str, name: str, given: Json, parent: str | None) -> ToolUse:
        kind: ToolKind = "mcp"
        if not name.startswith(self._quirks.mcp_prefix):
            kind = self._quirks.tools.get(name, "other")
        return build_tool_use(id, name, given, kind=kind, parent=parent)

    def _handle_user(self, frame: frames.UserFrame, items: list[RawEvent]) -> None:
        """Emit the tool results. Text in this frame is the prompt or the program's own."""
        content, parent = frame.message.content, frame.parent_tool_use_id
        not_executed = {meta.id for meta in frame.tool_result_meta if meta.non_execution_kind}
        for block in content if isinstance(content, list) else []:
            if block.type != "tool_result":
                continue
            text = content_text(block.content)
            status: ToolStatus = "error" if block.is_error else "success"
            if self._interrupted and block.tool_use_id in not_executed - self._denied_ids:
                status = "cancelled"
            elif block.is_error and (
                block.tool_use_id in not_executed | self._denied_ids
                or any(denied in text for denied in self._quirks.denied_texts)
            ):
                status = "denied"
            if status == "success":
                items += file_changes(block.tool_use_id, frame.tool_use_result, self._cwd)
            items.append(
                ToolResult(
                    block.tool_use_id,
                    status,
                    output=text if status == "success" else None,
                    error=strip_error_tags(text) if status != "success" else None,
                    parent=parent,
                )
            )

    def _handle_system(self, frame: frames.SystemFrame, items: list[RawEvent]) -> None:
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
                        message = f"the MCP server {server.name} is {server.status}"
                        items.append(warning("mcp_failed", message))
            case "api_retry" | "retry":
                items.append(retry_warning(frame))
            case "permission_denied":
                self._denied_ids.add(frame.tool_use_id or "")
            case "background_tasks_changed":
                self._background_agents = sum(
                    task.task_type == "local_agent" for task in frame.tasks
                )
            case "informational":
                items.append(Log(content_text(frame.content), level="warning"))
            case subtype if subtype not in IGNORED_SUBTYPES:
                data: Json = msgspec.to_builtins(frame)
                items.append(Vendor(subtype, data))
            case _:
                pass

    def _handle_control_request(self, frame: frames.ControlRequest, items: list[RawEvent]) -> None:
        request = frame.request
        if request.subtype == "elicitation" or (
            request.subtype == "can_use_tool" and request.tool_name == self._quirks.question_tool
        ):
            self._handle_question(frame.request_id, request, items)
            return
        if request.subtype != "can_use_tool":
            error = f"{request.subtype} is not offered"
            body: Json = {"subtype": "error", "request_id": frame.request_id, "error": error}
            self.replies.append(_line({"type": "control_response", "response": body}))
            return
        ask = self._permission_request(
            frame.request_id, request.tool_name, request.tool_use_id, request.input
        )
        if request.blocked_path:
            ask = msgspec.structs.replace(ask, paths=(*ask.paths, request.blocked_path))
        self.open_requests[frame.request_id] = ask
        items.append(ask.request)

    def _handle_question(
        self, id: str, request: frames.ControlRequestBody, items: list[RawEvent]
    ) -> None:
        from corral._protocol.question_forms import choice_fields, schema_fields

        from_tool = request.subtype == "can_use_tool"
        body = as_object(request.input if from_tool else request.requested_schema)
        asked = StreamQuestion(id, request.tool_use_id, body, from_tool)
        if not from_tool and request.mode not in (None, "form"):  # a page that is to be opened
            self.replies.append(_success_reply(id, {"action": "decline"}))
            return
        fields = choice_fields(body.get("questions")) if from_tool else schema_fields(body)
        self.open_questions[id] = asked
        items.append(
            AgentQuestion(
                id,
                title=request.message,
                fields=fields,
                call_id=request.tool_use_id,
                source=request.mcp_server_name,
            )
        )

    def _permission_request(
        self, request_id: str, name: str, call_id: str | None, given: Json
    ) -> StreamPermissionRequest:
        use = self._tool_use(call_id or "", name, given, None)
        command = as_object(given).get("command")
        return StreamPermissionRequest(
            PermissionRequest(
                request_id, call_id=call_id, kind=use.kind, title=use.title, input=given
            ),
            name,
            command if isinstance(command, str) else None,
            (*use.paths, *named_paths(name, use.kind, given)),
            name.startswith(self._quirks.own_prefix),
        )

    @property
    def edits_calls(self) -> bool:
        """Whether an answer may change the input of the call."""
        return self._quirks.edits_calls

    def edited(
        self, ask: StreamPermissionRequest, arguments: JsonObject
    ) -> StreamPermissionRequest:
        """The request as it would be with other arguments. Its answer sends them to the agent."""
        request = ask.request
        return self._permission_request(request.request_id, ask.name, request.call_id, arguments)

    def _handle_result(self, frame: frames.TurnResultFrame, items: list[RawEvent]) -> None:
        for name, more in frame.model_usage_since_last_result.items():
            self._model_usage[name] = add_model_usage(self._model_usage.get(name), more)
        usage, cost, model = total_usage(self._model_usage)
        if self._quirks.reports_session_total:
            usage = session_usage(frame.usage)
        if self._background_agents and not frame.is_error:
            items.append(UsageReport(usage, cost=cost))
            return
        ok = frame.subtype == "success" and not frame.is_error
        kind, text = self._api_error or (None, "")
        if ok and self._is_error_text(text):  # it was the model's answer after all
            items.append(Text(text))
        if frame.structured_output is not None:
            items.append(Text(msgspec.json.encode(frame.structured_output).decode()))
        elif ok and self._wants_schema:
            message = "the model never returned a value that fits the schema"
            items.append(warning("schema_not_met", message))
        items.append(
            TurnEnd(
                ok=ok,
                stop_reason=frame.terminal_reason or frame.stop_reason,
                usage=usage,
                usage_by_model={name: to_usage(each) for name, each in self._model_usage.items()},
                cost=cost,
                model=model,
                kind=None if ok else error_kind(frame, kind),
                message=None if ok else error_message(frame) or text,
            )
        )


def encode_prompt(
    text: str, attachments: Sequence[Part] = (), media: frozenset[str] = frozenset()
) -> bytes:
    """The first lines for the program: the handshake, then the prompt with its attachments.
    Raises ``MediaInvalid`` for an attachment whose type is not in ``media``."""
    handshake = _control_request("corral-initialize", {"subtype": "initialize"})
    content: Json = text
    if attachments:
        content = [
            {"type": "text", "text": text},
            *(encode_part(part, media) for part in attachments),
        ]
    message: Json = {"role": "user", "content": content}
    line: JsonObject = {"type": "user", "session_id": "", "message": message}
    return handshake + _line({**line, "parent_tool_use_id": None})


def _control_request(id: str, request: JsonObject) -> bytes:
    return _line({"type": "control_request", "request_id": id, "request": request})


def _success_reply(id: str, response: JsonObject) -> bytes:
    body: JsonObject = {"subtype": "success", "request_id": id, "response": response}
    return _line({"type": "control_response", "response": body})


def _line(frame: JsonObject) -> bytes:
    return msgspec.json.encode(frame) + b"\n"
