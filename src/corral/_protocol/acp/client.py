"""The Agent Client Protocol (ACP), version 1, client side, as a state machine without I/O.

Theory of operation
===================

One ``AcpClient`` is one agent process with any number of sessions. The caller
(``_sessions/acp/connection.py``) owns the process: it passes the bytes of the agent's stdout to
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

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from corral._protocol.acp.conversation import AcpConversation
from corral._protocol.acp.frames import (
    PROTOCOL_VERSION,
    Block,
    ConfigOption,
    InitializeResult,
    ListResult,
    PermissionOption,
    PermissionParams,
    SessionResult,
    SessionUpdate,
    TextBlock,
    Update,
    mcp_server,
    without_nulls,
)
from corral._protocol.acp.quirks import DEFAULT_QUIRKS, AcpQuirks
from corral._protocol.acp.tool_calls import shell_command
from corral._protocol.jsonrpc import (
    CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    REQUEST_CANCELLED,
    RESOURCE_NOT_FOUND,
    Id,
    RpcError,
    RpcFrame,
    SendBytes,
    error_reply,
    our_id,
    result_reply,
    rpc_line,
)
from corral._protocol.ndjson import MAX_LINE_SIZE, SAMPLE_SIZE, JsonLines, RawEvent
from corral.errors import ConfigError, InvalidRequest, PromptError, StreamBroken
from corral.events import AgentQuestion, Decision, Error, ToolUse, Unknown, Vendor
from corral.values import (
    AgentSession,
    Json,
    JsonObject,
    McpServer,
    as_list,
    as_object,
    as_text,
    convert_to,
    decoder_for,
    text_or_none,
)

_MENTION = r"(?<![^\s\ufeff])@"

R = TypeVar("R")
SentCall: TypeAlias = tuple[int, bytes]
"""The id of a call to the agent, and the bytes to write."""


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
    error: RpcError | None = None


Command: TypeAlias = (
    SendBytes
    | Emit
    | AcpPermissionRequest
    | AcpQuestion
    | PermissionWithdrawn
    | FileRequest
    | CallFinished
)


class Offer(msgspec.Struct, frozen=True):
    """What this client does for the agent. A call of any other method is rejected."""

    read_files: bool = False
    write_files: bool = False
    questions: bool = False
    """A person answers forms."""


class AcpClient:
    """The state of one agent process: its sessions, our calls, its requests. ``clean`` is applied
    to every complete line first, to redact secrets."""

    def __init__(
        self,
        quirks: AcpQuirks = DEFAULT_QUIRKS,
        *,
        servers: Iterable[str] = (),
        clean: Callable[[bytes], bytes] | None = None,
        limit: int = MAX_LINE_SIZE,
    ) -> None:
        """``servers``: the names of the MCP servers that the agent gets."""
        if quirks.server_prefix:
            prefixes = (quirks.server_prefix.format(name) for name in servers)
            quirks = replace(quirks, mcp_prefixes=(*quirks.mcp_prefixes, *prefixes))
        self.quirks = quirks
        self.session_meta: Mapping[str, Json] = {}
        """Sent as ``_meta`` with every session that is opened."""
        self._lines: JsonLines[SessionUpdate | RpcFrame] = JsonLines(
            SessionUpdate, _decode_message, clean=clean, limit=limit
        )
        self._served: dict[str, bool] = {}
        """The methods of files, and whether this client serves them."""
        self._conversations: dict[str, AcpConversation] = {}
        self._last_id = 0
        self._calls: dict[int, tuple[str, str | None]] = {}
        """Our calls without a reply: id → the method, and the session that it belongs to."""
        self._permission_requests: dict[Id, AcpPermissionRequest] = {}
        self._questions: dict[Id, AcpQuestion] = {}
        self._file_requests: set[Id] = set()
        self._serve_files(Offer())

    def call(self, method: str, session_id: str | None, params: object) -> SentCall:
        """Call any method; for methods that have no function here."""
        self._last_id += 1
        self._calls[self._last_id] = method, session_id
        data = rpc_line({"id": self._last_id, "method": method, "params": params})
        return self._last_id, data

    def method_of(self, id: int) -> str:
        """The method of one of our calls that has no reply yet."""
        return self._calls[id][0]

    def initialize(self, offer: Offer, *, name: str = "corral", version: str = "0") -> SentCall:
        self._serve_files(offer)
        questions: JsonObject = {"elicitation": {"form": {}}} if offer.questions else {}
        params: JsonObject = {
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": {
                "fs": {"readTextFile": offer.read_files, "writeTextFile": offer.write_files},
                "terminal": False,
                **questions,
            },
            "clientInfo": {"name": name, "version": version},
        }
        return self.call("initialize", None, params)

    def _serve_files(self, offer: Offer) -> None:
        always = self.quirks.calls_unoffered_fs
        self._served = {
            "fs/read_text_file": always or offer.read_files,
            "fs/write_text_file": always or offer.write_files,
        }

    def new_session(self, cwd: str, servers: Iterable[McpServer] = ()) -> SentCall:
        return self.call("session/new", None, self._session_params(cwd, servers))

    def load_session(
        self, session_id: str, cwd: str, servers: Iterable[McpServer] = (), *, replays: bool = True
    ) -> SentCall:
        """Open a session of an earlier process. The agent may send its history, which is dropped.
        An agent that has no method for that (``replays``) resumes the session without it."""
        self._conversations[session_id] = AcpConversation(session_id, self.quirks, replaying=True)
        params = {"sessionId": session_id, **self._session_params(cwd, servers)}
        return self.call("session/load" if replays else "session/resume", session_id, params)

    def _session_params(self, cwd: str, servers: Iterable[McpServer]) -> JsonObject:
        params: JsonObject = {"cwd": cwd, "mcpServers": [mcp_server(server) for server in servers]}
        return {**params, "_meta": dict(self.session_meta)} if self.session_meta else params

    def set_model(self, session_id: str, model: str) -> SentCall:
        """Raises ``ConfigError`` if the agent cannot choose a model per session."""
        params: JsonObject = {"sessionId": session_id}
        match self.quirks.set_model:
            case "session/set_model" as method:
                params |= {"modelId": model}
            case "session/set_config_option" as method:
                params |= {"configId": "model", "value": model}
            case None:
                raise ConfigError("the agent cannot choose a model for a session")
        return self.call(method, session_id, params)

    def prompt(self, session_id: str, blocks: Sequence[Block]) -> SentCall:
        """Start a turn. It ends with a ``TurnEnd`` event of the session, then ``CallFinished``.
        Raises ``PromptError`` for an empty prompt: some agents hang after one."""
        if not any(not isinstance(block, TextBlock) or block.text.strip() for block in blocks):
            raise PromptError("the prompt is empty", hint="Describe the task.")
        quirks, sent = self.quirks, [*blocks]
        if isinstance(sent[0], TextBlock) and sent[0].text.startswith(quirks.command_prefixes):
            sent[0] = TextBlock(quirks.command_escape + sent[0].text)
        if quirks.mention_escape:
            # A word that starts with "@" names a file, which the agent would add to the prompt.
            sent = [
                TextBlock(re.sub(_MENTION, lambda at: quirks.mention_escape + at[0], block.text))
                if isinstance(block, TextBlock)
                else block
                for block in sent
            ]
        self._conversation(session_id).start_turn()
        return self.call("session/prompt", session_id, {"sessionId": session_id, "prompt": sent})

    def cancel(self, session_id: str) -> list[Command]:
        """Stop the turn. Open permission requests are answered with *cancelled*, after the
        notification: before it, the agent would take that for a denial and continue."""
        self._conversation(session_id).is_cancelling = True
        notice = {"method": "session/cancel", "params": {"sessionId": session_id}}
        out: list[Command] = [SendBytes(rpc_line(notice))]
        asks: list[AcpPermissionRequest | AcpQuestion] = list(self._permission_requests.values())
        for ask in asks + list(self._questions.values()):
            if ask.session_id == session_id:
                if isinstance(ask, AcpPermissionRequest):
                    out += self.answer_permission(ask.request_id, None)
                else:
                    out += self.answer_question(ask.request_id, None, stop=True)
                out.append(PermissionWithdrawn(session_id, ask.request_id))
        return out

    def answer_question(
        self, request_id: Id, answers: Mapping[str, Json] | None, *, stop: bool = False
    ) -> list[Command]:
        """Reply with the answers to a question; without, it is declined, or cancelled if the turn
        is to ``stop``. Returns nothing if the question is not open any more."""
        from corral._protocol.question_forms import schema_answers

        asked = self._questions.pop(request_id, None)
        if asked is None:
            return []
        reply: JsonObject = {"action": "cancel" if stop else "decline"}
        if answers is not None:
            content = schema_answers(asked.schema, answers, self.quirks.note_fields)
            reply = {"action": "accept", "content": content}
        return [result_reply(request_id, reply)]

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
        out: list[Command] = [result_reply(request_id, {"outcome": outcome})]
        if option_id is None or not kinds[option_id].startswith("allow"):
            items = _session_events(out, ask.session_id)
            status: Literal["denied", "cancelled"] = "cancelled" if option_id is None else "denied"
            self._conversation(ask.session_id).deny_call(ask.call.call_id, status, items)
        return _without_empty_emits(out)

    def answer_file_request(self, request_id: Id, result: Json) -> list[Command]:
        """Reply to a ``FileRequest``. A second reply is ignored."""
        return self._end_file_request(request_id, result_reply(request_id, result))

    def reject_file_request(
        self, request_id: Id, message: str, code: int = INTERNAL_ERROR
    ) -> list[Command]:
        return self._end_file_request(request_id, error_reply(request_id, code, message))

    def answer_missing_file(self, request_id: Id, path: str) -> list[Command]:
        """Reply to the read of a missing file in the way the agent can handle."""
        if self.quirks.missing_file_is_empty:
            return self.answer_file_request(request_id, {"content": ""})
        return self.reject_file_request(
            request_id, f"Resource not found: {path}", RESOURCE_NOT_FOUND
        )

    def _end_file_request(self, request_id: Id, reply: SendBytes) -> list[Command]:
        if request_id not in self._file_requests:
            return []
        self._file_requests.discard(request_id)
        return [reply]

    def update_count(self, session_id: str) -> int:
        """How many batches of updates came for this session, dropped history included."""
        conversation = self._conversations.get(session_id)
        return conversation.update_count if conversation is not None else 0

    def forget_session(self, session_id: str) -> None:
        """Drop the state of a session that is not used any more."""
        self._conversations.pop(session_id, None)

    def receive(self, chunk: bytes) -> list[Command]:
        out: list[Command] = []
        batches = self._lines.receive(chunk, lambda item: _session_events(out, None).append(item))
        self._handle_batches(batches, out)
        return _without_empty_emits(out)

    def end(self, message: str = "the agent's output ended") -> list[Command]:
        """The agent has exited: every pending call fails, and all requests are withdrawn."""
        out: list[Command] = []
        batches = self._lines.end(lambda item: _session_events(out, None).append(item))
        self._handle_batches(batches, out)
        for conversation in self._conversations.values():
            conversation.abandon_turn(_session_events(out, conversation.session_id))
        for pending in (self._permission_requests, self._questions):
            out += [PermissionWithdrawn(ask.session_id, id) for id, ask in pending.items()]
            pending.clear()
        self._file_requests.clear()
        for id, (method, session_id) in self._calls.items():
            out.append(CallFinished(id, method, session_id, error=RpcError(CLOSED, message)))
        self._calls.clear()
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

    def _handle_batches(
        self, batches: Iterable[list[SessionUpdate | RpcFrame]], out: list[Command]
    ) -> None:
        for batch in batches:
            session_id: str | None = None
            take: Callable[[Update, list[RawEvent]], None] | None = None
            items: list[RawEvent] = []
            for message in batch:
                if isinstance(message, SessionUpdate):  # text, by the hundred thousand
                    params = message.params
                    if take is None or params.session_id != session_id:
                        session_id = params.session_id
                        take = self._count_update(session_id).handle_update
                        items = _session_events(out, session_id)
                    take(params.update, items)
                else:
                    take = None
                    self._handle_message(message, out)

    def _handle_message(self, frame: RpcFrame, out: list[Command]) -> None:
        if isinstance(frame.method, str):
            if isinstance(frame.id, Id):
                self._handle_call(frame.id, frame.method, frame.params, out)
            else:
                self._handle_notification(frame.method, frame.params, out)
            return
        id = our_id(frame.id) if isinstance(frame.id, Id) else -1
        call = self._calls.pop(id, None)
        if call is not None:
            self._finish_call(id, *call, frame, out)
            return
        if not isinstance(frame.id, Id):  # the reply to a line whose id the agent could not read
            why = frame.error.message if frame.error else "a reply without an id"
            problem = f"rejected one of our lines: {why}"
        elif 0 < id <= self._last_id:
            problem = f"answered call {frame.id!r} twice"
        else:
            problem = f"answered unknown call {frame.id!r}"
        message = f"the agent {problem}"[:SAMPLE_SIZE]
        stray = Error("stray_reply", message, recoverable=True, level="warning", phase="stream")
        _session_events(out, None).append(stray)

    def _finish_call(
        self, id: int, method: str, session_id: str | None, reply: RpcFrame, out: list[Command]
    ) -> None:
        """One of our calls got its reply."""
        if session_id is not None and method == "session/prompt":
            for pending in (self._permission_requests, self._questions):  # they need no reply now
                for ask_id in [ask for ask in pending if pending[ask].session_id == session_id]:
                    del pending[ask_id]
                    out.append(PermissionWithdrawn(session_id, ask_id))
            conversation, items = self._conversation(session_id), _session_events(out, session_id)
            if reply.error is None:
                conversation.finish_turn(reply.result, items)
            else:
                conversation.fail_turn(reply.error, items)
        # A session that could not be opened has no state any more.
        if session_id is not None and method in ("session/load", "session/resume") and reply.error:
            self._conversations.pop(session_id, None)
        result = reply.result if reply.error is None else None
        out.append(CallFinished(id, method, session_id, result, reply.error))

    def _handle_call(self, id: Id, method: str, params: Json, out: list[Command]) -> None:
        session_id = _session_id_in(params)
        problem: RawEvent | None = None
        if id in self._permission_requests or id in self._questions or id in self._file_requests:
            # The reply could not be distinguished from the reply to the first request.
            message = f"the id {str(id)[:50]!r} belongs to a request that is still open"
            out.append(error_reply(id, INVALID_REQUEST, message))
            problem = Unknown(params)
        elif method == "session/request_permission":
            self._handle_permission_request(id, params, out)
        elif method == "elicitation/create" and session_id is not None:
            self._handle_question(id, session_id, as_object(params), out)
        elif self._served.get(method, False):
            self._file_requests.add(id)
            out.append(FileRequest(session_id, id, method, params))
        else:
            message = f"Method not found: {method}"
            out.append(error_reply(id, METHOD_NOT_FOUND, message, {"method": method}))
            problem = Vendor("refused_call", {"method": method, "params": params})
        if problem is not None:
            _session_events(out, session_id).append(problem)

    def _handle_permission_request(self, id: Id, given: Json, out: list[Command]) -> None:
        try:
            params = convert_to(given, PermissionParams)
        except msgspec.ValidationError as error:
            out.append(error_reply(id, INVALID_PARAMS, str(error)))
            _session_events(out, _session_id_in(given)).append(Unknown(given))
            return
        session_id = params.session_id
        use = self._count_update(session_id).add_permission_request(
            params.tool_call, _session_events(out, session_id)
        )
        ask = AcpPermissionRequest(session_id, id, use, tuple(params.options), shell_command(use))
        self._permission_requests[id] = ask
        out.append(ask)

    def _handle_question(
        self, id: Id, session_id: str, params: JsonObject, out: list[Command]
    ) -> None:
        """A form is passed on. A page that is to be opened is declined."""
        from corral._protocol.question_forms import schema_fields

        if params.get("mode") not in (None, "form"):
            out.append(result_reply(id, {"action": "decline"}))
            return
        schema = params.get("requestedSchema")
        question = AgentQuestion(
            str(id),
            title=as_text(params.get("message")),
            fields=schema_fields(schema, self.quirks.note_fields),
            call_id=text_or_none(params.get("toolCallId")),
        )
        self._count_update(session_id)
        asked = self._questions[id] = AcpQuestion(session_id, id, question, schema)
        out.append(asked)

    def _handle_notification(self, method: str, params: Json, out: list[Command]) -> None:
        if method == "$/cancel_request":
            request_id = as_object(params).get("requestId")
            asked = self._questions.pop(request_id, None) if isinstance(request_id, Id) else None
            if asked is not None:  # the agent took an open question back
                out.append(error_reply(asked.request_id, REQUEST_CANCELLED, "cancelled"))
                out.append(PermissionWithdrawn(asked.session_id, asked.request_id))
                return
        session_id = _session_id_in(params)
        items = _session_events(out, session_id)
        match method, params:
            case "session/update", {"update": update} if session_id is not None:
                self._count_update(session_id).handle_untyped_update(update, items)
            case "session/update", _:
                items.append(Unknown(params))
            case _:
                items.append(Vendor(method, params))


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a session offers. Empty where the agent does not report it."""

    session_id: str
    models: tuple[str, ...]
    model: str | None
    modes: tuple[str, ...]


def read_initialize(result: Json) -> InitializeResult:
    """Read the reply to ``initialize``. Raises ``InvalidRequest`` if the agent uses another
    version of the protocol."""
    reply = _convert_result(result, InitializeResult)
    if str(reply.protocol_version) != str(PROTOCOL_VERSION):
        raise InvalidRequest(
            f"the agent uses version {reply.protocol_version} of the Agent Client Protocol,"
            f" but corral needs version {PROTOCOL_VERSION}",
            hint="Install a version of the agent that supports it, or update corral.",
            phase="handshake",
        )
    return reply


def read_session(result: Json, session_id: str = "") -> SessionInfo:
    """Read the reply to ``session/new``, ``load`` or ``resume``. The last two carry no id."""
    reply = _convert_result(result, SessionResult)
    if not (reply.session_id or session_id):
        raise StreamBroken("the agent opened a session without an id", phase="handshake")

    def find_option(name: str) -> ConfigOption:
        """The option with this category, or else with this id; an empty one without either."""
        by_category = (option for option in reply.config_options if option.category == name)
        by_id = (option for option in reversed(reply.config_options) if option.id == name)
        return next(by_category, None) or next(by_id, None) or ConfigOption(name)

    model, mode = find_option("model"), find_option("mode")
    models = [listed.model_id for listed in reply.models.available_models]
    modes = [listed.id for listed in reply.modes.available_modes]
    return SessionInfo(
        session_id=reply.session_id or session_id,
        models=tuple(models or _option_values(model.options)),
        model=reply.models.current_model_id or text_or_none(model.current_value),
        modes=tuple(modes or _option_values(mode.options)),
    )


def _option_values(options: list[Json]) -> list[str]:
    """The values of a choice. Its options may be grouped."""
    values: list[str] = []
    for option in options:
        match option:
            case {"value": str(value)}:
                values.append(value)
            case {"options": group}:
                values += _option_values(as_list(group))
            case _:
                pass
    return values


def read_session_list(result: Json) -> tuple[list[AgentSession], str | None]:
    """One page of the agent's sessions, and the cursor of the next page."""
    reply = _convert_result(result, ListResult)
    listed = [AgentSession(s.session_id, s.cwd, s.title, s.updated_at) for s in reply.sessions]
    return listed, reply.next_cursor


def _convert_result(result: Json, kind: type[R]) -> R:
    """The result of a reply as a struct. Raises ``StreamBroken`` if it does not fit."""
    try:
        return convert_to({} if result is None else without_nulls(result), kind)
    except msgspec.ValidationError as error:
        raise StreamBroken(
            f"the agent sent an invalid reply: {error}", phase="handshake"
        ) from error


def _decode_message(line: bytes | str) -> SessionUpdate | RpcFrame:
    try:
        return decoder_for(SessionUpdate).decode(line)
    except msgspec.ValidationError:
        frame = decoder_for(RpcFrame).decode(line)
    if frame.method is UNSET and frame.id is UNSET and frame.error is None:
        raise msgspec.ValidationError("not a message: neither a method nor an id")
    return frame


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
