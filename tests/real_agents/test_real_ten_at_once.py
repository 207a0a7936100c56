"""Every agent that is here at once, in one process, against one model server: nothing is lost,
nothing is mixed up, nothing is left."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest
from support.files import file_names
from support.installed_agents import ON_DEMAND, installed, managed, mark_of
from support.processes import exclusive_machine, processes_using

import corral
from corral._agents import registry
from corral._system import paths
from corral._testing.conformance.scenarios import Stage
from corral.events import Event, Text
from corral.options import RunOptions
from corral.policy import Policy
from corral.result import Result, result_from_events
from corral.testing import Call, ModelServer, Request, Turn, hang

WIRES = ("gemini:gemini-2.5-flash", "anthropic:claude-sonnet-5", "openai:gpt-5.5", "chat:any-model")
CANCELLED = "gemini-acp"
REFUSED = "gemini-cli"
UNPACKED = (".cache/copilot/", ".cache/Microsoft/")
"""Where Copilot unpacks itself, once for all its runs."""

pytestmark = [pytest.mark.gemini_cli, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for agent in registry.all_agents():
        for name in agent.env_names:
            monkeypatch.delenv(name, raising=False)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process puts its own temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def here() -> dict[str, str | None]:
    """Agent → its program: all that ``make test`` installs, and of the others those that are."""
    found: dict[str, str | None] = dict.fromkeys(WIRES)
    for agent in registry.all_agents():
        wanted = mark_of(agent.name) not in ON_DEMAND or os.path.exists(managed(agent.name))
        if agent.programs and wanted:
            found[agent.name] = installed(agent.name)
    return found


class One:
    """An agent with its own folder, model and answer."""

    def __init__(self, name: str, number: int, server: ModelServer, folder: Path) -> None:
        agent = registry.find(name)
        if agent.for_run is not None and name in WIRES:
            agent = agent.for_run(RunOptions.build(agent.name, {"model": name}))
        self.name = name
        self.prompt = f"question {number}: write probe.txt"
        self.answer = f"This is the answer of {name}."
        self.tokens = {"input": 10_007 + 2 * number, "output": 5}
        self.stage = Stage(name, agent, server, folder, options={}, scenario="crowd")

    def model(self, request: Request) -> Turn:
        probe = self.stage.probe
        calls = [probe.write, probe.shell] if self.name == REFUSED else [probe.write]
        done = len(request.tool_results)
        if not request.tools:  # a title, or the like
            return Turn(text="x", usage=self.tokens)
        if done < len(calls):
            return Turn(calls=[Call(*calls[done])], usage=self.tokens)
        if self.name == CANCELLED:
            return hang("Half a")
        return Turn(text=self.answer, usage=self.tokens)

    async def run(self, program: str | None) -> Result:
        options = self.stage.scripted(
            self.model,
            policy=Policy.edits(),
            strict=False,  # one of them cannot hold all of it, and says so
            timeout=400,
            startup_timeout=300,
            idle_timeout=390,
            program=program,
        )
        events: list[Event] = []
        async with corral.session(self.name, **options) as session:
            turn = session.prompt(self.prompt)
            async for event in turn:
                events.append(event)
                if isinstance(event, Text) and self.name == CANCELLED:
                    turn.cancel()
        return result_from_events(events)


def descriptors() -> set[str]:
    found: set[str] = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except OSError:
            continue
    return found


@pytest.mark.deep
async def test_ten_different_agents_at_once_do_not_mix_and_leave_nothing(
    workspace: Path, tmp_path: Path, temporary: Path
) -> None:
    programs = here()
    assert len(programs) >= 10
    before = descriptors()
    async with ModelServer() as server:
        crowd: list[One] = []
        for number, name in enumerate(programs):
            (workspace / f"part-{number}").mkdir()
            crowd.append(One(name, number, server, workspace / f"part-{number}"))
        with exclusive_machine(tmp_path):
            async with asyncio.timeout(500), asyncio.TaskGroup() as group:
                tasks = [group.create_task(one.run(programs[one.name])) for one in crowd]
        failures = server.failures
    assert failures == []

    for one, task in zip(crowd, tasks, strict=True):
        result = task.result()
        story = (one.name, result.status, result.error, result.text)
        assert result.status == ("interrupted" if one.name == CANCELLED else "success"), story
        assert file_names(one.stage.cwd) == ["probe.txt"], story
        assert [(Path(f.path), f.kind) for f in result.files] == [
            (one.stage.cwd / "probe.txt", "created")
        ], story
        refused = [refusal.name for refusal in result.denied]
        assert refused == ([one.stage.probe.shell[0]] if one.name == REFUSED else []), story
        if one.name != CANCELLED:
            # Of the text, as one of them has words of its own between its steps.
            assert (result.final_text or "").strip() == one.answer, story
            if "usage" in registry.find(one.name).capabilities:
                assert result.usage.input, story
                assert result.usage.input % one.tokens["input"] == 0, (one.name, result.usage)
        asked = [request.last_text for request in one.stage.requests if request.tools]
        assert len(asked) >= 2, story
        assert all(one.prompt in text for text in asked), story

    assert processes_using(tmp_path) == {}
    assert descriptors() - before == set()
    assert list(paths.process_registry().iterdir()) == []
    assert os.listdir(paths.sessions()) == []
    # The folder of the sockets of running processes stays, empty.
    assert [each for each in temporary.rglob("*") if not each.is_dir()] == []
    stored = [name for name in file_names(tmp_path / "user-home") if not name.startswith(UNPACKED)]
    assert stored == []
