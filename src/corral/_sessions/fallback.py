"""A run that continues in another agent: ``on_limit="fallback:AGENT[,AGENT]"``.

Theory of operation
-------------------
A run is one or several *parts*. A part is a session with one agent; its events are those of any
session, from ``init`` to ``done``. ``run_in_agents`` opens the first, checks the other agents as if
they were started now, and gives the session and the prompt to ``work``, which returns the result of
the part. If a rate or usage limit has ended it that the agent's ``retries`` did not solve, the
agent is ended, and the next one gets a session that continues the conversation as ``resume`` with
another agent does (``handover``), with the same prompt, the rest of the time and of the budget, and
the files as they are. The ``continued_from`` of its ``init`` names the session before it.

The sessions stay open until the run ends: the next part needs what is stored of the one before,
also where nothing is to be left of it (``keep=False``), and a verification compares with the files
from before the first part. The result of the run is that of the last part, with what all of them
wrote, used, changed and were denied.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

from msgspec.structs import replace

from corral._option_definitions import with_trait
from corral._sessions import credentials
from corral._sessions.prepare import COMMON
from corral._sessions.session import Session
from corral._system import config
from corral.errors import CorralError, MissingKey
from corral.events import Error
from corral.options import FALLBACK, SPELLINGS, fallback_agents
from corral.prompt import Prompt
from corral.result import Result, combine_results
from corral.values import Json

WORK_CONTINUES = (
    "Another agent began this and reached a limit of its model. Continue its work where it ended."
)
OF_ONE_AGENT = with_trait("one_agent") | {"prompt_file"}
"""Options that the next agent does not get: their values belong to one agent, or to the first
prompt."""
LIMITS = ("rate_limit", "quota_spent")
"""The codes of errors after which another agent continues."""
ALL_LIMITED = "All agents are limited. Wait, or name another one: on_limit=fallback:AGENT."

Given: TypeAlias = str | Prompt[Any] | None
Work: TypeAlias = Callable[[Session, Given], Awaitable[Result]]
"""Sends a prompt to a session, in one or more turns."""


async def run_in_agents(first: Session, prompt: Given, work: Work) -> Result:
    """The result of ``work`` in a session that is not open yet and, after a limit, in those of the
    agents that ``on_limit`` names. Raises what ``first`` raises when it is opened, what a check of
    the others raises, and what ``work`` raises."""
    first.is_part = True
    async with AsyncExitStack() as sessions:
        session = await sessions.enter_async_context(first)
        run = first.prepared.run
        names = fallback_agents(run.on_limit)
        for name in names:
            _check(first, name)
        first.record.may_be_continued = bool(names)
        result = await work(first, prompt)
        for at, name in enumerate(names, 1):
            if result.error is None or result.error.code not in LIMITS:
                break
            left = max(1.0, run.timeout - (result.duration - result.waited))
            options = {**options_for(name, names[at:], first), "timeout": left}
            following = session.successor(name, options)
            text = first.full_prompt(prompt)
            if following.source is not None:
                text = f"{text}\n\n{WORK_CONTINUES}"
            try:
                await session.end_agent()
                session = await sessions.enter_async_context(following)
                session.record.may_be_continued = at < len(names)
                part = await work(session, text)
            except CorralError as error:
                if error.result is not None:  # it has worked
                    error.result = _combine(result, error.result)
                    raise
                limit = result.error  # what ended the part before
                message = f"{limit.message}; {name} cannot continue: {error.message}"
                return replace(result, error=replace(limit, message=message))
            result = _combine(result, part)
        return result


def options_for(name: str, others: Sequence[str], first: Session) -> dict[str, object]:
    """The options of a part with this agent, after which ``others`` may continue. An option that it
    does not have is an error of its session; without ``strict`` it is left out."""
    prepared = first.prepared
    options = {key: value for key, value in first.options.items() if key not in OF_ONE_AGENT}
    if options.get("probe") == "trust":  # the caller trusts the program of the first agent
        del options["probe"]
    if not prepared.run.strict:
        supported = config.find_agent(name).supports | COMMON | {*SPELLINGS}
        options = {key: value for key, value in options.items() if key in supported}
    on_limit = f"{FALLBACK}{','.join(others)}" if others else "fail"
    return {**options, "cwd": prepared.cwd, "on_limit": on_limit}


def _check(first: Session, name: str) -> None:
    """Check an agent as if it were started now. Raises ``CorralError``."""
    session = first.successor(name, options_for(name, (), first))
    try:
        prepared = session.check()
        agent, run = prepared.agent, prepared.run
        credentials.check_model_key(agent, run)
        names = agent.secret_env
        has_key = any(prepared.environment.agent_values.get(name) for name in names)
        is_known = prepared.auth is not None or has_key or bool(prepared.credentials)
        if run.strict and names and not is_known and credentials.needed(agent):
            raise MissingKey(
                "no credentials were found",
                hint=f"Sign in, or set {names[0]}; strict=False (--no-strict) leaves this check"
                " out.",
            )
    except CorralError as error:
        error.message = f"on_limit: the fallback {name}: {error.message}"
        raise


def _combine(before: Result, last: Result) -> Result:
    """The result of both parts."""
    return replace(
        combine_results(before, last),
        text="\n\n".join(filter(None, (before.text, last.text))),
        error=_joined_error(before, last),
    )


def _joined_error(before: Result, last: Result) -> Error | None:
    """The error of the last agent; if all are limited, with the reset that comes first."""
    if last.error is None or before.error is None or last.error.code not in LIMITS:
        return last.error
    known = (error.facts.get("resets_at") for error in (before.error, last.error))
    resets = [at for at in known if isinstance(at, int | float)]
    facts: dict[str, Json] = {k: v for k, v in last.error.facts.items() if k != "retry_after"}
    if resets:
        facts["resets_at"] = min(resets)
    # The error of several parts names their agents already.
    names_agents = before.error.hint == ALL_LIMITED
    earlier = before.error.message if names_agents else f"{before.agent}: {before.error.message}"
    message = f"{earlier}; {last.agent}: {last.error.message}"
    return replace(last.error, message=message, hint=ALL_LIMITED, facts=facts)
