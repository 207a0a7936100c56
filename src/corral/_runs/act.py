"""The verbs that change a run, for every kind: ``answer``, ``cancel``, ``resume``, ``fork``,
``budget`` and ``steer``. What a kind does is in its record (``kinds``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Unpack

from corral._core.spending import BudgetLimits, BudgetState
from corral._runs import actions, kinds, lookup
from corral._runs.actions import Going, Reply
from corral._system.threads import in_thread, short_traceback_async, sync_twin
from corral.errors import ConfigError
from corral.run_kwargs import RunKwargs
from corral.values import Json

if TYPE_CHECKING:
    from corral._engine.follow_run import OnStart
    from corral._pipelines.execution.interviewers import Interviewer
    from corral._publishing.tokens import Token
    from corral._sessions.permissions import Asker
    from corral.events import Decision


@short_traceback_async
async def answer(  # noqa: PLR0913
    run: str,
    text: str | None = None,
    *,
    decision: Decision | None = None,
    answers: dict[str, Json] | None = None,
    request: str = "",
    comment: str = "",
    skip: bool = False,
    by: str = "corral.runs.answer",
    db: str | None = None,
) -> None:
    """Answer what a run waits for. A permission takes a ``decision`` (``allow_once``,
    ``allow_session``, ``deny``, ``cancel``); a question takes a ``text``, or ``answers`` by the
    keys of its fields; the gate of a pipeline and ``flow.ask`` take the key, label or target of a
    choice as ``text``, a ``comment`` beside it, or ``skip``. ``request``: the gate or request, if
    several are open. ``by``: how the answer was given. The first answer counts.

    Raises ``ConfigError`` or ``LiveError`` if nothing waits for an answer.

    ::

        await corral.runs.answer("last", "approve", comment="Only the docs")
    """
    found = await in_thread(lookup.find, run, db=db)
    reply = Reply(
        text=text,
        decision=decision,
        answers=answers,
        request=request,
        comment=comment,
        skip=skip,
        by=by,
    )
    await kinds.kind_of(found).answer(found, reply, db)


@short_traceback_async
async def answer_with_token(
    token: str,
    *,
    decision: Decision | None = None,
    answer: str = "",
    comment: str = "",
    by: str = "a token",
) -> Token:
    """Answer what a message of ``notify`` asked: a permission request with a ``decision``, a
    question with an ``answer``; the gate of a pipeline takes a ``comment`` too. A token works
    once. Raises ``LiveError`` if it is not valid, and ``ConfigError`` if the answer is not one of
    the choices, or if the question takes no comment; then the token can be used again.

    ::

        await corral.runs.answer_with_token(token, answer="approve")
    """
    reply = Reply(text=answer, decision=decision, comment=comment, by=by)
    return await actions.answer_with_token(token, reply)


@short_traceback_async
async def cancel(run: str, *, reason: str = "", db: str | None = None) -> None:
    """End a run and its parts; what is finished stays. Raises ``ConfigError`` if it has ended.

    ::

        await corral.runs.cancel("last", reason="not needed any more")
    """
    found = await in_thread(lookup.find, run, db=db)
    await kinds.kind_of(found).cancel(found, reason, db)


@short_traceback_async
async def steer(run: str, text: str, *, db: str | None = None) -> None:
    """Send a text to the agent of a run, or of the only part of it that takes one, while it works.
    Raises ``LiveError`` if it takes none.

    ::

        await corral.runs.steer("last", "Leave the tests as they are")
    """
    await actions.steer(await in_thread(lookup.find, run, db=db), text)


@short_traceback_async
async def resume(  # noqa: PLR0913
    run: str,
    prompt: str | None = None,
    *,
    concurrency: int | None = None,
    accept_changed: bool = False,
    plan_only: bool = False,
    interviewer: Interviewer | None = None,
    ask: Asker | None = None,
    on_event: Callable[[Any], None] | None = None,
    on_start: OnStart | None = None,
    on_result: Callable[..., None] | None = None,
    db: str | None = None,
    **options: Unpack[RunKwargs],
) -> Any:
    """Continue a run that is no success, in this process, and follow it to its end: what is
    finished is kept, the rest goes on under the same id. Returns what the function that started it
    returns; of a success, its result.

    ``prompt``: what a session is to do next, also after a success. ``options``: those of
    ``corral.run`` that change, such as ``max_cost``, which raises the limit of the complete run,
    and ``timeout``. ``concurrency``: of a batch or a review. ``accept_changed``: go on with the
    file of a pipeline as it is now. ``plan_only``: change nothing, and return the
    ``ResumePlan`` of a workflow. The others are those of ``corral.pipelines.run``, ``corral.run``
    and ``corral.batch``.

    Raises ``ConfigError`` if another process executes it.

    ::

        result = await corral.runs.resume("last", max_cost=5.00)
    """
    found = await in_thread(lookup.find, run, db=db)
    going = Going(
        prompt=prompt,
        concurrency=concurrency,
        accept_changed=accept_changed,
        plan_only=plan_only,
        interviewer=interviewer,
        ask=ask,
        on_event=on_event,
        on_start=on_start,
        on_result=on_result,
        options=options,
    )
    return await kinds.kind_of(found).resume(found, going, db)


@short_traceback_async
async def fork(  # noqa: PLR0913
    run: str,
    place: str = "",
    *,
    prompt: str | None = None,
    plan_only: bool = False,
    run_dir: str | None = None,
    interviewer: Interviewer | None = None,
    ask: Asker | None = None,
    on_event: Callable[[Any], None] | None = None,
    on_start: OnStart | None = None,
    db: str | None = None,
    **options: Unpack[RunKwargs],
) -> Any:
    """Start a new run that takes over the results of another, which stays as it is: those before
    ``place``, a node of a pipeline or a step of a workflow; of a workflow without a place, all
    whose inputs are the same. A fork of a session is a new conversation that begins with the other
    one, and takes a ``prompt``. The other arguments are those of ``resume``.

    ::

        result = await corral.runs.fork("review-20260131-142501-3f9a", "implement")
    """
    found = await in_thread(lookup.find, run, db=db)
    begin = kinds.kind_of(found).fork
    if begin is None:
        raise ConfigError(
            f"a {found.kind} cannot be forked",
            hint=f"To continue it: corral runs resume {found.id}",
        )
    going = Going(
        prompt=prompt,
        place=place,
        plan_only=plan_only,
        run_dir=run_dir,
        interviewer=interviewer,
        ask=ask,
        on_event=on_event,
        on_start=on_start,
        options=options,
    )
    return await begin(found, going, db)


@short_traceback_async
async def budget(
    run: str,
    *,
    max_cost: float | None = None,
    max_total_tokens: int | None = None,
    max_calls: int | None = None,
    add: bool = False,
    db: str | None = None,
) -> BudgetState | None:
    """The budget of a run as it is then; None if it has none. With limits, they are raised to
    these, or with ``add`` by these, in any state of the run: a raised limit counts for the next
    model call. Raises ``ConfigError`` or ``LiveError``, also for a limit that the budget does not
    have.

    ::

        await corral.runs.budget("last", max_cost=1.50, add=True)
    """
    found = await in_thread(lookup.find, run, db=db)
    limits = BudgetLimits(
        max_cost=max_cost, max_total_tokens=max_total_tokens, max_calls=max_calls
    ).as_dict()
    if wrong := [name for name, limit in limits.items() if not 0 < limit < math.inf]:
        raise ConfigError(f"{wrong[0]} must be greater than 0, got: {limits[wrong[0]]:g}")
    state: BudgetState | None = await kinds.kind_of(found).budget(found, limits, add, db)
    return state


answer_sync: Final = sync_twin(answer)
answer_with_token_sync: Final = sync_twin(answer_with_token)
cancel_sync: Final = sync_twin(cancel)
steer_sync: Final = sync_twin(steer)
resume_sync: Final = sync_twin(resume)
fork_sync: Final = sync_twin(fork)
budget_sync: Final = sync_twin(budget)
