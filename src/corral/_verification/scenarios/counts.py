"""What is known of a set of scenarios at the end: the satisfied fraction, and counts by class.

Only this reaches an agent. The fraction counts each scenario with its weight; one that could not be
run counts as not satisfied. Its interval is Wilson's, with the effective number of scenarios
``sum(w)² / sum(w²)``, which is their number if all weights are equal. The threshold is compared
with the fraction itself, not with the interval: that says how far another set of scenarios of the
same kind may lie from this one.

A set is *passed* if the fraction is at least the threshold. It is *failed* if it would not be so
even if each missing scenario were satisfied. Otherwise it is *missing*: what could not be run
decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec

from corral._core.intervals import wilson
from corral._verification.check import ModelSpending
from corral._verification.scenarios.scenario_folder import Scenario
from corral.receipt import Evidence, Outcome
from corral.values import JsonObject

N = TypeVar("N", int, float)
ScenarioOutcome: TypeAlias = Literal["satisfied", "failed", "missing"]
_ROUNDING = 1e-9


class ScenarioResult(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one scenario. No agent may see it."""

    scenario: Scenario
    outcome: ScenarioOutcome
    reason: str = ""
    output: str = ""
    seconds: float = 0.0
    spent: ModelSpending | None = None
    """By the judging model."""


class ClassCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The scenarios of one class."""

    satisfied: int = 0
    failed: int = 0
    missing: int = 0

    @property
    def total(self) -> int:
        return self.satisfied + self.failed + self.missing


class ScenarioCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of all scenarios, without anything about a single one."""

    satisfied: int
    total: int
    missing: int
    fraction: float
    low: float
    """The lower end of the 95 % interval."""
    high: float
    threshold: float
    attainable: float
    """The fraction if all were satisfied that could be run."""
    classes: dict[str, ClassCounts]
    outcome: Outcome

    @property
    def complaint(self) -> str:
        """What a model reads: counts and classes."""
        lines = [
            f"{self.satisfied} of {self.total} held-out scenarios are satisfied"
            f" ({self.fraction:.0%}, needed {self.threshold:.0%})"
        ]
        for name, counts in self.classes.items():
            if counts.satisfied < counts.total:
                more = f", {counts.missing} could not be run" if counts.missing else ""
                lines.append(f"- {name}: {counts.satisfied} of {counts.total}{more}")
        return "\n".join(lines)

    def as_details(self) -> JsonObject:
        """For ``Evidence.details``."""
        found: JsonObject = msgspec.to_builtins(self)
        del found["outcome"]
        return found


def out_of_reach(evidence: Evidence) -> str | None:
    """Why no work can reach the threshold; None if one can."""
    attainable, threshold = (evidence.details.get(key) for key in ("attainable", "threshold"))
    if not isinstance(attainable, float | int) or not isinstance(threshold, float | int):
        return evidence.reason if evidence.outcome == "missing" else None
    if attainable >= threshold - _ROUNDING:
        return None
    missing, total = evidence.details.get("missing"), evidence.details.get("total")
    return (
        f"{missing} of {total} held-out scenarios could not be run, so that {threshold:.0%} cannot"
        " be reached; the report for the user says why"
    )


def spending(results: Sequence[ScenarioResult]) -> ModelSpending | None:
    """What all calls of the judging model used; None if there was none."""
    found = [result.spent for result in results if result.spent is not None]
    if not found:
        return None

    def total(numbers: Sequence[N | None]) -> N | None:
        known = [number for number in numbers if number is not None]
        return sum(known[1:], start=known[0]) if len(known) == len(numbers) else None

    return ModelSpending(
        model=found[0].model,
        input_tokens=total([each.input_tokens for each in found]),
        output_tokens=total([each.output_tokens for each in found]),
        cost=total([each.cost for each in found]),
    )


def count(results: Sequence[ScenarioResult], threshold: float) -> ScenarioCounts:
    """The counts of the results, of which there is at least one."""
    weights = [result.scenario.weight for result in results]
    weight_of = dict.fromkeys(("satisfied", "failed", "missing"), 0.0)
    for result in results:
        weight_of[result.outcome] += result.scenario.weight
    all_weights = sum(weights)
    fraction = weight_of["satisfied"] / all_weights
    low, high = wilson(fraction, all_weights**2 / sum(weight * weight for weight in weights))
    reachable = fraction + weight_of["missing"] / all_weights
    outcome: Outcome = "missing"
    if fraction >= threshold - _ROUNDING:
        outcome = "passed"
    elif reachable < threshold - _ROUNDING:
        outcome = "failed"
    names = sorted({result.scenario.class_name for result in results})
    return ScenarioCounts(
        satisfied=_number(results, "satisfied"),
        total=len(results),
        missing=_number(results, "missing"),
        fraction=round(fraction, 6),
        low=round(low, 6),
        high=round(high, 6),
        threshold=threshold,
        attainable=round(1 - weight_of["missing"] / all_weights, 6),
        classes={name: _of_class(results, name) for name in names},
        outcome=outcome,
    )


def _of_class(results: Sequence[ScenarioResult], name: str) -> ClassCounts:
    own = [result for result in results if result.scenario.class_name == name]
    return ClassCounts(
        satisfied=_number(own, "satisfied"),
        failed=_number(own, "failed"),
        missing=_number(own, "missing"),
    )


def _number(results: Sequence[ScenarioResult], outcome: ScenarioOutcome) -> int:
    return sum(result.outcome == outcome for result in results)
