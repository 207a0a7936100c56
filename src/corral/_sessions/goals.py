"""A run of several turns (``run_goal``): repaired until the output fits, and repeated until a check
passes. The check's complaint is the next prompt.

::

    result = await corral.run("…", "Make the tests pass", until=command_succeeds("pytest -q"))

A check is ``files_exist``, ``command_succeeds``, or any function of the ``Result``, sync or async.
It returns None or True if the work is done, a text that says what is wrong, or False. The run ends
when the check passes, a turn fails, or the rounds, tokens or time are used up. The result says
which, and contains what all turns did and spent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from corral._sessions.converge import Converge
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.structured_output import (
    RunTurn,
    SubmitTool,
    TypedAnswer,
    answer_schema,
    run_typed,
)
from corral._sessions.tools.tools import GivenTools, Tools
from corral._sessions.turn import Turn
from corral._verification.check import Check, CheckContext
from corral._verification.function_check import FunctionCheck, ResultFunction
from corral._verification.verified import Verified
from corral.errors import (
    BudgetExceeded,
    ConfigError,
    CorralError,
    RemoteError,
    TotalTimeout,
    TurnLimit,
)
from corral.prompt import Prompt
from corral.receipt import Receipt
from corral.result import Result, combine_results

if TYPE_CHECKING:
    from corral._metering.rate_limits import LimitWaits
    from corral._system.sandbox.sandbox import Sandbox
    from corral.run_kwargs import PromptKwargs


ROUNDS = 10

Until = Check | ResultFunction
AnyUntil = Until | Verified


async def until_done(  # noqa: PLR0913
    run: RunTurn,
    prompt: str,
    check: Until,
    *,
    rounds: int = ROUNDS,
    max_total_tokens: int | None = None,
    timeout: float | None = None,
    ending: float = 0.0,
    waits: LimitWaits | None = None,
    cwd: str | os.PathLike[str] = ".",
    sandbox: Sandbox | None = None,
) -> Result:
    """The result of all turns together: the first, and at most ``rounds`` further ones.

    ``run`` is one turn of a session that stays the same, such as ``session.run``. What is
    done is a success, whatever it cost: ``max_total_tokens`` and ``rounds`` decide whether
    there is another turn, and ``timeout`` ends also one under way. A ``run`` that ends its
    turn as interrupted by itself when the time is over has ``ending`` seconds for it. The
    ``waits`` of the session for rate limits do not count.
    What the check raises is passed on.
    """
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    shown = prompt
    combined: Result | None = None
    limit = asyncio.timeout_at(deadline)
    try:
        async with limit:
            for left in range(rounds, -1, -1):
                limit.reschedule(None if deadline is None else deadline + ending)
                with nullcontext() if waits is None else waits.exempt_from(limit):
                    try:
                        result = await run(shown)
                    except RemoteError as error:
                        # It cannot even start: its error carries what the earlier turns did.
                        error.result = error.result or combined
                        raise
                deadline = None if deadline is None else deadline + result.waited
                combined = result if combined is None else combine_results(combined, result)
                late = deadline is not None and loop.time() >= deadline
                if late and combined.status == "interrupted":
                    return _with_error(combined, _timeout_error(timeout))
                if not combined.ok:
                    return combined
                limit.reschedule(deadline)
                complaint = await _complaint(check, combined, Path(cwd), sandbox)
                if complaint is None:
                    return combined
                if not left:
                    message = f"not done after {rounds} further rounds: {complaint}"
                    hint = "Raise rounds (--rounds), or resume the session."
                    return _with_error(combined, TurnLimit(message, hint=hint))
                if spent := _budget_error(combined, result, max_total_tokens, complaint):
                    return _with_error(combined, spent)
                shown = f"It is not done yet: {complaint}\n\nGo on until it is."
    except TimeoutError:
        if not limit.expired():
            raise
        return _with_error(combined or Result(status="timeout"), _timeout_error(timeout))
    raise AssertionError("the last round returns")


async def _complaint(
    check: Until, result: Result, cwd: Path, sandbox: Sandbox | None
) -> str | None:
    source = check if isinstance(check, Check) else FunctionCheck(check)
    context = CheckContext(folder=cwd, left=cwd, result=result, sandbox=sandbox)
    return (await source.run(context)).complaint


def _budget_error(
    combined: Result, last: Result, max_total_tokens: int | None, complaint: str
) -> BudgetExceeded | None:
    if max_total_tokens is None:
        return None
    if last.usage.total is None or combined.usage.total is None:
        return BudgetExceeded(
            f"the tokens of a turn are unknown: {last.agent or 'the agent'} did not report them",
            hint="Leave max_total_tokens out, and bound the work with rounds and timeout.",
        )
    if combined.usage.total < max_total_tokens:
        return None
    return BudgetExceeded(
        f"{combined.usage.total:,} of {max_total_tokens:,} tokens are spent, and it is not done:"
        f" {complaint}",
        hint="Raise max_total_tokens, or resume the session.",
    )


def _timeout_error(timeout: float | None) -> TotalTimeout:
    return TotalTimeout(
        f"timed out after {timeout or 0:g}s over all rounds",
        hint="Raise timeout if the task needs longer.",
    )


def _with_error(combined: Result, error: CorralError) -> Result:
    return msgspec.structs.replace(combined, status=error.status, error=error.event())


PATIENCE = 10.0
"""Seconds, beyond the grace period, in which a cancelled turn may end."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of several turns must reach."""

    output: object = None
    repairs: int = 2
    until: AnyUntil | None = None
    rounds: int = ROUNDS
    max_total_tokens: int | None = None
    submission: SubmitTool | None = None
    on_judged: Callable[[int, Receipt], None] | None = None
    """Called with the number and the receipt of each round of ``until=verified(…)``."""

    def check(self) -> None:
        """Raises ``CallerError`` for an impossible goal, before anything starts."""
        if self.output is not None:
            TypedAnswer(self.output, repairs=self.repairs)
        until, tokens = self.until, self.max_total_tokens
        if until is None:
            return
        if not isinstance(until, Check | Verified) and not callable(until):
            raise ConfigError(
                f"until must be a check, got: {type(until).__name__}",
                hint="Give files_exist(…), command_succeeds(…), or a function of the result.",
            )
        if self.rounds < 0:
            raise ConfigError(f"rounds cannot be negative: {self.rounds}")
        if tokens is not None and tokens < 1:
            raise ConfigError(f"max_total_tokens must be at least 1, got: {tokens}")


def with_submission(goal: Goal, tools: GivenTools) -> tuple[Goal, Tools]:
    """The goal and the tools, with one more tool that submits the value."""
    submission = SubmitTool(answer_schema(goal.output))
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

    def full_prompt(self, prompt: str | Prompt[Any] | None) -> str: ...

    def takes_schema(self, typed: TypedAnswer) -> bool: ...

    def turn(
        self,
        text: str,
        options: PromptKwargs,
        typed: TypedAnswer | None = None,
        *,
        is_last: bool = True,
    ) -> Turn: ...

    async def verify(self, result: Result) -> Result: ...

    async def judge(self, result: Result) -> Receipt: ...

    async def restore(self, receipt: Receipt) -> frozenset[str]: ...

    def keep_receipt(self, receipt: Receipt) -> Receipt: ...


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
    prompt: str | Prompt[Any] | None,
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
    converge: Converge | None = None
    until: Until | None
    if isinstance(goal.until, Verified):
        if not session.prepared.checks:
            raise ConfigError(
                "until=verified() has nothing to verify",
                hint="Give it checks, or set verify or scenarios.",
            )
        converge = Converge(session, goal.on_judged)
        until = converge.check
    else:
        until = goal.until

    async def turn(text: str, typed: TypedAnswer | None = None) -> Result:
        started = session.turn(text, chosen, typed, is_last=goal.until is None)
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

    async def counted(text: str) -> Result:
        if converge is None:
            return await do(text)
        converge.rounds += 1
        try:
            return await do(text)
        except RemoteError:
            converge.rounds -= 1
            raise

    if until is None:
        return await do(text)
    from corral._sessions.sandbox import command_sandbox  # most runs need none

    try:
        done = await until_done(
            counted,
            text,
            until,
            rounds=goal.rounds,
            max_total_tokens=goal.max_total_tokens,
            timeout=run.timeout,
            ending=run.grace + PATIENCE,
            waits=waits,
            cwd=session.prepared.cwd,
            sandbox=command_sandbox(session.prepared),
        )
    except RemoteError as error:
        if converge is None or error.result is None:
            raise
        # A further round cannot start, such as with a spent budget: the best state counts.
        done = _with_error(error.result, error)
    if converge is not None and converge.problem is not None and done.ok:
        message = f"stopped after round {converge.rounds}: {converge.problem}"
        done = _with_error(done, TurnLimit(message, hint="Correct the scenarios first."))
    return await (session.verify(done) if converge is None else converge.finish(done))
