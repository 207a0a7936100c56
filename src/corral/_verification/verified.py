"""``until=verified(…)``: rounds until the work is verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from corral._verification.check import Check
from corral.receipt import Receipt
from corral.run_kwargs import RunKwargs
from corral.values import is_sequence

VerifiedStep: TypeAlias = str | Check | Callable[[Any], object]


class Verified(msgspec.Struct, frozen=True):
    """Made by ``verified``."""

    checks: tuple[VerifiedStep, ...] = ()

    def __repr__(self) -> str:
        return f"verified({', '.join(map(repr, self.checks))})"


def verified(*checks: VerifiedStep) -> Verified:
    """For ``until``: after each round, the checks run on a clean tree of what the agent left, as
    for ``verify``; what failed is sent to the agent, until everything passes, or the rounds, the
    budget or the time are used up. Of held-out scenarios it learns counts and classes. If the last
    state is worse than an earlier one, the best one is put back. ``checks`` are added to those of
    ``verify`` and ``scenarios``.

    ::

        corral.run_sync(
            "gemini-cli",
            "Write the parser",
            policy="edits",
            until=corral.verified("pytest -q"),
            rounds=5,
        )
    """
    return Verified(checks)


def with_checks(options: RunKwargs, until: Verified) -> RunKwargs:
    """The options of a run, with the checks of ``until`` added to ``verify``."""
    given = options.get("verify")
    known: Sequence[Any] = [*given] if is_sequence(given) else [given]
    if until.checks:
        with_all = options.copy()
        with_all["verify"] = [*(each for each in known if each is not None), *until.checks]
        return with_all
    return options


def score(receipt: Receipt) -> float:
    """How much of the evidence passed: each check counts 1, scenarios their fraction."""
    total = 0.0
    for each in receipt.evidence:
        fraction = each.details.get("fraction")
        total += float(each.passed) if not isinstance(fraction, float | int) else float(fraction)
    return total


def complaint(receipt: Receipt) -> str:
    """What the agent reads of a receipt that is not ``verified``."""
    failed = [text for each in receipt.evidence if (text := each.complaint) is not None]
    return "\n\n".join(failed) or "\n".join(receipt.gaps) or "nothing was verified"
