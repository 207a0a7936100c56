"""Merge queues as runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from corral._core.terminal_text import counted, one_line, visible
from corral._merging import queue
from corral._merging.queue import MergeEntry, MergeQueue, QueueStore
from corral._runs.run_record import Run, RunDetails, Sources, State
from corral._system import clock, fs
from corral.errors import ConfigError, CorralError
from corral.values import Cost

MARKS = {"merged": "✓", "failed": "✗", "owner": "?"}


def list_runs(sources: Sources) -> Iterator[Run]:
    """The merge queues; one that cannot be read is left out."""
    for store in queue.all_queues() if sources.db is None else ():
        with suppress(CorralError):
            stored = store.read()
            if stored is not None:
                yield _run(store, stored)


def _run(store: QueueStore, stored: MergeQueue) -> Run:
    failed = [entry for entry in stored.entries if entry.state == "failed"]
    state: State = "success"
    reason = ""
    if store.is_working:
        state = "running"
    elif stored.open:
        state, reason = "interrupted", f"{counted(len(stored.open), 'branch')} not merged yet"
    elif failed and stored.entries[-1].state == "failed":
        state, reason = "failed", f"{visible(failed[-1].branch)}: {one_line(failed[-1].reason)}"
    cost = sum(entry.cost_usd for entry in stored.entries)
    started = min((entry.queued for entry in stored.entries), default=store.changed)
    return Run(
        id=stored.id,
        kind="merge",
        state=state,
        title=f"into {stored.into}",
        project=stored.repository,
        reason=reason,
        cost=Cost(cost, "computed") if cost else Cost(),
        started=started,
        ended=None if state in ("running", "interrupted") else store.changed,
        updated=store.changed,
        folder=str(store.folder),
    )


def show(run: Run) -> RunDetails:
    """The branches of a queue, with their states. Raises ``ConfigError``."""
    stored = read(run)
    lines = [f"into       {stored.into}", f"gate       {' && '.join(stored.gates)}"]
    for entry in stored.entries:
        at = clock.local_minute(entry.ended or entry.queued)
        commit = f" {entry.result[:12]}" if entry.state == "merged" else ""
        lines.append(f"{MARKS.get(entry.state, '·')} {at} {entry_line(entry)}{commit}")
        if entry.state == "failed":
            lines += [f"    {visible(line)}" for line in entry.output.splitlines()[-5:]]
    if stored.pending:
        lines.append(visible(stored.pending))
    if stored.open:
        lines.append(f"continue   corral merge --into {stored.into}")
    return RunDetails(run=run, content=stored, lines=tuple(lines))


def entry_line(entry: MergeEntry) -> str:
    """A branch, its state and the reason."""
    reason = f": {one_line(entry.reason)}" if entry.reason else ""
    return f"{visible(entry.branch)} {entry.state}{reason}"


def delete(run: Run) -> None:
    """Delete a queue in which no branch waits. The branches stay. Raises ``ConfigError``."""
    stored = read(run)
    if stored.open:
        raise ConfigError(
            f"branches wait in {run.id}", hint=f"First: corral merge --into {stored.into}"
        )
    fs.remove_tree(run.folder)


def read(run: Run) -> MergeQueue:
    """The queue. Raises ``ConfigError``."""
    store = next((each for each in queue.all_queues() if each.id == run.id), None)
    stored = None if store is None else store.read()
    if stored is None:
        raise ConfigError(f"the merge queue {run.id} was removed")
    return stored
