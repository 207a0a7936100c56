"""Conditions of edges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral._pipelines import conditions
from corral._pipelines.conditions import ConditionError, compile, edge_condition, lookup_in
from corral._pipelines.dot_parser import parse
from corral.errors import ConfigError
from corral.values import Json

CONTEXT: dict[str, Json] = {
    "outcome": "success",
    "preferred_label": "Fix it",
    "tests": "passed",
    "count": 3,
    "ratio": 0.5,
    "done": True,
    "open": False,
    "empty": "",
    "zero": 0,
    "nothing": None,
    "text_false": "false",
    "human.gate.selected": "yes",
    "failure_class": "transient",
    "internal.retry_count.step-1": 2,
    "answer": {"score": 7, "tags": ["a", "b"], "inner": {"ok": True}},
    "graph.goal": "Ship",
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("   ", True),
        ("outcome=success", True),
        ("outcome = success", True),
        ("outcome==success", True),
        ('outcome == "success"', True),
        ("outcome == 'success'", True),
        ("outcome=Success", False),
        ("outcome=succ", False),
        ("outcome!=fail", True),
        ("outcome != success", False),
        ("Outcome=success", False),
        ("outcome=success && tests=passed", True),
        ("outcome=success&&tests=failed", False),
        ("outcome=success && count=3 && done=true", True),
        ("context.tests=passed", True),
        ("context.missing=x", False),
        ("missing=x", False),
        ("missing!=x", True),
        ('missing=""', True),
        ('missing!=""', False),
        ('nothing=""', True),
        ("preferred_label=Fix it", True),
        # an empty literal
        ("missing=", True),
        ("empty=", True),
        ("tests=", False),
        ("tests!=", True),
        ("missing= && tests=passed", True),
        ("(missing=) && tests=passed", True),
        # other words for an outcome
        ("outcome=succeeded", True),
        ("outcome!=failed", True),
        ("outcome=failure", False),
        ("tests=failed", False),
        # contains and matches
        ("preferred_label contains it", True),
        ('preferred_label contains "zz"', False),
        ("answer.tags contains b", True),
        ("answer.tags contains c", False),
        ("answer.tags !contains c", True),
        ("answer.tags ! contains b", False),
        ("answer.tags not contains c", True),
        ('preferred_label !matches "^zz"', True),
        ("!(answer.tags !contains c)", False),
        ('tests matches "^pass(ed)?$"', True),
        (r'count matches "\d"', True),
        ("tests matches fail", False),
        ("!(tests matches fail) && count > 2", True),
        # numbers
        ("count > 2", True),
        ("count>3", False),
        ("count >= 3", True),
        ("count < 3.5", True),
        ("ratio <= 0.5", True),
        ("tests > 1", False),
        ("missing < 1", False),
        ("count > many", False),
        ("preferred_label=Fix it && outcome=success", True),
        ('preferred_label="Fix it"', True),
        ("ratio=0.5", True),
        ("done=true", True),
        ("open=false", True),
        ("done", True),
        ("open", False),
        ("empty", False),
        ("zero", False),
        ("count", True),
        ("missing", False),
        ("text_false", False),
        ("outcome", True),
        ("failure_class=transient_infra", True),
        ("context.failure_class!=transient_infra", False),
        ("failure_class=deterministic", False),
        ("human.gate.selected=yes", True),
        ("internal.retry_count.step-1=2", True),
        ("answer.score=7", True),
        ("context.answer.inner.ok", True),
        ("answer.tags.1=b", True),
        ("answer.tags.9=b", False),
        ("answer.score.deeper=7", False),
        ("graph.goal=Ship", True),
        ("!open", True),
        ("!done", False),
        ("!!done", True),
        ("!(outcome=fail)", True),
        ("!(outcome=success && open)", True),
        ("!(outcome=success || open)", False),
        ("!outcome=fail", True),
        ("outcome=fail || tests=passed", True),
        ("outcome=fail || tests=failed && done", False),
        ("outcome=success || tests=failed && open", True),
        ("(outcome=fail || tests=passed) && done", True),
        ("(outcome=fail || tests=passed) && open", False),
        ("((done))", True),
    ],
)
def test_conditions_are_evaluated(text: str, holds: bool) -> None:
    assert compile(text).holds(lookup_in(CONTEXT)) is holds


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("=success", 0),
        ("&& a", 0),
        ("a &&", 4),
        ("a && && b", 5),
        ("a || ", 5),
        ("(a", 2),
        ("a)", 1),
        ("()", 1),
        ("!", 1),
        ("a b", 2),
        ("a = b = c", 6),
        ("a >", 3),
        ("a <= && b", 5),
        ("a contains", 2),
        ("a ~ b", 2),
        ('a matches "("', 10),
        ("a & b", 2),
        ("a | b", 2),
        ('a = "open', 4),
        ("1a = b", 0),
        ("a. = b", 1),
        ("ä = b", 0),
        ("a =! b", 3),
        ('a = "x" y', 8),
    ],
)
def test_an_invalid_condition_is_rejected_with_the_place(text: str, position: int) -> None:
    with pytest.raises(ConditionError) as caught:
        compile(text)
    assert caught.value.position == position
    assert isinstance(caught.value, ConfigError)


def test_the_depth_of_parentheses_is_limited_and_exclamation_marks_are_not() -> None:
    assert compile("(" * 64 + "a" + ")" * 64).holds(lambda _: True)
    with pytest.raises(ConditionError, match="nested more than 64 deep"):
        compile("(" * 100_000)
    assert compile("!" * 100_000 + "a").holds(lambda _: True)


def test_a_condition_is_compiled_once() -> None:
    assert compile("outcome=success") is compile("outcome=success")


words = st.sampled_from(["a", "b.c", "outcome", "=", "==", "!=", "&&", "||", "!", "(", ")", '"x"',
                         "x", "1", "'", '"', "&", "|", "ü", "\\"])  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(words, max_size=14).map(" ".join) | st.text(max_size=30))
def test_any_text_is_a_condition_or_a_condition_error(text: str) -> None:
    try:
        condition = compile(text)
    except ConditionError as error:
        condition, place = None, error.position
    else:
        place = 0
    assert 0 <= place <= len(text)
    if condition is None:
        return
    turned = conditions.Condition(text, conditions.negated(condition.tree))
    look = lookup_in({"a": "x", "outcome": "success"})
    if text.strip():
        assert turned.holds(look) is not condition.holds(look)


def test_long_conditions_are_read() -> None:
    assert compile(" && ".join(["outcome=success"] * 20_000)).holds(lookup_in(CONTEXT))


@pytest.mark.parametrize(
    ("edge", "text"),
    [
        ('s -> b [label="outcome == \\"fail\\""]', 'outcome == "fail"'),
        ('s -> b [label="outcome=fail"]', "outcome=fail"),
        ('c -> b [label="!done"]', "!done"),
        ('c -> b [label="a && b"]', "a && b"),
        ('c -> b [label="Yes"]', None),
        ('c -> b [label="Really = so > that"]', None),
        ('c -> b [label="Go!"]', None),
        ('c -> b [label="outcome=fail", condition="tests=passed"]', "tests=passed"),
        ('a -> b [label="outcome=fail"]', None),
        ('a -> b [condition="outcome=fail"]', "outcome=fail"),
        ('a -> b [condition=" "]', None),
        ("a -> b", None),
    ],
)
def test_a_label_counts_as_a_condition_if_the_source_decides(edge: str, text: str | None) -> None:
    graph = parse(f"digraph G {{ s [type=switch]; c [shape=diamond]; a; {edge} }}")
    condition = edge_condition(graph, graph.edges[0])
    assert (condition.text if condition else None) == text
