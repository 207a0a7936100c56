"""The MCP Inspector's command line as a client."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.builtin_agent import COMMAND, MODELS, BuiltinAgent, model_env
from support.node22 import needs_node22, node22_folder

from corral.testing import say

pytest_plugins = ("support.builtin_agent_fixture",)
INSPECTOR = Path(__file__).parents[3] / "tools/inspector/node_modules/.bin/mcp-inspector"
needs_inspector = pytest.mark.skipif(
    not INSPECTOR.exists(), reason="no MCP Inspector (make tools/inspector/node_modules/.ready)"
)


@pytest.mark.deep
@needs_node22
@needs_inspector
def test_the_inspector_lists_the_tools_and_runs_an_agent(ours: BuiltinAgent) -> None:
    env = {**os.environ, "PATH": f"{node22_folder()}{os.pathsep}{os.environ['PATH']}"}
    given = {**model_env(ours.add_lane([say("It is fine.")])), "CORRAL_HOME": env["CORRAL_HOME"]}
    exports = "".join(f"export {name}={value}\n" for name, value in given.items())
    program = ours.workspace / "agents"
    options = f"mcp --agent corral --model {MODELS['gemini']}"
    argv = f'{COMMAND[0]} {COMMAND[1]} "{COMMAND[2]}" {options}'
    program.write_text(f"#!/bin/sh\n{exports}exec {argv}\n")
    program.chmod(0o700)

    def inspect(*arguments: str) -> Any:
        ended = subprocess.run(
            [str(INSPECTOR), "--cli", str(program), *arguments],
            cwd=ours.workspace, env=env, capture_output=True, check=True, timeout=120,
        )  # fmt: skip
        return json.loads(ended.stdout)

    names = [tool["name"] for tool in inspect("--method", "tools/list")["tools"]]
    assert names[:3] == ["list_agents", "run", "start"]
    call = ("--method", "tools/call", "--tool-name")
    result = inspect(*call, "run", "--tool-arg", "prompt=Review")
    assert result["content"][0]["text"].startswith("It is fine.")
