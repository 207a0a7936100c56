"""The same graph gives the same events and the same result in memory and on a database."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from corral import pipelines
from corral._pipelines.events import CheckpointSaved, PipelineEvent, RunEvent
from corral._pipelines.execution.interviewers import Callback
from corral._pipelines.scheduler.commands import Question
from corral.values import Json

ENDS = "start [shape=Mdiamond]; exit [shape=Msquare];"
GRAPHS = {
    "a retry": """start -> a -> exit; a [shape=parallelogram, max_retries=2,
        tool_command="test -e again || { touch again; exit 3; }"]""",
    "a failure": 'start -> a -> exit; a [shape=parallelogram, tool_command="echo no; exit 3"]',
    "a loop": """start -> a; a -> a [condition="outcome=fail"]; a -> exit
        a [shape=parallelogram, tool_command="test -e again || { touch again; exit 3; }"]""",
    "a restart": """start -> a -> b; b -> a [condition="outcome=fail", loop_restart=true]
        b -> exit [condition="outcome=success"]
        b [shape=parallelogram, tool_command="test -e again || { touch again; exit 3; }"]""",
    "a gate": """start -> ask; ask [shape=hexagon]; ask -> a [label="[Y] Yes"]
        ask -> exit [label="[N] No"]; a -> exit""",
    "a gate that expires": """start -> ask -> exit; ask -> a [label=Go]; a -> exit
        ask [shape=hexagon, human.timeout="20ms", human.default_choice=Go]""",
    "branches": """start -> p; p [shape=component, max_parallel=1]; f [shape=tripleoctagon]
        p -> a -> f; p -> b -> f; f -> exit""",
    "branches that meet": """start -> p; p [shape=component, max_parallel=1]; p -> a -> m
        p -> b -> m; p -> c -> m; m -> deploy -> exit
        c [shape=parallelogram, tool_command="exit 3"]""",
    "a branch that goes back": """start -> a -> p; p [shape=component, max_parallel=1]; p -> b -> m
        p -> c -> m; m -> deploy -> exit; b [shape=parallelogram, retry_target=a,
        tool_command="test -e again || { touch again; exit 3; }"]""",
    "a child that is gone": """start -> a -> c -> exit; c [type=include, dotfile="child.dot"]
        a [shape=parallelogram, tool_command="rm child.dot"]""",
    "a child": 'start -> c -> a -> exit; c [type=include, dotfile="child.dot"]',
}
MANAGER = """start -> m -> exit; m [shape=house, manager.poll_interval="20ms",
    stack.child_dotfile="fails.dot", manager.stop_condition="stack.child.outcome=success"]"""
FAILS = f"""digraph fails {{ {ENDS} start -> good -> bad -> exit
    bad [shape=parallelogram, tool_command="sleep 0.3; exit 1"] }}"""
CHILD = f"digraph child {{ {ENDS} start -> inner -> exit }}"


async def person(question: Question) -> str:
    """Says yes, but does not answer in time if there is a deadline."""
    if question.timeout is not None:
        await asyncio.Event().wait()
    return "Y"


def run(graph: str, cwd: Path, *, durable: bool) -> tuple[list[Json], list[Json], Json]:
    """The events of the run in order, the nodes that were saved, and the result. A run in memory
    reports that a node is saved when the file is written, so the order differs."""
    cwd.mkdir()
    (cwd / "child.dot").write_text(CHILD)
    (cwd / "fails.dot").write_text(FAILS)
    received: list[RunEvent] = []
    result = pipelines.run_sync(
        f"digraph g {{ {ENDS} {graph} }}",
        cwd=cwd,
        run_dir=cwd / "run",
        agent="gemini",
        simulate=True,
        interviewer=Callback(person),
        on_event=received.append,
        durable=durable,
        db=str(cwd / "runs.db") if durable else None,
    )
    name, place = result.run, str(cwd)

    def plain(value: object) -> dict[str, Json]:
        """Without what differs between any two runs."""
        text = msgspec.json.encode(value).decode().replace(name, "RUN").replace(place, "CWD")
        fields = msgspec.json.decode(text, type=dict[str, Json])
        for key in ("ts", "seq", "delay", "seconds", "duration", "folder"):
            fields.pop(key, None)
        return fields

    own = [event for event in received if isinstance(event, PipelineEvent)]
    own = [event for event in own if event.run_id == name]
    saved = [event.node for event in own if isinstance(event, CheckpointSaved)]
    return (
        [plain(event) for event in own if not isinstance(event, CheckpointSaved)],
        [*sorted({*saved}, key=str)],
        plain(result),
    )


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.deep_but_first
def test_runs_in_memory_and_durable_runs_agree(name: str, tmp_path: Path) -> None:
    in_memory = run(GRAPHS[name], tmp_path / "memory", durable=False)
    durable = run(GRAPHS[name], tmp_path / "durable", durable=True)
    assert in_memory == durable


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.deep_but_first
def test_a_manager_fails_with_its_child_whatever_it_waits_for(
    durable: bool, tmp_path: Path
) -> None:
    _, _, result = run(MANAGER, tmp_path / "run", durable=durable)
    assert isinstance(result, dict)
    context = result["context"]
    assert isinstance(context, dict)
    assert (result["status"], context["stack.child.outcome"]) == ("fail", "fail")
