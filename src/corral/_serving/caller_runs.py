"""The runs of a caller: start them, wait for them, answer their questions, cancel them, read their
results.

::

    async with CallerRuns(allowance) as runs:
        run = await runs.start(RunRequest(prompt="Review the last commit"))
        view = await runs.wait(run.id, 50)

Theory of operation
-------------------
``CallerRuns`` belongs to one caller: a client of a server. Each run is a task with a session, or a
pipeline in memory; its id is that of the session or pipeline run, so every other command of corral
finds it (``corral runs show``, ``corral view``).

States of a run: *starting* (no id yet; what is wrong with the request is raised by ``start``) ->
*running* <-> *waiting* (the agent asks something) -> *ended* (it has an outcome). A run ends by
itself, by ``cancel``, at its time limit, or with its caller.

- ``start`` raises before anything is spent: the request exceeds the allowance, too many runs, an
  agent that is not installed, a policy that it cannot enforce.
- The runs share one budget; each is a part of it. The caller's own limits of a run are within it.
- A request for permission, a question or a gate is open until the first answer: of the caller, as
  far as the allowance permits (``answers``), or of a person elsewhere if the options of the runs
  say so (``remote_answers``). Without an answer it is denied after ``answer_timeout``. Nothing
  waits for ever.
- The caller goes away: ``end`` cancels its runs, in bounded time, or waits for them
  (``keeps_runs``). When the block is left by an exception, they are ended in any case.
- Outcomes are kept in memory up to ``KEPT`` runs and ``KEPT_CHARACTERS``. Those of sessions are
  read from the store after that, also by a later server. A caller reads its own: sessions with
  the label of its allowance, in its folders.

If this process is killed, its agents are ended as those of every corral process; what they did so
far is in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from corral._core.display import shorten
from corral._core.durations import seconds
from corral._core.durations import text as duration_text
from corral._core.question_replies import AnswerLike, read_reply
from corral._publishing.records import Pending
from corral._serving.allowance import (
    Allowance,
    CheckedRun,
    Narrowing,
    PipelineRequest,
    RunAnswer,
    RunRequest,
)
from corral._sessions import store
from corral._sessions.fallback import Given, run_in_agents
from corral._sessions.permissions import QuestionAsker
from corral._sessions.prepare import only_in
from corral._sessions.session import Session
from corral._sessions.session_link import pending_of
from corral._system import clock, paths
from corral._system.environment import SecretRedactor, named_secrets, own_secrets, redactor_of
from corral._system.paths import is_inside
from corral._system.threads import in_thread
from corral.errors import (
    ConfigError,
    CorralError,
    Interrupted,
    NotPermitted,
    ResumeLost,
    TotalTimeout,
)
from corral.events import AgentQuestion, PermissionRequest, QuestionField, QuestionOption, ToolUse
from corral.result import Result, ResultBuilder
from corral.run_kwargs import RunKwargs
from corral.values import AskedQuestion, Cost, DeniedCall, FileChanged, Json, Usage

if TYPE_CHECKING:
    from corral._engine.run_result import PipelineResult
    from corral._metering.budget import Budget
    from corral._pipelines.events import RunEvent
    from corral._pipelines.scheduler.commands import Answer, Question
    from corral._sessions.goals import Goal
    from corral._sessions.permissions import Asker
    from corral._sessions.turn import Turn
    from corral.events import Event

_log = logging.getLogger("corral.serving")

Kind: TypeAlias = Literal["session", "pipeline"]
State: TypeAlias = Literal["starting", "running", "waiting", "ended"]

KEPT = 100
"""Runs that have ended and whose outcome is in memory."""
KEPT_CHARACTERS = 20_000_000
CANCEL_TIMEOUT = 15.0
"""Seconds that a run gets to end by itself once it is cancelled."""
ANSWER_TIMEOUT = 300.0
"""Seconds, as of ``RunOptions``."""
LONGEST_ACTIVITY = 200


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run ended. ``status`` is that of a ``Result`` or of a ``PipelineResult``."""

    status: str
    text: str = ""
    """The answer."""
    output: Json = None
    """The value, if the request has an ``output_schema``."""
    error: str = ""
    error_code: str = ""
    hint: str = ""
    model: str | None = None
    files: tuple[FileChanged, ...] = ()
    denied: tuple[DeniedCall, ...] = ()
    questions: tuple[AskedQuestion, ...] = ()
    usage: Usage = Usage()
    cost: Cost = Cost()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.status == "success"


class RunView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run as its caller sees it."""

    run: str
    kind: Kind
    state: State
    agent: str = ""
    pipeline: str = ""
    cwd: str = ""
    seconds: float = 0.0
    """Since it was started."""
    activity: str = ""
    """What it does now, in one line."""
    steps: int = 0
    """Tool calls, or nodes, so far."""
    pending: tuple[Pending, ...] = ()
    """What the caller may answer."""
    waits_for_person: bool = False
    """It asks something that the caller may not answer."""
    outcome: RunOutcome | None = None


class _OpenRequest:
    """Something that a run asks."""

    def __init__(
        self, pending: Pending, question: PermissionRequest | AgentQuestion | Question, mine: bool
    ) -> None:
        self.pending = pending
        self.question = question
        self.mine = mine
        """Whether the caller may answer it."""
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class CallerRun:
    """One run. ``view`` is what its caller sees."""

    def __init__(self, kind: Kind, allowance: Allowance, checked: CheckedRun, name: str) -> None:
        """``name``: of the pipeline."""
        self.id: str = ""
        """Set once it runs."""
        self.outcome: RunOutcome | None = None
        self._kind: Kind = kind
        self._allowance = allowance
        self._checked = checked
        self._name = name
        self._started = clock.now()
        self._seconds: float | None = None
        self._activity = "starting"
        self._steps = 0
        self._asked: dict[str, _OpenRequest] = {}
        self._redactor = SecretRedactor({})
        self._turn: Turn | None = None
        self._cancelled = False
        self._listeners: set[Callable[[], None]] = set()
        self.ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Its id, or why it cannot start."""
        self.task: asyncio.Task[None] | None = None

    @property
    def view(self) -> RunView:
        mine = tuple(each.pending for each in self._asked.values() if each.mine)
        state: State = "waiting" if self._asked else "running" if self.id else "starting"
        if self.outcome is not None:
            state = "ended"
        age = clock.now() - self._started if self._seconds is None else self._seconds
        return RunView(
            run=self.id,
            kind=self._kind,
            state=state,
            agent=self._checked.agent if self._kind == "session" else "",
            pipeline=self._name,
            cwd=str(self._checked.options.get("cwd", "")),
            seconds=round(age, 3),
            activity="" if self.outcome is not None else self._activity,
            steps=self._steps,
            pending=mine,
            waits_for_person=len(mine) < len(self._asked),
            outcome=self.outcome,
        )

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have ``listener`` called when the view changes. Returns the function that ends that."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    async def wait(self, timeout: float) -> RunView:
        """Wait until it has ended or asks the caller something, at most this long."""
        changed = asyncio.Event()
        remove = self.on_change(changed.set)
        try:
            async with asyncio.timeout(timeout):
                while self.outcome is None and not any(e.mine for e in self._asked.values()):
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            pass
        finally:
            remove()
        return self.view

    def cancel(self) -> None:
        """End it: its outcome is ``interrupted``. One that does not end is stopped."""
        if self.outcome is not None or self._cancelled or self.task is None:
            return
        self._cancelled = True
        if self._turn is None:
            self.task.cancel()
            return
        self._turn.cancel()
        asyncio.get_running_loop().call_later(CANCEL_TIMEOUT, self.task.cancel)

    def answer(self, given: RunAnswer) -> None:
        """Answer what it asks. Raises ``ConfigError`` and ``NotPermitted``."""
        found = [
            asked
            for id, asked in self._asked.items()
            if given.request_id in ("", id) and not asked.answer.done()
        ]
        if not found:
            what = given.request_id or "anything"
            raise ConfigError(f"the run {self.id} does not ask {what} now")
        if len(found) > 1:
            ids = ", ".join(each.pending.request_id for each in found)
            raise ConfigError(
                f"the run {self.id} asks several things: request_id must be one of {ids}"
            )
        asked = found[0]
        if not asked.mine:
            raise self._allowance.refusal(
                "answers", f"to answer a {_name_of(asked)}", f"at most {self._allowance.answers}"
            )
        value = _read_answer(asked.question, given)
        del self._asked[asked.pending.request_id]  # it is answered, whoever looks next
        asked.answer.set_result(value)
        self._change()

    async def ask(self, request: PermissionRequest | AgentQuestion) -> AnswerLike:
        """Answers a request of the agent: with the caller's answer."""
        is_question = isinstance(request, AgentQuestion)
        mine = self._allowance.answers in (("questions", "all") if is_question else ("all",))
        timeout = self._checked.options.get("answer_timeout", ANSWER_TIMEOUT)
        pending = pending_of(request, self._redactor, seconds(timeout))
        answer: AnswerLike = await self._wait_for_answer(_OpenRequest(pending, request, mine))
        return answer

    async def ask_gate(self, question: Question) -> Answer:
        """Answers a human gate of a pipeline, or a question of an agent in it."""
        from corral._pipelines.execution.interviewers import MARK

        mine = self._allowance.answers == "all"
        if not mine and (MARK not in question.id or self._allowance.answers == "nothing"):
            raise self._allowance.refusal(
                "answers", "to answer a gate of a pipeline", f"at most {self._allowance.answers}"
            )
        options = tuple(QuestionOption(label=choice.key, description=choice.label)
                        for choice in question.choices)  # fmt: skip
        text = self._redactor.clean_text(question.text)
        pending = Pending(
            request_id=question.id,
            kind="question",
            title=shorten(text, 500),
            since=clock.now(),
            deadline=question.deadline,
            fields=(QuestionField("answer", text, options=options),),
        )
        answer: Answer = await self._wait_for_answer(_OpenRequest(pending, question, True))
        return answer

    async def _wait_for_answer(self, asked: _OpenRequest) -> Any:
        key = asked.pending.request_id
        while key in self._asked:  # of another agent of the same pipeline
            key += "+"
        asked.pending = replace(asked.pending, request_id=key)
        self._asked[key] = asked
        self._change()
        try:
            return await asked.answer
        finally:
            if self._asked.get(key) is asked:
                del self._asked[key]
                self._change()

    def asker(self) -> Asker | None:
        """The ``ask`` of its session: what is left to the policy alone is not asked."""
        options = self._checked.options
        notifies = options.get("notify") is not None and options.get("notify_on") != "end"
        if self._allowance.answers == "all" or options.get("remote_answers") or notifies:
            return self.ask  # what the caller may not answer waits for a person elsewhere
        return QuestionAsker(self.ask) if self._allowance.answers == "questions" else None

    def opened(self, id: str, redactor: SecretRedactor) -> None:
        """It runs now."""
        self.id, self._redactor = id, redactor
        self._activity = "working"
        if not self.ready.done():
            self.ready.set_result(id)
        self._change()

    async def take_turn(self, turn: Turn) -> Result:
        self._turn = turn
        if self._cancelled:
            turn.cancel()
        return await turn.collect(self._on_event)

    def _on_event(self, event: Event) -> None:
        activity = self._activity
        if isinstance(event, ToolUse):
            self._steps += 1
            activity = event.title or event.name
        elif event.type == "text":
            activity = "writing the answer"
        elif event.type == "thinking":
            activity = "thinking"
        self._show(activity)

    def on_pipeline_event(self, event: RunEvent) -> None:
        """An event of the pipeline, or of an agent in it."""
        if event.type == "step_started":
            self._steps += 1
            self._show(f"node {event.node}")

    def _show(self, activity: str) -> None:
        activity = shorten(activity, LONGEST_ACTIVITY)
        if activity != self._activity:
            self._activity = activity
            self._change()

    def ended(self, outcome: RunOutcome) -> None:
        """It has ended. The first outcome counts."""
        if self.outcome is None:
            self.outcome, self._seconds = outcome, clock.now() - self._started
            self._turn = None
            self._change()

    def _change(self) -> None:
        for listener in tuple(self._listeners):
            listener()


class CallerRuns:
    """The runs of one caller, while its block is open."""

    def __init__(
        self,
        allowance: Allowance,
        *,
        parent: CallerRuns | None = None,
    ) -> None:
        """``parent``: those of the server, whose limits hold for all its clients together."""
        self.allowance = allowance
        self._parent = parent
        self._runs: dict[str, CallerRun] = {}
        self._count_running = 0
        """With those of its clients."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._unfinished: set[CallerRun] = set()
        """Those that have not ended, also before they have an id."""
        self._is_closed = False
        self._budget: Budget | None = None if parent is None else parent._budget
        if allowance.limits.exist and (
            parent is None or allowance.limits != parent.allowance.limits
        ):
            from corral._metering.budget import memory_budget

            self._budget = memory_budget(allowance.limits, self._budget)

    async def __aenter__(self) -> CallerRuns:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                await self.end()
        finally:
            self._is_closed = True
            await self._stop()

    def for_client(self, client: str, narrowing: Narrowing) -> CallerRuns:
        """Those of one client, as another block within this one. Raises ``NotPermitted``."""
        return CallerRuns(self.allowance.narrowed(narrowing, client), parent=self)

    async def start(self, request: RunRequest) -> CallerRun:
        """Start a run; it has its id when this returns. Raises ``CorralError`` for what is wrong or
        not permitted."""
        if request.session is not None:
            record = await in_thread(self.own_session, request.session)
            found = self._runs.get(request.session)
            if found is not None and found.outcome is None:
                raise ConfigError(f"{request.session} is still running: wait for it first")
            known: RunKwargs = {}
            agent = request.agent or store.agent_of(request.session, known)
            model = request.model or known.get("model")
            cwd = request.cwd or record.meta.cwd
            request = replace(request, agent=agent, model=model, cwd=cwd)
        checked = self.allowance.check(request)
        _goal(request)
        run = CallerRun("session", self.allowance, checked, "")
        return await self._begin(run, self._drive_session(run, request, checked))

    async def start_pipeline(self, request: PipelineRequest) -> CallerRun:
        """Start a pipeline in memory. Raises as ``start``."""
        checked = self.allowance.check_pipeline(request)
        run = CallerRun("pipeline", self.allowance, checked, request.pipeline)
        return await self._begin(run, self._drive_pipeline(run, request, checked))

    def list(self) -> list[RunView]:
        """The runs in memory, the newest first."""
        return [run.view for run in reversed(self._runs.values())]

    async def wait(self, run: str, timeout: float) -> RunView:
        """Wait until the run has ended or asks the caller something. Raises ``ResumeLost`` for one
        that is not the caller's."""
        found = self._runs.get(run)
        return await self.view(run) if found is None else await found.wait(timeout)

    async def view(self, run: str) -> RunView:
        """The run as it is now, from the store if it is no longer in memory. Raises
        ``ResumeLost``."""
        found = self._runs.get(run)
        if found is not None:
            return found.view
        return await in_thread(lambda: _stored_view(self.own_session(run)))

    def log(self, run: str) -> Path:
        """The file of events of a session of the caller; it may not exist yet. Blocking. Raises
        ``ResumeLost``."""
        found = self._runs.get(run)
        if found is not None and found.view.kind == "session":
            return paths.sessions() / run / store.EVENTS
        return self.own_session(run).folder / store.EVENTS

    def find(self, run: str) -> CallerRun:
        """A run in memory. Raises ``ResumeLost``."""
        found = self._runs.get(run)
        if found is None:
            raise ResumeLost(f"no run of this caller is called {run!r} and goes on")
        return found

    async def end(self, *, keeps: bool | None = None) -> None:
        """The caller has gone away: end its runs, or wait for them if the allowance keeps them.
        ``keeps`` is used instead of what the allowance says."""
        keeps = self.allowance.keeps_runs if keeps is None else keeps
        if not keeps:
            for run in [*self._unfinished]:
                run.cancel()
        limit = None if keeps else 2 * CANCEL_TIMEOUT
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit)

    def revoke(self) -> None:
        """The caller may do nothing more: end its runs, and start no other."""
        self._is_closed = True
        for run in [*self._unfinished]:
            run.cancel()

    async def settle(self, seconds: float) -> None:
        """Wait until all runs have ended, at most this long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def _stop(self) -> None:
        """No task is left, also if this one is cancelled meanwhile."""
        cancelled: asyncio.CancelledError | None = None
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            try:
                await asyncio.wait(self._tasks)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _begin(self, run: CallerRun, work: Coroutine[Any, Any, RunOutcome]) -> CallerRun:
        """Start the task of a run, and wait until it has its id."""
        try:
            self._check_concurrency()
        except NotPermitted:
            work.close()
            raise
        task = run.task = asyncio.create_task(self._guard(run, work), name="corral-caller-run")
        self._tasks.add(task)
        self._unfinished.add(run)
        self._count(1)

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._unfinished.discard(run)
            self._count(-1)
            if not run.ready.done():  # the task was cancelled before it began
                work.close()
                run.ready.set_exception(Interrupted("the run was cancelled"))

        task.add_done_callback(over)
        try:
            await asyncio.shield(run.ready)
        except asyncio.CancelledError:  # its caller has gone before it had an id
            task.cancel()
            raise
        return run

    def _check_concurrency(self) -> None:
        runs: CallerRuns | None = self
        if self._is_closed:
            raise NotPermitted("the server ends: no run can be started", retryable=True)
        while runs is not None:
            most = runs.allowance.concurrency
            if runs._count_running >= most:
                error = runs.allowance.refusal(
                    "concurrency", f"one more run beside {most}", f"at most {most} at once"
                )
                error.retryable = True
                raise error
            runs = runs._parent

    async def _guard(self, run: CallerRun, work: Coroutine[Any, Any, RunOutcome]) -> None:
        """Run the work to its end: whatever happens, the run has an outcome, or ``start``
        raises."""
        failure: BaseException
        try:
            outcome = await work
        except asyncio.CancelledError:
            failure = Interrupted("the run was cancelled")
        except CorralError as error:
            failure = error
        except Exception as error:
            _log.exception("a run of a caller failed")
            failure = CorralError(f"internal error: {type(error).__name__}: {error}")
        else:
            run.ended(outcome)
            self._forget_old()
            return
        if run.ready.done() and not run.ready.cancelled():
            run.ended(_failed(failure))
            self._forget_old()
        else:
            run.ready.set_exception(failure)

    def _count(self, more: int) -> None:
        runs: CallerRuns | None = self
        while runs is not None:
            runs._count_running += more
            runs = runs._parent

    async def _drive_session(
        self, run: CallerRun, request: RunRequest, checked: CheckedRun
    ) -> RunOutcome:
        part = None if self._budget is None else self._budget.part(f"caller-{id(run)}")
        try:
            first = Session(checked.agent, {**checked.options}, run.asker(), budget=part)

            async def work(session: Session, prompt: Given) -> Result:
                redactor = redactor_of(session.prepared.environment)
                if session is first:
                    self._open(run, session.id, redactor)
                else:
                    run.opened(run.id, redactor)
                return await _prompt(run, session, request, prompt)

            with only_in(checked.writable):
                return outcome_of(await run_in_agents(first, request.prompt, work))
        finally:
            if part is not None:
                part.close()

    async def _drive_pipeline(
        self, run: CallerRun, request: PipelineRequest, checked: CheckedRun
    ) -> RunOutcome:
        from corral._engine import pipeline_runs
        from corral._pipelines import loader

        options: RunKwargs = {**checked.options}
        timeout = float(options.get("timeout", self.allowance.timeout))
        secrets = {**own_secrets(), **named_secrets(options.get("env", {}))}
        part = None if self._budget is None else self._budget.part(f"caller-{id(run)}")
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                loaded = self.allowance.loaded[request.pipeline]
                with loader.only(loaded), only_in(checked.writable):
                    result = await pipeline_runs.run(
                        Path(self.allowance.pipelines[request.pipeline]),
                        goal=request.goal,
                        values=request.values,
                        agent=checked.agent,
                        interviewer=_Gates(run),
                        ask=run.ask if self.allowance.answers == "all" else None,
                        on_event=run.on_pipeline_event,
                        on_start=lambda id, _: self._open(run, id, SecretRedactor(secrets)),
                        durable=False,
                        budget=part,
                        **options,
                    )
        except TimeoutError:
            if not limit.expired():
                raise
            raise TotalTimeout(f"the pipeline took longer than {duration_text(timeout)}") from None
        finally:
            if part is not None:
                part.close()
        return _outcome_of_pipeline(result)

    def _open(self, run: CallerRun, id: str, redactor: SecretRedactor) -> None:
        self._runs.pop(id, None)  # an earlier prompt of the same session
        self._runs[id] = run
        run.opened(id, redactor)

    def _forget_old(self) -> None:
        ended = [(name, run.outcome) for name, run in self._runs.items() if run.outcome is not None]
        count, size = len(ended), sum(len(outcome.text) for _, outcome in ended)
        for name, outcome in ended[:-1]:
            if count <= KEPT and size <= KEPT_CHARACTERS:
                return
            count, size = count - 1, size - len(outcome.text)
            del self._runs[name]

    def own_session(self, name: str) -> store.SessionRecord:
        """The stored session with exactly this id, if it is one of the caller. Raises
        ``ResumeLost``: whether another one exists is not said."""
        with contextlib.suppress(ResumeLost, ConfigError, ValueError):  # a NUL is in no path
            record = store.find(name)
            meta = record.meta
            inside = any(is_inside(meta.cwd, folder) for folder in self.allowance.folders)
            if meta.id == name and meta.label == self.allowance.label and inside:
                return record
        raise ResumeLost(f"no run of this caller is called {name!r}")


class _Gates:
    """The interviewer of a caller's pipeline."""

    def __init__(self, run: CallerRun) -> None:
        self._run = run

    async def ask(self, question: Question) -> Answer:
        return await self._run.ask_gate(question)


async def _prompt(run: CallerRun, session: Session, request: RunRequest, prompt: Given) -> Result:
    goal = _goal(request)
    if goal is None:
        return await run.take_turn(session.prompt(prompt))
    from corral._sessions.goals import run_goal

    return await run_goal(goal, session, prompt, run.take_turn)


def _goal(request: RunRequest) -> Goal | None:
    """What the answer must be, if the request says it. Raises ``SchemaInvalid``."""
    if request.output_schema is None:
        return None
    from corral._protocol.schema import schema_of
    from corral._sessions.goals import Goal

    goal = Goal(output=schema_of(request.output_schema))
    goal.check()
    return goal


def outcome_of(result: Result) -> RunOutcome:
    """The outcome of an agent's run."""
    error = result.error
    return RunOutcome(
        status=result.status,
        text=result.text,
        output=result.output if result.ok else None,
        error="" if error is None else error.message,
        error_code="" if error is None else error.code,
        hint="" if error is None else error.hint or "",
        model=result.model,
        files=result.files,
        denied=result.denied,
        questions=result.questions,
        usage=result.usage,
        cost=result.cost,
        seconds=result.duration,
    )


def _outcome_of_pipeline(result: PipelineResult) -> RunOutcome:
    return RunOutcome(
        status=result.status,
        text=result.text or "",
        error="" if result.ok else result.reason,
        usage=Usage(input=result.tokens or None),
        cost=Cost(usd=result.cost_usd or None),
    )


def _failed(error: BaseException) -> RunOutcome:
    if not isinstance(error, CorralError):
        return RunOutcome(status="error", error=str(error))
    hint = error.hint or ""
    return RunOutcome(status=error.status, error=error.message, error_code=error.code, hint=hint)


def _stored_view(record: store.SessionRecord) -> RunView:
    """The last prompt of a stored session."""
    builder, steps = ResultBuilder(), 0
    for event in record.events():
        if event.type == "init":
            builder, steps = ResultBuilder(), 0
        builder.add(event)
        steps += event.type == "tool_use"
    meta = record.meta
    in_use = store.is_in_use(record)
    return RunView(
        run=meta.id,
        kind="session",
        state="running" if in_use else "ended",
        agent=meta.agent,
        cwd=meta.cwd,
        steps=steps,
        outcome=None if in_use else outcome_of(builder.result()),
    )


def _name_of(asked: _OpenRequest) -> str:
    return "question" if asked.pending.kind == "question" else "permission request"


def _read_answer(
    question: PermissionRequest | AgentQuestion | Question, given: RunAnswer
) -> object:
    """The value that answers it. Raises ``ConfigError``."""
    if isinstance(question, PermissionRequest):
        if given.decision is None:
            raise ConfigError(
                "a permission request needs a decision: allow_once, allow_session, deny"
            )
        return given.decision
    if isinstance(question, AgentQuestion):
        value: str | Mapping[str, Json] | None = given.answers
        if value is None:
            value = given.text if given.text is not None else given.decision
        if value is None:
            raise ConfigError("a question needs a text, or answers by the keys of its fields")
        read_reply(question, value)
        return value
    from corral._pipelines.execution.interviewers import parse_answer

    answer = parse_answer(question, given.text or "")
    if answer is None:
        keys = ", ".join(choice.key for choice in question.choices)
        raise ConfigError(
            f"the gate needs a text: one of {keys}" if keys else "the gate needs a text"
        )
    return answer
