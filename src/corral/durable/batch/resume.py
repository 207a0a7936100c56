"""Where a batch stands when it is begun, or taken up again: what is done, under way, to do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from corral.durable import service
from corral.durable.batch.output_file import Output
from corral.durable.batch.queue import (
    BatchStore,
    BatchStoreThread,
    OnQueue,
    Round,
    resource_of,
    terms_of,
)
from corral.durable.batch.results import BatchReport, BatchResult, result_of
from corral.durable.batch.runner import Working
from corral.durable.batch.spec import BatchSpec
from corral.durable.batch.tasks import BatchTask, difference
from corral.durable.dbos import database, queues
from corral.durable.payloads import RunInput
from corral.errors import ConfigError
from corral.system import paths

if TYPE_CHECKING:
    from corral.durable.dbos.database import Database


class Survey(msgspec.Struct, kw_only=True):
    ended: dict[str, tuple[str, int]]
    """Task → its workflow, and the round that it is of."""
    flying: dict[str, str]
    """Task → its workflow, under way or waiting."""
    stale: list[str]
    """Workflows under way whose task has changed, or is gone."""


def survey(ledger: BatchStore, rounds: Sequence[Round], digests: Mapping[str, str]) -> Survey:
    """``digests``: of the tasks as they are to be, by id. Blocking."""
    found = Survey(ended={}, flying={}, stale=[])
    for round in rounds:
        for name in round.again:
            # What came of it before does not count any more.
            found.ended.pop(name, None)
        for name, row in ledger.tasks(round).items():
            fits = name in digests and round.digests.get(name) == digests[name]
            if row.has_ended:
                if fits:
                    found.ended[name] = (row.id, round.number)
            elif fits:
                found.flying[name] = row.id
            else:
                found.stale.append(row.id)
    return found


class ResumeOptions(Protocol):
    """What the caller wants of a batch that was begun before."""

    @property
    def retry_failed(self) -> bool: ...

    @property
    def accept_changed(self) -> bool: ...

    @property
    def db(self) -> str | None: ...

    @property
    def queue(self) -> str | None: ...


class ResumeState(msgspec.Struct, kw_only=True):
    known: dict[str, BatchResult]
    """What is done, in the order of the tasks."""
    written: dict[str, BatchResult]
    """Of that, what is in the file, in its order."""
    todo: list[BatchTask]
    flying: dict[str, str] = {}
    """Under way: task → workflow."""
    round: int = 1
    lingers: bool = False
    """Whether what is under way goes on when this process ends."""
    hands: Working | None = None
    close: Callable[[BatchReport], Awaitable[None]] | None = None


def standing_of(wish: ResumeOptions, terms: BatchSpec, out: Output | None) -> ResumeState:
    """Of a batch in memory: its file is all there is. Raises ``ConfigError``."""
    lines = {} if out is None else out.known
    _accepted(wish, terms, {}, lines)
    keeps = {
        name: line
        for name, line in lines.items()
        if _answers(terms, line) and not (wish.retry_failed and not line.ok)
    }
    if out is not None and keeps.keys() != lines.keys():
        out.replace(keeps)
    return ResumeState(
        known={name: keeps[name] for name in terms.tasks if name in keeps},
        written=keeps,
        todo=[task for name, task in terms.tasks.items() if name not in keeps],
    )


@asynccontextmanager
async def durable_standing(
    wish: ResumeOptions, terms: BatchSpec, out: Output | None
) -> AsyncGenerator[ResumeState]:
    """Of a durable one, with the engine ready to go on. Raises ``ConfigError``."""
    where = database.find(wish.db)
    await asyncio.to_thread(database.prepare, where)
    door = BatchStoreThread(where)
    try:
        rounds = await door.ask(partial(BatchStore.rounds, name=terms.name))
        lines = {} if out is None else out.known
        before = rounds[-1].digests if rounds else {}
        changed = _accepted(wish, terms, before, lines)
        queue, limited = await _choose_queue(wish, terms, where)
        history = await door.ask(
            partial(_history, rounds=rounds, terms=terms, lines=None if out is None else lines)
        )
        failed = [name for name, each in history.known.items() if not each.ok]
        again = failed if wish.retry_failed and history.is_whole else []
        if not rounds or changed or again:
            begun = RunInput(
                run_id=terms.name,
                graph=terms.graph,
                setting=terms.setting(detached=where.path is not None and wish.queue is None),
                queue=queue,
                at=time.time(),
            )
            round = terms_of(begun, terms.digests, len(rounds) + 1, again)
            where_to = "" if out is None else str(out.path.absolute())
            await door.ask(partial(BatchStore.begin, begun=round.begun, output=where_to))
        else:
            round = rounds[-1]
            await door.ask(partial(BatchStore.reopen_round, round_id=round.id))
        known = {name: each for name, each in history.known.items() if name not in again}
        written = {name: line for name, line in lines.items() if known.get(name) == line}
        if out is not None and written.keys() != lines.keys():
            await asyncio.to_thread(out.replace, written)
        if history.stale:
            await door.ask(partial(BatchStore.cancel, workflows=history.stale))
        task_queue = queues.subqueue(queue, resource_of(terms.name)) if limited else queue
        hands = OnQueue(
            door,
            round,
            history.flying,
            concurrency=terms.concurrency,
            queue=task_queue,
            is_limited=limited,
            counts=not round.begun.setting.detached and wish.queue is None,
        )
        await asyncio.to_thread(_make_private, Path(round.begun.setting.folder))
        await door.ask(lambda ledger: ledger.take_up([r.id for r in rounds], queue, counts=False))
        await hands.take_up()
        yield ResumeState(
            known={name: known[name] for name in terms.tasks if name in known},
            written=written,
            todo=[
                task
                for name, task in terms.tasks.items()
                if name not in known and name not in history.flying
            ],
            flying=history.flying,
            round=round.number,
            lingers=round.begun.setting.detached,
            hands=hands,
            close=hands.close,
        )
    finally:
        await door.close()


def _make_private(folder: Path) -> None:
    """Prompts and answers are nobody else's."""
    with contextlib.suppress(OSError):  # where it matters, the tasks will say so
        paths.make_dir(folder)


async def _choose_queue(wish: ResumeOptions, terms: BatchSpec, where: Database) -> tuple[str, bool]:
    """Whose workers take the tasks up; and whether a queue limits how many at once. Without
    one it is the window that does."""
    if wish.queue is not None:
        return wish.queue, False
    resource = resource_of(terms.name)
    limit = queues.Limit(resource=resource, each=terms.concurrency)
    here = await asyncio.to_thread(service.local, where, limits=[limit])
    queue = here.own or queues.DEFAULT
    return queue, queues.subqueue(queue, resource) in here.all_queues


class _History(msgspec.Struct, kw_only=True):
    known: dict[str, BatchResult]
    flying: dict[str, str]
    stale: list[str]
    """Workflows under way whose task has changed, or is gone."""
    is_whole: bool
    """Whether all that the last round was to do anew is done: else that goes on first."""


def _history(
    ledger: BatchStore,
    *,
    rounds: list[Round],
    terms: BatchSpec,
    lines: dict[str, BatchResult] | None,
) -> _History:
    known: dict[str, BatchResult] = {}
    found = survey(ledger, rounds, terms.digests)
    ended, flying = found.ended, found.flying
    since = {name: round.number for round in rounds for name in round.again}
    for name, line in (lines or {}).items():
        if _answers(terms, line) and line.round >= since.get(name, 1) and name not in flying:
            known[name] = line
            ended.pop(name, None)
    # A round is over when that was told: a command that was killed before is given again to
    # see it through, not to try once more.
    told = {*known} if lines is not None else {*known, *ended}
    outcomes = ledger.ended([workflow for workflow, _ in ended.values()])
    for name, (workflow, number) in ended.items():
        if workflow in outcomes:
            known[name] = result_of(terms.tasks[name], outcomes[workflow], number)
    wanted = rounds[-1].again if rounds else set[str]()
    return _History(
        known=known,
        flying=flying,
        stale=found.stale,
        is_whole=all(name in told for name in wanted if name in terms.tasks),
    )


def _answers(terms: BatchSpec, line: BatchResult) -> bool:
    task = terms.tasks.get(line.id)
    return task is not None and task.digest == line.digest


def _accepted(
    wish: ResumeOptions, terms: BatchSpec, before: dict[str, str], lines: dict[str, BatchResult]
) -> bool:
    """Whether the batch is another one than it was, and that was accepted. Raises
    ``ConfigError`` where it was not."""
    now = terms.digests
    if before:
        said = difference(before, now)
    else:
        told = {name: line.digest for name, line in lines.items()}
        said = difference(told, {name: now[name] for name in now if name in told})
    if said and not wish.accept_changed:
        raise ConfigError(
            f"this is not the batch that was started as {terms.name!r}: {said}",
            hint="Accept that with --accept-changed: what is changed or new is done anew, what is"
            " done and unchanged is kept. Or name another --output.",
        )
    return bool(said)
