"""``runs``, ``show``, ``answer`` and ``cancel`` of pipelines and workflows. They execute nothing:
they read and write the database, and the process that executes the run reacts."""

from __future__ import annotations

import asyncio
import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from corral._cli.command_types import plain_option
from corral._cli.execution import find_pipeline_run
from corral._cli.options import DB, JSON, NEWEST, RUN, database_option, name_other_files
from corral._cli.ui.tables import format_cost, format_time, table
from corral._cli.ui.terminal import echo, echo_json
from corral._core import stored_formats
from corral._core.spending import LIMITS, dollars
from corral._core.stored_formats import JOURNAL
from corral._core.terminal_text import one_line, visible
from corral._engine.dbos.database import require
from corral.errors import ConfigError, FormatUnsupported

if TYPE_CHECKING:
    from corral._engine.open_questions import RunQuestion
    from corral._engine.payloads import PipelineOutput, RunWorktree
    from corral._engine.query import RunDetails
    from corral._metering.budget_stores import StoredBudget
    from corral._pipelines.events import InterviewCompleted


def _runs_command(kind: Literal["pipeline", "workflow"]) -> click.Command:
    about = f"List the runs of {kind}s in a database, the newest first."

    @click.command("runs", help=about)
    @NEWEST
    @DB
    @JSON
    def runs(limit: int, db: str | None, as_json: bool) -> None:
        require()
        from corral._engine import run_list

        found = asyncio.run(run_list.list_runs(db=db, limit=limit, kind=kind))
        name_other_files(db)
        if as_json:
            echo_json(msgspec.json.encode(found).decode())
            return
        rows = [
            (
                one.id,
                _state(one.status, one.asks),
                format_time(one.created),
                format_time(one.ended),
                one.pipeline,
                "" if one.goal == one.pipeline else one.goal,
            )
            for one in found
        ]
        echo(table(("run", "status", "started", "ended", kind, "goal"), rows))

    return runs


pipeline_runs = _runs_command("pipeline")
workflow_runs = _runs_command("workflow")


@click.command("show")
@RUN
@DB
@JSON
def show(name: str, db: str | None, as_json: bool) -> None:
    """Show what RUN did, its status, and what it waits for.

    RUN is its id, a unique beginning of it, its run folder, or 'last'.
    """
    require()
    from corral._engine import open_questions, query
    from corral._engine.run_result import saved_work

    name = find_pipeline_run(name, db)
    found = asyncio.run(query.show(name, db=db))
    questions = [] if found.output else asyncio.run(open_questions.questions(name, db=db))
    if as_json:
        echo_json(msgspec.json.encode(_to_dict(found, questions)).decode())
        return
    state = _state(found.status, _unanswered(questions))
    config = found.run_input.config
    reason = found.output.reason if found.output else ""
    echo(f"run        {found.id}")
    echo(f"status     {state}{': ' + reason if reason else ''}")
    if found.continued_as:
        echo(f"continued  as {found.continued_as}")
    kind, command = "pipeline", "corral pipeline"
    if found.run_input.program is not None:
        kind, command = "workflow", "corral workflow"
    resume = f"{command} resume {found.id}{database_option(db)}"
    echo(f"{kind:10} {found.graph.name}{' · ' + config.source if config.source else ''}")
    if found.graph.goal:
        echo(f"goal       {found.graph.goal}")
    echo(f"folder     {found.folder}")
    echo(f"workspace  {found.workspace}")
    if config.tree is not None:
        _print_work(found, config.tree)
    for branch in saved_work(found.output.saved if found.output else {}).branches:
        echo(f"not merged {branch}")
    _print_nodes(found)
    tokens = f" · {found.state.tokens:,} tokens" if found.state.tokens else ""
    echo(f"cost       {format_cost(found.state.cost_usd)}{tokens}")
    if found.budget is not None:
        echo(f"budget     {_budget(found.budget)}")
    if found.output is not None and (text := _result(found, found.output)):
        echo(f"result     {text}")
    is_ours = found.format == JOURNAL
    answer_command = f"{command} answer {found.id}{database_option(db)}"
    for each in questions:
        _print_question(each, answer_command if is_ours else "")
    if not is_ours:
        echo(stored_formats.unsupported(found.id, found.format, JOURNAL).message)
        return
    if found.status == "paused":
        limits = found.budget.limits.as_dict() if found.budget is not None else {}
        flags = " ".join(f"--{name.replace('_', '-')} N" for name in limits)
        echo("the next model call does not fit into the budget; to continue with a larger one:")
        echo(f"  {resume} {flags}")
    if found.status == "interrupted":
        echo(f"continue with: {resume}")


@click.command("answer")
@RUN
@click.argument("choice", required=False)
@plain_option("--gate ID", "Which gate, if several are open.")
@plain_option(
    "--text", "A comment with the answer; or the answer itself, for a free-text gate.", default=""
)
@plain_option("--skip", "Refuse to answer: the gate fails.")
@DB
def answer(
    name: str, choice: str | None, *, gate: str | None, text: str, skip: bool, db: str | None
) -> None:
    """Answer a question of RUN: CHOICE is a key, a label or a target.

    RUN need not be running. Only the first answer to a question counts.
    """
    require()
    if skip and (choice or text):
        raise ConfigError("--skip and an answer are both given")
    from corral._engine import existing_runs
    from corral._pipelines.scheduler.commands import Answer

    name = find_pipeline_run(name, db)
    try:
        by = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no user name for this uid
        by = ""
    given = Answer(value=choice or "", text=text, skipped=skip)
    asyncio.run(existing_runs.answer(name, given, gate=gate, by=by, db=db))
    echo(f"{name} received the answer")
    found = asyncio.run(existing_runs.show(name, db=db))
    if found.status == "interrupted":
        kind = "pipeline" if found.run_input.program is None else "workflow"
        line = f"corral {kind} resume {name}{database_option(db)}"
        echo(f"the run is not active; continue with: {line}", err=True)


@click.command("cancel")
@RUN
@plain_option("--reason", "The reason, stored with the run.", default="")
@DB
def cancel(name: str, reason: str, db: str | None) -> None:
    """Cancel RUN and end everything that it has running. A run that has ended is not changed."""
    require()
    from corral._engine import existing_runs, run_list

    name = find_pipeline_run(name, db)
    try:
        found = asyncio.run(existing_runs.show(name, db=db))
        if found.output is not None:
            raise ConfigError(f"{name} has already ended: {found.output.status}")
    except FormatUnsupported:  # a list has what is needed to cancel it
        rows = asyncio.run(run_list.list_runs(limit=None, db=db))
        if any(row.ended is not None for row in rows if row.id == name):
            raise
    asyncio.run(existing_runs.cancel(name, reason=reason, db=db))
    echo(f"{name} is cancelled")


def _to_dict(found: RunDetails, questions: list[RunQuestion]) -> dict[str, object]:
    from corral._engine.run_result import outcomes, saved_work

    config = found.run_input.config
    return {
        "id": found.id,
        "status": "waiting" if _waits(found.status, _unanswered(questions)) else found.status,
        "reason": found.output.reason if found.output else "",
        "pipeline": found.graph.name,
        "goal": found.graph.goal,
        "source": config.source,
        "folder": found.folder,
        "workspace": found.workspace,
        "repository": config.tree.repository if config.tree else "",
        **msgspec.structs.asdict(saved_work(found.output.saved if found.output else {})),
        "forked_from": found.run_input.forked_from,
        "continued_as": found.continued_as,
        "created": found.created,
        "ended": found.ended,
        "current_node": found.state.current_node,
        "completed": found.state.completed,
        "outcomes": outcomes(found.state.outcomes),
        "context": found.state.context,
        "questions": [
            {**msgspec.to_builtins(each.question), "answered": each.answered} for each in questions
        ],
        "cost_usd": found.state.cost_usd,
        "tokens": found.state.tokens,
        "budget": found.budget and found.budget.as_state(),
        "answers": [
            {"node": each.node, "answer": each.answer, "by": each.by} for each in _answers(found)
        ],
    }


def _print_nodes(found: RunDetails) -> None:
    """How each node ended, and what people answered."""
    for node in dict.fromkeys(found.state.completed):
        outcome = found.state.outcomes.get(node)
        if outcome is not None:
            note = outcome.failure_reason or outcome.notes
            echo(f"  {outcome.status:16} {node}{': ' + note if note else ''}")
    for given in _answers(found):
        by = f" ({given.by})" if given.by else ""
        echo(f"  answer           {given.node}: {one_line(given.answer)}{by}")


def _result(found: RunDetails, output: PipelineOutput) -> str:
    """What the run printed at its end."""
    from corral._engine.run_result import result_from_output, text_of

    if not output.ok:
        return ""
    result = result_from_output(found.id, output, Path(found.folder))
    return text_of(result, is_workflow=found.run_input.program is not None)


def _answers(found: RunDetails) -> list[InterviewCompleted]:
    """What people answered, in order."""
    from corral._pipelines.events import InterviewCompleted

    return [each for each in found.events if isinstance(each, InterviewCompleted)]


def _budget(stored: StoredBudget) -> str:
    state = stored.as_state()
    limits = ((name, kind.unit, getattr(state, name)) for name, kind in LIMITS.items())
    return ", ".join(
        f"{_amount(unit, getattr(state, unit))} of {name}={limit:g}"
        for name, unit, limit in limits
        if limit
    )


def _amount(unit: str, amount: float) -> str:
    return dollars(amount) if unit == "cost" else f"{amount:,}"


def _print_question(open_question: RunQuestion, command: str) -> None:
    """Print a question, its choices, and the command that answers it, if there is one."""
    question = open_question.question
    echo(f"? {question.node}: {visible(question.text)}")
    if open_question.answered:
        echo("    answered; the run has not read it yet")
        return
    for choice in question.choices:
        echo(f"    [{choice.key}] {one_line(choice.label)}")
    if question.deadline is not None:
        from corral._system import clock

        until = clock.time_of_day(question.deadline)
        echo(f"    answer by {until}; {one_line(question.at_deadline)}")
    if command:
        echo(f"  {command} CHOICE --gate {question.node}")


def _print_work(found: RunDetails, tree: RunWorktree) -> None:
    """Print the repository and the branch of the run's work."""
    from corral._cli.ui.pipeline_output import format_files
    from corral._engine.run_result import saved_work

    echo(f"repository {tree.repository} at {tree.commit[:12]}")
    left = found.output.saved if found.output else {}
    work = saved_work(left)
    if work.branch:
        echo(f"branch     {tree.branch} at {work.commit[:12]} · {format_files(work.files)}")
    elif "workspace" in left and not work.warnings:
        echo("branch     none: nothing was changed")
    else:
        echo(f"branch     {tree.branch}")
    for warning in work.warnings:
        echo(f"!          {warning}")


def _unanswered(questions: list[RunQuestion]) -> int:
    """The number of questions without an answer."""
    return sum(not each.answered for each in questions)


def _waits(status: str, questions: int) -> bool:
    return bool(questions) and status in ("running", "interrupted", "queued")


def _state(status: str, questions: int) -> str:
    """The status as text."""
    return "waiting for a person" if _waits(status, questions) else status
