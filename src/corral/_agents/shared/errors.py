"""Why a turn of an agent failed → one error each.

``AgentErrors`` has what is special about one agent. What it does with the error text of a model's
service is for agents without error codes of their own: the HTTP status in the text is less specific
than the text, so it counts only if the text is unknown. What the exit code, the signal and stderr
of a program say counts if it reported no result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from corral import errors
from corral._agents.spec import TurnEnding
from corral.errors import CorralError
from corral.options import RunOptions

ErrorClass: TypeAlias = type[CorralError]
Signs: TypeAlias = tuple[tuple[tuple[str, ...], ErrorClass], ...]
"""Parts of a text, in lower case → the error. The first row with a match counts."""

QUOTA = "The account's quota is spent: wait, pay, or change key."
FORBIDDEN = "The key is known but not allowed this: check its project and model."
HINTS: dict[ErrorClass, str] = {
    errors.QuotaSpent: QUOTA,
    errors.RateLimited: "Wait and try again.",
    errors.ContextLengthExceeded: "Shorten the prompt or start a new session.",
    errors.ModelNotFound: "Give another with model= (--model).",
    errors.ContentRefused: "Rephrase the prompt, or try another model.",
    errors.ServerFailed: "The model's service is at fault: try again.",
    errors.EmptyAnswer: "Often transient: try again, or give the model something to answer.",
    errors.StreamBroken: "Often transient: try again.",
    errors.ResumeLost: "Start a new session.",
}
"""What to do about an error, whichever agent reports it."""
BY_STATUS: dict[int, ErrorClass] = {
    400: errors.InvalidRequest,
    401: errors.AuthenticationFailed,
    402: errors.QuotaSpent,
    403: errors.AccessDenied,
    404: errors.ModelNotFound,
    413: errors.ContextLengthExceeded,
    429: errors.RateLimited,
}
LOGIN_REQUIRED = "-32000"
"""The code of the Agent Client Protocol for an agent that is not logged in."""
UNKNOWN_MODEL = (
    "model not found",
    "does not exist",
    "no such model",
    "unknown model",
    "model_not_found",
)
SPENT = (
    "quota",
    "billing",
    "credit balance",
    "payment required",
    "insufficient credit",
    "insufficient balance",
    "insufficient funds",
    "more credits",
)
"""Parts of the messages of services for a 402, in lower case."""
NETWORK = (
    "connection error",
    "connect error",
    "fetch failed",
    "econnre",
    "enotfound",
    "eai_again",
    "etimedout",
    "enetunreach",
    "ehostunreach",
    "getaddrinfo",
    "socket",
)
"""Parts of the messages for a connection that failed, in lower case."""
_AUTHENTICATION = ("api key", "api_key", "unauthorized", "authenticat", "not logged in")
_SIGNS: Signs = (
    (SPENT, errors.QuotaSpent),
    (("context length", "context window", "maximum context", "prompt is too long", "token limit"),
     errors.ContextLengthExceeded),
    (UNKNOWN_MODEL, errors.ModelNotFound),
    (("content filter", "content_filter", "safety"), errors.ContentRefused),
    (NETWORK, errors.NetworkFailed),
)  # fmt: skip
_GUESS = "possible quota limitations"
"""A guess that one agent adds to every 429; it says nothing about the account."""


class AgentErrors(msgspec.Struct, frozen=True, kw_only=True):
    """How one agent reports failures, and what to do about them."""

    title: str
    program: str
    """The name under which it is installed."""
    key_hint: str
    """What to do if it could not log in."""
    address: str = "the service's address"
    """What says where the model's service is."""
    hints: Mapping[ErrorClass, str] = {}
    """Where they differ from the usual ones."""
    failed: Callable[[str, str], CorralError] | None = None
    """The error of a failed turn, from its kind and message; None if the message is the text of the
    model's service."""
    lost: str = ""
    """The text in stderr if the session to resume does not exist, in lower case."""
    ignored: tuple[str, ...] = ()
    """Prefixes of lines of stderr that are left out of messages."""
    stderr_signs: tuple[tuple[tuple[str, ...], ErrorClass, str], ...] = ()
    """Parts of stderr → the error, and its hint."""
    ended: str = ""
    """The message if it ended without a result, and with the exit code 0. Empty: stderr may show
    that it could not log in, and is part of the message."""

    def make(self, kind: ErrorClass, text: str) -> CorralError:
        """The error with its usual hint."""
        network = f"Check the network, the proxy variables and {self.address}."
        hints = {
            **HINTS,
            errors.AuthenticationFailed: self.key_hint,
            errors.NetworkFailed: network,
            **self.hints,
        }
        return kind(text, hint=hints.get(kind))

    def from_signs(self, text: str, signs: Signs) -> CorralError | None:
        low = text.lower()
        kinds = (kind for parts, kind in signs if any(part in low for part in parts))
        kind = next(kinds, None)
        return None if kind is None else self.make(kind, text)

    def from_status(self, text: str, status: int) -> CorralError:
        """``ProcessFailed`` for an unknown status."""
        unknown = errors.ServerFailed if status >= 500 else errors.ProcessFailed
        return self.make(BY_STATUS.get(status, unknown), text)

    def from_service(self, text: str) -> CorralError:
        """The error for a text of the model's service. ``ProcessFailed`` for an unknown text."""
        number = re.search(r"\b([45]\d\d)\b", text)
        status, low = int(number[1]) if number else 0, text.lower().replace(_GUESS, "")
        if status == 401 or "api key" in low:
            return self.make(errors.AuthenticationFailed, text)
        known = self.from_signs(low, _SIGNS)
        return self.from_status(text, status) if known is None else self.make(type(known), text)

    def explain(self, ending: TurnEnding) -> CorralError | None:
        """The error of a turn; None for a success."""
        finish = ending.finish
        if finish is None:
            return self.without_result(ending)
        if finish.ok:
            return self.after_success(ending)
        message = finish.message or f"{self.title} reported an error without a message"
        if self.failed is not None:
            return self.failed(finish.kind or "", message)
        return self.from_service(message)

    def after_success(self, ending: TurnEnding, *, needs_answer: bool = True) -> CorralError | None:
        """The agent reported success: None if there is an answer and the exit was clean too."""
        reported = f"{self.title} reported success"
        if ending.signal is not None:
            return errors.KilledBySignal(
                f"{reported} and was then killed by signal {ending.signal}"
            )
        if ending.code:
            return errors.ProcessFailed(f"{reported} but exited with {ending.code}")
        if needs_answer and not ending.answered:
            return self.make(errors.EmptyAnswer, f"{self.title} ended its turn without any answer")
        return None

    def without_result(self, ending: TurnEnding) -> CorralError:
        """Only the exit code, the signal and stderr are known."""
        stderr, code = last_lines(ending.stderr, self.ignored), ending.code
        if self.lost and self.lost in ending.stderr.lower():
            lost = f"{self.title} no longer knows the session"
            return errors.ResumeLost(lost, hint="Start a new one.")
        if ending.signal is not None:
            return errors.KilledBySignal(
                f"{self.title} was killed by signal {ending.signal}",
                hint="Out of memory is the usual cause of signal 9."
                if ending.signal == 9
                else None,
            )
        for parts, kind, hint in self.stderr_signs:
            if any(part in stderr for part in parts):
                return kind(stderr, hint=hint)
        if code in (126, 127):
            return self.broken_install(stderr)
        if not code and self.ended:
            return self.make(errors.StreamBroken, self.ended)
        known = unauthenticated(stderr, self.key_hint)
        if known is None and not code:
            ended = f"{self.title} ended before its answer was complete: {stderr}"
            return self.make(errors.StreamBroken, ended.removesuffix(": "))
        failed = f"{self.title} failed (exit {code}): {stderr or 'no reason given'}"
        return known or errors.ProcessFailed(failed)

    def broken_install(self, stderr: str) -> CorralError:
        return errors.BrokenInstall(
            stderr or "the program could not be run",
            hint=f"Install it again: corral agents install {self.program}",
        )


def last_lines(stderr: str, ignored: tuple[str, ...] = ()) -> str:
    """The end of stderr for a message. Lines that begin with one of ``ignored`` are left out."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    return "\n".join([line for line in lines if not line.startswith(ignored)][-6:]).strip()


def unauthenticated(output: str, key_hint: str, kind: str | None = None) -> CorralError | None:
    """The error of a program whose stderr or message reports a failed login. ``kind`` is the code
    of its error."""
    text = last_lines(output)
    has_code = kind == LOGIN_REQUIRED or re.search(r"\b401\b", text)
    if has_code or any(sign in text.lower() for sign in _AUTHENTICATION):
        return errors.AuthenticationFailed(text, hint=key_hint)
    return None


def turn_limit(run: RunOptions) -> CorralError:
    """The error of an agent that reached its limit of turns."""
    return errors.TurnLimit(
        f"the turn limit of {run.max_turns or 'the settings'} was reached",
        hint="Raise max_turns (--max-turns), or ask for less.",
    )
