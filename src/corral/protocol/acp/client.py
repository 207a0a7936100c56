"""The Agent Client Protocol, version 1, client side, as a state machine.

``Acp`` is one process of an agent with any number of sessions. Bytes go in, and
commands come out, to be carried out in order by the floor above:

- ``Send``: write these bytes;
- ``Emit``: items of one session (of none: of the process), for its guard;
- ``Ask``: the agent wants leave; answer with ``answer_permission``;
- ``Withdrawn``: an ``Ask`` that no longer waits for its answer;
- ``Serve``: the agent wants a file; answer with ``answer`` or ``refuse``;
- ``Settled``: a call of ours has its reply, or will never have one.

Every call of ours returns its id, which its ``Settled`` carries, and the bytes to
write. Nothing here waits, and no bytes of the agent's are a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, assert_never

import msgspec

from corral.errors import ConfigError
from corral.events import Error, Json, Log, Unknown, Vendor
from corral.protocol import jsonrpc
from corral.protocol.acp import requests
from corral.protocol.acp.commands import (
    Command,
    PermissionAsked,
    Send,
    Serve,
    Settled,
    Withdrawn,
    items_of,
    spoken,
)
from corral.protocol.acp.conversation import Conversation
from corral.protocol.acp.frames import PermissionParams, SessionUpdate
from corral.protocol.acp.quirks import PLAIN, AcpQuirks
from corral.protocol.acp.requests import Block, Offer
from corral.protocol.acp.tool_calls import command_of
from corral.protocol.jsonrpc import Call, Failure, Id, Message, Note, Peer, Reply
from corral.protocol.lines import LIMIT
from corral.protocol.ndjson import RawEvent
from corral.values import McpServer

SERVED = frozenset({"fs/read_text_file", "fs/write_text_file"})
RESOURCE_NOT_FOUND = -32002


Sent: TypeAlias = tuple[int, bytes]


class Acp:
    def __init__(
        self,
        quirks: AcpQuirks = PLAIN,
        *,
        clean: Callable[[bytes], bytes] | None = None,
        limit: int = LIMIT,
    ) -> None:
        self.quirks = quirks
        self.session_meta: Mapping[str, Json] = {}
        """What goes along with each session that is opened, as its ``_meta``."""
        self._peer = Peer(SessionUpdate, clean=clean, limit=limit)
        self._offer = Offer()
        self._conversations: dict[str, Conversation] = {}
        self._of: dict[int, str] = {}
        """Calls of ours that are of one session."""
        self._asks: dict[Id, PermissionAsked] = {}
        self._serving: set[Id] = set()

    @property
    def last_line(self) -> bytes:
        """The last raw line of the agent's, for an error's facts."""
        return self._peer.last_line

    def call(self, method: str, session_id: str | None, params: object) -> Sent:
        """Any request, for what has no function of its own here."""
        id, data = self._peer.call(method, params)
        if session_id is not None:
            self._of[id] = session_id
        return id, data

    def initialize(self, offer: Offer, *, name: str = "corral", version: str = "0") -> Sent:
        self._offer = offer
        return self._peer.call("initialize", requests.initialize(offer, name, version))

    def authenticate(self, method_id: str, meta: dict[str, Json] | None = None) -> Sent:
        return self._peer.call("authenticate", requests.authenticate(method_id, meta))

    def new_session(self, cwd: str, servers: Iterable[McpServer] = ()) -> Sent:
        return self._peer.call("session/new", self._session(cwd, servers))

    def _session(
        self, cwd: str, servers: Iterable[McpServer], session_id: str = ""
    ) -> dict[str, Json]:
        params = requests.session(cwd, servers, session_id)
        return {**params, "_meta": dict(self.session_meta)} if self.session_meta else params

    def load_session(
        self, session_id: str, cwd: str, servers: Iterable[McpServer] = (), *, replay: bool = False
    ) -> Sent:
        """A session with its history, which is dropped unless ``replay`` is asked for."""
        self._conversations[session_id] = Conversation(
            session_id, self.quirks, replaying=not replay
        )
        params = self._session(cwd, servers, session_id)
        return self.call("session/load", session_id, params)

    def resume_session(self, session_id: str, cwd: str, servers: Iterable[McpServer] = ()) -> Sent:
        """A session without its history, where the agent says ``resume``."""
        self._conversations[session_id] = Conversation(session_id, self.quirks, replaying=True)
        params = self._session(cwd, servers, session_id)
        return self.call("session/resume", session_id, params)

    def list_sessions(self, cwd: str | None = None, cursor: str | None = None) -> Sent:
        wanted = {"cwd": cwd, "cursor": cursor}
        return self._peer.call("session/list", {k: v for k, v in wanted.items() if v is not None})

    def close_session(self, session_id: str) -> Sent:
        return self.call("session/close", session_id, {"sessionId": session_id})

    def set_model(self, session_id: str, model: str) -> Sent:
        """Raises ``ConfigError`` where the agent has no way to choose one in a session."""
        chosen = requests.choose_model(self.quirks, session_id, model)
        if chosen is None:
            raise ConfigError("the agent cannot choose a model for a session")
        method, params = chosen
        return self.call(method, session_id, params)

    def set_option(self, session_id: str, config_id: str, value: str) -> Sent:
        params = requests.config_option(session_id, config_id, value)
        return self.call("session/set_config_option", session_id, params)

    def set_mode(self, session_id: str, mode: str) -> Sent:
        return self.call("session/set_mode", session_id, {"sessionId": session_id, "modeId": mode})

    def prompt(self, session_id: str, blocks: Sequence[Block]) -> Sent:
        """Its end is a ``Finish`` among the session's items, then ``Settled``. Raises
        ``PromptError`` for a prompt of nothing."""
        params = requests.prompt(self.quirks, session_id, blocks)
        self._conversation(session_id).begin()
        return self.call("session/prompt", session_id, params)

    def cancel(self, session_id: str) -> list[Command]:
        """Stop the turn. Whatever still waits for leave is answered with *cancelled*,
        after the notice: before it, the agent would take that for a refusal and go on."""
        self._conversation(session_id).cancel()
        out: list[Command] = [Send(jsonrpc.note("session/cancel", {"sessionId": session_id}))]
        for ask in [ask for ask in self._asks.values() if ask.session_id == session_id]:
            out += self.answer_permission(ask.request_id, None)
            out.append(Withdrawn(session_id, ask.request_id))
        return out

    def answer_permission(self, request_id: Id, option_id: str | None) -> list[Command]:
        """The option chosen, or ``None``: cancelled. An answer that comes too late is
        nothing. Raises ``ValueError`` for an option that was not offered."""
        ask = self._asks.get(request_id)
        if ask is None:
            return []
        kinds = {option.option_id: option.kind for option in ask.options}
        if option_id is not None and option_id not in kinds:
            raise ValueError(f"not among the options: {option_id!r} (offered: {[*kinds]})")
        del self._asks[request_id]
        outcome: dict[str, Json] = {"outcome": "cancelled"}
        if option_id is not None:
            outcome = {"outcome": "selected", "optionId": option_id}
        out: list[Command] = [Send(jsonrpc.result(request_id, {"outcome": outcome}))]
        if option_id is None or not kinds[option_id].startswith("allow"):
            items = items_of(out, ask.session_id)
            fate: Literal["denied", "cancelled"] = "cancelled" if option_id is None else "denied"
            self._conversation(ask.session_id).refuse(ask.call.call_id, fate, items)
        return spoken(out)

    def answer(self, request_id: Id, result: Json) -> list[Command]:
        """To a ``Serve``. A second answer is nothing."""
        if request_id not in self._serving:
            return []
        self._serving.discard(request_id)
        return [Send(jsonrpc.result(request_id, result))]

    def refuse(
        self, request_id: Id, message: str, code: int = jsonrpc.INTERNAL_ERROR
    ) -> list[Command]:
        if request_id not in self._serving:
            return []
        self._serving.discard(request_id)
        return [Send(jsonrpc.failure(request_id, code, message))]

    def answer_missing_file(self, request_id: Id, path: str) -> list[Command]:
        """To a read of a file that is not there, as the agent can bear it."""
        if self.quirks.missing_file_is_empty:
            return self.answer(request_id, {"content": ""})
        return self.refuse(request_id, f"Resource not found: {path}", RESOURCE_NOT_FOUND)

    def updates_of(self, session_id: str) -> int:
        """Grows whenever the agent sends something for this session, dropped history too."""
        conversation = self._conversations.get(session_id)
        return conversation.heard if conversation is not None else 0

    def forget(self, session_id: str) -> None:
        """Nobody listens to that session any more."""
        self._conversations.pop(session_id, None)

    def receive(self, chunk: bytes) -> list[Command]:
        return self._take(self._peer.receive(chunk))

    def end(self, message: str = "the agent's output ended") -> list[Command]:
        """The agent is gone: every call of ours fails at once, and nothing waits any more."""
        out = self._take(self._peer.end())
        for conversation in self._conversations.values():
            conversation.abandon(items_of(out, conversation.session_id))
        out += [Withdrawn(ask.session_id, ask.request_id) for ask in self._asks.values()]
        self._asks.clear()
        self._serving.clear()
        for failure in self._peer.fail_pending(message):
            session_id = self._of.pop(failure.id, None)
            out.append(Settled(failure.id, failure.method, session_id, error=failure))
        return spoken(out)

    def _conversation(self, session_id: str) -> Conversation:
        found = self._conversations.get(session_id)
        if found is None:  # updates may come before the reply that names the session
            found = self._conversations[session_id] = Conversation(session_id, self.quirks)
        return found

    def _heard(self, session_id: str) -> Conversation:
        conversation = self._conversation(session_id)
        conversation.heard += 1
        return conversation

    def _take(self, messages: Iterable[Message | SessionUpdate]) -> list[Command]:
        out: list[Command] = []
        session_id: str | None = None
        take: Callable[[Any, list[RawEvent]], None] | None = None
        items: list[RawEvent] = []
        for message in messages:
            if isinstance(message, SessionUpdate):  # the hot path: text, by the hundred thousand
                params = message.params
                if take is None or params.session_id != session_id:
                    session_id = params.session_id
                    take = self._heard(session_id).take
                    items = items_of(out, session_id)
                take(params.update, items)
            else:
                take = None
                self._take_rarer(message, out)
        return spoken(out)

    def _take_rarer(self, message: Message, out: list[Command]) -> None:
        match message:
            case Reply():
                self._replied(message, out)
            case Failure():
                self._failed(message, out)
            case Call():
                self._called(message, out)
            case Note():
                self._noted(message, out)
            case Log() | Error() | Unknown():
                items_of(out, None).append(message)
            case _:
                assert_never(message)

    def _replied(self, reply: Reply, out: list[Command]) -> None:
        session_id = self._of.pop(reply.id, None)
        if session_id is not None and reply.method == "session/prompt":
            self._withdraw(session_id, out)
            self._conversation(session_id).finish(reply.result, items_of(out, session_id))
        if session_id is not None and reply.method == "session/close":
            self._conversations.pop(session_id, None)
        out.append(Settled(reply.id, reply.method, session_id, result=reply.result))

    def _failed(self, failure: Failure, out: list[Command]) -> None:
        session_id = self._of.pop(failure.id, None)
        if session_id is not None and failure.method == "session/prompt":
            self._withdraw(session_id, out)
            items = items_of(out, session_id)
            conversation = self._conversation(session_id)
            conversation.fail(failure.code, failure.message, failure.data, items)
        if session_id is not None and failure.method in ("session/load", "session/resume"):
            self._conversations.pop(session_id, None)
        out.append(Settled(failure.id, failure.method, session_id, error=failure))

    def _withdraw(self, session_id: str, out: list[Command]) -> None:
        """The turn is over: what it asked for needs no answer any more."""
        for ask in [ask for ask in self._asks.values() if ask.session_id == session_id]:
            del self._asks[ask.request_id]
            out.append(Withdrawn(session_id, ask.request_id))

    def _called(self, call: Call, out: list[Command]) -> None:
        if call.id in self._asks or call.id in self._serving:
            # An answer could not be told from the answer to the first.
            message = f"the id {str(call.id)[:50]!r} belongs to a request that still waits"
            out.append(Send(jsonrpc.failure(call.id, jsonrpc.INVALID_REQUEST, message)))
            items_of(out, _session_of(call.params)).append(Unknown(call.params))
        elif call.method == "session/request_permission":
            self._asked(call, out)
        elif call.method in SERVED and (
            self.quirks.unoffered_fs or self._offer.covers(call.method)
        ):
            self._serving.add(call.id)
            out.append(Serve(_session_of(call.params), call.id, call.method, call.params))
        else:
            out.append(Send(jsonrpc.method_not_found(call.id, call.method)))
            told: Json = {"method": call.method, "params": call.params}
            items_of(out, _session_of(call.params)).append(Vendor("refused_call", told))

    def _asked(self, call: Call, out: list[Command]) -> None:
        try:
            params = msgspec.convert(call.params, PermissionParams)
        except msgspec.ValidationError as error:
            out.append(Send(jsonrpc.failure(call.id, jsonrpc.INVALID_PARAMS, str(error))))
            items_of(out, _session_of(call.params)).append(Unknown(call.params))
            return
        session_id = params.session_id
        use = self._heard(session_id).ask(params.tool_call, items_of(out, session_id))
        command = command_of(use)
        ask = PermissionAsked(session_id, call.id, use, tuple(params.options), command)
        self._asks[call.id] = ask
        out.append(ask)

    def _noted(self, note: Note, out: list[Command]) -> None:
        session_id = _session_of(note.params)
        items = items_of(out, session_id)
        match note.method, note.params:
            case "session/update", {"update": update} if session_id is not None:
                self._heard(session_id).aside(update, items)
            case "session/update", _:
                items.append(Unknown(note.params))
            case method, params:
                items.append(Vendor(method, params))


def _session_of(params: Json) -> str | None:
    match params:
        case {"sessionId": str(session_id)}:
            return session_id
        case _:
            return None
