"""The satisfied fraction, its interval, and what an agent learns of it."""

from __future__ import annotations

from typing import cast

import pytest

from corral._verification.scenarios.counts import (
    ScenarioOutcome,
    ScenarioResult,
    count,
    out_of_reach,
)
from corral._verification.scenarios.scenario_folder import Scenario
from corral.receipt import Evidence, Outcome


def results(*outcomes: ScenarioOutcome, weights: tuple[float, ...] = ()) -> list[ScenarioResult]:
    return [
        ScenarioResult(
            scenario=Scenario(
                name=f"secret-{number}.toml",
                kind="command",
                class_name=("sums", "names")[number % 2],
                weight=weights[number] if weights else 1.0,
            ),
            outcome=outcome,
            reason="secret reason",
            output="secret output",
        )
        for number, outcome in enumerate(outcomes)
    ]


def test_the_interval_is_that_of_wilson() -> None:
    # Newcombe 1998, table I: 0 of 20.
    none: tuple[ScenarioOutcome, ...] = ("failed",) * 20
    counts = count(results(*none), 0.9)
    assert (counts.fraction, counts.low) == (0.0, 0.0)
    assert counts.high == pytest.approx(0.1611, abs=1e-4)


def test_weights_count_in_the_fraction_and_widen_the_interval() -> None:
    equal = count(results("satisfied", "failed", "satisfied", "failed"), 0.5)
    unequal = count(
        results("satisfied", "failed", "satisfied", "failed", weights=(5.0, 5.0, 1.0, 1.0)), 0.5
    )
    assert equal.fraction == unequal.fraction == 0.5
    assert unequal.low < equal.low < equal.high < unequal.high
    heavy = count(results("satisfied", "failed", weights=(3.0, 1.0)), 0.75)
    assert (heavy.fraction, heavy.outcome) == (0.75, "passed")


@pytest.mark.parametrize(
    ("outcomes", "threshold", "reason"),
    [
        (("satisfied", "missing"), 0.9, "1 of 2 held-out scenarios could not be run"),
        (("failed", "failed", "missing"), 0.7, "1 of 3"),
        (("failed", "failed", "missing"), 0.6, None),
        (("satisfied", "missing"), 0.5, None),
        (("failed", "failed"), 1.0, None),
    ],
)
def test_a_threshold_is_out_of_reach_if_too_many_could_not_be_run(
    outcomes: tuple[ScenarioOutcome, ...], threshold: float, reason: str | None
) -> None:
    counts = count(results(*outcomes), threshold)
    evidence = Evidence(
        kind="scenarios", name="x", outcome=counts.outcome, details=counts.as_details()
    )
    found = out_of_reach(evidence)
    assert found == reason or (found is not None and reason is not None and reason in found)
    assert "secret" not in str(found)


@pytest.mark.parametrize("outcome", ["missing", "failed"])
def test_scenarios_that_were_not_run_at_all_are_out_of_reach(outcome: Outcome) -> None:
    evidence = Evidence(kind="scenarios", name="x", outcome=outcome, reason="no sandbox")
    assert out_of_reach(evidence) == ("no sandbox" if outcome == "missing" else None)


@pytest.mark.parametrize(
    ("outcomes", "threshold", "outcome"),
    [
        (("satisfied", "satisfied"), 1.0, "passed"),
        (("satisfied", "failed"), 1.0, "failed"),
        (("satisfied", "missing"), 1.0, "missing"),
        (("satisfied", "missing"), 0.5, "passed"),
        (("failed", "missing"), 1.0, "failed"),
        (("missing", "missing"), 0.1, "missing"),
    ],
)
def test_a_missing_scenario_is_never_a_pass(
    outcomes: tuple[ScenarioOutcome, ...], threshold: float, outcome: str
) -> None:
    assert count(results(*outcomes), threshold).outcome == outcome


def test_ten_tenths_reach_a_threshold_of_seven_tenths() -> None:
    outcomes: tuple[ScenarioOutcome, ...] = (
        *cast("tuple[ScenarioOutcome, ...]", ("satisfied",) * 7),
        *cast("tuple[ScenarioOutcome, ...]", ("failed",) * 3),
    )
    weights = (0.1,) * 10
    assert count(results(*outcomes, weights=weights), 0.7).outcome == "passed"


def test_the_complaint_has_counts_and_classes_only() -> None:
    counts = count(results("satisfied", "failed", "missing", "failed"), 0.9)
    assert counts.complaint == (
        "1 of 4 held-out scenarios are satisfied (25%, needed 90%)\n"
        "- names: 0 of 2\n"
        "- sums: 1 of 2, 1 could not be run"
    )
    assert "secret" not in f"{counts.complaint}{counts.as_details()}"
