"""The fixture ``ours``: the built-in agent with a scripted model."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builtin_agent import BuiltinAgent

from corral.testing import ModelServer


@pytest.fixture
def ours(
    model_server: ModelServer, workspace: Path, request: pytest.FixtureRequest
) -> BuiltinAgent:
    name = "".join(c if c.isalnum() else "-" for c in request.node.nodeid)
    return BuiltinAgent(model_server, workspace, name)
