"""Simulated runs: nothing outside is touched, and a script leads the run along any path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from corral import pipelines
from corral._pipelines import node_kinds, simulation
from corral._pipelines.dot_parser import parse
from corral.errors import ConfigError

FLOW = """digraph flow {
    start [shape=Mdiamond]  done [shape=Msquare]
    plan  [prompt="Plan"]
    tests [shape=parallelogram, tool_command="touch ran; exit 1"]
    save  [type=write_file, path="saved.txt", content="x"]
    load  [type=read_file, path="gone.txt", key=loaded]
    call  [type=http, url="http://127.0.0.1:1/", status_key=code]
    each  [type=for_each, items="{{loaded}}", tool_command="touch each"]
    data  [type=json_extract, path="x", key=x]
    gate  [shape=hexagon, label="Ship it?"]
    check [shape=diamond]
    start -> plan -> tests -> check
    check -> save [condition="outcome=success"]
    check -> plan [condition="outcome=fail"]
    save -> load -> call -> each -> data -> gate
    gate -> done [label="[A] Approve"]
    gate -> plan [label="[R] Revise"]
}"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("durable", [False, True])
def test_simulate_all_touches_nothing_and_reaches_the_exit(workspace: Path, durable: bool) -> None:
    result = pipelines.run_sync(
        FLOW, simulate="all", durable=durable, cwd=workspace, db=str(workspace.parent / "runs.db")
    )
    assert (result.status, result.reason) == ("success", "")
    assert result.completed[-2:] == ["gate", "done"]
    assert list(workspace.iterdir()) == []


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.deep_but_first
def test_a_script_gives_outcomes_labels_and_outputs_per_visit(
    workspace: Path, durable: bool
) -> None:
    script = workspace.parent / "script.json"
    script.write_text(
        json.dumps(
            {
                "tests": ["fail", {"outcome": "success", "output": "all passed"}],
                "plan": {"output": '{"x": 7}'},
                "gate": [{"label": "Revise", "output": "once more"}, {"label": "Approve"}],
            }
        )
    )
    result = pipelines.run_sync(
        FLOW, script=script, durable=durable, cwd=workspace, db=str(workspace.parent / "runs.db")
    )
    assert result.status == "success"
    loop = ["plan", "tests", "check", "save", "load", "call", "each", "data", "gate"]
    assert result.completed == ["start", "plan", "tests", "check", *loop, *loop, "done"]
    context = result.context
    assert (context["x"], context["tool.output"], context["tool.exit_code"]) == (7, "all passed", 0)
    assert context["code"] == 200
    assert list(workspace.iterdir()) == []


def test_with_simulated_agents_only_the_commands_run(tmp_path: Path) -> None:
    result = pipelines.run_sync(
        FLOW, simulate=True, script={"gate": "fail"}, durable=False, cwd=tmp_path
    )
    assert result.status == "fail"
    assert (tmp_path / "ran").exists()


def test_a_scripted_failure_is_final_and_has_its_reason(tmp_path: Path) -> None:
    text = """digraph g { start [shape=Mdiamond] done [shape=Msquare] a [max_retries=9]
        start -> a -> done }"""
    script = {"a": {"outcome": "fail", "reason": "no disk", "failure_class": "transient"}}
    result = pipelines.run_sync(text, script=script, durable=False, cwd=tmp_path)
    assert result.status == "fail"
    assert "no disk" in result.reason
    assert result.context["failure_class"] == "transient"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ({"plann": "fail"}, "there is no node plann"),
        ({"gate": {"label": "Maybe"}}, "gate has no choice 'Maybe'"),
        ({"check": "fail"}, "it has no outcome of its own"),
        ({"plan": {"outcom": "fail"}}, "unknown field `outcom`"),
        ({"plan": 3}, "plan:"),
    ],
)
def test_a_script_with_a_mistake_is_refused(script: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        simulation.build("all", script, parse(FLOW))


def test_a_script_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        simulation.build("all", tmp_path / "gone.json", parse(FLOW))
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ConfigError, match="is not a JSON object"):
        simulation.build("all", tmp_path / "list.json", parse(FLOW))


def test_only_nodes_that_compute_values_run_in_a_simulation() -> None:
    pure = {name for name, kind in node_kinds.KINDS.items() if kind.is_pure}
    assert pure.isdisjoint({"tool", "http", "read_file", "write_file", "for_each", "include"})
    assert {"set", "switch", "json_extract", "assert"} <= pure
