"""``corral run`` with several turns: corrections of a typed answer, and ``--until-verified``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from corral._protocol.schema import Schema
from corral._sessions.goals import Goal
from corral._verification.verified import verified
from corral.result import Result
from corral.values import Json

if TYPE_CHECKING:
    from corral._cli.ui.progress import TurnProgress
    from corral._cli.verdict import VerdictRule
    from corral.events import Done
    from corral.receipt import Receipt


def make_goal(
    schema: Schema[Json] | None,
    rule: VerdictRule,
    max_total_tokens: int | None,
    progress: TurnProgress,
) -> Goal:
    """What the run must reach. Raises ``CallerError``."""

    def show(number: int, receipt: Receipt) -> None:
        if receipt.verdict != "verified":
            progress.verdict(receipt, round_number=number)

    until = verified() if rule.until_verified else None
    goal = Goal(
        output=schema,
        until=until,
        rounds=rule.rounds,
        max_total_tokens=max_total_tokens,
        on_judged=show,
    )
    goal.check()
    return goal


def end_of_turns(done: Done, result: Result) -> Done:
    """The last event of the last turn, with what all turns of the run did."""
    return msgspec.structs.replace(
        done,
        status=result.status,
        error=result.error,
        files=result.files,
        files_complete=result.files_complete,
        denied=result.denied,
        denied_complete=result.denied_complete,
        usage=result.usage,
        usage_by_model=result.usage_by_model,
        cost=result.cost,
        duration_ms=round(result.duration * 1000),
        waited_ms=round(result.waited * 1000),
        receipt=result.receipt,
    )
