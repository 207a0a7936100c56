"""``corral run``."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, cast

import click
import msgspec

from corral.agents.spec import InProcess, Launch
from corral.cli import run_result
from corral.cli.options import (
    CWD,
    DURATION,
    ENV,
    MODEL,
    PROGRAM,
    SYSTEM_PROMPT,
    PolicyFlags,
    agent_option,
    choose_agent,
    choose_channel,
    choose_policy,
    completing,
    given_options,
    policy_options,
    read_prompt_and_stdin,
)
from corral.cli.run_result import read_schema
from corral.cli.ui.progress import Progress
from corral.cli.ui.questions import TerminalAsker, is_interactive
from corral.cli.ui.signals import signals
from corral.cli.ui.stdout import AnswerPrinter, EventPrinter, Stdout
from corral.cli.ui.tables import policy_table
from corral.cli.ui.terminal import echo, echo_json
from corral.errors import ConfigError, PromptError, classes_by_code
from corral.events import Done
from corral.options import Inherit, Via
from corral.values import Effort, Json, as_object

if TYPE_CHECKING:
    from corral.options import RunKwargs
    from corral.sessions.turn import Turn
    from corral.sessions.warm.client import WarmTurn


class RunFlags(PolicyFlags):
    """The options of the command."""

    cwd: str | None
    model: str | None
    timeout: float | None
    idle_timeout: float | None
    startup_timeout: float | None
    max_turns: int | None
    effort: Effort | None
    retries: int | None
    resume: str | None
    session: str | None
    session_idle: float | None
    add_dir: tuple[str, ...]
    via: Via | None
    image: tuple[str, ...]
    attach: tuple[str, ...]
    system_prompt: str | None
    expand_files: bool
    sandbox: bool
    inherit: Inherit | None
    auth: Literal["api_key", "subscription", "inherit"] | None
    env: tuple[str, ...]
    program: str | None
    record_to: str | None
    replay: str | None
    no_strict: bool
    no_keep: bool
    label: str | None
    schema: str | None
    full_result: bool
    as_json: bool
    quiet: bool
    dry_run: bool


@click.command("run")
@click.argument("prompt", required=False)
@agent_option
@click.option("-f", "--file", "file", help="Read the prompt from this file; - is stdin.")
@CWD
@MODEL
@policy_options("What the agent may do. Anything else is asked, or denied if nobody can answer.")
@click.option("--timeout", type=DURATION, help="Time in total: 90, 5m, 1h30m.  [default: 10m]")
@click.option("--idle-timeout", type=DURATION, help="Time without an event.  [default: 5m]")
@click.option("--startup-timeout", type=DURATION, help="Time until the first event.  [default: 1m]")
@click.option("--max-turns", type=int, help="Maximum number of model calls.")
@click.option(
    "--effort",
    type=click.Choice(["none", "minimal", "low", "medium", "high", "xhigh"]),
    help="Reasoning effort of the model.",
)
@click.option("--retries", type=int, help="Attempts at each model call.  [default: 3]")
@click.option(
    "--resume",
    metavar="ID",
    shell_complete=completing("sessions"),
    help="Continue a session; 'last' is the newest.",
)
@click.option(
    "--session",
    metavar="NAME",
    shell_complete=completing("names"),
    help="Use the named session of this folder. Its agent keeps running in the background.",
)
@click.option(
    "--session-idle",
    type=DURATION,
    help="Time without a prompt after which that agent ends.  [default: 30m]",
)
@click.option("--add-dir", multiple=True, metavar="DIR", help="A further folder (repeatable).")
@click.option(
    "--via",
    type=click.Choice(["file", "editor", "terminal"]),
    help="How the agent 'manual' asks.  [default: terminal if there is one, else file]",
)
@click.option(
    "--image", multiple=True, metavar="FILE", help="An image for the prompt (repeatable)."
)
@click.option(
    "--attach", multiple=True, metavar="FILE", help="A file to send with the prompt (repeatable)."
)
@SYSTEM_PROMPT
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
@ENV
@PROGRAM
@click.option("--record-to", metavar="FILE", help="Record the conversation with the program.")
@click.option("--replay", metavar="FILE", help="Replay such a recording instead of the program.")
@click.option("--no-strict", is_flag=True, help="Run even if the policy cannot be enforced.")
@click.option("--no-keep", is_flag=True, help="Do not store the session.")
@click.option("--label", help="A text in every event and in the stored session.")
@click.option(
    "--schema",
    metavar="FILE",
    help="Print an answer that fits this JSON Schema: a file, - for stdin, or the schema itself.",
)
@click.option(
    "--result",
    "full_result",
    is_flag=True,
    help="Print the result as one JSON object: status, text, output, files, usage, cost.",
)
@click.option("--json", "as_json", is_flag=True, help="Print events, one JSON object per line.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the answer.")
@click.option("--dry-run", is_flag=True, help="Show what would be started.")
def command(
    prompt: str | None, file: str | None, agent: str | None, **flags: Unpack[RunFlags]
) -> int:
    """Run an agent with PROMPT.

    The prompt is the argument, --file, or stdin. If there is a prompt and
    something is piped to stdin, both are sent. The answer goes to stdout,
    progress to stderr.

    \b
    Exit codes: 0 ok · 1 error · 2 usage · 3 timeout · 4 no such session ·
    5 permission denied · 6 authentication · 7 rate or usage limit · 8 turn or
    budget limit · 9 schema not met · 10 waiting for a person · 11 incomplete ·
    12 agent not installed · 130 interrupted
    """
    _check_flags(flags)
    schema = read_schema(flags["schema"]) if flags["schema"] is not None else None
    text = read_prompt_and_stdin(prompt, file)
    options = _options(flags)
    printer = EventPrinter() if flags["as_json"] else AnswerPrinter()
    progress = Progress(enabled=not flags["quiet"])
    if flags["session"] is not None:
        return _run_named(flags["session"], agent, text, flags, printer, progress)
    agent = choose_agent(agent, options)
    choose_channel(agent, options)
    if "resume" in options and not (text or "").strip():
        text = None  # the question that is still open, if there is one
    if flags["dry_run"]:
        return _dry_run(agent, options, text, as_json=flags["as_json"])
    gc.enable()  # loading is done; the run may be long
    if schema is not None or flags["full_result"]:
        return run_result.run(agent, text, options, schema, progress, full=flags["full_result"])
    return asyncio.run(_run(agent, text, options, printer, progress))


def _check_flags(flags: RunFlags) -> None:
    """Raise ``ConfigError`` for flags that do not go together."""
    if flags["as_json"] and flags["quiet"]:
        raise ConfigError("--json and --quiet are both given")
    if flags["as_json"] and (flags["schema"] is not None or flags["full_result"]):
        raise ConfigError("--json prints events: leave out --schema and --result")
    if flags["session_idle"] is not None and flags["session"] is None:
        raise ConfigError("--session-idle is for --session")


def _options(flags: RunFlags) -> RunKwargs:
    return given_options(
        {
            "record": not flags["no_keep"],
            "keep": not flags["no_keep"],
            "cwd": flags["cwd"],
            "model": flags["model"],
            "timeout": flags["timeout"],
            "idle_timeout": flags["idle_timeout"],
            "startup_timeout": flags["startup_timeout"],
            "max_turns": flags["max_turns"],
            "reasoning_effort": flags["effort"],
            "retries": flags["retries"],
            "resume": flags["resume"],
            "include_directories": list(flags["add_dir"]) or None,
            "images": list(flags["image"]) or None,
            "attachments": list(flags["attach"]) or None,
            "system_prompt": flags["system_prompt"],
            "expand_files": flags["expand_files"] or None,
            "sandbox": flags["sandbox"] or None,
            "inherit": flags["inherit"],
            "via": flags["via"],
            "auth": flags["auth"],
            "pass_env": list(flags["env"]) or None,
            "program": flags["program"],
            "label": flags["label"],
            "record_to": flags["record_to"],
            "replay": flags["replay"],
            "strict": False if flags["no_strict"] else None,
            "policy": choose_policy(flags),
        }
    )


async def _run(
    agent: str,
    text: str | None,
    options: RunKwargs,
    printer: AnswerPrinter | EventPrinter,
    progress: Progress,
) -> int:
    from corral.sessions.session import Session

    asker = TerminalAsker(progress.pause) if is_interactive() else None
    async with Session(agent, {**options}, asker) as session:
        can_ask = session.prepared.agent.asks and asker is not None
        progress.begin(session.prepared, asks=can_ask)
        done = await _print_turn(session.prompt(text), printer, progress)
    return _report(done, progress)


async def _print_turn(
    turn: Turn | WarmTurn, printer: AnswerPrinter | EventPrinter, progress: Progress
) -> Done | None:
    """Print the events of a turn to its end; return the last."""
    last: Done | None = None
    with signals(turn.cancel), progress, Stdout(lambda: turn.failed) as out:
        async for event in turn:
            await out.write(printer.text(event))
            progress.show(event, turn.notes)
            if isinstance(event, Done):
                last = event
        await out.write(printer.end())
    return last


def _report(done: Done | None, progress: Progress) -> int:
    if done is None:
        return 1
    progress.summary(done)
    return exit_code(done)


_NOT_WITH_SESSION = (
    *("schema", "full_result", "resume", "replay", "record_to", "no_keep", "dry_run", "via"),
)


def _run_named(
    name: str,
    agent: str | None,
    text: str | None,
    flags: RunFlags,
    printer: AnswerPrinter | EventPrinter,
    progress: Progress,
) -> int:
    """Send the prompt to the background process of a named session, which is started if needed."""
    from corral.sessions.warm import client

    for flag in _NOT_WITH_SESSION:
        if flags.get(flag):
            name_of_flag = flag.removeprefix("full_").replace("_", "-")
            raise ConfigError(f"--session and --{name_of_flag} are both given")
    if not (text or "").strip():
        raise PromptError("the prompt is empty", hint="Pass it as text, as a file or on stdin.")
    cwd = os.path.realpath(flags["cwd"] or ".")
    request = client.Request(
        name=name,
        agent=agent,
        text=text,
        options=_json_options({**_options(flags), "cwd": cwd}),
        interactive=is_interactive(),
    )
    gc.enable()  # loading is done; the run may be long
    turn = client.WarmTurn(
        client.WarmFiles.of(name, cwd),
        request,
        ask=TerminalAsker(progress.pause) if is_interactive() else None,
        idle=flags["session_idle"] or client.IDLE_SECONDS,
        on_accepted=lambda accepted: progress.show_denied(
            accepted.agent, accepted.denied_without_asking, agent_asks=accepted.agent_asks
        ),
        on_waiting=progress.waiting,
    )
    return _report(asyncio.run(_print_turn(turn, printer, progress)), progress)


def _json_options(options: Mapping[str, object]) -> dict[str, Json]:
    """The options for another process. Paths are relative to the folder of this one."""
    given = dict(options)
    for key in ("images", "attachments", "include_directories"):
        if isinstance(paths := given.get(key), list):
            given[key] = [os.path.abspath(str(path)) for path in cast("list[object]", paths)]
    return as_object(msgspec.to_builtins(given))


def exit_code(done: Done) -> int:
    """The exit code for the end of a run."""
    if done.status == "success":
        return 0
    if done.status == "denied":
        return 5
    kind = classes_by_code().get(done.error.code) if done.error else None
    return kind.cli_exit if kind else 1


class _Shown(TypedDict):
    """What ``--dry-run`` prints. Of variables and files only the names."""

    agent: str
    version: str | None
    model: str | None
    program: str
    cwd: str
    argv: list[str]
    stdin_bytes: int
    env: list[str]
    files: list[str]
    policy: object
    notes: list[str]


def _dry_run(agent: str, options: RunKwargs, text: str | None, *, as_json: bool) -> int:
    """Make all checks of a real run and print what would be started. Nothing is written or
    started."""
    from corral.sessions.prepare import prepare, resolve_prompt
    from corral.system.paths import sessions

    prepared = prepare(agent, {**options}, has_asker=is_interactive())
    prompt = resolve_prompt(prepared, text)
    if isinstance(prepared.agent.transport, InProcess):
        launch = Launch(argv=(), env={}, stdin=b"")
    else:
        context = prepared.launch_context(sessions() / "SESSION")
        launch = prepared.agent.launch(prepared.run, context, prompt, None)
    shown: _Shown = {
        "agent": prepared.agent.name,
        "version": prepared.program.version,
        "model": prepared.run.model,
        "program": prepared.program.path,
        "cwd": prepared.cwd,
        "argv": list(launch.argv),
        "stdin_bytes": len(launch.stdin),
        "env": sorted(prepared.env(launch)),
        "files": sorted(launch.files),
        "policy": msgspec.to_builtins(prepared.compiled.report),
        "notes": list(launch.notes),
    }
    if as_json:
        echo_json(json.dumps(shown))
        return 0
    for name in ("agent", "version", "model", "program", "cwd", "stdin_bytes"):
        echo(f"{name:12} {shown[name]}")
    echo(f"{'argv':12} {' '.join(shown['argv'])}")
    echo(f"{'env names':12} {' '.join(shown['env'])}")
    echo(f"{'files':12} {' '.join(shown['files'])}")
    for note in shown["notes"]:
        echo(f"{'note':12} {note}")
    echo(policy_table(prepared.compiled.report))
    return 0
