"""``corral run``."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import click

from corral.agents.registry import DEFAULT_AGENT
from corral.cli.dry_run import dry_run
from corral.cli.prompt_input import read_prompt
from corral.cli.run_options import choose_agent, choose_channel, choose_policy
from corral.cli.ui.answer import AnswerPrinter
from corral.cli.ui.progress import Progress
from corral.cli.ui.questions import TerminalAsker, is_interactive
from corral.cli.ui.signals import signals
from corral.cli.ui.stdout import Stdout
from corral.errors import ConfigError, classes_by_code
from corral.events import Done, Event, to_json
from corral.sessions.session import Session


@click.command("run")
@click.argument("prompt", required=False)
@click.option(
    "-a",
    "--agent",
    help=f"The agent, or any command that speaks ACP.  [default: {DEFAULT_AGENT}]",
)
@click.option("-f", "--file", "file", help="Read the prompt from this file; - is stdin.")
@click.option("-C", "--cwd", help="The working directory.  [default: here]")
@click.option(
    "-m",
    "--model",
    help="The agent's own name for the model; vendor:model runs the built-in agent on it.",
)
@click.option(
    "--approve",
    type=click.Choice(["reads", "edits", "all"]),
    help="What the agent may do. Anything else is asked, or denied if nobody can answer.",
)
@click.option("--yolo", is_flag=True, help="Short for --approve all.")
@click.option("--policy", "policy_file", type=click.Path(), help="A policy file (TOML).")
@click.option(
    "--allow-tool", multiple=True, metavar="NAME", help="Allow only this tool (repeatable)."
)
@click.option(
    "--deny-tool", multiple=True, metavar="NAME", help="Never allow this tool (repeatable)."
)
@click.option("--timeout", type=float, help="Seconds in total.  [default: 600]")
@click.option("--idle-timeout", type=float, help="Seconds without an event.  [default: 300]")
@click.option(
    "--startup-timeout", type=float, help="Seconds until the first sign of life.  [default: 60]"
)
@click.option("--max-turns", type=int, help="Maximum number of model calls.")
@click.option(
    "--effort",
    type=click.Choice(["none", "minimal", "low", "medium", "high", "xhigh"]),
    help="Reasoning effort of the model.",
)
@click.option("--retries", type=int, help="Attempts at each model call.  [default: 3]")
@click.option("--resume", metavar="ID", help="Continue a session; 'last' is the newest.")
@click.option("--add-dir", multiple=True, metavar="DIR", help="A further folder (repeatable).")
@click.option(
    "--via",
    type=click.Choice(["file", "editor", "terminal"]),
    help="How the agent 'manual' asks.  [default: terminal if there is one, else file]",
)
@click.option(
    "--image", multiple=True, metavar="FILE", help="An image for the prompt (repeatable)."
)
@click.option("--system-prompt", help="Added to the system prompt.")
@click.option("--expand-files", is_flag=True, help="Let the agent expand @path.")
@click.option("--sandbox", is_flag=True, help="Use the agent's own sandbox, if it has one.")
@click.option(
    "--inherit",
    type=click.Choice(["nothing", "project", "user"]),
    help="Which settings take effect besides corral's.  [default: nothing]",
)
@click.option(
    "--auth",
    type=click.Choice(["api_key", "subscription", "inherit"]),
    help="Which credentials are billed, if there are two.",
)
@click.option("--env", multiple=True, metavar="NAME", help="Pass this variable on (repeatable).")
@click.option("--program", help="The agent's program.  [default: searched]")
@click.option("--record-to", metavar="FILE", help="Record the conversation with the program.")
@click.option("--replay", metavar="FILE", help="Replay such a recording instead of the program.")
@click.option("--no-strict", is_flag=True, help="Run even if the policy cannot be enforced.")
@click.option("--no-keep", is_flag=True, help="Do not store the session.")
@click.option("--label", help="A text in every event and in the stored session.")
@click.option("--json", "as_json", is_flag=True, help="Print events, one JSON object per line.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the answer.")
@click.option("--dry-run", is_flag=True, help="Show what would be started.")
def command(prompt: str | None, file: str | None, agent: str | None, **given: Any) -> int:
    """Run an agent with PROMPT.

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
    agent = choose_agent(agent, options)
    choose_channel(agent, options)
    if "resume" in options and not (text or "").strip():
        text = None  # what was asked and not yet answered, where there is such a thing
    if given["dry_run"]:
        return dry_run(agent, {**options}, text, as_json=given["as_json"])
    gc.enable()  # all is loaded, and from here on it may take long
    answer: AnswerPrinter | _Json = _Json() if given["as_json"] else AnswerPrinter()
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
        "reasoning_effort": given["effort"],
        "retries": given["retries"],
        "resume": given["resume"],
        "include_directories": list(given["add_dir"]) or None,
        "images": list(given["image"]) or None,
        "system_prompt": given["system_prompt"],
        "expand_files": given["expand_files"] or None,
        "sandbox": given["sandbox"] or None,
        "inherit": given["inherit"],
        "via": given["via"],
        "auth": given["auth"],
        "pass_env": list(given["env"]) or None,
        "program": given["program"],
        "label": given["label"],
        "record_to": given["record_to"],
        "replay": given["replay"],
        "strict": False if given["no_strict"] else None,
        "policy": choose_policy(given),
    }
    options.update({name: value for name, value in chosen.items() if value is not None})
    return options


async def _run(
    agent: str,
    text: str | None,
    options: dict[str, Any],
    answer: AnswerPrinter | _Json,
    progress: Progress,
) -> int:
    asker = TerminalAsker(progress.pause) if is_interactive() else None
    async with Session(agent, {**options}, asker) as session:
        can_ask = session.prepared.agent.asks and asker is not None
        progress.begin(session.prepared, asks=can_ask)
        turn = session.prompt(text)
        last: Done | None = None
        with signals(turn.cancel), progress, Stdout(lambda: turn.failed) as out:
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
    kind = classes_by_code().get(done.error.code) if done.error else None
    return kind.cli_exit if kind else 1


class _Json:
    def text(self, event: Event) -> bytes:
        return to_json(event) + b"\n"

    def end(self) -> bytes:
        return b""
