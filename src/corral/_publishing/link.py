"""What connects a session with people elsewhere: its entry among the running ones, and the messages
that it sends (``notify``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakMethod

from msgspec.structs import replace

from corral._publishing import notify
from corral._publishing.publisher import LiveEntry, RunControls, current
from corral._publishing.records import LiveRun, State
from corral.errors import ConfigError
from corral.options import RunOptions

if TYPE_CHECKING:
    from corral._core.spending import Raise
    from corral._metering.budget import Budget


_log = logging.getLogger("corral.publishing")


class SessionLink:
    """Made when it is first needed. The session's record holds it, and closes it."""

    __slots__ = ("__weakref__", "_end_watch", "_notifier", "entry", "problems")

    def __init__(self) -> None:
        self.entry: LiveEntry | None = None
        self.problems: Sequence[str] = ()
        """Messages that could not be sent, and why."""
        self._notifier: notify.Notifier | None = None
        self._end_watch: Callable[[], None] = _nothing
        """Ends the watch on the budget."""

    def publish(
        self,
        run: LiveRun,
        cancel: Callable[[], None],
        steer: WeakMethod[Callable[[str], None]] | None,
        budget: Budget | None = None,
    ) -> LiveEntry:
        """Show the current turn to others. ``cancel`` and ``steer`` do not keep it alive."""

        def steer_turn(text: str) -> None:
            function = steer() if steer is not None else None
            if function is not None:
                function(text)

        def add_budget(more: Raise) -> None:
            if budget is None:
                return
            if budget.owner:
                raise ConfigError(
                    "this session has no budget of its own: it uses that of the run"
                    f" {budget.owner}",
                    hint=f"Raise that: corral runs budget {budget.owner} +1.00",
                )
            budget.raise_limits(more)

        controls = RunControls(
            loop=asyncio.get_running_loop(),
            cancel=cancel,
            steer=None if steer is None else steer_turn,
            add_budget=add_budget if budget is not None else None,
        )
        self._unwatch()
        if budget is not None:
            run = with_budget(run, budget)
            # A budget may live longer than the session, and calls back in any thread.
            weak = weakref.ref(self)
            self._end_watch = watch_budget(
                budget, lambda: None if (link := weak()) is None else link.entry
            )
        if self.entry is None:
            self.entry = current().add(run, controls)
        else:
            self.entry.update(run, controls)
        return self.entry

    def show_limit(self, until: float | None) -> None:
        """Show that the turn waits for a rate limit until then, or (None) that it goes on."""
        if self.entry is not None:
            state: State = "running" if until is None else "rate_limited"
            self.entry.update(replace(self.entry.run, state=state, until=until))

    def _unwatch(self) -> None:
        end, self._end_watch = self._end_watch, _nothing
        end()

    def turn_ended(self) -> None:
        self._unwatch()
        if self.entry is not None:
            self.entry.set_idle()

    def close(self) -> None:
        """The session is closed."""
        self._unwatch()
        if self.entry is not None:
            self.entry.close()
            self.entry = None
        problems, self.problems = self.problems, ()
        for problem in problems:
            warnings.warn(f"not notified: {problem}", stacklevel=3)

    def __del__(self) -> None:
        """The session was dropped without being closed."""
        self._unwatch()
        if self.entry is not None:
            self.entry.drop()

    def notify(self, run: RunOptions, message: notify.RunMessage) -> None:
        """Send a message, if the run's options want it."""
        if run.notify is None or not notify.wants(run.notify_on, message.event):
            return

        def failed(problem: str) -> None:
            _log.info("a notification was not sent: %s", problem)
            self.problems = (*self.problems, problem)

        if self._notifier is None:
            self._notifier = notify.Notifier(run.notify, failed)
        self._notifier.send(message)

    @property
    def is_sending(self) -> bool:
        """Whether messages are on their way."""
        return self._notifier is not None and self._notifier.is_sending

    async def finish(self) -> None:
        """Wait for messages on their way, for a bounded time."""
        if self._notifier is not None:
            await self._notifier.finish()


def _nothing() -> None:
    pass


def watch_budget(budget: Budget, find: Callable[[], LiveEntry | None]) -> Callable[[], None]:
    """Show in the entry that ``find`` returns what is spent from now on, and whether a call waits.
    Returns the function that ends that."""
    loop = asyncio.get_running_loop()

    def show() -> None:
        entry = find()
        if entry is not None and (run := with_budget(entry.run, budget)) != entry.run:
            entry.update(run)

    def changed() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(show)

    *_, outermost = budget.chain()
    return outermost.on_change(changed)


def with_budget(run: LiveRun, budget: Budget) -> LiveRun:
    """The run with what is spent now, and whether a call waits."""
    states = budget.states()
    is_paused = any(each.is_paused for each in states)
    state = run.state
    if is_paused and state == "running":
        state = "paused"
    elif not is_paused and state == "paused":
        state = "running"
    return replace(run, budgets=states, state=state)
