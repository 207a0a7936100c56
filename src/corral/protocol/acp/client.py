"""The Agent Client Protocol (ACP), version 1, client side, as a state machine without I/O.

Theory of operation
===================

One ``AcpClient`` is one agent process with any number of sessions. The caller
(``sessions/acp/connection.py``) owns the process: it passes the bytes of the agent's stdout to
``receive`` and executes the returned commands in order:

- ``SendBytes``: write these bytes to the agent's stdin;
- ``Emit``: raw events of one session, or of the process where ``session_id`` is ``None``;
- ``AcpPermissionRequest``: the agent asks for permission; reply with ``answer_permission``;
- ``AcpQuestion``: the agent asks a person (``elicitation/create``); reply with
  ``answer_question``;
- ``PermissionWithdrawn``: that request or question needs no reply any more;
- ``FileRequest``: the agent asks for a file; reply with ``answer_file_request`` or
  ``reject_file_request``;
- ``CallFinished``: one of our calls got its reply, or will never get one.

The methods that call the agent (``initialize``, ``new_session``, ``prompt`` ...) return the id of
the call and the bytes to write. ``CallFinished`` carries that id.

States of a session:

- *unknown*: no method named it yet. An update creates it: agents send updates before the reply
  that names the session.
- *replaying*: after ``load_session`` or ``resume_session``. What the agent sends is history and
  is dropped, unless the caller asked for it.
- *idle*: between turns. Updates are still reported.
- *in a turn*: from ``prompt`` until its reply. The reply becomes a ``TurnEnd`` event, followed by
  ``CallFinished``.
- *cancelling*: after ``cancel``, until the reply to the prompt. Tool calls that fail meanwhile
  count as cancelled.

States of a permission request: *open* from ``AcpPermissionRequest`` until ``answer_permission``,
``cancel``, the end of the turn or the end of the process. An answer that comes later is ignored.
Questions have the same states; the agent can also take one back (``$/cancel_request``).

Guarantees:

- Nothing here waits, reads a clock or does I/O. All methods return at once.
- Whatever the agent writes, no exception is raised: what cannot be understood becomes a ``Log``,
  ``Error`` or ``Unknown`` event.
- Every request of the agent gets exactly one reply. A method that was not offered is rejected. An
  id that is already in use is rejected, as the two replies could not be distinguished.
- Commands keep the order in which the agent sent what caused them.
- Each of our calls gets exactly one ``CallFinished``.

Crash of the agent: the caller calls ``end``. All open tool calls are reported, permission
requests are withdrawn, and every pending call finishes with an error. No ``TurnEnd`` is emitted:
the caller knows the exit code and reports the failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, assert_never

import msgspec

from corral.errors import ConfigError
from corral.events import AgentQuestion, Decision, Error, Log, ToolUse, Unknown, Vendor
from corral.protocol import jsonrpc
from corral.protocol.acp import methods
from corral.protocol.acp.conversation import AcpConversation, shell_command
from corral.protocol.acp.frames import PermissionOption, PermissionParams, SessionUpdate, Update
from corral.protocol.acp.methods import Block, Offer
from corral.protocol.acp.quirks import DEFAULT_QUIRKS, AcpQuirks
from corral.protocol.jsonrpc import (
    CallFailure,
    CallReply,
    Id,
    IncomingCall,
    Message,
    Notification,
    Peer,
)
from corral.protocol.ndjson import MAX_LINE_SIZE, RawEvent
from corral.values import Json, JsonObject, McpServer, as_object, as_text, convert_to, text_or_none

FILE_METHODS = frozenset({"fs/read_text_file", "fs/write_text_file"})
RESOURCE_NOT_FOUND = -32002
REQUEST_CANCELLED = -32800


SentCall: TypeAlias = tuple[int, bytes]
"""The id of a call to the agent, and the bytes to write."""


class SendBytes(msgspec.Struct, frozen=True):
    """Write these bytes to the agent's stdin."""

    data: bytes


class Emit(msgspec.Struct, frozen=True):
    session_id: str | None
    events: list[RawEvent]
    """In order, all that came in one read."""


class AcpPermissionRequest(msgspec.Struct, frozen=True):
    session_id: str
    request_id: Id
    call: ToolUse
    """The call that needs permission. Its ``tool_use`` event was emitted before."""
    options: tuple[PermissionOption, ...]
    command: str | None = None
    """The shell command of the call, if it has one."""

    def option_for(self, decision: Decision) -> str | None:
        """The id of the option that means this decision; ``None`` means cancel.

        Never grants more than was decided: without an ``allow_once`` option, ``allow_once``
        cancels. With several ``allow_always`` options none is used: their scopes are unknown.
        """
        found = {option.kind: option.option_id for option in reversed(self.options)}
        always = sum(option.kind == "allow_always" for option in self.options)
        match decision:
            case "allow_session" if always == 1:
                return found["allow_always"]
            case "allow_session" | "allow_once":
                return found.get("allow_once")
            case "deny":
                return found.get("reject_once") or found.get("reject_always")
            case "cancel":
                return None


class AcpQuestion(msgspec.Struct, frozen=True):
    session_id: str
    request_id: Id
    question: AgentQuestion
    schema: Json
    """The form as the agent sent it."""


class PermissionWithdrawn(msgspec.Struct, frozen=True):
    session_id: str
    request_id: Id


class FileRequest(msgspec.Struct, frozen=True):
    session_id: str | None
    request_id: Id
    method: str
    params: Json


class CallFinished(msgspec.Struct, frozen=True):
    id: int
    method: str
    session_id: str | None
    result: Json = None
    error: CallFailure | None = None


Command: TypeAlias = (
    SendBytes
    | Emit
    | AcpPermissionRequest
    | AcpQuestion
    | PermissionWithdrawn
    | FileRequest
    | CallFinished
)


class AcpClient:
    """The state of one agent process: its sessions, our calls, its requests."""

    def __init__(
        self,
        quirks: AcpQuirks = DEFAULT_QUIRKS,
        *,
        clean: Callable[[bytes], bytes] | None = None,
        limit: int = MAX_LINE_SIZE,
    ) -> None:
        self.quirks = quirks
        self.session_meta: Mapping[str, Json] = {}
        """Sent as ``_meta`` with every session that is opened."""
        self._peer = Peer(SessionUpdate, clean=clean, limit=limit)
        self._offer = Offer()
        self._conversations: dict[str, AcpConversation] = {}
        self._call_sessions: dict[int, str] = {}
        """Call id → session id, for our calls that belong to one session."""
        self._permission_requests: dict[Id, AcpPermissionRequest] = {}
        self._questions: dict[Id, AcpQuestion] = {}
        self._file_requests: set[Id] = set()

    @property
    def last_line(self) -> bytes:
        """The last raw line from the agent, for the facts of an error."""
        return self._peer.last_line

    def call(self, method: str, session_id: str | None, params: object) -> SentCall:
        """Call any method; for methods that have no function here."""
        id, data = self._peer.call(method, params)
        if session_id is not None:
            self._call_sessions[id] = session_id
        return id, data

    def initialize(self, offer: Offer, *, name: str = "corral", version: str = "0") -> SentCall:
        self._offer = offer
        return self._peer.call("initialize", methods.initialize_params(offer, name, version))

    def authenticate(self, method_id: str, meta: JsonObject | None = None) -> SentCall:
        return self._peer.call("authenticate", methods.authenticate_params(method_id, meta))

    def new_session(self, cwd: str, servers: Iterable[McpServer] = ()) -> SentCall:
        return self._peer.call("session/new", self._session_params(cwd, servers))

    def _session_params(
        self, cwd: str, servers: Iterable[McpServer], session_id: str = ""
    ) -> JsonObject:
        params = methods.session_params(cwd, servers, session_id)
        return {**params, "_meta": dict(self.session_meta)} if self.session_meta else params

    def load_session(
        self, session_id: str, cwd: str, servers: Iterable[McpServer] = (), *, replay: bool = False
    ) -> SentCall:
        """Load a session. The agent sends its history, which is dropped unless ``replay``."""
        self._conversations[session_id] = AcpConversation(
            session_id, self.quirks, replaying=not replay
        )
        params = self._session_params(cwd, servers, session_id)
        return self.call("session/load", session_id, params)

    def resume_session(
        self, session_id: str, cwd: str, servers: Iterable[McpServer] = ()
    ) -> SentCall:
        """Resume a session without its history, for agents that offer ``resume``."""
        self._conversations[session_id] = AcpConversation(session_id, self.quirks, replaying=True)
        params = self._session_params(cwd, servers, session_id)
        return self.call("session/resume", session_id, params)

    def list_sessions(self, cwd: str | None = None, cursor: str | None = None) -> SentCall:
        wanted = {"cwd": cwd, "cursor": cursor}
        return self._peer.call("session/list", {k: v for k, v in wanted.items() if v is not None})

    def close_session(self, session_id: str) -> SentCall:
        return self.call("session/close", session_id, {"sessionId": session_id})

    def set_model(self, session_id: str, model: str) -> SentCall:
        """Raises ``ConfigError`` if the agent cannot choose a model per session."""
        chosen = methods.model_params(self.quirks, session_id, model)
        if chosen is None:
            raise ConfigError("the agent cannot choose a model for a session")
        method, params = chosen
        return self.call(method, session_id, params)

    def set_option(self, session_id: str, config_id: str, value: str) -> SentCall:
        params = methods.config_option_params(session_id, config_id, value)
        return self.call("session/set_config_option", session_id, params)

    def set_mode(self, session_id: str, mode: str) -> SentCall:
        return self.call("session/set_mode", session_id, {"sessionId": session_id, "modeId": mode})

    def prompt(self, session_id: str, blocks: Sequence[Block]) -> SentCall:
        """Start a turn. It ends with a ``TurnEnd`` event of the session, then ``CallFinished``.
        Raises ``PromptError`` for an empty prompt."""
        params = methods.prompt_params(self.quirks, session_id, blocks)
        self._conversation(session_id).start_turn()
        return self.call("session/prompt", session_id, params)

    def cancel(self, session_id: str) -> list[Command]:
        """Stop the turn. Open permission requests are answered with *cancelled*, after the
        notification: before it, the agent would take that for a denial and continue."""
        self._conversation(session_id).cancel_turn()
        out: list[Command] = [
            SendBytes(jsonrpc.notification("session/cancel", {"sessionId": session_id}))
        ]
        for ask in [
            ask for ask in self._permission_requests.values() if ask.session_id == session_id
        ]:
            out += self.answer_permission(ask.request_id, None)
            out.append(PermissionWithdrawn(session_id, ask.request_id))
        for asked in [each for each in self._questions.values() if each.session_id == session_id]:
            out += self.answer_question(asked.request_id, None, stop=True)
            out.append(PermissionWithdrawn(session_id, asked.request_id))
        return out

    def answer_question(
        self, request_id: Id, answers: Mapping[str, Json] | None, *, stop: bool = False
    ) -> list[Command]:
        """Reply with the answers to a question; without, it is declined, or cancelled if the turn
        is to ``stop``. Returns nothing if the question is not open any more."""
        from corral.protocol.question_forms import schema_answers

        asked = self._questions.pop(request_id, None)
        if asked is None:
            return []
        reply: JsonObject = {"action": "cancel" if stop else "decline"}
        if answers is not None:
            content = schema_answers(asked.schema, answers, self.quirks.note_fields)
            reply = {"action": "accept", "content": content}
        return [SendBytes(jsonrpc.result(request_id, reply))]

    def answer_permission(self, request_id: Id, option_id: str | None) -> list[Command]:
        """Reply with the chosen option, or with *cancelled* for ``None``. Returns nothing if the
        request is not open any more. Raises ``ValueError`` for an option that was not offered."""
        ask = self._permission_requests.get(request_id)
        if ask is None:
            return []
        kinds = {option.option_id: option.kind for option in ask.options}
        if option_id is not None and option_id not in kinds:
            raise ValueError(f"not among the options: {option_id!r} (offered: {[*kinds]})")
        del self._permission_requests[request_id]
        outcome: JsonObject = {"outcome": "cancelled"}
        if option_id is not None:
            outcome = {"outcome": "selected", "optionId": option_id}
        out: list[Command] = [SendBytes(jsonrpc.result(request_id, {"outcome": outcome}))]
        if option_id is None or not kinds[option_id].startswith("allow"):
            items = _session_events(out, ask.session_id)
            status: Literal["denied", "cancelled"] = "cancelled" if option_id is None else "denied"
            self._conversation(ask.session_id).deny_call(ask.call.call_id, status, items)
        return _without_empty_emits(out)

    def answer_file_request(self, request_id: Id, result: Json) -> list[Command]:
        """Reply to a ``FileRequest``. A second reply is ignored."""
        if request_id not in self._file_requests:
            return []
        self._file_requests.discard(request_id)
        return [SendBytes(jsonrpc.result(request_id, result))]

    def reject_file_request(
        self, request_id: Id, message: str, code: int = jsonrpc.INTERNAL_ERROR
    ) -> list[Command]:
        if request_id not in self._file_requests:
            return []
        self._file_requests.discard(request_id)
        return [SendBytes(jsonrpc.failure(request_id, code, message))]

    def answer_missing_file(self, request_id: Id, path: str) -> list[Command]:
        """Reply to the read of a missing file in the way the agent can handle."""
        if self.quirks.missing_file_is_empty:
            return self.answer_file_request(request_id, {"content": ""})
        return self.reject_file_request(
            request_id, f"Resource not found: {path}", RESOURCE_NOT_FOUND
        )

    def update_count(self, session_id: str) -> int:
        """How many batches of updates came for this session, dropped history included."""
        conversation = self._conversations.get(session_id)
        return conversation.update_count if conversation is not None else 0

    def forget_session(self, session_id: str) -> None:
        """Drop the state of a session that is not used any more."""
        self._conversations.pop(session_id, None)

    def receive(self, chunk: bytes) -> list[Command]:
        return self._handle_messages(self._peer.receive(chunk))

    def end(self, message: str = "the agent's output ended") -> list[Command]:
        """The agent has exited: every pending call fails, and all requests are withdrawn."""
        out = self._handle_messages(self._peer.end())
        for conversation in self._conversations.values():
            conversation.abandon_turn(_session_events(out, conversation.session_id))
        for pending in (self._permission_requests, self._questions):
            out += [PermissionWithdrawn(ask.session_id, id) for id, ask in pending.items()]
            pending.clear()
        self._file_requests.clear()
        for failure in self._peer.fail_pending(message):
            session_id = self._call_sessions.pop(failure.id, None)
            out.append(CallFinished(failure.id, failure.method, session_id, error=failure))
        return _without_empty_emits(out)

    def _conversation(self, session_id: str) -> AcpConversation:
        found = self._conversations.get(session_id)
        if found is None:  # updates may come before the reply that names the session
            found = self._conversations[session_id] = AcpConversation(session_id, self.quirks)
        return found

    def _count_update(self, session_id: str) -> AcpConversation:
        conversation = self._conversation(session_id)
        conversation.update_count += 1
        return conversation

    def _handle_messages(self, messages: Iterable[Message | SessionUpdate]) -> list[Command]:
        out: list[Command] = []
        session_id: str | None = None
        take: Callable[[Update, list[RawEvent]], None] | None = None
        items: list[RawEvent] = []
        for message in messages:
            if isinstance(message, SessionUpdate):  # the hot path: text, by the hundred thousand
                params = message.params
                if take is None or params.session_id != session_id:
                    session_id = params.session_id
                    take = self._count_update(session_id).handle_update
                    items = _session_events(out, session_id)
                take(params.update, items)
            else:
                take = None
                match message:
                    case CallReply() | CallFailure():
                        self._finish_call(message, out)
                    case IncomingCall():
                        self._handle_call(message, out)
                    case Notification():
                        self._handle_notification(message, out)
                    case Log() | Error() | Unknown():
                        _session_events(out, None).append(message)
                    case _:
                        assert_never(message)
        return _without_empty_emits(out)

    def _finish_call(self, answer: CallReply | CallFailure, out: list[Command]) -> None:
        """One of our calls got its reply."""
        session_id = self._call_sessions.pop(answer.id, None)
        failure = answer if isinstance(answer, CallFailure) else None
        if session_id is not None and answer.method == "session/prompt":
            self._withdraw_permissions(session_id, out)
            conversation, items = self._conversation(session_id), _session_events(out, session_id)
            if isinstance(answer, CallReply):
                conversation.finish_turn(answer.result, items)
            else:
                conversation.fail_turn(answer.code, answer.message, answer.data, items)
        # A session that was closed, or could not be opened, has no state any more.
        ends = ("session/load", "session/resume") if failure else ("session/close",)
        if session_id is not None and answer.method in ends:
            self._conversations.pop(session_id, None)
        result = answer.result if isinstance(answer, CallReply) else None
        out.append(CallFinished(answer.id, answer.method, session_id, result, failure))

    def _withdraw_permissions(self, session_id: str, out: list[Command]) -> None:
        """The turn is over: its permission requests and questions need no reply any more."""
        for pending in (self._permission_requests, self._questions):
            for request_id in [id for id, ask in pending.items() if ask.session_id == session_id]:
                del pending[request_id]
                out.append(PermissionWithdrawn(session_id, request_id))

    def _handle_call(self, call: IncomingCall, out: list[Command]) -> None:
        if any(
            call.id in pending
            for pending in (self._permission_requests, self._questions, self._file_requests)
        ):
            # The reply could not be distinguished from the reply to the first request.
            message = f"the id {str(call.id)[:50]!r} belongs to a request that is still open"
            out.append(SendBytes(jsonrpc.failure(call.id, jsonrpc.INVALID_REQUEST, message)))
            _session_events(out, _session_id_in(call.params)).append(Unknown(call.params))
        elif call.method == "session/request_permission":
            self._handle_permission_request(call, out)
        elif call.method == "elicitation/create" and _session_id_in(call.params) is not None:
            self._handle_question(call, as_object(call.params), out)
        elif call.method in FILE_METHODS and (
            self.quirks.calls_unoffered_fs or self._offer.covers(call.method)
        ):
            self._file_requests.add(call.id)
            out.append(FileRequest(_session_id_in(call.params), call.id, call.method, call.params))
        else:
            out.append(SendBytes(jsonrpc.method_not_found(call.id, call.method)))
            rejected: Json = {"method": call.method, "params": call.params}
            _session_events(out, _session_id_in(call.params)).append(
                Vendor("refused_call", rejected)
            )

    def _handle_permission_request(self, call: IncomingCall, out: list[Command]) -> None:
        try:
            params = convert_to(call.params, PermissionParams)
        except msgspec.ValidationError as error:
            out.append(SendBytes(jsonrpc.failure(call.id, jsonrpc.INVALID_PARAMS, str(error))))
            _session_events(out, _session_id_in(call.params)).append(Unknown(call.params))
            return
        session_id = params.session_id
        use = self._count_update(session_id).add_permission_request(
            params.tool_call, _session_events(out, session_id)
        )
        command = shell_command(use)
        ask = AcpPermissionRequest(session_id, call.id, use, tuple(params.options), command)
        self._permission_requests[call.id] = ask
        out.append(ask)

    def _handle_question(self, call: IncomingCall, params: JsonObject, out: list[Command]) -> None:
        """A form is passed on. A page that is to be opened is declined."""
        from corral.protocol.question_forms import schema_fields

        if params.get("mode") not in (None, "form"):
            out.append(SendBytes(jsonrpc.result(call.id, {"action": "decline"})))
            return
        session_id, schema = as_text(params.get("sessionId")), params.get("requestedSchema")
        question = AgentQuestion(
            str(call.id),
            title=as_text(params.get("message")),
            fields=schema_fields(schema, self.quirks.note_fields),
            call_id=text_or_none(params.get("toolCallId")),
        )
        self._count_update(session_id)
        asked = self._questions[call.id] = AcpQuestion(session_id, call.id, question, schema)
        out.append(asked)

    def _handle_notification(self, note: Notification, out: list[Command]) -> None:
        session_id = _session_id_in(note.params)
        if note.method == "$/cancel_request":
            request_id = as_object(note.params).get("requestId")
            asked = self._questions.pop(request_id, None) if isinstance(request_id, Id) else None
            if asked is not None:  # the agent took an open question back
                failure = jsonrpc.failure(asked.request_id, REQUEST_CANCELLED, "cancelled")
                out.append(SendBytes(failure))
                out.append(PermissionWithdrawn(asked.session_id, asked.request_id))
                return
        items = _session_events(out, session_id)
        match note.method, note.params:
            case "session/update", {"update": update} if session_id is not None:
                self._count_update(session_id).handle_untyped_update(update, items)
            case "session/update", _:
                items.append(Unknown(note.params))
            case method, params:
                items.append(Vendor(method, params))


def _session_id_in(params: Json) -> str | None:
    match params:
        case {"sessionId": str(session_id)}:
            return session_id
        case _:
            return None


def _session_events(out: list[Command], session_id: str | None) -> list[RawEvent]:
    """The list to which the next events of this session are appended. Commands stay in order."""
    last = out[-1] if out else None
    if not isinstance(last, Emit) or last.session_id != session_id:
        last = Emit(session_id, [])
        out.append(last)
    return last.events


def _without_empty_emits(out: list[Command]) -> list[Command]:
    """The commands without those ``Emit`` that have no events."""
    return [command for command in out if type(command) is not Emit or command.events]
