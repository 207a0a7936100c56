"""At the exit every goal gate that was visited must have succeeded."""

from __future__ import annotations

import pytest
from support.scheduler_driver import FAIL, run_scheduler

from corral._pipelines.scheduler.commands import FinishRun
from corral._pipelines.scheduler.outcome import Outcome

BODY = "s -> w -> n -> e; n [goal_gate=true];"
ON = 'n -> e [condition="outcome=fail"];'


@pytest.mark.parametrize(
    ("attrs", "script", "path"),
    [
        ("", [Outcome()], ["w", "n"]),
        ("", [Outcome(status="partial_success")], ["w", "n"]),
        ("n [retry_target=w]", [FAIL, Outcome()], ["w", "n", "w", "n"]),
        ("x -> n; n [retry_target=gone, fallback_retry_target=x]", [FAIL, Outcome()], "wnxn"),
        ("retry_target=w", [FAIL, Outcome()], ["w", "n", "w", "n"]),
        ("x -> n; fallback_retry_target=x", [FAIL, Outcome()], "wnxn"),
        ("x -> n; retry_target=x; n [retry_target=w]", [FAIL, Outcome()], "wnwn"),
        ("retry_target=w", [Outcome(status="skipped"), Outcome()], ["w", "n", "w", "n"]),
    ],
)
def test_an_unsatisfied_gate_goes_back(attrs: str, script: list[Outcome], path: str) -> None:
    run = run_scheduler(f"{BODY} {ON} {attrs}", {"n": script})
    assert run.path == [*path]
    assert run.status == "success"
    assert run.completed.count("e") == 1


def test_without_a_retry_target_the_run_fails() -> None:
    run = run_scheduler(BODY + ON, {"n": FAIL})
    assert run.finish == FinishRun(
        status="fail", reason="goal gate unsatisfied and no retry target"
    )
    assert "e" not in run.completed


def test_a_gate_that_is_never_satisfied_ends_at_the_visit_limit() -> None:
    run = run_scheduler(f"{BODY} {ON} max_visits=4; retry_target=w;", {"n": FAIL})
    assert run.status == "fail"
    assert run.path == ["w", "n"] * 4


def test_a_gate_that_was_not_visited_does_not_count() -> None:
    run = run_scheduler("s -> w -> e; w -> n [condition=never]; n -> e; n [goal_gate=true]")
    assert run.status == "success"


def test_the_last_visit_of_a_gate_decides() -> None:
    body = 's -> n -> w -> e; w -> n [condition="outcome=fail"]; n [goal_gate=true]; n -> w'
    skipped = Outcome(status="skipped")
    run = run_scheduler(body, {"n": [Outcome(), skipped], "w": [FAIL, Outcome()]})
    assert run.finish.reason == "goal gate unsatisfied and no retry target"


def test_every_gate_is_checked() -> None:
    body = "s -> n -> m -> e; n [goal_gate=true]; m [goal_gate=true, retry_target=m]; "
    run = run_scheduler(body, {"m": [FAIL, Outcome()]})
    assert run.path == ["n", "m", "m"]
    assert run.status == "success"
