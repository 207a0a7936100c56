"""Child pipelines: included, or observed by a manager."""

from __future__ import annotations

import pytest
from support.scheduler_driver import FAIL, SchedulerDriver, run_scheduler

from corral._pipelines.scheduler.commands import RunChild, Steer, Stop, Wait, Woken
from corral._pipelines.scheduler.outcome import Outcome
from corral.values import Json

INCLUDE = "s -> i -> b -> e; i [type=include, dotfile=child.dot];"
MANAGER = "s -> m -> e; m [shape=house, manager.poll_interval=5s]; stack.child_dotfile=child.dot;"


def only(run: SchedulerDriver, kind: type[RunChild] | type[Wait]) -> RunChild | Wait:
    [found] = [order for order in run.waiting.values() if isinstance(order, kind)]
    return found


def wake(run: SchedulerDriver, **seen: Json) -> None:
    id = only(run, Wait).id
    del run.waiting[id]
    run.send(Woken(id=id, seen=seen))


def test_an_included_pipeline_gets_the_context_and_returns_its_own() -> None:
    run = SchedulerDriver(INCLUDE, values={"x": 1})
    child = only(run, RunChild)
    assert isinstance(child, RunChild)
    assert (child.id, child.dotfile, child.context) == ("i.1", "child.dot", {"x": 1})
    run.end("i", Outcome(context_updates={"y": 2}))
    assert run.visit("b").context["y"] == 2
    assert run.visit("b").context["stack.child.status"] == "completed"


def test_the_outcome_of_a_child_is_the_outcome_of_its_node() -> None:
    inner = run_scheduler(
        "s -> a -> e", {"a": Outcome(context_updates={"y": 2}, cost_usd=0.5, tokens=5)}
    )
    outcome = inner.scheduler.state.as_outcome()
    assert outcome == Outcome(context_updates={"y": 2}, cost_usd=0.5, tokens=5)
    broken = run_scheduler(
        "s -> a; a -> e [condition=never]", {"a": FAIL}
    ).scheduler.state.as_outcome()
    assert (broken.status, broken.failure_reason) == ("fail", "node 'a' failed: broken")
    assert SchedulerDriver("s -> a -> e").scheduler.state.as_outcome().status == "fail"


def test_an_include_that_names_no_pipeline_fails() -> None:
    run = run_scheduler("s -> i; i [type=include]; i -> e [condition=never]")
    assert "no child pipeline is named" in run.finish.reason


def test_a_manager_starts_its_child_and_observes_it_repeatedly() -> None:
    run = SchedulerDriver(MANAGER)
    child, wait = only(run, RunChild), only(run, Wait)
    assert isinstance(child, RunChild)
    assert isinstance(wait, Wait)
    assert (child.id, wait.seconds, wait.child) == ("m.1", 5.0, "m.1")
    wake(run, status="running", current_node="build")
    assert run.context["stack.child.current_node"] == "build"
    run.end("m.1", Outcome(context_updates={"built": True}))
    assert [type(o) for o in run.last if isinstance(o, Stop)] == [Stop]
    assert run.context["stack.child.status"] == "completed"
    assert run.context["built"] is True
    assert run.status == "success"


def test_a_manager_fails_with_its_child() -> None:
    run = SchedulerDriver(MANAGER.replace("m -> e", "m; m -> e [condition=never]"))
    run.end("m.1", FAIL)
    assert run.context["stack.child.status"] == "failed"
    assert run.finish.reason == "node 'm' failed: broken"


def test_the_stop_condition_ends_the_child() -> None:
    run = SchedulerDriver(MANAGER + 'm [manager.stop_condition="stack.child.current_node=enough"]')
    wake(run, current_node="more")
    wake(run, current_node="enough")
    assert [o.id for o in run.last if isinstance(o, Stop)] == ["m.1"]
    assert run.status == "success"
    assert run.scheduler.state.outcomes["m"].status == "success"


@pytest.mark.parametrize(
    "condition",
    ["stack.child.outcome=success", "context.stack.child.outcome!=fail", "!stack.child.outcome"],
)
@pytest.mark.parametrize("seen", ["running", "failed"])
def test_a_condition_on_the_outcome_waits_for_the_end_of_the_child(
    condition: str, seen: str
) -> None:
    run = SchedulerDriver(f'{MANAGER} m [manager.stop_condition="{condition}"]; m -> m2 -> m')
    wake(run, status="running", outcome="success")
    wake(run, status=seen)
    assert "m.1" in run.waiting
    run.end("m.1", FAIL)
    assert run.context["stack.child.outcome"] == "fail"
    assert run.finish.reason == "node 'm' failed: broken"


def test_a_child_that_was_seen_after_its_end_is_not_stopped() -> None:
    run = SchedulerDriver(f'{MANAGER} m [manager.stop_condition="stack.child.status!=running"]')
    wake(run, status="failed")
    run.end("m.1", FAIL)
    assert run.status == "fail"


def test_the_outcome_of_an_earlier_child_does_not_stop_the_next() -> None:
    run = SchedulerDriver(
        f'{MANAGER} m [manager.stop_condition="stack.child.outcome=success"]; m -> m [weight=1]'
    )
    run.end("m.1")
    assert "stack.child.outcome" not in run.context
    wake(run, status="running")
    assert "m.2" in run.waiting


def test_a_manager_fails_after_max_cycles() -> None:
    run = SchedulerDriver(
        MANAGER + 'm [manager.max_cycles=3]; m -> x [condition="outcome=fail"]; x -> e'
    )
    for _ in range(3):
        wake(run)
    assert [o.id for o in run.last if isinstance(o, Stop)] == ["m.1"]
    assert run.scheduler.state.outcomes["m"].failure_reason == "max cycles exceeded: 3"
    assert run.path == ["x"]


def test_without_autostart_no_child_is_started() -> None:
    body = (
        MANAGER + 'm [stack.child_autostart=false, manager.stop_condition="stack.manager.cycle=2"]'
    )
    run = SchedulerDriver(body)
    wait = only(run, Wait)
    assert isinstance(wait, Wait)
    assert wait.child == ""
    wake(run)
    assert run.status == "success"


def test_a_manager_with_a_prompt_steers() -> None:
    run = SchedulerDriver(MANAGER + 'm [prompt="help it", manager.actions="observe,steer,wait"]')
    assert run.path == []
    wake(run, status="running")
    assert run.path == ["m"]
    run.end("m.1~2.steer", Outcome(context_updates={"advice": "go on"}))
    steer = [order for order in run.last if isinstance(order, Steer)]
    assert steer == [Steer(child="m.1", updates={"advice": "go on"})]
    assert only(run, Wait)
    wake(run)
    run.end("m.1")  # the child ends while the manager's prompt runs
    assert [o.id for o in run.last if isinstance(o, Stop)] == ["m.1~3.steer"]
    assert run.status == "success"


def test_a_manager_that_does_not_observe_sees_nothing() -> None:
    run = SchedulerDriver(MANAGER + "m [manager.actions=wait]")
    wake(run, current_node="build")
    assert "stack.child.current_node" not in run.context
