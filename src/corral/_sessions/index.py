"""A search index over the stored sessions: one SQLite file beside their folders.

The folders are the truth; the index only makes listing and searching fast. Every query first
compares the folders with the index (one ``stat`` each) and reads those that are new or changed, so
no writer has to know of the index. A file that is lost, damaged or of another version is built
again. Texts are searched by substring, without regard to case, through SQLite's trigram index.

Secrets are not in it: it holds what the transcripts hold, which are redacted when they are written.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from corral._metering.turn_usage import (
    TurnUsage,
    TurnUsages,
    UsageQuery,
    UsageTotals,
    check_by,
    read_ledger,
    totals,
)
from corral._sessions import store
from corral._system import fs, paths
from corral.errors import StorageFailed
from corral.events import (
    Done,
    Error,
    Event,
    FileChange,
    ModelCall,
    Text,
    ToolUse,
    Vendor,
    from_json,
)
from corral.values import CostSource, Usage, decode_as

T = TypeVar("T")

VERSION = 3
"""The layout of the tables. Another version is built again."""
MAX_TEXT = 1_000_000
"""Characters of one session that can be searched."""
MAX_BYTES = 64 * 1024 * 1024
"""Bytes of one transcript that are read: a list must not wait for the longest one."""
BUSY_SECONDS = 5.0
"""How long to wait for another process that writes the index."""
SNIPPET_BEFORE, SNIPPET_LENGTH = 30, 120
"""Characters of a snippet before the hit, and in all."""

_SEARCHED = tuple(
    b'{"type":"%s"' % kind.type.encode()
    for kind in (Done, Error, FileChange, ModelCall, Text, ToolUse, Vendor)
)
"""How the events begin that have text to search, or what a turn has used."""
_TABLES = """
create table sessions (
    id text primary key, stamp integer, updated real, meta blob, facts blob
) without rowid;
create index by_time on sessions (updated desc, id desc);
create table turns (id text, started real, used blob);
create index turns_by_session on turns (id);
create index turns_by_time on turns (started);
create virtual table texts using fts5 (id unindexed, body, tokenize='trigram');
"""


class SessionFacts(msgspec.Struct, omit_defaults=True):
    """What a transcript says of all its turns."""

    usage: Usage = Usage()
    cost: float | None = None
    source: CostSource = "unknown"
    reason: str = ""
    """Why the last turn is not a success, with the ``code`` of its error."""
    code: str = ""
    verdict: str = ""
    """Of the last turn that was verified."""


class SessionMatch(msgspec.Struct, frozen=True):
    """A session that was found."""

    meta: store.Meta
    snippet: str = ""
    """The text around the first hit of ``grep``, in one line."""
    facts: SessionFacts = msgspec.field(default_factory=SessionFacts)


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What to find. Conditions that are not given hold for every session."""

    grep: str | None = None
    """A text in a prompt, an answer, a tool call or an error."""
    limit: int | None = None


def search(query: Query) -> list[SessionMatch]:
    """The sessions that meet all conditions, the newest first. Blocking. Raises
    ``StorageFailed``."""
    return _read(lambda db: _select(db, query))


def usage_report(query: UsageQuery) -> UsageTotals:
    """What sessions, pipelines and batches have used. Blocking. Raises ``ConfigError``,
    ``StorageFailed``."""
    check_by(query.by)
    try:
        others = list(read_ledger(query))
    except OSError as error:
        raise StorageFailed(f"what pipelines and batches used cannot be read: {error}") from error
    return totals([*usage(query), *others], query.by)


def usage(query: UsageQuery) -> list[TurnUsage]:
    """What the turns that meet all conditions have used. Blocking. Raises ``StorageFailed``."""
    since = float("-inf") if query.since is None else query.since
    times = (since, float("inf") if query.until is None else query.until)
    select = "select used from turns where started >= ? and started < ? order by started"
    rows = _read(lambda db: (decode_as(used, TurnUsage) for (used,) in db.execute(select, times)))
    return [turn for turn in rows if query.fits(turn)]


def _read(select: Callable[[sqlite3.Connection], Iterator[T]]) -> list[T]:
    """What is selected from an index that is up to date."""
    try:
        if not fs.is_dir(paths.sessions()):
            return []
        for is_last in (False, True):
            try:
                with contextlib.closing(_open()) as db:
                    _update(db)
                    return list(select(db))
            except sqlite3.DatabaseError as error:
                if is_last or isinstance(error, sqlite3.OperationalError):
                    raise
                for suffix in ("", "-wal", "-shm", "-journal"):  # damaged: build it again
                    fs.remove_file(f"{_path()}{suffix}")
    except (OSError, sqlite3.Error) as error:
        raise StorageFailed(
            f"the index of sessions cannot be used: {_path()}: {error}",
            hint="Free some space, or delete this file to have it built again.",
        ) from error
    raise AssertionError("unreachable")


def _path() -> Path:
    return paths.sessions() / ".index.sqlite"


def _open() -> sqlite3.Connection:
    fs.append(_path(), b"")
    db = sqlite3.connect(_path(), timeout=BUSY_SECONDS, isolation_level=None)
    try:
        # Everything can be built again: a crash may lose it, and syncing would only cost time.
        db.execute("pragma synchronous = off")
        db.execute("pragma journal_mode = wal")
        if _version(db) != VERSION:
            db.execute("begin immediate")
            if _version(db) == VERSION:  # another process was faster
                db.execute("rollback")
                return db
            for table in ("sessions", "texts", "turns"):
                db.execute(f"drop table if exists {table}")
            for statement in _TABLES.split(";"):
                db.execute(statement)
            db.execute(f"pragma user_version = {VERSION}")
            db.execute("commit")
    except BaseException:
        db.close()
        raise
    return db


def _version(db: sqlite3.Connection) -> int:
    version: int = db.execute("pragma user_version").fetchone()[0]
    return version


def _update(db: sqlite3.Connection) -> None:
    """Bring the index up to date with the folders."""
    on_disk = fs.written_times(paths.sessions(), store.META)
    known: dict[str, int] = dict(db.execute("select id, stamp from sessions").fetchall())
    if on_disk == known:
        return
    db.execute("begin immediate")
    try:
        known = dict(db.execute("select id, stamp from sessions").fetchall())
        for name in known.keys() - on_disk.keys():
            _delete(db, name)
        for name in (name for name, stamp in on_disk.items() if known.get(name) != stamp):
            if name in known:
                _delete(db, name)
            record = store.open_listed(paths.sessions() / name)
            if record is None:
                continue
            meta = record.meta
            row = (name, on_disk[name], meta.updated)
            usages = TurnUsages(meta.id, meta.agent, meta.cwd, meta.model)
            facts = SessionFacts()
            if body := _text(record, usages, facts):
                db.execute("insert into texts values (?, ?)", (name, body))
            turns = usages.finish()
            total = totals(turns, "day").total
            facts.usage, facts.cost = total.usage, total.cost_usd
            sources: set[CostSource] = {turn.source for turn in turns if turn.cost is not None}
            facts.source = sources.pop() if len(sources) == 1 else "computed"
            encoded = msgspec.json.encode(meta), msgspec.json.encode(facts)
            db.execute("insert into sessions values (?, ?, ?, ?, ?)", (*row, *encoded))
            for turn in turns:
                used = replace(
                    turn,
                    kind="session",
                    parent=meta.parent,
                    project=meta.project,
                    label=meta.label or "",
                    scripted=meta.scripted,
                )
                stored = (name, turn.started, msgspec.json.encode(used))
                db.execute("insert into turns values (?, ?, ?)", stored)
    except BaseException:
        db.execute("rollback")
        raise
    db.execute("commit")


def _delete(db: sqlite3.Connection, name: str) -> None:
    for table in ("sessions", "texts", "turns"):
        db.execute(f"delete from {table} where id = ?", (name,))


def _text(record: store.SessionRecord, usages: TurnUsages, facts: SessionFacts) -> str:
    """What can be searched: prompts, answers, tool calls, changed files and errors. What the turns
    have used is given to ``usages``, how the last one ended to ``facts``."""
    parts = [record.meta.title, record.meta.label or ""]
    size = 0
    in_answer = False
    for event in _searched_events(record):
        usages.add(event)
        if isinstance(event, Done):
            error = event.error
            facts.reason = "" if error is None else " ".join(error.message.split())
            facts.code = "" if error is None else error.code
            facts.verdict = event.receipt.verdict if event.receipt is not None else facts.verdict
        if size > MAX_TEXT:
            continue
        is_delta = isinstance(event, Text)
        match event:
            case Text():
                part = event.delta
            case Vendor(name="prompt", data=str(data)):
                part = data
            case ToolUse():
                part = event.title or event.name
            case FileChange():
                part = event.path
            case Error():
                part = event.message
            case _:
                continue
        if is_delta and in_answer:
            parts[-1] += part
        else:
            parts.append(part)
        in_answer = is_delta
        size += len(part)
    return "\n".join(part for part in parts if part)[:MAX_TEXT]


def _searched_events(record: store.SessionRecord) -> Iterator[Event]:
    """The events that have text to search. The others, which may be long, are not decoded."""
    left = MAX_BYTES
    try:
        with (record.folder / store.EVENTS).open("rb") as file:
            while left > 0 and (line := file.readline(left)):
                left -= len(line)
                if line.startswith(_SEARCHED):
                    with contextlib.suppress(msgspec.MsgspecError):  # cut when it was written
                        yield from_json(line)
    except FileNotFoundError:
        return


def _select(db: sqlite3.Connection, query: Query) -> Iterator[SessionMatch]:
    conditions: dict[str, tuple[str, ...]] = {}
    columns, source, shown = "meta, '', facts", "sessions", list[str]()
    if query.grep:
        source = "texts join sessions using (id)"
        # Not SQLite's snippet(): with this index it counts single characters, 64 at most.
        columns = (
            "meta, substr(body, max(1, instr(lower(body), lower(?))"
            f" - {SNIPPET_BEFORE}), {SNIPPET_LENGTH}), facts"
        )
        shown.append(query.grep)
        if len(query.grep) < 3:  # shorter than the units of the index
            conditions["instr(lower(body), lower(?))"] = (query.grep,)
        else:
            phrase = query.grep.replace('"', '""')
            conditions["texts match ?"] = (f'body : "{phrase}"',)
    limit = -1 if query.limit is None else max(0, query.limit)
    filter_ = f"where {' and '.join(conditions)}" if conditions else ""
    values = [value for values in conditions.values() for value in values]
    rows = db.execute(
        f"select {columns} from {source} {filter_} order by updated desc, id desc limit ?",
        [*shown, *values, limit],
    )
    for meta, snippet, facts in rows:
        yield SessionMatch(
            decode_as(meta, store.Meta),
            " ".join(snippet.split()),
            decode_as(facts, SessionFacts),
        )
