"""Fixtures of the suite of real agents: the agent of a test, and a file in its workspace."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import pytest
from support.real_agents import RealAgent, remove_keys

from corral.testing import ModelServer

RIPGREP = next(Path(__file__).parents[2].glob("tools/ripgrep/node_modules/@vscode/*/bin/rg"), None)


@pytest.fixture(scope="session")
def copilot_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Copilot unpacks itself, which takes 235 MB and two seconds: once per worker."""
    return tmp_path_factory.mktemp("copilot-cache")


@pytest.fixture
def agent(
    model_server: ModelServer,
    workspace: Path,
    copilot_cache: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> RealAgent:
    """The agent that ``for_agents`` names."""
    remove_keys(monkeypatch)
    name: str = request.param
    env = {"COPILOT_CACHE_HOME": str(copilot_cache)} if name.startswith("copilot") else {}
    if name.startswith("opencode"):
        add_ripgrep_to_path(monkeypatch)
    return RealAgent(name, model_server, workspace, request.node.nodeid, env)


def add_ripgrep_to_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCode looks for ripgrep on PATH before it downloads one."""
    if RIPGREP is not None:
        monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{RIPGREP.parent}")
    if shutil.which("rg") is None:
        pytest.fail("ripgrep is missing: run `make tools/ripgrep/node_modules/.ready`")


@pytest.fixture
def two_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test that makes its own agents, of several vendors."""
    remove_keys(monkeypatch)
    add_ripgrep_to_path(monkeypatch)


@pytest.fixture
def seed(workspace: Path) -> Path:
    """A file that exists before the run."""
    file = workspace / "seed.txt"
    file.write_text("seed words\n")
    return file


@pytest.fixture
def sleep_time() -> str:
    """How long the commands of a test sleep: a number that no other process has."""
    return f"300.{uuid.uuid4().int}"
