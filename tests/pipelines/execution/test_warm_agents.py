"""Nodes of the real Gemini CLI: one warm process serves many of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.nodes import NodeHarness, processes_in
from support.scripted_agent import child_pids

from corral._pipelines.execution.handlers import NodeResources
from corral._system import paths
from corral.run_kwargs import RunKwargs
from corral.testing import Call, Request, Turn, say

if TYPE_CHECKING:
    from support.real_agents import RealAgent

pytest_plugins = ("support.node_fixtures",)
pytestmark = [pytest.mark.gemini_cli, pytest.mark.timeout(240)]


def options_of(gemini: RealAgent, script: object) -> RunKwargs:
    """Options for node resources, without the ones that each node sets itself."""
    options = gemini.options(script)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return {key: value for key, value in options.items() if key not in ("cwd", "timeout")}  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


@pytest.mark.deep
async def test_nodes_share_a_warm_process_and_no_process_is_left(
    harness: NodeHarness, gemini: RealAgent, workspace: Path
) -> None:
    def answer(request: Request) -> Turn:
        if "write" in request.last_text and not request.tool_results:
            content = {"file_path": "made.txt", "content": "made"}
            return Turn(calls=[Call("write_file", content)])
        return say(f"answer to {request.last_text.split()[-1]}")

    attrs = {"prompt": "question", "timeout": "3m"}
    async with NodeResources(options=options_of(gemini, answer)) as resources:
        async with asyncio.timeout(200):
            outcomes = await asyncio.gather(
                *(
                    harness.attempt(
                        f"n{n}", resources=resources, attrs={**attrs, "prompt": f"question {n}"}
                    )
                    for n in range(4)
                )
            )
            assert resources.pool_count == 1
            assert len(child_pids()) == 1
            writes = await harness.attempt(
                "w", resources=resources, attrs={**attrs, "prompt": "write it", "policy": "edits"}
            )
            assert resources.pool_count == 2
            typed = await harness.attempt(
                "t",
                resources=resources,
                attrs={
                    **attrs,
                    "prompt": 'say {"n": 1}',
                    "output_schema": json.dumps({"type": "object"}),
                },
            )
            assert resources.pool_count == 2
    assert [outcome.failure_reason for outcome in (*outcomes, writes)] == [""] * 5
    assert [outcome.context_updates["last_response"] for outcome in outcomes] == [
        f"answer to {n}" for n in range(4)
    ]
    assert (workspace / "made.txt").read_text() == "made"
    assert harness.read("response.md", "n2") == "answer to 2"
    assert all(outcome.tokens for outcome in outcomes)
    assert typed.status == "fail"  # it never answered with JSON, and had its own process
    assert processes_in(workspace) == []
    assert child_pids() == []
    assert list(paths.sessions().iterdir()) == []


@pytest.mark.deep
async def test_a_prompt_that_mentions_its_directory_gets_its_own_process(
    harness: NodeHarness, gemini: RealAgent
) -> None:
    command = 'echo \'{"outcome": "fail", "notes": "red"}\' > "$ATTRACTOR_STAGE_DIR/status.json"'

    def answer(request: Request) -> Turn:
        if request.tool_results:
            return say("done")
        return Turn(calls=[Call("run_shell_command", {"command": command})])

    async with NodeResources(options=options_of(gemini, answer)) as resources, asyncio.timeout(200):
        outcome = await harness.attempt(
            resources=resources,
            attrs={"prompt": "Say in status.json how it went", "policy": "all"},
        )
        assert resources.pool_count == 0
    assert (outcome.status, outcome.failure_reason) == ("fail", "red"), outcome
    assert child_pids() == []


@pytest.mark.deep
async def test_a_post_hook_of_another_agent_runs_from_its_events(
    harness: NodeHarness, gemini: RealAgent, workspace: Path
) -> None:
    def answer(request: Request) -> Turn:
        if request.tool_results:
            return say("done")
        return Turn(calls=[Call("write_file", {"file_path": "made.txt", "content": "made"})])

    async with NodeResources(options=options_of(gemini, answer)) as resources, asyncio.timeout(200):
        outcome = await harness.attempt(
            resources=resources,
            attrs={
                "prompt": "Write it",
                "policy": "edits",
                "tool_hooks.post": "cat >> seen.ndjson; echo >> seen.ndjson",
            },
        )
    assert outcome.status == "success", outcome
    seen = [json.loads(line) for line in (workspace / "seen.ndjson").read_text().splitlines()]
    assert [(each["hook"], each["status"], each["node"]) for each in seen] == [
        ("post", "success", "step")
    ]
