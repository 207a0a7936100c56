"""Finds runs: by an id, a unique beginning of it, or ``last``; and lists those that fit a query.

``last`` is the newest run of any kind in this project, else the newest anywhere, which is said. A
run that runs is newer than one that has ended, and one that waits for a person is the newest. All
of this blocks.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from corral._core.lookup import LAST, MAX_LISTED
from corral._engine import query
from corral._engine.batch import query as batches
from corral._engine.dbos import database
from corral._pipelines.execution.run_dir import MANIFEST
from corral._runs.durable_runs import read_manifest
from corral._runs.kinds import KINDS
from corral._runs.run_record import Kind, Run, Sources, State
from corral._system import fs, threads
from corral._system.git.scan import project_of
from corral.errors import ConfigError, CorralError, FormatUnsupported, ResumeLost
from corral.values import as_text


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list. Conditions that are not given hold for every run."""

    kind: Kind | None = None
    state: State | None = None
    project: str | None = None
    """A folder: runs of its project."""
    agent: str | None = None
    text: str | None = None
    """In the id, the title or the reason; of sessions anywhere in the transcript."""
    since: float | None = None
    """Changed after this time, in seconds since the epoch."""
    parts: bool = False
    """Also the runs that are parts of others."""
    limit: int | None = None


def list_runs(query: RunQuery, *, db: str | None = None) -> list[Run]:
    """The runs that fit, the newest first."""
    sources = Sources.read(db, query.text or "")
    project = None if query.project is None else project_of(os.path.abspath(query.project))
    runs = [
        run
        for run in _all(sources, KINDS if query.kind is None else [query.kind])
        if query.state in (None, run.state)
        and project in (None, run.project)
        and (query.agent is None or query.agent in run.agent.split(", "))
        and (query.since is None or max(run.updated, run.started) >= query.since)
        and (query.parts or not run.parent)
        and _has_text(run, query.text)
    ]
    runs.sort(key=_age, reverse=True)
    return runs[: query.limit]


def _has_text(run: Run, text: str | None) -> bool:
    """Sessions were searched by their index."""
    if not text or run.kind == "session":
        return True
    return text.lower() in f"{run.id}\n{run.title}\n{run.reason}".lower()


def _age(run: Run) -> tuple[bool, bool, float, str]:
    return run.is_open, run.state == "waiting", max(run.updated, run.started), run.id


def find(
    name: str, *, db: str | None = None, kinds: Iterable[str] = KINDS, cwd: str | None = None
) -> Run:
    """The run that a name stands for, of one of these kinds; or that of a run folder. ``last`` is
    that of the project of ``cwd`` (the current folder). Raises ``ResumeLost`` for none, and
    ``ConfigError`` for several."""
    sources = Sources.read(db)
    if name == LAST:
        return _last([run for run in _all(sources, KINDS) if not run.parent], [*kinds], cwd)
    if os.sep in name and fs.is_dir(name):
        folder, name = name, as_text((read_manifest(Path(name)) or {}).get("run_id"))
        if not name:
            raise ConfigError(
                f"{folder} is not a run folder: it has no {MANIFEST} with a run_id",
                hint="Give the id of a run: corral runs list",
            )
    runs = [*_all(sources, kinds)]
    fitting = [run for run in runs if run.id == name] or [
        run
        for run in runs
        # The last part of an id is random: people copy it, because the rest is often the same.
        if name and (run.id.startswith(name) or run.id.rpartition("-")[2].startswith(name))
    ]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        named = ", ".join(f"{run.id} ({run.kind})" for run in fitting[:MAX_LISTED])
        more = f" and {len(fitting) - MAX_LISTED:,} more" if len(fitting) > MAX_LISTED else ""
        raise ConfigError(
            f"{len(fitting):,} runs are called {name!r} or begin so: {named}{more}",
            hint="Write more of the id.",
        )
    _check_format(name, db)
    raise ResumeLost(
        f"no run is called {name!r}",
        hint="`corral runs list` lists them. A conversation that an agent stored without corral"
        " cannot be resumed.",
    )


def _check_format(name: str, db: str | None) -> None:
    """Raises ``FormatUnsupported`` if a database has this run in a format that is not read."""
    if not database.is_installed():
        return
    for ask in (query.find_run, batches.show_batch):
        try:
            threads.blocking(ask(name, db=db))
        except FormatUnsupported:
            raise
        except CorralError:
            continue


def _all(sources: Sources, kinds: Iterable[str]) -> Iterator[Run]:
    """What cannot be read is said, and left out."""
    for name in kinds:
        try:
            yield from KINDS[name].list_runs(sources)
        except CorralError as error:
            if sources.db is not None:
                raise
            warnings.warn(f"some runs cannot be read: {error.message}", stacklevel=2)


def _last(runs: list[Run], kinds: list[str], cwd: str | None) -> Run:
    runs.sort(key=_age, reverse=True)
    if not runs:
        raise ResumeLost("there is no run yet", hint="`corral run PROMPT` starts one.")
    project = project_of(os.path.abspath(cwd or "."))
    here = [run for run in runs if run.project == project]
    run = (here or runs)[0]
    if run.kind in kinds:
        if not here:
            place = run.project or "another folder"
            message = f"there is no run in this project; last is the {run.kind} {run.id} in {place}"
            warnings.warn(message, stacklevel=3)
        return run
    wanted = " or ".join(kinds)
    fitting = [each for each in (*here, *runs) if each.kind in kinds]
    hint = f"See: corral runs show {run.id}"
    if fitting:
        hint = f"The newest {wanted} is {fitting[0].id}. {hint}"
    raise ConfigError(f"last is the {run.kind} {run.id}, not a {wanted}", hint=hint)
