"""Parallel branches: each on its own copy of the context, joined at the fan-in."""

from __future__ import annotations

import pytest
from support.scheduler_driver import FAIL, SchedulerDriver, graph_of, run_scheduler

from corral._pipelines.scheduler.commands import (
    Answer,
    Answered,
    AskHuman,
    EmitEvent,
    Ended,
    RunNode,
    Stop,
)
from corral._pipelines.scheduler.outcome import Outcome
from corral._pipelines.scheduler.scheduler import Scheduler

FORK = "s -> p; p [shape=component]; f [shape=tripleoctagon]; f -> e;"
TWO = f"{FORK} p -> a -> f; p -> b -> f;"
PARTIAL = Outcome(status="partial_success")


def results(run: SchedulerDriver) -> dict[str, str]:
    results_list = run.context["parallel.results"]
    assert isinstance(results_list, list)
    found = {str(one["id"]): str(one["status"]) for one in results_list if isinstance(one, dict)}
    for branch, status in found.items():
        assert run.context[f"parallel.branch.{branch}.status"] == status
    return found


def test_branches_run_in_parallel_and_the_run_continues_at_the_fan_in() -> None:
    run = SchedulerDriver(TWO)
    assert set(run.waiting) == {"a.1", "b.1"}
    run.end("b")
    assert set(run.waiting) == {"a.1"}
    run.end("a")
    assert run.status == "success"
    assert run.completed == ["s", "b", "a", "p", "f", "e"]
    assert results(run) == {"a": "success", "b": "success"}
    assert run.context["parallel.fan_in.best_id"] == "a"
    assert run.context["parallel.fan_in.best_outcome"] == "success"


@pytest.mark.parametrize(
    ("script", "parallel", "fan_in"),
    [
        ({}, "success", "success"),
        ({"a": FAIL}, "partial_success", "success"),
        ({"a": FAIL, "b": FAIL}, "fail", "fail"),
        ({"a": PARTIAL}, "success", "success"),
    ],
)
def test_wait_all(script: dict[str, Outcome], parallel: str, fan_in: str) -> None:
    run = run_scheduler(TWO, script)
    outcomes = run.scheduler.state.outcomes
    assert (outcomes["p"].status, outcomes["f"].status) == (parallel, fan_in)


def test_if_every_branch_failed_the_failure_edge_of_the_fan_in_is_taken() -> None:
    run = run_scheduler(f'{TWO} f -> x [condition="outcome=fail"]; x -> e', {"a": FAIL, "b": FAIL})
    assert run.path == ["a", "b", "x"]
    assert run.scheduler.state.outcomes["f"].failure_reason == "every branch failed"


def test_first_success_stops_the_rest() -> None:
    run = SchedulerDriver(TWO + "p [join_policy=first_success]; p -> c -> f")
    run.end("b", FAIL)
    assert set(run.waiting) == {"a.1", "c.1"}
    run.end("c")
    assert [o.id for o in run.last if isinstance(o, Stop)] == ["a.1"]
    assert run.status == "success"
    assert results(run) == {"a": "cancelled", "b": "fail", "c": "success"}
    assert run.context["parallel.fan_in.best_id"] == "c"
    assert run.scheduler.state.outcomes["p"].status == "success"


def test_first_success_fails_if_no_branch_succeeds() -> None:
    run = run_scheduler(TWO + "p [join_policy=first_success]", {"a": FAIL, "b": FAIL})
    assert run.scheduler.state.outcomes["p"].status == "fail"


def test_at_most_max_parallel_branches_run_at_once() -> None:
    run = SchedulerDriver(
        f"{FORK} p [max_parallel=2]; p -> a -> f; p -> b -> f; p -> c -> d -> f; p -> x -> f"
    )
    assert list(run.waiting) == ["a.1", "b.1"]
    run.end("b")
    assert list(run.waiting) == ["a.1", "c.1"]
    run.end("c")
    assert list(run.waiting) == ["a.1", "d.1"]
    run.end("a")
    run.end("d")
    run.end("x")
    assert run.status == "success"


def test_by_default_four_branches_run_at_once() -> None:
    edges = "".join(f"p -> n{number} -> f;" for number in range(9))
    assert len(SchedulerDriver(FORK + edges).waiting) == 4


def test_branches_do_not_see_each_other() -> None:
    run = SchedulerDriver(
        f"{FORK} s -> p; p -> a -> c -> f; p -> b -> d -> f", values={"deep": [1]}
    )
    run.end("a", Outcome(context_updates={"x": "a", "deep": [2]}))
    run.end("b", Outcome(context_updates={"y": "b"}))
    assert run.visit("c").context["x"] == "a"
    assert "y" not in run.visit("c").context
    assert "x" not in run.visit("d").context
    assert run.visit("d").context["deep"] == [1]


def test_branches_share_no_objects() -> None:
    plan = Scheduler(graph_of(f"{FORK} p -> a -> c -> f; p -> b -> d -> f"))
    plan.start()
    plan.receive(Ended(id="a.1", outcome=Outcome(context_updates={"x": "a"})))
    [visit] = [
        o for o in plan.receive(Ended(id="b.1", outcome=Outcome())) if isinstance(o, RunNode)
    ]
    assert visit.node == "d"
    assert "x" not in visit.context
    assert "x" not in plan.state.context


def test_the_best_branchs_updates_win() -> None:
    script = {
        "a": Outcome(status="partial_success", context_updates={"x": "a", "only_a": 1}),
        "b": Outcome(context_updates={"x": "b", "score": 0.5}),
        "c": Outcome(context_updates={"x": "c", "score": 0.9}),
        "d": Outcome(status="fail", context_updates={"x": "d", "only_d": 1}),
    }
    run = run_scheduler(f"{TWO} p -> c -> f; p -> d -> f;", script)
    assert run.context["parallel.fan_in.best_id"] == "c"
    assert run.context["x"] == "c"
    assert run.context["only_a"] == 1
    assert "only_d" not in run.context


@pytest.mark.parametrize(
    ("script", "best"),
    [
        ({}, "a"),
        ({"a": PARTIAL}, "b"),
        ({"a": FAIL}, "b"),
        ({"b": Outcome(context_updates={"score": 1})}, "b"),
        ({"b": Outcome(context_updates={"score": "much"})}, "a"),
        ({"b": Outcome(context_updates={"score": True})}, "a"),
        ({"a": Outcome(status="skipped"), "b": PARTIAL}, "b"),
        ({"b": Outcome(status="partial_success", context_updates={"score": 9})}, "a"),
    ],
)
def test_branches_are_ranked_by_status_score_and_id(script: dict[str, Outcome], best: str) -> None:
    assert run_scheduler(TWO, script).context["parallel.fan_in.best_id"] == best


def test_a_fan_in_with_a_prompt_is_asked_and_its_pick_wins() -> None:
    body = f"{TWO} f [prompt=pick]"
    updates = {"a": Outcome(context_updates={"x": "a"}), "b": Outcome(context_updates={"x": "b"})}
    run = SchedulerDriver(body, updates)
    run.end("a", updates["a"])
    run.end("b", updates["b"])
    assert results(run) == {"a": "success", "b": "success"}
    run.end("f", Outcome(context_updates={"parallel.fan_in.best_id": "b"}))
    assert run.context["x"] == "b"
    assert run.context["parallel.fan_in.best_id"] == "b"
    assert run.status == "success"


def test_an_unknown_or_failed_pick_is_ignored() -> None:
    for pick in ("unknown", "b"):
        run = SchedulerDriver(f"{TWO} f [prompt=pick]")
        run.end("a")
        run.end("b", FAIL)
        run.end("f", Outcome(context_updates={"parallel.fan_in.best_id": pick}))
        assert run.context["parallel.fan_in.best_id"] == "a"


def test_a_fan_in_with_a_prompt_is_not_run_if_all_branches_failed() -> None:
    run = run_scheduler(f"{TWO} f [prompt=pick]", {"a": FAIL, "b": FAIL})
    assert "f" not in run.path


def test_a_fan_in_without_branches_fails_its_node() -> None:
    run = run_scheduler("s -> f; f [type=fan_in]; f -> e [condition=never]")
    assert run.finish.reason == "node 'f' failed: there is no branch to join"


def test_a_parallel_node_in_a_branch_has_its_own_join() -> None:
    body = f"""{FORK} p -> q; q [shape=component]; q -> x -> g; q -> y -> g; g [type=fan_in];
        g -> z -> f; p -> b -> f"""
    run = SchedulerDriver(body)
    assert set(run.waiting) == {"b.1", "x.1", "y.1"}
    run.end("x")
    run.end("y")
    assert set(run.waiting) == {"b.1", "z.1"}
    run.end("b")
    run.end("z")
    assert run.status == "success"
    assert results(run) == {"q": "success", "b": "success"}
    assert run.completed == ["s", "x", "y", "q", "g", "b", "z", "p", "f", "e"]


def test_the_first_success_stops_nested_branches_of_the_others() -> None:
    body = f"""{FORK} p [join_policy=first_success]; p -> q; q [shape=component]; q -> x -> g;
        q -> y -> g; g [type=fan_in]; g -> f; p -> b -> f"""
    run = SchedulerDriver(body)
    run.end("b")
    assert [o.id for o in run.last if isinstance(o, Stop)] == ["x.1", "y.1"]
    assert run.status == "success"
    assert set(run.scheduler.state.lanes) == {""}
    assert run.scheduler.state.forks == {}


def test_a_branch_may_fail_or_reach_an_exit() -> None:
    body = f"{FORK} p -> a -> f; p -> b; p -> c -> e;"
    run = run_scheduler(body, {"b": FAIL})
    assert results(run) == {"a": "success", "b": "fail", "c": "success"}
    assert run.completed.count("e") == 1
    assert run.status == "success"


def test_without_a_fan_in_the_run_continues_at_the_exit_of_its_branches() -> None:
    body = "s -> p; p [shape=component]; p -> a -> e; p -> b -> e; b [goal_gate=true]"
    run = run_scheduler(body)
    assert run.status == "success"
    assert run.completed == ["s", "a", "b", "p", "e"]
    assert run_scheduler(body, {"b": FAIL}).finish.reason.startswith("goal gate unsatisfied")


def test_without_a_fan_in_and_an_exit_the_branches_decide() -> None:
    body = "s -> p; p [shape=component]; p -> a; p -> b; a -> e [condition=never]"
    assert run_scheduler(body).status == "success"
    assert (
        run_scheduler(body, {"a": FAIL, "b": FAIL}).finish.reason
        == "node 'p' failed: every branch failed"
    )


def test_a_person_may_be_asked_within_a_branch() -> None:
    run = SchedulerDriver(
        f"{FORK} p -> g; g [shape=hexagon, label=ok]; g -> a [label=yes]; a -> f; p -> b -> f"
    )
    run.end("b")
    [asked] = [o for o in run.waiting.values() if isinstance(o, AskHuman)]
    del run.waiting[asked.question.id]
    run.send(Answered(id=asked.question.id, answer=Answer(value="yes")))
    run.end("a")
    assert run.status == "success"


def test_a_branch_loops_by_itself() -> None:
    body = f'{FORK} p -> a; a -> a [condition="outcome=fail"]; a -> f; p -> b -> f'
    assert run_scheduler(body, {"a": [FAIL, FAIL, Outcome()]}).path == ["a", "b", "a", "a"]


def test_a_branch_with_an_endless_loop_fails_alone() -> None:
    body = f'max_visits=5; {FORK} p -> a; a -> a [condition="outcome=fail"]; a -> f; p -> b -> f'
    run = run_scheduler(body, {"a": FAIL})
    assert results(run) == {"a": "fail", "b": "success"}
    assert run.status == "success"


def test_an_edge_straight_to_the_fan_in_is_a_branch_that_does_nothing() -> None:
    run = run_scheduler(f"{FORK} p -> a -> f; p -> f")
    assert results(run) == {"a": "success", "f": "success"}


def test_two_edges_to_one_node_are_two_branches() -> None:
    run = run_scheduler(f"{FORK} p -> a; p -> a; a -> f")
    assert results(run) == {"a": "success", "a#2": "success"}
    assert run.path == ["a", "a"]


def test_an_edge_with_a_false_condition_starts_no_branch() -> None:
    run = run_scheduler(f'{FORK} p -> a -> f; p -> b [condition="outcome=fail"]; b -> f')
    assert results(run) == {"a": "success"}


def test_a_parallel_node_that_leads_to_itself_ends() -> None:
    run = run_scheduler("max_visits=60; s -> p; p [shape=component]; p -> a -> p; p -> b; a -> e")
    assert run.finish
    assert run.scheduler.state.forks == {}


def test_loop_restart_within_a_branch_stops_the_others() -> None:
    body = f'{TWO} a -> x [condition="outcome=fail", loop_restart=true]; x -> e'
    run = SchedulerDriver(body)
    run.end("a", FAIL)
    assert [o.id for o in run.last if isinstance(o, Stop)] == ["b.1"]
    run.end("x")
    assert run.status == "success"
    assert run.completed == ["x", "e"]


def test_events_are_emitted_in_order() -> None:
    run = run_scheduler(TWO)
    names = [o.event for o in run.commands if isinstance(o, EmitEvent)]
    assert [o.number for o in run.commands if isinstance(o, EmitEvent)] == [
        *range(1, len(names) + 1)
    ]
    assert [name for name in run.events if "Parallel" in name or "Branch" in name] == [
        "ParallelStarted",
        "BranchStarted",
        "BranchStarted",
        "BranchCompleted",
        "BranchCompleted",
        "ParallelCompleted",
    ]
    assert run.events[0] == "PipelineStarted"
    assert run.events[-1] == "PipelineCompleted"
