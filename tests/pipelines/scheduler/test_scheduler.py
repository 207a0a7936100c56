"""A run from node to node, with one context, to its end."""

from __future__ import annotations

import pytest
from support.scheduler_driver import FAIL, SchedulerDriver, run_scheduler

from corral._pipelines import dot_parser as parser
from corral._pipelines.conditions import ConditionError
from corral._pipelines.scheduler.commands import (
    Cancelled,
    Checkpoint,
    Ended,
    FinishRun,
    Restart,
    RunNode,
    Steered,
    Stop,
)
from corral._pipelines.scheduler.outcome import Outcome
from corral._pipelines.scheduler.scheduler import Scheduler
from corral.errors import PipelineInvalid


def test_a_chain_of_nodes_runs_to_its_exit() -> None:
    run = run_scheduler("s -> a -> b -> e")
    assert run.status == "success"
    assert run.path == ["a", "b"]
    assert run.completed == ["s", "a", "b", "e"]
    assert run.scheduler.state.current_node == "e"
    assert run.context["current_node"] == "e"
    assert run.context["last_stage"] == "b"


def test_a_run_that_gets_stuck_before_its_exit_fails_and_names_the_node() -> None:
    run = run_scheduler('s -> a; a -> e [condition="outcome=fail"]')
    reason = "no edge leads on from 'a': no condition on its edges is true"
    assert run.scheduler.state.finish == FinishRun(status="fail", reason=reason)


def test_a_node_without_any_edge_ends_the_run_and_is_named() -> None:
    run = run_scheduler("s -> a; s -> e [condition=never]")
    assert run.scheduler.state.finish == FinishRun(
        status="success", reason="no edge leads on from 'a'"
    )
    assert run.completed == ["s", "a"]


def test_start_exit_and_conditional_are_not_run_by_the_driver() -> None:
    run = run_scheduler("s -> c -> e; c [shape=diamond]")
    assert run.path == []
    assert run.status == "success"


def test_every_node_that_ends_gives_a_checkpoint() -> None:
    run = run_scheduler("s -> a -> e")
    assert [o.node for o in run.commands if isinstance(o, Checkpoint)] == ["s", "a", "e"]


def test_the_graphs_attributes_and_the_given_values_are_in_the_context() -> None:
    graph = parser.parse(
        'digraph demo { goal="ship it"; label="L"; s [shape=Mdiamond]; e [shape=Msquare]; s->a->e }'
    )
    run = SchedulerDriver(graph, values={"ticket": 7})
    assert run.visit("a").context == {
        "graph.goal": "ship it",
        "graph.label": "L",
        "graph.name": "demo",
        "ticket": 7,
        "current_node": "a",
        "outcome": "success",
        "preferred_label": "",
    }


def test_updates_reach_the_next_node_and_cannot_change_reserved_keys() -> None:
    outcome = Outcome(
        context_updates={"x": [1], "outcome": "nonsense", "last_response": "r" * 300},
        preferred_label="go",
    )
    run = run_scheduler("s -> a -> b -> e", {"a": outcome})
    context = run.visit("b").context
    assert context["x"] == [1]
    assert context["outcome"] == "success"
    assert context["preferred_label"] == "go"
    assert context["last_response"] == "r" * 200
    assert context["last_stage"] == "a"


def test_changes_of_a_node_to_its_context_are_not_seen_by_others() -> None:
    plan = Scheduler(SchedulerDriver("s -> a -> e").graph, values={"deep": {"list": [1]}})
    [visit] = [order for order in plan.start() if isinstance(order, RunNode)]
    deep = visit.context["deep"]
    assert isinstance(deep, dict)
    assert isinstance(deep["list"], list)
    deep["list"].append(2)
    visit.context["new"] = True
    assert plan.state.context["deep"] == {"list": [1]}
    assert "new" not in plan.state.context


def test_a_failed_node_without_an_edge_fails_the_run_with_the_reason() -> None:
    run = run_scheduler("s -> a; a -> e [condition=never]", {"a": FAIL})
    assert run.finish == FinishRun(status="fail", reason="node 'a' failed: broken")


def test_a_conditional_keeps_outcome_and_label() -> None:
    body = """s -> a -> c; c [shape=diamond]; c -> good [condition="outcome=success"]
        c -> bad [condition="outcome=fail"]; good -> e; bad -> e"""
    assert run_scheduler(body, {"a": FAIL}).path == ["a", "bad"]
    assert run_scheduler(body).path == ["a", "good"]
    labels = """s -> a -> c -> d; c [shape=diamond]; d [shape=diamond]
        d -> x [label=X]; d -> y; x -> e; y -> e"""
    assert run_scheduler(labels, {"a": Outcome(preferred_label="x")}).path == ["a", "x"]
    assert run_scheduler(labels, {"a": Outcome(preferred_label="z")}).path == ["a", "x"]


def test_a_conditional_that_no_edge_leaves_after_a_failure_fails_the_run() -> None:
    run = run_scheduler(
        's -> a -> c; c [shape=diamond]; c -> e [condition="outcome=success"]', {"a": FAIL}
    )
    assert run.status == "fail"


def test_a_skipped_node_has_not_failed() -> None:
    run = run_scheduler("s -> a -> e", {"a": Outcome(status="skipped")})
    assert run.status == "success"
    assert run.context["outcome"] == "skipped"


def test_the_retry_counter_is_in_the_context_until_a_success() -> None:
    tried = Outcome(status="fail", attempts=3)
    body = 's -> a; a -> b [condition="outcome=fail"]; b -> a; a -> e [condition="outcome=success"]'
    run = run_scheduler(body, {"a": [tried, Outcome(attempts=2)]})
    assert run.visit("b").context["internal.retry_count.a"] == 2
    assert "internal.retry_count.a" not in run.context
    assert run.scheduler.state.retries == {}


def test_late_duplicate_and_unknown_messages_change_nothing() -> None:
    run = SchedulerDriver("s -> a -> b -> e")
    run.end("a")
    before = run.scheduler.state
    for message in (
        Ended(id="a.1", outcome=FAIL),
        Ended(id="a.2", outcome=FAIL),
        Ended(id="unknown.1", outcome=FAIL),
    ):
        assert run.send(message) == []
    assert run.scheduler.state == before
    run.end("b")
    assert run.status == "success"
    assert run.scheduler.receive(Cancelled()) == []
    assert run.scheduler.receive(Steered(updates={"late": True})) == []
    assert "late" not in run.context
    assert run.scheduler.receive(Ended(id="b.1", outcome=Outcome())) == []
    assert run.scheduler.start() == []


def test_messages_before_the_start_are_ignored() -> None:
    plan = Scheduler(SchedulerDriver("s -> a -> e").graph)
    assert plan.receive(Cancelled()) == []
    assert plan.start() != []


def test_a_node_is_visited_at_most_max_visits_times() -> None:
    run = run_scheduler('max_visits=3; s -> a; a -> a [condition="outcome=success"]; a -> e')
    assert run.path == ["a"] * 3
    assert run.finish.reason == "node 'a' would be visited more than 3 times (max_visits): a -> a"
    assert len(run_scheduler('s -> a; a -> a [condition="outcome=success"]; a -> e').path) == 50


def test_a_loop_of_conditionals_ends() -> None:
    body = (
        "s -> a -> b; b -> a [condition=graph.name]; b -> e; a [shape=diamond]; b [shape=diamond]"
    )
    run = run_scheduler(body)
    assert "max_visits" in run.finish.reason


def test_loop_restart_starts_again_with_only_the_graph_context() -> None:
    body = """goal=G; s -> a -> b; b -> a [condition="outcome=fail", loop_restart=true]; b -> e"""
    first = Outcome(context_updates={"x": 1})
    run = run_scheduler(body, {"a": first, "b": [FAIL, Outcome()]}, {"given": 1})
    assert run.path == ["a", "b", "a", "b"]
    assert [o for o in run.commands if isinstance(o, Restart)] == [Restart(round=2, node="a")]
    assert run.visit("a").context == {
        "graph.goal": "G",
        "graph.name": "g",
        "current_node": "a",
    }
    assert run.completed == ["a", "b", "e"]
    assert run.scheduler.state.round == 2


def test_a_cancellation_stops_all_open_commands() -> None:
    run = SchedulerDriver(
        "s -> p; p [shape=component]; p -> a; p -> b; a -> f; b -> f; f -> e; f [type=fan_in]"
    )
    assert set(run.waiting) == {"a.1", "b.1"}
    run.send(Cancelled(reason="enough"))
    assert [o.id for o in run.last if isinstance(o, Stop)] == ["a.1", "b.1"]
    assert run.finish == FinishRun(status="cancelled", reason="enough")


def test_the_cost_of_all_nodes_is_added_up() -> None:
    """The budget of the run refuses model calls, the scheduler ends nothing."""
    dear = Outcome(cost_usd=0.6, tokens=600)
    run = run_scheduler("max_cost=1.0; s -> a -> b -> c -> e", {"a": dear, "b": dear})
    assert run.status == "success"
    assert (run.scheduler.state.cost_usd, run.scheduler.state.tokens) == (1.2, 1200)


def test_a_steering_message_changes_the_context() -> None:
    run = SchedulerDriver("s -> a -> b -> e")
    run.send(Steered(updates={"advice": "be brief"}))
    run.end("a")
    assert run.visit("b").context["advice"] == "be brief"


@pytest.mark.parametrize(
    ("attrs", "fidelity", "thread"),
    [
        ("", "compact", None),
        ("default_fidelity=truncate;", "truncate", None),
        ("default_fidelity=truncate; b [fidelity=full];", "full", "a"),
        ("b [fidelity=full, thread_id=mine];", "full", "mine"),
        ("thread_id=ours; b [fidelity=full];", "full", "ours"),
        ("b [fidelity=full, class=mine];", "full", "a"),
        (
            "subgraph { label=Outer; subgraph { label=Inner; b [fidelity=full, class=mine] } }",
            "full",
            "inner",
        ),
    ],
)
def test_fidelity_and_thread_come_from_edge_node_or_graph(
    attrs: str, fidelity: str, thread: str | None
) -> None:
    visit = run_scheduler(f"{attrs} s -> a -> b -> e").visit("b")
    assert (visit.fidelity, visit.thread, visit.previous) == (fidelity, thread, "a")


def test_fidelity_of_the_edge_wins_and_thread_of_the_node_wins() -> None:
    edge = 'a -> b [fidelity=full, thread_id="edge"]; b [fidelity="summary:low"];'
    visit = run_scheduler(f"{edge} s -> a; b -> e").visit("b")
    assert (visit.fidelity, visit.thread) == ("full", "edge")
    visit = run_scheduler(f"{edge} b [thread_id=node]; s -> a; b -> e").visit("b")
    assert visit.thread == "node"


def test_a_graph_without_a_start_fails_at_once() -> None:
    plan = Scheduler(parser.parse("digraph g { a -> b }"))
    finish = plan.start()[-1]
    assert finish == FinishRun(
        status="fail", reason="a pipeline must have one start node, this one has 0"
    )


@pytest.mark.parametrize("attrs", ['max_visits="many"', 'max_cost="x"', 'max_total_tokens="y"'])
def test_a_limit_that_is_not_a_number_is_rejected_before_the_run(attrs: str) -> None:
    with pytest.raises(PipelineInvalid, match="is not a number"):
        SchedulerDriver(f"{attrs}; s -> a -> e")


def test_an_invalid_condition_is_rejected_before_the_run() -> None:
    with pytest.raises(ConditionError):
        SchedulerDriver('s -> a -> e [condition="= ="]')


def test_an_attribute_that_is_not_a_duration_fails_the_node() -> None:
    run = SchedulerDriver("s -> a -> e; a [shape=hexagon, human.timeout=soon]")
    assert "'soon' is not a duration" in run.finish.reason
