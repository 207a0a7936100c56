"""Batches as the API shows them."""

from __future__ import annotations

import shlex

from corral.engine.batch import query
from corral.errors import ConfigError
from corral.terminal_text import plain
from corral.view.databases import batch_summary
from corral.view.records import BatchDetail, BatchRow, FailureGroup, NotFound

ROWS = 100
"""Tasks of a page."""
MAX_TEXT = 500
"""Characters of an answer in a row."""


async def read(name: str, db: str | None) -> query.BatchDetails:
    """A batch. Raises ``NotFound``."""
    try:
        return await query.show_batch(name, db=db)
    except ConfigError as error:
        raise NotFound(error.message, hint=error.hint) from error


async def detail(
    name: str, db: str | None, *, start: int = 0, only_failed: bool = False
) -> BatchDetail:
    """A batch with one page of its tasks. Raises ``NotFound``."""
    found = await read(name, db)
    tasks = await query.list_tasks(name, start=start, limit=ROWS, only_failed=only_failed, db=db)
    one = found.overview
    summary = batch_summary(one, db)
    summary.agent, summary.model, summary.cwd = found.agent, found.model or None, found.folder
    summary.tokens = found.report.tokens or None
    return BatchDetail(
        summary=summary,
        total=one.total,
        succeeded=one.succeeded,
        failed=one.failed,
        running=tasks.running,
        left=max(0, one.left - tasks.running),
        prompt=plain(found.prompt, 20_000),
        output=one.output,
        folder=found.folder,
        rounds=len(one.rounds),
        command=None if found.command is None else shlex.join(["corral", *found.command.words]),
        failures=[
            FailureGroup(
                code=each.code,
                message=plain(each.message, 2_000),
                count=each.count,
                tasks=[*each.tasks],
            )
            for each in found.report.failures
        ],
        rows=[_row(each) for each in tasks.rows],
        next=None if tasks.next is None else str(tasks.next),
    )


def _row(task: query.TaskRow) -> BatchRow:
    result = task.result
    if result is None:
        return BatchRow(task=task.id, status="queued" if task.state == "left" else "running")
    return BatchRow(
        task=task.id,
        status=result.status,
        error=plain(result.error.message, 2_000) if result.error else None,
        code=result.error.code if result.error else None,
        seconds=result.seconds,
        attempts=result.attempts,
        cost_usd=result.cost_usd,
        tokens=result.tokens,
        text=plain(result.text, MAX_TEXT),
    )
