"""Why a turn of an agent failed → one error each.

``error_from_service`` reads the error text of a model's service, for agents without error codes of
their own. The HTTP status at the start of the text is less specific than the text, so it counts
only if the text is unknown. ``explain_ending`` adds what the exit code, the signal and stderr of a
program say that runs once per prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from corral import errors
from corral.agents.spec import TurnEnding
from corral.errors import CorralError

SERVICE_FAULT = "The model's service is at fault: try again."
_SHORTER = "Shorten the prompt or start a new session."
QUOTA = "The account's quota is spent: wait, pay, or change key."
_AUTHENTICATION = ("api key", "api_key", "unauthorized", "authenticat", "not logged in")
LOGIN_REQUIRED = "-32000"
"""The code of the Agent Client Protocol for an agent that is not logged in."""
_MODEL = "Give another with model= (--model)."
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
_GUESS = "possible quota limitations"
"""A guess that one agent adds to every 429; it says nothing about the account."""

_SIGNS: tuple[tuple[tuple[str, ...], type[CorralError], str | None], ...] = (
    (SPENT, errors.QuotaSpent, QUOTA),
    (("context length", "context window", "maximum context", "prompt is too long", "token limit"),
     errors.ContextLengthExceeded, _SHORTER),
    (UNKNOWN_MODEL, errors.ModelNotFound, _MODEL),
    (("content filter", "content_filter", "safety"), errors.ContentRefused,
     "Rephrase the prompt, or try another model."),
    (NETWORK, errors.NetworkFailed,
     "Check the network, the proxy variables and the service's address."),
)  # fmt: skip
_STATUS: dict[str, tuple[type[CorralError], str | None]] = {
    "400": (errors.InvalidRequest, None),
    "402": (errors.QuotaSpent, QUOTA),
    "403": (errors.AccessDenied, None),
    "404": (errors.ModelNotFound, _MODEL),
    "413": (errors.ContextLengthExceeded, _SHORTER),
    "429": (errors.RateLimited, "Wait and try again."),
}


def error_from_service(text: str, key_hint: str) -> CorralError:
    """``ProcessFailed`` for an unknown text."""
    low = text.lower().replace(_GUESS, "")
    number = re.search(r"\b([45]\d\d)\b", text)
    status = number[1] if number else ""
    if status == "401" or "api key" in low:
        return errors.AuthenticationFailed(text, hint=key_hint)
    for signs, kind, hint in _SIGNS:
        if any(sign in low for sign in signs):
            return kind(text, hint=hint)
    if status.startswith("5"):
        return errors.ServerFailed(text, hint=SERVICE_FAULT)
    kind, hint = _STATUS.get(status, (errors.ProcessFailed, None))
    return kind(text, hint=hint)


def last_lines(stderr: str, ignored: tuple[str, ...] = ()) -> str:
    """The end of stderr for a message. Lines that begin with one of ``ignored`` are left out."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    return "\n".join([line for line in lines if not line.startswith(ignored)][-6:])


def unauthenticated(output: str, key_hint: str, kind: str | None = None) -> CorralError | None:
    """The error of a program whose stderr or message reports a failed login. ``kind`` is the code
    of its error."""
    text = last_lines(output)
    has_code = kind == LOGIN_REQUIRED or re.search(r"\b401\b", text)
    if has_code or any(sign in text.lower() for sign in _AUTHENTICATION):
        return errors.AuthenticationFailed(text, hint=key_hint)
    return None


NO_ANSWER_HINT = "Often transient: try again, or give the model something to answer."


def explain_ending(
    ending: TurnEnding,
    title: str,
    program: str,
    failed: Callable[[str, str], CorralError],
    lost: str = "",
    *,
    key_hint: str = "",
) -> CorralError | None:
    """None for a success, which needs a successful end of the turn, an answer *and* a clean exit.

    ``failed`` makes the error of a failed turn from its kind and message. ``lost`` is the text in
    stderr if the session to resume does not exist, ``key_hint`` what to do if the agent could not
    log in.
    """
    finish = ending.finish
    if finish is None:
        return error_without_result(ending, title, program, lost, key_hint)
    if not finish.ok:
        message = finish.message or f"{title} reported an error without a message"
        return failed(finish.kind or "", message)
    return error_after_success(ending, title)


def error_after_success(
    ending: TurnEnding, title: str, *, needs_answer: bool = True
) -> CorralError | None:
    """The agent reported success: None if there is an answer and the exit was clean too."""
    if ending.signal is not None:
        return errors.KilledBySignal(
            f"{title} reported success and was then killed by signal {ending.signal}"
        )
    if ending.code:
        return errors.ProcessFailed(f"{title} reported success but exited with {ending.code}")
    if needs_answer and not ending.answered:
        return errors.EmptyAnswer(f"{title} ended its turn without any answer", hint=NO_ANSWER_HINT)
    return None


def service_error_explainer(
    title: str, program: str, key_hint: str, lost: str = ""
) -> Callable[[TurnEnding], CorralError | None]:
    """For an agent that passes on the error text of the model's service."""

    def of_ending(ending: TurnEnding) -> CorralError | None:
        return explain_ending(
            ending,
            title,
            program,
            lambda _, message: error_from_service(message, key_hint),
            lost,
            key_hint=key_hint,
        )

    return of_ending


def error_without_result(
    ending: TurnEnding, title: str, program: str, lost: str = "", key_hint: str = ""
) -> CorralError:
    """Only the exit code and stderr are known."""
    message = "\n".join(ending.stderr.strip().splitlines()[-6:])
    if lost and lost.lower() in ending.stderr.lower():
        return errors.ResumeLost(f"{title} no longer knows the session", hint="Start a new one.")
    if ending.signal is not None:
        return errors.KilledBySignal(f"{title} was killed by signal {ending.signal}")
    if ending.code in (126, 127):
        return errors.BrokenInstall(
            message or "the program could not be run",
            hint=f"Install it again: corral agents install {program}",
        )
    if key_hint and (failed_login := unauthenticated(ending.stderr, key_hint)) is not None:
        return failed_login
    if not ending.code:
        return errors.StreamBroken(
            f"{title} ended before its answer was complete: {message}".removesuffix(": "),
            hint="Often transient: try again.",
        )
    return errors.ProcessFailed(
        f"{title} failed (exit {ending.code}): {message or 'no reason given'}"
    )
