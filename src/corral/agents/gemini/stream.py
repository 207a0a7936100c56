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
from corral.agents.gemini import controls
from corral.agents.shared.errors import (
    NETWORK,
    QUOTA,
    UNKNOWN_MODEL,
    error_after_success,
    last_lines,
    unauthenticated,
)
from corral.agents.spec import TurnEnding
from corral.core.nesting import decode_json
from corral.errors import CorralError
from corral.events import Error, Init, ToolKind, ToolResult, ToolStatus, ToolUse
from corral.protocol.common_events import (
    build_tool_use,
    retrying,
    split_denial,
    unavailable_message,
    warning,
)
from corral.protocol.ndjson import RawEvent, Translate, TurnEnd
from corral.values import JsonObject, Usage, as_object, as_objects, int_or_none, text_or_none

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


class Stats(GeminiTokens):
    models: dict[str, GeminiTokens] = {}


class GeminiResult(msgspec.Struct, gc=False, tag_field="type", tag="result"):
    status: str
    stats: Stats | None = None
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


_DENIED = {
    "policy_violation": "",
    "unhandled_exception": "requires user confirmation",
    "invalid_tool_params": "Path not in workspace",
}
"""Types of a tool's error that mean a denial → what the message must contain."""


def finish(frame: GeminiResult, complaint: str | None, *, searched: bool = False) -> TurnEnd:
    stats = frame.stats or Stats()
    looped = frame.status == "success" and complaint == LOOP
    error = frame.error or GeminiError()
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


def usage(stats: GeminiTokens, *, searched: bool = False) -> Usage:
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


def model_used(models: dict[str, GeminiTokens]) -> str | None:
    """The model with the most output: with ``auto`` a small router model is in the list too."""
    ranked = sorted(models, key=lambda name: models[name].output_tokens)
    return ranked[-1] if ranked else None


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

_KEY_HINT = (
    "Set GEMINI_API_KEY, or sign in once by running `gemini` in a terminal;"
    " `corral agents doctor gemini-cli` shows what was found."
)
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
        return error_after_success(ending, "the CLI", needs_answer=False)
    message = finish.message or "the CLI reported an error without a message"
    if finish.stop_reason == "loop_detected":
        return errors.TurnLimit(
            "the CLI stopped itself: the model was repeating the same step",
            hint="Make the prompt more precise, or try another model.",
        )
    if finish.kind == "FatalTurnLimitedError" or ending.code == 53:
        return errors.TurnLimit(
            f"the turn limit of {ending.run.max_turns or 'the settings'} was reached",
            hint="Raise max_turns (--max-turns), or ask for less.",
        )
    if finish.kind == "FatalToolExecutionError" or ending.code == 54:
        return errors.ToolFailed(_api_error(message)[0], hint="A full disk is the usual cause.")
    if finish.kind == "FatalInputError" or ending.code == 42:
        return errors.InputRejected(_api_error(message)[0])
    return _error_from_answer(message) or _error_from_api(message, ending)


def explain_acp(ending: TurnEnding) -> CorralError | None:
    """For ACP: an error's code is the HTTP status; without one the process has ended."""
    finish = ending.finish
    if finish is None:
        return _without_result(ending)
    message = finish.message or "the CLI reported an error without a message"
    kind = finish.kind or ""
    code = int(kind) if kind.lstrip("-").isdecimal() else 0
    if code == -32000 or "API key is missing" in message:
        return errors.AuthenticationFailed(message, hint=_KEY_HINT)
    known = _error_from_answer(message)
    if known is not None:
        return known
    low = message.lower()
    named = "not found" in low or any(sign in low for sign in UNKNOWN_MODEL)
    # What it makes of a 404.
    if code == 500 and (named or f"ModelNotFoundError: {message}" in ending.stderr):
        return _no_model(_api_error(message)[0], ending)
    exit_code = code & 0xFF if code in HTTP else 0
    return _error_from_api(message, msgspec.structs.replace(ending, code=exit_code))


def _error_from_answer(message: str) -> CorralError | None:
    """Messages that stand for a missing answer. The CLI exits with 0 after them."""
    if "empty response" in message or "no final response text" in message:
        return errors.EmptyAnswer(
            message, hint="Often transient: try again, or give the model something to answer."
        )
    if "blocked due to safety" in message or "PROHIBITED_CONTENT" in message:
        return errors.ContentRefused(message, hint="Rephrase the prompt, or try another model.")
    if "malformed function call" in message or "without a finish reason" in message:
        return errors.StreamBroken(message, hint="Often transient: try again.")
    return None


def _error_from_api(message: str, ending: TurnEnding) -> CorralError:
    text, status, reason = _api_error(message)
    status, low = status or _BY_EXIT.get(ending.code or 0), text.lower()
    if status is None and "ModelNotFoundError" in ending.stderr:
        status = 404  # the only API error that the CLI reports without its number
    if reason == "API_KEY_INVALID" or any(sign in low for sign in _BAD_KEY):
        return errors.AuthenticationFailed(text, hint=_KEY_HINT)
    if status == 413 or (status == 400 and any(sign in low for sign in _TOO_LONG)):
        hint = "Shorten the prompt or start a new session."
        return errors.ContextLengthExceeded(text, hint=hint)
    if status == 404:
        return _no_model(text, ending)
    if status == 429:
        return _limited(text, message)
    if status in _BY_STATUS:
        kind, known_hint = _BY_STATUS[status]
        return kind(text, hint=known_hint)
    if status is not None and status >= 500 and not _is_of_network(low):
        return errors.ServerFailed(text, hint=_SERVER_HINT)
    return _error_from_text(text, ending)


_BAD_KEY = ("api key not valid", "default credentials")
_TOO_LONG = ("token count", "context", "exceeds the maximum")
_SERVER_HINT = "The model's service is at fault: try again."
_BY_STATUS: dict[int, tuple[type[CorralError], str | None]] = {
    400: (errors.InvalidRequest, None),
    401: (errors.AuthenticationFailed, _KEY_HINT),
    402: (errors.QuotaSpent, QUOTA),
    403: (
        errors.AccessDenied,
        "The key is known but not allowed this: check its project and model.",
    ),
    408: (errors.ServerFailed, _SERVER_HINT),
    499: (errors.ServerFailed, _SERVER_HINT),
}
"""HTTP statuses that decide the error alone."""


def _error_from_text(text: str, ending: TurnEnding) -> CorralError:
    """For an error without a known status."""
    low = text.lower()
    if low == "terminated" or _is_of_network(low):
        return errors.NetworkFailed(
            f"the connection to the model failed: {text}",
            hint="Check the network, the proxy variables and GOOGLE_GEMINI_BASE_URL.",
        )
    if "json" in low:
        return errors.StreamBroken(
            f"the model's answer was not what the API promises: {text}",
            hint="Often transient: try again.",
        )
    if "is not found" in low or "not found for api version" in low:
        return _no_model(text, ending)
    return errors.ProcessFailed(text)


def _is_of_network(low: str) -> bool:
    """The persistent CLI reports a failed connection as a 500."""
    return any(sign in low for sign in NETWORK)


def _no_model(text: str, ending: TurnEnding) -> CorralError:
    return errors.ModelNotFound(
        f"model {ending.run.model or 'auto'}: {text}",
        hint="Give another with model= (--model); gemini-2.5-flash and gemini-2.5-pro are usual.",
    )


def _limited(text: str, message: str) -> CorralError:
    if "PerDay" in message or "daily quota" in message.lower():
        return errors.QuotaSpent(text, hint="The quota of the day is spent: wait, or change key.")
    found = re.search(_RETRY_AFTER, message)
    after = None
    if found:
        after = float(found[1]) / (1000 if found[2] == "ms" else 1)
    return errors.RateLimited(
        text,
        hint=f"Wait {after:g} s and try again." if after else "Wait and try again.",
        retry_after=after,
    )


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
    if ending.signal is not None:
        return errors.KilledBySignal(
            f"the CLI was killed by signal {ending.signal}",
            hint="Out of memory is the usual cause of signal 9." if ending.signal == 9 else None,
        )
    if code == 0:
        return errors.StreamBroken(
            "the CLI exited without a result: the answer may be cut short",
            hint="It was stopped from outside, or crashed; changes made so far remain.",
        )
    if code == 53:
        return errors.TurnLimit("the turn limit was reached", hint="Raise max_turns.")
    low = ending.stderr.lower()
    if code == 42 and ("resume" in low or "session" in low):
        return errors.ResumeLost(
            stderr or "the session no longer exists",
            hint="Resume from the folder where it started, or start a new session.",
        )
    if code in _BY_EXIT_CODE:
        kind, message, hint = _BY_EXIT_CODE[code]
        return kind(stderr or message, hint=hint)
    if code in _BY_EXIT:
        return _error_from_api(stderr, ending)
    failed = f"failed (exit {code}): {stderr or 'no reason given'}"
    return unauthenticated(stderr, _KEY_HINT) or errors.ProcessFailed(failed)


_BROKEN = (
    errors.BrokenInstall,
    "the program could not be run",
    "Install it again: corral agents install gemini",
)
_BY_EXIT_CODE: dict[int, tuple[type[CorralError], str, str | None]] = {
    41: (errors.AuthenticationFailed, "no credentials", _KEY_HINT),
    42: (errors.InputRejected, "the CLI refused its input", None),
    44: (
        errors.SandboxFailed,
        "the sandbox could not be started",
        'sandbox="agent" needs docker or podman; without them leave it out.',
    ),
    52: (errors.SettingsRejected, "the CLI refused its settings", None),
    54: (errors.ToolFailed, "a tool failed", "A full disk is the usual cause."),
    55: (
        errors.UntrustedFolder,
        "the CLI does not trust the folder",
        "Report this: corral sets the trust before it starts the CLI.",
    ),
    126: _BROKEN,
    127: _BROKEN,
}
"""Exit code → error, its message where stderr is empty, and its hint."""
