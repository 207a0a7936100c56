"""``corral pipeline runs``, ``show``, ``answer`` and ``cancel``: runs, from outside. No engine is
started here; whoever runs the run hears of it."""

from __future__ import annotations

import asyncio
import getpass
from typing import TYPE_CHECKING, Any

import click
import msgspec

from corral.cli.database_option import option
from corral.cli.pipeline.run import DB, NEWEST, run_id
from corral.cli.ui.tables import table
from corral.cli.ui.terminal import echo, echo_json
from corral.cli.ui.times import when
from corral.durable.dbos.adapter import require
from corral.errors import ConfigError
from corral.terminal_text import one_line, visible

if TYPE_CHECKING:
    from corral.durable.open_questions import OpenQuestion
    from corral.durable.payloads import OwnTree
    from corral.durable.query import Shown

GOES_ON = "corral pipeline resume {run}{db}"


@click.command("runs")
@NEWEST
@DB
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def runs(limit: int, db: str | None, as_json: bool) -> None:
    """List the runs of a database, the newest first."""
    require()
    from corral.durable import api

    found = asyncio.run(api.runs(db=db, limit=limit))
    if as_json:
        echo_json(msgspec.json.encode(found).decode())
        return
    rows = [
        (
            one.id,
            _state(one.status, one.asks),
            when(one.created),
            when(one.ended),
            one.goal or one.pipeline,
        )
        for one in found
    ]
    _say(table(("run", "status", "started", "ended", "goal"), rows))


@click.command("show")
@click.argument("name", metavar="RUN")
@DB
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str, db: str | None, as_json: bool) -> None:
    """Show what RUN did, its status, and what it waits for."""
    require()
    from corral.durable import api, open_questions

    name = run_id(name)
    found = asyncio.run(api.show(name, db=db))
    asked = [] if found.closed else asyncio.run(open_questions.questions(name, db=db))
    if as_json:
        echo_json(msgspec.json.encode(_plain(found, asked)).decode())
        return
    _say(f"run        {found.id}")
    reason = found.closed.reason if found.closed else ""
    _say(f"status     {_state(found.status, _open(asked))}{': ' + reason if reason else ''}")
    setting = found.begun.setting
    _say(f"pipeline   {found.graph.name}{' · ' + setting.source if setting.source else ''}")
    if found.graph.goal:
        _say(f"goal       {found.graph.goal}")
    _say(f"folder     {found.folder}")
    _say(f"workspace  {found.workspace}")
    if setting.tree is not None:
        _show_work(found, setting.tree)
    for node in dict.fromkeys(found.state.completed):
        outcome = found.state.outcomes.get(node)
        if outcome is not None:
            said = outcome.failure_reason or outcome.notes
            _say(f"  {outcome.status:16} {node}{': ' + said if said else ''}")
    for each in asked:
        question = each.question
        _say(f"? {question.node}: {visible(question.text)}")
        if each.answered:
            _say("    answered, and not taken yet")
            continue
        for choice in question.choices:
            _say(f"    [{choice.key}] {one_line(choice.label)}")
        _say(f"  corral pipeline answer {found.id}{option(db)} CHOICE --gate {question.node}")
    if found.status == "interrupted":
        _say(f"go on with: {GOES_ON.format(run=found.id, db=option(db))}")


@click.command("answer")
@click.argument("name", metavar="RUN")
@click.argument("choice", required=False)
@click.option("--gate", metavar="ID", help="Which gate, if several are open.")
@click.option(
    "--text",
    default="",
    help="A comment with the answer; or the answer itself, for a free-text gate.",
)
@click.option("--skip", is_flag=True, help="Refuse to answer: the gate fails.")
@DB
def answer(
    name: str, choice: str | None, *, gate: str | None, text: str, skip: bool, db: str | None
) -> None:
    """Answer a question of RUN: CHOICE is a key, a label or a target.

    RUN need not be running. Only the first answer to a question counts.
    """
    require()
    if skip and (choice or text):
        raise ConfigError("--skip and an answer both given")
    from corral.durable import api
    from corral.pipelines.scheduler.commands import Answer

    name = run_id(name)
    said = Answer(value=choice or "", text=text, skipped=skip)
    asyncio.run(api.answer(name, said, gate=gate, by=_me(), db=db))
    echo(f"{name} has its answer")
    if asyncio.run(api.show(name, db=db)).status == "interrupted":
        line = GOES_ON.format(run=name, db=option(db))
        echo(f"nobody is at it now; go on with: {line}", err=True)


@click.command("cancel")
@click.argument("name", metavar="RUN")
@click.option("--reason", default="", help="The reason, stored with the run.")
@DB
def cancel(name: str, reason: str, db: str | None) -> None:
    """Cancel RUN and end everything that it has running. A run that has ended is not changed."""
    require()
    from corral.durable import api

    name = run_id(name)
    found = asyncio.run(api.show(name, db=db))
    if found.closed is not None:
        raise ConfigError(f"{name} has ended already: {found.closed.status}")
    asyncio.run(api.cancel(name, reason=reason, db=db))
    echo(f"{name} is cancelled")


def _plain(found: Shown, asked: list[OpenQuestion]) -> dict[str, Any]:
    from corral.durable.result import kept, outcomes

    setting = found.begun.setting
    return {
        "id": found.id,
        "status": "waiting" if _waits(found.status, _open(asked)) else found.status,
        "reason": found.closed.reason if found.closed else "",
        "pipeline": found.graph.name,
        "goal": found.graph.goal,
        "source": setting.source,
        "folder": found.folder,
        "workspace": found.workspace,
        "repository": setting.tree.repository if setting.tree else "",
        **kept(found.closed.left if found.closed else {}),
        "forked_from": found.begun.forked_from,
        "created": found.created,
        "ended": found.ended,
        "current_node": found.state.current_node,
        "completed": found.state.completed,
        "outcomes": outcomes(found.state.outcomes),
        "context": found.state.context,
        "questions": [
            {**msgspec.to_builtins(each.question), "answered": each.answered} for each in asked
        ],
        "cost_usd": found.state.cost_usd,
        "tokens": found.state.tokens,
    }


def _show_work(found: Shown, tree: OwnTree) -> None:
    """Where it is, or is to be."""
    from corral.cli.ui.pipeline_output import changed
    from corral.durable.result import kept

    _say(f"repository {tree.repository} at {tree.commit[:12]}")
    left = found.closed.left if found.closed else {}
    work = kept(left)
    if work["branch"]:
        _say(f"branch     {tree.branch} at {work['commit'][:12]} · {changed(work['files'])}")
    elif "workspace" in left and not work["warnings"]:
        _say("branch     none: nothing was changed")
    else:
        _say(f"branch     {tree.branch}")
    for warning in work["warnings"]:
        _say(f"!          {warning}")


def _say(text: str) -> None:
    echo(text)


def _open(asked: list[OpenQuestion]) -> int:
    """Questions that nobody has answered yet."""
    return sum(not each.answered for each in asked)


def _waits(status: str, questions: int) -> bool:
    return bool(questions) and status in ("running", "interrupted", "queued")


def _state(status: str, questions: int) -> str:
    """How a run stands, in words."""
    return "waiting for a person" if _waits(status, questions) else status


def _me() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # nobody knows who this is
        return ""
