"""The rule that decides whether a node is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduler_driver import graph_of

from corral._pipelines.scheduler.outcome import Outcome, failed
from corral._pipelines.scheduler.retry import Pause, after, delay, with_earlier_cost

RETRY, FAIL = Outcome(status="retry", failure_reason="r"), failed("f")
PASSING, LOST = failed("429", retryable=True), failed("401", retryable=False)


def tries(attrs: str, outcome: Outcome) -> tuple[int, Outcome]:
    """The number of attempts, and the final outcome."""
    graph = graph_of(f"{attrs} s -> n -> e")
    for attempt in range(1, 20):
        then = after(graph, graph.nodes["n"], outcome, attempt, "seed")
        if isinstance(then, Outcome):
            assert then.attempts == attempt
            return attempt, then
    raise AssertionError("it never ends")


@pytest.mark.parametrize(
    ("attrs", "outcome", "attempts", "status"),
    [
        ("", Outcome(), 1, "success"),
        ("", Outcome(status="partial_success"), 1, "partial_success"),
        ("", Outcome(status="skipped"), 1, "skipped"),
        ("n [max_retries=2]", Outcome(), 1, "success"),
        # retry, and transient errors
        ("", RETRY, 1, "fail"),
        ("n [max_retries=2]", RETRY, 3, "fail"),
        ("default_max_retries=1;", RETRY, 2, "fail"),
        ("default_max_retry=1;", RETRY, 2, "fail"),
        ("default_max_retries=5; n [max_retries=1]", RETRY, 2, "fail"),
        ("default_max_retries=5; n [max_retries=0]", RETRY, 1, "fail"),
        ("default_max_retries=2;", PASSING, 3, "fail"),
        ("", PASSING, 1, "fail"),
        # fail: only if the node itself sets max_retries
        ("default_max_retries=2;", FAIL, 1, "fail"),
        ("n [max_retries=2]", FAIL, 3, "fail"),
        ("node [max_retries=1];", FAIL, 2, "fail"),
        # permanent errors are never tried again
        ("n [max_retries=2]", LOST, 1, "fail"),
        ("n [max_retries=2, allow_partial=true]", LOST, 1, "fail"),
        ("n [max_retries=2]", Outcome(status="retry", retryable=False), 1, "fail"),
        # exhausted
        ("n [max_retries=2, allow_partial=true]", RETRY, 3, "partial_success"),
        ("n [max_retries=1, allow_partial=true]", FAIL, 2, "partial_success"),
        ("n [allow_partial=true]", RETRY, 1, "partial_success"),
        ("n [allow_partial=true]", FAIL, 1, "fail"),
        ('n [max_retries="some"]', FAIL, 1, "fail"),
    ],
)
def test_how_often_a_node_is_tried_and_its_final_outcome(
    attrs: str, outcome: Outcome, attempts: int, status: str
) -> None:
    count, last = tries(attrs, outcome)
    assert (count, last.status) == (attempts, status)


def test_exhausted_retries_have_a_reason() -> None:
    assert tries("", Outcome(status="retry"))[1].failure_reason
    assert tries("", RETRY)[1].failure_reason == "r"
    assert tries("n [allow_partial=true]", RETRY)[1].notes == "retries exhausted: r"


@given(st.integers(1, 400), st.text())
def test_a_pause_doubles_up_to_a_minute_with_jitter_from_the_seed(attempt: int, seed: str) -> None:
    middle = min(60.0, 0.2 * 2 ** (attempt - 1))
    pause = delay(attempt, seed)
    assert 0.5 * middle <= pause <= 1.5 * middle
    assert pause == delay(attempt, seed)


def test_different_visits_pause_differently() -> None:
    graph = graph_of("n [max_retries=3]; s -> n -> e")
    pauses = {
        then.seconds
        for seed in ("n.1", "n.2", "n.3")
        for attempt in (1, 2, 3)
        if isinstance(then := after(graph, graph.nodes["n"], RETRY, attempt, seed), Pause)
    }
    assert len(pauses) == 9


def test_the_cost_of_earlier_attempts_is_added() -> None:
    first, second = Outcome(cost_usd=0.5, tokens=10), Outcome(cost_usd=0.25)
    total = with_earlier_cost(second, first)
    assert (total.cost_usd, total.tokens) == (0.75, 10)
    assert with_earlier_cost(second, None) is second
    assert with_earlier_cost(second, Outcome()) is second
