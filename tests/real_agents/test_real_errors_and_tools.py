"""Every real agent: which tools its start names, and what a failing model service becomes.

One session per agent: a turn whose second model call fails with HTTP 402, after a tool was called;
a turn that fails with HTTP 404 at once. Where the process stays: an answer before them, then other
errors, and an answer again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.installed_agents import installed, mark_of
from support.scripted_agent import child_pids
from support.stream_checks import check_stream

import corral
from corral import errors
from corral._agents import registry
from corral._agents.shared.errors import QUOTA
from corral._agents.spec import AgentSpec
from corral._testing.conformance.scenarios import Stage
from corral.events import Event, Init
from corral.result import Result, result_from_events
from corral.testing import Call, ModelServer, Request, Turn, fail, say

TELL_TOOLS = {
    "claude-cli": {"Agent": "Task", "DeferredToolPlaceholder": "TaskCreate"},
    "qwen-cli": {},
}
"""Agents that name their tools at the start → other names of tools in their requests."""
TELL_NO_STATUS = {"cline-acp", "opencode-acp"}
"""They pass on the service's text alone."""


def cases() -> Iterator[Any]:
    for agent in registry.all_agents():
        if agent.programs:
            marks = [getattr(pytest.mark, mark_of(agent.name))]
            if agent.name == "opencode-cli":  # its start takes seconds; opencode-acp stands for it
                marks.append(pytest.mark.deep)
            yield pytest.param(agent.name, marks=marks)


PROMPTS = ("first question", "second question", "third question")
API_ERRORS = {
    "fail 401": (fail(401, "Incorrect API key provided."), errors.AuthenticationFailed),
    "fail 429": (fail(429, "Rate limit reached", retry_after=0), errors.RateLimited),
    "fail 500": (fail(500, "The server had an error", retry_after=0), errors.ServerFailed),
}
"""Prompt → the response to it, and the error that it becomes."""
LAST = "and now?"


class Model:
    """Answers the last of the prompts in a request: some agents send more with it."""

    def __init__(self, write: Call, *, tells_status: bool) -> None:
        self._write = write
        self._spent = "Zap." if tells_status else "Insufficient Balance"
        self._calls = 0

    def __call__(self, request: Request) -> Turn:
        asked = str(request.body)
        prompt = [each for each in ("", *PROMPTS, *API_ERRORS, LAST) if each in asked][-1]
        if prompt in API_ERRORS:
            return API_ERRORS[prompt][0]
        if prompt == LAST:
            return say("still here")
        if prompt == PROMPTS[2]:
            return fail(404, "The model does not exist.")
        if prompt != PROMPTS[1]:
            return say("first answer")
        self._calls += bool(request.tools)  # without tools: a title, or the like
        return Turn(calls=[self._write]) if self._calls == 1 else fail(402, self._spent)


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for agent in registry.all_agents():
        for name in agent.env_names:
            monkeypatch.delenv(name, raising=False)


def made_once(agent: AgentSpec) -> list[str]:
    """The prompts of ``API_ERRORS`` whose request it does not make again by itself."""
    return [*API_ERRORS] if "retries" in agent.supports else ["fail 401"]


def check_others(results: Mapping[str, Result]) -> None:
    for prompt, result in results.items():
        with pytest.raises(API_ERRORS[prompt][1]) as caught:
            result.raise_for_status()
        assert type(caught.value) is API_ERRORS[prompt][1]


@pytest.mark.deep
@pytest.mark.parametrize("name", list(cases()))
async def test_errors_of_the_service_are_errors_and_the_start_names_the_tools(
    name: str, workspace: Path, model_server: ModelServer
) -> None:
    agent = registry.find(name)
    stage = Stage(name, agent, model_server, workspace, options={}, scenario="errors")
    model = Model(Call(*stage.probe.write), tells_status=name not in TELL_NO_STATUS)
    options = stage.scripted(model, policy="edits", strict=False, program=installed(name))
    if "retries" in agent.supports:
        options["retries"] = 0

    async def run(prompt: str) -> tuple[Result, list[Event]]:
        events = check_stream([event async for event in session.prompt(prompt)])
        return result_from_events(events), events

    async with corral.session(name, **options) as session:
        if agent.transport.kind != "acp":  # a process for each prompt
            spent, events = await run(PROMPTS[1])
            unknown, _ = await run(PROMPTS[2])
        else:
            first, _ = await run(PROMPTS[0])
            assert first.ok, first.error
            spent, events = await run(PROMPTS[1])
            unknown, _ = await run(PROMPTS[2])
            others = {p: (await run(p))[0] for p in API_ERRORS if p in made_once(agent)}
            last, _ = await run(LAST)
            assert len(child_pids()) == 1
            check_others(others)
            assert last.final_text == "still here"
            results = (first, spent, unknown, *others.values(), last)
            assert len({result.session_id for result in results}) == 1

    (started,) = [event for event in events if isinstance(event, Init)]
    offered = next(request.tools for request in stage.requests if request.tools)
    if name in TELL_TOOLS:
        renamed = TELL_TOOLS[name]
        assert {renamed.get(tool, tool) for tool in offered} <= set(started.tools)
    elif name in ("gemini-cli", "gemini-acp"):  # known from the policy, without its own bookkeeping
        assert {"read_file", "write_file"} <= {*started.tools} <= {*offered}
    else:
        assert started.tools == ()
    assert (workspace / "probe.txt").exists(), "the turn that failed has called a tool before"
    assert spent.error is not None
    assert (spent.status, spent.error.code) == ("error", "quota_spent"), spent.error
    assert (spent.error.retryable, spent.error.hint) == (False, QUOTA)
    assert unknown.error is not None
    assert (unknown.status, unknown.error.code) == ("error", "model_not_found"), unknown.error
    assert not unknown.error.retryable
