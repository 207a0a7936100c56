"""What the Gemini CLI writes with ``--output-format stream-json``, as events; and its failures
(exit codes, messages and stderr), as one error each.

The exit code is not a status: the CLI returns 0 after a TERM, for an empty answer and for
truncated output. A turn succeeded if the exit code is 0 *and* the last line is a complete
``result`` frame that reports success.
"""

from __future__ import annotations

import re
from typing import TypeAlias, final

import msgspec

from corral import errors
from corral._agents.gemini import controls
from corral._agents.shared.errors import (
    FORBIDDEN,
    LOGIN_REQUIRED,
    NETWORK,
    UNKNOWN_MODEL,
    AgentErrors,
    Signs,
    last_lines,
    turn_limit,
)
from corral._agents.spec import TurnEnding
from corral._core.nesting import decode_json
from corral._protocol.common_events import (
    build_tool_use,
    retrying,
    split_denial,
    unavailable_message,
    warning,
)
from corral._protocol.ndjson import RawEvent, Translate, TurnEnd
from corral.errors import CorralError
from corral.events import Error, Init, ToolKind, ToolResult, ToolStatus, ToolUse
from corral.values import (
    Json,
    JsonObject,
    Usage,
    as_object,
    as_objects,
    decode_or_none,
    int_or_none,
    text_or_none,
)

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


class GeminiError(msgspec.Struct):
    type: str | None = None
    message: str | None = None


@final
class ToolResultFrame(msgspec.Struct, gc=False, tag_field="type", tag="tool_result"):
    tool_id: str
    status: str
    output: str | None = None
    error: GeminiError | None = None


class ErrorFrame(msgspec.Struct, gc=False, tag_field="type", tag="error"):
    message: str
    severity: str = "error"


class GeminiTokens(msgspec.Struct):
    total_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached: int = 0
    is_plausible: bool = True

    @classmethod
    def read(cls, given: JsonObject) -> GeminiTokens:
        """The counts that are there. An odd one does not make the answer worse: it is left out."""
        counts = {name: int_or_none(given.get(name)) for name in _COUNTS}
        odd = {name for name in _COUNTS if counts[name] is None and given.get(name) is not None}
        odd |= {name for name, count in counts.items() if count is not None and count < 0}
        total, read, written, cached = (0 if n in odd else counts[n] or 0 for n in _COUNTS)
        tokens = cls(total, read, written, cached)
        if cached > read and "input_tokens" not in odd:  # they are a part of the input
            tokens.cached, tokens.is_plausible = 0, False
        if odd or tokens.input_tokens + tokens.output_tokens > tokens.total_tokens > 0:
            tokens.is_plausible = False
        return tokens


_COUNTS = ("total_tokens", "input_tokens", "output_tokens", "cached")


class GeminiResult(msgspec.Struct, gc=False, tag_field="type", tag="result"):
    status: str
    stats: Json = None
    error: GeminiError | None = None


Frames: TypeAlias = (
    InitFrame | MessageFrame | ToolUseFrame | ToolResultFrame | ErrorFrame | GeminiResult
)

REPEATED_TEXT = 4
"""A shorter piece of text that is equal to the first one is not taken for a repetition."""


def translator() -> Translate:
    return GeminiTurn().translate


class GeminiTurn:
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
                    add(
                        warning(
                            "text_repeated",
                            "the answer started again: the CLI retries a broken stream without"
                            " reporting it, and what follows may repeat what came before",
                        )
                    )
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

    def _other_event(self, frame: InitFrame | ErrorFrame | GeminiResult) -> RawEvent:
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
            case GeminiResult():
                return finish(frame, self._complaint, searched=self._searched)


def kind_of(name: str) -> ToolKind:
    return "mcp" if name.startswith("mcp_") else TOOLS.get(name, "other")


def tool_result(frame: ToolResultFrame, name: str) -> ToolResult:
    output = frame.output
    if frame.status == "success":
        if output is not None and output.startswith("Blocked: command"):
            return ToolResult(frame.tool_id, "denied", output=output, error=output)
        if frame.error is None:
            return ToolResult(frame.tool_id, "success", None, output)
    error = frame.error or GeminiError()
    message = error.message or ""
    status: ToolStatus = "success" if frame.status == "success" else "error"
    if error.type == "tool_not_registered" and controls.is_agent_tool(name):
        status, message = "denied", unavailable_message(name)
        if name.startswith("mcp_"):
            message += ", or its server did not start"
    elif (text := _DENIED.get(error.type or "")) is not None and text in message:
        status = "denied"
        reason, rule = split_denial(message)
        shown = output if reason == message else rule
        return ToolResult(frame.tool_id, status, output=shown, error=reason or None)
    failed = None if status == "success" else message or None
    return ToolResult(frame.tool_id, status, output=output, error=failed)


def read_refused_calls(lines: bytes) -> list[RawEvent]:
    """The calls of tools that are not offered, in what the CLI stored of a conversation: over ACP
    it does not report them."""
    events: list[RawEvent] = []
    for line in lines.splitlines():
        if b"not found in registry" not in line:
            continue
        for part in as_objects(as_object(decode_or_none(line)).get("content")):
            answer = as_object(part.get("functionResponse"))
            id, name = text_or_none(answer.get("id")), text_or_none(answer.get("name"))
            error = f'Tool "{name}" not found in registry.'
            if id and name and as_object(answer.get("response")).get("error") == error:
                events.append(build_tool_use(id, name, {}, kind=kind_of(name)))
                status: ToolStatus = "denied" if controls.is_agent_tool(name) else "error"
                message = unavailable_message(name) if status == "denied" else error
                events.append(ToolResult(id, status, name=name, error=message))
    return events


_DENIED = {
    "policy_violation": "",
    "unhandled_exception": "requires user confirmation",
    "invalid_tool_params": "Path not in workspace",
}
"""Types of a tool's error that mean a denial → what the message must contain."""


def finish(frame: GeminiResult, complaint: str | None, *, searched: bool = False) -> TurnEnd:
    stats = as_object(frame.stats)
    models = {
        name: GeminiTokens.read(as_object(counts))
        for name, counts in as_object(stats.get("models")).items()
    }
    looped = frame.status == "success" and complaint == LOOP
    error = frame.error or GeminiError()
    return TurnEnd(
        ok=frame.status == "success" and not looped,
        stop_reason="loop_detected" if looped else None,
        usage=usage(GeminiTokens.read(stats), searched=searched),
        usage_by_model={name: usage(each, searched=searched) for name, each in models.items()},
        # With ``auto`` a small router model is in the list too.
        model=max(reversed(models), key=lambda name: models[name].output_tokens, default=None),
        kind=error.type,
        message=error.message or complaint,
    )


def usage(stats: GeminiTokens, *, searched: bool = False) -> Usage:
    """All counts are zero if they are unknown. Thinking is only in the total. So are the prompts of
    the service's own web tools (``searched``): then the two cannot be distinguished, and neither is
    counted."""
    if not stats.is_plausible:
        return Usage(
            input=stats.input_tokens or None,
            output=stats.output_tokens or None,
            cache_read=stats.cached or None,
            coverage="partial",
        )
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


LOOP = "Loop detected, stopping execution"

IGNORED_STDERR = (
    "Warning: True color",
    "Warning: 256-color",
    "Ripgrep is not available",
    "[STARTUP]",
    "YOLO mode is enabled",
    "Project hooks disabled",
    "Loaded cached credentials",
    "    at ",
)

HTTP = (400, 401, 402, 403, 404, 408, 413, 429, 499, 500, 502, 503, 504)
_BY_EXIT = {code & 0xFF: code for code in HTTP}
"""An API error exits with the HTTP status modulo 256."""

# Strings: re compiles them when first needed, which most runs never do.
_RETRY_AFTER = r"retry (?:in|after) (\d+(?:\.\d+)?) ?(ms|s)"
_ATTEMPT = r"^Attempt (\d+) failed"


def read_stderr(line: str) -> RawEvent | None:
    """The CLI reports on stderr that it waits before it calls the model again."""
    if not re.match(_ATTEMPT, line) or "Max attempts reached" in line:
        return None
    return retrying(line.split(" _ApiError", maxsplit=1)[0][:300])


def explain(ending: TurnEnding) -> CorralError | None:
    """The error of a turn; None for a success."""
    finish = ending.finish
    if finish is None:
        return _without_result(ending)
    if finish.ok:
        return ERRORS.after_success(ending, needs_answer=False)
    message = finish.message or "the CLI reported an error without a message"
    if finish.stop_reason == "loop_detected":
        return errors.TurnLimit(
            "the CLI stopped itself: the model was repeating the same step",
            hint="Make the prompt more precise, or try another model.",
        )
    if finish.kind == "FatalTurnLimitedError" or ending.code == 53:
        return turn_limit(ending.run)
    if finish.kind == "FatalToolExecutionError" or ending.code == 54:
        return errors.ToolFailed(_api_error(message)[0], hint="A full disk is the usual cause.")
    if finish.kind == "FatalInputError" or ending.code == 42:
        return errors.InputRejected(_api_error(message)[0])
    return ERRORS.from_signs(message, _NO_ANSWER) or _error_from_api(message, ending)


def explain_acp(ending: TurnEnding) -> CorralError | None:
    """For ACP: an error's code is the HTTP status; without one the process has ended."""
    finish = ending.finish
    if finish is None:
        return _without_result(ending)
    message = finish.message or "the CLI reported an error without a message"
    kind = finish.kind or ""
    code = int(kind) if kind.lstrip("-").isdecimal() else 0
    if kind == LOGIN_REQUIRED or "API key is missing" in message:
        return ERRORS.make(errors.AuthenticationFailed, message)
    known = ERRORS.from_signs(message, _NO_ANSWER)
    if known is not None:
        return known
    low = message.lower()
    named = "not found" in low or any(sign in low for sign in UNKNOWN_MODEL)
    # What it makes of a 404.
    if code == 500 and (named or f"ModelNotFoundError: {message}" in ending.stderr):
        return _no_model(_api_error(message)[0], ending)
    exit_code = code & 0xFF if code in HTTP else 0
    return _error_from_api(message, msgspec.structs.replace(ending, code=exit_code))


ERRORS = AgentErrors(
    title="the CLI",
    program="gemini",
    key_hint="Set GEMINI_API_KEY, or sign in once by running `gemini` in a terminal;"
    " `corral agents doctor gemini-cli` shows what was found.",
    address="GOOGLE_GEMINI_BASE_URL",
    hints={
        errors.AccessDenied: FORBIDDEN,
        errors.ModelNotFound: "Give another with model= (--model); gemini-2.5-flash and"
        " gemini-2.5-pro are usual.",
    },
    ignored=IGNORED_STDERR,
)
_NO_ANSWER: Signs = (
    (("empty response", "no final response text"), errors.EmptyAnswer),
    (("blocked due to safety", "prohibited_content"), errors.ContentRefused),
    (("malformed function call", "without a finish reason"), errors.StreamBroken),
)
"""Messages that stand for a missing answer. The CLI exits with 0 after them."""
_BAD_KEY = ("api key not valid", "default credentials")
_TOO_LONG = ("token count", "context", "exceeds the maximum")


def _error_from_api(message: str, ending: TurnEnding) -> CorralError:
    text, status, reason = _api_error(message)
    status, low = status or _BY_EXIT.get(ending.code or 0), text.lower()
    if status is None and "ModelNotFoundError" in ending.stderr:
        status = 404  # the only API error that the CLI reports without its number
    if reason == "API_KEY_INVALID" or any(sign in low for sign in _BAD_KEY):
        return ERRORS.make(errors.AuthenticationFailed, text)
    if status == 400 and any(sign in low for sign in _TOO_LONG):
        return ERRORS.make(errors.ContextLengthExceeded, text)
    unknown = "is not found" in low or "not found for api version" in low
    if status == 404 or (status is None and unknown):
        return _no_model(text, ending)
    if status == 429:
        if "PerDay" in message or "daily quota" in message.lower():
            spent = "The quota of the day is spent: wait, or change key."
            return errors.QuotaSpent(text, hint=spent)
        wait = re.search(_RETRY_AFTER, message)
        after = float(wait[1]) / (1000 if wait[2] == "ms" else 1) if wait else None
        hint = f"Wait {after:g} s and try again." if after else "Wait and try again."
        return errors.RateLimited(text, hint=hint, retry_after=after)
    # The persistent CLI reports a failed connection as a 500.
    is_lost = any(sign in low for sign in NETWORK)
    if (status is None and low == "terminated") or (is_lost and (status or 500) >= 500):
        failed = f"the connection to the model failed: {text}"
        return ERRORS.make(errors.NetworkFailed, failed)
    if status is None and "json" in low:
        broken = f"the model's answer was not what the API promises: {text}"
        return ERRORS.make(errors.StreamBroken, broken)
    return ERRORS.from_status(text, 500 if status in (408, 499) else status or 0)


def _no_model(text: str, ending: TurnEnding) -> CorralError:
    return ERRORS.make(errors.ModelNotFound, f"model {ending.run.model or 'auto'}: {text}")


def _api_error(message: str) -> tuple[str, int | None, str | None]:
    """``[API Error: {json}]`` taken apart: text, HTTP status, Google's reason."""
    text = message.strip().removeprefix("[API Error: ")
    text = text.split("]\n")[0].removesuffix("]").strip() or "no reason given"
    try:
        body = decode_json(text)
    except (ValueError, msgspec.DecodeError):
        return text, None, None
    error = as_object(as_object(body).get("error"))
    status = int_or_none(error.get("code"))
    if status is None or "message" not in error:
        return text, None, None
    reasons = [
        detail["reason"] for detail in as_objects(error.get("details")) if "reason" in detail
    ]
    return str(error["message"]) or text, status, text_or_none(next(iter(reasons), None))


def _without_result(ending: TurnEnding) -> CorralError:
    """There is no result line: only the exit code and stderr are known."""
    stderr, code = last_lines(ending.stderr, IGNORED_STDERR), ending.code
    low = ending.stderr.lower()
    if ending.signal is not None:
        return ERRORS.without_result(ending)
    if code == 42 and ("resume" in low or "session" in low):
        return errors.ResumeLost(
            stderr or "the session no longer exists",
            hint="Resume from the folder where it started, or start a new session.",
        )
    if code in _BY_EXIT_CODE:
        kind, message, hint = _BY_EXIT_CODE[code]
        return kind(message if code in (0, 53) else stderr or message, hint=hint)
    return _error_from_api(stderr, ending) if code in _BY_EXIT else ERRORS.without_result(ending)


_BY_EXIT_CODE: dict[int, tuple[type[CorralError], str, str | None]] = {
    0: (
        errors.StreamBroken,
        "the CLI exited without a result: the answer may be cut short",
        "It was stopped from outside, or crashed; changes made so far remain.",
    ),
    41: (errors.AuthenticationFailed, "no credentials", ERRORS.key_hint),
    42: (errors.InputRejected, "the CLI refused its input", None),
    44: (
        errors.SandboxFailed,
        "the sandbox could not be started",
        'sandbox="agent" needs docker or podman; without them leave it out.',
    ),
    52: (errors.SettingsRejected, "the CLI refused its settings", None),
    53: (errors.TurnLimit, "the turn limit was reached", "Raise max_turns."),
    54: (errors.ToolFailed, "a tool failed", "A full disk is the usual cause."),
    55: (
        errors.UntrustedFolder,
        "the CLI does not trust the folder",
        "Report this: corral sets the trust before it starts the CLI.",
    ),
}
"""Exit code → error, its message where stderr is empty, and its hint."""
