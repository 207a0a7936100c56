"""A failure is never ignored: runs from a node that fails to the end of the run."""

from __future__ import annotations

import pytest
from support.scheduler_driver import FAIL, SchedulerDriver, run_scheduler

from corral._pipelines import attribute_definitions
from corral._pipelines.scheduler.outcome import Outcome, Status

FORK = "s -> p; p [shape=component]; f [shape=tripleoctagon]; p -> a -> f; p -> b -> f;"
DECIDE = 'd [shape=diamond]; d -> fix [condition="outcome=fail"]; d -> e; fix -> e;'
BOTH = {"a": FAIL, "b": FAIL}


@pytest.mark.parametrize(
    ("body", "script", "status", "path"),
    [
        # an unconditional edge does not handle a failure
        ("s -> build -> deploy -> e", {"build": FAIL}, "fail", ["build"]),
        ("s -> a -> e", {"a": FAIL}, "fail", ["a"]),
        ("s -> a -> h -> e; h [shape=hexagon]", {"a": FAIL}, "fail", ["a"]),
        # a decision handles it
        (f"s -> a -> d; {DECIDE}", {"a": FAIL}, "success", ["a", "fix"]),
        (f"s -> a -> d; {DECIDE}", {}, "success", ["a"]),
        (
            's -> a -> d; d [shape=diamond]; d -> x [condition="context.k=1"]; d -> y; x->e; y->e',
            {"a": FAIL},
            "success",
            ["a", "y"],
        ),
        # a decision without a matching edge does not
        (
            's -> a -> d; d [shape=diamond]; d -> e [condition="outcome=success"]',
            {"a": FAIL},
            "fail",
            ["a"],
        ),
        # two decisions in a row
        (f"s -> a -> c; c [shape=diamond]; c -> e [condition=never]; c -> d; {DECIDE}",
         {"a": FAIL}, "success", ["a", "fix"]),
        # the node that handles a failure may fail itself
        (f"s -> a -> d; {DECIDE}", BOTH | {"fix": FAIL}, "fail", ["a", "fix"]),
        # retry targets
        ("s -> plan -> a -> e; a [retry_target=plan]", {"a": [FAIL, Outcome()]}, "success",
         ["plan", "a", "plan", "a"]),
        ("retry_target=plan; s -> plan -> a -> e", {"a": [FAIL, Outcome()]}, "success",
         ["plan", "a", "plan", "a"]),
        # error_policy=continue
        ("s -> a -> b -> e; a [error_policy=continue]", {"a": FAIL}, "success", ["a", "b"]),
        ("error_policy=continue; s -> a -> b -> e", BOTH, "success", ["a", "b"]),
        # branches: a failure ends its branch; the fan-in decides
        (f"{FORK} f -> e", {"a": FAIL}, "success", ["a", "b"]),
        (f"{FORK} f -> e", BOTH, "fail", ["a", "b"]),
        (f"{FORK} f -> d; {DECIDE}", BOTH, "success", ["a", "b", "fix"]),
        (f'{FORK} f -> e; f -> x [condition="outcome=fail"]; x -> e', BOTH, "success",
         ["a", "b", "x"]),
        (f"retry_target=s; {FORK} f -> e", {"a": FAIL}, "success", ["a", "b"]),
        (f"error_policy=continue; {FORK} f -> e", BOTH, "success", ["a", "b"]),
        (f"{FORK} f -> e; a [error_policy=continue]", BOTH, "fail", ["a", "b"]),
        # parallel without a fan-in
        ("s -> p; p [shape=component]; p -> a -> e; p -> b -> e", {"a": FAIL}, "success",
         ["a", "b"]),
        ("s -> p; p [shape=component]; p -> a -> e; p -> b -> e", BOTH, "fail", ["a", "b"]),
    ],
)  # fmt: skip
def test_the_route_after_a_failure(
    body: str, script: dict[str, Outcome | list[Outcome]], status: str, path: list[str]
) -> None:
    run = run_scheduler(body, script)
    assert (run.status, run.path) == (status, path)


def test_the_reason_names_the_failed_node_before_a_decision_without_an_edge() -> None:
    plain = run_scheduler("s -> a -> b -> e", {"a": FAIL})
    assert plain.finish.reason == "node 'a' failed: broken"
    decided = run_scheduler(
        's -> a -> d; d [shape=diamond]; d -> e [condition="outcome=success"]', {"a": FAIL}
    )
    assert decided.finish.reason == "node 'a' failed: broken (no edge leads on from 'd')"


def test_a_child_pipeline_that_failed_fails_its_node() -> None:
    run = SchedulerDriver("s -> i -> b -> e; i [type=include, dotfile=child]")
    run.end("i", FAIL)
    assert run.status == "fail"
    assert run.finish.reason == "node 'i' failed: broken"


def test_a_manager_whose_child_failed_fails() -> None:
    run = SchedulerDriver("s -> m -> b -> e; m [shape=house]; stack.child_dotfile=child")
    run.end("m.1", FAIL)
    assert run.status == "fail"


def test_failure_reason_and_class_are_in_the_context_until_a_node_succeeds() -> None:
    broken = Outcome(status="fail", failure_reason="late", failure_class="timeout")
    run = SchedulerDriver(f"s -> a -> d; {DECIDE}", {"a": broken})
    run.end("a", broken)
    seen = run.visit("fix").context
    assert (seen["failure_reason"], seen["failure_class"]) == ("late", "timeout")
    assert seen["last_stage"] == "a"
    run.end("fix")
    assert "failure_reason" not in run.context
    assert "failure_class" not in run.context


def test_a_failure_without_a_class_is_permanent() -> None:
    run = SchedulerDriver(f"s -> a -> d; {DECIDE}", {"a": FAIL}).run()
    assert run.visit("fix").context["failure_class"] == "permanent"


def test_a_visit_limit_of_a_node_wins_and_the_error_names_the_loop() -> None:
    loop = 's -> a -> b; b -> a [condition="outcome=success"]; b -> e; max_visits=9;'
    run = run_scheduler(f"{loop} a [max_visits=2]")
    assert run.path == ["a", "b", "a", "b"]
    assert run.finish.reason == (
        "node 'a' would be visited more than 2 times (max_visits): a -> b -> a"
    )
    for alias in attribute_definitions.BY_NAME["max_visits"].aliases:
        for limit in (f"{alias}=3", f"a [{alias}=3]"):
            aliased = run_scheduler(
                f's -> a; a -> a [condition="outcome=success"]; a -> e; {limit}'
            )
            assert aliased.path == ["a"] * 3


@pytest.mark.parametrize("status", ["success", "partial_success", "fail"])
@pytest.mark.parametrize("decision", ["shape=diamond", "type=switch"])
def test_a_decision_keeps_outcome_and_label(decision: str, status: Status) -> None:
    outcome = Outcome(status=status, preferred_label="Fix")
    body = f"s -> a -> d; d [{decision}]; d -> x [condition=never]; d -> b; x -> e; b -> e"
    run = run_scheduler(body, {"a": outcome})
    seen = run.visit("b").context
    assert (seen["outcome"], seen["preferred_label"], seen["last_stage"]) == (status, "Fix", "a")
