"""What ``opencode run --format json`` writes, as events; and its failures, as one error each.

A tool call is one line, written when the call has ended. There is no first and no last line: each
line has the session's id, and a step that ends with anything but tool calls ends the answer.
"""

from __future__ import annotations

import msgspec

from corral import errors
from corral._agents.opencode.controls import TOOLS, UNAVAILABLE
from corral._agents.shared.errors import SPENT, UNKNOWN_MODEL, AgentErrors, Signs, last_lines
from corral._agents.shared.launch import DENIED
from corral._agents.spec import TurnEnding
from corral._protocol.common_events import build_tool_use, unavailable_message
from corral._protocol.ndjson import RawEvent, Translate, TurnEnd, frame_types, union_of
from corral.errors import CorralError
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
from corral.values import Cost, JsonObject, Usage, as_objects, text_or_none

REFUSALS = (
    "The user has specified a rule which prevents",
    "The user rejected permission",
)
HIDDEN = "Model tried to call unavailable tool"
_RULES = " Here are some of the relevant rules"
"""From here on an error repeats the whole policy."""


class OpenCodeTokens(msgspec.Struct, frozen=True):
    input: int = 0
    output: int = 0
    reasoning: int = 0
    cache: dict[str, int] = {}


class CallState(msgspec.Struct, frozen=True):
    status: str = ""
    input: JsonObject = {}
    output: str | None = None
    error: str | None = None
    time: dict[str, float] = {}


class MessagePart(msgspec.Struct, frozen=True):
    text: str = ""
    tool: str = ""
    call_id: str = msgspec.field(default="", name="callID")
    state: CallState = CallState()
    reason: str = ""
    tokens: OpenCodeTokens = OpenCodeTokens()
    cost: float = 0


class ErrorData(msgspec.Struct, frozen=True, rename="camel"):
    message: str = ""
    status_code: int | None = None


class OpenCodeFailure(msgspec.Struct, frozen=True):
    name: str = ""
    data: ErrorData = ErrorData()


class OpenCodeFrame(msgspec.Struct, frozen=True):
    session: str | None = msgspec.field(default=None, name="sessionID")
    part: MessagePart = MessagePart()
    error: OpenCodeFailure = OpenCodeFailure()


_NAMES = frame_types(
    OpenCodeFrame, ("step_start", "text", "reasoning", "tool_use", "step_finish", "error")
)
Frames: object = union_of(_NAMES)


def translator() -> Translate:
    return OpenCodeTurn().translate


class OpenCodeTurn:
    """The frames of one run as events. Adds up tokens and cost."""

    def __init__(self) -> None:
        self._started = False
        self._usage = Usage()
        self._cost = Cost()

    def translate(self, frames: list[OpenCodeFrame]) -> list[RawEvent]:
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
                    failure = frame.error
                    status = failure.data.status_code
                    items.append(
                        TurnEnd(
                            ok=False,
                            usage=self._usage,
                            cost=self._cost,
                            kind=failure.name if status is None else str(status),
                            message=failure.data.message or failure.name,
                        )
                    )
                case _:
                    pass
        return items

    def _step(self, part: MessagePart) -> RawEvent:
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


def tool(part: MessagePart) -> list[RawEvent]:
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
        status, why = _failure(name, error)
        end = ToolResult(part.call_id, status, error=why or None, duration_ms=took)
    if name != "todowrite" or not isinstance(given.get("todos"), list):
        return [use, end]
    entries = (
        PlanEntry(
            str(todo["content"]),
            text_or_none(todo.get("status")),
            text_or_none(todo.get("priority")),
        )
        for todo in as_objects(given["todos"])
        if "content" in todo
    )
    return [use, end, Plan(tuple(entries))]


def kind_of(name: str) -> ToolKind:
    return TOOLS.get(name.lower()) or ("mcp" if "_" in name else "other")


def _failure(name: str, error: str) -> tuple[ToolStatus, str]:
    """Whether a call that did not succeed was denied, and the reason."""
    # A tool that neither OpenCode nor a server has is a mistake of the model, not a denial.
    if error.startswith(HIDDEN) and (name.lower() in TOOLS or "_" in name):
        return "denied", unavailable_message(name)
    is_denied = error.startswith((*REFUSALS, DENIED))
    return ("denied" if is_denied else "error"), error.split(_RULES, maxsplit=1)[0]


KEY_HINT = (
    "Set the key of the model's provider (OPENAI_API_KEY, ANTHROPIC_API_KEY, …), or sign in once"
    " with `opencode auth login`."
)

ERRORS = AgentErrors(
    title="OpenCode",
    program="opencode",
    key_hint=KEY_HINT,
    address="OPENAI_BASE_URL",
    hints={errors.ModelNotFound: "Give another with model= (--model), as provider/model."},
)
_SIGNS: Signs = (
    (
        ("api key", "api-key", "apikey", "unauthorized", "authentication", "401"),
        errors.AuthenticationFailed,
    ),
    ((*SPENT, "credit", "402"), errors.QuotaSpent),
    (("rate limit", "rate_limit", "too many requests", "429"), errors.RateLimited),
    (
        (
            "context length",
            "context window",
            "too many tokens",
            "prompt is too long",
            "token limit",
        ),
        errors.ContextLengthExceeded,
    ),
    (UNKNOWN_MODEL, errors.ModelNotFound),
    (("forbidden", "permission denied", "403"), errors.AccessDenied),
    (
        ("cannot connect", "unable to connect", "fetch failed", "econnre", "enotfound", "socket"),
        errors.NetworkFailed,
    ),
    (
        ("server error", "server_error", "overloaded", "unavailable", "bad gateway", "timeout"),
        errors.ServerFailed,
    ),
    (
        ("error 5", "status 5", "status code 5", "server had an error", "internal error"),
        errors.ServerFailed,
    ),
)


def explain(ending: TurnEnding) -> CorralError | None:
    """The error of a turn; None for a success."""
    finish = ending.finish
    if finish is not None and finish.ok:
        return None
    if finish is not None:
        text = (finish.message or "no reason given").removeprefix("Internal error: ")
        return ERRORS.from_signs(text, _SIGNS) or errors.ProcessFailed(text)
    stderr = last_lines(ending.stderr)
    if ending.signal is None and "postinstall script was not run" in stderr:
        return ERRORS.broken_install(stderr)
    error = ERRORS.without_result(ending)
    if type(error) in (errors.StreamBroken, errors.ProcessFailed):
        how = f"OpenCode ended unexpectedly (exit {ending.code}): {stderr}"
        return errors.StreamBroken(how.rstrip(": "))
    return error


_STOPPED: dict[str, tuple[type[CorralError], str]] = {
    "length": (
        errors.ContextLengthExceeded,
        "the model reached its token limit before the answer was complete",
    ),
    "content-filter": (errors.ContentRefused, "the model's service withheld the answer"),
}


def explain_headless(ending: TurnEnding) -> CorralError | None:
    """For one process per prompt: success needs the last step *and* a clean exit."""
    finish = ending.finish
    if finish is None and ending.code == 0:
        return errors.StreamBroken(
            "OpenCode ended before its answer was complete",
            hint="A permission request ends its run: allow or deny what it asks for.",
        )
    if finish is None and "session not found" in ending.stderr.lower():
        return errors.ResumeLost("OpenCode no longer knows the session", hint="Start a new one.")
    if finish is None:
        return explain(ending)
    if finish.ok:
        return ERRORS.after_success(ending)
    if finish.message is not None:
        status = finish.kind or ""
        known = ERRORS.from_signs(finish.message, _SIGNS)
        # For a text that says no more than the status.
        return known or ERRORS.from_status(finish.message, int(status) if status.isdecimal() else 0)
    kind, text = _STOPPED.get(
        finish.kind or "", (errors.StreamBroken, f"the answer broke off: {finish.kind}")
    )
    return kind(text)
