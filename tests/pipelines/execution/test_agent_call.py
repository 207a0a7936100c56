"""What a node does at a rate limit: by its attributes, the run's options or ``corral.toml``."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from support.nodes import NodeHarness, ScriptedModel

from corral._pipelines.execution import attempt as execution_attempt
from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.execution.node_options import limit_rule, node_rule
from corral._pipelines.graph import Node
from corral.options import RunOptions
from corral.testing import Turn, fail

pytest_plugins = ("support.node_fixtures",)


@pytest.fixture
def waits_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusted = tmp_path / "trusted.toml"
    trusted.write_text('[defaults]\non_limit = "wait"\nmax_wait = "2h"\n')
    monkeypatch.setenv("CORRAL_CONFIG", str(trusted))


def at_limit(rule: RunOptions | None) -> tuple[str, float] | None:
    return (rule.on_limit, rule.max_wait) if rule is not None else None


@pytest.mark.usefixtures("waits_by_file")
def test_the_node_wins_over_the_run_and_the_run_over_the_file() -> None:
    plain = Node("a", {})
    assert at_limit(limit_rule(plain, {}, "corral")) == ("wait", 7200.0)
    assert at_limit(limit_rule(plain, {"on_limit": "fail"}, "corral")) == ("fail", 7200.0)
    node = Node("a", {"on_limit": "fallback:codex", "max_wait": "1h"})
    rule = limit_rule(node, {"on_limit": "fail", "max_wait": 5.0}, "corral")
    assert at_limit(rule) == ("fallback:codex", 3600.0)


def test_by_default_a_node_fails_at_a_limit() -> None:
    assert at_limit(limit_rule(Node("a", {}), {}, "corral")) == ("fail", 86400.0)


@pytest.mark.usefixtures("waits_by_file")
async def test_a_durable_node_goes_on_later_if_only_the_file_says_wait(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    script = [fail(429, "slow down", retry_after=500)]
    env = {"GEMINI_API_KEY": "key-of-this-test-only"}  # a limit is kept for the whole process
    async with scripted_model.resources(script, env=env) as resources:
        work = harness.context(resources=resources, attrs={"prompt": "hi", "timeout": "60s"})
        began = time.time()
        outcome = await execution_attempt.attempt(msgspec.structs.replace(work, longest_hold=0.5))
    assert outcome.resets_at is not None, outcome
    assert began + 490 < outcome.resets_at < time.time() + 510


@pytest.mark.usefixtures("waits_by_file")
async def test_only_nodes_that_run_an_agent_have_a_rule(harness: NodeHarness) -> None:
    async with NodeResources() as resources:
        tool = harness.context(resources=resources, attrs={"type": "tool", "tool_command": "true"})
        assert node_rule(tool) is None
        agent = harness.context(resources=resources, attrs={"prompt": "hi"})
        assert at_limit(node_rule(agent)) == ("wait", 7200.0)
    async with NodeResources(simulate=True) as resources:
        assert node_rule(harness.context(resources=resources, attrs={"prompt": "hi"})) is None


@pytest.mark.usefixtures("waits_by_file")
async def test_a_limit_without_an_end_is_waited_for_longer_each_time(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    waits: list[float] = []
    for attempt in (1, 6):
        env = {"GEMINI_API_KEY": f"key-of-this-test-{attempt}"}
        async with scripted_model.resources([Turn(status=429)], env=env) as resources:
            work = harness.context(resources=resources, attrs={"prompt": "hi"})
            work = msgspec.structs.replace(work, longest_hold=0.5, attempt=attempt)
            began = time.time()
            outcome = await execution_attempt.attempt(work)
        assert outcome.resets_at is not None, outcome
        waits.append(outcome.resets_at - began)
    assert waits[0] * 5 < waits[1]
