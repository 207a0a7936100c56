"""How real agents fail, and what a caller sees: one error, of its own class."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.processes import fifo_signal, processes_matching
from support.real_agents import RECORDS, RealAgent, for_agents
from support.scripted_agent import child_pids
from support.stream_checks import check_stream

import corral
from corral import errors, result_from_events
from corral.events import Error, Event, Text
from corral.testing import Turn, fail, say

pytestmark = pytest.mark.timeout(400)

API_ERRORS = {
    401: (fail(401, "Incorrect API key provided."), errors.AuthenticationFailed),
    403: (fail(403, "This key has no access."), errors.AccessDenied),
    404: (fail(404, "The model `x` does not exist"), errors.ModelNotFound),
    429: (fail(429, "Rate limit reached", retry_after=0), errors.RateLimited),
    500: (fail(500, "The server had an error", retry_after=0), errors.ServerFailed),
}
NOT_EVERY_DAY = {
    # test_gemini_specifics.py has more, and test_real_limits.py has a 429.
    "gemini-cli": {401, 404, 429, 500},
    "claude-cli": {403, 404, 500},
    "opencode-cli": {401, 403, 404, 429, 500},  # one process of opencode-acp has them all
    "codex-cli": {403, 404, 500},
}
"""Cases of which others of the same program are enough for `make test`; every agent has a 402 and a
404 in ``test_real_errors_and_tools.py``, and the persistent ones have more."""
RETRIED = {"copilot-cli": {401, 429, 500}, "pi-cli": {500}}
"""Agent → the errors after which it tries again although ``retries`` is 0, with a warning."""


def api_error_cases() -> Iterator[object]:
    for name, record in RECORDS.items():
        if not record.persistent:
            for status in API_ERRORS:
                marks = [getattr(pytest.mark, record.mark)]
                if status in NOT_EVERY_DAY.get(name, ()):
                    marks.append(pytest.mark.deep)
                yield pytest.param(name, status, id=f"{name}-{status}", marks=marks)


@pytest.mark.deep
@pytest.mark.parametrize(("agent", "status"), [*api_error_cases()], indirect=["agent"])
async def test_an_api_error_has_its_own_class(agent: RealAgent, status: int) -> None:
    turn, kind = API_ERRORS[status]
    events = await agent.events([msgspec.structs.replace(turn, repeat="forever")])
    result = result_from_events(events)
    with pytest.raises(kind) as caught:
        result.raise_for_status()
    assert type(caught.value) is kind
    assert caught.value.hint or kind is errors.AccessDenied
    assert caught.value.argv
    assert result.text == ""
    warnings = [event for event in events if isinstance(event, Error) and event.code == "retrying"]
    assert bool(warnings) == (status in RETRIED.get(agent.name, ()))
    assert all(event.recoverable and event.level == "warning" for event in warnings)
    assert "canary" not in str(result.error)


@for_agents("gemini-cli", "claude-cli")
async def test_a_second_attempt_is_a_warning_and_can_succeed(agent: RealAgent) -> None:
    script = [fail(500, "The server had an error", retry_after=0.1), say("at last")]
    events = await agent.events(script, retries=1)
    result = result_from_events(events)
    assert result.ok
    assert result.text == "at last"
    warnings = [event for event in events if isinstance(event, Error)]
    assert {(w.code, w.level, w.recoverable) for w in warnings} == {("retrying", "warning", True)}
    assert len(agent.turns) == 2


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port that is bound but not listened on: every connection is refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@for_agents(lambda record: record.supports("retries"))
async def test_a_model_that_cannot_be_reached_is_a_network_error(
    agent: RealAgent, unused_port: int
) -> None:
    """Every day, Gemini CLI has the next test, in which it also retries."""
    env = {agent.record.probe.url_env: f"http://127.0.0.1:{unused_port}"}
    result = await agent.run([], env=env)
    with pytest.raises(errors.NetworkFailed):
        result.raise_for_status()


@for_agents(lambda record: record.name != "opencode-cli" and record.probe.model != "scripted")
async def test_a_network_that_is_away_is_reported_while_the_agent_retries(
    agent: RealAgent, unused_port: int
) -> None:
    """By itself each of them would retry for minutes."""
    env = {agent.record.probe.url_env: f"http://127.0.0.1:{unused_port}"}
    quick = not agent.record.supports("retries") or agent.name.startswith("gemini")
    events = await agent.events([], env=env, retries=2 if quick else 9)
    result = result_from_events(events)
    with pytest.raises(errors.NetworkFailed, match=f"127.0.0.1:{unused_port}") as caught:
        result.raise_for_status()
    assert "HTTPS_PROXY" in (caught.value.hint or "")
    warnings = [event.code for event in events if isinstance(event, Error)]
    assert "unreachable" in warnings


@for_agents("gemini-acp")
async def test_a_host_that_does_not_exist_is_reported(agent: RealAgent) -> None:
    env = {agent.record.probe.url_env: "http://no-such-host.invalid"}
    result = await agent.run([], env=env, retries=2)
    with pytest.raises(errors.NetworkFailed, match=r"no-such-host\.invalid cannot be resolved"):
        result.raise_for_status()


@for_agents(lambda record: record.name in ("gemini-cli", "gemini-acp", "claude-cli"))
async def test_without_credentials_nothing_is_started(agent: RealAgent) -> None:
    probe = agent.record.probe
    with pytest.raises(errors.AuthenticationFailed, match="no credentials") as caught:
        await agent.run([say("never")], env={probe.key_env: "", probe.url_env: ""})
    assert probe.key_env in (caught.value.hint or "")
    assert caught.value.phase == "config"
    assert agent.requests == []


@for_agents(lambda record: not record.persistent)
async def test_an_answer_without_text_is_an_error(agent: RealAgent) -> None:
    result = await agent.run([Turn(text="", repeat="forever")])
    with pytest.raises(errors.EmptyAnswer) as caught:
        result.raise_for_status()
    assert type(caught.value) is errors.EmptyAnswer
    assert not result.ok


async def events_until_killed(
    session: corral.Session, prompt: str, number: signal.Signals
) -> list[Event]:
    """The events of a prompt whose process gets the signal after its first text."""
    events: list[Event] = []
    async for event in session.prompt(prompt):
        events.append(event)
        if isinstance(event, Text):
            for pid in child_pids():
                os.kill(pid, number)
    return check_stream(events)


@for_agents(lambda record: record.persistent and record.spec.resumes and record.streams)
async def test_after_a_crash_the_next_prompt_starts_another_process(
    agent: RealAgent, tmp_path: Path
) -> None:
    """It continues the conversation where it was."""
    script = [
        Turn(text="first answer", match="first question", repeat="forever"),
        Turn(text=("half", " of it"), hang="after", match="second question"),
        Turn(text="third answer", match="third question", repeat="forever"),
        Turn(text="aside", repeat="forever"),
    ]
    async with agent.session(script) as session:
        first = await session.run("first question")
        events = await events_until_killed(session, "second question", signal.SIGKILL)
        assert child_pids() == []
        third = await session.run("third question")
    broken = result_from_events(events)
    assert broken.text == "half"
    with pytest.raises(errors.KilledBySignal) as caught:
        broken.raise_for_status()
    assert (caught.value.exit_code, caught.value.signal) == (None, 9)
    assert caught.value.argv
    assert third.final_text == "third answer"
    assert third.session_id == first.session_id
    reported = [text for message in agent.turns[-1].history for text in message.texts]
    assert "first answer" in reported
    assert any("third question" in text for text in reported)
    assert processes_matching(str(tmp_path)) == []


@for_agents(lambda record: record.persistent and record.name != "codex-acp")
async def test_the_command_of_a_killed_agent_ends_with_it(
    agent: RealAgent, tmp_path: Path, sleep_time: str
) -> None:
    with fifo_signal(tmp_path / "started") as started:
        command = f"sleep {sleep_time} & echo up > {started.path}; sleep {sleep_time}"
        script = [Turn(calls=[agent.shell(command)]), Turn(text="still here", repeat="forever")]
        async with agent.session(script, policy="all") as session:
            reading = asyncio.create_task(session.run("do it"))
            await asyncio.to_thread(started.wait)
            assert processes_matching(sleep_time)
            for pid in child_pids():
                os.kill(pid, signal.SIGKILL)
            broken = await reading
            assert processes_matching(sleep_time) == []
            second = await session.run("and now?")
    assert broken.error is not None
    assert broken.error.code == "killed_by_signal"
    assert second.final_text == "still here"
