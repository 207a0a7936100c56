"""Control what running processes work on: answer, cancel, steer, and raise budgets. ``corral.runs``
does so for runs of every kind. All of this blocks for a moment."""

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
    Problem,
)
from corral._system import local_socket
from corral.errors import ConfigError, ResumeLost
from corral.events import Decision
from corral.values import Json, decode_as

PATIENCE = 10.0
"""Seconds to wait for the answer of a process."""


def find(name: str) -> tuple[LiveProcess, LiveRun] | None:
    """The running run with this id, a unique beginning of it, or ``last``, the newest; None if
    there is none. Raises ``ConfigError`` if several begin with it.

    ::

        process, run = corral.live.find("last")
        print(run.state)
    """
    by_id = {run.id: (process, run) for process in records.processes() for run in process.runs}
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
    by: str = "corral.runs.answer",
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
    send(process, request)


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
    """Cancel a run: its result has the status ``interrupted``. Raises ``LiveError``."""
    process, live = _require(run)
    send(process, LiveRequest(do="cancel", run=live.id))


def steer(run: str, text: str) -> None:
    """Send a text to an agent while it works. Raises ``LiveError`` if it takes none."""
    process, live = _require(run)
    if not text.strip():
        raise _error("refused", "the text is empty")
    send(process, LiveRequest(do="steer", run=live.id, text=text))


def add_budget(run: str, cost: float | None = None, **others: Unpack[Amounts]) -> None:
    """Raise the limits of a run's budget: ``cost`` in USD, ``tokens`` and ``calls``. A run that is
    paused because its budget is spent goes on. Raises ``LiveError``, also for a limit that the
    budget does not have.
    """
    process, live = _require(run)
    send(process, LiveRequest(do="budget", run=live.id, amounts=Raise(cost, **others)))


def pipeline_gate(run: str) -> LiveError:
    """The error for a run whose questions have their own command."""
    return _error(
        "pipeline",
        f"{run} is a pipeline: its gates are answered with a choice",
        f"corral runs show {run} prints the choices.",
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


def send(process: LiveProcess, request: LiveRequest) -> LiveReply:
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
