"""Running processes of corral: see them, answer what they ask, cancel and steer them.

::

    import corral.live

    for request in corral.live.pending():
        print(request.run, request.title)
        corral.live.answer(request.run, "allow_once", request_id=request.request_id)

The functions block for a moment: call them in a thread from async code.
"""

from __future__ import annotations

from typing import Unpack

import msgspec

from corral._core.lookup import LAST, find_id
from corral._core.spending import Amounts, Raise
from corral._publishing import records, tokens
from corral._publishing.records import (
    Code,
    LiveError,
    LiveProcess,
    LiveReply,
    LiveRequest,
    LiveRun,
    Pending,
    Problem,
)
from corral._system import local_socket
from corral.errors import ConfigError, ResumeLost
from corral.events import Decision
from corral.values import Json, decode_as

__all__ = [
    "LiveError",
    "LiveProcess",
    "LiveRun",
    "Pending",
    "Problem",
    "add_budget",
    "answer",
    "answer_with_token",
    "cancel",
    "find",
    "pending",
    "processes",
    "runs",
    "steer",
]

PATIENCE = 10.0
"""Seconds to wait for the answer of a process."""


def processes() -> list[LiveProcess]:
    """The corral processes of this user that run now, the newest first, each with its runs.

    ::

        for process in corral.live.processes():
            for run in process.runs:
                print(process.pid, run.id, run.state, run.title)
    """
    return records.processes()


def runs() -> list[LiveRun]:
    """The runs of all processes, without their processes."""
    return [run for process in processes() for run in process.runs]


def pending() -> list[Pending]:
    """The requests that wait for a person, with their arguments and the ids of their runs.

    ::

        for request in corral.live.pending():
            corral.live.answer(request.run, "deny", request_id=request.request_id)
    """
    found: list[Pending] = []
    for process in processes():
        if any(run.pending for run in process.runs):
            try:
                found += _send(process, LiveRequest(do="pending")).pending
            except LiveError:
                found += [
                    msgspec.structs.replace(each, run=run.id)
                    for run in process.runs
                    for each in run.pending
                ]
    return found


def find(name: str) -> tuple[LiveProcess, LiveRun] | None:
    """The running run with this id, a unique beginning of it, or ``last``, the newest; None if
    there is none. Raises ``ConfigError`` if several begin with it.

    ::

        process, run = corral.live.find("last")
        print(run.state)
    """
    by_id = {run.id: (process, run) for process in processes() for run in process.runs}
    if name == LAST:
        return max(by_id.values(), key=lambda each: each[1].since, default=None)
    found = find_id(name, list(by_id), "running runs")
    return None if found is None else by_id[found]


def answer(
    run: str,
    decision: Decision | None = None,
    *,
    text: str | None = None,
    answers: dict[str, Json] | None = None,
    request_id: str = "",
    key: str = "",
    by: str = "corral.live.answer",
) -> None:
    """Answer what a run waits for. A permission request takes a ``decision`` (``allow_once``,
    ``allow_session``, ``deny`` or ``cancel``), a question to a person takes a ``text``. A question
    of an agent also takes ``answers`` by the keys of its fields; ``deny`` declines it, and
    ``cancel`` stops the turn.

    ``run`` is an id, a unique beginning of it, or ``last``. ``request_id`` is needed if several
    requests are open; with ``key`` no later request with the same id is answered. ``by`` says how
    the answer was given. The first answer counts. Raises ``LiveError``; its ``problem.code`` is
    ``answered`` if another answer came first, ``not_live`` if the run does not run,
    ``unknown_request`` if it does not wait for this.

    ::

        corral.live.answer("last", "allow_once")
    """
    found = find(run)
    has_text = text is not None or answers is not None
    # Whether the agent asks a person something. The question of an agent that is a person has
    # no id.
    asked = found is not None and any(
        each.kind == "question" and each.request_id and request_id in ("", each.request_id)
        for each in found[1].pending
    )
    if has_text and not asked:
        _answer_question(run if found is None else found[1].id, text or "")
        return
    if found is None:
        raise _not_live(run)
    process, live = found
    if live.kind == "pipeline":
        raise pipeline_gate(live.id)
    if not asked and any(each.kind == "question" for each in live.pending):
        raise _error("refused", f"{live.id} asks a person for a text, not for a decision")
    request = LiveRequest(do="answer", run=live.id, request_id=request_id, key=key, by=by)
    if has_text:
        request = msgspec.structs.replace(request, text=text or "", answers=answers)
    else:
        request = msgspec.structs.replace(request, decision=decision)
    _send(process, request)


def answer_with_token(
    text: str,
    *,
    decision: Decision | None = None,
    answer: str | None = None,
    by: str = "a token",
) -> tokens.Token:
    """Answer the request that a token was made for, with a ``decision`` or, for a question to a
    person, with an ``answer``. Returns what the token says. Raises ``LiveError``. A token of a
    pipeline is used with ``corral.pipelines.answer_with_token``.

    ::

        corral.live.answer_with_token(token, decision="allow_once")
    """
    with tokens.using(text) as token:
        answer_session(token, decision=decision, text=answer or "", by=by)
    return token


def answer_session(token: tokens.Token, *, decision: Decision | None, text: str, by: str) -> None:
    """Answer the session that a token is for. Raises ``LiveError``."""
    if token.kind == "pipeline":
        raise pipeline_gate(token.run)
    if token.request_id:
        answer(
            token.run,
            decision,
            text=text if text and decision is None else None,
            request_id=token.request_id,
            key=token.key,
            by=by,
        )
    else:
        answer(token.run, text=text, by=by)


def cancel(run: str) -> None:
    """Cancel a run: its result has the status ``interrupted``. Raises ``LiveError``.

    ::

        corral.live.cancel("20261115-101500-1f3a9c")
    """
    process, live = _require(run)
    _send(process, LiveRequest(do="cancel", run=live.id))


def steer(run: str, text: str) -> None:
    """Send a text to an agent while it works. Raises ``LiveError`` if it takes none.

    ::

        corral.live.steer("last", "Leave the tests as they are")
    """
    process, live = _require(run)
    if not text.strip():
        raise _error("refused", "the text is empty")
    _send(process, LiveRequest(do="steer", run=live.id, text=text))


def add_budget(run: str, cost: float | None = None, **others: Unpack[Amounts]) -> None:
    """Raise the limits of a run's budget: ``cost`` in USD, ``tokens`` and ``calls``. A run that is
    paused because its budget is spent goes on. Raises ``LiveError``, also for a limit that the
    budget does not have.

    ::

        corral.live.add_budget("last", 1.50)
    """
    process, live = _require(run)
    _send(process, LiveRequest(do="budget", run=live.id, amounts=Raise(cost, **others)))


def pipeline_gate(run: str) -> LiveError:
    """The error for a run whose questions have their own command."""
    return _error(
        "pipeline",
        f"{run} is a pipeline: its questions have their own command",
        f"corral pipeline answer {run} CHOICE",
    )


def _answer_question(run: str, text: str) -> None:
    """Answer a session whose agent is a person. It need not be running."""
    from corral._sessions import store

    if not text.strip():
        raise ConfigError("the answer is empty")
    try:
        record = store.find(run)
    except ResumeLost as error:
        raise _not_live(run) from error
    question = store.open_question(record)
    if question is None:
        raise _error(
            "unknown_request", f"session {record.meta.id} is not waiting for a text as an answer"
        )
    question.write_answer(text)


def _require(run: str) -> tuple[LiveProcess, LiveRun]:
    found = find(run)
    if found is None:
        raise _not_live(run)
    return found


def _send(process: LiveProcess, request: LiveRequest) -> LiveReply:
    if process.socket is None:
        raise _error("refused", f"process {process.pid} has no socket to be controlled through")
    try:
        line = local_socket.request(process.socket, msgspec.json.encode(request), PATIENCE)
        reply = decode_as(line, LiveReply)
    except (OSError, msgspec.MsgspecError) as error:
        raise _error("not_live", f"process {process.pid} does not answer: {error}") from error
    if reply.problem is not None:
        raise LiveError(reply.problem)
    return reply


def _not_live(run: str) -> LiveError:
    return _error("not_live", f"{run} is not running", "corral runs list shows what runs.")


def _error(code: Code, message: str, hint: str | None = None) -> LiveError:
    return LiveError(Problem(code, message, hint))
