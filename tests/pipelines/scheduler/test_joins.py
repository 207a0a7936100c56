"""Branches join at a fan-in or at the nearest common node, and nothing behind it runs twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scheduler_driver import FAIL, SchedulerDriver, graph_of, run_scheduler

from corral._pipelines.graph import Edge, Graph, Node
from corral._pipelines.scheduler.commands import RunNode, Stop
from corral._pipelines.scheduler.joins import Joins
from corral._pipelines.scheduler.outcome import Outcome

P = "s -> p; p [shape=component];"
F = "f [shape=tripleoctagon]; f -> e;"
MEET = f"{P} p -> a -> m; p -> b -> m; p -> c -> m; m -> deploy -> e;"


@pytest.mark.parametrize(
    ("body", "join"),
    [
        (f"{P} {F} p -> a -> f; p -> b -> f", "f"),
        (f"{P} {F} p -> a -> f; p -> b -> f; h [type=fan_in]; a -> h; h -> e", "f"),
        (f"{P} {F} g [type=fan_in]; p -> a -> g; p -> b -> g; g -> x -> f", "g"),
        (f"{P} {F} p -> a -> e; p -> b -> f", "f"),
        (f"{P} {F} p -> a -> b -> a; b -> f", "f"),
        (f"{P} {F} p -> a -> m; p -> b -> m -> f", "f"),
        (MEET, "m"),
        (f"{MEET} b -> x -> deploy", "deploy"),
        (f"{MEET} a -> e [condition=no]; b -> dead; c -> s2 -> p", "m"),
        (f"{MEET} deploy -> p [condition=again]; a -> s [condition=again]", "m"),
        (f"{MEET} p -> side", "m"),
        (f"{MEET} p -> e", "m"),
        (f"{P} p -> a -> e; p -> b -> e", ""),
        (f"{P} p -> a -> b -> a; p -> b -> e", "b"),
        (f"{P} p -> a; p -> a; a -> m -> e", "m"),
        (f"{P} p -> a -> p; p -> e", ""),
        (f"{P} p -> m; p -> a -> m; a -> b -> m; m -> e; m -> a [condition=no]", "m"),
        (f"{MEET} a -> alarm [condition=\"outcome!=success\"]; alarm -> notify; deploy -> notify",
         "m"),
        # A way around the node that all can reach.
        (f"{P} p -> a -> m; a -> k -> e; p -> b -> m -> e", "m"),
        # The fan-in belongs to the parallel node behind the join.
        (f"{P} {F} p -> a -> m; p -> b -> m -> q; q [shape=component]; q -> x -> f; q -> y -> f",
         "m"),
        # One parallel node is the join of another, and both fan-ins are those of the later ones.
        (f"""{P} {F} p -> a -> q; p -> b -> q; q [shape=component]; q -> x -> r; q -> y -> r;
            r [shape=component]; r -> c -> f; r -> d -> f""", "q"),
        # The join leads back into a branch of an earlier parallel node, which has a fan-in.
        ("""s -> q; q [shape=component]; q -> x -> f; q -> y -> f; f [shape=tripleoctagon]; f -> p;
            p [shape=component]; p -> a -> m; p -> b -> m; m -> e; m -> x [condition=no]""", "m"),
    ],
)  # fmt: skip
def test_where_branches_join(body: str, join: str) -> None:
    graph = graph_of(body)
    heads = [edge.target for edge in graph.edges_from("p")]
    assert Joins(graph).section("p", heads, frozenset()).join == join


@pytest.mark.deep
def test_many_parallel_nodes_in_a_row_and_one_that_its_own_branches_lead_back_to() -> None:
    size = 700
    row = "".join(
        f"p{n} [shape=component]; p{n} -> a{n} -> p{n + 1}; p{n} -> b{n} -> p{n + 1};"
        for n in range(size)
    )
    graph = graph_of(f"s -> p0; {row} p{size} -> e")
    assert Joins(graph).section("p0", ["a0", "b0"], frozenset()).join == "p1"
    loop = "p [shape=component]; q [shape=component]; s -> p; p -> a -> q; p -> b -> q; q -> e;"
    graph = graph_of(f"{loop} q -> c -> q; q -> d -> q")
    assert Joins(graph).section("p", ["a", "b"], frozenset()).join == "q"


def test_branches_that_meet_run_what_follows_once() -> None:
    run = run_scheduler(MEET)
    assert run.path == ["a", "b", "c", "m", "deploy"]
    assert run.completed == ["s", "a", "b", "c", "p", "m", "deploy", "e"]
    assert run.status == "success"


@pytest.mark.parametrize(
    ("policy", "failing", "path", "outcome"),
    [
        ("wait_all", "a", ["a", "b", "c", "m", "deploy"], "partial_success"),
        ("first_success", "a", ["a", "b", "c", "m", "deploy"], "success"),
        ("wait_all", "abc", ["a", "b", "c"], "fail"),
    ],
)
def test_the_join_policy_decides_at_a_plain_node(
    policy: str, failing: str, path: list[str], outcome: str
) -> None:
    run = run_scheduler(f"{MEET} p [join_policy={policy}]", dict.fromkeys(failing, FAIL))
    assert run.path == path
    assert run.scheduler.state.outcomes["p"].status == outcome
    assert run.status == ("success" if "deploy" in path else "fail")


def test_all_branches_failed_is_decided_by_a_diamond_where_they_meet() -> None:
    body = f"{P} p -> a -> d; p -> b -> d; d [shape=diamond]; d -> e; fix -> e;"
    run = run_scheduler(f'{body} d -> fix [condition="outcome=fail"]', {"a": FAIL, "b": FAIL})
    assert run.path == ["a", "b", "fix"]


def test_a_branch_past_the_join_ends_there() -> None:
    body = f"{P} {F} p -> a -> f; p -> b -> f; p -> c -> x; f -> x; x -> e"
    assert run_scheduler(body.replace("f -> e;", "")).path == ["a", "b", "c", "x"]


@pytest.mark.parametrize("heads", ["p -> b; p -> a;", "p -> a; p -> b;"])
def test_a_join_may_lead_back_into_a_branch(heads: str) -> None:
    body = f'{P} {heads} a -> m; b -> m; m -> a [condition="outcome=fail"]; m -> e'
    run = run_scheduler(body, {"m": [FAIL, Outcome()]})
    assert sorted(run.path[:2]) == ["a", "b"]
    assert run.path[2:] == ["m", "a", "m"]
    assert run.status == "success"


def test_a_join_that_no_branch_came_to_is_not_run() -> None:
    body = f"{P} p -> a; p -> b; a -> m [condition=no]; b -> m [condition=no]; m -> e;"
    assert run_scheduler(f"{body} a -> k -> e; b -> l -> e").path == ["a", "b", "k", "l"]


def test_an_inner_parallel_node_leaves_the_join_of_the_outer_one_alone() -> None:
    inner = "q [shape=component]; q -> x; q -> y;"
    for ways in ("x -> f; y -> f", "x -> n -> f; y -> n"):
        run = run_scheduler(f"{P} {F} p -> q; p -> b -> f; {inner} {ways}; f [prompt=pick]")
        assert run.path.count("f") == 1, ways
        assert run.status == "success"
        plain = run_scheduler(
            f"{P} p -> q; p -> b -> m; {inner} {ways.replace('f', 'm')}; m -> z -> e"
        )
        assert (plain.path.count("m"), plain.path.count("z")) == (1, 1), ways


def test_what_the_branches_set_is_known_at_the_join() -> None:
    updates = {name: Outcome(context_updates={f"by_{name}": 1, "who": name}) for name in "abc"}
    run = run_scheduler(MEET, updates)
    assert {key: run.visit("m").context[key] for key in ("by_a", "by_c", "who")} == {
        "by_a": 1, "by_c": 1, "who": "a"
    }  # fmt: skip


LOOP = "s -> plan -> p; p [shape=component]; p -> a -> m; p -> b -> m; m -> deploy -> e;"


@pytest.mark.parametrize(
    "back",
    [
        "a [retry_target=plan]",
        'a -> plan [condition="outcome=fail"]',
        "a [retry_target=fix]; fix -> plan",
    ],
)
def test_a_branch_that_goes_back_starts_the_parallel_node_again(back: str) -> None:
    run = SchedulerDriver(f"{LOOP} {back}", {"a": [FAIL, Outcome()]})
    run.end("plan")
    run.end("a", FAIL)
    assert [order.id for order in run.last if isinstance(order, Stop)] == ["b.1"]
    [first] = [order for order in run.last if isinstance(order, RunNode)]
    assert first.context["failure_reason"] == "broken"
    assert run.scheduler.state.outcomes["p"].status == "skipped"
    run.script = {}
    run.run()
    wanted = ["plan", "a", "b", *(["fix"] if "fix ->" in back else []), "plan", "a", "b"]
    assert run.path == [*wanted, "m", "deploy"]
    assert run.status == "success"


def test_a_branch_that_goes_back_out_of_two_parallel_nodes() -> None:
    body = """s -> plan -> p; p [shape=component]; p -> q; p -> b -> m; q [shape=component];
        q -> x -> n; q -> y -> n; n -> m -> deploy -> e; x [retry_target=plan]"""
    run = run_scheduler(body, {"x": [FAIL, Outcome()]})
    assert run.path[:5] == ["plan", "b", "x", "y", "plan"]
    assert [run.path.count(name) for name in ("n", "m", "deploy")] == [1, 1, 1]
    assert run.scheduler.state.forks == {}


def test_a_retry_target_within_the_branch_stays_there() -> None:
    body = f"{P} p -> a -> a2 -> m; p -> b -> m; m -> e; a2 [retry_target=a]"
    run = run_scheduler(body, {"a2": [FAIL, Outcome()]})
    assert run.path == ["a", "b", "a2", "a", "a2", "m"]


def test_a_retry_target_beside_the_branch_that_leads_into_it_stays_there() -> None:
    body = f"{MEET} deploy -> p [condition=again]; a [retry_target=fix]; fix -> a"
    run = run_scheduler(body, {"a": [FAIL, Outcome()]})
    assert run.path == ["a", "b", "c", "fix", "a", "m", "deploy"]


@st.composite
def forks(draw: st.DrawFn) -> Graph:
    """All ways lead to the node ``last`` before the exit. A node may fail, and may go back to an
    earlier one."""
    names = [f"n{number}" for number in range(draw(st.integers(3, 9)))]
    nodes = {"s": Node("s", {"type": "start"}), "e": Node("e", {"type": "exit"})}
    edges = [Edge("s", "n0")]
    for number, name in enumerate(names):
        later = [*names[number + 1 :], "last"]
        targets = draw(st.lists(st.sampled_from(later), min_size=1, max_size=3, unique=True))
        attrs: dict[str, Any] = {
            "type": draw(st.sampled_from(["parallel", "parallel", "codergen"]))
        }
        attrs["join_policy"] = draw(st.sampled_from(["wait_all", "first_success"]))
        if number and draw(st.integers(0, 3)) == 0:
            attrs["retry_target"] = draw(st.sampled_from(names[:number]))
        if number and attrs["type"] == "codergen" and draw(st.integers(0, 3)) == 0:
            edges.append(Edge(name, draw(st.sampled_from(names[:number])), {"condition": "loop"}))
        nodes[name] = Node(name, attrs)
        fails = draw(st.booleans())
        edges += [
            Edge(
                name,
                target,
                {"condition": "outcome=fail"} if fails and target != targets[-1] else {},
            )
            for target in targets
        ]
    nodes["last"] = Node("last", {})
    return Graph("random", {"max_visits": 6}, nodes, [*edges, Edge("last", "e")])


@pytest.mark.deep
@settings(max_examples=300, deadline=None)
@given(graph=forks(), data=st.data())
def test_the_last_node_runs_once_however_the_branches_end(
    graph: Graph, data: st.DataObject
) -> None:
    run = SchedulerDriver(graph)
    while open_visits := sorted(run.waiting):
        id = data.draw(st.sampled_from(open_visits))
        fails = not id.startswith("last") and data.draw(st.integers(0, 3)) == 0
        loops = data.draw(st.booleans())
        run.end(id, FAIL if fails else Outcome(context_updates={"loop": loops}))
    assert run.path.count("last") == (run.status == "success")
    assert run.scheduler.state.forks == {}


@settings(max_examples=100, deadline=None)
@given(graph=forks())
def test_a_node_on_all_ways_runs_once_if_nothing_fails(graph: Graph) -> None:
    run = SchedulerDriver(graph).run()
    assert run.status == "success"
    for name, node in graph.nodes.items():
        if node.kind == "codergen" and not _reaches(graph, "s", "e", without=name):
            assert run.path.count(name) == 1, name


def _reaches(graph: Graph, name: str, wanted: str, *, without: str) -> bool:
    """Whether there is a way along edges that are not for failures."""
    reached, todo = {name, without}, [name]
    while todo:
        for edge in graph.edges_from(todo.pop()):
            if edge.condition != "outcome=fail" and edge.target not in reached:
                reached.add(edge.target)
                todo.append(edge.target)
    return wanted in reached
