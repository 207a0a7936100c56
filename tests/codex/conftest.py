"""The real Codex, led to a scripted model of its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from support.installed_agents import installed
from support.real_agents import KEY, RealAgent, forget_keys

from corral.options import RunKwargs
from corral.testing import ModelServer


class Codex(RealAgent):
    agent = "codex"
    default_options: ClassVar[RunKwargs] = {"model": "gpt-5.5", "retries": 1}

    def env(self, url: str) -> dict[str, str]:
        return {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{url}/v1"}


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_keys("codex", monkeypatch)


@pytest.fixture(scope="session")
def codex_program() -> str:
    return installed("codex")


@pytest.fixture
def codex(
    codex_program: str, model_server: ModelServer, workspace: Path, request: pytest.FixtureRequest
) -> Codex:
    return Codex(codex_program, model_server, workspace, request.node.nodeid)


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Bound and never listened on: whoever connects is refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]
