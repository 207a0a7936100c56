"""What ``opencode run --format json`` writes, as events.

A tool call is one line, written when the call has ended. There is no first and no last line: each
line has the session's id, and a step that ends with anything but tool calls ends the answer.
"""

from __future__ import annotations

import msgspec

from corral.agents.opencode.controls import TOOLS
from corral.agents.shared.hook_script import DENIED
from corral.events import (
    Init,
    Plan,
    PlanEntry,
    Thinking,
    ToolKind,
    ToolResult,
    ToolStatus,
    UsageReport,
)
from corral.protocol.common_events import build_tool_use, unavailable_message
from corral.protocol.ndjson import RawEvent, Translate, TurnEnd, frame_types, union_of
from corral.values import Cost, JsonObject, Usage, as_objects, text_or_none

UNAVAILABLE = "invalid"
"""The tool that OpenCode calls instead of one that the model may not use."""
REFUSALS = (
    "The user has specified a rule which prevents",
    "The user rejected permission",
)
HIDDEN = "Model tried to call unavailable tool"
_RULES = " Here are some of the relevant rules"
"""From here on an error repeats the whole policy."""


class Tokens(msgspec.Struct, frozen=True):
    input: int = 0
    output: int = 0
    reasoning: int = 0
    cache: dict[str, int] = {}


class State(msgspec.Struct, frozen=True):
    status: str = ""
    input: JsonObject = {}
    output: str | None = None
    error: str | None = None
    time: dict[str, float] = {}


class Part(msgspec.Struct, frozen=True):
    text: str = ""
    tool: str = ""
    call_id: str = msgspec.field(default="", name="callID")
    state: State = State()
    reason: str = ""
    tokens: Tokens = Tokens()
    cost: float = 0


class ErrorData(msgspec.Struct, frozen=True, rename="camel"):
    message: str = ""
    status_code: int | None = None


class Failure(msgspec.Struct, frozen=True):
    name: str = ""
    data: ErrorData = ErrorData()


class Frame(msgspec.Struct, frozen=True):
    session: str | None = msgspec.field(default=None, name="sessionID")
    part: Part = Part()
    error: Failure = Failure()


_NAMES = frame_types(Frame, ("step_start", "text", "reasoning", "tool_use", "step_finish", "error"))
Frames = union_of(_NAMES)


def translator() -> Translate:
    return Conversation().translate


class Conversation:
    """The frames of one run as events. Adds up tokens and cost."""

    def __init__(self) -> None:
        self._started = False
        self._usage = Usage()
        self._cost = Cost()

    def translate(self, frames: list[Frame]) -> list[RawEvent]:
        items: list[RawEvent] = []
        for frame in frames:
            if not self._started:
                self._started = True
                items.append(Init(session_id=frame.session))
            match _NAMES[type(frame)]:
                case "text":
                    items.append(frame.part.text)
                case "reasoning":
                    items.append(Thinking(frame.part.text))
                case "tool_use":
                    items += tool(frame.part)
                case "step_finish":
                    items.append(self._step(frame.part))
                case "error":
                    items.append(self._failed(frame.error))
                case _:
                    pass
        return items

    def _step(self, part: Part) -> RawEvent:
        tokens = part.tokens
        read, write = tokens.cache.get("read", 0), tokens.cache.get("write", 0)
        self._usage += Usage(
            input=tokens.input + read + write,
            output=tokens.output + tokens.reasoning,
            reasoning=tokens.reasoning,
            cache_read=read,
            cache_write=write,
            coverage="complete",
        )
        if part.cost:  # 0 is what it writes for a model whose price it does not know
            self._cost = Cost((self._cost.usd or 0) + part.cost, "reported")
        if part.reason == "tool-calls":
            return UsageReport(self._usage, cost=self._cost)
        return TurnEnd(
            ok=part.reason == "stop",
            stop_reason=part.reason,
            usage=self._usage,
            cost=self._cost,
            kind=part.reason,
        )

    def _failed(self, failure: Failure) -> TurnEnd:
        status = failure.data.status_code
        return TurnEnd(
            ok=False,
            usage=self._usage,
            cost=self._cost,
            kind=failure.name if status is None else str(status),
            message=failure.data.message or failure.name,
        )


def tool(part: Part) -> list[RawEvent]:
    """The call, its result, and the plan if the call changed the plan."""
    state, name, given, error = part.state, part.tool, part.state.input, part.state.error or ""
    wanted = given.get("tool")
    if name == UNAVAILABLE and isinstance(wanted, str):
        name, error, given = wanted, str(given.get("error", "")), {}
    kind = kind_of(name)
    use = build_tool_use(part.call_id, name, given, kind=kind)
    took = round(state.time["end"] - state.time["start"]) if len(state.time) == 2 else None
    if state.status == "completed" and not error:
        end = ToolResult(part.call_id, "success", output=state.output, duration_ms=took)
    else:
        status, why = _failure(name, kind, error)
        end = ToolResult(part.call_id, status, error=why or None, duration_ms=took)
    plan = _plan(given) if name == "todowrite" else None
    return [use, end] if plan is None else [use, end, plan]


def kind_of(name: str) -> ToolKind:
    return TOOLS.get(name.lower()) or ("mcp" if "_" in name else "other")


def wire_call(name: str, arguments: JsonObject) -> tuple[str, JsonObject]:
    """A call of the model. OpenCode corrects names that are not in lower case."""
    return (name.lower() if name.lower() in TOOLS else name), arguments


def _failure(name: str, kind: ToolKind, error: str) -> tuple[ToolStatus, str]:
    """Whether a call that did not succeed was denied, and the reason."""
    if error.startswith(HIDDEN) and kind != "other":
        return "denied", unavailable_message(name)
    is_denied = error.startswith((*REFUSALS, DENIED))
    return ("denied" if is_denied else "error"), error.split(_RULES, maxsplit=1)[0]


def _plan(given: JsonObject) -> Plan | None:
    if not isinstance(given.get("todos"), list):
        return None
    entries = (
        PlanEntry(
            str(todo["content"]),
            text_or_none(todo.get("status")),
            text_or_none(todo.get("priority")),
        )
        for todo in as_objects(given["todos"])
        if "content" in todo
    )
    return Plan(tuple(entries))
