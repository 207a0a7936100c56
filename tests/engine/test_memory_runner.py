"""Runs in memory, with handlers that the tests register."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from support.scheduler_driver import graph_of

from corral._engine import memory_runner
from corral._engine.memory_runner import MemoryRun
from corral._engine.payloads import PipelineOutput
from corral._pipelines import events
from corral._pipelines.events import CheckpointSaved, RunEvent, StepRetrying
from corral._pipelines.execution import handlers
from corral._pipelines.execution.handlers import NodeContext, NodeResources
from corral._pipelines.execution.interviewers import AutoApprove, Queued
from corral._pipelines.graph import Graph
from corral._pipelines.scheduler.commands import Answer, Question
from corral._pipelines.scheduler.outcome import Outcome, failed
from corral.errors import StorageFailed
from corral.events import Text

T = TypeVar("T")


class Stage:
    """What the nodes of type ``step`` do, by the node's id."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.at_work = 0
        self.most = 0
        self.ended: list[str] = []
        self.acts: dict[str, Callable[[NodeContext], Awaitable[Outcome | None]]] = {}

    async def step(self, work: NodeContext) -> Outcome | None:
        self.ran.append(work.visit.id)
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        try:
            act = self.acts.get(work.node.id)
            if act is None:
                await asyncio.sleep(0)
                return None
            return await act(work)
        finally:
            self.at_work -= 1
            self.ended.append(work.visit.id)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()

    async def step(work: NodeContext) -> Outcome | None:
        return await made.step(work)

    handlers.register("step", step)
    yield made
    assert made.at_work == 0, "something was left at work"


def steps(body: str) -> Graph:
    return graph_of(f"node [type=step]; s [type=start]; e [type=exit]; {body}")


def run_async(work: Awaitable[T]) -> T:
    """Run with a time limit. Fails if a task is left in the loop."""

    async def scenario() -> T:
        async with asyncio.timeout(60):
            result = await work
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        return result

    return asyncio.run(scenario())


def simulated() -> NodeResources:
    return NodeResources(simulate=True)


def run(body: str, **given: object) -> PipelineOutput:
    return run_async(memory_runner.MemoryRun(steps(body), resources=simulated(), **given).drive())  # type: ignore[arg-type]


async def wait_forever(_work: NodeContext) -> Outcome | None:
    await asyncio.Event().wait()
    return None


def outcomes(*results: Outcome) -> Callable[[NodeContext], Awaitable[Outcome | None]]:
    left = list(results)

    async def act(_work: NodeContext) -> Outcome | None:
        return left.pop(0) if len(left) > 1 else left[0]

    return act


def test_a_run_reaches_its_end(stage: Stage) -> None:
    stage.acts["a"] = outcomes(Outcome(context_updates={"x": 1}, cost_usd=0.5, tokens=3))
    result = run("s -> a -> b -> e", values={"given": True})
    assert result.ok
    assert stage.ran == ["a.1", "b.1"]
    assert result.completed == ["s", "a", "b", "e"]
    assert (result.context["x"], result.context["given"]) == (1, True)
    assert (result.cost_usd, result.tokens) == (0.5, 3)


def test_a_run_without_a_folder_writes_nothing(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    assert run("s -> a -> b -> e").ok
    assert sorted(tmp_path.rglob("*")) == before


def test_built_in_nodes_have_a_temporary_folder_during_the_run(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    graph = steps('s -> t -> e; t [type=tool, tool_command="echo hello"]')
    result = run_async(memory_runner.MemoryRun(graph, resources=NodeResources()).drive())
    assert str(result.context["tool.output"]).strip() == "hello"
    assert not any(scratch.iterdir())


def test_a_node_is_retried_and_its_costs_are_added(stage: Stage) -> None:
    received: list[RunEvent] = []
    stage.acts["a"] = outcomes(
        Outcome(status="fail", retryable=True, cost_usd=0.5, failure_reason="busy"),
        Outcome(cost_usd=0.25),
    )
    result = run("a [max_retries=2]; s -> a -> e", on_event=received.append)
    assert result.ok
    assert stage.ran == ["a.1", "a.1"]
    assert result.cost_usd == 0.75
    assert result.outcomes["a"].attempts == 2
    [retrying] = [event for event in received if isinstance(event, StepRetrying)]
    assert (retrying.node, retrying.attempt, retrying.reason) == ("a", 1, "busy")
    assert 0.1 <= retrying.delay <= 0.3


def test_branches_run_in_parallel(stage: Stage) -> None:
    arrived: list[str] = []
    both = asyncio.Event()

    async def meet(work: NodeContext) -> Outcome | None:
        arrived.append(work.node.id)
        if len(arrived) == 2:
            both.set()
        await both.wait()
        return None

    stage.acts = {"a": meet, "b": meet}
    body = "p [type=parallel]; f [type=fan_in]; s -> p; p -> a -> f; p -> b -> f; f -> e"
    assert run(body).ok
    assert stage.most == 2


def test_the_first_success_stops_the_other_branches(stage: Stage) -> None:
    stage.acts = {"a": wait_forever, "c": wait_forever}
    body = "p [type=parallel, join_policy=first_success]; f [type=fan_in]; s -> p; f -> e;"
    result = run(body + "p -> a -> f; p -> b -> f; p -> c -> f")
    assert result.ok
    assert set(stage.ended) == {"a.1", "b.1", "c.1"}


def deaf(hears: type[BaseException]) -> Callable[[NodeContext], Awaitable[Outcome | None]]:
    """Ignores cancellation."""

    async def act(_work: NodeContext) -> Outcome | None:
        while True:
            try:
                await asyncio.Event().wait()
            except hears:
                continue

    return act


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the final state
@pytest.mark.parametrize("hears", [asyncio.CancelledError, BaseException])
def test_a_branch_that_does_not_stop_blocks_neither_the_run_nor_the_loop(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hears: type[BaseException],
) -> None:
    monkeypatch.setattr(memory_runner, "STOP_TIMEOUT", 0.05)
    handlers.register("deaf", deaf(hears))
    handlers.register("step", ignore_cancellation)
    body = "p [type=parallel, join_policy=first_success]; f [type=fan_in]; s -> p; f -> e;"
    body += "a [type=deaf]; p -> a -> f; p -> b -> f"
    with ThreadPoolExecutor(1) as apart:  # a loop that never ends must not block the tests
        given = memory_runner.MemoryRun(
            steps(body), resources=simulated(), folder=tmp_path / "run", run_id="r"
        ).drive()
        result = apart.submit(asyncio.run, given).result(30)
    assert result.ok
    message = "node 'a' of r did not stop within 0.05 s"
    assert message in caplog.text
    assert message in (tmp_path / "run" / "checkpoint.json").read_text()


async def ignore_cancellation(_work: NodeContext) -> Outcome | None:
    await asyncio.sleep(0)
    return None


def test_the_interviewer_is_asked(stage: Stage) -> None:
    body = "g [type=human]; s -> g; g -> a [label=Yes]; g -> b [label=No]; a -> e; b -> e"
    assert run(body, interviewer=AutoApprove()).completed == ["s", "g", "a", "e"]
    assert run(body, interviewer=Queued(["no"])).completed == ["s", "g", "b", "e"]
    unanswered = run(body)
    assert unanswered.status == "fail"
    assert "there is no interviewer to ask: g" in unanswered.reason


class Silent:
    async def ask(self, question: Question) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError("never")


class Broken:
    async def ask(self, question: Question) -> Answer:
        raise TimeoutError("the line is dead")


@pytest.mark.parametrize("interviewer", [Silent(), None])
def test_a_gate_takes_its_default_at_the_timeout(stage: Stage, interviewer: Silent | None) -> None:
    body = "g [type=human, human.timeout=20ms, human.default_choice=No]; s -> g;"
    body += "g -> a [label=Yes]; g -> b [label=No]; a -> e; b -> e"
    assert run(body, interviewer=interviewer).completed == ["s", "g", "b", "e"]


def test_an_interviewer_that_raises_fails_the_gate(stage: Stage) -> None:
    body = "g [type=human, human.timeout=60s]; s -> g; g -> a [label=Yes]; a -> e"
    result = run(body, interviewer=Broken())
    assert "the line is dead" in result.reason


CHILD = "digraph c { s [type=start]; e [type=exit]; w [type=step]; s -> w -> e }"


def test_a_child_gets_the_context_and_returns_its_own(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "child.dot").write_text(CHILD)
    seen: list[object] = []

    async def work_in_child(work: NodeContext) -> Outcome | None:
        seen.append(work.context["x"])
        return Outcome(context_updates={"y": 2}, cost_usd=0.5)

    stage.acts["w"] = work_in_child
    received: list[RunEvent] = []
    result = run(
        "i [type=include, dotfile=child.dot]; s -> i -> b -> e",
        workspace=tmp_path,
        values={"x": 1},
        folder=tmp_path / "run",
        run_id="r",
        on_event=received.append,
    )
    assert result.ok, result.reason
    assert seen == [1]
    assert result.context["y"] == 2
    assert result.cost_usd == 0.5
    assert {event.run_id for event in received} == {"r", "r/i.1"}
    assert (tmp_path / "run" / "i" / "child" / "checkpoint.json").exists()


def test_a_missing_or_recursive_child_fails_its_node(stage: Stage, tmp_path: Path) -> None:
    result = run(
        "i [type=include, dotfile=gone.dot]; s -> i; i -> e [condition=x]", workspace=tmp_path
    )
    assert "cannot read the pipeline" in result.reason
    loop = 'digraph l { s [type=start]; e [type=exit]; i [type=include, dotfile="loop.dot"];'
    loop += 's -> i; i -> e [condition="outcome=success"] }'
    (tmp_path / "loop.dot").write_text(loop)
    body = 'i [type=include, dotfile=loop.dot]; s -> i; i -> e [condition="outcome=success"]'
    result = run(body, workspace=tmp_path)
    assert "nested more than" in result.reason


def test_a_manager_observes_its_child_and_stops_it(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "child.dot").write_text(CHILD)
    stage.acts["w"] = wait_forever
    body = """m [type="stack.manager_loop", manager.poll_interval=1ms, dotfile=child.dot,
        manager.stop_condition="stack.child.current_node=w"]; s -> m -> e"""
    result = run(body, workspace=tmp_path)
    assert result.ok, result.reason
    assert stage.ended == ["w.1"]
    assert result.context["stack.child.status"] == "running"


def test_events_are_one_stream_with_the_node_of_each(stage: Stage) -> None:
    async def speak(work: NodeContext) -> Outcome | None:
        work.emit(Text(delta="hello", seq=1))
        return None

    stage.acts["a"] = speak

    received: list[RunEvent] = []
    assert run("s -> a -> e", run_id="r", on_event=received.append).ok
    assert [(type(event).__name__, event.node) for event in received] == [
        ("PipelineStarted", None),
        ("StepStarted", "s"),
        ("StepCompleted", "s"),
        ("StepStarted", "a"),
        ("Text", "a"),
        ("StepCompleted", "a"),
        ("StepStarted", "e"),
        ("StepCompleted", "e"),
        ("PipelineCompleted", None),
    ]
    pipeline = [event for event in received if not isinstance(event, Text)]
    assert [event.seq for event in pipeline] == [*range(1, 9)]
    assert all(event.ts > 0 and event.run_id == "r" for event in pipeline)


@pytest.mark.parametrize("after", range(6))
def test_cancelling_the_task_after_any_event_stops_all_nodes(stage: Stage, after: int) -> None:
    stage.acts = {"a": wait_forever, "b": wait_forever}
    body = "p [type=parallel]; f [type=fan_in]; s -> p; p -> a -> f; p -> b -> f; f -> e"

    async def scenario() -> MemoryRun:
        count, is_enough = 0, asyncio.Event()

        def listen(_event: RunEvent) -> None:
            nonlocal count
            count += 1
            if count > after:
                is_enough.set()

        running = MemoryRun(steps(body), resources=simulated(), on_event=listen)
        task = asyncio.create_task(running.drive())
        await is_enough.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return running

    running = run_async(scenario())
    assert running.scheduler.state.finish is not None
    assert running.scheduler.state.finish.status == "cancelled"


def test_a_cancelled_run_has_the_status_cancelled(stage: Stage, tmp_path: Path) -> None:
    async def scenario() -> PipelineOutput:
        async def cancel(work: NodeContext) -> Outcome | None:
            running.cancel("enough")
            return await wait_forever(work)

        stage.acts["a"] = cancel
        graph = steps("s -> a -> e")
        running = MemoryRun(graph, resources=simulated(), folder=tmp_path / "run")
        return await running.drive()

    result = run_async(scenario())
    assert (result.status, result.reason) == ("cancelled", "enough")
    assert stage.ended == ["a.1"]
    saved = json.loads((tmp_path / "run" / "checkpoint.json").read_text())
    assert (saved["status"], saved["current_node"]) == ("cancelled", "a")


def test_cancelling_the_task_stops_the_run(stage: Stage, tmp_path: Path) -> None:
    started = asyncio.Event()

    async def act(work: NodeContext) -> Outcome | None:
        started.set()
        return await wait_forever(work)

    stage.acts["a"] = act

    async def scenario() -> None:
        graph = steps("s -> a -> e")
        task = asyncio.create_task(
            memory_runner.MemoryRun(graph, resources=simulated(), folder=tmp_path / "run").drive()
        )
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_async(scenario())
    assert stage.ended == ["a.1"]
    saved = json.loads((tmp_path / "run" / "checkpoint.json").read_text())
    assert saved["status"] == "cancelled"


def test_the_run_directory_has_the_files_of_the_run(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stage.acts["a"] = outcomes(failed("no"), Outcome())
    body = 's -> a; a -> a [condition="outcome=fail"]; a -> e [condition="outcome=success"]'
    run(body, folder=folder)
    saved = json.loads((folder / "checkpoint.json").read_text())
    assert saved["completed_nodes"] == ["s", "a", "a", "e"]
    assert json.loads((folder / "a" / "status.json").read_text())["outcome"] == "success"
    assert json.loads((folder / "visits/a.1/status.json").read_text())["outcome"] == "fail"
    lines = (folder / "events.ndjson").read_bytes().splitlines()
    names = [type(events.from_json(line)).__name__ for line in lines]
    assert names[0] == "PipelineStarted"
    assert "CheckpointSaved" in names
    assert names[-1] == "PipelineCompleted"


def test_every_node_that_ended_has_its_status(stage: Stage, tmp_path: Path) -> None:
    body = "p [type=parallel]; f [type=fan_in]; c [type=conditional]; s -> c -> p; f -> g; "
    body += "g [type=wait.human]; g -> e [label=Go]; p -> a -> f; p -> b -> f"
    result = run(body, folder=tmp_path / "run", interviewer=AutoApprove())
    assert sorted(result.completed) == sorted("scpabfge")
    for node in result.completed:
        status = json.loads((tmp_path / "run" / node / "status.json").read_text())
        assert status["outcome"] == "success", node


def test_a_checkpoint_exists_while_a_node_runs(stage: Stage, tmp_path: Path) -> None:
    stage.acts["b"] = wait_forever
    path = tmp_path / "run" / "checkpoint.json"

    async def scenario() -> list[str]:
        seen: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

        def listen(event: RunEvent) -> None:
            if isinstance(event, CheckpointSaved) and not seen.done():
                saved = json.loads(path.read_text())
                if saved["current_node"] == "b":
                    seen.set_result(saved["completed_nodes"])

        graph = steps("s -> a -> b -> e")
        running = MemoryRun(graph, resources=simulated(), folder=path.parent, on_event=listen)
        task = asyncio.create_task(running.drive())
        completed = await seen
        running.cancel()
        await task
        return completed

    assert run_async(scenario()) == ["s", "a"]


def test_every_node_has_a_checkpoint_however_fast_it_is(stage: Stage, tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(200)]
    run(f"s -> {' -> '.join(names)} -> e", folder=tmp_path / "run")
    lines = (tmp_path / "run" / "events.ndjson").read_bytes().splitlines()
    found = [events.from_json(line) for line in lines]
    saved = [event.node for event in found if isinstance(event, CheckpointSaved)]
    assert saved == ["s", *names, "e"]
    assert isinstance(found[-1], events.PipelineCompleted)


def test_loop_restart_moves_the_old_round_aside(stage: Stage, tmp_path: Path) -> None:
    stage.acts["b"] = outcomes(failed("no"), Outcome())
    body = 's -> a -> b; b -> a [condition="outcome=fail", loop_restart=true]; b -> e'
    result = run(body, folder=tmp_path / "run")
    assert result.completed == ["a", "b", "e"]
    old = json.loads((tmp_path / "run/rounds/1/checkpoint.json").read_text())
    assert old["completed_nodes"] == ["s", "a", "b"]
    assert old["node_outcomes"]["b"]["status"] == "fail"
    assert (tmp_path / "run/b").resolve().name == "b.2"


def test_a_folder_that_cannot_be_created_is_rejected_before_the_run(
    stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed):
        run("s -> a -> e", folder=tmp_path / "file" / "run")
    assert stage.ran == []


def test_a_folder_that_breaks_during_the_run_does_not_end_it(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    async def break_it(work: NodeContext) -> Outcome | None:
        shutil.rmtree(folder)
        folder.write_text("in the way")
        return Outcome(context_updates={"precious": 1})

    stage.acts["a"] = break_it
    with pytest.raises(StorageFailed) as caught:
        run("s -> a -> c -> e; c [type=conditional]", folder=folder)
    assert caught.value.result.ok
    assert caught.value.result.context["precious"] == 1


def test_a_folder_that_is_gone_is_made_again(stage: Stage, tmp_path: Path) -> None:
    async def lose_it(work: NodeContext) -> Outcome | None:
        shutil.rmtree(tmp_path / "run")
        return None

    stage.acts["a"] = lose_it
    assert run("s -> a -> b -> e", folder=tmp_path / "run").ok
    assert (tmp_path / "run" / "checkpoint.json").exists()
    assert (tmp_path / "run" / "b" / "status.json").exists()


def test_an_event_listener_that_raises_ends_the_run_cleanly(stage: Stage) -> None:
    stage.acts["a"] = wait_forever

    def listen(event: RunEvent) -> None:
        if event.node == "b":
            raise ZeroDivisionError("not my day")

    body = "p [type=parallel]; s -> p; p -> a -> e; p -> b -> e"
    with pytest.raises(ZeroDivisionError):
        run(body, on_event=listen)
