"""Fixtures for tests of nodes: ``harness`` and ``scripted_model``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.nodes import NodeHarness, ScriptedModel

from corral.testing import ModelServer


@pytest.fixture
def harness(tmp_path: Path, workspace: Path) -> NodeHarness:
    return NodeHarness(tmp_path / "run", workspace)


@pytest.fixture
def scripted_model(model_server: ModelServer, request: pytest.FixtureRequest) -> ScriptedModel:
    name = "".join(c if c.isalnum() else "-" for c in request.node.nodeid)
    return ScriptedModel(model_server, name)
