"""What can be done with durable runs of pipelines and workflows: answer, resume and fork them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from corral._engine import open_questions, pipeline_runs, query, workflow_runs
from corral._engine.continue_run import Changes, Continuation, continue_run
from corral._engine.follow_run import FollowOptions
from corral._pipelines.scheduler.commands import Answer
from corral._system.threads import short_traceback_async
from corral.errors import ConfigError

if TYPE_CHECKING:
    pass


@short_traceback_async
async def answer(
    run: str,
    reply: Answer | str,
    *,
    gate: str | None = None,
    by: str = "",
    db: str | None = None,
) -> None:
    """Answer an open question of the run or of its nested runs; ``gate`` is the node or the
    question's id. Raises ``ConfigError`` if no such question is open, or if the answer is not one
    of the choices.
    """
    found = await query.show(run, db=db)
    if found.output is not None:
        raise open_questions.NoSuchQuestion(f"{run} has already ended: {found.output.status}")
    await open_questions.answer(run, reply, gate=gate, by=by, db=db)


async def prepare_resume(run: str, changes: Changes, *, db: str | None = None) -> Continuation:
    """How a run goes on. Nothing is changed. Raises ``ConfigError``."""
    shown = await query.show(run, db=db)
    if (program := shown.run_input.program) is not None:
        return await workflow_runs.prepare_resume(shown, program, changes, db)
    return await pipeline_runs.prepare_resume(shown, changes, db)


async def prepare_fork(
    run: str, place: str, changes: Changes, *, db: str | None = None
) -> Continuation:
    """How a fork of a run begins; ``place`` is a node or a step. Nothing is changed. Raises
    ``ConfigError``."""
    shown = await query.show(run, db=db)
    if (program := shown.run_input.program) is not None:
        return await workflow_runs.prepare_fork(shown, program, place, changes, db)
    return await pipeline_runs.prepare_fork(shown, place, changes, db)


async def go_on(
    found: Continuation,
    follow: FollowOptions,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    plan_only: bool = False,
) -> Any:
    """``continue_run``, with the typed result of a workflow. ``plan_only``: its plan."""
    if plan_only:
        return check_plan(found)
    result = await continue_run(found, follow, run_dir=run_dir)
    if isinstance(found, workflow_runs.PlannedContinuation):
        return await workflow_runs.typed_result(found, result)
    return result


def check_plan(found: Continuation) -> workflow_runs.ResumePlan:
    """The plan of a workflow. Raises ``ConfigError`` for a pipeline."""
    if not isinstance(found, workflow_runs.PlannedContinuation):
        raise ConfigError(f"{found.run.id} is a pipeline: only a workflow has a plan")
    return found.plan
