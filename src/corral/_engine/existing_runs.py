"""``corral.pipelines.answer``, ``cancel`` and ``add_budget``: control runs of a database. Nothing
is executed here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Unpack

from corral._core.spending import Amounts, Raise
from corral._engine import open_questions, query, service
from corral._pipelines.scheduler.commands import Answer
from corral._system.threads import short_traceback_async, sync_twin
from corral.errors import ConfigError

if TYPE_CHECKING:
    from corral._publishing import tokens
    from corral.events import Decision


@short_traceback_async
async def answer(
    run: str,
    reply: Answer | str,
    *,
    gate: str | None = None,
    by: str = "",
    db: str | None = None,
) -> None:
    """Answer an open question of the run or of its nested runs; ``gate`` is the node or the
    question's id. Raises ``ConfigError`` if no such question is open, or if the answer is not one
    of the choices.

    ::

        await pipelines.answer("review-20260131-142501-3f9a", "approve", gate="approval")
    """
    found = await query.show(run, db=db)
    if found.output is not None:
        raise open_questions.NoSuchQuestion(f"{run} has already ended: {found.output.status}")
    await open_questions.answer(run, reply, gate=gate, by=by, db=db)


@short_traceback_async
async def answer_with_token(
    token: str,
    *,
    decision: Decision | None = None,
    answer: str = "",
    comment: str = "",
    by: str = "a token",
) -> tokens.Token:
    """Answer what a message of ``notify`` asked: a permission request with a ``decision``, a
    question with an ``answer``; the gate of a pipeline takes a ``comment`` too. A token works
    once. Raises ``LiveError`` if it is not valid, and ``ConfigError`` if the answer is not one of
    the choices, or if the question takes no comment; then the token can be used again.

    ::

        await pipelines.answer_with_token(token, answer="approve")
    """
    from corral import live
    from corral._publishing import tokens

    with tokens.using(token) as says:
        if says.kind == "pipeline":
            db = None if says.db is None or "***" in says.db else says.db
            reply = Answer(value=answer, text=comment)
            await open_questions.answer(says.run, reply, gate=says.request_id, by=by, db=db)
        elif comment:
            raise ConfigError("only the gate of a pipeline takes a comment")
        else:
            await asyncio.to_thread(
                live.answer_session, says, decision=decision, text=answer, by=by
            )
    return says


@short_traceback_async
async def cancel(run: str, *, reason: str = "", db: str | None = None) -> None:
    """Cancel a run and everything that it runs; one that has ended stays as it is. Raises
    ``ConfigError`` if there is no such run.

    ::

        await pipelines.cancel("review-20260131-142501-3f9a", reason="not needed any more")
    """
    await service.cancel(run, reason=reason, db=db)


@short_traceback_async
async def add_budget(
    run: str, *, cost: float | None = None, db: str | None = None, **others: Unpack[Amounts]
) -> None:
    """Raise the limits of a durable run or batch that has not ended, by these amounts: ``cost`` in
    USD for ``max_cost``, ``tokens`` for ``max_total_tokens``, ``calls`` for ``max_calls``. Model
    calls that wait for it are made. Raises ``ConfigError``.

    ::

        await pipelines.add_budget("review-20260131-142501-3f9a", cost=1.00)
    """
    if await service.add_budget(run, Raise(cost, **others), db=db) is None:
        raise query.run_not_found(run)


answer_sync: Final = sync_twin(answer)
answer_with_token_sync: Final = sync_twin(answer_with_token)
cancel_sync: Final = sync_twin(cancel)
add_budget_sync: Final = sync_twin(add_budget)
