"""What the verbs that change a run do for each kind: ``act`` calls them with the run.

Answers, cancellation and texts for an agent go to the process that works on the run or on a part of
it (``corral.live``), or to the database of a durable run, whose executor reacts. ``resume`` and
``fork`` execute the run in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from corral import live
from corral._core.lookup import run_of
from corral._core.spending import LIMITS, BudgetLimits, BudgetState, Raise
from corral._publishing import control
from corral._runs.run_record import Run
from corral._system.threads import blocking, in_thread
from corral.errors import ConfigError, ResumeLost
from corral.events import Decision
from corral.run_kwargs import RunKwargs
from corral.values import Json

if TYPE_CHECKING:
    from corral._engine.continue_run import Changes
    from corral._engine.follow_run import FollowOptions, OnStart
    from corral._merging.queue import MergeQueue
    from corral._pipelines.execution.interviewers import Interviewer
    from corral._publishing.tokens import Token
    from corral._sessions.permissions import Asker

GO_ON = "Your work on this was interrupted. Continue it where it ended."
"""The prompt of a session that is resumed without one."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a person answers: the arguments of ``answer``."""

    text: str | None = None
    decision: Decision | None = None
    answers: dict[str, Json] | None = None
    request: str = ""
    comment: str = ""
    skip: bool = False
    by: str = "corral.runs.answer"


class Going(msgspec.Struct, frozen=True, kw_only=True):
    """How a run goes on, or a fork of it begins: the arguments of ``resume`` and ``fork``."""

    prompt: str | None = None
    place: str = ""
    concurrency: int | None = None
    accept_changed: bool = False
    plan_only: bool = False
    run_dir: str | None = None
    interviewer: Interviewer | None = None
    ask: Asker | None = None
    on_event: Callable[[Any], None] | None = None
    on_start: OnStart | None = None
    on_result: Callable[..., None] | None = None
    options: RunKwargs = {}
    """Options of ``corral.run`` that change."""

    def check(self, run: Run, *taken: str, options: tuple[str, ...] | None = None) -> None:
        """Raises ``ConfigError`` for an argument or option that runs of this kind do not take.
        ``options`` are those that they take; None: all."""
        names = ("prompt", "place", "concurrency", "accept_changed", "plan_only")
        given = [name for name in (*names, "run_dir") if getattr(self, name) and name not in taken]
        if options is not None:
            given += [name for name in self.options if name not in options]
        if given:
            what = {"place": "from"}.get(given[0], given[0]).replace("_", "-")
            raise ConfigError(f"a {run.kind} takes no {what} when it goes on")

    def changes(self) -> Changes:
        """As limits of the run, and options of its agents. Raises ``ConfigError``."""
        from corral._engine.continue_run import Changes
        from corral._engine.run_options import as_json

        limits = BudgetLimits(
            max_cost=self.options.get("max_cost"),
            max_total_tokens=self.options.get("max_total_tokens"),
            max_calls=self.options.get("max_calls"),
        ).as_dict()
        options = as_json(self.options)
        for name in LIMITS:
            options.pop(name, None)
        return Changes(limits=limits, options=options, accept_changed=self.accept_changed)

    def follow(self, db: str | None) -> FollowOptions:
        from corral._engine.follow_run import FollowOptions

        return FollowOptions(
            db=db, interviewer=self.interviewer, on_event=self.on_event, on_start=self.on_start
        )


# Answers.


async def answer(run: Run, reply: Reply, db: str | None) -> None:
    """Answer what a session waits for, or what the parts of a run do."""
    waiting = [part for part in await in_thread(_live_parts, run) if part.pending]
    wanted = [
        part
        for part in waiting
        if not reply.request or any(each.request_id == reply.request for each in part.pending)
    ]
    if len(wanted) > 1:
        ids = [f"{each.request_id} ({part.id})" for part in wanted for each in part.pending]
        raise ConfigError(
            f"several requests of {run.id} wait", hint=f"Name one with --request: {', '.join(ids)}."
        )
    if not wanted and run.kind != "session":
        raise nothing_waits(run)
    target = wanted[0].id if wanted else run.id
    if reply.skip or reply.comment:
        raise ConfigError("only a gate is skipped, or takes a comment")
    asks = any(each.kind == "question" for part in wanted for each in part.pending)
    if reply.decision is None and wanted and not asks:
        raise ConfigError(
            f"{target} waits for a permission, not for a text",
            hint=f"For example: corral runs answer {run.id} --allow",
        )
    await in_thread(
        control.answer,
        target,
        reply.decision,
        text=reply.text,
        answers=reply.answers,
        request_id=reply.request,
        by=reply.by,
    )


async def answer_durable(run: Run, reply: Reply, db: str | None) -> None:
    """Answer a gate or ``flow.ask``; or, with a decision, what an agent of the run waits for."""
    from corral._engine import open_questions
    from corral._pipelines.scheduler.commands import Answer

    asked = (
        []
        if not run.durable or run.ended is not None
        else await open_questions.questions(run.id, db=db)
    )
    if reply.decision is not None or not asked:
        await answer(run, reply, db)
        return
    given = Answer(value=reply.text or "", text=reply.comment, skipped=reply.skip)
    await open_questions.answer(run.id, given, gate=reply.request or None, by=reply.by, db=db)


async def answer_with_token(token: str, reply: Reply) -> Token:
    """Answer what a message of ``notify`` asked."""
    from corral._publishing import tokens

    with tokens.using(token) as says:
        if says.kind == "pipeline":
            from corral._engine import open_questions
            from corral._pipelines.scheduler.commands import Answer

            db = None if says.db is None or "***" in says.db else says.db
            given = Answer(value=reply.text or "", text=reply.comment)
            gate = says.request_id
            await open_questions.answer(says.run, given, gate=gate, by=reply.by, db=db)
        elif reply.comment:
            raise ConfigError("only the gate of a pipeline takes a comment")
        else:
            await in_thread(
                control.answer_session,
                says,
                decision=reply.decision,
                text=reply.text or "",
                by=reply.by,
            )
    return says


def nothing_waits(run: Run) -> ConfigError:
    state = f"it is {run.state}"
    return ConfigError(f"nothing waits for an answer in the {run.kind} {run.id}: {state}")


def _live_parts(run: Run) -> list[live.LiveRun]:
    """What running processes work on for a run, the run itself first."""
    parts = [
        each for each in live.runs() if run.id in (each.id, run_of(each.part_of).split("/")[0])
    ]
    return sorted(parts, key=lambda each: each.id != run.id)


# Cancellation.


async def cancel(run: Run, reason: str, db: str | None) -> None:
    """Cancel what processes work on for a run: the run itself, or its parts."""
    parts = await in_thread(_live_parts, run)
    if parts and parts[0].id == run.id:
        parts = parts[:1]  # its process ends the others
    if not parts:
        raise has_ended(run)
    for part in parts:
        await in_thread(control.cancel, part.id)


async def cancel_durable(run: Run, reason: str, db: str | None) -> None:
    if not run.durable:
        await cancel(run, reason, db)
        return
    if not run.is_open and run.state != "interrupted":
        raise has_ended(run)
    from corral._engine import service

    await service.cancel(run.id, reason=reason, db=db)


async def cancel_batch(run: Run, reason: str, db: str | None) -> None:
    """Of a batch or a comparison: the tasks that have not ended."""
    from corral._engine.batch import query

    if not run.is_open and run.state != "interrupted":
        raise has_ended(run)
    await query.cancel_batch(run.id, db=db)


async def cancel_merge(run: Run, reason: str, db: str | None) -> None:
    """Take what is queued out of the queue; branches stay."""
    from corral._merging import api

    queue = _queue(run)
    if not queue.open:
        raise has_ended(run)
    branches = [entry.branch for entry in queue.open]
    await in_thread(api.remove, branches, into=queue.into, cwd=queue.repository)


def has_ended(run: Run) -> ConfigError:
    return ConfigError(f"the {run.kind} {run.id} has already ended: {run.state}")


async def steer(run: Run, text: str) -> None:
    """Send a text to the agent of a run, or of the only part of it that takes one."""
    parts = [part for part in await in_thread(_live_parts, run) if part.can_steer]
    if len(parts) > 1:
        raise ConfigError(
            f"several agents of {run.id} work", hint=f"Name one: {', '.join(p.id for p in parts)}."
        )
    await in_thread(control.steer, parts[0].id if parts else run.id, text)


# Going on.


async def resume_session(run: Run, going: Going, db: str | None) -> Any:
    """The result of one more prompt in a session; None for a success that gets none."""
    going.check(run, "prompt")
    if run.state == "success" and not (going.prompt or "").strip():
        return None
    return await _prompt(run, going, going.prompt or GO_ON, {})


async def fork_session(run: Run, going: Going, db: str | None) -> Any:
    """The result of the first prompt of a new conversation that begins with this one."""
    going.check(run, "prompt")
    if not (going.prompt or "").strip():
        raise ConfigError(
            "a fork of a session needs a prompt", hint=f'corral runs fork {run.id} "Now try…"'
        )
    return await _prompt(run, going, going.prompt or "", {"fork": True})


async def _prompt(run: Run, going: Going, prompt: str, more: RunKwargs) -> Any:
    from corral._sessions import api

    options: RunKwargs = {**going.options, **more, "resume": run.id}
    on_event: Any = going.on_event
    return await api.run(None, prompt, ask=going.ask, on_event=on_event, **options)


async def resume_durable(run: Run, going: Going, db: str | None) -> Any:
    from corral._engine import existing_runs

    refuse_in_memory(run)
    going.check(run, "accept_changed", "plan_only")
    found = await existing_runs.prepare_resume(run.id, going.changes(), db=db)
    return await existing_runs.go_on(found, going.follow(db), plan_only=going.plan_only)


async def fork_durable(run: Run, going: Going, db: str | None) -> Any:
    from corral._engine import existing_runs

    refuse_in_memory(run)
    going.check(run, "place", "plan_only", "run_dir")
    found = await existing_runs.prepare_fork(run.id, going.place, going.changes(), db=db)
    return await existing_runs.go_on(
        found, going.follow(db), run_dir=going.run_dir, plan_only=going.plan_only
    )


def refuse_in_memory(run: Run) -> None:
    """Raises ``ConfigError`` for a run that is in no database, and ``FormatUnsupported`` for one
    that is there in a format that is not read."""
    if not run.durable:
        from corral._engine import query
        from corral._engine.dbos import database

        if database.is_installed():
            blocking(query.find_run(run.id))
        raise ConfigError(
            f"{run.id} ran in memory: it cannot go on", hint="Start it again, without --no-durable."
        )


async def resume_batch(run: Run, going: Going, db: str | None) -> Any:
    """The report of a batch, which goes on with its tasks as they were; failed ones run again."""
    from corral._engine.batch import api

    going.check(run, "concurrency")
    refuse_running(run)
    batch = api.stored_batch(
        run.id,
        db=db,
        concurrency=going.concurrency,
        retry_failed=run.state in REPEATED,
        on_result=going.on_result,
        **going.options,
    )
    return await batch


async def resume_comparison(run: Run, going: Going, db: str | None) -> Any:
    """The summary of a comparison; attempts without a verdict run again."""
    from corral._comparison import api

    going.check(run, options=("max_cost",))
    refuse_running(run)
    settings = api.ComparisonSettings(
        retry_missing=run.state in REPEATED,
        db=db,
        on_result=going.on_result,
        max_cost=going.options.get("max_cost"),
    )
    return await api.resume(run.id, settings)


async def resume_review(run: Run, going: Going, db: str | None) -> Any:
    """The review; what has an answer is not reviewed again."""
    from corral._review import api

    going.check(run, "concurrency")
    refuse_running(run)
    note: Any = going.on_result or str
    return await api.resume(run.id, concurrency=going.concurrency, on_note=note, **going.options)


async def resume_merge(run: Run, going: Going, db: str | None) -> Any:
    """The report of a merge queue: what is queued is merged, and what has failed is tried again."""
    from corral._merging import api

    going.check(run)
    refuse_running(run)
    queue = _queue(run)
    last = {entry.branch: entry.state for entry in queue.entries}
    failed = [branch for branch, state in last.items() if state == "failed"]
    on_entry: Any = going.on_result
    options: RunKwargs = {**going.options, "cwd": queue.repository}
    return await api.run(failed, into=queue.into, on_entry=on_entry, **options)


REPEATED = ("failed", "cancelled")
"""States of runs whose parts without a success run again."""


def refuse_running(run: Run) -> None:
    if run.is_open:
        raise ConfigError(
            f"the {run.kind} {run.id} is {run.state} in another process",
            hint=f"To see it: corral runs show {run.id}",
        )


def _queue(run: Run) -> MergeQueue:
    from corral._runs import merge_runs

    return merge_runs.read(run)


# Budgets.


async def budget(
    run: Run, limits: Mapping[str, float], add: bool, db: str | None
) -> BudgetState | None:
    """The budget of what runs in a process; of a session that does not run, that of its last
    turn."""
    running = next((part for part in await in_thread(_live_parts, run) if part.budgets), None)
    if running is None:
        if limits:
            hint = f"corral runs resume {run.id} --max-cost USD gives the next prompt a limit."
            raise ConfigError(
                f"the {run.kind} {run.id} has no budget that can be raised now",
                hint=hint if run.kind == "session" else None,
            )
        return await in_thread(_last_budget, run)
    if limits:
        from corral._metering.budget import Budget

        amounts = Raise.of(limits)
        if not add:  # by how much it must be raised
            now = running.budgets[0]
            amounts = Budget(**{name: getattr(now, name) for name in LIMITS}).missing(amounts)
        await in_thread(control.add_budget, running.id, **msgspec.structs.asdict(amounts))
        running = next(each for each in live.runs() if each.id == running.id)
    return running.budgets[0]


def _last_budget(run: Run) -> BudgetState | None:
    from corral._sessions import store

    try:
        stored = store.find(run.id).meta.budgets if run.kind == "session" else ()
    except ResumeLost:
        stored = ()
    return next(iter(stored), None)


async def budget_durable(
    run: Run, limits: Mapping[str, float], add: bool, db: str | None
) -> BudgetState | None:
    """Of a run or batch in a database, else in a process."""
    act = budget_stored if run.durable else budget
    return await act(run, limits, add, db)


async def budget_stored(
    run: Run, limits: Mapping[str, float], add: bool, db: str | None
) -> BudgetState | None:
    """Of what is in a database."""
    from corral._engine import service

    if not limits:
        return await service.read_budget(run.id, db=db)
    await service.add_budget(run.id, Raise.of(limits), is_total=not add, db=db)
    return await service.read_budget(run.id, db=db)
