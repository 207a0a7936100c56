"""``corral runs replay`` and ``watch``: show the events of a transcript as ``corral run`` shows
those of its agent, as they were recorded, or as another process writes them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corral._cli.command_types import NumberType, examples, plain_option
from corral._cli.options import DB, completing, resolve_last
from corral._cli.ui.progress import TurnProgress
from corral._cli.ui.signals import INTERRUPTED, signals
from corral._cli.ui.terminal import echo
from corral._cli.ui.turn_output import EventPrinter, answer_printer, exit_code, print_turn
from corral._core.lookup import LAST
from corral._pipelines.events import PipelineCompleted, PipelineEvent, RunEvent, to_json
from corral._runs.following import current_turn, decode, followed
from corral.errors import ConfigError
from corral.events import Done, Event, Vendor

if TYPE_CHECKING:
    from corral.live import LiveRun

NO_PROCESS = 1


class Pace:
    """Waits between two events as long as the run did. ``speed`` is a factor; None: no waiting."""

    def __init__(self, speed: float | None, longest: float) -> None:
        self._speed, self._longest = speed, longest
        self._last: float | None = None
        self.ended: asyncio.Event = asyncio.Event()

    async def wait(self, ts: float) -> None:
        last, self._last = self._last, ts or self._last
        if self._speed is None or last is None or not ts:
            return
        pause = min((ts - last) / self._speed, self._longest)
        if pause > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.ended.wait()


class Playback:
    """The turns of a transcript. Each iteration gives the events of the next turn. Prompts are
    printed on stderr, unless it is ``quiet``."""

    def __init__(
        self, events: AsyncIterator[RunEvent], ended: asyncio.Event, *, quiet: bool
    ) -> None:
        self._events = events
        self._ended = ended
        self._quiet = quiet
        self.failed: bool = False
        self.is_over: bool = False
        self.in_turn: bool = False
        """A turn has started and has not ended."""
        self.notes: tuple[str, ...] = ()

    def cancel(self) -> None:
        """Stop to show it. A run that is watched goes on."""
        self.failed = self.is_over = True
        self._ended.set()

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for event in self._events:
            if self.failed:
                return
            if isinstance(event, PipelineEvent):
                continue
            self.in_turn = not isinstance(event, Done)
            if not (isinstance(event, Vendor) and event.name == "prompt"):
                yield event
            elif not self._quiet:
                lines = str(event.data).splitlines()
                echo("".join(f"> {line}\n" for line in lines), err=True, nl=False)
            if isinstance(event, Done):
                return
        self.is_over = True

    async def show(self, *, as_json: bool, quiet: bool, answer_with: str = "") -> Done | None:
        """Print all turns; returns the last event, if the last turn has ended."""
        last: Done | None = None
        while not self.is_over:
            progress = TurnProgress(enabled=not quiet)
            progress.answer_with = answer_with
            printer = EventPrinter() if as_json else answer_printer(quiet=quiet)
            done = await print_turn(self, printer, progress)
            if done is not None:
                progress.summary(done, resume=False)
                last = done
        return None if self.in_turn else last


async def recorded(path: Path, pace: Pace) -> AsyncIterator[RunEvent]:
    """The events of a file, at the pace of the run."""
    with path.open("rb") as file:
        for line in file:
            event = decode(line)
            if event is not None:
                await pace.wait(event.ts)
                yield event


async def show_pipeline(
    title: str, events: AsyncIterator[RunEvent], *, as_json: bool, quiet: bool
) -> bool | None:
    """Print the events of a pipeline to the end. Returns whether the run succeeded; None if Ctrl-C
    ended this."""
    from corral._cli.ui.pipeline_output import PipelineProgress
    from corral._pipelines.graph import Graph

    progress = PipelineProgress(Graph(name=title), enabled=not quiet and not as_json)
    task = asyncio.current_task()
    succeeded = False

    def end() -> None:
        if task is not None:
            task.cancel()

    try:
        with signals(end), progress:
            async for event in events:
                if as_json:
                    echo(to_json(event).decode())
                progress.show(event)
                succeeded = succeeded or isinstance(event, PipelineCompleted)
    except asyncio.CancelledError:
        return None
    return succeeded


class _Speed(NumberType):
    name = "speed"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            speed = math.inf if value == "max" else float(str(value).removesuffix("x"))
        except ValueError:
            speed = 0.0
        if not speed > 0:
            self.fail(f"{value!r} is not a positive number, or max", param, ctx)
        return speed


@click.command(
    "replay", epilog=examples("corral runs replay last", "corral runs replay last --speed 10")
)
@click.argument("name", metavar="[RUN]", default="last", shell_complete=completing("runs"))
@plain_option(
    "--speed N|max",
    "How many times as fast as the run; max waits for nothing.",
    type=_Speed(),
    default="1",
)
@plain_option("--longest-pause TIME", "Shorten pauses between events to this time.", default="5s")
@plain_option("--json as_json", "Print events, one JSON object per line.")
@plain_option("-q --quiet", "Print only the answers.")
@DB
def replay(
    *,
    name: str,
    speed: float,
    longest_pause: float,
    as_json: bool,
    quiet: bool,
    db: str | None,
) -> int:
    """Play a stored run in the terminal, as it happened.

    RUN is the id of a session or of a pipeline's run, a unique beginning of it, 'last' for the
    newest in this folder, a transcript (events.ndjson, or the output of corral run --json), or a
    run folder.

    To act as a recorded program, use corral fake play.
    """
    from corral._system import threads

    log, is_pipeline = _find_log(name, db)

    async def play() -> int:
        pace = Pace(None if math.isinf(speed) else speed, longest_pause)
        if log is not None and not is_pipeline:
            shown = Playback(recorded(log, pace), pace.ended, quiet=quiet or as_json)
            await shown.show(as_json=as_json, quiet=quiet)
            return INTERRUPTED if shown.failed else 0
        events = recorded(log, pace) if log is not None else await _durable_events(name, db, pace)
        succeeded = await show_pipeline(name, events, as_json=as_json, quiet=quiet)
        return INTERRUPTED if succeeded is None else 0

    return threads.run_event_loop(play())


def _find_log(name: str, db: str | None) -> tuple[Path | None, bool]:
    """The log of a run, and whether it is that of a pipeline; no path if only its database has the
    events."""
    from corral._pipelines.execution import run_dir
    from corral._runs import lookup
    from corral._runs.kinds import kind_of

    path = Path(name)
    if path.is_file():
        return path, False
    if path.is_dir() and name != LAST:
        if not (path / run_dir.EVENTS).is_file():
            raise ConfigError(f"{path} has no {run_dir.EVENTS}: it is not a run folder")
        return path / run_dir.EVENTS, True
    run = lookup.find(name, db=db)
    if not kind_of(run).formats:
        raise ConfigError(
            f"{run.id} is a {run.kind}, which has no events of its own",
            hint=f"Its parts have them: corral runs show {run.id}",
        )
    if run.durable:
        return None, True
    path = Path(run.folder) / run_dir.EVENTS
    if not path.exists():
        raise ConfigError(f"{run.kind} {run.id} has no transcript")
    return path, run.kind != "session"


async def _durable_events(name: str, db: str | None, pace: Pace) -> AsyncIterator[RunEvent]:
    """The events of a durable run that has ended, at the pace of the run."""
    from corral._engine import query
    from corral._runs import lookup

    run = (await asyncio.to_thread(lookup.find, name, db=db)).id
    if (await query.show(run, db=db)).output is None:
        raise ConfigError(f"{run} has not ended", hint=f"corral runs watch {run} follows it.")

    async def events() -> AsyncIterator[RunEvent]:
        async for event in query.follow(run, db=db):
            await pace.wait(event.ts)
            yield event

    return events()


@click.command(
    "watch",
    epilog=examples("corral runs watch last", "corral runs watch 1f3a9c --json"),
)
@click.argument("name", metavar="[RUN]", default="last", shell_complete=completing("runs"))
@plain_option("--json as_json", "Print events, one JSON object per line.")
@plain_option("-q --quiet", "Print only the answer.")
def watch(name: str, as_json: bool, quiet: bool) -> int:
    """Follow a running run of another process, until it ends.

    RUN is the id of a session or pipeline, a unique beginning of it, or 'last', the newest in
    this folder. A session is shown from its current turn on. Ctrl-C ends the watching, not the
    run. The exit code is that of the run. A batch is shown by corral runs show.
    """
    from corral import live
    from corral._system import threads

    name = resolve_last(name)
    found = live.find(name)
    if found is None:
        hint = f"corral runs replay {name} plays a run that has ended."
        raise ConfigError(f"{name} is not running", hint=hint)
    run = found[1]
    if run.kind == "batch":
        raise ConfigError(f"{run.id} is a batch", hint=f"corral runs show {run.id}")
    if run.kind == "session" and not run.recorded:
        raise ConfigError(
            f"{run.id} stores no transcript", hint="Watch the pipeline that it belongs to."
        )
    watching = _watch_pipeline if run.kind == "pipeline" else _watch_session
    return threads.run_event_loop(watching(run, as_json=as_json, quiet=quiet))


async def _watch_session(run: LiveRun, *, as_json: bool, quiet: bool) -> int:
    from corral._sessions.store import EVENTS
    from corral._system import paths

    path = paths.sessions() / run.id / EVENTS
    events = followed(path, lambda: _is_busy(run.id), current_turn(path))
    shown = Playback(events, asyncio.Event(), quiet=quiet or as_json)
    command = f"corral runs answer {run.id} --allow"
    done = await shown.show(as_json=as_json, quiet=quiet, answer_with=command)
    if done is not None:
        return exit_code(done)
    if shown.failed:
        return INTERRUPTED
    echo(f"corral: the process of {run.id} has ended, and its turn has not", err=True)
    return NO_PROCESS


async def _watch_pipeline(run: LiveRun, *, as_json: bool, quiet: bool) -> int:
    from corral._pipelines.execution.run_dir import EVENTS

    if run.db is None:
        events = followed(Path(run.folder) / EVENTS, lambda: _is_busy(run.id))
    else:
        from corral._engine import query  # not without the extra

        events = query.follow(run.id, db=None if "***" in run.db else run.db)
    succeeded = await show_pipeline(run.title, events, as_json=as_json, quiet=quiet)
    if succeeded is None:
        return INTERRUPTED
    return 0 if succeeded else NO_PROCESS


def _is_busy(run: str) -> bool:
    from corral import live

    return any(each.id == run and each.state != "idle" for each in live.runs())
