"""The rule ``on_crash``: what a restarted attempt does."""

from __future__ import annotations

from pathlib import Path

from corral import events
from corral._engine import node_runner
from corral._pipelines.graph import Node
from corral._pipelines.scheduler.commands import RunNode
from corral._pipelines.scheduler.outcome import Outcome


def test_an_unknown_on_crash_policy_fails_the_node(tmp_path: Path) -> None:
    visit = RunNode(id="a.1", node="a", number=1, context={})
    outcome = node_runner.apply_crash_rule(tmp_path, Node("a", {"on_crash": "unknown"}), visit, 1)
    assert isinstance(outcome, Outcome)
    assert "write rerun, fail, resume" in outcome.failure_reason


def test_an_interrupted_agent_continues_in_its_session(tmp_path: Path) -> None:
    node = Node("fix", {"prompt": "Fix it.", "on_crash": "resume"})
    visit = RunNode(id="fix.1", node="fix", number=1, context={})
    first = node_runner.apply_crash_rule(tmp_path, node, visit, 1)
    assert isinstance(first, tuple)
    assert first[0].text("prompt") == "Fix it."
    assert (first[1].fidelity, first[1].thread) == (
        "full",
        "fix.1",
    )  # so that its session is stored
    event = events.to_json(events.Text(run_id="2026-s.1", agent="codex-cli", delta="I look"))
    (tmp_path / "events.ndjson").write_bytes(event + b'\n{"type": "te')
    second = node_runner.apply_crash_rule(tmp_path, node, visit, 1)
    assert isinstance(second, tuple)
    assert second[0].text("prompt") == node_runner.GO_ON + "Fix it."
    session = second[1].context["internal.thread.fix.1"]
    assert session == {"agent": "codex-cli", "resume_token": "2026-s"}
    # The next attempt starts from the beginning.
    third = node_runner.apply_crash_rule(tmp_path, node, visit, 2)
    assert isinstance(third, tuple)
    assert third[0].text("prompt") == "Fix it."
