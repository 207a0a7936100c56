"""``corral worker``: a process that executes runs of a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import click

from corral._cli.command_types import enable_gc, examples, plain_option
from corral._cli.options import DB, IMPORT, import_modules
from corral._cli.ui.terminal import echo
from corral.errors import ConfigError

if TYPE_CHECKING:
    from corral._engine.dbos.client import QueueLimit


@click.command(
    "worker",
    epilog=examples(
        "corral worker --db postgresql://host/corral --concurrency 20",
        "corral worker --queue nightly",
    ),
)
@DB
@plain_option("--queue queue_names NAME...", "Take the runs of this queue.  [default: default]")
@plain_option(
    "--concurrency N",
    "Concurrent nodes in this worker.  [default: no limit]",
    type=click.IntRange(1),
)
@plain_option(
    "--limit limits AGENT=N...",
    "Concurrent nodes of this agent in all workers of the queue; AGENT=each:N in each"
    " worker, AGENT=30/1m started per minute, or several with commas.",
)
@IMPORT
@plain_option(
    "--drain TIME", "Time for running nodes to finish after the first signal.", default="60s"
)
@plain_option("--grace TIME", "End if the database was unreachable for this time.", default="2m")
def command(
    *,
    db: str | None,
    queue_names: tuple[str, ...],
    concurrency: int | None,
    limits: tuple[str, ...],
    modules: tuple[str, ...],
    drain: float,
    grace: float,
) -> int:
    """Execute the runs of a database, alone or with other workers, until SIGINT or SIGTERM.

    The first signal lets running nodes finish and takes no others; a second one ends at
    once. Nothing is lost: another worker continues, or this one when it is started again.
    """
    from corral._engine.dbos import database
    from corral._engine.dbos.client import DEFAULT_QUEUE
    from corral._engine.worker import worker

    database.require()
    if not all(name.strip() for name in queue_names):
        raise ConfigError("a queue needs a name")
    import_modules(modules)
    enable_gc()
    shown = database.find(db).shown
    names = queue_names or (DEFAULT_QUEUE,)
    parsed = [parse_limit(text) for text in limits]
    for text in limits:
        if problem := unknown_name(text):
            echo(f"corral: --limit {text}: {problem}", err=True)

    def ready(_executor: object) -> None:
        echo(f"serving {', '.join(names)} of {shown}", err=True)

    options = worker.WorkerOptions(
        queue_names=names,
        limits=parsed,
        concurrency=concurrency,
        drain=drain,
        grace=grace,
    )
    worker.serve(db, options, on_ready=ready)
    return 0


class _LimitParts(TypedDict, total=False):
    """The fields of a ``QueueLimit``."""

    everywhere: int
    each: int
    starts: int
    per: float


def parse_limit(text: str) -> QueueLimit:
    """Parse a ``--limit``. Raises ``ConfigError``."""
    from corral._engine.dbos.client import QueueLimit, resource_name

    name, _, limits = text.rpartition("=")
    try:
        if not name:
            raise ValueError("no agent is named")
        found: _LimitParts = {}
        for each in limits.split(","):
            found.update(_parse_part(each.strip()))
    except ValueError as error:
        raise ConfigError(
            f"--limit {text}: {error}",
            hint="Write AGENT=N, as in codex-cli=2; or codex-cli=4,each:2,30/1m: concurrent in"
            " all workers, in each of them, and started in that time.",
        ) from error
    return QueueLimit(resource=resource_name(name), **found)


def unknown_name(text: str) -> str:
    """What a ``--limit`` with a name that is neither an agent nor a vendor does, as a text; empty
    if the name is known."""
    from corral._models import registry as models
    from corral._system import config
    from corral.errors import UnknownAgent

    name = text.rpartition("=")[0]
    agent = name.partition("@")[0]
    if agent in {provider.name for provider in models.all_providers()}:
        return ""
    try:
        config.find_agent(agent)
    except UnknownAgent as error:
        hint = f" {error.hint}" if error.hint else ""
        return f"{error.message}: it limits only nodes with queue={name}.{hint}"
    return ""


def _parse_part(text: str) -> _LimitParts:
    """Parse one part of a ``--limit``. Raises ``ValueError``."""
    from corral._core.durations import seconds

    kind, colon, number = text.rpartition(":")
    if colon:
        if kind != "each":
            raise ValueError(f"{kind!r} is not a kind of limit")
        return {"each": int(number)}
    count, slash, period = text.partition("/")
    return {"starts": int(count), "per": seconds(period)} if slash else {"everywhere": int(text)}
