"""What ``opencode run --format json`` writes, as events; and its failures, as one error each.

A tool call is one line, written when the call has ended. There is no first and no last line: each
line has the session's id, and a step that ends with anything but tool calls ends the answer.
"""

from __future__ import annotations

import msgspec

from corral import errors
from corral.agents.opencode.controls import TOOLS, UNAVAILABLE
from corral.agents.shared.errors import (
    QUOTA,
    SERVICE_FAULT,
    SPENT,
    UNKNOWN_MODEL,
    error_after_success,
    unauthenticated,
)
from corral.agents.shared.launch import DENIED
from corral.agents.spec import TurnEnding
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
from corral.protocol.common_events import build_tool_use, unavailable_message
from corral.protocol.ndjson import RawEvent, Translate, TurnEnd, frame_types, union_of
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
Frames = union_of(_NAMES)


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


def wire_call(name: str, arguments: JsonObject) -> tuple[str, JsonObject]:
    """A call of the model. OpenCode corrects names that are not in lower case."""
    return (name.lower() if name.lower() in TOOLS else name), arguments


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

_SIGNS: tuple[tuple[tuple[str, ...], type[CorralError], str | None], ...] = (
    (
        ("api key", "api-key", "apikey", "unauthorized", "authentication", "401"),
        errors.AuthenticationFailed,
        KEY_HINT,
    ),
    (
        (*SPENT, "credit", "402"),
        errors.QuotaSpent,
        QUOTA,
    ),
    (
        ("rate limit", "rate_limit", "too many requests", "429"),
        errors.RateLimited,
        "Wait and try again.",
    ),
    (
        (
            "context length",
            "context window",
            "too many tokens",
            "prompt is too long",
            "token limit",
        ),
        errors.ContextLengthExceeded,
        "Shorten the prompt or start a new session.",
    ),
    (
        UNKNOWN_MODEL,
        errors.ModelNotFound,
        "Give another with model= (--model), as provider/model.",
    ),
    (("forbidden", "permission denied", "403"), errors.AccessDenied, None),
    (
        ("cannot connect", "unable to connect", "fetch failed", "econnre", "enotfound", "socket"),
        errors.NetworkFailed,
        "Check the network, the proxy variables and OPENAI_BASE_URL.",
    ),
    (
        ("server error", "server_error", "overloaded", "unavailable", "bad gateway", "timeout"),
        errors.ServerFailed,
        SERVICE_FAULT,
    ),
    (
        ("error 5", "status 5", "status code 5", "server had an error", "internal error"),
        errors.ServerFailed,
        None,
    ),
)
"""Parts of the text of an API error → the error. The first match counts."""


def explain(ending: TurnEnding) -> CorralError | None:
    """The error of a turn; None for a success."""
    finish = ending.finish
    if finish is not None and finish.ok:
        return None
    if finish is not None:
        return _error_from_text(
            (finish.message or "no reason given").removeprefix("Internal error: ")
        )
    stderr = "\n".join(ending.stderr.splitlines()[-6:])
    if ending.signal is not None:
        return errors.KilledBySignal(f"OpenCode was killed by signal {ending.signal}")
    if ending.code in (126, 127) or "postinstall script was not run" in stderr:
        return errors.BrokenInstall(
            stderr or "the program could not be run",
            hint="Install it again: corral agents install opencode",
        )
    return unauthenticated(stderr, KEY_HINT) or errors.StreamBroken(
        f"OpenCode ended unexpectedly (exit {ending.code}): {stderr}".rstrip(": ")
    )


_STOPPED: dict[str, tuple[type[CorralError], str]] = {
    "length": (
        errors.ContextLengthExceeded,
        "the model reached its token limit before the answer was complete",
    ),
    "content-filter": (errors.ContentRefused, "the model's service withheld the answer"),
}
_BY_STATUS: dict[str, tuple[type[CorralError], str | None]] = {
    "401": (errors.AuthenticationFailed, KEY_HINT),
    "402": (errors.QuotaSpent, QUOTA),
    "403": (errors.AccessDenied, None),
    "404": (errors.ModelNotFound, "Give another with model= (--model), as provider/model."),
    "413": (errors.ContextLengthExceeded, "Shorten the prompt or start a new session."),
    "429": (errors.RateLimited, "Wait and try again."),
    "400": (errors.InvalidRequest, None),
}
"""For a text that says no more than the status."""


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
        return error_after_success(ending, "OpenCode")
    if finish.message is not None:
        known, status = _error_from_text(finish.message), finish.kind or ""
        if type(known) is not errors.ProcessFailed:
            return known
        if status.isdecimal() and int(status) >= 500:
            return errors.ServerFailed(finish.message, hint=SERVICE_FAULT)
        error, hint = _BY_STATUS.get(status, (errors.ProcessFailed, None))
        return error(finish.message, hint=hint)
    kind, text = _STOPPED.get(
        finish.kind or "", (errors.StreamBroken, f"the answer broke off: {finish.kind}")
    )
    return kind(text)


def _error_from_text(text: str) -> CorralError:
    low = text.lower()
    for signs, kind, hint in _SIGNS:
        if any(sign in low for sign in signs):
            return kind(text, hint=hint)
    return errors.ProcessFailed(text)
