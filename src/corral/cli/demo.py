"""``corral demo``: a real agent at work, with a scripted model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from corral.cli.command_types import enable_gc, plain_option
from corral.cli.ui.terminal import echo
from corral.errors import BrokenInstall, NotInstalled, VersionTooOld
from corral.events import Done, Event, FileChange, Init, Text, ToolResult, ToolUse
from corral.system import config, install, programs
from corral.testing.demo import AGENT, PROMPT, demonstrate


@click.command("demo")
@plain_option(
    "--program PATH",
    "The agent's program.  [default: searched, else the tested version is installed"
    " into corral's own folder]",
)
def command(program: str | None) -> int:
    """Run the real Gemini CLI with a scripted model: no API key, no cost.

    In a temporary folder the agent reads a small project, fixes a bug, and is denied a shell
    command by the policy. The events and the typed result are printed. The exit code is 1 if
    something did not work. Node.js 20 or newer is needed.
    """
    enable_gc()
    if program is None:  # the tested version is installed if there is none
        agent = config.find_agent(AGENT)
        try:
            program = programs.locate(agent, None).path
        except (NotInstalled, BrokenInstall, VersionTooOld):
            echo(f"installing {agent.package.npm} {agent.package.tested} …", err=True)
            program = install.install(agent).path
    echo(f"prompt       {PROMPT}")
    shown = asyncio.run(demonstrate(program, _show))
    result = shown.result
    echo(f"\n— greet.py on disk —\n{shown.fixed}")
    echo("— the result —")
    echo(f"status   {result.status}")
    echo(f"text     {result.final_text}")
    echo(f"files    {[(file.kind, Path(file.path).name) for file in result.files]}")
    echo(f"denied   {[call.title for call in result.denied]}")
    echo(f"usage    {result.usage}")
    echo(f"model    {result.model} by {result.agent} {result.agent_version}")
    echo("\nEverything worked as expected." if shown.ok else "\nSomething is wrong.")
    return 0 if shown.ok else 1


def _show(event: Event) -> None:
    """Print one line per event."""
    match event:
        case Init():
            text = f"{event.agent} {event.agent_version}, {event.model}"
        case Text():
            text = event.delta
        case ToolUse():
            text = f"{event.title}  ({event.kind})"
        case ToolResult():
            text = f"{event.name}: {event.status}"
        case FileChange():
            text = f"{event.kind} {Path(event.path).name}"
        case Done():
            text = f"{event.status} after {event.duration_ms / 1000:.1f} s"
        case _:
            text = "…"
    echo(f"{event.__struct_config__.tag:12} {text}")
