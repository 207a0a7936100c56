"""Why an agent that runs once per prompt failed: from its exit code, its signal and stderr.

An agent explains the errors of its model itself, or lets ``error_from_service`` do it.
"""

from __future__ import annotations

from collections.abc import Callable

from corral import errors
from corral.agents.shared.api_errors import error_from_service, unauthenticated
from corral.agents.spec import Ending
from corral.errors import CorralError

NO_ANSWER_HINT = "Often transient: try again, or give the model something to answer."


def explain(
    ending: Ending,
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
    ending: Ending, title: str, *, needs_answer: bool = True
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
) -> Callable[[Ending], CorralError | None]:
    """For an agent that passes on the error text of the model's service."""

    def of_ending(ending: Ending) -> CorralError | None:
        return explain(
            ending,
            title,
            program,
            lambda _, message: error_from_service(message, key_hint),
            lost,
            key_hint=key_hint,
        )

    return of_ending


def error_without_result(
    ending: Ending, title: str, program: str, lost: str = "", key_hint: str = ""
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
    if (found := unauthenticated(ending.stderr, key_hint)) is not None and key_hint:
        return found
    if not ending.code:
        return errors.StreamBroken(
            f"{title} ended before its answer was complete: {message}".removesuffix(": "),
            hint="Often transient: try again.",
        )
    return errors.ProcessFailed(
        f"{title} failed (exit {ending.code}): {message or 'no reason given'}"
    )
