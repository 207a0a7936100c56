"""``corral.pipelines``: an exact list of names, light to import; runs from Python."""

from __future__ import annotations

import ast
import asyncio
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from corral import pipelines, runs
from corral._engine import query, run_list
from corral._pipelines import events
from corral._pipelines.execution import interviewers
from corral.errors import ConfigError, ProcessFailed

NAMES = [
    "Answer", "AutoApprove", "Callback", "Choice", "Console", "DotError", "Edge", "Finding",
    "Graph", "Interviewer", "LintError", "Node", "NodeContext", "NodeResources", "Outcome",
    "PipelineKwargs", "PipelineResult", "Question", "Queued", "Recording", "as_dot", "as_svg",
    "as_text", "events", "handler", "lint", "load", "parse", "register", "run", "run_sync",
]  # fmt: skip
GATE = """digraph gate {
    start [shape=Mdiamond]
    ask [shape=hexagon, label="Ship it?"]
    ship [prompt="ship"]
    done [shape=Msquare]
    start -> ask
    ask -> ship [label="[Y] Yes"]
    ask -> done [label="[N] No"]
    ship -> done
}"""


HOMES: dict[str, str] = {
    name: home for home, names in vars(pipelines)["_HOMES"].items() for name in names.split()
}


def test_the_public_names_are_these() -> None:
    assert pipelines.__all__ == NAMES
    assert dir(pipelines) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_the_object_of_its_module(name: str) -> None:
    home = HOMES[name]
    module = import_module(f"{home}{name}") if home.endswith(".") else None
    assert getattr(pipelines, name) is (module or getattr(import_module(home), name))


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(pipelines.__file__ or "").read_text("utf-8"))
    seen: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.If):
            for line in node.body:
                assert isinstance(line, ast.ImportFrom)
                seen |= {alias.name: line.module or "" for alias in line.names}
    assert seen == {name: home.removesuffix(".") for name, home in HOMES.items()}


def test_an_unknown_public_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'corral\.pipelines' has no attribute 'nothing'"):
        _ = pipelines.nothing  # pyright: ignore


def test_parsing_and_linting_load_no_engine_and_no_network() -> None:
    code = (
        "import sys\nfrom corral import pipelines\n"
        "pipelines.lint(pipelines.parse('digraph x { a -> b }'))\n"
        "pipelines.as_svg(pipelines.parse('digraph x { a -> b }'))\n"
        "heavy = {'dbos', 'sqlalchemy', 'httptools', 'ssl', 'click', 'rich', 'corral._engine'}\n"
        "print(*heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("\n", "")


@pytest.mark.parametrize("durable", [True, False])
def test_a_run_reports_its_events_and_its_result(durable: bool, workspace: Path) -> None:
    received: list[events.RunEvent] = []
    started: list[tuple[str, Path]] = []
    result = pipelines.run_sync(
        GATE,
        durable=durable,
        simulate=True,
        cwd=workspace,
        interviewer=interviewers.Queued(["yes"]),
        on_event=received.append,
        on_start=lambda name, folder: started.append((name, folder)),
    )
    assert result.ok, result.reason
    assert result.completed == ["start", "ask", "ship", "done"]
    assert result.text == "[Simulated] Response for stage: ship"
    assert started == [(result.run, Path(result.folder))]
    assert isinstance(received[0], events.PipelineStarted)
    assert isinstance(received[-1], events.PipelineCompleted)


async def test_a_durable_run_waits_for_an_answer_and_continues(workspace: Path) -> None:
    db = str(workspace / "runs.db")
    result = await pipelines.run(GATE, simulate=True, cwd=workspace, db=db)
    assert result.status == "waiting"
    assert [question.node for question in result.questions] == ["ask"]
    with pytest.raises(ConfigError, match="not a choice of ask"):
        await runs.answer(result.run, "perhaps", db=db)
    await runs.answer(result.run, "n", db=db)
    result = await runs.resume(result.run, db=db)
    assert result.completed == ["start", "ask", "done"]
    second = await runs.fork(result.run, "ask", db=db, interviewer=interviewers.AutoApprove())
    assert second.completed == ["start", "ask", "ship", "done"]
    assert {run.id for run in await run_list.list_runs(db=db)} == {result.run, second.run}
    assert (await query.show(second.run, db=db)).status == "success"


@pytest.mark.parametrize("time", ["first", "second"])
@pytest.mark.deep_but_first
def test_two_runs_share_the_engine_of_their_process(time: str, workspace: Path) -> None:
    """Two runs at the same time, in each of two event loops."""

    async def both() -> list[str]:
        one = pipelines.run(
            GATE, simulate=True, cwd=workspace, interviewer=interviewers.AutoApprove()
        )
        two = pipelines.run(
            GATE, simulate=True, cwd=workspace, interviewer=interviewers.AutoApprove()
        )
        return [result.status for result in await asyncio.gather(one, two)]

    assert asyncio.run(both()) == ["success", "success"]


def test_check_raises_if_the_run_fails(workspace: Path) -> None:
    text = GATE.replace('prompt="ship"', 'shape=parallelogram, tool_command="exit 3"')
    text = text.replace("ship -> done", 'ship -> done [condition="outcome=success"]')
    given = {"durable": False, "cwd": workspace, "interviewer": interviewers.AutoApprove()}
    assert pipelines.run_sync(text, **given).status == "fail"  # type: ignore[arg-type]
    with pytest.raises(ProcessFailed, match="exited with 3"):
        pipelines.run_sync(text, check=True, **given)  # type: ignore[arg-type]


def test_a_durable_run_rejects_options_that_it_cannot_store(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="cannot store"):
        pipelines.run_sync(GATE, simulate=True, cwd=workspace, config={"x": object()})
    with pytest.raises(ConfigError, match="in memory"):
        pipelines.run_sync(GATE, simulate=True, cwd=workspace, ask=lambda _: "deny")


def test_an_option_that_does_not_exist_is_refused(workspace: Path) -> None:
    options: dict[str, Any] = {"cwd": workspace, "durable": False}
    with pytest.raises(ConfigError, match="unknown option 'simulat': did you mean 'sim"):
        pipelines.run_sync(GATE, simulat=True, **options)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="task has no limit 'max_costs'"):
        pipelines.run_sync(GATE, **options | {"task": {"max_costs": 1}})


NO_JSON: list[tuple[Any, str]] = [
    (object(), "contains a object"),
    (float("nan"), "is nan"),
    (2**1024, "over 1.8e308"),
    ("a\udcffb", "lone surrogate"),
    ({"deep": {1: 2}}, "not text"),
    (json.loads("[" * 101 + "]" * 101), "more than 100 deep"),
]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("number", range(len(NO_JSON)))
def test_values_that_are_not_json_are_rejected_before_the_run(
    durable: bool, number: int, workspace: Path
) -> None:
    value, wrong = NO_JSON[number]
    with pytest.raises(ConfigError, match=f"'k'.*{wrong}"):
        pipelines.run_sync(GATE, durable=durable, simulate=True, cwd=workspace, values={"k": value})


def test_a_goal_that_is_not_text_is_rejected(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="lone surrogate"):
        pipelines.run_sync(GATE, simulate=True, cwd=workspace, goal="\udcff")


@pytest.mark.parametrize("durable", [True, False])
def test_a_run_folder_that_cannot_be_written_is_rejected_before_the_run(
    durable: bool, workspace: Path
) -> None:
    started: list[str] = []
    (workspace / "file").touch()
    for place in ("/proc/cannot/be/created", workspace / "file", workspace / "file" / "run"):
        with pytest.raises(ConfigError, match="the run folder"):
            pipelines.run_sync(
                GATE,
                durable=durable,
                simulate=True,
                cwd=workspace,
                run_dir=place,
                on_start=lambda name, _: started.append(name),
            )
    assert not started


@pytest.mark.parametrize(
    "key", ["internal.thread.main", "internal.worktree.a", "parallel.branches", "outcome"]
)
async def test_a_value_that_corral_itself_sets_is_refused(key: str, tmp_path: Path) -> None:
    """It could name a session of somebody else to resume."""
    with pytest.raises(ConfigError, match=f"the value '{key}' cannot be set: corral itself"):
        await pipelines.run(GATE, values={"good": 1, key: {}}, durable=False, cwd=tmp_path)
