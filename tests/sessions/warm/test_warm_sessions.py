"""Named sessions whose agent stays warm in a background process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support import scripted_acp
from support.stream_checks import check_stream

from corral import errors
from corral._sessions.warm import client, names
from corral._sessions.warm.client import WarmRequest, WarmTurn
from corral._sessions.warm.names import WarmFiles
from corral.events import AgentQuestion, Decision, Done, Event, PermissionRequest, Text
from corral.policy import Policy
from corral.result import Result, result_from_events
from corral.values import Json

pytestmark = pytest.mark.whole_program

AGENT = scripted_acp.agent("--loads")
LIMIT = 60.0


class Named:
    """The session ``fix`` of a workspace."""

    def __init__(self, workspace: Path) -> None:
        self.cwd = str(workspace)
        self.files = WarmFiles.of("fix", self.cwd)

    def turn(self, text: str, *, ask: client.Ask | None = None, **options: Json) -> WarmTurn:
        given = {"cwd": self.cwd, "grace": 1, **options}
        request = WarmRequest(
            name="fix", agent=AGENT, text=text, options=given, interactive=ask is not None
        )
        return WarmTurn(self.files, request, ask=ask, idle=120)

    async def events(
        self, text: str, *, ask: client.Ask | None = None, **options: Json
    ) -> list[Event]:
        return check_stream([event async for event in self.turn(text, ask=ask, **options)])

    async def run(self, text: str, *, ask: client.Ask | None = None, **options: Json) -> Result:
        return result_from_events(await self.events(text, ask=ask, **options))

    def host_pid(self) -> int:
        stored = self.files.stored()
        assert stored is not None
        return stored.pid


@pytest.fixture
def named(workspace: Path) -> Iterator[Named]:
    session = Named(workspace)
    yield session
    asyncio.run(client.stop(session.files))
    assert not session.files.is_warm()


async def until_ended(pid: int) -> None:
    async with asyncio.timeout(LIMIT):
        while is_running(pid):
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_the_second_prompt_uses_the_same_agent_process(named: Named) -> None:
    first = await named.run("pid")
    second = await named.run("pid")
    assert first.ok
    assert second.ok
    assert first.text == second.text != ""
    assert is_running(int(first.text))


async def test_stopping_ends_the_agent(named: Named) -> None:
    pid = int((await named.run("pid")).text)
    assert await client.stop(named.files)
    assert not is_running(pid)
    assert not await client.stop(named.files)


@pytest.mark.deep
async def test_a_prompt_after_the_stop_continues_the_conversation(named: Named) -> None:
    first = await named.run("text one")
    await client.stop(named.files)
    second = await named.run("text two")
    assert (first.text, second.text) == ("one", "two")
    assert first.resume_token == second.resume_token
    assert '"sessionId"' in (await named.run("told session/load")).text  # the agent resumed it


async def test_a_named_session_has_one_agent(named: Named) -> None:
    options: dict[str, Json] = {"cwd": named.cwd, "on_limit": "fallback:corral"}
    request = WarmRequest(name="fix", agent=AGENT, text="text one", options=options)
    with pytest.raises(errors.ConfigError, match="a session has one agent"):
        [event async for event in WarmTurn(named.files, request, idle=120)]


async def test_the_process_ends_when_it_is_idle(workspace: Path) -> None:
    session = Named(workspace)
    turn = WarmTurn(
        session.files,
        WarmRequest(name="fix", agent=AGENT, text="pid", options={"cwd": session.cwd}),
        idle=0.05,
    )
    result = result_from_events([event async for event in turn])
    await until_ended(int(result.text))
    async with asyncio.timeout(LIMIT):
        while session.files.is_warm():
            await asyncio.sleep(0.01)


@pytest.mark.deep
async def test_two_prompts_at_the_same_time_run_one_after_another(named: Named) -> None:
    results = await asyncio.gather(*(named.run(f"sleep 0.2\ntext {n}") for n in range(3)))
    assert [each.text for each in results] == ["0", "1", "2"]
    assert len({each.resume_token for each in results}) == 1


async def test_a_permission_request_is_answered_by_the_caller(named: Named) -> None:
    asked: list[str] = []

    def answering(decision: Decision) -> client.Ask:
        async def ask(request: PermissionRequest | AgentQuestion) -> Decision:
            asked.append(request.kind)
            return decision

        return ask

    allowed = await named.run("ask execute", ask=answering("allow_once"))
    denied = await named.run("ask execute", ask=answering("deny"))
    assert asked == ["execute", "execute"]
    assert "b-once" in allowed.text
    assert "c-no" in denied.text


async def test_a_caller_that_cannot_ask_denies(named: Named) -> None:
    async def ask(_: PermissionRequest | AgentQuestion) -> Decision:
        return "allow_once"

    await named.run("text open", ask=ask)  # the session can ask
    turn = named.turn("ask execute")
    result = result_from_events([event async for event in turn])
    assert "c-no" in result.text


async def test_cancelling_ends_the_prompt_and_keeps_the_agent(named: Named) -> None:
    pid = (await named.run("pid")).text
    turn = named.turn("text begun\nhang")
    events: list[Event] = []
    async for event in turn:
        events.append(event)
        if isinstance(event, Text):
            turn.cancel()
    done = events[-1]
    assert isinstance(done, Done)
    assert done.status == "interrupted"
    assert turn.failed
    assert (await named.run("pid")).text == pid


async def test_a_caller_that_disappears_cancels_its_prompt(named: Named) -> None:
    await named.run("text open")
    turn = named.turn("text begun\nhang")
    iterator = aiter(turn)
    async for event in iterator:
        if isinstance(event, Text):
            break
    await iterator.aclose()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    async with asyncio.timeout(LIMIT):
        assert (await named.run("text next")).text == "next"


@pytest.mark.deep
async def test_options_of_one_prompt_may_differ_and_others_may_not(named: Named) -> None:
    await named.run("text open", timeout=50.0)
    late = await named.run("hang", timeout=0.5)
    assert late.error is not None
    assert late.error.code == "total_timeout"
    with pytest.raises(errors.ConfigError, match="was started with another inherit"):
        await named.run("text x", inherit="user")
    wider = msgspec.to_builtins(Policy.all())
    with pytest.raises(errors.ConfigError, match="policy"):
        await named.run("text x", policy=wider)
    assert (await named.run("text still there")).text == "still there"


async def test_another_agent_for_the_same_name_is_an_error(named: Named) -> None:
    await named.run("text open")
    turn = WarmTurn(
        named.files,
        WarmRequest(name="fix", agent="gemini-cli", text="x", options={"cwd": named.cwd}),
    )
    with pytest.raises(errors.ConfigError, match="not of gemini-cli"):
        async for _ in turn:
            pass


async def test_an_agent_that_does_not_exist_is_an_error_and_leaves_no_process(
    workspace: Path,
) -> None:
    files = WarmFiles.of("typo", str(workspace))
    turn = WarmTurn(
        files, WarmRequest(name="typo", agent="gemni", text="x", options={"cwd": str(workspace)})
    )
    with pytest.raises(errors.UnknownAgent, match="gemni"):
        async for _ in turn:
            pass
    async with asyncio.timeout(LIMIT):
        while files.is_warm():
            await asyncio.sleep(0.01)
    assert files.stored() is None


@pytest.mark.deep
async def test_a_killed_process_is_reported_and_the_next_prompt_works(named: Named) -> None:
    await named.run("text open")
    turn = named.turn("text begun\nhang")
    with pytest.raises(errors.ProcessFailed, match="ended unexpectedly"):
        async for event in turn:
            if isinstance(event, Text):
                os.kill(named.host_pid(), signal.SIGKILL)
    assert (await named.run("text again")).text == "again"


async def test_a_home_with_a_long_path_works(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / ("long" * 40)))
    session = Named(workspace)
    try:
        assert (await session.run("text hello")).text == "hello"
    finally:
        await client.stop(session.files)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 101])
def test_an_invalid_name_is_an_error(name: str) -> None:
    with pytest.raises(errors.ConfigError, match="session name"):
        WarmFiles.of(name, "/")


@pytest.mark.deep
async def test_names_belong_to_folders(tmp_path: Path, named: Named) -> None:
    other = tmp_path / "other"
    other.mkdir()
    second = Named(other)
    try:
        first_pid, second_pid = (await named.run("pid")).text, (await second.run("pid")).text
        assert first_pid != second_pid
        assert [each.name for _, each in names.all_names()] == ["fix", "fix"]
    finally:
        await client.stop(second.files)
