"""Pipelines and workflows as runs: those of a database, and others that have a folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from corral._core import stored_formats
from corral._core.spending import LIMITS, dollars
from corral._core.stored_formats import JOURNAL
from corral._core.terminal_text import one_line, visible
from corral._engine.dbos.database import without_password
from corral._engine.run_list import RunOverview
from corral._pipelines.events import InterviewCompleted
from corral._pipelines.execution import run_dir
from corral._runs.run_record import Run, RunDetails, Sources, State
from corral._system import clock, fs, paths, threads
from corral._system.git.scan import project_of
from corral.values import Cost, Json, Usage, as_text, decode_as, number_or_none

if TYPE_CHECKING:
    from corral._engine.open_questions import RunQuestion
    from corral._engine.payloads import PipelineOutput, RunWorktree
    from corral._engine.query import RunDetails as StoredDetails
    from corral._metering.budget_stores import StoredBudget

ProgramKind = Literal["pipeline", "workflow"]
_STATES: dict[str, State] = {
    "fail": "failed",
    "success": "success",
    "cancelled": "cancelled",
    "queued": "queued",
    "running": "running",
    "paused": "paused",
    "interrupted": "interrupted",
}
_REASONS: dict[State, str] = {
    "cancelled": "it was cancelled",
    "interrupted": "its process has ended",
    "paused": "the next model call does not fit into the budget",
    "waiting": "a person is asked",
    "failed": "it failed",
}
_CODES: dict[State, str] = {"paused": "budget_exceeded"}


def list_pipelines(sources: Sources) -> Iterator[Run]:
    return _list("pipeline", sources)


def list_workflows(sources: Sources) -> Iterator[Run]:
    return _list("workflow", sources)


def _list(kind: ProgramKind, sources: Sources) -> Iterator[Run]:
    yield from (_durable(row, kind, sources) for row in sources.durable if row.kind == kind)
    if sources.db is None:
        yield from _in_folders(kind, sources, {row.id for row in sources.durable})


def _durable(row: RunOverview, kind: ProgramKind, sources: Sources) -> Run:
    state = _STATES[row.status]
    running = sources.state_of(row.id)
    if running in ("limited", "waiting", "paused") and state == "running":
        state = running
    needs = max(row.asks, sources.needs_of(row.id))
    if needs and state in ("running", "interrupted", "queued"):
        state = "waiting"
    return Run(
        id=row.id,
        kind=kind,
        state=state,
        title=_title(row.goal) or row.pipeline,
        project=project_of(row.started_in or row.workspace),
        reason="" if state == "success" else row.reason or _REASONS.get(state, ""),
        code=row.code or _CODES.get(state, ""),
        usage=Usage(input=row.tokens),
        cost=Cost() if row.scripted or row.cost_usd is None else Cost(row.cost_usd, "computed"),
        scripted=row.scripted,
        needs=needs,
        started=row.created,
        ended=row.ended,
        updated=row.ended or row.created,
        tries=row.tries,
        label=row.label,
        folder=row.folder,
        durable=True,
        db=sources.db or "",
    )


def _title(goal: str) -> str:
    return next((line.strip() for line in goal.splitlines() if line.strip()), "")


class _Checkpoint(msgspec.Struct):
    """What a list needs of ``checkpoint.json``."""

    status: str = ""
    reason: str = ""
    cost_usd: float = 0.0
    tokens: int = 0


def _in_folders(kind: ProgramKind, sources: Sources, listed: set[str]) -> Iterator[Run]:
    """Those in memory, and those of other databases: their folders are all that is read."""
    home = paths.home() / "runs"
    try:
        names = fs.list_names(home)
    except OSError:
        return
    for name in names:
        folder = home / name
        manifest = None if name in listed else read_manifest(folder)
        if manifest is None or (as_text(manifest.get("kind")) or "pipeline") != kind:
            continue
        saved, updated = _Checkpoint(), 0.0
        with suppress(OSError, msgspec.MsgspecError):
            saved = decode_as(fs.read_bytes(folder / run_dir.CHECKPOINT), _Checkpoint)
        with suppress(OSError):
            updated = fs.status(folder / run_dir.EVENTS).st_mtime
        ends = _STATES.get(saved.status, "interrupted")
        state = sources.state_of(name) or ("interrupted" if ends == "running" else ends)
        is_free = manifest.get("scripted") is True
        yield Run(
            id=name,
            kind=kind,
            state=state,
            title=_title(as_text(manifest.get("goal"))) or as_text(manifest.get("name")),
            project=project_of(as_text(manifest.get("workspace"))),
            reason="" if state == "success" else saved.reason or _REASONS.get(state, ""),
            usage=Usage(input=saved.tokens or None),
            cost=Cost() if is_free or not saved.cost_usd else Cost(saved.cost_usd, "computed"),
            scripted=is_free,
            needs=sources.needs_of(name),
            started=number_or_none(manifest.get("started")) or updated,
            ended=None if state in ("running", "waiting", "limited", "paused") else updated,
            updated=updated,
            label=as_text(manifest.get("label")),
            folder=str(folder),
        )


def read_manifest(folder: Path) -> dict[str, Json] | None:
    """What a run folder says about its run; None if it is no run folder."""
    try:
        return msgspec.json.decode(fs.read_bytes(folder / run_dir.MANIFEST), type=dict[str, Json])
    except (OSError, msgspec.MsgspecError):
        return None


# What ``show`` prints.


def show(run: Run) -> RunDetails:
    """What a run did, and what it waits for. Raises ``ConfigError``."""
    if not run.durable:
        return _show_folder(run)
    from corral._engine import open_questions, query

    db = run.db or None

    async def read() -> tuple[StoredDetails, list[RunQuestion]]:
        stored = await query.show(run.id, db=db)
        asked = [] if stored.output else await open_questions.questions(run.id, db=db)
        return stored, asked

    stored, questions = threads.blocking(read())
    if run.state == "waiting" and questions and all(each.answered for each in questions):
        state = _STATES[stored.status]  # the list does not know that it was answered
        run = replace(run, state=state, needs=0, reason=_REASONS.get(state, ""))
    lines = [*_lines(stored), *_question_lines(stored, questions, run.db)]
    return RunDetails(run=run, content=_as_json(stored, questions), lines=tuple(lines))


def _show_folder(run: Run) -> RunDetails:
    folder = Path(run.folder)
    saved: dict[str, Json] = {}
    with suppress(OSError, msgspec.MsgspecError):
        saved = msgspec.json.decode(
            fs.read_bytes(folder / run_dir.CHECKPOINT), type=dict[str, Json]
        )
    outcomes = saved.get("node_outcomes")
    lines = [f"folder     {run.folder}"]
    for node, outcome in outcomes.items() if isinstance(outcomes, dict) else ():
        if isinstance(outcome, dict):
            note = as_text(outcome.get("failure_reason")) or as_text(outcome.get("notes"))
            lines.append(f"  {as_text(outcome.get('status')):16} {node}{note and ': ' + note}")
    return RunDetails(run=run, content=saved, lines=tuple(lines))


def _lines(stored: StoredDetails) -> Iterator[str]:
    from corral._engine.run_result import saved_work

    config, output = stored.run_input.config, stored.output
    yield f"name       {stored.graph.name}{' · ' + config.source if config.source else ''}"
    if stored.graph.goal:
        yield f"goal       {stored.graph.goal}"
    yield f"folder     {stored.folder}"
    yield f"workspace  {stored.workspace}"
    if config.tree is not None:
        yield from _work_lines(stored, config.tree)
    for branch in saved_work(output.saved if output else {}).branches:
        yield f"not merged {branch}"
    for node in dict.fromkeys(stored.state.completed):
        outcome = stored.state.outcomes.get(node)
        if outcome is not None:
            note = outcome.failure_reason or outcome.notes
            yield f"  {outcome.status:16} {node}{': ' + note if note else ''}"
    for given in _answers(stored):
        by = f" ({given.by})" if given.by else ""
        yield f"  answer           {given.node}: {one_line(given.answer)}{by}"
    if stored.budget is not None:
        yield f"budget     {_budget(stored.budget)}"
    if output is not None and output.ok and (text := _result(stored, output)):
        yield f"result     {text}"


def _work_lines(stored: StoredDetails, tree: RunWorktree) -> Iterator[str]:
    """The repository and the branch of the run's work."""
    from corral._engine.run_result import saved_work

    yield f"repository {tree.repository} at {tree.commit[:12]}"
    saved = stored.output.saved if stored.output else {}
    work = saved_work(saved)
    if work.branch:
        names = ", ".join(work.files[:5]) + (" …" if len(work.files) > 5 else "")
        count = f"{len(work.files)} file{'s' * (len(work.files) != 1)}"
        yield f"branch     {tree.branch} at {work.commit[:12]} · {count}: {names}"
    elif "workspace" in saved and not work.warnings:
        yield "branch     none: nothing was changed"
    else:
        yield f"branch     {tree.branch}"
    yield from (f"!          {warning}" for warning in work.warnings)


def _result(stored: StoredDetails, output: PipelineOutput) -> str:
    """What the run printed at its end."""
    from corral._engine.run_result import result_from_output, text_of

    result = result_from_output(stored.id, output, Path(stored.folder))
    return text_of(result, is_workflow=stored.run_input.program is not None)


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


def _question_lines(stored: StoredDetails, questions: list[RunQuestion], db: str) -> Iterator[str]:
    """The open questions with the command that answers them, and how the run goes on."""
    is_ours = stored.format == JOURNAL
    more = f" --db {shlex.quote(without_password(db))}" if db else ""
    for asked in questions:
        question = asked.question
        yield f"? {question.node}: {visible(question.text)}"
        if asked.answered:
            yield "    answered; the run has not read it yet"
            continue
        yield from (f"    [{choice.key}] {one_line(choice.label)}" for choice in question.choices)
        if question.deadline is not None:
            until = clock.time_of_day(question.deadline)
            yield f"    answer by {until}; {one_line(question.at_deadline)}"
        if is_ours:
            choice = question.choices[0].key if question.choices else "TEXT"
            gate = shlex.quote(question.node)
            yield f"  corral runs answer {stored.id} {choice} --request {gate}{more}"
    if not is_ours:
        yield stored_formats.unsupported(stored.id, stored.format, JOURNAL).message
    elif stored.status == "paused" and stored.budget is not None:
        limits = stored.budget.limits.as_dict()
        flags = " ".join(
            f"--{name.replace('_', '-')} {2 * limit:g}" for name, limit in limits.items()
        )
        yield f"continue   corral runs resume {stored.id}{more} {flags}"
    elif stored.status == "interrupted":
        yield f"continue   corral runs resume {stored.id}{more}"


def _answers(stored: StoredDetails) -> list[InterviewCompleted]:
    """What people answered, in order."""
    return [each for each in stored.events if isinstance(each, InterviewCompleted)]


def _as_json(stored: StoredDetails, questions: list[RunQuestion]) -> dict[str, object]:
    from corral._engine.run_result import outcomes, saved_work

    config = stored.run_input.config
    return {
        "name": stored.graph.name,
        "goal": stored.graph.goal,
        "source": config.source,
        "workspace": stored.workspace,
        "repository": config.tree.repository if config.tree else "",
        **msgspec.structs.asdict(saved_work(stored.output.saved if stored.output else {})),
        "forked_from": stored.run_input.forked_from,
        "current_node": stored.state.current_node,
        "completed": stored.state.completed,
        "outcomes": outcomes(stored.state.outcomes),
        "context": stored.state.context,
        "questions": [
            {**msgspec.to_builtins(each.question), "answered": each.answered} for each in questions
        ],
        "budget": stored.budget and stored.budget.as_state(),
        "answers": [
            {"node": each.node, "answer": each.answer, "by": each.by} for each in _answers(stored)
        ],
    }


def delete(run: Run) -> None:
    """Delete a run that has ended. Raises ``ConfigError``."""
    if not run.durable:
        fs.remove_tree(run.folder)
        return
    from corral._engine import retention

    retention.delete_run(run.id, db=run.db or None)
