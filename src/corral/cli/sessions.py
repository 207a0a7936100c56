"""``corral sessions``: what was kept of past runs."""

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
    kept = store.all_sessions()[: max(0, limit)]
    if as_json:
        echo_json(json.dumps([msgspec.to_builtins(one.meta) for one in kept]))
        return
    rows = [
        (
            one.meta.id,
            one.meta.agent,
            one.meta.status or "–",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(one.meta.updated)),
            f"{one.meta.title}  ({one.meta.cwd})",
        )
        for one in kept
    ]
    echo(table(("session", "agent", "status", "last", "prompt"), rows))


@command.command("show")
@click.argument("name")
def show(name: str) -> None:
    """Show what was said and done in a session; 'last' is the newest."""
    kept = _transcript(name)
    meta = kept.meta
    echo(f"{meta.id} · {meta.agent} · {meta.cwd} · {meta.status} · {meta.turns} turns")
    for event in kept.events():
        line = _line(event)
        if line is not None:
            echo(line, nl=not isinstance(event, Text))


@command.command("export")
@click.argument("name")
@click.option(
    "-o", "--output", type=click.Path(), help="Write to this new file.  [default: stdout]"
)
def export(name: str, output: str | None) -> None:
    """Print a session's events, one JSON object per line."""
    kept = _transcript(name)
    lines = (to_json(event) + b"\n" for event in kept.events())
    if output is None:
        for line in lines:
            echo_json(line.removesuffix(b"\n"))
        return
    path = Path(output)
    if path.exists():
        raise ConfigError(f"{output} is there already", hint="Name another file, or remove it.")
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
    kept = store.find(name)
    question = question_files.open_question(kept)
    if question is None:
        raise ConfigError(f"session {kept.meta.id} waits for no answer")
    text = read_prompt(None, file) or ""
    if not text.strip():
        raise ConfigError("the answer is empty", hint="Give it as a file or on stdin.")
    question.give(text)
    if store.in_use(kept):
        echo(f"{kept.meta.id} has its answer")
    else:
        echo(f"kept; nobody waits: corral run --resume {kept.meta.id} takes it")


def _transcript(name: str) -> store.SessionRecord:
    kept = store.find(name)
    if not (kept.folder / store.EVENTS).exists():
        raise ResumeLost(
            f"session {kept.meta.id} has no transcript",
            hint="One is kept by `corral run`, and in Python with record=True.",
        )
    return kept


def _line(event: Event) -> str | None:
    match event:
        case Init():
            return f"\n── {event.run_id} · {event.model or 'default model'}\n"
        case Vendor(name="prompt"):
            return f"> {event.data}\n"
        case Text():
            return event.delta
        case ToolUse():
            return f"\n→ {event.title or event.name}"
        case ToolResult():
            return f"← {event.status}{': ' + event.error if event.error else ''}"
        case FileChange():
            return f"  {event.kind} {event.path}"
        case Error():
            return f"! {event.message}"
        case Done():
            return f"\n── {event.status}"
        case _:
            return None
