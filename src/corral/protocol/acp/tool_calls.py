"""One tool call of a conversation, as it becomes known bit by bit.

Agents open a call with nothing in it and fill it by updates; ours is one
``tool_use``, so a call is held back until it is known or has begun. A content
list *replaces* the one before, so output is told by what was added to it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import Literal, cast

import msgspec

from corral.events import Json, ToolKind, ToolOutput, ToolResult, ToolStatus, ToolUse
from corral.protocol.acp.frames import ToolContent, ToolFields
from corral.protocol.acp.quirks import AcpQuirks
from corral.protocol.tool_fields import hidden

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
"""The protocol's kinds; any other is ``other``, which a policy takes for a shell."""

REFUSED = "permission was refused"
"""Where the agent itself says nothing of why."""


class OpenCall:
    """The state of one call. ``id`` is unique in its conversation and never empty."""

    def __init__(self, id: str, quirks: AcpQuirks) -> None:
        self.id = id
        self._quirks = quirks
        self._fields = ToolFields()
        self._named: str | None = None
        self._output = ""
        self.told = False
        """Its ``tool_use`` is out."""
        self.fate: Literal["denied", "cancelled"] | None = None
        """What we answered when it asked; the agent's own word on its end may still come."""

    @property
    def known(self) -> bool:
        """Whether there is something to tell, though it has not begun."""
        return bool(self._fields.raw_input or self._fields.content)

    @property
    def begun(self) -> bool:
        return self._fields.status not in (None, "pending")

    def learn(self, fields: ToolFields) -> None:
        """What the update says, over what was known. Emptied lists say nothing new."""
        mine = self._fields
        if self._named is None:
            self._named = _name(fields, self._quirks)
        mine.title = fields.title or mine.title
        mine.kind = fields.kind or mine.kind
        mine.status = fields.status or mine.status
        mine.raw_input = fields.raw_input or mine.raw_input
        mine.content = fields.content or mine.content
        mine.locations = fields.locations or mine.locations

    def use(self) -> ToolUse:
        """The call as it is known now."""
        mine, quirks = self._fields, self._quirks
        kind = KINDS.get(mine.kind or "", "other")
        name = self._missing() or self._named or mine.kind or "other"
        match mine.raw_input:
            case {"server": str(server), "tool": str(tool)} if quirks.mcp_from_input:
                name = f"mcp__{server}__{tool}"
            case _:
                pass
        kind = quirks.kinds.get(name, kind)
        if quirks.mcp_prefixes and name.startswith(quirks.mcp_prefixes):
            kind = "mcp"
        if quirks.outside_title and mine.title == quirks.outside_title:
            kind = "edit"
        given = mine.raw_input or _described(mine.content or ())
        if kind == "execute" and quirks.title_is_command and not mine.raw_input and mine.title:
            given = {**(given or {}), "command": mine.title}
        places = [location.path for location in mine.locations or ()]
        places += [part.path for part in mine.content or () if part.type == "diff"]
        places += _named_by(quirks.path_key, mine.raw_input) if quirks.path_key else ()
        return ToolUse(
            self.id,
            name,
            kind=kind,
            title=mine.title,
            input=given,
            paths=tuple(dict.fromkeys(filter(None, places))),
        )

    def _missing(self) -> str | None:
        """The tool that the model called and may not use, where this call stands for one."""
        sign = self._quirks.unavailable_tool
        match self._fields.raw_input:
            case {"tool": str(name), "error": str(why)} if sign and why.startswith(sign):
                return name
            case _:
                return None

    def output(self, fields: ToolFields) -> ToolOutput | None:
        """What an update of a call that runs adds to its output."""
        text = _text(fields.content or ())
        if self._fields.status != "in_progress" or not text or text == self._output:
            return None
        added = text.removeprefix(self._output)
        self._output = text
        return ToolOutput(self.id, added)

    def result(self, fields: ToolFields, *, cancelling: bool) -> ToolResult:
        """The end, as an update with a final status tells it."""
        told = _told(fields) or self._output or None
        if fields.status == "completed" and (missing := self._missing()):
            why = hidden(missing)
            return ToolResult(self.id, "denied", name=missing, error=why)
        if fields.status == "completed":
            return ToolResult(self.id, "success", name=self.use().name, output=told)
        if self._quirks.denied_code and _code(fields) == self._quirks.denied_code:
            return ToolResult(self.id, "denied", name=self.use().name, error=told)
        if any(sign in (told or "") for sign in self._quirks.denied_signs):
            return ToolResult(self.id, "denied", name=self.use().name, error=told)
        gone = cancelling or fields.status in ("cancelled", "canceled")
        status: ToolStatus = self.fate or ("cancelled" if gone else "error")
        told = told or (REFUSED if status == "denied" else None)
        return ToolResult(self.id, status, name=self.use().name, error=told)

    def unheard(self) -> ToolResult:
        """The end of a call that got no leave, and of which the agent said no more."""
        name = self.use().name
        if self.fate == "denied":
            return ToolResult(self.id, "denied", name=name, error=REFUSED)
        return ToolResult(self.id, "cancelled", name=name)


FINAL = frozenset({"completed", "failed", "cancelled", "canceled"})


def command_of(call: ToolUse) -> str | None:
    """The shell command that the call would run, where its input tells."""
    match call.input:
        case {"command": str(command), "args": [*words]} if words:
            return shlex.join([command, *map(str, words)])
        case {"command": str(command)} | {"cmd": str(command)}:
            return command
        case {"command": [str(program), "-c" | "-lc", str(command)]} if _is_shell(program):
            return command
        case {"command": list(words)} if words and all(isinstance(word, str) for word in words):
            return shlex.join(cast("list[str]", words))
        case {"commands": list(lines)} if lines and all(isinstance(line, str) for line in lines):
            return "\n".join(cast("list[str]", lines))
        case _:
            return None


def _is_shell(program: str) -> bool:
    return program.rpartition("/")[2] in ("sh", "bash", "dash", "zsh")


def _name(fields: ToolFields, quirks: AcpQuirks) -> str | None:
    if fields.name:
        return fields.name
    found: object = fields.meta if quirks.name_from_meta else None
    for key in quirks.name_from_meta:
        found = cast("dict[str, object]", found).get(key) if isinstance(found, dict) else None
    if isinstance(found, str) and found:
        return found
    if quirks.name_from_id and quirks.name_from_id in fields.tool_call_id:
        return fields.tool_call_id.split(quirks.name_from_id)[0] or None
    if quirks.name_before and fields.title:
        return fields.title.partition(quirks.name_before)[0]
    return fields.title if quirks.name_from_title else None


def _named_by(key: str, given: Json) -> Iterator[str]:
    """The values of this key, in an object and in the lists of objects in it."""
    if isinstance(given, dict):
        found = given.get(key)
        if isinstance(found, str):
            yield found
        for value in given.values():
            for each in value if isinstance(value, list) else ():
                yield from _named_by(key, each)


def _described(content: Iterable[ToolContent]) -> dict[str, Json] | None:
    """What a call without its input would do, as far as its content shows."""
    changes: list[Json] = [
        {"path": part.path, "old_text": part.old_text, "new_text": part.new_text}
        for part in content
        if part.type == "diff"
    ]
    if changes:
        return {"changes": changes}
    text = _text(content)
    return {"description": text} if text else None


def _text(content: Iterable[ToolContent]) -> str:
    found: list[str] = []
    for part in content:
        match cast("Json", part.content):
            case {"text": str(text)} | {"resource": {"text": str(text)}}:
                found.append(text)
            case _:
                pass
    return "\n".join(found)


def _code(fields: ToolFields) -> str | None:
    match cast("Json", fields.raw_output):
        case {"code": str(code)}:
            return code
        case _:
            return None


def _told(fields: ToolFields) -> str | None:
    """Raw output first: content is made up for a page (fences, diffs)."""
    raw = cast("Json", fields.raw_output)
    shown = _text(fields.content or ())
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
