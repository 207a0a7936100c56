"""The merge queues, as the page shows them: the state of each branch, and who made it.

Reasons, outputs and names come from agents and from repositories: the texts are made plain, and
their lengths and numbers are limited.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

from corral._core.terminal_text import plain
from corral._merging import owners, queue
from corral._merging.queue import MergeEntry, MergeQueue
from corral._merging.rebase import merged_tip
from corral._system.git.worktree import name_part
from corral._view.records import MergeList, MergeQueueInfo, MergeRow, MergeRun, Summary
from corral.errors import CorralError

MAX_QUEUES = 20
MAX_ROWS = 100
"""Branches of a queue that are shown."""
MAX_TEXT = 2_000
"""Characters of a reason, and of the end of an output."""
MAX_NAME = 300
"""Characters of a name of a branch or file, and of a gate."""
MAX_NAMES = 20
_TEXTS = {
    "queued": "queued",
    "rebasing": "being put on the tip",
    "checking": "the gate runs",
    "owner": "its session repairs it",
    "merged": "merged",
    "failed": "failed",
    "interrupted": "interrupted",
}

QueueStates: TypeAlias = Mapping[str, tuple[float, bool]]
"""Of each queue, the last changed first: when that was, and whether a process merges it."""


def states() -> QueueStates:
    """The state of all queues. It is not called twice at the same time, as ``fs.is_locked``."""
    return {each.id: (each.changed, each.is_working) for each in queue.all_queues()}


def version(found: QueueStates) -> str:
    """Another text whenever a queue has changed."""
    return blake2b(repr(sorted(found.items())).encode(), digest_size=8).hexdigest()


def read(found: QueueStates, runs: Iterable[Summary], sessions: Collection[str]) -> MergeList:
    """The queues. ``runs`` are those that may have made branches, and ``sessions`` the ids of all
    that are stored. A queue that cannot be read is left out."""
    by_name = {
        name_part(each.id): MergeRun(
            kind=each.kind, id=each.id, db=each.db, comparison=each.comparison
        )
        for each in runs
    }
    queues: list[MergeQueueInfo] = []
    for id, (changed, working) in [*found.items()][:MAX_QUEUES]:
        try:
            stored = queue.QueueStore(queue.queues_folder() / id).read()
        except CorralError:
            continue
        if stored is not None:
            queues.append(_info(stored, changed, by_name, sessions, working=working))
    return MergeList(queues=queues, left=max(0, len(found) - MAX_QUEUES))


def _info(
    stored: MergeQueue,
    changed: float,
    runs: Mapping[str, MergeRun],
    sessions: Collection[str],
    *,
    working: bool,
) -> MergeQueueInfo:
    root = Path(stored.repository)
    ended = [each for each in stored.entries if not each.is_open]
    ended.sort(key=lambda each: -(each.ended or 0.0))
    waits = bool(stored.open) and not working
    return MergeQueueInfo(
        id=stored.id,
        repository=plain(stored.repository, MAX_TEXT),
        into=plain(stored.into, MAX_NAME),
        gates=[plain(gate, MAX_NAME) for gate in stored.gates[:MAX_NAMES]],
        tip=_tip(root, stored.into),
        working=working,
        pending=plain(stored.pending, MAX_TEXT),
        command=f"corral merge --into {shlex.quote(stored.into)}" if waits else None,
        rounds=stored.rounds,
        open=len(stored.open),
        merged=sum(each.state == "merged" for each in ended),
        failed=sum(each.state == "failed" for each in ended),
        changed=changed,
        rows=[
            _row(root, each, runs, sessions, working=working)
            for each in [*stored.open, *ended][:MAX_ROWS]
        ],
    )


def _tip(root: Path, into: str) -> str | None:
    try:
        return merged_tip(root, into)
    except CorralError:
        return None


def _row(
    root: Path,
    entry: MergeEntry,
    runs: Mapping[str, MergeRun],
    sessions: Collection[str],
    *,
    working: bool,
) -> MergeRow:
    is_left = entry.state in ("rebasing", "checking", "owner") and not working
    state = "interrupted" if is_left else entry.state
    parts = entry.branch.split("/")
    return MergeRow(
        number=entry.number,
        branch=plain(entry.branch, MAX_NAME),
        state=state,
        state_text=_TEXTS[state],
        reason=plain(entry.reason, MAX_TEXT),
        output=plain(entry.output[-MAX_TEXT:]),
        files=[plain(name, MAX_NAME) for name in entry.files[:MAX_NAMES]],
        rounds=entry.rounds,
        owner=plain(entry.owner, MAX_NAME),
        session=_session(root, entry.branch, sessions),
        run=runs.get(parts[1]) if parts[0] == "corral" and len(parts) > 1 else None,
        commit=entry.commit,
        result=entry.result if entry.state == "merged" else "",
        cost_usd=entry.cost_usd,
        queued=entry.queued,
        ended=entry.ended,
    )


def _session(root: Path, branch: str, sessions: Collection[str]) -> str | None:
    try:
        owner = owners.find(root, branch)
    except CorralError:
        return None
    return owner.session if owner is not None and owner.session in sessions else None
