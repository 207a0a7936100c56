"""The real OpenCode, led to a scripted model of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import ClassVar

import pytest
from support.installed_agents import installed
from support.real_agents import KEY, RealAgent, forget_keys

from corral.options import RunKwargs
from corral.testing import ModelServer


class OpenCode(RealAgent):
    agent = "opencode"
    default_options: ClassVar[RunKwargs] = {"model": "custom/scripted"}

    def env(self, url: str) -> dict[str, str]:
        return {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{url}/v1"}


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_keys("opencode", monkeypatch)


PINNED = next(Path(__file__).parents[2].glob("tools/ripgrep/node_modules/@vscode/*/bin/rg"), None)


@pytest.fixture(autouse=True)
def ripgrep(monkeypatch: pytest.MonkeyPatch) -> str:
    """On PATH, where OpenCode looks for it before it would download one."""
    if PINNED is not None:
        monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{PINNED.parent}")
    found = shutil.which("rg")
    if found is None:
        pytest.fail("there is no ripgrep: run `make tools/ripgrep/node_modules/.ready`")
    return found


@pytest.fixture(scope="session")
def opencode_program() -> str:
    return installed("opencode")


@pytest.fixture
def opencode(
    opencode_program: str,
    model_server: ModelServer,
    workspace: Path,
    request: pytest.FixtureRequest,
) -> OpenCode:
    return OpenCode(opencode_program, model_server, workspace, request.node.nodeid)
