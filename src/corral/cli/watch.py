"""``corral watch``: follow a run of another process in this terminal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corral.cli.exit_codes import exit_code
from corral.cli.options import completing
from corral.cli.ui.terminal import echo
from corral.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from corral.live import LiveRun
    from corral.pipelines.events import RunEvent

INTERRUPTED = 130
NO_PROCESS = 1


@click.command("watch")
@click.argument("name", metavar="[RUN]", default="last", shell_complete=completing("sessions"))
@click.option("--json", "as_json", is_flag=True, help="Print events, one JSON object per line.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the answer.")
def command(name: str, as_json: bool, quiet: bool) -> int:
    """Follow a running run of another process, until it ends.

    RUN is the id of a session or pipeline, a unique beginning of it, or 'last', the newest that
    runs. A session is shown from its current turn on. Ctrl-C ends the watching, not the run. The
    exit code is that of the run. A batch is shown by corral batches.
    """
    from corral import live
    from corral.system import threads

    found = live.find(name)
    if found is None:
        raise ConfigError(
            "nothing is running" if name == "last" else f"{name} is not running",
            hint=f"corral replay {name} plays a run that has ended.",
        )
    run = found[1]
    if run.kind == "batch":
        raise ConfigError(f"{run.id} is a batch", hint=f"corral batches show {run.id}")
    if run.kind == "pipeline":
        return threads.run_event_loop(_watch_pipeline(run, as_json=as_json, quiet=quiet))
    if not run.recorded:
        raise ConfigError(
            f"{run.id} stores no transcript", hint="Watch the pipeline that it belongs to."
        )
    return threads.run_event_loop(_watch_session(run, as_json=as_json, quiet=quiet))


async def _watch_session(run: LiveRun, *, as_json: bool, quiet: bool) -> int:
    from corral.cli.ui import playback
    from corral.sessions.store import EVENTS
    from corral.system import paths

    events = playback.followed(paths.sessions() / run.id / EVENTS, lambda: _is_busy(run.id))
    shown = playback.Playback(events, lambda text: _show_prompt(text, quiet=quiet or as_json))
    command = f"corral sessions answer {run.id} --allow"
    done = await playback.show(shown, as_json=as_json, quiet=quiet, answer_with=command)
    if done is not None:
        return exit_code(done)
    if shown.failed:
        return INTERRUPTED
    echo(f"corral: the process of {run.id} has ended, and its turn has not", err=True)
    return NO_PROCESS


async def _watch_pipeline(run: LiveRun, *, as_json: bool, quiet: bool) -> int:
    from corral.cli.ui.pipeline_progress import Progress
    from corral.cli.ui.signals import signals
    from corral.pipelines.events import PipelineCompleted, to_json
    from corral.pipelines.graph import Graph

    progress = Progress(Graph(name=run.title), enabled=not quiet and not as_json)
    task = asyncio.current_task()
    succeeded = False

    def end() -> None:
        if task is not None:
            task.cancel()

    try:
        with signals(end), progress:
            async for event in _events_of(run):
                if as_json:
                    echo(to_json(event).decode())
                progress.show(event)
                succeeded = succeeded or isinstance(event, PipelineCompleted)
    except asyncio.CancelledError:
        return INTERRUPTED
    return 0 if succeeded else NO_PROCESS


def _events_of(run: LiveRun) -> AsyncIterator[RunEvent]:
    from corral.cli.ui import playback
    from corral.pipelines.execution.run_dir import EVENTS

    if run.db is None:
        return playback.followed_run(Path(run.folder) / EVENTS, lambda: _is_busy(run.id))
    from corral.engine import query

    return query.follow(run.id, db=None if "***" in run.db else run.db)


def _is_busy(run: str) -> bool:
    from corral import live

    return any(each.id == run and each.state != "idle" for each in live.runs())


def _show_prompt(text: str, *, quiet: bool) -> None:
    if not quiet:
        echo("".join(f"> {line}\n" for line in text.splitlines()), err=True, nl=False)
