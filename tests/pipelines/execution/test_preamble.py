"""The preamble of a prompt: what an agent learns about the run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.nodes import NodeHarness

from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.execution.preamble import SIZES, preamble, with_preamble
from corral._pipelines.execution.run_dir import RunDir
from corral.values import Json

pytest_plugins = ("support.node_fixtures",)

CONTEXT: dict[str, Json] = {
    "graph.goal": "Feed the cats",
    "outcome": "success",
    "last_response": "the first two hundred characters",
    "internal.thread.t": {"agent": "x", "resume_token": "y"},
    "tool.output": "line\n" * 2000,
    "plan.output": {"steps": ["a", "b"]},
    "current_node": "step",
}


def preamble_of(
    harness: NodeHarness, fidelity: str, context: dict[str, Json] = CONTEXT, **visit: Any
) -> str:
    work = harness.context(
        resources=NodeResources(), context=context, graph={"goal": "Feed the cats"}, **visit
    )
    return preamble(work, fidelity)


def test_the_first_node_gets_no_preamble(harness: NodeHarness) -> None:
    assert preamble_of(harness, "compact", {"graph.goal": "Feed the cats"}, previous="start") == ""
    work = harness.context(resources=NodeResources(), context={"graph.goal": "x"})
    assert with_preamble(work, "Go", "compact") == "Go"


def test_truncate_is_the_goal_and_the_run(harness: NodeHarness) -> None:
    text = preamble_of(harness, "truncate", previous="plan")
    assert "Goal: Feed the cats" in text
    assert "run-1" in text
    assert "plan.output" not in text


def test_compact_has_stages_and_context_without_internal_keys(
    harness: NodeHarness,
) -> None:
    text = preamble_of(harness, "compact", previous="plan")
    assert "- plan: success" in text
    assert '- plan.output: {"steps":["a","b"]}' in text
    assert "Answer of plan:\nthe first two hundred characters" in text
    assert "resume_token" not in text
    assert "current_node" not in text


@pytest.mark.parametrize("plan", ["plan", "plan/review", "../plan"])
def test_answer_and_stages_are_read_from_the_run_folder(harness: NodeHarness, plan: str) -> None:
    place = RunDir(harness.run_folder).make_visit_dir(f"{plan}.1", plan)
    (place / "response.md").write_text("the complete answer " * 50)
    checkpoint = {
        "completed_nodes": ["start", "look", plan],
        "node_outcomes": {"look": {"status": "partial_success"}, plan: {"status": "success"}},
    }
    (harness.run_folder / "checkpoint.json").write_text(json.dumps(checkpoint))
    text = preamble_of(harness, "summary:high", previous=plan)
    assert f"- look: partial_success\n- {plan}: success" in text
    assert "the complete answer " * 40 in text


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b'{"completed_nodes": 3}'])
def test_a_checkpoint_that_cannot_be_read_is_ignored(harness: NodeHarness, broken: bytes) -> None:
    harness.run_folder.mkdir()
    (harness.run_folder / "checkpoint.json").write_bytes(broken)
    assert "- plan: success" in preamble_of(harness, "compact", previous="plan")


def test_each_fidelity_has_its_size(harness: NodeHarness) -> None:
    much: dict[str, Json] = {**CONTEXT, **{f"key.{n}": "word " * 500 for n in range(100)}}
    sizes = {name: len(preamble_of(harness, name, much, previous="plan")) for name in SIZES}
    assert all(sizes[name] <= SIZES[name] for name in SIZES)
    assert (
        sizes["truncate"] < sizes["summary:low"] < sizes["summary:medium"] < sizes["summary:high"]
    )


def test_full_without_a_session_gets_a_summary(harness: NodeHarness) -> None:
    assert preamble_of(harness, "full", previous="plan") == preamble_of(
        harness, "summary:high", previous="plan"
    )


def test_an_unknown_fidelity_is_treated_as_compact(harness: NodeHarness) -> None:
    assert preamble_of(harness, "vivid", previous="plan") == preamble_of(
        harness, "compact", previous="plan"
    )
