"""What the floor above is to do for an agent that speaks the protocol."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from corral.events import Decision, Json, ToolUse
from corral.protocol.acp.frames import Option
from corral.protocol.jsonrpc import Failure, Id
from corral.protocol.ndjson import RawEvent


class Send(msgspec.Struct, frozen=True):
    data: bytes


class Emit(msgspec.Struct, frozen=True):
    session_id: str | None
    items: list[RawEvent]
    """In order, as many as came together."""


class PermissionAsked(msgspec.Struct, frozen=True):
    session_id: str
    request_id: Id
    call: ToolUse
    """What the agent is about to do; told as an item already."""
    options: tuple[Option, ...]
    command: str | None = None
    """The shell command in it, where there is one."""

    def option(self, decision: Decision) -> str | None:
        """The option that says so, by its kind; ``None`` cancels.

        Never more than was decided: where leave for once is not offered, nothing is
        given, and of several options for always none can be told to be the narrower.
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


class Withdrawn(msgspec.Struct, frozen=True):
    session_id: str
    request_id: Id


class Serve(msgspec.Struct, frozen=True):
    session_id: str | None
    request_id: Id
    method: str
    params: Json


class Settled(msgspec.Struct, frozen=True):
    id: int
    method: str
    session_id: str | None
    result: Json = None
    error: Failure | None = None


Command: TypeAlias = Send | Emit | PermissionAsked | Withdrawn | Serve | Settled


def items_of(out: list[Command], session_id: str | None) -> list[RawEvent]:
    """Where the next items of that session go: commands stay in order."""
    last = out[-1] if out else None
    if not isinstance(last, Emit) or last.session_id != session_id:
        last = Emit(session_id, [])
        out.append(last)
    return last.items


def spoken(out: list[Command]) -> list[Command]:
    """The commands that say something."""
    return [command for command in out if type(command) is not Emit or command.items]
