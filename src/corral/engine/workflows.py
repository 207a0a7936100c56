"""The workflows that every executor runs, by their names in the journal."""

from __future__ import annotations

from corral.engine import adapter, runs, visits


def every() -> dict[str, tuple[adapter.Workflow, int]]:
    """Each with how often it is taken up again after a crash."""
    return {
        runs.NAME: (runs.run, runs.RECOVERIES),
        visits.NAME: (visits.visit, visits.RECOVERIES),
        visits.BATCH: (visits.batch, visits.RECOVERIES),
    }
