"""What a process shows of its runs to others, and the messages that it sends about them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec.structs import replace

from corral._core.display import shorten
from corral._system import clock
from corral.values import PUBLISH_AFTER

if TYPE_CHECKING:
    from corral._core.spending import Raise
    from corral._metering.budget import Budget


@contextlib.contextmanager
def published(
    kind: Literal["pipeline", "batch"],
    name: str,
    *,
    title: str = "",
    cwd: str = "",
    db: str | None = None,
    folder: str = "",
    cancel: Callable[[], None] | None = None,
    budget: Raisable | None = None,
) -> Generator[None]:
    """Within the block other processes can see the run, from ``PUBLISH_AFTER`` seconds on: a short
    one costs nothing. ``cancel`` is called in this event loop; without it, the run is cancelled
    through its database, and its budget is raised there."""
    loop = asyncio.get_running_loop()
    at_end = contextlib.ExitStack()

    def publish() -> None:
        # Loaded when the run is published: most end before.
        from corral._publishing.link import watch_budget, with_budget
        from corral._publishing.publisher import RunControls, current
        from corral._publishing.records import LiveRun

        hint = f"corral runs cancel {name}" if db is not None else "End its process."
        run = LiveRun(kind=kind, id=name, title=shorten(title), cwd=cwd, db=db, folder=folder)
        run = replace(run, since=clock.now())
        controls = RunControls(
            loop=loop,
            cancel=cancel,
            add_budget=None if budget is None else budget.add_budget,
            cancel_hint=hint,
        )
        own = None if budget is None else budget.budget
        entry = current().add(run if own is None else with_budget(run, own), controls)
        at_end.callback(entry.close)
        if own is not None:
            at_end.callback(watch_budget(own, lambda: entry))

    def try_publish() -> None:
        with contextlib.suppress(OSError, ImportError):
            publish()  # without a free descriptor it stays invisible

    timer = loop.call_later(PUBLISH_AFTER, try_publish)
    with at_end:
        at_end.callback(timer.cancel)
        yield


class Raisable(Protocol):
    """A run in memory whose budget can be raised."""

    @property
    def budget(self) -> Budget | None: ...

    def add_budget(self, more: Raise) -> None: ...
