"""Finds a stored run and reads its events: a session, a pipeline run, or a file of events.

Logs are read line by line up to the size that they had at the beginning: a run may still be writing
its log. A line that cannot be read is left out and counted in ``Notices``: the log may be cut off
in the middle of a line, or another version of corral may have written it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from corral._core.lookup import LAST
from corral._pipelines import events
from corral._pipelines.events import (
    PipelineEvent,
    PipelineStarted,
    RunEvent,
    StepCompleted,
    StepFailed,
    StepStarted,
)
from corral._pipelines.execution import run_dir
from corral._runs import lookup
from corral._runs.durable_runs import read_manifest
from corral._runs.kinds import kind_of
from corral._runs.redactor import ExportRedactor
from corral._sessions import store
from corral._sessions.store import Meta
from corral._system import fs
from corral.errors import ConfigError, CorralError, ResumeLost
from corral.events import VERSION, Init, Log
from corral.receipt import Receipt
from corral.values import as_text

MAX_LINE = 64 * 1024 * 1024
"""Bytes. A longer line is left out: it would need several times its size in memory."""


class Notices(msgspec.Struct):
    """What was left out of an export, and why."""

    unreadable: int = 0
    """Lines that are no event."""
    too_long: int = 0
    is_cut: bool = False
    """The log ends in the middle of a line."""
    newer: int = 0
    """The version of the log, if a newer corral wrote it."""
    more: list[str] = []
    """What else was left out, as sentences."""

    def sentences(self) -> list[str]:
        found = list(self.more)
        if self.newer:
            found.append(
                f"a newer corral wrote the log (version {self.newer}, this is {VERSION}):"
                " what is new in it is left out"
            )
        if self.unreadable:
            found.append(f"{self.unreadable:,} lines are no events and were left out")
        if self.too_long:
            found.append(
                f"{self.too_long:,} lines over {MAX_LINE // 1024 // 1024} MB were left out"
            )
        if self.is_cut:
            found.append(
                "the log ends in the middle of a line: the run was killed, or still writes"
            )
        return found


class StoredRun(msgspec.Struct, kw_only=True):
    """A run whose events can be read."""

    kind: Literal["session", "pipeline"]
    id: str
    title: str
    log: Path
    folder: Path | None = None
    """Of the session or of the pipeline run; None for a file of events."""
    meta: Meta | None = None
    """Of a session."""
    notices: Notices = msgspec.field(default_factory=Notices)
    redactor: ExportRedactor = msgspec.field(default_factory=ExportRedactor)

    def events(self) -> Iterator[RunEvent]:
        """All events in order, redacted. Those of an agent in a pipeline come before the end of its
        node. May be read several times."""
        self.notices = Notices(more=self.notices.more)
        reader = LogReader(self.notices, self.redactor)
        if self.kind == "session" or self.folder is None:
            return reader.events(self.log)
        return _pipeline_events(self.folder, reader)

    def lines(self) -> Iterator[bytes]:
        """The same as lines of JSON, as they were written. Those of a session are not decoded,
        so events of a newer version are kept."""
        if self.kind == "pipeline" and self.folder is not None:
            return map(events.to_json, self.events())
        self.notices = Notices(more=self.notices.more)
        lines = LogReader(self.notices, self.redactor).lines(self.log)
        return (line for line in lines if _is_json(line))

    def diff(self, turn: int) -> str:
        """How a turn of a session changed files; empty if that is not stored."""
        if self.folder is None or self.meta is None:
            return ""
        found = store.SessionRecord(self.folder, self.meta).diff(turn)
        return self.redactor.clean_text(found)

    def receipt(self, turn: int) -> Receipt | None:
        """That of a run that ended with this turn of a session; None if none is stored. A run of
        several rounds has it there, not in its last event."""
        from corral._verification.receipt_file import read_receipt

        if self.folder is None or self.meta is None:
            return None
        file = store.SessionRecord(self.folder, self.meta).receipt_file(f".{turn}")
        try:
            return read_receipt(file).receipt if fs.is_file(file) else None
        except CorralError:
            return None


# Finding.


def find(name: str, *, db: str | None = None) -> StoredRun:
    """The run with this id, with a unique beginning of it, or ``last``; or of this file or folder.
    ``db`` is the database of a pipeline run. Raises ``ConfigError`` or ``ResumeLost``."""
    if fs.exists(name) and name != LAST:
        return at(Path(name))
    run = lookup.find(name, db=db)
    if not kind_of(run).formats:
        raise ConfigError(
            f"{run.id} is a {run.kind}, which has no events of its own",
            hint=f"Its parts have them: corral runs show {run.id}",
        )
    if not run.folder or not fs.is_dir(run.folder):
        raise ConfigError(
            f"the run folder {run.folder} is not on this machine",
            hint="Run the command where the run was executed, or copy the folder and name it.",
        )
    return at(Path(run.folder))


def of_session(record: store.SessionRecord) -> StoredRun:
    """Raises ``ResumeLost`` if the session was not recorded."""
    log = record.folder / store.EVENTS
    if not fs.exists(log):
        raise ResumeLost(
            f"session {record.meta.id} has no transcript",
            hint="It was run with record=False, or is the question of a person.",
        )
    meta = record.meta
    return StoredRun(
        kind="session",
        id=meta.id,
        title=meta.title or meta.id,
        log=log,
        folder=record.folder,
        meta=meta,
    )


def at(path: Path) -> StoredRun:
    """The run of a file of events, of the folder of a session, or of a run folder. Raises
    ``ConfigError`` or ``ResumeLost``."""
    path = path.absolute()
    if not fs.is_dir(path):
        return _of_file(path)
    if (record := store.open_folder(path)) is not None:
        return of_session(record)
    manifest = read_manifest(path)
    if manifest is None:
        raise ConfigError(
            f"{path} is no run: it has neither {store.META} nor {run_dir.MANIFEST}",
            hint="Give the id of a run, the folder of one, or a file of events.",
        )
    name = as_text(manifest.get("goal")) or as_text(manifest.get("name"))
    run_id = as_text(manifest.get("run_id")) or path.name
    return StoredRun(
        kind="pipeline", id=run_id, title=name or run_id, log=path / run_dir.EVENTS, folder=path
    )


def _of_file(path: Path) -> StoredRun:
    if not fs.is_file(path):
        raise ConfigError(f"{path} is not a regular file")
    first = next(LogReader(Notices(), ExportRedactor()).events(path), None)
    if first is None and path.stat().st_size:
        raise ConfigError(
            f"{path} has no events", hint="Give a file that `corral run --json` wrote."
        )
    is_pipeline = isinstance(first, PipelineEvent)
    run_id = first.run_id.rpartition(".")[0] or first.run_id if first is not None else ""
    return StoredRun(
        kind="pipeline" if is_pipeline else "session",
        id=run_id or path.stem,
        title=first.name if isinstance(first, PipelineStarted) else path.name,
        log=path,
    )


# Reading.


class LogReader:
    """Reads the logs of one run, redacts them, and counts what is left out."""

    def __init__(self, notices: Notices, redactor: ExportRedactor) -> None:
        self._notices = notices
        self._redactor = redactor

    def events(self, path: Path) -> Iterator[RunEvent]:
        """The events of a file. Raises ``ConfigError`` if it cannot be read."""
        for line in self.lines(path):
            try:
                event = events.from_json(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self._notices.unreadable += 1
                continue
            if isinstance(event, Init) and event.version > VERSION:
                self._notices.newer = max(self._notices.newer, event.version)
            yield event

    def lines(self, path: Path) -> Iterator[bytes]:
        """The complete lines that the file has now, without newlines and empty lines."""
        try:
            with path.open("rb") as file:
                for line in self._complete_lines(file):
                    yield self._redactor.clean(line)
        except FileNotFoundError:
            return  # a run that has written nothing yet
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error

    def _complete_lines(self, file: BinaryIO) -> Iterator[bytes]:
        left = fs.status(file.fileno()).st_size
        while left > 0:
            line = file.readline(min(left, MAX_LINE))
            left -= len(line)
            if not line:
                return  # it was made shorter meanwhile
            if line.endswith(b"\n"):
                if line := line.strip():
                    yield line
            elif left > 0:
                self._notices.too_long += 1
                left -= _skip_line(file, left)
            elif _is_json(line):
                yield line  # the last line of a file that another program wrote
            else:
                self._notices.is_cut = True


def _skip_line(file: BinaryIO, left: int) -> int:
    """Read to the end of the line; returns the number of bytes."""
    skipped = 0
    while skipped < left:
        piece = file.readline(min(left - skipped, 1024 * 1024))
        skipped += len(piece)
        if not piece or piece.endswith(b"\n"):
            break
    return skipped


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _pipeline_events(folder: Path, reader: LogReader) -> Iterator[RunEvent]:
    started: dict[str, str] = {}
    for event in reader.events(folder / run_dir.EVENTS):
        if isinstance(event, StepStarted) and event.node is not None:
            started[event.visit] = event.node
        elif isinstance(event, StepCompleted | StepFailed):
            node = started.pop(event.visit, event.node)
            yield from _visit_events(folder, event.visit, node, reader)
        yield event
    for visit, node in started.items():  # they had not ended
        yield from _visit_events(folder, visit, node, reader)


def _visit_events(
    folder: Path, visit: str, node: str | None, reader: LogReader
) -> Iterator[RunEvent]:
    """The events of a node's agents, and of the pipeline that it started."""
    place = visit_folder(folder, visit)
    for event in reader.events(place / run_dir.EVENTS):
        yield event if event.node == node else msgspec.structs.replace(event, node=node)
    if fs.exists(place / "child" / run_dir.EVENTS):
        yield from _pipeline_events(place / "child", reader)


def visit_folder(folder: Path, visit: str) -> Path:
    """Where a run folder has the files of a visit; those of an earlier round were moved."""
    here = run_dir.RunDir(folder).visit_dir(visit)
    if fs.exists(here):
        return here
    moved = (folder / run_dir.ROUNDS).glob(f"*/{run_dir.VISITS}/{here.name}")
    return next(moved, here)


def copy_log(path: Path, out: Callable[[bytes], object], reader: LogReader, limit: int) -> int:
    """Copy the lines of a log. Of a log over ``limit`` bytes the middle is left out, and a line
    there says so. Returns how many lines were left out."""
    size = path.stat().st_size if fs.exists(path) else 0
    at = skipped = total = 0
    for line in reader.lines(path):
        at += len(line) + 1
        if limit // 2 < at < size - limit // 2:
            skipped += 1
            total += 1
            continue
        if skipped:
            out(events.to_json(Log(f"{skipped:,} events are left out here")) + b"\n")
            skipped = 0
        out(line + b"\n")
    return total
