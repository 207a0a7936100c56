"""``corral runs resume`` and ``fork``: continue a run in this process. What is printed is what the
command prints that starts a run of this kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import click
import msgspec
from msgspec.structs import replace

from corral._cli.command_types import SectionedCommand, examples, option
from corral._cli.execution import RUN_DIR, FollowFlags, follow_options, keep_json, make_printer
from corral._cli.options import (
    IMPORT,
    PolicyFlags,
    agent_option,
    import_modules,
    policy_options,
    read_options,
    run_options,
    script_option,
)
from corral._cli.ui.terminal import answer, echo, echo_err, echo_json
from corral._core.spending import LIMITS
from corral._runs import actions, kinds, lookup
from corral._runs.actions import Going
from corral._runs.run_record import Run
from corral.run_kwargs import RunKwargs

if TYPE_CHECKING:
    from corral._engine.follow_run import FollowOptions
    from corral._engine.workflow_runs import ResumePlan

OPTIONS = (*LIMITS, "timeout", "idle_timeout", "model", "on_limit", "label")
"""Options of ``corral.run`` that may change when a run goes on."""


class GoingFlags(FollowFlags, PolicyFlags, RunKwargs):
    """The options of both commands."""

    agent: str | None
    plan_only: bool
    modules: tuple[str, ...]


class ResumeFlags(GoingFlags):
    """The options of ``resume``."""

    accept_changed: bool
    concurrency: int | None


class ForkFlags(GoingFlags):
    """The options of ``fork``."""

    place: str
    run_dir: str | None


RUN = click.argument("words", metavar="RUN [PROMPT]", nargs=-1, required=True)
PLAN = option(
    "Execution",
    "--dry-run plan_only",
    "Print which steps of a workflow would run again.",
    is_rare=True,
)
CHANGED = run_options(
    OPTIONS, texts={limit: f"Raise {limit} of the run to this." for limit in LIMITS}
)


@click.command(
    "resume",
    cls=SectionedCommand,
    epilog=examples(
        "corral runs resume last --max-cost 10", 'corral runs resume last "And now the docs"'
    ),
)
@RUN
@option("Execution", "--accept-changed", "Go on with the file of a pipeline as it is now.")
@option("Execution", "-n --concurrency N", "Of a batch or review.", type=click.IntRange(1))
@PLAN
@agent_option
@policy_options
@CHANGED
@IMPORT
@follow_options
def resume(words: tuple[str, ...], **flags: Unpack[ResumeFlags]) -> int:
    """Continue RUN, which has failed, was cancelled or interrupted, or waits.

    What is finished is kept, the rest goes on under the same id. A limit that is given is raised to
    this. A workflow goes on with its current file: steps whose inputs have changed run again. A
    session gets PROMPT, also after a success. The exit codes are those of the command that started
    it; a run that has succeeded is left alone.
    """
    going = Going(accept_changed=flags["accept_changed"], concurrency=flags["concurrency"])
    return _go_on(words, flags, going, is_fork=False)


@click.command(
    "fork",
    cls=SectionedCommand,
    epilog=examples(
        "corral runs fork last --from plan", 'corral runs fork last "Try it with a cache"'
    ),
)
@RUN
@option("Execution", "--from place PLACE", "The first node or step that runs again.", default="")
@RUN_DIR
@PLAN
@agent_option
@policy_options
@CHANGED
@IMPORT
@follow_options
def fork(words: tuple[str, ...], **flags: Unpack[ForkFlags]) -> int:
    """Start a new run that takes over the results of RUN before PLACE. Without --from, a new run of
    a workflow takes over all results whose inputs are the same. A fork of a session is a new
    conversation, which gets PROMPT.

    It uses the current file, and the limits of RUN if none are given. RUN stays as it is.
    """
    going = Going(place=flags["place"], run_dir=flags["run_dir"])
    return _go_on(words, flags, going, is_fork=True)


def _go_on(words: tuple[str, ...], flags: GoingFlags, going: Going, *, is_fork: bool) -> int:
    import_modules(flags["modules"])
    keep_json(flags)
    options = read_options(flags)
    prompt = " ".join(words[1:]) or None
    going = replace(going, prompt=prompt, plan_only=flags["plan_only"], options=options)
    run = lookup.find(words[0], db=flags["db"])
    kind = kinds.kind_of(run)
    if is_fork and kind.fork is None:
        from corral._runs import act

        act.fork_sync(run.id, db=flags["db"])  # refuses
    if run.state == "success" and not is_fork and not prompt and kind.name != "workflow":
        echo_err(f"corral: {run.id} has succeeded: there is nothing left to do")
        return 0
    return PRINTED[kind.name](run, going, flags, is_fork)


Print: TypeAlias = Callable[[Run, Going, GoingFlags, bool], int]


def _durable(run: Run, going: Going, flags: GoingFlags, is_fork: bool) -> int:
    from corral._engine import existing_runs
    from corral._engine.continue_run import continue_run
    from corral._engine.dbos import database
    from corral._engine.workflow_runs import PlannedContinuation
    from corral._system import threads  # late: asyncio loads ssl, which --help does not need

    database.load()
    actions.refuse_in_memory(run)
    taken = ("place", "run_dir") if is_fork else ("accept_changed",)
    going.check(run, "plan_only", *taken)
    db = flags["db"]
    found = threads.run_event_loop(
        existing_runs.prepare_fork(run.id, going.place, going.changes(), db=db)
        if is_fork
        else existing_runs.prepare_resume(run.id, going.changes(), db=db)
    )
    if going.plan_only:
        plan = existing_runs.check_plan(found)
        if flags["as_json"]:
            echo_json(msgspec.json.encode(plan).decode())
        else:
            print_plan(plan)
        return 0
    if isinstance(found, PlannedContinuation) and found.plan.is_new_run and not flags["quiet"]:
        print_plan(found.plan)
    if found.new is None and found.run.output is not None:
        echo_err(f"corral: {run.id} has succeeded: there is nothing left to do")
        return 0
    is_pipeline = found.run.run_input.program is None
    show = make_printer(found.graph, flags, "pipeline" if is_pipeline else "workflow")
    if not is_fork:
        show.name = run.id

    async def execute(follow: FollowOptions) -> Any:
        return await continue_run(found, follow, run_dir=going.run_dir)

    return show.run_to_end(execute)


def _session(run: Run, going: Going, flags: GoingFlags, is_fork: bool) -> int:
    from corral._cli.run import RunEnd, run_session
    from corral._cli.ui.progress import TurnProgress
    from corral._cli.ui.turn_output import EventPrinter, answer_printer
    from corral._cli.verdict import VerdictRule
    from corral._sessions import store
    from corral._system import threads

    going.check(run, "prompt")
    more: RunKwargs = {"resume": run.id}
    if is_fork:
        more["fork"] = True
    options: RunKwargs = {**going.options, **more}
    text = going.prompt or (None if _asks(run) else actions.GO_ON)
    progress = TurnProgress(enabled=not flags["quiet"])
    printer = EventPrinter() if flags["as_json"] else answer_printer(quiet=flags["quiet"])
    agent = flags["agent"] or store.agent_of(run.id, options)
    end = RunEnd(None, VerdictRule())
    return threads.run_event_loop(run_session(agent, text, options, printer, progress, end))


def _asks(run: Run) -> bool:
    """Whether the session is the question of a person, which goes on with the answer."""
    from corral._sessions import store

    return store.open_question(store.find(run.id)) is not None


def _batch(run: Run, going: Going, flags: GoingFlags, is_fork: bool) -> int:
    from corral._cli.batch import BUDGET
    from corral._cli.ui.batch_progress import BatchProgress

    progress = BatchProgress(enabled=not flags["quiet"])
    going = replace(going, on_result=progress.show)
    report = _followed(actions.resume_batch(run, going, flags["db"]), run)
    if report is None:
        return _interrupted(run)
    from corral._engine.batch import api

    if flags["as_json"]:
        echo_json(msgspec.json.encode({"type": "report", **api.as_json(report)}))
    progress.report(report)
    return BUDGET if report.stopped else 0 if report.ok else 1


def _comparison(run: Run, going: Going, flags: GoingFlags, is_fork: bool) -> int:
    from corral._cli import compare

    going.check(run, options=("max_cost",))
    shown = compare.Shown(as_json=flags["as_json"], quiet=flags["quiet"], output=None)
    progress = compare.make_progress(quiet=flags["quiet"], as_json=flags["as_json"])
    from corral._comparison import api

    settings = api.ComparisonSettings(
        retry_missing=run.state in actions.REPEATED,
        db=flags["db"],
        on_result=progress.show,
        max_cost=going.options.get("max_cost"),
    )
    actions.refuse_running(run)
    return compare.run_and_print(api.resume(run.id, settings), progress, shown)


def _review(run: Run, going: Going, flags: GoingFlags, is_fork: bool) -> int:
    from corral._cli.review import note_of
    from corral._core.neutral import log_text
    from corral._review.formats import FORMATS

    going = replace(going, on_result=note_of(quiet=flags["quiet"]))
    found = _followed(actions.resume_review(run, going, flags["db"]), run)
    if found is None:
        return _interrupted(run)
    answer(log_text(FORMATS["json" if flags["as_json"] else "text"](found)))
    return 1 if found.status == "incomplete" else 0


def _merge(run: Run, going: Going, flags: GoingFlags, is_fork: bool) -> int:
    from corral._cli import merge

    going = replace(going, on_result=merge.printer(quiet=flags["quiet"]))
    report = _followed(actions.resume_merge(run, going, flags["db"]), run)
    if report is None:
        return _interrupted(run)
    merge.print_report(report, as_json=flags["as_json"])
    return 0 if report.ok else 1


PRINTED: dict[str, Print] = {
    "session": _session,
    "pipeline": _durable,
    "workflow": _durable,
    "batch": _batch,
    "comparison": _comparison,
    "review": _review,
    "merge": _merge,
}
"""By kind: resumes a run or forks it, prints what happens, and returns the exit code."""


def _followed(work: Awaitable[Any], run: Run) -> Any:
    """The outcome; None after Ctrl-C."""
    from corral._cli.ui.signals import run_cancellable

    async def wait() -> Any:
        return await work

    return run_cancellable(wait())


def _interrupted(run: Run) -> int:
    from corral._cli.ui.signals import INTERRUPTED

    command = f"corral runs resume {run.id}{script_option()}"
    echo_err(f"corral: interrupted; continue with: {command}")
    return INTERRUPTED


def print_plan(plan: ResumePlan) -> None:
    """Print what a continued run does with the steps that it had."""
    if not plan.is_new_run:
        state = "has ended: nothing would be repeated" if plan.has_ended else "goes on"
        echo(f"{plan.run} {state}; steps that have ended: {len(plan.kept)}", err=True)
        return
    echo(f"the steps of {plan.run}:", err=True)
    for words, names in (
        ("kept", plan.kept),
        ("repeated", plan.repeated),
        ("kept if it gets the same inputs", plan.depends),
        ("not in the program any more", plan.dropped),
    ):
        for name in names:
            echo(f"  {name}: {words}", err=True)
    if plan.is_partial:
        echo("  what else comes after the repeated steps depends on their results", err=True)
