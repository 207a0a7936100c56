"""A run of several turns: repaired until the output fits, repeated until a check passes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from corral.prompt import Prompt
from corral.result import Result
from corral.sessions.prepared_run import PreparedRun
from corral.sessions.structured_output import Submission, TypedAnswer, answer_schema, run_typed
from corral.sessions.tools.tools import GivenTools, Tools
from corral.sessions.turn import Turn
from corral.sessions.until import ROUNDS, Until, check_limits, in_sandbox, until_done

if TYPE_CHECKING:
    from corral.metering.rate_limits import LimitWaits
    from corral.run_kwargs import PromptKwargs

PATIENCE = 10.0
"""Seconds, beyond the grace period, in which a cancelled turn may end."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of several turns must reach."""

    output: object = None
    repairs: int = 2
    until: Until | None = None
    rounds: int = ROUNDS
    max_total_tokens: int | None = None
    submission: Submission | None = None

    def check(self) -> None:
        """Raises ``CallerError`` for an impossible goal, before anything starts."""
        if self.output is not None:
            TypedAnswer(self.output, repairs=self.repairs)
        if self.until is not None:
            check_limits(self.until, self.rounds, self.max_total_tokens)


def with_submission(goal: Goal, tools: GivenTools) -> tuple[Goal, Tools]:
    """The goal and the tools, with one more tool that submits the value."""
    submission = Submission(answer_schema(goal.output))
    given = tools if isinstance(tools, Tools) else Tools(tools)
    more = Tools(
        [*given.by_name.values(), submission.tool],
        hooks=given.hooks,
        agent_hooks=given.agent_hooks,
        on_event=given.on_event,
    )
    return msgspec.structs.replace(goal, submission=submission), more


class GoalSession(Protocol):
    """The session in which the turns are made."""

    @property
    def prepared(self) -> PreparedRun: ...

    def full_prompt(self, prompt: str | Prompt | None) -> str: ...

    def takes_schema(self, typed: TypedAnswer) -> bool: ...

    def turn(self, text: str, options: PromptKwargs, typed: TypedAnswer | None = None) -> Turn: ...


class TimeLimit:
    """Cancels a turn when the time of all turns is over. Waits for rate limits do not count."""

    def __init__(self, seconds: float, waits: LimitWaits | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends = self._loop.time() + seconds
        self._waits = waits
        self._waited_before = 0.0 if waits is None else waits.waited
        self._timer: asyncio.TimerHandle | None = None

    def start(self, cancel: Callable[[], None]) -> None:
        waits = self._waits
        waited = 0.0 if waits is None else waits.waited - self._waited_before
        left = self._ends + waited - self._loop.time()
        if left > 0 or (waits is not None and waits.is_waiting):
            self._timer = self._loop.call_later(max(left, 0.05), self.start, cancel)
        else:
            cancel()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def run_goal(
    goal: Goal,
    session: GoalSession,
    prompt: str | Prompt | None,
    collect: Callable[[Turn], Awaitable[Result]],
    options: PromptKwargs | None = None,
) -> Result:
    """The result of all turns together, each read to its end by ``collect``.

    ``options`` apply to all turns. With ``until``, the run's ``timeout`` applies to all turns
    together. A turn that exceeds it is cancelled and still reports its last events and changes.
    """
    chosen: PromptKwargs = options or {}
    run = session.prepared.run
    waits = session.prepared.limit_waits
    time_limit = TimeLimit(run.timeout, waits)

    async def turn(text: str, typed: TypedAnswer | None = None) -> Result:
        started = session.turn(text, chosen, typed)
        if goal.until is not None:
            time_limit.start(started.cancel)
        try:
            return await collect(started)
        finally:
            time_limit.stop()

    async def typed_turns(text: str) -> Result:
        typed = TypedAnswer(goal.output, repairs=goal.repairs, submission=goal.submission)
        native = session.takes_schema(typed)
        return await run_typed(lambda each: turn(each, typed), text, typed, native=native)

    text = session.full_prompt(prompt)
    do = turn if goal.output is None else typed_turns
    if goal.until is None:
        return await do(text)
    from corral.sessions.sandbox import command_sandbox  # most runs need none

    return await until_done(
        do,
        text,
        in_sandbox(goal.until, command_sandbox(session.prepared)),
        rounds=goal.rounds,
        max_total_tokens=goal.max_total_tokens,
        timeout=run.timeout,
        ending=run.grace + PATIENCE,
        waits=waits,
        cwd=session.prepared.cwd,
    )
