"""The paths of a pipeline: a run with the script of a path takes exactly this path."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from corral import pipelines
from corral._pipelines import loader
from corral._pipelines.graph_paths import GraphPaths, find_paths

ENDS = "start [shape=Mdiamond] done [shape=Msquare] "
FLOW = """
    plan   [prompt="Set size and mode."]
    mode   [shape=diamond]
    tests  [shape=parallelogram, tool_command="exit 1", retry_target=plan]
    review [prompt=Review, goal_gate=true, retry_target=plan]
    check  [shape=diamond]
    gate   [shape=hexagon]
    start -> plan -> mode
    mode -> tests [condition="context.size > 3 && mode contains x"]
    mode -> review
    tests -> review
    review -> check
    check -> gate [condition="outcome=success && preferred_label=ship"]
    check -> plan [condition="outcome=needs_work"]
    check -> done
    gate -> done [label="[A] Approve"]
    gate -> plan [label="[R] Revise"]
"""


def paths_of(body: str) -> GraphPaths:
    return find_paths(loader.load_unchecked(f"digraph g {{ {ENDS} {body} }}"))


def test_a_run_with_the_script_of_a_path_takes_this_path(tmp_path: Path) -> None:
    found = paths_of(FLOW)
    assert (found.complete, found.unreached, found.stuck) == (True, [], [])
    texts = [path.text for path in found.paths]
    assert "start → plan → mode → review → check → done" in texts
    assert any("gate [Revise] → plan" in text for text in texts)
    assert any("plan [mode=x, size=4.0] → mode → tests" in text for text in texts)
    assert any("tests [fail] → plan" in text for text in texts)
    assert any("review [needs_work] → check → plan" in text for text in texts)
    assert any("review [fail] → plan" in text for text in texts)
    for path in found.paths:
        result = pipelines.run_sync(
            f"digraph g {{ {ENDS} {FLOW} }}",
            script=msgspec.to_builtins(path.script),
            values=path.values,
            durable=False,
            cwd=tmp_path,
        )
        taken = [name for name in path.nodes[:-1] if name != "done"]
        assert result.completed == [*taken, path.nodes[-1]], path.text
        assert result.status == path.end


@pytest.mark.parametrize(
    ("body", "unreached"),
    [
        # Only one of several plain edges is followed.
        ("a b c start -> a a -> b a -> c b -> done c -> done", ["c"]),
        ('a b start -> a a -> b [condition="outcome=retry"] a -> done b -> done', ["b"]),
        ('a b start -> a a -> b [condition="x && !x"] a -> done b -> done', ["b"]),
        ("a b start -> a -> done b -> done", ["b"]),
        ("a b start -> a -> done a [retry_target=b] b -> done", []),
        ("p [shape=component] a b p -> {a b} -> done start -> p", []),
    ],
)
def test_nodes_that_no_path_reaches(body: str, unreached: list[str]) -> None:
    assert paths_of(body).unreached == unreached


def test_values_of_the_run_decide_after_the_start() -> None:
    found = paths_of(
        'd [shape=diamond] a start -> d -> done d -> a [condition="fast=yes"] a -> done'
    )
    assert [(path.nodes, path.values) for path in found.paths] == [
        (("start", "d", "done"), {}),
        (("start", "d", "a", "done"), {"fast": "yes"}),
    ]


def test_where_the_run_fails_and_where_it_gets_stuck() -> None:
    found = paths_of('a b start -> a a -> b [condition="ok=1"] b -> done b [error_policy=continue]')
    assert (found.fatal, found.stuck) == (["a"], ["a"])
    assert [path.text for path in found.paths] == ["start → a [ok=1] → b → done"]
    found = paths_of("p [shape=component] a b c start -> p p -> a -> c p -> b -> c c -> done")
    assert found.fatal == ["c"]  # a failure in a branch ends the branch only


def test_an_unsatisfied_goal_gate_without_a_target_fails_the_run() -> None:
    found = paths_of('a [goal_gate=true] d [shape=diamond] start -> a -> d -> done d -> d2'
                     ' [condition="outcome=x"] d2 -> done')  # fmt: skip
    assert [path.end for path in found.paths] == ["success", "success", "fail"]


def test_a_loop_without_an_end_has_no_path() -> None:
    found = paths_of("a b start -> a -> b b -> a a -> done")
    assert (found.paths, found.unreached) == ([], ["done"])


def test_a_graph_with_many_ways_has_few_paths() -> None:
    chain = " ".join(
        f'n{i} -> n{i + 1} n{i} -> n{i + 1} [label=b, condition="k{i}=1"]' for i in range(300)
    )
    found = paths_of(f"{chain} start -> n0 n300 -> done")
    assert (len(found.paths), found.complete) == (1, True)
