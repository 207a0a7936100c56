"""The result of a review."""

from __future__ import annotations

from typing import Literal

import msgspec

from corral._review.findings import Finding


class ReviewRun(msgspec.Struct, frozen=True, kw_only=True):
    """One agent's review of one part of the diff.

    ::

        for run in corral.review.run_sync("main...HEAD").runs:
            print(run.agent, run.cost_usd, run.error)
    """

    agent: str
    part: int
    """From 1."""
    session: str | None = None
    """corral's id of the session."""
    tokens: int | None = None
    cost_usd: float | None = None
    error: str = ""
    """Why there is no answer; empty for a success."""
    error_code: str = ""


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """What agents found in a diff.

    ::

        found = corral.review.run_sync("main...HEAD", agents=["gemini"])
        for finding in found.findings:
            print(finding.file, finding.line, finding.severity, finding.title)
    """

    title: str
    """What was reviewed."""
    status: Literal["reviewed", "nothing", "incomplete"]
    """``incomplete``: an agent has failed for a part; the findings of the others are there."""
    findings: tuple[Finding, ...] = ()
    """The worst first. Equal findings of several agents are one."""
    files: tuple[str, ...] = ()
    """What was reviewed."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Files that were not reviewed, and why."""
    dropped: int = 0
    """Findings about files that are not in the diff, or above the limit of one answer."""
    summaries: tuple[str, ...] = ()
    """One of each agent and part; equal ones are one."""
    runs: tuple[ReviewRun, ...] = ()
    cost_usd: float | None = None
    """None if it is not known."""
