"""Messages of pipelines and batches to somebody elsewhere (``notify``): a question, or the end.

The agents of their nodes send their own messages when they need a person (``agent_call``).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from corral.publishing import notify
from corral.publishing.notify import RunEnd, RunFacts, RunMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.engine.batch.results import BatchReport


async def send(target: str, on: object, messages: Sequence[RunMessage]) -> None:
    """Send those messages that ``notify_on`` wants. Never raises, and takes a bounded time."""
    notifier = notify.Notifier(
        target, lambda problem: warnings.warn(f"not notified: {problem}", stacklevel=2)
    )
    for each in messages:
        if notify.wants(on, each.event):
            notifier.send(each)
    await notifier.finish()


def batch_message(name: str, report: BatchReport, cwd: str, db: str | None) -> RunMessage:
    facts = RunFacts(kind="batch", id=name, cwd=cwd, db=db)
    status = report.stopped or ("success" if report.ok else "fail")
    text = f"{report.succeeded:,} of {report.total:,} tasks succeeded, {report.failed:,} failed"
    ended = RunEnd(status=status, text=text, seconds=report.seconds, cost_usd=report.cost_usd)
    return notify.end_message(facts, ended)
