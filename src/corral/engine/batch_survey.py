"""Which of all that was ever begun for the tasks of a batch counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from corral.engine import adapter
from corral.engine.batch_queue import Ledger, Round


class Survey(msgspec.Struct, kw_only=True):
    ended: dict[str, tuple[str, int]]
    """Task → its workflow, and the round that it is of."""
    flying: dict[str, str]
    """Task → its workflow, under way or waiting."""
    stale: list[str]
    """Workflows under way whose task has changed, or is gone."""


def survey(ledger: Ledger, rounds: Sequence[Round], digests: Mapping[str, str]) -> Survey:
    """``digests``: of the tasks as they are to be, by id. Blocking."""
    found = Survey(ended={}, flying={}, stale=[])
    for round in rounds:
        for name in round.again:
            # What came of it before does not count any more.
            found.ended.pop(name, None)
        for name, row in ledger.tasks(round).items():
            fits = name in digests and round.digests.get(name) == digests[name]
            if row.status in adapter.ENDED:
                if fits:
                    found.ended[name] = (row.workflow_id, round.number)
            elif fits:
                found.flying[name] = row.workflow_id
            else:
                found.stale.append(row.workflow_id)
    return found
