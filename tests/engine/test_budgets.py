"""Budgets of pipelines: branches that run at the same time stay within them together."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from support.batches import MODEL, CountingModel

from corral import live, pipelines, runs
from corral._core.spending import BudgetLimits, Raise, Spent
from corral._engine import limits, query, run_list
from corral._engine.dbos import database
from corral._engine.payloads import RunConfig, RunInput
from corral._engine.worker import node_workflow
from corral._metering.budget import Reservation, Shortage
from corral._pipelines import loader
from corral._pipelines.events import RunEvent
from corral._pipelines.execution import handlers
from corral._pipelines.execution.handlers import NodeContext, NodeResources
from corral._pipelines.run_limits import run_limits
from corral._pipelines.scheduler.commands import RunNode
from corral._pipelines.scheduler.outcome import Outcome
from corral._publishing import control
from corral.errors import ConfigError, PipelineInvalid, ResumeLost
from corral.events import Error
from corral.pipelines import Graph
from corral.testing import Call, ModelServer, Request, Turn

BOTH = pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])

BRANCHES = """digraph work {
    %s
    start [shape=Mdiamond]
    fork  [shape=component]
    join  [shape=tripleoctagon]
    done  [shape=Msquare]
    start -> fork
    fork -> {a b c d}
    {a b c d} -> join
    join -> done
    a [prompt="task a"]
    b [prompt="task b"]
    c [prompt="task c", type=prompt]
    d [prompt="task d", type=prompt]
}"""
GATE = """digraph work {
    max_calls=1
    start [shape=Mdiamond]
    a     [prompt="task a"]
    b     [prompt="task b"]
    more  [shape=hexagon, label="Spend more?"]
    done  [shape=Msquare]
    start -> a -> b
    b -> done [condition="outcome=success"]
    b -> more [condition="outcome=fail"]
    more -> b [label="Yes", add_calls=1]
    more -> done [label="No"]
}"""


@pytest.fixture
def model(
    model_server: ModelServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> CountingModel:
    made = CountingModel(model_server, request.node.nodeid)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    return made


@BOTH
@pytest.mark.whole_program
@pytest.mark.deep_but_first
async def test_parallel_branches_do_not_exceed_the_budget_of_the_run(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    graph = BRANCHES % "max_calls=2"
    result = await pipelines.run(graph, model=MODEL, cwd=workspace, durable=durable)
    assert model.counts.total() == 2
    failed = [each for each in result.outcomes.values() if each.status == "fail"]
    assert len(failed) >= 2
    assert {each.failure_class for each in failed} == {"budget"}
    assert all("2 of max_calls=2 spent" in each.failure_reason for each in failed)


@BOTH
@pytest.mark.whole_program
@pytest.mark.deep_but_first
async def test_a_node_is_limited_within_the_run(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    forever = Turn(calls=[Call("read_file", {"path": "x"})])
    model.special = lambda _task, _request: forever
    text = """digraph work {
        max_calls=5
        start [shape=Mdiamond]
        a [prompt="task a", max_calls=2, error_policy=continue]
        b [prompt="task b", max_calls=9, error_policy=continue]
        done [shape=Msquare]
        start -> a -> b -> done
    }"""
    await pipelines.run(text, model=MODEL, cwd=workspace, durable=durable, policy="reads")
    assert model.counts == {"a": 2, "b": 3}


@BOTH
@pytest.mark.whole_program
@pytest.mark.deep_but_first
async def test_a_person_raises_the_budget_at_a_gate(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    interviewer = pipelines.Queued([pipelines.Answer(value="Yes")])
    result = await pipelines.run(
        GATE, model=MODEL, cwd=workspace, durable=durable, interviewer=interviewer
    )
    assert result.ok, result.reason
    assert model.counts == {"a": 1, "b": 1}


@pytest.mark.whole_program
async def test_a_paused_durable_run_continues_when_its_budget_is_raised(
    model: CountingModel, workspace: Path
) -> None:
    started: list[str] = []
    graph = BRANCHES % "max_calls=3; on_budget=pause"
    run = asyncio.create_task(
        pipelines.run(
            graph, model=MODEL, cwd=workspace, on_start=lambda name, _: started.append(name)
        )
    )
    while [each.status for each in await run_list.list_runs()] != ["paused"]:
        await asyncio.sleep(0.05)
    shown = await query.show(started[0])
    assert shown.status == "paused"
    assert shown.budget is not None
    assert shown.budget.as_state().calls == 3
    with pytest.raises(ConfigError, match="no max_cost"):
        await runs.budget(started[0], max_cost=1.0, add=True)
    await runs.budget(started[0], max_calls=1, add=True)
    result = await run
    assert result.ok, result.reason
    assert model.counts == {"a": 1, "b": 1, "c": 1, "d": 1}
    raised = await runs.budget(started[0], max_calls=1, add=True)
    assert raised is not None
    assert raised.max_calls == 5
    with pytest.raises(ResumeLost, match="no run"):
        await runs.budget("nothing-like-this", max_calls=1)
    store = Path(limits.store_name(database.find(None), started[0]))
    assert store.exists()
    await runs.prune(older_than=0)
    assert not store.exists()


CHILD = """digraph child {
    max_calls=1; on_budget=pause
    start [shape=Mdiamond]
    a [prompt="task a", type=prompt]
    b [prompt="task b", type=prompt]
    done [shape=Msquare]
    start -> a -> b -> done
}"""
PARENT = """digraph parent {
    start [shape=Mdiamond]
    call  [type=include, dotfile="child.dot"]
    done  [shape=Msquare]
    start -> call -> done
}"""


@pytest.mark.whole_program
@pytest.mark.deep
async def test_a_run_is_paused_while_the_run_nested_in_it_is(
    model: CountingModel, workspace: Path
) -> None:
    (workspace / "child.dot").write_text(CHILD)
    run = asyncio.create_task(pipelines.run(PARENT, model=MODEL, cwd=workspace))
    while [each.status for each in await run_list.list_runs()] != ["paused"]:
        await asyncio.sleep(0.05)
    (listed,) = await run_list.list_runs()
    shown = await query.show(listed.id)
    assert shown.status == "paused"
    assert shown.budget is not None
    assert shown.budget.limits.as_dict() == {"max_calls": 1}
    await runs.budget(listed.id, max_calls=1, add=True)
    result = await run
    assert result.ok, result.reason
    assert model.counts == {"a": 1, "b": 1}


@BOTH
async def test_a_raise_counts_although_nothing_happens_between_it_and_the_end_of_the_node(
    workspace: Path, durable: bool
) -> None:
    """The order that a race has only sometimes: the limit is raised, and before anything else
    learns of it, the node ends that has spent more than the limit was at first."""

    async def raise_and_end(work: pipelines.NodeContext) -> pipelines.Outcome:
        assert work.budget is not None
        if work.node.id == "b":
            work.budget.raise_limits(Raise(cost=1.0, tokens=1000))
        return pipelines.Outcome(cost_usd=0.9, tokens=900)

    pipelines.register("test.raises", raise_and_end)
    text = """digraph work {
        max_cost=1; max_total_tokens=1000
        node [type="test.raises"]
        start [type=start]
        done [type=exit]
        start -> a -> b -> done
    }"""
    result = await pipelines.run(text, cwd=workspace, durable=durable)
    assert result.ok, result.reason
    assert (result.cost_usd, result.tokens) == (1.8, 1800)


@BOTH
@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.whole_program
async def test_a_raise_that_was_confirmed_counts_in_every_race(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    """The run spends more than it could at first, and each call ends at once: nothing that the run
    learns after a node has ended may count for the limit."""
    text = """digraph work {
        max_total_tokens=3000; on_budget=pause
        start [shape=Mdiamond]
        a [prompt="task a", type=prompt]
        b [prompt="task b", type=prompt]
        done [shape=Msquare]
        start -> a -> b -> done
    }"""
    model.special = lambda task, _request: Turn(
        text=f"did {task}", usage={"input": 2000, "output": 100}
    )
    for _ in range(100):
        started: list[str] = []
        paused = asyncio.Event()

        def note(event: RunEvent, seen: asyncio.Event = paused) -> None:
            if isinstance(event, Error) and event.code == "budget_paused":
                seen.set()

        def begin(name: str, _: Path, names: list[str] = started) -> None:
            names.append(name)

        run = asyncio.create_task(
            pipelines.run(
                text,
                model=MODEL,
                cwd=workspace,
                durable=durable,
                on_start=begin,
                on_event=note,
            )
        )
        await paused.wait()
        if durable:
            await runs.budget(started[0], max_total_tokens=3000, add=True)
        else:
            while started[0] not in {each.id for each in live.runs()}:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(control.add_budget, started[0], tokens=3000)
        result = await run
        assert result.ok, result.reason
        assert result.tokens == 4200


@BOTH
async def test_the_reported_cost_of_a_registered_node_counts(
    workspace: Path, durable: bool
) -> None:
    calls: list[str] = []

    async def dear(work: pipelines.NodeContext) -> pipelines.Outcome:
        calls.append(work.node.id)
        return pipelines.Outcome(cost_usd=0.6)

    pipelines.register("test.dear", dear)
    text = """digraph work {
        max_cost=1
        node [type="test.dear"]
        start [type=start]
        done [type=exit]
        start -> a -> b -> c -> done
    }"""
    result = await pipelines.run(text, cwd=workspace, durable=durable)
    assert calls == ["a", "b"]
    assert result.outcomes["c"].failure_class == "budget"
    assert "$1.2000 of max_cost=1 spent" in result.reason


@BOTH
@pytest.mark.whole_program
@pytest.mark.deep_but_first
async def test_a_branch_that_has_worked_can_still_report(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    """One branch would spend everything while the other runs a command."""
    text = """digraph work {
        max_calls=4
        start [shape=Mdiamond]
        fork  [shape=component]
        join  [shape=tripleoctagon]
        done  [shape=Msquare]
        a [prompt="task a"]
        b [prompt="task b"]
        start -> fork
        fork -> {a b}
        {a b} -> join -> done
    }"""
    (workspace / "go").unlink(missing_ok=True)

    def work(task: str, request: Request) -> Turn | None:
        if task == "b":
            return Turn(calls=[Call("read_file", {"path": "x"})])
        if model.counts["a"] == 1:
            wait = "for i in $(seq 200); do [ -e go ] && break; sleep 0.1; done"
            return Turn(calls=[Call("shell", {"command": wait})])
        return None

    model.special = work
    run = asyncio.create_task(
        pipelines.run(text, model=MODEL, cwd=workspace, durable=durable, policy="all")
    )
    while model.counts["b"] < 2 and not run.done():
        await asyncio.sleep(0.05)
    (workspace / "go").touch()
    result = await run
    assert result.outcomes["a"].status == "success", result.outcomes["a"].failure_reason
    assert result.outcomes["b"].failure_class == "budget"
    assert model.counts == {"a": 2, "b": 2}


@BOTH
@pytest.mark.whole_program
@pytest.mark.deep_but_first
async def test_an_option_limits_the_run_as_a_whole(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    """Not each node; the smaller one of the option and the graph's attribute holds."""
    forever = Turn(calls=[Call("read_file", {"path": "x"})])
    model.special = lambda _task, _request: forever
    text = """digraph work {
        max_calls=9
        start [shape=Mdiamond]
        a [prompt="task a", max_calls=3, error_policy=continue]
        b [prompt="task b", error_policy=continue]
        c [prompt="task c", error_policy=continue]
        done [shape=Msquare]
        start -> a -> b -> c -> done
    }"""
    await pipelines.run(
        text,
        model=MODEL,
        cwd=workspace,
        durable=durable,
        task={"max_calls": 1},
        policy="reads",
        max_calls=4,
    )
    assert model.counts == {"a": 3, "b": 1}


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"max_cost": 0}, "must be more than 0"),
        ({"max_calls": "-1"}, "must be more than 0"),
        ({"max_total_tokens": "nan"}, "must be more than 0"),
        ({"max_total_tokens": "many"}, "is not a number"),
        ({"max_calls": 1, "on_budget": "wait"}, "it is stop or pause"),
    ],
)
def test_a_wrong_limit_of_a_graph_is_an_error(attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineInvalid, match=message):
        run_limits(Graph(name="g", attrs=attrs))
    [finding] = [
        each
        for each in pipelines.lint(Graph(name="g", attrs=attrs))
        if each.rule == "attribute_value"
    ]
    assert message in finding.message


@pytest.mark.parametrize(
    ("edge", "limit", "message"),
    [
        ("a -> b [add_calls=1]", "max_calls=1", "only the choices of a gate can"),
        ("more -> b [label=Yes, add_cost=1]", "max_calls=1", "but the graph has no max_cost"),
        ("more -> b [label=Yes, add_calls=0]", "max_calls=1", "must be more than 0"),
    ],
)
def test_a_raise_in_vain_is_an_error(edge: str, limit: str, message: str) -> None:
    text = GATE.replace('more -> b [label="Yes", add_calls=1]', edge).replace(
        "max_calls=1\n", f"{limit}\n", 1
    )
    with pytest.raises(PipelineInvalid, match=message):
        pipelines.load(text)


def test_workers_of_a_server_share_one_store(new_postgres: str) -> None:
    server = database.find(new_postgres)
    names = limits.create_budget(server, "run", BudgetLimits(max_calls=60))
    assert names == ("run",)
    made: list[int] = []

    def work(holder: str) -> None:
        budget = limits.open_budget(names, holder, server)
        assert budget is not None
        count = 0
        while True:
            found = budget.reserve(Spent(tokens=1, calls=1))
            if isinstance(found, Reservation):
                count += 1
                found.settle(Spent(tokens=1, calls=1))
            elif not found.must_wait:
                break
        made.append(count)

    threads = [threading.Thread(target=work, args=(f"run/{n}",)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(made) == 60
    assert limits.read_budget(server, "run").spent.calls == 60
    limits.raise_budget(server, "run", Raise(calls=1))
    last = limits.open_budget(names, "run/x", server)
    assert last is not None
    assert isinstance(last.reserve(Spent(calls=1)), Reservation)
    limits.settle_budget(names, "run/x", server)
    assert limits.read_budget(server, "run").spent.calls == 61
    limits.remove_budget(server, "run")
    refused = last.reserve(Spent(calls=1))
    assert isinstance(refused, Shortage)
    assert "was removed" in refused.text


def test_an_agent_host_has_no_database_server() -> None:
    with pytest.raises(ConfigError, match="agent host cannot use the budget"):
        limits.open_budget(("run",), "run/a.1", None)


@pytest.mark.parametrize("db", ["engine.db", "postgresql://localhost/runs"])
def test_the_owner_of_a_store_is_the_run_that_has_the_limits(db: str, tmp_path: Path) -> None:
    found = database.find(db if "://" in db else str(tmp_path / db))
    outer, child = (limits.store_name(found, run) for run in ("top", "top/call.1"))
    assert limits.find_owner(outer, "top") == "top"
    assert limits.find_owner(child, "top/call.1") == "top/call.1"
    assert limits.find_owner(outer, "top/call.1") == "top"
    assert limits.find_owner(outer, "top#2") == "top"


async def test_the_budget_of_a_node_names_the_run_whose_limits_are_the_nearest(
    tmp_path: Path,
) -> None:
    owners: list[str] = []

    async def look(work: NodeContext) -> Outcome:
        assert work.budget is not None
        owners.append(work.budget.owner)
        return Outcome()

    handlers.register("t.owner", look)
    stored = database.find(str(tmp_path / "engine.db"))
    most = BudgetLimits(max_calls=3)
    (outer,) = limits.create_budget(stored, "top", most)
    (inner,) = limits.create_budget(stored, "top/call.1", most)
    graph = loader.load(
        'digraph d { s [shape=Mdiamond]; e [shape=Msquare]; a [type="t.owner"]; s -> a -> e }'
    )
    for run, names in (("top", (outer,)), ("top/call.1", (outer,)), ("top/call.1", (outer, inner))):
        config = RunConfig(folder=str(tmp_path / "r"), workspace=str(tmp_path), budgets=names)
        run_input = RunInput(run_id=run, graph=graph, config=config)
        visit = RunNode(id="a.1", node="a", number=1, context={})
        async with NodeResources() as resources:
            outcome = await node_workflow.run_in_process(run_input, visit, 1, resources)
        assert outcome.ok, outcome
    assert owners == ["top", "top", "top/call.1"]
