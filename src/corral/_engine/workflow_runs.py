"""``corral.workflows.run``: execute a workflow; and how a run of one goes on.

A run goes on with the text of its file that it was started with. If the file has changed, its next
try has the current text, and takes over the result of every step with the same path and the same
inputs; a ``ResumePlan`` says before which those are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, Unpack, cast

import msgspec
from msgspec.structs import replace

from corral._core.display import shorten
from corral._core.lookup import try_id
from corral._engine import query, service
from corral._engine.continue_run import (
    Changes,
    Continuation,
    NewRun,
    pending_answers,
    read_replay,
)
from corral._engine.follow_run import FollowOptions
from corral._engine.query import Replay
from corral._engine.run_loop import mismatch
from corral._engine.run_options import PipelineKwargs, WorkflowKwargs, check_names
from corral._engine.run_result import (
    PipelineResult,
    WorkflowResult,
    raise_if_failed,
    workflow_result,
)
from corral._engine.start_run import RunRequest, execute, follow_of
from corral._pipelines.graph import Graph
from corral._pipelines.scheduler.commands import Answered, Ended, Message
from corral._system import fs
from corral._system.threads import in_own_thread, short_traceback_async, sync_twin
from corral._workflows.definition import Workflow, check_not_importing, load_text, read_file
from corral._workflows.program import Program, load_program
from corral._workflows.program_turn import (
    DRAWN,
    KnownStep,
    StepEnd,
    StoredProgram,
    first_difference,
)
from corral._workflows.scheduler import WorkflowScheduler
from corral.errors import ConfigError
from corral.options import RunOptions
from corral.policy import PRESETS
from corral.run_kwargs import RunKwargs
from corral.values import Json, as_text

R = TypeVar("R")


class ResumePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What ``resume`` or ``fork`` does with the steps of a run.

    ::

        plan = corral.runs.resume_sync("last", plan_only=True)
        print(plan.kept, plan.repeated)
    """

    run: str
    is_new_run: bool
    """Whether its program starts again, with the known results: its file has changed, or it has
    failed, or it is forked."""
    has_ended: bool = False
    """Whether it has succeeded: then nothing is left to do."""
    kept: list[str] = []
    """Steps whose results are taken over."""
    repeated: list[str] = []
    """Steps with other inputs than before, or without a result."""
    depends: list[str] = []
    """Steps after them: each is kept if the program starts it with the same inputs then."""
    dropped: list[str] = []
    """Steps of the run that are not in the program any more."""
    is_partial: bool = False
    """Whether the program may start more: what comes after a repeated step without an earlier
    result is known only when it has run."""


@short_traceback_async
async def run(
    workflow: Workflow[..., R],
    args: Mapping[str, object] | None = None,
    **options: Unpack[WorkflowKwargs],
) -> WorkflowResult[R]:
    """Run a workflow to its end, or until it waits for people. ``args`` are the arguments of its
    function; see ``WorkflowKwargs`` and ``RunKwargs`` for the options. Those of agents are defaults
    of the steps.

    A durable run stores the text of the file that the workflow is in, and its arguments and results
    as JSON: dataclasses, Structs, pydantic models and what JSON has.

    ::

        result = await workflows.run(fix, {"issue": "The login fails"}, max_cost=2.0)
        print(result.status, result.output)
    """
    check_names(options, WorkflowKwargs)
    result = await start(workflow, workflow.stored_args(args or {}), options, follow_of(options))
    if options.get("check"):
        raise_if_failed(result)
    return workflow_result(result, workflow)


async def start(
    workflow: Workflow[..., object],
    args: dict[str, Json],
    options: WorkflowKwargs,
    follow: FollowOptions,
) -> PipelineResult:
    """Execute a workflow with arguments that were checked."""
    check_not_importing()
    workflow.check_types()
    program = StoredProgram(
        path=workflow.file, name=workflow.name, text="", args=args, writes=_writes(options)
    )
    text = workflow.text
    if not text and fs.is_file(Path(workflow.file)):
        text = read_file(workflow.file)
    if options.get("durable", True):
        if not workflow.file:
            raise ConfigError(
                f"the workflow {workflow.name!r} is in no file, so it cannot be resumed",
                hint="Put it into a file, or run it in memory: durable=False.",
            )
        program = replace(program, text=text or read_file(workflow.file))
        # The text alone must be enough, in each process that goes on with the run.
        await in_own_thread(lambda: load_text(program.path, program.text, program.name))
    words = (f"{key}={as_text(value) or value}" for key, value in args.items())
    goal = shorten(" ".join(", ".join(words).split()) or workflow.goal, service.GOAL)
    graph = Graph(name=workflow.name, attrs={"goal": goal} if goal else {})
    request = RunRequest(
        options=cast("PipelineKwargs", options),
        follow=follow,
        source=workflow.file,
        program=program,
        workflow=workflow,
    )
    return await execute(request, lambda _: graph)


def _writes(options: RunKwargs) -> bool:
    """Whether the options of a run let its agents write."""
    names = ("policy", "approval_mode", "allowed_tools")
    named = {key: value for key in names if (value := options.get(key)) is not None}
    return bool(named) and RunOptions.build("corral", named).policy != PRESETS["reads"]


# Continuing a run.


def _with_current_text(program: StoredProgram) -> StoredProgram:
    """The program of a run with the current text of its file."""
    if fs.is_file(Path(program.path)):
        program = replace(program, text=read_file(program.path))
    return program


@dataclass(frozen=True, kw_only=True)
class PlannedContinuation(Continuation):
    """How a run of a workflow goes on."""

    program: StoredProgram
    """With the current text of the file."""
    plan: ResumePlan


async def prepare_resume(
    shown: query.RunDetails, before: StoredProgram, changes: Changes, db: str | None
) -> PlannedContinuation:
    """How a run of a workflow goes on. Nothing is changed. Raises ``ConfigError`` and
    ``ReplayMismatch``."""
    run, program, output = shown.id, _with_current_text(before), shown.output
    has_changed = program != before
    has_succeeded = output is not None and output.ok
    goes_on = output is None and not changes.need_try(shown)
    if not has_changed and (has_succeeded or goes_on):
        if output is None:
            await verify(await read_replay(run, db))
        kept = list(shown.state.completed)
        plan = ResumePlan(run=run, is_new_run=False, has_ended=output is not None, kept=kept)
        return PlannedContinuation(run=shown, program=program, plan=plan, changes=changes)
    if output is None and shown.status != "interrupted":
        raise ConfigError(
            f"{run} is {shown.status}, with the text that it was started with",
            hint=f"To continue with the current text of {program.path}, cancel the run first:"
            f" corral runs cancel {run}",
        )
    replay = await read_replay(run, db)
    answers = {} if output else await pending_answers(replay, db)
    known = known_steps(replay, answers)
    return await _new_run(shown, program, replay, known, changes)


async def prepare_fork(
    shown: query.RunDetails, before: StoredProgram, step: str, changes: Changes, db: str | None
) -> PlannedContinuation:
    """How a fork of a run of a workflow begins: before this step, or with all results whose inputs
    are the same. Nothing is changed. Raises ``ConfigError``."""
    replay = await read_replay(shown.id, db)
    known = known_steps(replay, {})
    if step:
        passed, is_known = set[str](), False
        for turn, ends in replay.turns:
            passed |= {end.id for end in ends}
            if any(step in (each.name, each.id) for each in turn.steps):
                is_known = True
                break
        if not is_known:
            names = ", ".join(each.name for turn, _ in replay.turns for each in turn.steps)
            raise ConfigError(
                f"{shown.id} has no step {step!r}", hint=f"Its steps: {names or 'none'}."
            )
        known = {id: each for id, each in known.items() if id in passed}
    program = _with_current_text(before)
    return await _new_run(shown, program, replay, known, changes, is_fork=True)


async def _new_run(
    shown: query.RunDetails,
    program: StoredProgram,
    replay: Replay,
    known: dict[str, KnownStep],
    changes: Changes,
    *,
    is_fork: bool = False,
) -> PlannedContinuation:
    run = shown.id
    try:
        program = replace(program, known=known)
        workflow = await in_own_thread(lambda: load_text(program.path, program.text, program.name))
        workflow.check_types()
    except ConfigError as error:
        raise ConfigError(f"{run} cannot go on: {error.message}", hint=error.hint) from error
    try:
        workflow.typed_args(program.args)
    except ConfigError as error:
        given = ", ".join(
            f"{key}={msgspec.json.encode(value).decode()}" for key, value in program.args.items()
        )
        raise ConfigError(
            f"{run} cannot go on: {error.message}",
            hint=f"It was started with {given or 'no arguments'}. Give the function parameters for"
            " them (a new one needs a default), or start a new run.",
        ) from error
    # The inputs of steps may depend on the id of the run.
    id = f"{run}+" if is_fork else try_id(run, shown.tries + 1)
    plan = await _plan(run, await load_program(program, id), known, failed_steps(replay))
    new = NewRun(
        replay=replay,
        known={id: each.message for id, each in known.items() if each.message is not None},
        graph=shown.run_input.graph,
        program=program,
        is_fork=is_fork,
    )
    return PlannedContinuation(run=shown, new=new, program=program, plan=plan, changes=changes)


def known_steps(replay: Replay, answers: Mapping[str, Message]) -> dict[str, KnownStep]:
    """The steps of a run that have results, not failures. ``answers``: those that the run has not
    received yet."""
    scheduler, program = replay.scheduler, replay.run_input.program
    if not isinstance(scheduler, WorkflowScheduler) or program is None:
        return {}
    received: dict[str, Message] = {}
    for message in (*replay.messages, *answers.values()):
        if (id := getattr(message, "id", None)) is not None:
            received.setdefault(id, message)
    known: dict[str, KnownStep] = {}
    for turn, _ in replay.turns:
        for step in turn.steps:
            outcome = scheduler.state.outcomes.get(step.name)
            if step.kind in DRAWN:
                known[step.id] = KnownStep(digest=step.digest, kind=step.kind, value=step.value)
            elif step.id in scheduler.kept:
                earlier = program.known[scheduler.kept[step.id]]
                known[step.id] = replace(earlier, digest=step.digest)
            elif (sent := received.get(step.id)) is not None and (
                outcome.status == "success" if outcome else isinstance(sent, Answered)
            ):
                known[step.id] = KnownStep(digest=step.digest, kind=step.kind, message=sent)
    # What it took over and did not come to, because it was ended before.
    met = {step.id for turn, _ in replay.turns for step in turn.steps} | {*scheduler.kept.values()}
    return known | {id: each for id, each in program.known.items() if id not in met}


def failed_steps(replay: Replay) -> dict[str, KnownStep]:
    """The steps of a run that failed."""
    received = {message.id: message for message in replay.messages if isinstance(message, Ended)}
    return {
        step.id: KnownStep(digest=step.digest, kind=step.kind, message=received[step.id])
        for turn, _ in replay.turns
        for step in turn.steps
        if step.id in received and not received[step.id].outcome.ok
    }


async def verify(replay: Replay) -> None:
    """Run the program of a run against what is recorded, without a step. Raises
    ``ReplayMismatch``."""
    run_input = replay.run_input
    if run_input.program is None:
        return
    program = await load_program(run_input.program, run_input.run_id)
    try:
        for turn, ends in replay.turns:
            if difference := first_difference(turn, await program.advance(ends)):
                raise mismatch(run_input.run_id, difference)
    finally:
        await program.close()


async def _plan(
    run: str, program: Program, known: dict[str, KnownStep], failed: dict[str, KnownStep]
) -> ResumePlan:
    """Run the program with the known results, without a step. A step that is repeated has its old
    result or failure here, so that the steps after it are found as far as possible."""
    plan = ResumePlan(run=run, is_new_run=True)
    scheduler = WorkflowScheduler(Graph(name=run), known=known)
    scheduler.start()
    changed: set[str] = set()
    """Steps that are repeated, and those after them."""
    ends = list[StepEnd]()
    used: set[str] = set()
    try:
        while scheduler.state.finish is None:
            turn = await program.advance(ends)
            found = scheduler.find_known(turn)
            for step in turn.steps:
                follows = not changed.isdisjoint(step.after)
                if step.id not in found:
                    plan.repeated.append(step.name)
                    earlier = known.get(step.id) or failed.get(step.id)
                    if earlier is not None and step.id not in scheduler.kept.values():
                        found[step.id] = earlier
                        used.add(step.id)
                    changed.add(step.id)
                    continue
                if follows:
                    changed.add(step.id)
                depends = follows and step.kind in ("visit", "ask")
                (plan.depends if depends else plan.kept).append(step.name)
            drawn = [
                replace(each, value=found[each.id].value) if each.id in found else each
                for each in turn.steps
            ]
            scheduler.take(replace(turn, steps=drawn), found)
            ends = [end for end in scheduler.take_ends() if end.id in found]
            if not ends:
                break
    finally:
        await program.close()
    used |= set(scheduler.kept.values())
    finish = scheduler.state.finish
    # An earlier result may be no result of the step that is there now.
    is_partial = finish is None or (finish.status == "fail" and bool(changed))
    left = [id.rpartition(".")[0] for id in known if id not in used]
    (plan.depends if is_partial else plan.dropped).extend(left)
    return replace(plan, is_partial=is_partial)


async def typed_result(found: PlannedContinuation, result: PipelineResult) -> WorkflowResult[Any]:
    program = found.program
    workflow = await in_own_thread(lambda: load_text(program.path, program.text, program.name))
    return workflow_result(result, workflow)


run_sync: Final = sync_twin(run)
