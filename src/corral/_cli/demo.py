"""``corral demo``: the real Gemini CLI fixes a bug in a small project, with a scripted model.

It reads the project, fixes the bug, is denied a shell command by the policy, and returns one typed
result. There is no API key and no cost, because the model's answers are in ``SCRIPT``.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from corral._cli.command_types import enable_gc, examples, plain_option
from corral._cli.ui.spans import StyledText
from corral._cli.ui.terminal import echo, echo_styled
from corral._core.terminal_text import clean
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


@click.command("demo", epilog=examples("corral demo", "corral demo --program ./patched-cli"))
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
    _print("prompt", PROMPT, "bold")
    shown = asyncio.run(demonstrate(program, _show))
    result, usage = shown.result, shown.result.usage
    echo()
    for line in shown.fixed.splitlines():
        _print("greet.py", line)
    echo()
    _print("status", result.status, _STYLES[result.ok])
    _print("text", result.final_text)
    _print("files", ", ".join(f"{file.kind} {Path(file.path).name}" for file in result.files))
    _print("denied", ", ".join(call.title or call.name for call in result.denied))
    _print("usage", f"{usage.input or 0:,} tokens in, {usage.output or 0:,} out")
    _print("model", f"{result.model} by {result.agent} {result.agent_version}")
    end = "Everything worked as expected." if shown.ok else "Something is wrong."
    echo()
    echo_styled([StyledText(end, _STYLES[shown.ok])], err=False)
    if shown.ok:
        echo("Next: `corral agents doctor` says what your own runs need;")
        echo("`corral docs getting-started` is the tutorial.")
    return 0 if shown.ok else 1


_STYLES = {True: "bold green", False: "bold red"}
_FOLDER = "/corral-demo-"
"""The temporary folder, which tells nothing."""


def _show(event: Event) -> None:
    """Print a line for an event that says something."""
    style = ""
    match event:
        case Init():
            text = f"{event.agent} {event.agent_version}, {event.model}"
        case Text():
            text = event.delta
        case ToolUse():
            text = f"{event.title}  ({event.kind})"
        case ToolResult():
            text = f"{event.name}: {event.status}"
            style = _STYLES[event.status == "success"]
        case FileChange():
            text, style = f"{event.kind} {Path(event.path).name}", "yellow"
        case Done():
            text = f"{event.status} after {event.duration_ms / 1000:.1f} s"
            style = _STYLES[event.status == "success"]
        case _:
            return
    _print(event.type, text, style)


def _without_folder(word: re.Match[str]) -> str:
    _, found, rest = word[0].partition(_FOLDER)
    return rest.partition("/")[2] if found else word[0]


def _print(label: str, text: str, style: str = "") -> None:
    text = re.sub(r"\S+", _without_folder, clean(text))
    echo_styled([StyledText(f"{label:12} ", "cyan"), StyledText(text, style)], err=False)


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
    with tempfile.TemporaryDirectory(prefix=_FOLDER[1:]) as name:
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
                probe="trust",
                keep=False,
                on_event=on_event,
            )
        return Demonstration(
            result,
            fixed=(folder / "greet.py").read_text("utf-8"),
            command_ran=(folder / "ran.txt").exists(),
        )
