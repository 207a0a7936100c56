"""``corral``: the command line. Commands are loaded when they are called."""

from __future__ import annotations

import gc
import io
import os
import re
import sys
import warnings

import click

from corral._cli.command_types import VERBOSE, LazyGroup, plain_option
from corral._cli.ui.terminal import OUTPUT, clean_stderr, echo, print_traceback
from corral.version import __version__

COMMANDS = {
    "demo": ("corral._cli.demo", "Try a real agent with a scripted model: no key, no cost."),
    "run": ("corral._cli.run", "Run an agent with a prompt."),
    "chat": ("corral._cli.chat", "Chat with an agent or a model."),
    "acp": ("corral._cli.acp", "Be an agent for editors: the Agent Client Protocol."),
    "agents": ("corral._cli.agents", "List, install, inspect and test agents."),
    "models": ("corral._cli.models", "List vendors and models, their limits and prices."),
    "pipeline": (
        "corral._cli.pipeline",
        "Run pipelines: graphs of agents, commands and people.",
    ),
    "workflow": ("corral._cli.workflow", "Run workflows: durable programs in Python."),
    "compare": ("corral._cli.compare", "Let several agents do the same tasks; compare them."),
    "review": ("corral._cli.review", "Let agents review a diff."),
    "outputs": ("corral._cli.outputs", "Check and apply what a run without rights wants."),
    "verify": ("corral._cli.verify", "Repeat the receipt of a run."),
    "batch": ("corral._cli.batch", "Run one prompt for many tasks."),
    "merge": ("corral._cli.merge", "Merge finished branches behind a gate."),
    "merges": ("corral._cli.merge:merges", "Change merge queues."),
    "worker": ("corral._cli.worker", "Run a worker for pipelines and batches."),
    "sessions": ("corral._cli.sessions", "Stop named sessions."),
    "runs": ("corral._cli.runs", "List, show, answer, continue, export and delete runs."),
    "serve": ("corral._cli.serve", "Serve an HTTP API with which services run agents."),
    "view": ("corral._cli.view", "Open a page that shows stored and running sessions."),
    "mcp": ("corral._cli.mcp", "Serve agents and pipelines as tools for other agents (MCP)."),
    "skill": ("corral._cli.skill", "Teach other agents to use corral: show or install its skill."),
    "config": ("corral._cli.config", "Show and check the configuration."),
    "docs": ("corral._cli.docs", "Show or search the documentation of this version."),
    "completion": ("corral._cli.completion", "Print the completion script for a shell."),
    "fake": ("corral._cli.fake", "Scripted models and recorded programs, for tests."),
}
SECTIONS = {
    "Start work": (
        *("run", "chat", "review", "compare", "batch", "pipeline", "workflow", "merge", "worker"),
    ),
    "Look at runs": (*("runs", "view", "sessions", "merges", "verify", "outputs"),),
    "Agents and models": ("agents", "models", "config", "skill"),
    "Serve other programs": ("serve", "mcp", "acp"),
    "Try and test": ("demo", "fake", "docs", "completion"),
}
"""The commands in the groups of ``--help``."""


def _show_version(context: click.Context, _option: click.Parameter, is_given: bool) -> None:
    """Of a checkout: the version that a wheel of it would have."""
    if not is_given or context.resilient_parsing:
        return
    from pathlib import Path

    from corral._system import fs

    version = __version__
    tool = Path(__file__).parents[3] / "tools" / "build_version.py"
    if version.endswith(".dev0") and fs.is_file(tool):
        import runpy

        version = runpy.run_path(str(tool))["find_version"]()
    echo(f"corral {version}")
    context.exit()


FIRST_STEPS = """\b
First steps:
  corral demo                            a real agent; no key, no cost
  corral agents doctor                   what your own runs need
  corral run "What does this project do?"
  corral docs getting-started            the tutorial"""


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=FIRST_STEPS
)
@click.option(
    "-V", "--version", help="Show the version and exit.",
    is_flag=True, expose_value=False, is_eager=True, callback=_show_version,
)  # fmt: skip
@plain_option(
    "--config", "Read this corral.toml and trust it.", type=click.Path(exists=True, dir_okay=False)
)
@VERBOSE
def command(config: str | None) -> None:
    """Run coding agents through one interface: typed events, an enforced policy, one
    result."""
    if config is not None:
        os.environ["CORRAL_CONFIG"] = config
    if os.environ.get("CORRAL_LOG"):
        from corral._system import logs

        logs.follow_environment()


command.table = COMMANDS
command.sections = SECTIONS


def main() -> None:
    """The entry point. A known error is printed as a message and sets the exit code."""
    # A short-lived program: collecting garbage while loading, and once more at the end,
    # would cost more than all the work in between.
    gc.disable()
    _prepare_streams()
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        # Started with stdout closed: the answer would be lost after it was paid for.
        sys.stderr.write("corral: stdout is closed\n")
        sys.exit(1)
    if instruction := os.environ.get("_CORRAL_COMPLETE"):
        from corral._cli.completion import answer

        sys.exit(answer(command, instruction))
    try:
        # Not command.main(): it reports a closed pipe as exit code 1, not 141.
        with command.make_context("corral", sys.argv[1:]) as context:
            code = command.invoke(context)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.ClickException as error:
        echo(report(error), err=True)
        code = 2
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        code = _discard_stdout()
    except Exception as error:
        code = report_error(error)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _discard_stdout()
    except OSError as error:
        _discard_stdout()
        error.filename = OUTPUT
        code = report_error(error)
    gc.freeze()
    sys.exit(code if isinstance(code, int) else 0)


def _prepare_streams() -> None:
    """Replace closed streams and encode what a stream cannot represent, so that no output error
    loses the result of a paid run."""
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdin = open(os.devnull)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    clean_stderr()

    def show_warning(message: Warning | str, *_: object, **__: object) -> None:
        echo(f"corral: {message}", err=True)

    warnings.showwarning = show_warning


def report_error(error: Exception) -> int:
    """Print an error that ends the command; returns the exit code."""
    from corral._system.threads import is_thread_limit, no_thread_error
    from corral.errors import CorralError, lacks_descriptors, no_descriptor_error

    if isinstance(error, OSError):  # a full disk behind stdout, say
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        echo(f"corral: {where}{error.strerror or error}", err=True)
        return 1
    if is_thread_limit(error):
        error = no_thread_error(error)
    elif lacks_descriptors(error):
        error = no_descriptor_error(error)
    if not isinstance(error, CorralError):
        print_traceback(error)
        return 1
    from corral._cli.options import as_flags
    from corral._docs import error_pages

    error.message, error.hint = as_flags(error.message), as_flags(error.hint or "") or None
    echo(error_pages.report(error), err=True)
    return error.cli_exit


def _discard_stdout() -> int:
    """The reader has closed stdout. Redirect it, or Python reports an error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


SIMILAR = 0.7
"""How similar an option must be to be suggested, from 0 to 1."""
INSTEAD = {
    "corral help": "corral --help, or corral COMMAND --help",
    "corral record": "corral fake record",
    "corral install": "corral agents install NAME",
    "corral doctor": "corral agents doctor",
    "corral login": "corral agents doctor (it says what is missing to sign in)",
    "corral auth": "corral agents doctor (it says what is missing to sign in)",
    "corral init": "corral demo (nothing has to be set up)",
    "corral version": "corral --version",
    "corral update": "corral agents install NAME (for an agent)",
    "corral upgrade": "corral agents install NAME (for an agent)",
    "corral ls": "corral runs list",
    "corral list": "corral runs list",
    "corral history": "corral runs list",
    "corral status": "corral runs list",
    "corral ps": "corral runs list",
    "corral logs": "corral runs show last",
    "corral log": "corral runs show last",
    "corral show": "corral runs show last",
    "corral resume": "corral runs resume last",
    "corral continue": "corral runs resume last",
    "corral fork": "corral runs fork last",
    "corral answer": "corral runs answer last --allow",
    "corral stop": "corral sessions stop NAME",
    "corral lint": "corral pipeline lint FILE",
    "corral ask": "corral run PROMPT",
    "corral prompt": "corral run PROMPT",
    "corral exec": "corral run PROMPT",
    "corral config set": "it to the file that corral config path prints",
    "corral config get": "corral config show",
    "corral config list": "corral config show",
    "corral config edit": "to the file that corral config path prints",
    "corral config init": "to the file that corral config path prints",
    "corral agents add": "[agents.NAME] with a command in corral.toml",
    "corral agents update": "corral agents install NAME",
    "corral agents upgrade": "corral agents install NAME",
    "corral agents run": "corral run --agent NAME PROMPT",
    "corral agents test": "corral agents doctor NAME",
    "corral sessions resume": "corral runs resume ID PROMPT",
    "corral sessions continue": "corral runs resume ID PROMPT",
    "corral sessions list": "corral runs list --kind session",
    "corral sessions show": "corral runs show ID",
    "corral sessions delete": "corral runs delete ID",
    "corral usage": "corral runs usage",
    "corral export": "corral runs export ID",
    "corral watch": "corral runs watch ID",
    "corral replay": "corral runs replay ID",
    "corral prune": "corral runs prune --older-than 30d",
    "corral sessions rm": "corral runs delete ID",
    "corral sessions remove": "corral runs delete ID",
    "corral sessions logs": "corral runs show ID",
    "corral sessions export": "corral runs export ID",
    "corral sessions cancel": "corral runs cancel ID",
    "corral sessions answer": "corral runs answer ID --allow",
    "corral sessions budget": "corral runs budget ID +1.00",
    "corral pipeline answer": "corral runs answer RUN CHOICE",
    "corral pipeline cancel": "corral runs cancel RUN",
    "corral pipeline resume": "corral runs resume RUN",
    "corral pipeline fork": "corral runs fork RUN --from NODE",
    "corral workflow resume": "corral runs resume RUN",
    "corral pipeline start": "corral pipeline run FILE",
    "corral pipeline list": "corral runs list --kind pipeline",
    "corral pipeline runs": "corral runs list --kind pipeline",
    "corral pipeline show": "corral runs show RUN",
    "corral pipeline validate": "corral pipeline lint FILE",
    "corral pipeline check": "corral pipeline lint FILE",
    "corral pipeline render": "corral pipeline graph FILE",
    "corral pipeline status": "corral runs show RUN",
    "corral workflow start": "corral workflow run FILE",
    "corral workflow list": "corral runs list --kind workflow",
    "corral workflow runs": "corral runs list --kind workflow",
    "corral workflow show": "corral runs show RUN",
    "corral workflow status": "corral runs show RUN",
    "corral batches": "corral runs list --kind batch",
    "-p": 'corral run "PROMPT"',
    "--prompt": 'corral run "PROMPT"',
    "--print": 'corral run --quiet "PROMPT"',
    "-c": "--resume last",
    "--continue": "--resume last",
    "--last": "--resume last",
    "--debug": "-vv",
    "-o": "--json, --result, or > FILE",
    "--format": "--json or --result",
    "--output-format": "--json or --result",
    "--stream": "--json",
    "--dangerously-skip-permissions": "--approve all",
    "--yolo": "--approve all",
    "--full-auto": "--approve edits",
    "--auto": "--approve edits",
    "--permission-mode": "--approve",
    "--api-key": "the variable of the vendor: corral models list",
    "--provider": "-m VENDOR:MODEL",
    "--budget": "--max-cost USD",
    "--max-budget-usd": "--max-cost USD",
    "--system": "--system-prompt",
    "--worktree": "corral batch --worktree",
    "-j": "--concurrency N",
    "--parallel": "--concurrency N",
    "--workers": "--concurrency N",
}
"""Words of other programs -> what to write here: commands by their path, and options."""

EXTRA = {
    "corral chat": "A chat asks for prompts; for one prompt: corral run PROMPT.",
    "corral config show": "For one agent: corral config show --agent NAME.",
    "corral docs": 'To search: corral docs --search "WORDS".',
    "corral models list": "For one vendor: corral models list --provider NAME.",
}
"""What to do about an argument too many, by command."""


def report(error: click.ClickException) -> str:
    """The text to print for an error of click, like every other error: one line, and what to do.
    For a group without a command, its help."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    from difflib import get_close_matches

    ctx = error.ctx if isinstance(error, click.UsageError) else None
    near: list[str] = []
    hints: list[str] = []
    instead = ""
    if isinstance(error, click.NoSuchOption):
        message = error.message  # without click's suggestion, which is added here
        near = get_close_matches(error.option_name, error.possibilities or (), 1, SIMILAR)
        instead = INSTEAD.get(error.option_name, "")
    elif ctx is not None and (unknown := re.match(r"No such command '(.*?)'", error.message)):
        name = unknown[1]
        message = f"no command is called {name!r}"
        instead = INSTEAD.get(f"{ctx.command_path} {name}", "")
        if isinstance(ctx.command, click.Group):
            known = ctx.command.list_commands(ctx)
            near = [repr(each) for each in get_close_matches(name, known, 1)]
        if sys.argv[1:2] == [name]:
            hints = [f'For a prompt: corral run "{" ".join(sys.argv[1:])}".']
        elif ctx.command.name == "pipeline" and os.path.exists(name):
            instead = f"corral pipeline run {name}"
    else:
        message = error.format_message().replace("is not a valid float", "is not a number")
        kind = error.param.type if isinstance(error, click.BadParameter) and error.param else None
        if isinstance(kind, click.Choice):
            value = error.message.partition("'")[2].partition("'")[0]
            near = get_close_matches(value, [str(choice) for choice in kind.choices], 1)
    hints = [f"Did you mean {near[0]}?"] if near else hints
    hints = [f"Write {instead}."] if instead else hints
    if ctx is not None and "unexpected extra argument" in error.message:
        hints = _extra_argument(ctx) or hints
    if ctx is not None:
        hints.append(f"See: {ctx.command_path} --help")
    message = " ".join(message.split())
    lines = [f"corral: {message[:1].lower()}{message[1:].removesuffix('.')}"]
    return "\n".join([*lines, *([f"  {' '.join(hints)}"] if hints else [])])


def _extra_argument(ctx: click.Context) -> list[str]:
    """What to do about a second argument of a command that takes one prompt, or none."""
    from corral._agents import registry
    from corral.errors import CorralError

    if instead := EXTRA.get(ctx.command_path):
        return [instead]
    if all(parameter.name != "prompt" for parameter in ctx.command.params):
        return []
    first = str(ctx.params.get("prompt", ""))
    try:
        names_agent = ctx.command.name == "run" and " " not in first and registry.find(first)
    except CorralError:
        names_agent = None
    if names_agent:
        return [f"The agent is an option: corral run --agent {first} PROMPT."]
    return ["Write the prompt in quotes."]
