"""What connects one session with people elsewhere: its entry among the running ones, and the
messages that it sends (``notify``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakMethod

from msgspec.structs import replace

from corral.errors import ConfigError
from corral.events import Done, Error
from corral.live import notify
from corral.live.publisher import Controls, Entry, current
from corral.live.records import LiveRun, Pending, State

if TYPE_CHECKING:
    from corral.metering.budget import Budget
    from corral.sessions.prepared_run import PreparedRun
    from corral.sessions.store import SessionRecord

_log = logging.getLogger("corral.live")

LONGEST_TEXT = 4000
"""Characters of an answer in a message."""
PERSON = "person"
"""The capability of an agent that is a person."""


class SessionLink:
    """Made when it is first needed. The session's record holds it, and closes it."""

    __slots__ = ("__weakref__", "_end_watch", "_notifier", "entry", "problems")

    def __init__(self) -> None:
        self.entry: Entry | None = None
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
    ) -> Entry:
        """Show the current turn to others. ``cancel`` and ``steer`` do not keep it alive."""

        def steer_turn(text: str) -> None:
            function = steer() if steer is not None else None
            if function is not None:
                function(text)

        controls = Controls(
            loop=asyncio.get_running_loop(),
            cancel=cancel,
            steer=None if steer is None else steer_turn,
            add_budget=_raiser(budget),
        )
        self._unwatch()
        if budget is not None:
            run = _with_budget(run, budget)
            self._end_watch = self._watch(budget)
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

    def _watch(self, budget: Budget) -> Callable[[], None]:
        """Show what is spent from now on, and whether a call waits. A budget may live longer than
        the session, and calls back in any thread."""
        loop, weak = asyncio.get_running_loop(), weakref.ref(self)

        def show() -> None:
            link = weak()
            entry = None if link is None else link.entry
            if entry is not None and (run := _with_budget(entry.run, budget)) != entry.run:
                entry.update(run)

        def changed() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(show)

        *_, outermost = budget.chain()
        return outermost.on_change(changed)

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

    def notify(self, prepared: PreparedRun, message: notify.Message) -> None:
        """Send a message, if the run's options want it."""
        run = prepared.run
        if run.notify is None or not notify.wants(run.notify_on, message.event):
            return
        if self._notifier is None:
            self._notifier = notify.Notifier(run.notify, self._on_failure)
        self._notifier.send(message)

    @property
    def is_sending(self) -> bool:
        """Whether messages are on their way."""
        return self._notifier is not None and self._notifier.is_sending

    async def finish(self) -> None:
        """Wait for messages on their way, for a bounded time."""
        if self._notifier is not None:
            await self._notifier.finish()

    def _on_failure(self, problem: str) -> None:
        _log.warning("a notification was not sent: %s", problem)
        self.problems = (*self.problems, problem)


def link_of(record: SessionRecord) -> SessionLink:
    """The link of the session, made if there is none."""
    if record.link is None:
        record.link = SessionLink()
    return record.link


def publish_turn(
    prepared: PreparedRun,
    record: SessionRecord,
    title: str,
    cancel: Callable[[], None],
    steer: WeakMethod[Callable[[str], None]] | None,
    recorded: bool,
) -> SessionLink:
    """Show the current turn of the session to others. ``recorded``: it has a transcript."""
    link = link_of(record)
    link.publish(
        live_run(prepared, record, title, recorded=recorded), cancel, steer, prepared.budget
    )
    return link


def notify_question(
    prepared: PreparedRun, record: SessionRecord, title: str, question: str
) -> None:
    """Send a message about a question, if the run's options want it."""
    facts = run_facts(prepared, record, title)
    link_of(record).notify(prepared, question_message(facts, question))


def notify_end(prepared: PreparedRun, record: SessionRecord, title: str, done: Done) -> None:
    """Send a message about the end of a turn, if the run's options want it."""
    link_of(record).notify(prepared, end_message(run_facts(prepared, record, title), done))


def _nothing() -> None:
    pass


def _with_budget(run: LiveRun, budget: Budget) -> LiveRun:
    """The run with what is spent now, and whether a call waits."""
    states = budget.states()
    is_paused = any(each.is_paused for each in states)
    state = run.state
    if is_paused and state == "running":
        state = "paused"
    elif not is_paused and state == "paused":
        state = "running"
    return replace(run, budgets=states, state=state)


def _raiser(
    budget: Budget | None,
) -> Callable[[float | None, int | None, int | None], None] | None:
    """How the limits are raised; None without a budget."""
    if budget is None:
        return None

    def add(cost: float | None, tokens: int | None, calls: int | None) -> None:
        if budget.owner:
            raise ConfigError(
                f"this session has no budget of its own: it uses that of the run {budget.owner}",
                hint=f"Raise that: corral sessions budget {budget.owner} +AMOUNT",
            )
        budget.add(cost=cost, tokens=tokens, calls=calls)

    return add


def live_run(
    prepared: PreparedRun, record: SessionRecord, title: str, *, recorded: bool
) -> LiveRun:
    """A turn as others see it."""
    run, now = prepared.run, time.time()
    asks_person = PERSON in prepared.agent.capabilities
    question = Pending(request_id="", kind="question", title=title, since=now)
    return LiveRun(
        kind="session",
        id=record.meta.id,
        title=title,
        agent=prepared.agent.name,
        model=run.model,
        cwd=prepared.cwd,
        label=record.meta.label,
        recorded=recorded,
        state="waiting_person" if asks_person else "running",
        since=now,
        pending=(question,) if asks_person else (),
    )


def run_facts(prepared: PreparedRun, record: SessionRecord, title: str) -> notify.RunFacts:
    return notify.RunFacts(
        kind="session",
        id=record.meta.id,
        title=title,
        agent=prepared.agent.name,
        cwd=prepared.cwd,
        label=record.meta.label,
    )


def asked_message(facts: notify.RunFacts, pending: Pending) -> notify.Message:
    """About a permission request, or a question of the agent."""
    choices: tuple[str, ...] = ("allow_once", "allow_session", "deny", "cancel")
    if pending.kind == "question":
        only = pending.fields[0].options if len(pending.fields) == 1 else ()
        choices = tuple(option.label for option in only)
    asked = notify.Asked(
        request_id=pending.request_id,
        key=pending.key,
        text=pending.title,
        input=pending.input,
        choices=choices,
        deadline=pending.deadline,
    )
    return notify.asked_message(facts, pending.kind, asked)


def question_message(facts: notify.RunFacts, text: str) -> notify.Message:
    return notify.asked_message(facts, "question", notify.Asked(text=text[:LONGEST_TEXT]))


def end_message(facts: notify.RunFacts, done: Done) -> notify.Message:
    ended = notify.Ended(
        status=done.status,
        text=(done.text or "")[:LONGEST_TEXT],
        error=_error_text(done.error),
        seconds=done.duration_ms / 1000,
        cost_usd=done.cost.usd,
        tokens=done.usage.total,
    )
    return notify.end_message(facts, ended)


def _error_text(error: Error | None) -> str:
    return "" if error is None else error.message
