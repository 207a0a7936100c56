"""``corral run``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import click

from corral.agents import DEFAULT_AGENT
from corral.cli.dry_run import dry_run
from corral.cli.out import Out
from corral.cli.progress import Progress
from corral.cli.prompts import read_prompt
from corral.cli.questions import Terminal, somebody_is_there
from corral.errors import ConfigError
from corral.events import Done, Event, Text, to_json
from corral.io import config
from corral.policy import PRESETS, Policy, Preset
from corral.raised import by_code
from corral.sessions.session import Session


@click.command("run")
@click.argument("prompt", required=False)
@click.option(
    "-a",
    "--agent",
    default=DEFAULT_AGENT,
    show_default=True,
    help="Which agent, or any command that speaks ACP.",
)
@click.option("-f", "--file", "file", help="Read the prompt from this file; - is stdin.")
@click.option("-C", "--cwd", help="Where the agent works.  [default: here]")
@click.option("-m", "--model", help="The model, by the agent's own name for it.")
@click.option(
    "--approve",
    type=click.Choice(["reads", "edits", "all"]),
    help="What it may do without asking; what is not approved asks, and where nobody can"
    " answer is denied.",
)
@click.option("--yolo", is_flag=True, help="The same as --approve all.")
@click.option("--policy", "policy_file", type=click.Path(), help="A policy file (TOML).")
@click.option("--allow-tool", multiple=True, metavar="NAME", help="Only these tools; repeat.")
@click.option("--deny-tool", multiple=True, metavar="NAME", help="Never this tool; repeat.")
@click.option("--timeout", type=float, help="Seconds in all.  [default: 600]")
@click.option("--idle-timeout", type=float, help="Seconds without an event.  [default: 300]")
@click.option("--startup-timeout", type=float, help="Seconds to a sign of life.  [default: 60]")
@click.option("--max-turns", type=int, help="Model calls at the most.")
@click.option("--retries", type=int, help="Attempts at each model call.  [default: 3]")
@click.option("--resume", metavar="ID", help="Go on with a session; 'last' is the newest.")
@click.option("--add-dir", multiple=True, metavar="DIR", help="A further folder; repeat.")
@click.option("--image", multiple=True, metavar="FILE", help="An image for the prompt; repeat.")
@click.option("--system-prompt", help="Put before the prompt.")
@click.option("--expand-files", is_flag=True, help="Let the agent inline files named by @path.")
@click.option("--sandbox", is_flag=True, help="The agent's own sandbox, where it has one.")
@click.option(
    "--inherit",
    type=click.Choice(["nothing", "project", "user"]),
    help="Whose settings take effect besides ours.  [default: nothing]",
)
@click.option("--env", multiple=True, metavar="NAME", help="Pass this variable on; repeat.")
@click.option("--program", help="The agent's program.  [default: looked for]")
@click.option("--no-strict", is_flag=True, help="Run even where the policy is only advice.")
@click.option("--no-keep", is_flag=True, help="Leave nothing of the session on disk.")
@click.option("--json", "as_json", is_flag=True, help="Events on stdout, a JSON object a line.")
@click.option("-q", "--quiet", is_flag=True, help="Nothing but the answer.")
@click.option("--dry-run", is_flag=True, help="Show what would be started, and start nothing.")
def command(prompt: str | None, file: str | None, agent: str, **given: Any) -> int:
    """Give an agent a PROMPT and see it through.

    The prompt is the argument, --file, or stdin. The answer goes to stdout,
    progress to stderr.

    \b
    Exit codes: 0 ok · 1 error · 2 usage · 3 timeout · 4 no such session ·
    5 permission denied · 6 authentication · 7 rate or usage limit · 8 turn or
    budget limit · 9 schema not met · 10 waiting for a person · 11 incomplete ·
    12 agent not installed · 130 interrupted
    """
    text = read_prompt(prompt, file)
    options = _options(given)
    if given["as_json"] and given["quiet"]:
        raise ConfigError("--json and --quiet both given")
    if given["dry_run"]:
        return dry_run(agent, {**options}, text, as_json=given["as_json"])
    gc.enable()  # all is loaded, and from here on it may take long
    answer: _Answer | _Json = _Json() if given["as_json"] else _Answer()
    return asyncio.run(_run(agent, text, options, answer, Progress(enabled=not given["quiet"])))


def _options(given: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {"record": not given["no_keep"], "keep": not given["no_keep"]}
    chosen: dict[str, Any] = {
        "cwd": given["cwd"],
        "model": given["model"],
        "timeout": given["timeout"],
        "idle_timeout": given["idle_timeout"],
        "startup_timeout": given["startup_timeout"],
        "max_turns": given["max_turns"],
        "retries": given["retries"],
        "resume": given["resume"],
        "include_directories": list(given["add_dir"]) or None,
        "images": list(given["image"]) or None,
        "system_prompt": given["system_prompt"],
        "expand_files": given["expand_files"] or None,
        "sandbox": given["sandbox"] or None,
        "inherit": given["inherit"],
        "pass_env": list(given["env"]) or None,
        "program": given["program"],
        "strict": False if given["no_strict"] else None,
        "policy": _policy(given),
    }
    options.update({name: value for name, value in chosen.items() if value is not None})
    return options


def _policy(given: dict[str, Any]) -> Policy | None:
    approve = "all" if given["yolo"] else given["approve"]
    if given["yolo"]:
        if given["approve"] not in (None, "all"):
            raise ConfigError("--yolo and --approve both given")
        click.echo("corral: --yolo: the agent may do everything, unasked", err=True)
    if approve is not None and given["policy_file"] is not None:
        raise ConfigError("--approve and --policy both given", hint="Put preset = into the file.")
    policy: Policy | None = None
    if given["policy_file"] is not None:
        policy = config.read_policy(Path(given["policy_file"]))
    elif approve is not None:
        policy = PRESETS[cast("Preset", approve)]
    if given["allow_tool"] or given["deny_tool"]:
        from msgspec.structs import replace

        policy = policy or Policy()
        if given["allow_tool"]:
            policy = replace(policy, allow_tools=tuple(given["allow_tool"]))
        policy = replace(policy, deny_tools=(*policy.deny_tools, *given["deny_tool"]))
    return policy


async def _run(
    agent: str,
    text: str | None,
    options: dict[str, Any],
    answer: _Answer | _Json,
    progress: Progress,
) -> int:
    asker = Terminal(progress.pause) if somebody_is_there() else None
    async with Session(agent, {**options}, asker) as session:
        can_ask = session.prepared.agent.asks and asker is not None
        progress.begin(session.prepared, asks=can_ask)
        turn = session.prompt(text)
        last: Done | None = None
        with _signals(turn.cancel), progress, Out(lambda: turn.failed) as out:
            async for event in turn:
                await out.write(answer.text(event))
                progress.show(event, turn.notes)
                if isinstance(event, Done):
                    last = event
            await out.write(answer.end())
    if last is None:
        return 1
    progress.summary(last)
    return exit_code(last)


def exit_code(done: Done) -> int:
    """The exit code for the end of a run."""
    if done.status == "success":
        return 0
    if done.status == "denied":
        return 5
    kind = by_code().get(done.error.code) if done.error else None
    return kind.cli_exit if kind else 1


class _Answer:
    """The answer's text as it comes, messages parted by a blank line."""

    def __init__(self) -> None:
        self._open = False
        self._owed = ""
        """What must be written before the next message."""
        self._ends_line = True

    def text(self, event: Event) -> str:
        """What to write for the event."""
        if isinstance(event, Text) and event.delta:
            owed = "" if self._open else self._owed
            self._open = True
            self._ends_line = event.delta.endswith("\n")
            return owed + event.delta
        if self._open and getattr(event, "call_id", None) is not None:
            self._open = False
            self._owed = "\n" if self._ends_line else "\n\n"
            if sys.stdout.isatty():  # progress follows on the same screen
                self._owed = "\n"
                return self.end()
        return ""

    def end(self) -> str:
        ended, self._ends_line = self._ends_line, True
        return "" if ended else "\n"


class _Json:
    def text(self, event: Event) -> bytes:
        return to_json(event) + b"\n"

    def end(self) -> bytes:
        return b""


_ENDING = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
    if hasattr(signal, name)
]


@contextlib.contextmanager
def _signals(cancel: Callable[[], None]) -> Generator[None]:
    """Ctrl-C and TERM end the agent; the stream then ends by itself."""
    loop = asyncio.get_running_loop()
    try:
        for number in _ENDING:
            loop.add_signal_handler(number, cancel)
    except (NotImplementedError, RuntimeError):  # Windows, or not the main thread
        yield
        return
    try:
        yield
    finally:
        for number in _ENDING:
            loop.remove_signal_handler(number)
