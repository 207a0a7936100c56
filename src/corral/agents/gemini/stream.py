"""What the Gemini CLI writes with ``--output-format stream-json``, as events.

The exit code is not a status: the CLI returns 0 after a TERM, for an empty answer and for
truncated output. A turn succeeded if the exit code is 0 *and* the last line is a complete
``result`` frame that reports success.
"""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from corral.agents.gemini import controls, errors
from corral.events import Error, Init, ToolKind, ToolResult, ToolStatus, ToolUse
from corral.protocol.common_events import build_tool_use, unavailable_message, warning
from corral.protocol.ndjson import RawEvent, Translate, TurnEnd
from corral.values import JsonObject, Usage

TOOLS = controls.KINDS


class InitFrame(msgspec.Struct, gc=False, tag_field="type", tag="init"):
    session_id: str | None = None
    model: str | None = None


@final
class MessageFrame(msgspec.Struct, gc=False, tag_field="type", tag="message"):
    role: str
    content: str


@final
class ToolUseFrame(msgspec.Struct, gc=False, tag_field="type", tag="tool_use"):
    tool_name: str
    tool_id: str = ""
    parameters: JsonObject = {}


class ToolError(msgspec.Struct):
    type: str | None = None
    message: str | None = None


@final
class ToolResultFrame(msgspec.Struct, gc=False, tag_field="type", tag="tool_result"):
    tool_id: str
    status: str
    output: str | None = None
    error: ToolError | None = None


class ErrorFrame(msgspec.Struct, gc=False, tag_field="type", tag="error"):
    message: str
    severity: str = "error"


class Tokens(msgspec.Struct):
    total_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached: int = 0


class Stats(Tokens):
    models: dict[str, Tokens] = {}


class ResultFrame(msgspec.Struct, gc=False, tag_field="type", tag="result"):
    status: str
    stats: Stats | None = None
    error: ToolError | None = None


Frames: TypeAlias = (
    InitFrame | MessageFrame | ToolUseFrame | ToolResultFrame | ErrorFrame | ResultFrame
)

REPEATED_TEXT = 4
"""A shorter piece of text that is equal to the first one is not taken for a repetition."""


def translator() -> Translate:
    return Conversation().translate


class Conversation:
    """The frames of one conversation as events. Remembers open calls and the last error."""

    __slots__ = ("_complaint", "_first_text", "_searched", "_tools", "_warned")

    def __init__(self) -> None:
        self._first_text = ""
        self._warned = False
        self._complaint: str | None = None
        self._searched = False
        self._tools: dict[str, str] = {}

    def translate(self, frames: list[Frames]) -> list[RawEvent]:
        # ``isinstance`` of a struct costs several times as much if the answer is no.
        items: list[RawEvent] = []
        add, first_text = items.append, self._first_text
        for frame in frames:
            if type(frame) is MessageFrame:
                if frame.role != "assistant":
                    continue  # the prompt, echoed
                text = frame.content
                if not first_text:
                    first_text = text
                elif text == first_text and not self._warned and len(text) >= REPEATED_TEXT:
                    self._warned = True
                    add(_repeated())
                add(text)
            elif type(frame) is ToolUseFrame:
                first_text = ""
                add(self._tool_use(frame))
            elif type(frame) is ToolResultFrame:
                add(tool_result(frame, self._tools.pop(frame.tool_id, "")))
            else:
                add(self._other_event(frame))
        self._first_text = first_text
        return items

    def _tool_use(self, frame: ToolUseFrame) -> ToolUse:
        call_id, name = frame.tool_id, frame.tool_name
        self._tools[call_id] = name
        kind = TOOLS.get(name) or kind_of(name)
        if kind == "fetch":
            self._searched = True
        return build_tool_use(call_id, name, frame.parameters, kind=kind)

    def _other_event(self, frame: InitFrame | ErrorFrame | ResultFrame) -> RawEvent:
        match frame:
            case InitFrame():
                return Init(model=frame.model, session_id=frame.session_id)
            case ErrorFrame():
                self._complaint = frame.message
                return Error(
                    "agent_warning" if frame.severity == "warning" else "agent_error",
                    frame.message,
                    recoverable=True,
                    level="warning" if frame.severity == "warning" else "error",
                    phase="response",
                )
            case ResultFrame():
                return finish(frame, self._complaint, searched=self._searched)


def _repeated() -> Error:
    return warning(
        "text_repeated",
        "the answer started again: the CLI retries a broken stream without reporting it,"
        " and what follows may repeat what came before",
    )


def kind_of(name: str) -> ToolKind:
    return "mcp" if name.startswith("mcp_") else TOOLS.get(name, "other")


def tool_result(frame: ToolResultFrame, name: str) -> ToolResult:
    output = frame.output
    if frame.status == "success":
        if output is not None and output.startswith("Blocked: command"):
            return ToolResult(frame.tool_id, "denied", output=output, error=output)
        if frame.error is None:
            return ToolResult(frame.tool_id, "success", None, output)
    return _with_error(frame, name, frame.error or ToolError())


def _with_error(frame: ToolResultFrame, name: str, error: ToolError) -> ToolResult:
    message = error.message or ""
    status: ToolStatus = "success" if frame.status == "success" else "error"
    if error.type == "tool_not_registered" and controls.is_agent_tool(name):
        status, message = "denied", unavailable_message(name)
        if name.startswith("mcp_"):
            message += ", or its server did not start"
    elif (text := _DENIED.get(error.type or "")) is not None and text in message:
        status = "denied"
    failed = None if status == "success" else message or None
    return ToolResult(frame.tool_id, status, output=frame.output, error=failed)


_DENIED = {
    "policy_violation": "",
    "unhandled_exception": "requires user confirmation",
    "invalid_tool_params": "Path not in workspace",
}
"""Types of a tool's error that mean a denial → what the message must contain."""


def finish(frame: ResultFrame, complaint: str | None, *, searched: bool = False) -> TurnEnd:
    stats = frame.stats or Stats()
    looped = frame.status == "success" and complaint == errors.LOOP
    error = frame.error or ToolError()
    return TurnEnd(
        ok=frame.status == "success" and not looped,
        stop_reason="loop_detected" if looped else None,
        usage=usage(stats, searched=searched),
        usage_by_model={
            name: usage(each, searched=searched) for name, each in stats.models.items()
        },
        model=model_used(stats.models),
        kind=error.type,
        message=error.message or complaint,
    )


def usage(stats: Tokens, *, searched: bool = False) -> Usage:
    """All counts are zero if they are unknown. Thinking is only in the total. So are the prompts of
    the service's own web tools (``searched``): then the two cannot be distinguished, and neither is
    counted."""
    if not stats.total_tokens:
        return Usage()
    reasoning = max(0, stats.total_tokens - stats.input_tokens - stats.output_tokens)
    if searched and reasoning:
        return Usage(
            input=stats.input_tokens,
            output=stats.output_tokens,
            cache_read=stats.cached,
            coverage="partial",
        )
    return Usage(
        input=stats.input_tokens,
        output=stats.output_tokens + reasoning,
        reasoning=reasoning,
        cache_read=stats.cached,
        coverage="complete",
    )


def model_used(models: dict[str, Tokens]) -> str | None:
    """The model with the most output: with ``auto`` a small router model is in the list too."""
    ranked = sorted(models, key=lambda name: models[name].output_tokens)
    return ranked[-1] if ranked else None
