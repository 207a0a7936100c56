"""A run of several turns: repaired until the output fits, repeated until a check passes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from corral.agents.spec import AgentSpec
from corral.errors import ConfigError, RemoteError
from corral.options import RunKwargs
from corral.result import Result
from corral.sessions.session import Session
from corral.sessions.structured_output import RunTurn, Submission, answer_schema, run_typed
from corral.sessions.tools.tools import GivenTools, Tools
from corral.sessions.turn import Turn
from corral.sessions.until import ROUNDS, Until, check_limits, in_sandbox, until_done

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
    native: bool = False
    """Whether the agent was given the schema itself."""

    def check(self) -> None:
        """Raises ``CallerError`` for an impossible goal, before anything starts."""
        if self.output is not None:
            answer_schema(self.output)
        if self.until is not None:
            check_limits(self.until, self.rounds, self.max_total_tokens)
        elif self.max_total_tokens is not None:
            raise ConfigError(
                "max_total_tokens is given without until",
                hint="Tokens are counted between the rounds of until; one turn has a timeout.",
            )


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


def with_schema(goal: Goal, agent: AgentSpec, options: RunKwargs) -> Goal:
    """The goal. If the agent supports output schemas, ``options`` get the schema."""
    if goal.output is None or agent.native_schema is None or goal.submission is not None:
        return goal
    schema = answer_schema(goal.output).json
    if not agent.native_schema(schema):
        return goal
    options["output_schema"] = schema
    return msgspec.structs.replace(goal, native=True)


async def run_goal(
    goal: Goal, session: Session, prompt: str, collect: Callable[[Turn], Awaitable[Result]]
) -> Result:
    """The result of all turns together, each read to its end by ``collect``.

    With ``until``, the run's ``timeout`` applies to all turns together. A turn that exceeds it is
    cancelled and still reports its last events and changes.
    """
    loop = asyncio.get_running_loop()
    options = session.prepared.run
    ends = loop.time() + options.timeout

    async def turn(text: str) -> Result:
        started = session.prompt(text)
        timer = None if goal.until is None else loop.call_at(ends, started.cancel)
        try:
            return await collect(started)
        finally:
            if timer is not None:
                timer.cancel()

    async def typed_turn(text: str) -> Result:
        return await _typed(turn, text, goal)

    run = turn if goal.output is None else typed_turn
    if goal.until is None:
        return await run(prompt)
    return await until_done(
        run,
        prompt,
        in_sandbox(goal.until, session.prepared.command_sandbox()),
        rounds=goal.rounds,
        max_total_tokens=goal.max_total_tokens,
        timeout=options.timeout,
        ending=options.grace + PATIENCE,
        cwd=session.prepared.cwd,
    )


async def _typed(run: RunTurn, prompt: str, goal: Goal) -> Result:
    try:
        return await run_typed(
            run,
            prompt,
            goal.output,
            repairs=goal.repairs,
            submission=goal.submission,
            native=goal.native,
        )
    except RemoteError as error:
        failed: Result | None = error.result
        if failed is None:
            raise
        return msgspec.structs.replace(
            failed, status=error.status, error=error.event(), output=None
        )
