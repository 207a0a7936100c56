"""What judging models use, as evidence names it."""

from __future__ import annotations

import msgspec

from corral.receipt import Receipt
from corral.values import convert_to, is_object

JUDGE = "judge"
"""The key of ``Evidence.details``."""


class ModelSpending(msgspec.Struct, frozen=True, kw_only=True):
    """What the calls of a judging model used. None: it is not known."""

    model: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    """In USD."""


def judging_of(receipt: Receipt) -> list[ModelSpending]:
    """What was used for the judgements that a receipt has."""
    found = (each.details.get(JUDGE) for each in receipt.evidence)
    return [convert_to(spent, ModelSpending) for spent in found if is_object(spent)]
