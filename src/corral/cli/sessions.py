"""``corral sessions``: list, show, export and answer stored sessions."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click
import msgspec

from corral.cli.prompt_input import read_prompt
from corral.cli.ui.tables import table
from corral.cli.ui.terminal import echo, echo_json
from corral.errors import ConfigError, ResumeLost
from corral.events import (
    Done,
    Error,
    Event,
    FileChange,
    Init,
    Text,
    ToolResult,
    ToolUse,
    Vendor,
    to_json,
)
from corral.sessions import question_files, store


@click.group("sessions")
def command() -> None:
    """List, show and export past sessions."""


@command.command("list")
@click.option("-n", "--limit", default=20, show_default=True, help="How many, the newest first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_sessions(limit: int, as_json: bool) -> None:
    """List the stored sessions, the newest first."""
    records = store.all_sessions()[: max(0, limit)]
    if as_json:
        echo_json(json.dumps([msgspec.to_builtins(record.meta) for record in records]))
        return
    rows = [
        (
            record.meta.id,
            record.meta.agent,
            record.meta.status or "–",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(record.meta.updated)),
            f"{record.meta.title}  ({record.meta.cwd})",
        )
        for record in records
    ]
    echo(table(("session", "agent", "status", "last", "prompt"), rows))


@command.command("show")
@click.argument("name")
def show(name: str) -> None:
    """Show the events of a session; 'last' is the newest."""
    record = _transcript(name)
    meta = record.meta
    echo(f"{meta.id} · {meta.agent} · {meta.cwd} · {meta.status} · {meta.turns} turns")
    for event in record.events():
        line = _format_event(event)
        if line is not None:
            echo(line, nl=not isinstance(event, Text))


@command.command("export")
@click.argument("name")
@click.option(
    "-o", "--output", type=click.Path(), help="Write to this new file.  [default: stdout]"
)
def export(name: str, output: str | None) -> None:
    """Print a session's events, one JSON object per line."""
    record = _transcript(name)
    lines = (to_json(event) + b"\n" for event in record.events())
    if output is None:
        for line in lines:
            echo_json(line.removesuffix(b"\n"))
        return
    path = Path(output)
    if path.exists():
        raise ConfigError(f"{output} already exists", hint="Name another file, or remove it.")
    try:
        with path.open("xb") as file:
            file.writelines(lines)
    except OSError as error:
        raise ConfigError(f"{output}: {error.strerror}") from error


@command.command("answer")
@click.argument("name")
@click.argument("file", default="-")
def answer(name: str, file: str) -> None:
    """Answer a session that waits for a person, from FILE or stdin; 'last' is the newest."""
    record = store.find(name)
    question = question_files.open_question(record)
    if question is None:
        raise ConfigError(f"session {record.meta.id} is not waiting for an answer")
    text = read_prompt(None, file) or ""
    if not text.strip():
        raise ConfigError("the answer is empty", hint="Give it as a file or on stdin.")
    question.write_answer(text)
    if store.is_in_use(record):
        echo(f"{record.meta.id} received the answer")
    else:
        echo(f"stored; to continue: corral run --resume {record.meta.id}")


def _transcript(name: str) -> store.SessionRecord:
    record = store.find(name)
    if not (record.folder / store.EVENTS).exists():
        raise ResumeLost(
            f"session {record.meta.id} has no transcript",
            hint="`corral run` stores one; in Python, use record=True.",
        )
    return record


def _format_event(event: Event) -> str | None:
    line: str | None = None
    match event:
        case Init():
            line = f"\n── {event.run_id} · {event.model or 'default model'}\n"
        case Vendor(name="prompt"):
            line = f"> {event.data}\n"
        case Text():
            line = event.delta
        case ToolUse():
            line = f"\n→ {event.title or event.name}"
        case ToolResult():
            line = f"← {event.status}{': ' + event.error if event.error else ''}"
        case FileChange():
            line = f"  {event.kind} {event.path}"
        case Error():
            line = f"! {event.message}"
        case Done():
            line = f"\n── {event.status}"
        case _:
            pass
    return line
