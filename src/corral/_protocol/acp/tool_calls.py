"""One tool call of an ACP agent, from its first update to its result.

Agents open a call without details and fill it by updates. A content list *replaces* the earlier
one, so an output event holds what was added. ``AcpConversation`` decides when a call is reported.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from corral._core.nesting import decode_json
from corral._protocol.acp.frames import ToolContent, ToolFields
from corral._protocol.acp.quirks import AcpQuirks
from corral._protocol.common_events import PERMISSION_DENIED, split_denial, unavailable_message
from corral.events import ToolKind, ToolOutput, ToolResult, ToolStatus, ToolUse
from corral.values import Json, JsonObject, as_object, as_texts

KINDS: dict[str, ToolKind] = {
    "read": "read",
    "edit": "edit",
    "delete": "delete",
    "move": "move",
    "search": "search",
    "execute": "execute",
    "code_execution": "execute",
    "think": "think",
    "fetch": "fetch",
    "switch_mode": "think",
}
"""The protocol's kinds, and one that agents use beside them. Any other is ``other``, which a policy
treats like the shell."""


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
        input = fields.raw_input
        match fields.raw_input:
            case {"server": str(server), "tool": str(tool)} if quirks.mcp_from_input:
                name = f"mcp__{server}__{tool}"
                input = as_object(fields.raw_input).get("arguments", input)
            case _:
                name = self._unavailable_tool() or self._tool_name or fields.kind or "other"
        kind = quirks.kinds.get(name) or KINDS.get(fields.kind or "", "other")
        if quirks.outside_title and fields.title == quirks.outside_title:
            kind = "edit"
        elif quirks.mcp_prefixes and name.startswith(quirks.mcp_prefixes):
            kind = "mcp"
        if not input:
            input = _input_from_content(fields.content or ())
            if kind == "mcp" and fields.status not in FINAL_STATUSES:
                input = _arguments_in_content(fields.content or ()) or input
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


def _arguments_in_content(content: Iterable[ToolContent]) -> JsonObject | None:
    """The arguments of a tool of an MCP server, which Gemini CLI sends as a text of JSON."""
    try:
        return decode_json(_content_text(content).encode(), JsonObject)
    except msgspec.MsgspecError:
        return None


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
