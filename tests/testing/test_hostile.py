"""A repository in which every file is a trap: nothing of it takes effect."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from support.installed_agents import installed, mark_of
from support.mcp_servers import notes_server
from support.pipeline_command import corral as command
from support.real_agents import CHEAP
from support.sandbox import needs_sandbox

import corral
from corral._agents import registry
from corral._agents.spec import AgentSpec
from corral._sessions.prepare import prepare
from corral._sessions.sandbox import command_sandbox
from corral.errors import ConfigError, UntrustedFolder
from corral.policy import Policy
from corral.testing import Call, HostileRepository, ModelServer, Request, Turn, hostile_repository

pytestmark = pytest.mark.whole_program

AGENTS = {agent.name: agent for agent in registry.all_agents() if agent.probe is not None}
MODEL = "gemini:gemini-2.5-flash"
KEY = "hostile-needs-no-key-0123456789"


REFUSES = {"cline-acp", "codex-acp", "copilot-acp", "copilot-cli", "opencode-acp", "opencode-cli",
           "pi-cli", "qwen-acp", "qwen-cli"}  # fmt: skip
"""Agents that no switch keeps from obeying some of these files: they are not started there."""


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = [pattern for agent in registry.all_agents() for pattern in agent.env_names]
    for name in list(os.environ):
        if any(fnmatch(name, pattern) for pattern in patterns):
            monkeypatch.delenv(name)


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[HostileRepository]:
    with hostile_repository(tmp_path / "hostile") as built:
        yield built


@pytest.fixture
def with_fifos(tmp_path: Path) -> Iterator[HostileRepository]:
    with hostile_repository(tmp_path / "hostile", fifo=True) as built:
        yield built


def cases() -> Iterator[object]:
    """The agents; those that cost more than the built-in one and Codex are deep."""
    for name, agent in AGENTS.items():
        marks = [getattr(pytest.mark, mark_of(name))] if agent.programs else []
        if agent.programs and name not in CHEAP:
            marks.append(pytest.mark.deep)
        yield pytest.param(name, marks=marks)


class Curious:
    """A model that reads a file and asks for the environment, and then has done."""

    def __init__(self, agent: AgentSpec, cwd: Path) -> None:
        assert agent.probe is not None
        probe = agent.probe
        calls = [
            (form, {"path": "sub/file.txt", "abspath": f"{cwd}/sub/file.txt"})
            for form in probe.forms.get("read", ())[:1]
        ]
        calls += [(form, {"command": "env"}) for form in probe.forms["run"][:1]]
        self.left = [Call(form[0], filled(form[1], values)) for form, values in calls]
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> Turn:
        self.requests.append(request)
        if not request.tools or not self.left:
            return Turn(text="done")
        return Turn(calls=[self.left.pop(0)])


def filled(value: Any, values: dict[str, str]) -> Any:
    text = json.dumps(value)
    for name, given in values.items():
        text = text.replace("{" + name + "}", given)
    return json.loads(text)


def options(agent: AgentSpec, url: str, cwd: Path) -> dict[str, Any]:
    assert agent.probe is not None
    found: dict[str, Any] = {
        "cwd": cwd,
        "model": agent.probe.model,
        "policy": Policy.all(),  # what it is not asked for, it must not do even so
        "timeout": 120,
        "keep": False,
        "env": {agent.probe.url_env: url, agent.probe.key_env: KEY},
    }
    return {**found, "program": installed(agent.name)} if agent.programs else found


def test_the_traps_work(hostile: HostileRepository) -> None:
    """Plain git in the tree runs what the tree says: the proof that the kit sees."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    (hostile.cwd / "seed.txt").write_text("changed\n")
    for words in (["status"], ["add", "--all"], ["commit", "-m", "x"]):
        subprocess.run(["git", *words], cwd=hostile.cwd, env=env, capture_output=True, timeout=60)
    seen = hostile.effects()
    assert {"included", "git-process"} <= {*seen}


@needs_sandbox
def test_the_traps_work_in_the_sandbox(hostile: HostileRepository) -> None:
    given = {"cwd": hostile.cwd, "model": MODEL, "policy": "all", "sandbox": "require"}
    sandbox = command_sandbox(prepare("corral", {**given, "env": {"GEMINI_API_KEY": KEY}}))
    assert sandbox is not None
    wrapped = sandbox.wrap()
    subprocess.run(
        [*wrapped.argv, "git", "status"], pass_fds=wrapped.passed, capture_output=True, timeout=60
    )
    for number in wrapped.passed:
        os.close(number)
    assert "included" in hostile.effects()
    assert os.listdir(hostile.canaries) == []  # nothing outside


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(ConfigError, match="not empty"), hostile_repository(tmp_path):
        pass


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [*cases()])
async def test_nothing_of_a_hostile_repository_takes_effect(
    name: str, hostile: HostileRepository
) -> None:
    await look_around(name, hostile)


@needs_sandbox
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [*cases()])
async def test_nothing_of_a_hostile_repository_takes_effect_in_the_sandbox(
    name: str, hostile: HostileRepository
) -> None:
    await look_around(name, hostile, sandbox="require")


async def look_around(name: str, hostile: HostileRepository, **more: Any) -> None:
    agent = AGENTS[name]
    async with ModelServer() as server:
        model = Curious(agent, hostile.cwd)
        lane = server.lane(name, model)
        refusal = pytest.raises(UntrustedFolder, match="inherit")  # a clear refusal is as good
        with refusal if name in REFUSES else contextlib.nullcontext():
            given = {**options(agent, lane.url, hostile.cwd), **more}
            async with corral.session(name, **given) as session:
                result = await session.run("/do Look around.")
            assert result.ok, result.error
        assert hostile.effects() == []
        assert hostile.added(model.requests) == []
        if agent.programs:  # the built-in agent reads a project's documents, as it says
            assert hostile.documents(model.requests) == []


@pytest.mark.deep
@pytest.mark.gemini_cli
async def test_nothing_takes_effect_in_a_pool(hostile: HostileRepository) -> None:
    agent = AGENTS["gemini-acp"]
    async with ModelServer() as server:
        model = Curious(agent, hostile.cwd)
        given = options(agent, server.lane("pool", model).url, hostile.cwd)
        async with corral.pool("gemini-acp", size=2, **given) as pool:
            results = await asyncio.gather(*(pool.run("Look around.") for _ in range(3)))
    assert [result.status for result in results] == ["success"] * 3
    assert hostile.effects() == []
    assert hostile.added(model.requests) == []


@pytest.mark.deep
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("gemini-acp", marks=pytest.mark.gemini_cli),
        pytest.param("codex-acp", marks=pytest.mark.codex),
    ],
)
async def test_a_pool_checks_the_settings_in_the_folder_of_every_prompt(
    name: str, hostile: HostileRepository, tmp_path: Path
) -> None:
    """The process is started in a harmless folder, and trusts the folders that it is given."""
    agent, clean = AGENTS[name], tmp_path / "clean"
    clean.mkdir()
    (clean / "sub").mkdir()
    async with ModelServer() as server:
        model = Curious(agent, hostile.cwd)
        given = options(agent, server.lane("pool", model).url, clean)
        given["mcp_servers"] = [notes_server(clean)]
        async with corral.pool(name, **given) as pool:
            first = await pool.run("Look around.")
            with pytest.raises(UntrustedFolder):
                await pool.run("Look around.", cwd=hostile.cwd)
            third = await pool.run("Look around.")
            assert pool.started == 1
    assert hostile.effects() == []
    assert hostile.added(model.requests) == []
    assert (first.status, third.status) == ("success", "success")


PIPELINE = """digraph d { start [shape=Mdiamond]; done [shape=Msquare]
    a [prompt="Look around."]
    b [shape=parallelogram, tool_command="echo more >> seed.txt; env"]
    start -> a -> b -> done }"""


def test_plain_git_waits_for_the_fifos(with_fifos: HostileRepository) -> None:
    """The proof that they are in the way."""
    words = ["git", "-c", "core.fsmonitor=false", "status"]
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(words, cwd=with_fifos.cwd, capture_output=True, timeout=1)


async def test_a_fifo_of_the_repository_blocks_nothing(with_fifos: HostileRepository) -> None:
    """Less than git is given for one call, which is a minute."""
    cwd = with_fifos.cwd
    changing = Call("shell", {"command": "echo more >> seed.txt; echo new > new.txt"})
    async with ModelServer() as server, asyncio.timeout(45):
        lane = server.lane("fifos", [Turn(calls=[changing]), Turn(text="done")])
        given = options(AGENTS["corral"], lane.url, cwd)
        async with corral.session("corral", **given) as session:
            result = await session.run("Change something.")
    assert result.ok, result.error
    changed = {(Path(file.path).name, file.kind) for file in result.files}
    assert {("seed.txt", "modified"), ("new.txt", "created")} <= changed
    assert with_fifos.effects() == []


@pytest.mark.timeout(300)
@pytest.mark.deep
def test_nothing_takes_effect_in_worktrees_of_batches_and_pipelines(
    with_fifos: HostileRepository, tmp_path: Path
) -> None:
    hostile = with_fifos
    (tmp_path / "p.dot").write_text(PIPELINE)
    (tmp_path / "tasks.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    model = Curious(AGENTS["corral"], hostile.cwd)
    (hostile.cwd / "corral.toml").unlink()  # it is refused, which is tested elsewhere
    with ModelServer(model) as server:
        batch = command(
            *("batch", str(tmp_path / "tasks.jsonl"), "-p", "task {{n}}", "--worktree"),
            *("--model", MODEL, "--approve", "edits", "-o", str(tmp_path / "out.jsonl")),
            cwd=hostile.cwd,
            env=server.env,
            timeout=120,
        )
        words = ("--repository", str(hostile.cwd), "--model", MODEL, "--approve", "edits")
        ran = command("pipeline", "run", "p.dot", *words, cwd=tmp_path, env=server.env, timeout=120)
    assert hostile.effects() == [], (batch.stderr, ran.stderr)
    assert hostile.added(model.requests) == []
    assert model.requests, (batch.stderr, ran.stderr)
    assert (batch.returncode, ran.returncode) == (0, 0), (batch.stderr, ran.stderr)
