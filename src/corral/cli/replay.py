"""``corral replay``: play a stored run in this terminal."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corral.cli.options import DB, DURATION, completing
from corral.cli.ui.terminal import echo
from corral.errors import ConfigError, ResumeLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from corral.cli.ui.playback import Pace
    from corral.pipelines.events import RunEvent

INTERRUPTED = 130


class _Speed(click.ParamType[float]):
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


@click.command("replay")
@click.argument("name", metavar="[RUN]", default="last", shell_complete=completing("sessions"))
@click.option(
    "--speed",
    type=_Speed(),
    default="1",
    show_default=True,
    metavar="N|max",
    help="How many times as fast as the run; max waits for nothing.",
)
@click.option(
    "--longest-pause",
    type=DURATION,
    default="5s",
    show_default=True,
    metavar="TIME",
    help="Shorten pauses between events to this time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print events, one JSON object per line.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the answers.")
@DB
def command(
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
    newest session, a transcript (events.ndjson, or the output of corral run --json), or a run
    folder.

    To act as a recorded program, use corral record play.
    """
    from corral.cli.ui.playback import Pace
    from corral.system import threads

    async def play() -> int:
        pace = Pace(None if math.isinf(speed) else speed, longest_pause)
        transcript = _transcript(name)
        if transcript is not None:
            from corral.cli.ui import playback

            def show_prompt(text: str) -> None:
                if not (quiet or as_json):
                    echo("".join(f"> {line}\n" for line in text.splitlines()), err=True, nl=False)

            shown = playback.Playback(playback.recorded(transcript, pace), show_prompt)
            shown.ended = pace.ended
            await playback.show(shown, as_json=as_json, quiet=quiet)
            return INTERRUPTED if shown.failed else 0
        return await _play_pipeline(name, db, pace, as_json=as_json, quiet=quiet)

    return threads.run_event_loop(play())


def _transcript(name: str) -> Path | None:
    """The transcript of a session; None if the name is not that of one."""
    from corral.sessions import store

    given = Path(name)
    if given.is_file():
        return given
    if given.is_dir():
        return None
    try:
        record = store.find(name)
    except ResumeLost:
        return None
    except ConfigError:
        if "/" in name:
            return None
        raise
    path = record.folder / store.EVENTS
    if not path.exists():
        raise ConfigError(f"session {record.meta.id} has no transcript")
    return path


async def _play_pipeline(
    name: str, db: str | None, pace: Pace, *, as_json: bool, quiet: bool
) -> int:
    from corral.cli.ui.pipeline_progress import Progress
    from corral.cli.ui.signals import signals
    from corral.pipelines.events import to_json
    from corral.pipelines.graph import Graph

    progress = Progress(Graph(name=name), enabled=not quiet and not as_json)
    task = asyncio.current_task()

    def end() -> None:
        if task is not None:
            task.cancel()

    try:
        with signals(end), progress:
            async for event in await _run_events(name, db):
                await pace.wait(event.ts)
                if as_json:
                    echo(to_json(event).decode())
                progress.show(event)
    except asyncio.CancelledError:
        return INTERRUPTED
    return 0


async def _run_events(name: str, db: str | None) -> AsyncIterator[RunEvent]:
    stored = _events_file(name)
    if stored is not None:
        from corral.cli.ui import playback

        return playback.recorded_run(stored)
    from corral.engine import query
    from corral.engine.dbos import database

    database.require()
    run = await query.find_run(name, db=db)
    shown = await query.show(run, db=db)
    if shown.output is None:
        raise ConfigError(f"{run} has not ended", hint=f"corral watch {run} follows it.")
    return query.follow(run, db=db)


def _events_file(name: str) -> Path | None:
    """The events of a run folder; None if the name is not that of a folder."""
    from corral.pipelines.execution.run_dir import EVENTS

    folder = Path(name)
    if not folder.is_dir():
        return None
    if not (folder / EVENTS).is_file():
        raise ConfigError(f"{folder} has no {EVENTS}: it is not a run folder")
    return folder / EVENTS
