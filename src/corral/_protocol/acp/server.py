"""The Agent Client Protocol (ACP), version 1, agent side, as a state machine without I/O.

Theory of operation
===================

One ``AcpServer`` is one client (an editor, or another corral) with any number of sessions. The
caller (``_serving/acp/service.py``) owns stdin and stdout: it passes the bytes of the client to
``receive`` and executes the returned commands in order:

- ``SendBytes``: write these bytes to the client;
- ``ClientCall``: the client calls a method, with parameters of the right types; reply with
  ``reply`` or ``reject``, now or later;
- ``CallCancelled``: the client does not need the reply to this call any more (``session/cancel``
  for the prompt of a session, ``$/cancel_request`` for any call). It still gets one;
- ``RequestAnswered``: one of our requests got its reply, or will never get one;
- ``ClientProblem``: the client did something that has no reply; a text for a log.

``initialize`` is answered here, and every call that the protocol does not allow: a line that is no
JSON (-32700), no call (-32600), a method that does not exist (-32601), wrong parameters (-32602), a
session that is not open (-32002), and a call that does not fit the state (-32600).

States of the connection: *new* until ``initialize``, then *open*, then *ended* by ``end``.

States of a session:

- *unknown*: not opened here, or closed. Calls that name it are rejected.
- *idle*: from the reply to ``session/new``, ``load`` or ``resume``.
- *prompting*: from ``session/prompt`` until its reply. A second prompt is rejected: the client must
  wait, or cancel. Modes and options may be set; they apply to the next prompt.
- *closing*: from ``session/close`` until its reply. Its prompt is cancelled; other calls that name
  the session are rejected.

States of our requests (permissions, questions, files): *open* from ``request`` until the client's
reply, ``withdraw``, the reply to the session's prompt, or ``end``. All of them are in one table. A
reply that comes later is dropped; one that is no message, or too long, is the request's error.

Guarantees:

- Nothing here waits, reads a clock or does I/O. All methods return at once.
- Whatever the client writes, no exception is raised, and what comes after it is read.
- Each call gets exactly one reply; ``reply`` and ``reject`` do nothing for a call that has one. The
  id of a call that is still open cannot be used again: the two replies could not be distinguished,
  so the second call is rejected without an id.
- Each of our requests gets exactly one ``RequestAnswered``, and none after the reply to the prompt
  it belongs to.

The client goes away: the caller calls ``end``. Every request is answered with an error and every
call of the client is cancelled; what is then written is lost.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from corral._core.nesting import TOO_DEEP, decode_json, is_too_deep
from corral._protocol.acp.frames import (
    PROTOCOL_VERSION,
    AuthenticateParams,
    ClientCapabilities,
    InitializeParams,
    ListSessionsParams,
    NewSessionParams,
    OpenSessionParams,
    PromptParams,
    SessionParams,
    SetConfigOptionParams,
    SetModeParams,
    Update,
    without_nulls,
)
from corral._protocol.jsonrpc import (
    CLOSED,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
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
from corral._protocol.ndjson import MAX_LINE_SIZE, JsonLines
from corral.events import Error, Log, Unknown
from corral.values import Json, JsonObject, as_object, as_text, convert_to

STEERING = "_session/steering"
"""An extension that two other agents have: a text for the turn that is under way."""
METHODS: Mapping[str, Any] = {
    "initialize": InitializeParams,
    "authenticate": AuthenticateParams,
    "session/new": NewSessionParams,
    "session/load": OpenSessionParams,
    "session/resume": OpenSessionParams,
    "session/list": ListSessionsParams,
    "session/prompt": PromptParams,
    "session/set_mode": SetModeParams,
    "session/set_config_option": SetConfigOptionParams,
    "session/close": SessionParams,
    STEERING: PromptParams,
}
"""The methods of this side, and the types of their parameters."""
NEED_NO_SESSION = frozenset(
    {"authenticate", "session/new", "session/load", "session/resume", "session/list"}
)
SHOWN_ID = 50
"""Characters of an id that an error repeats."""
_ID = r'"id"\s*:\s*(-?[0-9]+|"(?:[^"\\]|\\.)*")'

Params: TypeAlias = (
    NewSessionParams
    | OpenSessionParams
    | ListSessionsParams
    | SessionParams
    | PromptParams
    | SetModeParams
    | SetConfigOptionParams
    | AuthenticateParams
)


class ClientCall(msgspec.Struct, frozen=True):
    id: Id
    method: str
    session_id: str | None
    """The open session that it names; of ``session/load`` and ``resume`` the one to open."""
    params: Params


class CallCancelled(msgspec.Struct, frozen=True):
    id: Id


class RequestAnswered(msgspec.Struct, frozen=True):
    id: int
    result: Json = None
    error: RpcError | None = None


class ClientProblem(msgspec.Struct, frozen=True):
    text: str


ServerCommand: TypeAlias = SendBytes | ClientCall | CallCancelled | RequestAnswered | ClientProblem


class _SessionState(msgspec.Struct):
    prompt: Id | None = None
    """The call that is prompting."""
    is_closing: bool = False


class AcpServer:
    """The state of one client: its calls, its sessions, our requests."""

    def __init__(
        self,
        capabilities: JsonObject,
        *,
        name: str = "corral",
        version: str = "0",
        steering: bool = False,
        limit: int = MAX_LINE_SIZE,
    ) -> None:
        """``capabilities`` are reported to the client as they are. ``steering``: turns that are
        under way take further texts. ``limit``: bytes of one line."""
        self.client: ClientCapabilities = ClientCapabilities()
        """What the client does for us, once it is initialized."""
        self._about: JsonObject = {
            "protocolVersion": PROTOCOL_VERSION,
            "agentCapabilities": capabilities,
            "agentInfo": {"name": name, "title": name, "version": version},
            "authMethods": [],
        }
        if steering:
            self._about["_meta"] = {"steering": {"supported": True}}
        self._has_steering = steering
        self._is_initialized = False
        self._lines: JsonLines[RpcFrame] = JsonLines(RpcFrame, limit=limit)
        self._calls: dict[Id, tuple[str, str | None]] = {}
        """The client's calls without a reply: id → the method, and the session that it names."""
        self._sessions: dict[str, _SessionState] = {}
        self._last_id = 0
        self._requests: dict[int, str] = {}
        """Our requests without a reply: id → the session that it belongs to."""

    def receive(self, chunk: bytes) -> list[ServerCommand]:
        out: list[ServerCommand] = []
        for frames in self._lines.receive(chunk, lambda item: self._handle_bad_line(item, out)):
            for frame in frames:
                self._handle(frame, out)
        return out

    def end(self) -> list[ServerCommand]:
        """The client has gone away."""
        out: list[ServerCommand] = []
        for id in [*self._requests]:
            self._answer_without_reply(id, RpcError(CLOSED, "the client has gone away"), out)
        out += map(CallCancelled, self._calls)
        return out

    def reply(self, id: Id, result: Json, *, opens: str | None = None) -> list[ServerCommand]:
        """The result of a call. ``opens`` is the session that it has opened."""
        if opens is not None and id in self._calls:
            self._sessions[opens] = _SessionState()
        return self._finish(id, result_reply(id, result))

    def reject(self, id: Id, code: int, message: str, data: Json = None) -> list[ServerCommand]:
        """The error of a call. A session that could not be closed well is closed, too."""
        return self._finish(id, error_reply(id, code, message, data))

    def _finish(self, id: Id, sent: SendBytes) -> list[ServerCommand]:
        """Send the reply to a call. Nothing if it has one."""
        if id not in self._calls:
            return []
        method, session_id = self._calls.pop(id)
        out: list[ServerCommand] = []
        session = self._sessions.get(session_id or "")
        if method == "session/close":
            self._sessions.pop(session_id or "", None)
        elif method == "session/prompt" and session is not None:
            session.prompt = None
            error = RpcError(REQUEST_CANCELLED, "the turn has ended")
            for request in [id for id, owner in self._requests.items() if owner == session_id]:
                out.append(SendBytes(_cancellation(request)))
                self._answer_without_reply(request, error, out)
        return [*out, sent]

    def is_open(self, session_id: str) -> bool:
        return session_id in self._sessions

    def is_prompting(self, session_id: str) -> bool:
        session = self._sessions.get(session_id)
        return session is not None and session.prompt is not None

    def request(self, method: str, session_id: str, params: object) -> tuple[int, SendBytes]:
        """Call the client; ``RequestAnswered`` has the same id."""
        self._last_id += 1
        self._requests[self._last_id] = session_id
        sent = rpc_line({"id": self._last_id, "method": method, "params": params})
        return self._last_id, SendBytes(sent)

    def withdraw(self, id: int) -> list[ServerCommand]:
        """Our request needs no answer any more. Nothing if it is not open."""
        if self._requests.pop(id, None) is None:
            return []
        return [SendBytes(_cancellation(id))]

    def _answer_without_reply(self, id: int, error: RpcError, out: list[ServerCommand]) -> None:
        del self._requests[id]
        out.append(RequestAnswered(id, error=error))

    def _handle_bad_line(self, item: Log | Error | Unknown, out: list[ServerCommand]) -> None:
        """A line that is no message. If it is the reply to one of our requests, that has failed: an
        error with its id would be taken for the reply to a call of the client."""
        reply = _read_bad_reply(item)
        if reply is None:
            _reject_line(item, out)
        elif self._requests.pop(reply[0], None) is not None:
            out.append(RequestAnswered(reply[0], error=RpcError(INVALID_REQUEST, reply[1])))
        else:
            out.append(ClientProblem(f"the client replied to no open request: {reply[1]}"))

    def _handle(self, frame: RpcFrame, out: list[ServerCommand]) -> None:
        if not isinstance(frame.method, str):
            self._handle_reply(frame, out)
        elif isinstance(frame.id, Id):
            self._handle_call(frame.id, frame.method, frame.params, out)
        elif frame.id is None:
            out.append(error_reply(None, INVALID_REQUEST, "the id of a call must not be null"))
        else:
            self._handle_notification(frame.method, as_object(frame.params), out)

    def _handle_reply(self, frame: RpcFrame, out: list[ServerCommand]) -> None:
        if not isinstance(frame.id, Id):
            if frame.error is None:
                out.append(error_reply(None, INVALID_REQUEST, "neither a method nor an id"))
            else:
                out.append(ClientProblem(f"the client could not read: {frame.error.message}"))
            return
        id = our_id(frame.id)
        if self._requests.pop(id, None) is not None:
            result = frame.result if frame.error is None else None
            out.append(RequestAnswered(id, result, frame.error))
        elif not 0 < id <= self._last_id:  # else it came after the request was withdrawn
            shown = str(frame.id)[:SHOWN_ID]
            out.append(ClientProblem(f"the client replied to an unknown request: {shown}"))

    def _handle_call(self, id: Id, method: str, given: Json, out: list[ServerCommand]) -> None:
        if id in self._calls:
            message = f"the id {str(id)[:SHOWN_ID]!r} belongs to a call that is still open"
            out.append(error_reply(None, INVALID_REQUEST, message))
            return
        kind = METHODS.get(method)
        if kind is None or (method == STEERING and not self._has_steering):
            shown = method[:200]
            problem = error_reply(
                id, METHOD_NOT_FOUND, f"Method not found: {shown}", {"method": shown}
            )
            out.append(problem)
            return
        try:
            if is_too_deep(given):
                raise msgspec.ValidationError(TOO_DEEP)
            checked = {} if given is None else without_nulls(given)
            params: InitializeParams | Params = convert_to(checked, kind)
        except msgspec.ValidationError as error:
            out.append(error_reply(id, INVALID_PARAMS, f"Invalid params: {error}"))
            return
        if isinstance(params, InitializeParams):
            self._is_initialized = True
            self.client = params.client_capabilities
            out.append(result_reply(id, self._about))
            return
        session_id: str | None = getattr(params, "session_id", None)
        refusal = self._refusal(id, method, session_id)
        if refusal is not None:
            out.append(refusal)
            return
        self._calls[id] = method, session_id
        session = self._sessions.get(session_id or "")
        if session is not None and method == "session/prompt":
            session.prompt = id
        elif session is not None and method == "session/close":
            session.is_closing = True
            if session.prompt is not None:
                out.append(CallCancelled(session.prompt))
        out.append(ClientCall(id, method, session_id, params))

    def _refusal(self, id: Id, method: str, session_id: str | None) -> SendBytes | None:
        """The error of a call that does not fit the state."""
        if not self._is_initialized:
            return error_reply(id, INVALID_REQUEST, "the first call must be initialize")
        if method in NEED_NO_SESSION:
            return None
        session = self._sessions.get(session_id or "")
        if session is None or session.is_closing:
            message = f"no session {(session_id or '')[:200]!r} is open: create or load it first"
            return error_reply(id, RESOURCE_NOT_FOUND, message, {"sessionId": session_id})
        if method == "session/prompt" and session.prompt is not None:
            message = "the session is answering a prompt: wait for its end, or cancel it"
            return error_reply(id, INVALID_REQUEST, message)
        return None

    def _handle_notification(
        self, method: str, params: JsonObject, out: list[ServerCommand]
    ) -> None:
        """One that is not known is ignored, as the protocol wants."""
        if method == "session/cancel":
            session = self._sessions.get(as_text(params.get("sessionId")))
            if session is not None and session.prompt is not None:
                out.append(CallCancelled(session.prompt))
        elif method == "$/cancel_request":
            id = params.get("requestId")
            if isinstance(id, Id) and id in self._calls:
                out.append(CallCancelled(id))


class UpdateEncoder:
    """The updates of one session as lines. What is the same in each is encoded once."""

    def __init__(self, session_id: str) -> None:
        params = msgspec.json.encode({"sessionId": session_id})
        self._head = b'{"jsonrpc":"2.0","method":"session/update","params":' + params[:-1]
        self._encode = msgspec.json.Encoder().encode

    def lines(self, updates: Iterable[Update | JsonObject]) -> bytes:
        head, encode = self._head, self._encode
        return b"".join([b'%b,"update":%b}}\n' % (head, encode(update)) for update in updates])


def _cancellation(id: int) -> bytes:
    return rpc_line({"method": "$/cancel_request", "params": {"requestId": id}})


def _read_bad_reply(item: Log | Error | Unknown) -> tuple[int, str] | None:
    """The id of the request to which a line that is no message replies (-1 if it has none), and
    what is wrong with it; None if it is no reply."""
    match item:
        case Error(code="oversized_line", facts=facts):
            head, result, _ = as_text(facts.get("sample")).partition('"result"')
            if not result or '"method"' in head:
                return None
            id, problem = _id_in(head), f"its reply of {facts.get('size'):,} bytes is too long"
        case Unknown(frame=dict(fields)):
            if "method" in fields or not fields.keys() & {"result", "error"}:
                return None
            id, problem = _id_of(fields), "its reply is not a message of JSON-RPC"
        case _:
            return None
    return -1 if id is None else our_id(id), problem


def _id_of(fields: JsonObject) -> Id | None:
    id = fields.get("id")
    return id if isinstance(id, Id) and not isinstance(id, bool) else None


def _id_in(head: str) -> Id | None:
    """The id in the beginning of a message. Programs write it before the rest."""
    if found := re.search(_ID, head):
        with contextlib.suppress(msgspec.MsgspecError):  # such as 007
            id: Id = convert_to(msgspec.json.decode(found[1]), Id)
            return id
    return None


def _reject_line(item: Log | Error | Unknown, out: list[ServerCommand]) -> None:
    """The error of a line that is no message, from what the reader of lines noted about it."""
    match item:
        case Error(code="oversized_line", facts=facts):
            # Without the id the client would wait for ever.
            id = _id_in(as_text(facts.get("sample")).partition('"params"')[0])
            message = f"a message of {facts.get('size'):,} bytes is too long"
            out.append(error_reply(id, INVALID_REQUEST, message))
        case Unknown(frame=frame):
            out.append(
                error_reply(_id_of(as_object(frame)), INVALID_REQUEST, "not a message of JSON-RPC")
            )
        case Log(text=text) if _is_json(text):
            out.append(error_reply(None, INVALID_REQUEST, "not a message of JSON-RPC"))
        case _:
            out.append(error_reply(None, PARSE_ERROR, "Parse error: a line is not JSON"))


def _is_json(text: str) -> bool:
    try:
        decode_json(text)
    except msgspec.DecodeError:
        return False
    return True
