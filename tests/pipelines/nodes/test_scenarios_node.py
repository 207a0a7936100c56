"""The node ``scenarios`` judges the workspace; the graph's other nodes cannot read its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from support.nodes import NodeHarness
from support.repositories import git
from support.sandbox import needs_sandbox

from corral import errors
from corral._pipelines.execution import preflight
from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.execution.node_options import sandbox_for
from corral._pipelines.loader import load_unchecked
from corral._pipelines.scheduler.outcome import Outcome
from corral._system import paths
from corral.run_kwargs import RunKwargs

pytestmark = needs_sandbox

CANARY = "CANARY-5d1f"


@pytest.fixture
def harness(tmp_path: Path, workspace: Path) -> NodeHarness:
    return NodeHarness(tmp_path / "run", workspace)


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    folder = tmp_path / "held-out"
    folder.mkdir()
    for number in range(4):
        text = f'class = "files"\ncommand = "echo {CANARY}; test -f {number}.txt"\n'
        (folder / f"{CANARY}-{number}.toml").write_text(text)
    return folder


async def judge(harness: NodeHarness, held_out: Path, **given: Any) -> Outcome:
    attrs = {"type": "scenarios", "scenarios": str(held_out), **given.pop("attrs", {})}
    return await harness.attempt("judge", attrs=attrs, **given)


@pytest.mark.parametrize("is_repository", [True, False])
async def test_the_context_has_counts_and_classes_only(
    harness: NodeHarness, workspace: Path, held_out: Path, is_repository: bool
) -> None:
    if is_repository:
        git(workspace, "init", "--quiet")
        (workspace / "a.txt").write_text("")
        git(workspace, "add", ".")
        git(workspace, "commit", "--quiet", "--message=first")
    for number in range(3):
        (workspace / f"{number}.txt").write_text("")
    outcome = await judge(harness, held_out, attrs={"threshold": 0.9})
    updates = outcome.context_updates
    assert (outcome.status, outcome.retryable) == ("fail", False)
    assert updates["scenarios.satisfied"] == 3
    assert updates["scenarios.fraction"] == 0.75
    assert updates["scenarios.classes"] == {"files": {"satisfied": 3, "failed": 1, "missing": 0}}
    assert updates["scenarios.summary"] == outcome.failure_reason
    assert CANARY not in repr(outcome)
    folder = harness.run_folder
    assert not [each for each in folder.rglob("*") if each.is_file() and CANARY in each.read_text()]
    report = paths.home() / "scenarios" / "run-1.jsonl"
    assert report.stat().st_mode & 0o077 == 0
    line = json.loads(report.read_text())
    assert [each["outcome"] for each in line["scenarios"]] == ["satisfied"] * 3 + ["failed"]
    assert CANARY in line["scenarios"][0]["output"]


async def test_the_threshold_decides(harness: NodeHarness, workspace: Path, held_out: Path) -> None:
    for number in range(3):
        (workspace / f"{number}.txt").write_text("")
    outcome = await judge(harness, held_out, attrs={"threshold": "0.75"})
    assert outcome.status == "success"
    assert {path.name for path in workspace.iterdir()} == {"0.txt", "1.txt", "2.txt"}


async def test_a_worse_state_is_put_back(
    harness: NodeHarness, workspace: Path, held_out: Path
) -> None:
    (workspace / "0.txt").write_text("first")
    (workspace / "1.txt").write_text("")
    first = await judge(harness, held_out)
    (workspace / "1.txt").unlink()
    (workspace / "other.txt").write_text("")
    second = await judge(harness, held_out, context=first.context_updates)
    assert second.context_updates["scenarios.restored"] is True
    assert "50% are satisfied" in str(second.context_updates["scenarios.note"])
    assert sorted(path.name for path in workspace.iterdir()) == ["0.txt", "1.txt"]
    known = {**first.context_updates, **second.context_updates}
    (workspace / "2.txt").write_text("")
    third = await judge(harness, held_out, context=known)
    assert (third.context_updates["scenarios.restored"], (workspace / "2.txt").exists()) == (
        False,
        True,
    )


async def test_the_files_stay_without_keep_best(
    harness: NodeHarness, workspace: Path, held_out: Path
) -> None:
    (workspace / "0.txt").write_text("")
    first = await judge(harness, held_out, attrs={"keep_best": "false"})
    (workspace / "0.txt").unlink()
    await judge(harness, held_out, context=first.context_updates, attrs={"keep_best": "false"})
    assert list(workspace.iterdir()) == []


async def test_a_folder_that_became_wrong_names_no_scenario(
    harness: NodeHarness, held_out: Path
) -> None:
    (held_out / f"{CANARY}.txt").write_text("")
    outcome = await judge(harness, held_out)
    assert outcome.status == "fail"
    assert "cannot be read any more" in outcome.failure_reason
    assert CANARY not in repr(outcome)


def graph_with(held_out: Path, other: str = "type=sleep, duration=1s") -> str:
    return f"""digraph g {{
        start [shape=Mdiamond]
        judge [type=scenarios, scenarios="{held_out}"]
        other [{other}]
        done [shape=Msquare]
        start -> judge -> other -> done
    }}"""


async def check(text: str, workspace: Path, **options: Any) -> None:
    async with NodeResources(options=cast("RunKwargs", options)) as resources:
        preflight.check(load_unchecked(text), resources, workspace, {})


async def test_mistakes_are_found_before_the_run(
    workspace: Path, held_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check(graph_with(held_out), workspace)
    monkeypatch.setenv("HELD_OUT", str(held_out))
    await check(graph_with(Path("$HELD_OUT")), workspace)
    inside = workspace / "held-out"
    inside.mkdir()
    (inside / "a.toml").write_text('command = "true"')
    with pytest.raises(errors.ConfigError, match="in the workspace"):
        await check(graph_with(inside), workspace)
    with pytest.raises(errors.ConfigError, match="does not exist"):
        await check(graph_with(tmp_path / "none"), workspace)
    off = 'shape=parallelogram, tool_command="true", sandbox=off'
    with pytest.raises(errors.ConfigError, match="sandbox=off, and the run hides folders"):
        await check(graph_with(held_out, off), workspace)
    child = 'type=include, dotfile="child.dot"'
    with pytest.raises(errors.ConfigError, match="runs another pipeline"):
        await check(graph_with(held_out, child), workspace)
    await check(graph_with(held_out, child), workspace, hidden=[str(held_out)])
    (held_out / "q.toml").write_text('prompt = "?"\nrubric = "yes"')
    with pytest.raises(errors.ConfigError, match="no model is given"):
        await check(graph_with(held_out), workspace)


async def test_the_context_cannot_name_the_folder(harness: NodeHarness, held_out: Path) -> None:
    outcome = await harness.attempt(
        "judge",
        attrs={"type": "scenarios", "scenarios": "{{folder}}"},
        context={"folder": str(held_out)},
    )
    assert outcome.status == "fail"


async def test_commands_of_the_graph_get_a_sandbox_that_hides_the_folder(
    harness: NodeHarness, held_out: Path
) -> None:
    command = 'shape=parallelogram, tool_command="true"'
    graph = load_unchecked(graph_with(held_out, command))
    async with NodeResources() as resources:
        work = harness.context(resources=resources)
        work = msgspec.structs.replace(work, graph=graph, node=graph.nodes["other"])
        sandbox = sandbox_for(work, ())
    assert sandbox is not None
    assert str(held_out) in sandbox.box.hidden
