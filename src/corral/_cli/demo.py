"""``corral demo``: the real Gemini CLI fixes a bug in a small project, with a scripted model.

It reads the project, fixes the bug, is denied a shell command by the policy, and returns one typed
result. There is no API key and no cost, because the model's answers are in ``SCRIPT``.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from corral._cli.command_types import enable_gc, plain_option
from corral._cli.ui.terminal import echo
from corral._sessions.api import run
from corral._system import config, install, programs
from corral._testing.model_server.request import Call
from corral._testing.model_server.script import Turn
from corral._testing.model_server.server import ModelServer
from corral.errors import BrokenInstall, NotInstalled, VersionTooOld
from corral.events import Done, Event, FileChange, Init, Text, ToolResult, ToolUse
from corral.policy import Policy
from corral.result import Result

AGENT = "gemini-cli"
PROMPT = "greet.py fails with a NameError. Fix it, and test it."
PROJECT = {
    "README.md": "# greet\n\nSays hello, politely.\n",
    "greet.py": 'def greet(name: str) -> str:\n    return "Hello " + nane\n',
}
FIX = {"path": "greet.py", "old": '"Hello " + nane', "new": 'f"Hello, {name}!"'}
SCRIPT = (
    Turn(
        thoughts="Let me look at the project first.",
        text="I will look at the project.",
        calls=[Call("list_files", {"path": "."}), Call("read_file", {"path": "greet.py"})],
    ),
    Turn(
        text="`nane` is a typo for `name`. I will fix it.",
        calls=[Call("edit_file", FIX)],
    ),
    Turn(
        text="Now I will test it.",
        calls=[Call("shell", {"command": "python -c 'import greet' > ran.txt"})],
    ),
    Turn(
        text="I fixed greet.py. I was not allowed to run it, so it is untested.",
        usage={"input": 2400, "output": 60, "cached": 1200, "thoughts": 12},
    ),
)
"""The model's answers, turn by turn."""


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
            echo(f"installing {agent.package.name} {agent.package.tested} …", err=True)
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


class Demonstration(msgspec.Struct, frozen=True):
    """The result, and what was found on disk afterwards."""

    result: Result
    fixed: str
    """The content of ``greet.py``."""
    command_ran: bool
    """Whether the denied command had an effect."""

    @property
    def ok(self) -> bool:
        """Whether the bug is fixed, and the command was denied and did not run."""
        return (
            self.result.ok
            and "{name}" in self.fixed
            and not self.command_ran
            and len(self.result.denied) == 1
        )


async def demonstrate(
    program: str | None = None, on_event: Callable[[Event], None] | None = None
) -> Demonstration:
    """Run the demonstration in a temporary folder. ``program`` is the path of the Gemini CLI; by
    default it is searched for. Raises ``NotInstalled`` if it is not found."""
    with tempfile.TemporaryDirectory(prefix="corral-demo-") as name:
        folder = Path(name)
        for file, content in PROJECT.items():
            (folder / file).write_text(content, encoding="utf-8")
        async with ModelServer(SCRIPT) as model:
            result = await run(
                AGENT,
                PROMPT,
                cwd=folder,
                model="gemini-2.5-flash",
                policy=Policy.edits(),
                program=program,
                env={"GOOGLE_GEMINI_BASE_URL": model.url, "GEMINI_API_KEY": "no-key-is-needed"},
                trust_version=True,
                keep=False,
                on_event=on_event,
            )
        return Demonstration(
            result,
            fixed=(folder / "greet.py").read_text("utf-8"),
            command_ran=(folder / "ran.txt").exists(),
        )
