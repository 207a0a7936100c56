"""The commands that ``AcpClient`` returns: what its caller must do next, in order."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from corral.events import Decision, ToolUse
from corral.protocol.acp.frames import PermissionOption
from corral.protocol.jsonrpc import Failure, Id
from corral.protocol.ndjson import RawEvent
from corral.values import Json


class Send(msgspec.Struct, frozen=True):
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
    error: Failure | None = None


Command: TypeAlias = (
    Send | Emit | AcpPermissionRequest | PermissionWithdrawn | FileRequest | CallFinished
)


def session_events(out: list[Command], session_id: str | None) -> list[RawEvent]:
    """The list to which the next events of this session are appended. Commands stay in order."""
    last = out[-1] if out else None
    if not isinstance(last, Emit) or last.session_id != session_id:
        last = Emit(session_id, [])
        out.append(last)
    return last.events


def without_empty_emits(out: list[Command]) -> list[Command]:
    """The commands without those ``Emit`` that have no events."""
    return [command for command in out if type(command) is not Emit or command.events]
