"""All runs in one list: sessions, pipelines and batches, stored and running.

Sessions come from their folders (through the search index), pipelines and batches from databases:
the default one, those of running processes, and those that were used before. What a database has
is asked in a thread and kept for a moment, so that a list that is shown live costs little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from corral._runs import session_runs
from corral._sessions import index, store
from corral._sessions.store import WAITING
from corral._system import clock, fs, paths
from corral._view import live_runs, merges
from corral._view.databases import Databases, StoredRuns, other_databases
from corral._view.live_runs import LiveRuns
from corral._view.pipeline_view import FolderRuns, modified_at
from corral._view.records import MergeList, Pending, RunPage, StateUpdate, Summary
from corral._view.session_logs import SessionLogs
from corral._view.session_view import SessionViews, open_session, pending_of, unsaved
from corral.errors import ConfigError

T = TypeVar("T")
FRESH = 0.5
"""Seconds for which an answer is used again."""
SEARCHED = 16 * 1024 * 1024
"""Bytes of a log that are searched for turns at once, in the background."""
MAX_PAGE = 200
MAX_EXAMINED = 1_000
"""Runs that one request looks at: a filter may fit few of them."""


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list."""

    kind: str | None = None
    state: str | None = None
    agent: str | None = None
    text: str | None = None
    """Full text of transcripts; of pipelines and batches their names and goals."""
    cursor: str | None = None
    limit: int = 50


_Entry = tuple[float, str, Callable[[], Summary]]
"""When a run was last changed, its id, and what makes its summary."""


class _Kept:
    """An answer that is used again for a moment; concurrent callers wait for the same one."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.at = 0.0
        self.value: Any = None


class Catalog:
    """The list of runs of one server."""

    def __init__(self) -> None:
        self.logs: SessionLogs = SessionLogs()
        self.sessions: SessionViews = SessionViews(self.logs)
        self._databases = Databases()
        self._folders = FolderRuns()
        self._kept: dict[str, _Kept] = {}
        self._searches: dict[Path, asyncio.Task[None]] = {}

    async def _keep(self, name: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        kept = self._kept.setdefault(name, _Kept())
        async with kept.lock:
            if kept.value is None or clock.now() - kept.at >= FRESH:
                kept.value = await ask()
                kept.at = clock.now()
            value: T = kept.value
            return value

    async def live(self) -> LiveRuns:
        """What runs now."""
        return await self._keep("live", lambda: asyncio.to_thread(live_runs.read))

    async def stored(self) -> StoredRuns:
        """The pipelines and batches."""
        live = await self.live()

        async def read() -> StoredRuns:
            found = await self._databases.read_all(live)
            in_memory = await asyncio.to_thread(self._folders.read, live)
            both = (*found.summaries, *in_memory)
            return replace(found, summaries=[live_runs.with_parts(each, live) for each in both])

        return await self._keep("stored", read)

    async def database_names(self) -> set[str]:
        """The databases besides the default one."""
        return await asyncio.to_thread(other_databases, await self.live())

    async def session_state(self, id: str) -> StateUpdate:
        """How a session is now. Raises ``ResumeLost``."""
        live = await self.live()

        def read() -> StateUpdate:
            record = open_session(id)
            summary = self.sessions.summary(record, live)
            return StateUpdate(summary=summary, pending=pending_of(record, live))

        return await asyncio.to_thread(read)

    def search_turns(self, path: Path) -> None:
        """Find the remaining turns of a large log in the background."""
        if path not in self._searches:

            async def search() -> None:
                while not (await asyncio.to_thread(self.logs.facts, path, SEARCHED)).is_complete:
                    pass

            task = asyncio.create_task(search())
            self._searches[path] = task
            task.add_done_callback(lambda _: self._searches.pop(path, None))

    async def close(self) -> None:
        """End what runs in the background."""
        tasks = [*self._searches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def pending(self) -> list[Pending]:
        """What waits for a person, the oldest first."""
        live, stored = await self.live(), await self.stored()
        sessions = await self._all_sessions()
        known = {each.run_id for each in live.pending}

        def orphaned() -> list[Pending]:
            """Questions to people whose process is gone."""
            return [
                pending
                for match in sessions
                if match.meta.status == WAITING and match.meta.id not in known
                for pending in pending_of(
                    store.SessionRecord(paths.sessions() / match.meta.id, match.meta), live
                )
            ]

        found = [*live.pending, *await asyncio.to_thread(orphaned), *stored.pending]
        return sorted(found, key=lambda each: each.since or 0.0)

    async def _all_sessions(self) -> list[index.SessionMatch]:
        return await self._keep(
            "sessions", lambda: asyncio.to_thread(session_runs.search, index.Query())
        )

    async def merge_version(self) -> str:
        """Another text whenever some merge queue has changed."""
        return merges.version(await self._merge_states())

    async def merge_queues(self) -> MergeList:
        """The merge queues, the one that changed last first."""
        found, stored = await self._merge_states(), await self.stored()
        sessions = {each.meta.id for each in await self._all_sessions()}
        return await asyncio.to_thread(merges.read, found, stored.summaries, sessions)

    async def _merge_states(self) -> merges.QueueStates:
        return await self._keep("merges", lambda: asyncio.to_thread(merges.states))

    async def runs(self, query: RunQuery) -> RunPage:
        """One page of the list, the newest first."""
        live = await self.live()
        found: list[_Entry] = []
        warnings: list[str] = []
        if query.kind in (None, "session"):
            listed = await self._all_sessions()
            found += await asyncio.to_thread(self._session_entries, query, listed, live)
        if query.kind in (None, "pipeline", "batch"):
            stored = await self.stored()
            warnings = stored.warnings
            found += [
                (each.updated, each.id, partial(replace, each))
                for each in stored.summaries
                if query.kind in (None, each.kind)
                and (query.text or "").lower() in f"{each.id}\n{each.title}\n{each.cwd}".lower()
            ]
        if not query.text:  # runs that are stored nowhere, or not yet
            known = {id for _, id, _ in found}
            # The page of a pipeline has what its sessions ask; that of a batch has not.
            within = {each.run_id for run in live.pipelines for each in live.pending_within(run)}
            asking = {each.run_id for each in live.pending} - within
            found += [
                (run.since, id, partial(live_runs.summary_of, run, len(live.pending_of(kind, id))))
                for (kind, id), run in live.runs.items()
                if id not in known
                and query.kind in (None, kind)
                and run.state != "idle"
                and (not run.part_of or id in asking)
            ]
        page = await asyncio.to_thread(_page, query, found)
        page.warnings = warnings
        return page

    def _session_entries(
        self, query: RunQuery, listed: list[index.SessionMatch], live: LiveRuns
    ) -> list[_Entry]:
        """The sessions that may fit a query; ``listed`` are all that have metadata."""
        matches = session_runs.search(index.Query(grep=query.text)) if query.text else listed
        records = [
            (store.SessionRecord(paths.sessions() / match.meta.id, match.meta), match.snippet)
            for match in matches
            if query.agent in (None, match.meta.agent)
        ]
        if not query.text:
            records += [
                (record, "") for record in _unsaved_sessions({each.meta.id for each in listed})
            ]
        return [
            (
                max(record.meta.updated, modified_at(record.folder / store.EVENTS)),
                record.meta.id,
                partial(self.sessions.summary, record, live, snippet=snippet),
            )
            for record, snippet in records
        ]


def _page(query: RunQuery, found: list[_Entry]) -> RunPage:
    after: tuple[float, str] | None = None
    if query.cursor is not None:
        time, colon, last = query.cursor.partition(":")
        try:
            after = float(time if colon else ""), last
        except ValueError as error:
            raise ConfigError("the cursor is not one of this list") from error
    limit = max(1, min(query.limit, MAX_PAGE))
    left = [entry for entry in found if after is None or entry[:2] < after]
    left.sort(key=lambda entry: entry[:2], reverse=True)
    runs: list[Summary] = []
    for number, (updated, id, summarize) in enumerate(left[:MAX_EXAMINED], 1):
        summary = summarize()
        if _fits(summary, query):
            runs.append(summary)
        if len(runs) == limit or number == MAX_EXAMINED:
            return RunPage(runs=runs, next=f"{updated!r}:{id}" if number < len(left) else None)
    return RunPage(runs=runs)


def _unsaved_sessions(known: set[str]) -> list[store.SessionRecord]:
    """Sessions whose first turn started a moment ago: they have no metadata yet."""
    try:
        names = fs.list_names(paths.sessions())
    except OSError:
        return []
    found = (
        unsaved(paths.sessions() / name)
        for name in names
        if name not in known and not name.startswith(".")
    )
    return [each for each in found if each is not None]


def _fits(summary: Summary, query: RunQuery) -> bool:
    if query.agent is not None and summary.agent != query.agent:
        return False
    if query.state is None:
        return True
    if query.state == "live":
        return summary.live
    if query.state == "waiting":
        return summary.state in ("waiting_permission", "waiting_person", "paused")
    return summary.state == query.state
