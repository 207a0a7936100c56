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
import math
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from corral._core import durations
from corral._sessions.run_verifier import RunVerifier, with_judging
from corral._sessions.session import Session
from corral._sessions.structured_output import (
    RunTurn,
    SubmitTool,
    TypedAnswer,
    answer_schema,
    run_typed,
)
from corral._sessions.tools.tools import GivenTools, Tools
from corral._sessions.turn import Turn
from corral._system.clock import Stopwatch
from corral._verification.check import Check, CheckContext, FunctionCheck, ResultFunction
from corral._verification.scenarios.counts import out_of_reach
from corral._verification.verified import Verified, complaint, score
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
from corral.values import FileChanged, path_from_printable

if TYPE_CHECKING:
    from corral._metering.rate_limits import LimitWaits
    from corral._system.sandbox.sandbox import Sandbox
    from corral.run_kwargs import PromptKwargs


ROUNDS = 10

Until = Check | ResultFunction
AnyUntil = Until | Verified


class TimeLimit:
    """The time of all rounds. Waits for rate limits do not count."""

    def __init__(self, seconds: float, waits: LimitWaits | None = None) -> None:
        self.seconds: float = seconds
        self._waits = waits
        self._waited_before = 0.0 if waits is None else waits.waited
        self._since_start = Stopwatch()

    @property
    def left(self) -> float:
        waited = 0.0 if self._waits is None else self._waits.waited - self._waited_before
        return self.seconds + waited - self._since_start.seconds


async def until_done(
    run: RunTurn,
    prompt: str,
    check: Until,
    limit: TimeLimit,
    *,
    rounds: int = ROUNDS,
    max_total_tokens: int | None = None,
    cwd: str | os.PathLike[str] = ".",
    sandbox: Sandbox | None = None,
) -> Result:
    """The result of all turns together: the first, and at most ``rounds`` further ones.

    ``run`` is one turn of a session that stays the same, such as ``session.run``; it ends its turn
    when ``limit`` has no time left. What is done is a success, whatever it cost:
    ``max_total_tokens`` and ``rounds`` decide whether there is another turn, and ``limit`` ends a
    check under way. What the check raises is passed on.
    """
    combined: Result | None = None
    for left in range(rounds, -1, -1):
        try:
            result = await run(prompt)
        except RemoteError as error:
            # It cannot even start: its error carries what the earlier turns did.
            error.result = error.result or combined
            raise
        combined = result if combined is None else combine_results(combined, result)
        if combined.status == "timeout" and limit.left <= 0:
            return _with_error(combined, _timeout_error(limit))
        if not combined.ok:
            return combined
        timer = asyncio.timeout(limit.left)
        try:
            async with timer:
                complaint = await _complaint(check, combined, Path(cwd), sandbox)
        except TimeoutError:
            if not timer.expired():
                raise
            return _with_error(combined, _timeout_error(limit))
        if complaint is None:
            return combined
        if not left:
            message = f"not done after {rounds} further rounds: {complaint}"
            hint = "Raise rounds (--rounds), or resume the session."
            return _with_error(combined, TurnLimit(message, hint=hint))
        if spent := _budget_error(combined, result, max_total_tokens, complaint):
            return _with_error(combined, spent)
        prompt = f"It is not done yet: {complaint}\n\nGo on until it is."
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


def _timeout_error(limit: TimeLimit) -> TotalTimeout:
    return TotalTimeout(
        f"timed out after {limit.seconds:g}s over all rounds",
        hint="Raise timeout if the task needs longer.",
    )


def _with_error(combined: Result, error: CorralError) -> Result:
    return replace(combined, status=error.status, error=error.event())


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
    return replace(goal, submission=submission), more


class Round(msgspec.Struct, frozen=True):
    """A round whose work was judged."""

    number: int
    receipt: Receipt
    score: float
    files: tuple[FileChanged, ...]
    """What was changed up to its end."""


class JudgedRounds:
    """The rounds of ``until=verified(…)``, and which of their states stays in the folder.

    Each round is judged as ``verify`` judges a run, and its files are stored. At the end the best
    state is in the folder: if the last one is worse, or its turn failed, the best one is put back.
    What was there then is stored with the session, too: nothing is lost.
    """

    def __init__(
        self, session: Session, on_judged: Callable[[int, Receipt], None] | None = None
    ) -> None:
        """``on_judged`` is called with the number and the receipt of each round."""
        self._session = session
        self._on_judged = on_judged
        self._best: Round | None = None
        self._last: Round | None = None
        self._judged: list[Receipt] = []
        self.started: int = 0
        """Rounds that were started."""
        self.problem: str | None = None
        """Why no further round can verify the work."""

    @property
    def _verifier(self) -> RunVerifier:
        if self._session.verifier is None:
            raise RuntimeError("no turn of a run with checks was started")
        return self._session.verifier

    async def check(self, result: Result) -> str | None:
        """For ``until``: what the agent must do yet; None if the work is verified, or if no round
        can change that it is not (``problem``)."""
        receipt = await self._verifier.judge(self._session.prepared, result)
        self._judged.append(receipt)
        self._last = last = Round(self.started, receipt, score(receipt), result.files)
        is_verified = receipt.verdict == "verified"
        if self._best is None or is_verified or last.score >= self._best.score:
            self._best = last
        if self._on_judged is not None:
            self._on_judged(last.number, receipt)
        scenarios = (check for check in receipt.evidence if check.kind == "scenarios")
        self.problem = next(filter(None, map(out_of_reach, scenarios)), None)
        return None if is_verified or self.problem else complaint(receipt)

    async def finish(self, result: Result) -> Result:
        """The result, with the receipt of the state that is in the folder."""
        if self.problem is not None and result.ok:
            message = f"stopped after round {self.started}: {self.problem}"
            result = _with_error(result, TurnLimit(message, hint="Correct the scenarios first."))
        result = replace(with_judging(result, self._judged), rounds=self.started)
        best, last = self._best, self._last
        if best is None or last is None:
            return await self._session.verify(result)
        is_judged = last.number == self.started
        if not is_judged and best.score == 0:
            return await self._session.verify(result)  # no state is worth more than the last one
        if best is not last or not is_judged:
            try:
                undone = await self._verifier.restore(best.receipt)
            except CorralError as error:
                note = f"round {best.number} was better, and its files could not be put back"
                result = _with_note(result, f"{note}: {error.message}")
                return await self._session.verify(result)
            files = _files_after(result.files, best.files, undone, self._session.prepared.cwd)
            result = replace(result, files=files)
            result = _with_note(result, f"the files are those of round {best.number}, the best")
        receipt = self._verifier.keep(self._session.prepared, self._session.record, best.receipt)
        return replace(result, receipt=receipt, kept_round=best.number)


def _files_after(
    now: Iterable[FileChanged], best: Iterable[FileChanged], undone: Iterable[str], cwd: str
) -> tuple[FileChanged, ...]:
    """The changed files when those of the best round were put back: its own, and those that the
    repository does not know."""
    paths = {os.path.normpath(os.path.join(cwd, path)) for path in undone}
    files = {file.path: file for file in best}
    for file in now:
        if path_from_printable(file.path) not in paths:
            files.setdefault(file.path, file)
    return tuple(files.values())


def _with_note(result: Result, note: str) -> Result:
    """A result whose error says what became of the files."""
    if result.error is None:
        return result
    return replace(result, error=replace(result.error, message=f"{result.error.message}; {note}"))


async def run_goal(
    goal: Goal,
    session: Session,
    prompt: str | Prompt[Any] | None,
    collect: Callable[[Turn], Awaitable[Result]],
    options: PromptKwargs | None = None,
) -> Result:
    """The result of all turns together, each read to its end by ``collect``.

    ``options`` apply to all turns. With ``until``, ``timeout`` applies to all turns together: a
    turn has the time that is left, and still reports its last events and changes when it is over.
    """
    chosen: PromptKwargs = options or {}
    prepared = session.prepared
    limit: TimeLimit | None = None

    def turn(text: str, typed: TypedAnswer | None = None) -> Awaitable[Result]:
        own = chosen
        if limit is not None:
            # Rounded up: at the end of its time, none of the limit is left.
            own = {**chosen, "timeout": max(0.05, math.ceil(limit.left * 100) / 100)}
        return collect(session.turn(text, own, typed, is_last=goal.until is None))

    async def send(text: str) -> Result:
        if goal.output is None:
            return await turn(text)
        typed = TypedAnswer(goal.output, repairs=goal.repairs, submission=goal.submission)
        native = session.takes_schema(typed)
        return await run_typed(lambda text: turn(text, typed), text, typed, native=native)

    text = session.full_prompt(prompt)
    if goal.until is None:
        return await send(text)
    from corral._sessions.sandbox import command_sandbox  # most runs need none

    timeout = chosen.get("timeout")
    seconds = prepared.run.timeout if timeout is None else durations.seconds(timeout)
    limit = TimeLimit(seconds, prepared.limit_waits)
    until_check = partial(
        until_done,
        prompt=text,
        limit=limit,
        rounds=goal.rounds,
        max_total_tokens=goal.max_total_tokens,
        cwd=prepared.cwd,
        sandbox=command_sandbox(prepared),
    )
    if not isinstance(goal.until, Verified):
        return await session.verify(await until_check(send, check=goal.until))
    if not prepared.checks:
        raise ConfigError(
            "until=verified() has nothing to verify",
            hint="Give it checks, or set verify or scenarios.",
        )
    judged = JudgedRounds(session, goal.on_judged)

    async def send_round(text: str) -> Result:
        judged.started += 1
        try:
            return await send(text)
        except RemoteError:
            judged.started -= 1
            raise

    try:
        done = await until_check(send_round, check=judged.check)
    except RemoteError as error:
        if error.result is None:
            raise
        # A further round cannot start, such as with a spent budget: the best state counts.
        done = _with_error(error.result, error)
    return await judged.finish(done)
