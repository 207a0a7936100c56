"""One turn: sends a prompt, yields a valid event stream, and leaves nothing running.

Events are pulled: the agent's output is read only while the caller waits for the next event. So a
slow caller slows the agent, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeAlias

import msgspec
from msgspec.structs import replace

from corral.display import shorten
from corral.errors import (
    CorralError,
    EmptyAnswer,
    Interrupted,
    PermissionRefused,
    RateLimited,
    RemoteError,
    ResumeLost,
)
from corral.events import Done, Event, Init, Vendor, to_json
from corral.nesting import decode_json
from corral.options import fallback_agents
from corral.output_types import T_co
from corral.protocol.ndjson import RawEvent, TurnEnd
from corral.result import Result, ResultBuilder, with_output, without_output
from corral.sessions.backends.base import Backend, HasService
from corral.sessions.deadlines import Deadlines
from corral.sessions.event_normalizer import Ending, EventNormalizer
from corral.sessions.prepared_run import PreparedRun
from corral.sessions.store import POOLED, SessionRecord, title_of
from corral.system import paths
from corral.system.environment import SecretRedactor
from corral.system.threads import NoThread, in_thread
from corral.tracebacks import short_traceback, short_traceback_async
from corral.values import (
    PUBLISH_AFTER,
    FileChanged,
    Json,
    Usage,
    WeakBound,
    WeakCall,
    printable_path,
    subtract_by_model,
)

if TYPE_CHECKING:
    from corral.live.session_link import SessionLink
    from corral.sessions.network_watch import NetworkWatch
    from corral.sessions.redaction import EventRedactor
    from corral.sessions.structured_output import TypedAnswer
    from corral.system.git.changes import Snapshot
    from corral.telemetry.live import LiveSpans

_log = logging.getLogger("corral.sessions")

Restart: TypeAlias = Callable[[PreparedRun, str], Backend | None]
HandOver: TypeAlias = Callable[[Done], Awaitable["Turn"]]

KEPT_CONTENTS = 4 * 1024 * 1024
"""Bytes of files that are kept in memory during a recorded turn, for the diff of what it changes.
Files that git has as they are do not count."""
MAX_TEXT = 1_000_000
"""Characters of the answer that ``done`` repeats. The memory of a turn must not grow with the
stream while its events are not collected."""


class _FolderUse(msgspec.Struct, gc=False):
    """The turns in progress in this process that work in one folder (``here``), or there and in the
    folders below it (``within``)."""

    here: int = 0
    within: int = 0
    last_here: int = 0
    """The number of the last turn that started there."""
    last_within: int = 0


claimed_folders: dict[str, _FolderUse] = {}
_folders_lock = threading.RLock()
"""Turns may run in several threads, each with its event loop. Re-entrant: a claim that is dropped
is released in the middle of anything."""
_claim_numbers = itertools.count(1)


class FolderClaim:
    """A turn works in this folder. Tells whether another turn of this process did so too meanwhile,
    there, below or above. The cost does not depend on the number of turns."""

    __slots__ = ("_folder", "_is_shared", "_number")

    def __init__(self, folder: str) -> None:
        self._folder: str | None = folder
        with _folders_lock:
            self._number = number = next(_claim_numbers)
            first, *above = _with_parents(folder)
            use = claimed_folders.get(first) or _FolderUse()
            self._is_shared = use.within > 0
            use.here, use.last_here = use.here + 1, number
            use.within, use.last_within = use.within + 1, number
            claimed_folders[first] = use
            for parent in above:
                use = claimed_folders.get(parent) or _FolderUse()
                self._is_shared |= use.here > 0
                use.within, use.last_within = use.within + 1, number
                claimed_folders[parent] = use

    def release(self) -> bool:
        """The turn has ended. Returns whether it shared the folder with another one."""
        with _folders_lock:
            folder, self._folder = self._folder, None
            if folder is None:
                return self._is_shared
            first, *above = _with_parents(folder)
            self._is_shared |= claimed_folders[first].last_within > self._number
            self._is_shared |= any(claimed_folders[each].last_here > self._number for each in above)
            claimed_folders[first].here -= 1
            for each in (first, *above):
                claimed_folders[each].within -= 1
                if not claimed_folders[each].within:
                    del claimed_folders[each]
            return self._is_shared

    def __del__(self) -> None:
        self.release()


def _with_parents(folder: str) -> list[str]:
    found = [folder]
    while (parent := os.path.dirname(folder)) != folder:
        found.append(folder := parent)
    return found


class TurnChecks(msgspec.Struct, frozen=True):
    """How the end of a turn is checked."""

    fail: Callable[[], CorralError | None] = lambda: None
    """May fail a successful turn."""
    answers: Callable[[], int] = lambda: 0
    """Counts the answers that were submitted by a tool so far."""
    typed: TypedAnswer | None = None
    """The value that the answer must contain."""


_NO_CHECKS = TurnChecks()


class Turn(Generic[T_co]):
    """Iterate it for the events, or ``await turn.collect()`` for the result alone. The last event,
    ``done``, has the text of the answer and, for a typed turn, the value.

    ::

        async for event in session.prompt("Fix the failing test"):
            if event.type == "text":
                print(event.delta, end="")
    """

    __slots__ = (
        "__weakref__",
        "_answers_before",
        "_backend",
        "_before",
        "_builder",
        "_checks",
        "_claim",
        "_deadlines",
        "_event_redactor",
        "_failure",
        "_is_kept",
        "_lingered",
        "_may_be_visible",
        "_network",
        "_normalizer",
        "_pending_warnings",
        "_prepared",
        "_previous",
        "_previous_session_id",
        "_prompt",
        "_publishing",
        "_record",
        "_recording",
        "_redactor",
        "_spans",
        "_state",
        "_steer",
        "_typed",
        "hand_over",
        "restart",
        "result",
    )

    def __init__(
        self,
        prepared: PreparedRun,
        record: SessionRecord,
        prompt: str,
        backend: Backend,
        *,
        redactor: SecretRedactor,
        before: Turn | None = None,
        checks: TurnChecks | None = None,
        steer: weakref.WeakMethod[Callable[[str], None]] | None = None,
    ) -> None:
        """``before`` is the previous turn; it is ended when this one starts. ``steer`` sends the
        agent a text while it works."""
        self.restart: Restart | None = None
        """Makes another backend, which continues after a limit that ended the agent
        (``WaitingTurn``)."""
        self.hand_over: HandOver | None = None
        """Opens the turn of another agent, which continues after a limit (``FallbackTurn``)."""
        self._checks = checks or _NO_CHECKS
        self._typed = self._checks.typed
        self._builder = ResultBuilder(MAX_TEXT if self._typed is None else None)
        self._answers_before = 0
        if prepared.run.label is not None:
            record.meta.label = prepared.run.label
        self._prepared = prepared
        self._record = record
        self._previous_session_id = record.meta.session_id
        """The session that was there before this turn."""
        self._prompt = prompt
        self._backend = backend
        self._redactor = redactor
        self._event_redactor: EventRedactor | None = None
        if redactor.values:
            from corral.sessions.redaction import EventRedactor

            self._event_redactor = EventRedactor(redactor)
        self._previous = before
        self._normalizer: EventNormalizer | None = None
        self._deadlines: Deadlines | None = None
        self._network: NetworkWatch | None = None
        self._spans: LiveSpans | None = None
        self._before: Snapshot | None = None
        self._steer = steer
        self._publishing: asyncio.TimerHandle | None = None
        self._may_be_visible = False
        """It was started, and has not ended: other processes may see it."""
        self._pending_warnings: list[RawEvent] = []
        self._recording = prepared.run.record
        self._is_kept = prepared.run.keep and (prepared.run.record or not record.is_pooled)
        if record.is_temporary and self._is_kept:
            self._is_kept = self._recording = False
            from corral.sessions.turn_warnings import not_stored

            self._pending_warnings.append(not_stored())
        self._failure: CorralError | None = None
        self._lingered = False
        self._claim: FolderClaim | None = None
        self._state = "new"
        self.result: Result[T_co] | None = None
        """Set by ``collect``."""

    def __repr__(self) -> str:
        prompt = shorten(self._redactor.clean_text(self._prompt))
        return f"<Turn {self._prepared.agent.name} {self._state}: {prompt!r}>"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about choices made for the caller, once the turn has started."""
        return self._backend.notes

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events()

    async def _events(self) -> AsyncIterator[Event]:
        # The iterator owns nothing: if it is dropped half-way, the session ends the agent.
        with short_traceback:
            while batch := await self.next_batch():
                for event in batch:
                    yield event

    @short_traceback_async
    async def collect(self, on_event: Callable[[Event], None] | None = None) -> Result[T_co]:
        """Run to the end and build the result; ``on_event`` is called with each event."""
        self.keep_text()
        while batch := await self.next_batch():
            if on_event is not None:
                for event in batch:
                    on_event(event)
        result: Result = self._builder.result()
        if self._typed is not None:
            found = self._typed.is_found and result.ok
            result = with_output(result, self._typed.value) if found else without_output(result)
        self.result = result
        return result

    def keep_text(self) -> None:
        """Store the complete text for the result, however long it is. Call it at the start."""
        self._builder.limit = None

    async def next_batch(self) -> list[Event]:
        """The next batch of events; empty after ``done``."""
        if self._state == "closed":
            raise RuntimeError("the session of this turn was closed")
        if self._state == "new":
            await self._start()
        while self._state == "running":
            if self._is_limited:
                batch = await self._continue_after_limit()
            else:
                self._start_waiting()
                try:
                    # Not in a function: its frame would be held as long as the agent works, and
                    # thousands may do so at the same time.
                    items = None if self._failure else await self._backend.receive()
                except RecursionError as error:  # in what reads the agent's output
                    self._stop_reading(error)
                    items = None
                batch = await self._handle(items)
                del items
            if batch:
                self._record_batch(batch)
                return batch
        return []

    def _record_batch(self, batch: list[Event]) -> None:
        self._log_events(batch)
        if isinstance(batch[-1], Done):
            self._builder.add(batch[-1])
        if isinstance(batch[0], Init):
            recorded = [batch[0], *self._prompt_events(batch[0]), *batch[1:]]
        else:
            recorded = batch
        self._write_transcript(recorded)
        if self._spans is not None:
            self._spans.add(recorded)

    @property
    def failed(self) -> bool:
        """Whether a deadline passed, or it was cancelled: what still comes is its end."""
        return self._failure is not None

    def cancel(self) -> None:
        """End the agent; the stream then ends with ``done`` as interrupted."""
        self._fail(Interrupted("the run was cancelled"))

    async def close(self) -> None:
        """End the agent in any state. Nothing of it is left when this returns or raises: a task
        may be cancelled again at each ``await`` (anyio does that)."""
        async with contextlib.AsyncExitStack() as ending:
            if self._spans is not None:
                ending.push_async_callback(self._spans.close)
            ending.push_async_callback(self._backend.close)
            if self._network is not None:
                ending.push_async_callback(self._network.stop)
            if self._previous is not None:
                ending.push_async_callback(self._previous.close)
            self._state = "closed"
            self._forget_limits()
            if self._claim is not None:
                self._claim.release()
            self._stop_publishing()
            if self._deadlines is not None:
                self._deadlines.stop()

    def publish(self) -> SessionLink:
        """Make the turn visible to other processes, now."""
        from corral.live.session_link import publish_turn

        meta = self._record.meta
        meta.title = meta.title or self._title()
        if self._is_kept and not self._record.is_temporary:
            with contextlib.suppress(OSError):  # reported at the turn's end
                self._record.save()
        title, cancel = self._title(), WeakCall(self.cancel)
        return publish_turn(
            self._prepared, self._record, title, cancel, self._steer, self._recording
        )

    def _publish_later(self) -> None:
        self._record.publish = WeakBound(self.publish)
        is_visible = self._record.link is not None and self._record.link.entry is not None
        delay = 0.0 if is_visible else PUBLISH_AFTER
        due = WeakCall(self._publish_now)
        self._publishing = asyncio.get_running_loop().call_later(delay, due)
        self._may_be_visible = True

    def _publish_now(self) -> None:
        self._publishing = None
        with contextlib.suppress(OSError, ImportError):
            self.publish()  # without a free descriptor it stays invisible

    def _stop_publishing(self) -> None:
        if self._publishing is not None:
            self._publishing.cancel()
            self._publishing = None
        if self._may_be_visible:
            self._may_be_visible = False
            if self._record.link is not None:
                self._record.link.turn_ended()

    def _title(self) -> str:
        return title_of(self._prompt, self._redactor)

    def _notify_question(self) -> None:
        """The agent is a person: tell somebody that it is asked."""
        from corral.live.session_link import notify_question

        text = self._redactor.clean_text(self._prompt)
        notify_question(self._prepared, self._record, self._title(), text)

    def _notify_end(self, done: Done) -> None:
        from corral.live.session_link import notify_end

        notify_end(self._prepared, self._record, self._title(), done)

    async def _start(self) -> None:
        self._state = "starting"
        self._publish_later()
        self._answers_before = self._checks.answers()
        if self._previous is not None:
            await self._previous.close()
            self._previous = None
        started = time.time()
        if self._prepared.run.otel is not None:
            from corral.telemetry.live import LiveSpans

            self._spans = LiveSpans(self._prepared.run.otel, self._prepared.run.env)
        try:
            self._log_start()
            await self._backend.prepare()
            if self._prepared.run.track_files:
                self._before = await in_thread(self._look)
            self._normalizer = self._new_normalizer(started)
            await self._hold_start()
            if self._failure is None:  # it may have been cancelled during the snapshot
                await self._backend.begin(self._fail)
        except RemoteError as error:
            if not self._backend.started:
                raise
            self._normalizer = self._normalizer or self._new_normalizer(started)
            self._failure = error
        self._state = "running"
        prepared, waits = self._prepared, self._prepared.limit_waits
        self._deadlines = Deadlines(prepared.run, self._on_deadline, prepared.budget, waits)
        self._watch_network()
        self._claim = FolderClaim(self._prepared.cwd)
        if self._prepared.run.notify is not None and self._prepared.agent.open_turns:
            self._notify_question()

    def _log_start(self) -> None:
        if _log.isEnabledFor(logging.INFO):
            prepared, meta = self._prepared, self._record.meta
            agent, version = prepared.agent.name, prepared.program.version or ""
            model = prepared.run.model or "the agent's own"
            _log.info(
                "session %s: %s %s, model: %s, in %s", meta.id, agent, version, model, prepared.cwd
            )
            options = str(prepared.run.summary())
            _log.debug("session %s: options: %s", meta.id, self._redactor.clean_text(options))

    def _log_events(self, batch: list[Event]) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            for event in batch:
                _log.debug("event %s", to_json(event).decode())
        last = batch[-1]
        if isinstance(last, Done):
            _log.info("session %s: the turn ended: %s", self._record.meta.id, last.status)

    def _watch_network(self) -> None:
        backend, run = self._backend, self._prepared.run
        if not isinstance(backend, HasService) or backend.service_url is None:
            return
        # Another way to the service than that of this process is possible: nothing is claimed.
        wrapped = run.program is not None and not self._prepared.program.packaged
        elsewhere = run.replay is not None or run.sandbox == "agent" or wrapped
        if not elsewhere and not any(name.lower().endswith("_proxy") for name in run.env):
            from corral.sessions.network_watch import NetworkWatch

            self._network = NetworkWatch(
                backend.service_url, run.retries + 1, backend.emit, self._fail
            )

    def _new_normalizer(self, started: float) -> EventNormalizer:
        prepared, meta = self._prepared, self._record.meta
        init = Init(
            model=prepared.run.model,
            cwd=prepared.cwd,
            agent_version=prepared.program.version,
            auth=prepared.auth,
            sandbox=None if prepared.sandbox is None else prepared.sandbox.method,
            sandbox_reason=prepared.sandbox_reason or None,
            metered=prepared.meter_reason is None,
            meter_reason=prepared.meter_reason,
            capabilities=prepared.agent.capabilities,
            resumed=meta.session_id is not None,
            continued_from=meta.continued_from,
            run_id=self._record.next_run_id,
            agent=prepared.agent.name,
            session_id=self._backend.session_id,
            label=meta.label,
        )
        existed = self._before.has if self._before else _unknown
        return EventNormalizer(init, started=started, existed=existed)

    @property
    def _is_limited(self) -> bool:
        """Whether a limit has ended the agent, and the turn goes on after it (``WaitingTurn``)."""
        return False

    async def _continue_after_limit(self) -> list[Event]:
        """The events until the agent goes on after a limit (``WaitingTurn``)."""
        return []

    def _start_waiting(self) -> None:
        if self._deadlines is not None:
            self._deadlines.start_waiting()

    def _stop_reading(self, error: RecursionError) -> None:
        from corral.sessions.turn_warnings import too_deep

        self._fail(too_deep(error))

    async def _handle(self, items: list[RawEvent] | None) -> list[Event]:
        """The events for what the agent sent; None: nothing more comes."""
        normalizer, deadlines = self._normalizer, self._deadlines
        if normalizer is None or deadlines is None:
            raise RuntimeError("the turn was not started")
        if items is None:
            return await self._finish(normalizer, deadlines)
        deadlines.on_activity()
        if self._network is not None:
            self._network.on_items(items)
        if self._event_redactor is not None:
            items = self._event_redactor.take(items)
        batch = normalizer.take(items, time.time())
        self._store_text(batch)
        self._save_session_id(normalizer)
        if normalizer.finish is not None:
            deadlines.on_turn_end()
            if self._network is not None:
                await self._network.stop()
        return batch

    async def _finish(self, normalizer: EventNormalizer, deadlines: Deadlines) -> list[Event]:
        last = await self._backend.finish()
        if self._event_redactor is not None:
            last = [*self._event_redactor.take(last), *self._event_redactor.end()]
        batch = normalizer.take(last, time.time())
        self._store_text(batch)
        error = await self._find_error(normalizer)
        if error is not None and (limit := self._take_limit(normalizer, error)) is not None:
            return batch + limit
        return batch + await self._conclude(normalizer, deadlines, error)

    async def _hold_start(self) -> None:
        """Before the agent gets the prompt: ``WaitingTurn`` waits for a limit here."""

    def _take_limit(self, normalizer: EventNormalizer, error: CorralError) -> list[Event] | None:
        """The events of a limit after which the turn goes on; None if it ends (``WaitingTurn``)."""
        return None

    def _forget_limits(self) -> None:
        """The turn has ended (``WaitingTurn``)."""

    async def _conclude(
        self, normalizer: EventNormalizer, deadlines: Deadlines, error: CorralError | None
    ) -> list[Event]:
        """The end of the turn, as events."""
        deadlines.stop()
        self._state = "over"
        self._forget_limits()
        batch: list[Event] = []
        answer, output = self._builder.answer(), None
        if error is None and self._typed is not None:
            output, error = self._typed.read(answer)
        if error is not None:
            self._backend.add_facts(error)
            error.agent_version = self._prepared.program.version
            if error.retry_after is not None and error.resets_at is None:
                error.resets_at = time.time() + error.retry_after
        files, complete = await self._files(normalizer)
        await self._save_diff(files)
        finish = self._turn_usage(normalizer)
        self._count_reported_usage(finish)
        saved = self._save_record(
            normalizer, error, resumable=self._is_resumable(normalizer, finish, error)
        )
        resumable = saved and self._record.meta.session_id is not None
        if isinstance(error, ResumeLost):
            resumable = False
        batch += normalizer.take(self._final_warnings(normalizer), time.time())
        ending = Ending(
            text=answer.text,
            text_complete=not self._builder.is_cut,
            output=self._redacted(output),
            files=files,
            files_complete=complete,
            denied_complete=self._reports_every_denial(),
            resume_token=self._record.meta.id if resumable and self._is_kept else None,
            waited=deadlines.waited,
        )
        batch += normalizer.close(time.time(), error, ending)
        self._stop_publishing()
        if self._prepared.run.notify is not None and isinstance(done := batch[-1], Done):
            self._notify_end(done)
        return batch

    async def _find_error(self, normalizer: EventNormalizer) -> CorralError | None:
        error = self._failure or self._backend.explain(normalizer, lingered=self._lingered)
        submitted = self._checks.answers() > self._answers_before
        if submitted and _is_only_empty(error, normalizer):
            error = None
        if self._network is not None:
            error = self._network.cause_of(error)
            await self._network.stop()
        if isinstance(error, RateLimited) and error.retry_after is None and not error.resets_at:
            from corral.system.reset_times import find_reset

            error.resets_at = find_reset(error.message, time.time())
        return error or self._checks.fail()

    def _store_text(self, batch: list[Event]) -> None:
        """For the text in ``done``, and the result."""
        if not self._builder.is_cut:
            self._builder.add_all(batch)

    def _redacted(self, output: Json) -> Json:
        """A value that was submitted by a tool has not passed the redaction of the stream."""
        if output is None or not self._redactor.values:
            return output
        return decode_json(self._redactor.clean(msgspec.json.encode(output)))

    def _is_resumable(
        self, normalizer: EventNormalizer, finish: TurnEnd | None, error: CorralError | None
    ) -> bool:
        """Whether the agent's conversation contains this turn and can be continued."""
        if normalizer.session_id is None or self._record.is_pooled:
            return False
        agent = self._prepared.agent
        if agent.open_turns:
            return True
        if _is_cut_short(error):
            has_content = normalizer.worked or (
                normalizer.answered and agent.keeps_unfinished == "with_text"
            )
            return has_content or agent.keeps_unfinished == "always"
        return finish is not None and (finish.ok or normalizer.answered or normalizer.worked)

    def _turn_usage(self, normalizer: EventNormalizer) -> TurnEnd | None:
        """The turn's end; if the agent reports the usage of all turns, reduced to that of this
        turn."""
        finish, meta = normalizer.finish, self._record.meta
        if finish is None or not self._prepared.agent.cumulative_usage:
            return finish
        if (reported := finish.usage) != Usage():
            by_model, before = finish.usage_by_model, meta.spent_by_model
            finish = normalizer.finish = replace(
                finish,
                usage=finish.usage - meta.spent,
                usage_by_model=subtract_by_model(by_model, before),
            )
            meta.spent, meta.spent_by_model = reported, by_model
        return finish

    def _count_reported_usage(self, finish: TurnEnd | None) -> None:
        """Where corral does not count the calls, what the agent reports counts for the budget."""
        budget = self._prepared.budget
        if budget is None or self._prepared.meter_reason is None or finish is None:
            return
        from corral.sessions.budget import Spent

        budget.record(Spent(finish.cost.usd or 0.0, finish.usage.total or 0, 1))

    def _reports_every_denial(self) -> bool:
        prepared = self._prepared
        is_free = all(row.verdict == "allow" for row in prepared.compiled.report)
        return prepared.agent.reports_all_denials or is_free

    async def _files(self, normalizer: EventNormalizer) -> tuple[tuple[FileChanged, ...], bool]:
        is_shared = self._claim is None or self._claim.release()
        if self._before is None:
            return _reported_files(normalizer), False
        from corral.system.git import changes

        try:
            after = await in_thread(changes.take_snapshot_after, self._before)
        except NoThread as error:  # the answer is there, and is worth more than its files
            from corral.sessions.turn_warnings import files_unknown

            self._pending_warnings.append(files_unknown(error))
            return _reported_files(normalizer), False
        changed = changes.compare(self._before, after, normalizer.written)
        return changed, self._before.complete and after.complete and not is_shared

    def _look(self) -> Snapshot:
        from corral.system.git import changes  # in a thread, while the agent starts

        room = KEPT_CONTENTS if self._recording else 0
        return changes.take_snapshot(Path(self._prepared.cwd), room=room)

    async def _save_diff(self, files: tuple[FileChanged, ...]) -> None:
        """Store how the turn changed files, with the transcript."""
        if not self._recording or self._before is None or not files:
            return
        try:
            await in_thread(self._write_diff, self._before, files)
        except (OSError, NoThread) as error:
            from corral.sessions.turn_warnings import diff_lost

            self._pending_warnings.append(diff_lost(error))

    def _write_diff(self, before: Snapshot, files: tuple[FileChanged, ...]) -> None:
        from corral.system.git.file_diffs import diff_since  # loads difflib

        file = self._record.diff_file(self._record.meta.turns + 1)
        text = self._redactor.clean_text(diff_since(before, files))
        paths.make_dir(file.parent)
        paths.write_private(file, text.encode("utf-8", "replace"))

    def _save_session_id(self, normalizer: EventNormalizer) -> None:
        """Save the session's id as soon as the agent works: this process may be killed before the
        turn ends."""
        meta = self._record.meta
        has_started = normalizer.session_id is not None and (
            normalizer.answered or normalizer.worked
        )
        is_kept = self._is_kept and not self._record.is_pooled
        if has_started and is_kept and meta.session_id != normalizer.session_id:
            meta.session_id = normalizer.session_id
            with contextlib.suppress(OSError):  # reported at the turn's end
                self._record.save()

    def _save_record(
        self, normalizer: EventNormalizer, error: CorralError | None, *, resumable: bool
    ) -> bool:
        meta = self._record.meta
        meta.turns += 1
        meta.updated = time.time()
        meta.status = error.status if error else "success"
        meta.model = (normalizer.finish.model if normalizer.finish else None) or meta.model
        meta.title = meta.title or self._title()
        meta.budgets = () if self._prepared.budget is None else self._prepared.budget.states()
        meta.session_id = normalizer.session_id if resumable else self._previous_session_id
        if self._record.is_pooled:
            meta.lost = POOLED
        elif self._backend.started and meta.session_id is None and _is_cut_short(error):
            meta.lost = meta.status
        try:
            if self._is_kept:
                self._record.save()
        except OSError as problem:
            from corral.sessions.turn_warnings import session_lost

            self._pending_warnings.append(session_lost(self._record.folder, problem))
            return False
        return True

    def _write_transcript(self, batch: list[Event]) -> None:
        """A disk that fills up costs the transcript, not the run."""
        if not self._recording and not self._record.may_be_continued:
            return
        try:
            if self._recording:
                self._record.append_events(batch)
            else:
                self._record.append_unnamed(batch)
        except OSError as error:
            self._recording = self._record.may_be_continued = False
            from corral.sessions.turn_warnings import transcript_lost

            self._pending_warnings.append(transcript_lost(self._record.folder, error))

    def _prompt_events(self, init: Init) -> list[Event]:
        """The prompt and the files that are sent with it, for the transcript and for telemetry."""
        run = self._prepared.run
        prompt = self._vendor_event(init, "prompt", self._redactor.clean_text(self._prompt))
        files: dict[str, Json] = {
            "image": [*run.images],
            "audio": [*run.audio],
            "file": [*run.attachments],
        }
        found: list[Event] = [prompt]
        if any(files.values()):
            found.append(self._vendor_event(init, "prompt_files", self._redacted(files)))
        if self._record.meta.turns == 0:
            found.append(self._vendor_event(init, "run_facts", self._run_facts()))
        return found

    def _run_facts(self) -> Json:
        """What the session was started with, for those who look at it later."""
        report: Json = msgspec.to_builtins(self._prepared.compiled.report)
        return self._redacted({"program": self._prepared.program.path, "policy": report})

    def _vendor_event(self, init: Init, name: str, data: Json) -> Vendor:
        return Vendor(
            name,
            data,
            seq=init.seq,
            ts=init.ts,
            run_id=init.run_id,
            session_id=init.session_id,
            agent=init.agent,
            node=init.node,
            label=init.label,
        )

    def _final_warnings(self, normalizer: EventNormalizer) -> list[RawEvent]:
        items, self._pending_warnings = self._pending_warnings, []
        if self._record.link is not None:
            problems, self._record.link.problems = self._record.link.problems, ()
            if problems:
                from corral.sessions.turn_warnings import not_notified

                items += map(not_notified, problems)
        requested = self._prepared.run.model
        used = normalizer.finish.model if normalizer.finish else None
        if (
            requested
            and used
            and requested != used
            and requested not in self._prepared.agent.model_aliases
        ):
            from corral.sessions.turn_warnings import model_differs

            items.append(model_differs(requested, used))
        if self._lingered:
            from corral.sessions.turn_warnings import lingered

            items.append(lingered())
        return items

    def _on_deadline(self, error: CorralError | None) -> None:
        """A deadline passed; without an error, the agent only did not exit after its turn."""
        self._lingered = error is None
        if error is not None:
            self._fail(error)
        else:
            self._backend.end_soon()

    def _fail(self, error: CorralError) -> None:
        if self._failure is None and self._state in ("new", "starting", "running"):
            self._failure = error
            self._backend.end_soon()


def _reported_files(normalizer: EventNormalizer) -> tuple[FileChanged, ...]:
    """The files that the agent's tools reported."""
    return tuple(
        FileChanged(printable_path(path), kind, by_tool=True)
        for path, kind in normalizer.written.items()
    )


def _is_only_empty(error: CorralError | None, normalizer: EventNormalizer) -> bool:
    """Whether the agent ended its turn normally and only the answer is missing."""
    if isinstance(error, PermissionRefused):
        return normalizer.finish is not None and normalizer.finish.ok
    return isinstance(error, EmptyAnswer)


def _is_cut_short(error: CorralError | None) -> bool:
    return error is not None and error.status in ("interrupted", "timeout")


def _unknown(_path: str) -> bool | None:
    return None


def turn_type(prepared: PreparedRun) -> type[Turn]:
    """What a turn with these options is, by what it does at a rate limit."""
    if prepared.limit_waits is None:
        return Turn
    if fallback_agents(prepared.run.on_limit):
        from corral.sessions.fallback import FallbackTurn

        return FallbackTurn
    from corral.sessions.waiting_turn import WaitingTurn

    return WaitingTurn
