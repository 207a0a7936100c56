"""The edge that a run follows, rule by rule."""

from __future__ import annotations

import pytest
from support.scheduler_driver import FAIL, graph_of

from corral._pipelines.scheduler.outcome import Outcome
from corral._pipelines.scheduler.routing import Routes, accelerator, normalize_label
from corral.values import Json

TRUE, FALSE = 'condition="outcome=success"', 'condition="outcome=fail"'


def chosen(edges: str, outcome: Outcome | None = None) -> str | None:
    """The target of a node ``n`` with these edges."""
    graph = graph_of(f"s -> n; {edges}")
    given = outcome or Outcome()
    label = given.preferred_label
    context: dict[str, Json] = {"outcome": given.status, "preferred_label": label, "risk": "high"}
    routes, node = Routes(graph), graph.nodes["n"]
    if given.status == "fail":
        route = routes.choose_failed(node, context, label, given.suggested_next_ids)
        return None if route is None else route.target
    edge = routes.choose(node, context, label, given.suggested_next_ids)
    return None if edge is None else edge.target


@pytest.mark.parametrize(
    ("edges", "outcome", "target"),
    [
        # 1. conditions that are true, by weight, then target
        (f"n -> a; n -> b [{TRUE}]", None, "b"),
        (f"n -> a [{TRUE}]; n -> b [{TRUE}, weight=1]", None, "b"),
        (f"n -> b [{TRUE}]; n -> a [{TRUE}]", None, "a"),
        (f"n -> a [{FALSE}, weight=9]; n -> b", None, "b"),
        (f"n -> a [{TRUE}]; n -> b [label=x]", Outcome(preferred_label="x"), "a"),
        ('n -> a [condition="context.risk=high && outcome=success"]; n -> b', None, "a"),
        ("n -> a [condition=\"missing=''\"]; n -> b", None, "a"),
        # 2. the preferred label
        ("n -> a [weight=9]; n -> b [label=Fix]", Outcome(preferred_label=" fix "), "b"),
        ('n -> a; n -> b [label="[F] Fix"]', Outcome(preferred_label="fix"), "b"),
        ('n -> a; n -> b [label="F) Fix"]', Outcome(preferred_label="[X] fix"), "b"),
        ('n -> a; n -> b [label="F - Fix"]', Outcome(preferred_label="FIX"), "b"),
        (f"n -> a; n -> b [label=x, {FALSE}]", Outcome(preferred_label="x"), "a"),
        (
            "n -> a [label=x]; n -> b [label=x]",
            Outcome(preferred_label="x", suggested_next_ids=("b",)),
            "b",
        ),
        # 3. the first suggested node that an unconditional edge reaches
        ("n -> a; n -> b; n -> c", Outcome(suggested_next_ids=("zz", "c", "b")), "c"),
        (f"n -> a; n -> b [{FALSE}]", Outcome(suggested_next_ids=("b",)), "a"),
        (
            "n -> a; n -> b [label=x]; n -> c",
            Outcome(preferred_label="x", suggested_next_ids=("c",)),
            "b",
        ),
        # 4. by weight, then target
        ("n -> b; n -> a", None, "a"),
        ("n -> a; n -> b [weight=2]; n -> c [weight=10]", None, "c"),
        ("n -> a [weight=-1]; n -> b", None, "b"),
        # none
        (f"n -> a [{FALSE}]", None, None),
        ("", None, None),
    ],
)
def test_the_edge_of_a_node_that_did_not_fail(
    edges: str, outcome: Outcome | None, target: str | None
) -> None:
    assert chosen(edges, outcome) == target


DIAMOND = 'd [shape=diamond]; d -> a [condition="outcome=fail"]; d -> e;'


@pytest.mark.parametrize(
    ("edges", "target"),
    [
        # 1. conditions that are true, by weight, then target
        (f"n -> a; n -> b [{FALSE}]", "b"),
        (f'n -> a [condition="risk=high", weight=9]; n -> b [{FALSE}]', "a"),
        ('n -> a [condition="risk=high"]; n -> b', "a"),
        ('n -> a; n -> b [condition="outcome!=success"]', "b"),
        (f"n [retry_target=x]; x -> e; n -> b [{FALSE}]", "b"),
        (f"{DIAMOND} n -> d; n -> b [{FALSE}]", "b"),
        # 2. retry targets: the node's two, then the graph's two
        ("n [retry_target=x, fallback_retry_target=y]; x -> e; y -> e; n -> b", "x"),
        ("n [retry_target=gone, fallback_retry_target=y]; y -> e; n -> b", "y"),
        ("n [fallback_retry_target=y]; y -> e; n -> b", "y"),
        ("retry_target=x; x -> e; n -> b", "x"),
        ("retry_target=x; n [fallback_retry_target=y]; x -> e; y -> e; n -> b", "y"),
        ("retry_target=gone; fallback_retry_target=y; y -> e; n -> b", "y"),
        (f"{DIAMOND} n [retry_target=x]; x -> e; n -> d", "x"),
        # 3. an unconditional edge to a decision that has a condition
        (f"{DIAMOND} n -> d", "d"),
        (f"{DIAMOND} n -> b [weight=9]; n -> d", "d"),
        ("d [shape=diamond]; d -> e; n -> d", None),
        ("d [type=conditional]; d -> e [condition=risk]; n -> d", "d"),
        ('d [shape=diamond]; d -> e [label="outcome == fail"]; n -> d', "d"),
        (f"d [type=switch]; d -> e [{FALSE}]; n -> d", "d"),
        (f"d [type=switch, key=risk]; d -> e [{FALSE}]; n -> d", None),
        (f"{DIAMOND} n -> d [{TRUE}]", None),
        # 4. any unconditional edge, where the author says so
        ("n [error_policy=continue]; n -> b; n -> c [weight=1]", "c"),
        ("error_policy=continue; n -> b", "b"),
        ("error_policy=continue; n [error_policy=fail]; n -> b", None),
        (f"error_policy=continue; {DIAMOND} n -> b [weight=9]; n -> d", "d"),
        (f"error_policy=continue; n -> b [{TRUE}]", None),
        # 5. nothing handles it
        ("n -> b; n -> c [weight=1]", None),
        ("n -> h; h [shape=hexagon]; h -> e", None),
        ("n -> t; t [shape=parallelogram, tool_command=x]; t -> e", None),
        ("n -> e", None),
        (f"n -> b [{TRUE}]", None),
        ("", None),
        # the person chooses the edge of a gate
        ("n [shape=hexagon]; n -> b [label=Approve]", None),
        (f"{DIAMOND} n [shape=hexagon]; n -> d [label=Approve]", None),
        ("error_policy=continue; n [shape=hexagon]; n -> b [label=Approve]", None),
        ("n [shape=hexagon, error_policy=continue]; n -> b [label=Approve]", "b"),
        (f"n [shape=hexagon]; n -> b [label=Approve]; n -> c [{FALSE}]", "c"),
    ],
)
def test_the_edge_of_a_failed_node(edges: str, target: str | None) -> None:
    assert chosen(edges, FAIL) == target


def test_the_graphs_retry_target_is_not_for_a_branch() -> None:
    graph = graph_of("s -> n; retry_target=x; x -> e; n -> b")
    routes, node = Routes(graph), graph.nodes["n"]
    assert routes.choose_failed(node, {"outcome": "fail"}, in_branch=True) is None


def test_a_label_that_reads_as_a_condition_counts_as_one_after_a_decision_only() -> None:
    label = 'label="outcome == fail"'
    assert chosen(f"n [shape=diamond]; n -> a [{label}]; n -> b") == "b"
    assert chosen(f"n -> a [{label}]; n -> b") == "a"


@pytest.mark.parametrize(
    ("label", "key", "rest"),
    [
        ("[Y] Yes", "Y", "Yes"),
        ("[ok] Fine", "ok", "Fine"),
        ("Y) Yes", "Y", "Yes"),
        ("Y - Yes", "Y", "Yes"),
        (" [y]  Yes ", "y", "Yes"),
        ("Yes", "", "Yes"),
        ("Re - do", "", "Re - do"),
        ("a-b", "", "a-b"),
        ("[Y]", "", "[Y]"),
        ("", "", ""),
    ],
)
def test_the_accelerator_is_split_from_the_label(label: str, key: str, rest: str) -> None:
    assert accelerator(label) == (key, rest)
    assert normalize_label(label) == rest.lower()


def test_the_order_of_edges_in_the_text_does_not_matter() -> None:
    forwards = "n -> a [weight=1]; n -> b [weight=1]; n -> c"
    backwards = "n -> c; n -> b [weight=1]; n -> a [weight=1]"
    assert chosen(forwards) == chosen(backwards) == "a"
