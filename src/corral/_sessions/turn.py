"""One turn: sends a prompt, yields a valid event stream, and leaves nothing running.

Theory of operation
-------------------
A turn connects one ``Backend``, which speaks with the agent, with one reader. Events are pulled:
the agent's output is read only while the caller waits for the next event. So a slow caller slows
the agent, and memory stays bounded.

The states:

``new``
    Nothing has happened. The first ``next_batch`` starts the turn.
``starting``
    The turn before is closed, the backend prepares the agent, the workspace is looked at
    (``TurnFiles``), and the prompt is sent. An error before the agent runs is raised, except that
    an MCP server cannot be used; afterwards it is an event.
``running``
    Each ``next_batch`` reads once from the backend. What it sent is redacted (``EventRedactor``),
    then made a valid stream (``EventNormalizer``). When the backend has no more, the turn is
    concluded, unless a rate limit ended the agent and the turn waits (``LimitMachine``).
``verifying``
    The agent has ended, and the checks of ``verify`` run. ``cancel`` ends them.
``over``
    ``done`` was emitted. Everything that the turn had is stored.
``closed``
    The agent was ended. Reading raises ``RuntimeError``.

Two things end a running turn from outside: ``cancel``, and a deadline (``Deadlines``). Both set
``_failure``, once, and tell the backend to end soon; the stream then ends in the usual way, with
``done`` as its last event. ``close`` ends the agent in any state, and emits nothing.

Each batch goes to the sinks before the caller gets it: the result (``ResultBuilder``), the stored
transcript (``TurnRecorder``), the spans of telemetry. Two parts see the start and the end:
``TurnPublisher`` shows the turn to other processes, ``NetworkWatch`` looks for the model's service
while the agent is silent. A sink never fails a turn: what it cannot do becomes a warning.

If this process is killed, the transcript has all events up to the last batch, and the session's id
is saved from the moment that the agent worked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from corral._core.display import short_traceback, shorten
from corral._protocol.ndjson import RawEvent
from corral._sessions.backends.base import Backend
from corral._sessions.deadlines import Deadlines
from corral._sessions.event_normalizer import EventNormalizer, with_envelope_of
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.sinks import TurnFiles, TurnPublisher, TurnRecorder, warning
from corral._sessions.store import SessionRecord
from corral._system import clock
from corral._system.environment import SecretRedactor
from corral._system.threads import short_traceback_async
from corral.errors import (
    CorralError,
    EmptyAnswer,
    Interrupted,
    PermissionRefused,
    RateLimited,
    RemoteError,
    ResumeLost,
    StreamBroken,
    ToolFailed,
)
from corral.events import Done, Event, Init, to_json
from corral.result import Result, ResultBuilder, with_output, without_output
from corral.values import T_co

if TYPE_CHECKING:
    from corral._metering.rate_limits import LimitState
    from corral._sessions.deadlines import NetworkWatch
    from corral._sessions.limit_waits import LimitMachine
    from corral._sessions.redaction import EventRedactor
    from corral._sessions.run_verifier import RunVerifier
    from corral._sessions.structured_output import TypedAnswer
    from corral._telemetry.sender import LiveSpans

_log = logging.getLogger("corral.sessions")

MAX_TEXT = 1_000_000
"""Characters of the answer that ``done`` repeats. The memory of a turn must not grow with the
stream while its events are not collected."""


class TurnSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a session adds to a turn."""

    check: Callable[[], Awaitable[None]] | None = None
    """Runs before the agent starts. If it raises ``ToolFailed``, the turn fails."""
    fail: Callable[[], CorralError | None] = lambda: None
    """May fail a successful turn."""
    answers: Callable[[], int] = lambda: 0
    """Counts the answers that were submitted by a tool so far."""
    typed: TypedAnswer | None = None
    """The value that the answer must contain."""
    steer: weakref.WeakMethod[Callable[[str], None]] | None = None
    """Sends the agent a text while it works."""
    limits: LimitMachine | None = None
    """What is done at a rate limit; without it the turn fails."""
    verifier: RunVerifier | None = None
    """Verifies the run that this turn belongs to."""
    is_last: bool = True
    """The run ends with this turn, unless its answer must be corrected."""


class Turn(Generic[T_co]):
    """Iterate it for the events, or ``await turn.collect()`` for the result alone. The last event,
    ``done``, has the text of the answer and, for a typed turn, the value.

    ::

        async for event in session.prompt("Fix the failing test"):
            if event.type == "text":
                print(event.delta, end="")
    """

    _normalizer: EventNormalizer
    """Set when the turn starts."""
    _ending: Done
    """Set when the agent has ended."""

    def __init__(
        self,
        prepared: PreparedRun,
        record: SessionRecord,
        prompt: str,
        backend: Backend,
        *,
        redactor: SecretRedactor,
        before: Turn | None = None,
        setup: TurnSetup | None = None,
    ) -> None:
        """``before`` is the previous turn; it is ended when this one starts."""
        self._prepared = prepared
        self._record = record
        self._prompt = prompt
        self._backend = backend
        self._redactor = redactor
        self._previous = before
        self._setup = setup = setup or TurnSetup()
        self._limits = setup.limits
        self._builder = ResultBuilder(MAX_TEXT if setup.typed is None else None)
        self._answers_before = 0
        self._event_redactor: EventRedactor | None = None
        if redactor.values:
            from corral._sessions.redaction import EventRedactor

            self._event_redactor = EventRedactor(redactor)
        self._recorder = TurnRecorder(prepared, record, prompt, redactor)
        self._publisher = TurnPublisher(prepared, record, self._recorder, self.cancel, setup.steer)
        self._files = TurnFiles(prepared.cwd)
        self._deadlines = Deadlines(
            prepared.run, self._on_deadline, prepared.budget, prepared.limit_waits
        )
        self._network: NetworkWatch | None = None
        self._spans: LiveSpans | None = None
        self._failure: CorralError | None = None
        self._checking: asyncio.Future[Any] | None = None
        self._lingered = False
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

    async def __aiter__(self) -> AsyncIterator[Event]:
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
        self.result = result = self._build_result()
        return result

    def _build_result(self) -> Result:
        result: Result = self._builder.result()
        typed = self._setup.typed
        if typed is None:
            return result
        has_value = typed.is_found and result.ok
        return with_output(result, typed.value) if has_value else without_output(result)

    def keep_text(self) -> None:
        """Store the complete text for the result, however long it is. Call it at the start."""
        self._builder.limit = None

    async def next_batch(self) -> list[Event]:
        """The next batch of events; empty after ``done``."""
        limits = self._limits
        if self._state == "closed":
            raise RuntimeError("the session of this turn was closed")
        if self._state == "new":
            await self._start()
        while self._state in ("running", "verifying"):
            if self._state == "verifying" and self._setup.verifier is not None:
                batch = await self._verify(self._setup.verifier)
            elif limits is not None and limits.is_waiting:
                batch = await self._continue_after_limit(limits)
            else:
                batch = await self._read()
            if batch:
                self._send_to_sinks(batch)
                return batch
        return []

    def _send_to_sinks(self, batch: list[Event]) -> None:
        last = batch[-1]
        if _log.isEnabledFor(logging.DEBUG):
            for event in batch:
                _log.debug("event %s", to_json(event).decode())
        if isinstance(last, Done):
            _log.info("session %s: the turn ended: %s", self._record.meta.id, last.status)
            self._builder.add(last)
        if isinstance(batch[0], Init):  # the prompt stands after it
            batch = [batch[0], *self._recorder.prompt_events(batch[0]), *batch[1:]]
        self._recorder.add(batch)
        if self._spans is not None:
            self._spans.add(batch)

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
            self._files.release()
            self._stop()

    def _stop(self) -> None:
        """No timer and no listener of the turn is left."""
        self._deadlines.stop()
        self._publisher.stop()
        if self._limits is not None:
            self._limits.stop_listening(self._on_limit)

    async def _start(self) -> None:
        self._state = "starting"
        self._publisher.start()
        self._answers_before = self._setup.answers()
        if self._previous is not None:
            await self._previous.close()
            self._previous = None
        started = clock.now()
        run, meta = self._prepared.run, self._record.meta
        if run.otel is not None:
            from corral._telemetry.sender import LiveSpans

            self._spans = LiveSpans(run.otel, run.env)
        if _log.isEnabledFor(logging.INFO):
            agent, version = self._prepared.agent.name, self._prepared.program.version or ""
            model, cwd = run.model or "the agent's own", self._prepared.cwd
            _log.info("session %s: %s %s, model: %s, in %s", meta.id, agent, version, model, cwd)
            options = self._redactor.clean_text(str(run.summary()))
            _log.debug("session %s: options: %s", meta.id, options)
        try:
            if await self._check():
                await self._completes(self._backend.prepare())
            self._files.claim()
            if run.track_files:
                await self._files.look(keeps_contents=self._recorder.has_transcript)
            if self._setup.verifier is not None:
                await self._setup.verifier.begin()
            self._normalizer = self._new_normalizer(started)
            if self._limits is not None:
                limit = await self._limits.hold(self._on_limit)
                self._failure = self._failure or limit
            if self._failure is None:  # it may have been cancelled during the snapshot
                await self._backend.begin(self._fail)
                self._warn_of_version()
                self._warn_of_policy()
        except RemoteError as error:
            if not self._backend.started and not isinstance(error, ToolFailed):
                raise
            # The agent runs, or it would run without its tools: now a failure is an event.
            self._normalizer = self._new_normalizer(started)
            self._failure = error
        self._state = "running"
        self._deadlines.start()
        self._watch_network()
        if self._prepared.agent.open_turns:
            self._publisher.notify(self._redactor.clean_text(self._prompt))

    def _warn_of_version(self) -> None:
        """Once per session: what was never tested is used, but not silently."""
        if self._prepared.proof.proof == "probed":
            return
        version = self._backend.agent_version or self._prepared.program.version
        message = self._prepared.agent.version_warning(version)
        if message is not None and self._record.meta.session_id is None:
            untested = warning("untested_version", message)
            self._backend.emit(msgspec.structs.replace(untested, phase="handshake"))

    def _warn_of_policy(self) -> None:
        """What nothing enforces is accepted without ``strict``, but not silently."""
        if self._prepared.run.strict:
            return  # it was refused
        agent, rows = self._prepared.agent, self._prepared.compiled.unenforced
        if rows and "person" not in agent.capabilities:
            parts = ", ".join(part for row in rows for part in row.unenforced)
            message = f"nothing enforces {parts}: {agent.name} may act otherwise (strict=False)"
            self._backend.emit(warning("policy_not_enforced", message))

    async def _check(self) -> bool:
        """Run the check of the setup. It may take long, so ``_fail`` cancels it: then False."""
        if self._setup.check is None:
            return True
        return await self._completes(self._setup.check())

    async def _completes(self, work: Awaitable[object]) -> bool:
        """Whether this work was done before ``_fail`` cancelled it."""
        self._checking = task = asyncio.ensure_future(work)
        if not await self._wait_for(task):
            return False
        task.result()
        return True

    @staticmethod
    async def _wait_for(work: asyncio.Future[Any]) -> bool:
        """Wait for what ``_fail`` may cancel. Returns whether it was not."""
        try:
            await asyncio.wait([work])
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait([work])
        return not work.cancelled()

    def _watch_network(self) -> None:
        backend, run = self._backend, self._prepared.run
        if backend.service_url is None:
            return
        # Another way to the service than that of this process is possible: nothing is claimed.
        wrapped = run.program is not None and not self._prepared.program.packaged
        elsewhere = run.replay is not None or run.sandbox == "agent" or wrapped
        # Inherited settings of the agent can name another service.
        elsewhere = elsewhere or run.inherit != "nothing"
        if not elsewhere and not any(name.lower().endswith("_proxy") for name in run.env):
            from corral._sessions.deadlines import NetworkWatch

            self._network = NetworkWatch(
                backend.service_url, run.retries + 1, backend.emit, self._fail
            )

    def _new_normalizer(self, started: float) -> EventNormalizer:
        prepared, meta = self._prepared, self._record.meta
        init = Init(
            model=prepared.run.model,
            cwd=prepared.cwd,
            tools=prepared.compiled.controls.tools,
            agent_version=self._backend.agent_version or prepared.program.version,
            auth=prepared.auth,
            sandbox=None if prepared.sandbox is None else prepared.sandbox.method,
            sandbox_reason=prepared.sandbox_reason or None,
            proof=prepared.proof.proof,
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
        return EventNormalizer(init, started=started, existed=self._files.existed)

    async def _read(self) -> list[Event]:
        """The events for what the agent sends next. Those of its end, if nothing more comes."""
        self._deadlines.start_waiting()
        try:
            items = None if self._failure else await self._backend.receive()
        except RecursionError as error:  # in what reads the agent's output
            problem = StreamBroken(
                "the agent sent JSON that is nested too deeply to be read",
                hint="Run the prompt again; if it happens again, report it to the agent's"
                " developers.",
            )
            problem.__cause__ = error
            self._fail(problem)
            items = None
        if items is None:
            return await self._finish()
        self._deadlines.on_activity()
        if self._network is not None:
            self._network.on_items(items)
        if self._event_redactor is not None:
            items = self._event_redactor.take(items)
        batch = self._normalizer.take(items, clock.now())
        self._store_text(batch)
        self._recorder.save_session_id(self._normalizer)
        if self._normalizer.finish is not None:
            self._deadlines.on_turn_end()
            if self._network is not None:
                await self._network.stop()
        return batch

    async def _finish(self) -> list[Event]:
        """The agent has ended: its last events, and the end of the turn unless it goes on."""
        normalizer = self._normalizer
        last = await self._backend.finish()
        if self._event_redactor is not None:
            last = [*self._event_redactor.take(last), *self._event_redactor.end()]
        batch = normalizer.take(last, clock.now())
        self._store_text(batch)
        error = await self._find_error()
        if error is not None and self._limits is not None and self._failure is None:
            resumable = self._recorder.is_resumable(normalizer, error) or self._backend.stays_open
            limit = self._limits.take_error(error, normalizer, resumable=resumable)
            if limit is not None:
                return batch + normalizer.take([limit.event()], clock.now())
        return batch + await self._conclude(error)

    async def _find_error(self) -> CorralError | None:
        """Why the turn failed; None for a success."""
        normalizer = self._normalizer
        error = self._failure or self._backend.explain(normalizer, lingered=self._lingered)
        if self._setup.answers() > self._answers_before:
            # An agent that submitted its answer by a tool need not write one.
            ended_well = normalizer.finish is not None and normalizer.finish.ok
            is_refused = isinstance(error, PermissionRefused) and ended_well
            if is_refused or isinstance(error, EmptyAnswer):
                error = None
        if self._network is not None:
            error = self._network.cause_of(error)
            await self._network.stop()
        if isinstance(error, RateLimited) and error.retry_after is None and not error.resets_at:
            from corral._system.clock import find_reset

            error.resets_at = find_reset(error.message, clock.now())
        return error or self._setup.fail()

    async def _continue_after_limit(self, limits: LimitMachine) -> list[Event]:
        """Wait until the limit ends, and continue with another backend."""
        normalizer = self._normalizer
        backend = await limits.wait(self._prompt)
        if backend is None:
            return await self._conclude(self._failure or limits.error)
        if limits.resumes and normalizer.session_id is not None and not self._backend.stays_open:
            self._record.meta.session_id = normalizer.session_id
        adds_usage = not self._prepared.agent.cumulative_usage
        batch = normalizer.restart(clock.now(), adds_usage=adds_usage)
        self._backend, self._lingered = backend, False
        try:
            await backend.prepare()
            await backend.begin(self._fail)
        except RemoteError as problem:
            self._failure = self._failure or problem
        self._deadlines.on_restart()
        self._watch_network()
        return batch

    async def _conclude(self, error: CorralError | None) -> list[Event]:
        """The end of the turn, as events."""
        normalizer, recorder = self._normalizer, self._recorder
        self._deadlines.stop()
        self._state = "over"
        answer, output = self._builder.answer(), None
        if error is None and self._setup.typed is not None:
            output, error = self._setup.typed.read(answer)
        if error is not None:
            self._backend.add_facts(error)
            version = self._backend.agent_version or self._prepared.program.version
            error.agent_version = version
            if error.retry_after is not None and error.resets_at is None:
                error.resets_at = clock.now() + error.retry_after
        files, complete = await self._files.compare(normalizer, recorder.warnings)
        await recorder.save_diff(self._files.before, files)
        if normalizer.finish is not None:
            normalizer.finish = recorder.own_usage(normalizer.finish)
        budget, finish = self._prepared.budget, normalizer.finish
        if budget is not None and self._prepared.meter_reason is not None and finish is not None:
            # Corral does not count the calls: what the agent reports counts for the budget.
            from corral._core.spending import Spent

            budget.record(Spent(finish.cost.usd or 0.0, finish.usage.total or 0, 1))
        can_resume = recorder.save_end(normalizer, error, has_started=self._backend.started)
        batch = normalizer.take(self._final_warnings(), clock.now())
        report = self._prepared.compiled.report
        ending = Done(
            "success",
            text=answer.text,
            text_complete=not self._builder.is_cut,
            # A value that was submitted by a tool has not passed the redaction of the stream.
            output=recorder.redacted(output),
            files=files,
            files_complete=complete,
            denied_complete=self._prepared.agent.reports_all_denials
            or all(row.is_allowed and not row.exceptions for row in report),
            resume_token=self._record.meta.id
            if can_resume and not isinstance(error, ResumeLost)
            else None,
            waited_ms=round(self._deadlines.waited * 1000),
        )
        *last, done = normalizer.close(clock.now(), error, ending)
        self._ending = done if isinstance(done, Done) else ending
        batch += last
        if self._is_verified(error):
            # What the agent wrote last is not held back until the checks have ended.
            self._state = "verifying"
            return batch
        self._end_with(self._ending)
        return [*batch, self._ending]

    def _is_verified(self, error: CorralError | None) -> bool:
        """Whether the run ends here, and is to be verified."""
        setup, typed = self._setup, self._setup.typed
        if setup.verifier is None or not setup.is_last:
            return False
        is_corrected = error is None and typed is not None and not typed.is_found
        return not is_corrected

    def _end_with(self, done: Done) -> None:
        self._state = "over"
        self._stop()
        self._publisher.notify(done)

    async def _verify(self, verifier: RunVerifier) -> list[Event]:
        """The end of the turn, with the receipt of the run."""
        done = self._ending
        self._builder.add(done)
        result, typed = self._build_result(), self._setup.typed
        work = verifier.conclude(self._prepared, self._record, result, typed)
        self._checking = checking = asyncio.ensure_future(work)
        if await self._wait_for(checking):
            from corral._sessions.run_verifier import with_judging

            receipt = checking.result()
            ended = msgspec.structs.replace(with_judging(done, [receipt]), receipt=receipt)
            self._end_with(ended)
            return [ended]
        cancelled = (self._failure or Interrupted("the run was cancelled")).event()
        status = Interrupted.status
        ended = msgspec.structs.replace(done, seq=done.seq + 1, status=status, error=cancelled)
        self._end_with(ended)
        return [with_envelope_of(cancelled, done), ended]

    def _store_text(self, batch: list[Event]) -> None:
        """For the text in ``done``, and the result."""
        if not self._builder.is_cut:
            self._builder.add_all(batch)

    def _final_warnings(self) -> list[RawEvent]:
        items: list[RawEvent] = [*self._recorder.warnings, *self._publisher.take_warnings()]
        self._recorder.warnings.clear()
        finish, requested = self._normalizer.finish, self._prepared.run.model
        used = finish.model if finish else None
        is_alias = requested in self._prepared.agent.model_aliases
        if requested and used and requested != used and not is_alias:
            items.append(warning("model_differs", f"asked for {requested}, but {used} answered"))
        if self._lingered:
            text = "the agent did not exit after its answer; it was ended"
            items.append(warning("lingered", text))
        return items

    def _on_limit(self, limit: LimitState | None) -> None:
        """A wait for a rate limit has started, or ended (None). That of a turn which a limit has
        ended was emitted before it waits."""
        has_emitted = self._limits is not None and self._limits.is_waiting
        if limit is not None and not has_emitted and self._backend.service_url is not None:
            self._backend.emit(limit.event())
        self._publisher.show_limit(None if limit is None else limit.until)

    def _on_deadline(self, error: CorralError | None) -> None:
        """A deadline passed; without an error, the agent only did not exit after its turn."""
        self._lingered = error is None
        if error is not None:
            self._fail(error)
        else:
            self._backend.end_soon()

    def _fail(self, error: CorralError) -> None:
        if self._failure is None and self._state in ("new", "starting", "running", "verifying"):
            self._failure = error
            if self._checking is not None:
                self._checking.cancel()
            self._backend.end_soon()
            if self._limits is not None:
                self._limits.stop_waiting()
