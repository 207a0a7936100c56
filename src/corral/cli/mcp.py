"""``corral mcp``: agents, models and pipelines as tools for other agents."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from corral.cli.command_types import SectionedCommand, enable_gc, option
from corral.cli.options import (
    EVERYWHERE,
    FAKE,
    PolicyFlags,
    completing,
    count_option,
    limit_texts,
    policy_options,
    read_options,
    run_options,
)
from corral.cli.ui.terminal import echo
from corral.core.spending import LIMITS
from corral.errors import ConfigError
from corral.run_kwargs import RunKwargs

if TYPE_CHECKING:
    from corral.serving.allowance import Allowance, CallerAnswers

OF_CALLERS = ("cwd", "model", "expand_files", "on_budget")
"""Options of runs that the command does not have, or not in the same way."""
WHO = "the one who started corral mcp"
TOKEN = "CORRAL_MCP_TOKEN"  # noqa: S105 (the name of a variable)
GRACE = 2.0
"""Seconds for an agent to end: clients kill a server that takes much longer."""


class ServedFlags(PolicyFlags, RunKwargs):
    """What a caller may do."""

    agents: tuple[str, ...]
    models: tuple[str, ...]
    folders: tuple[str, ...]
    pipelines: tuple[str, ...]
    concurrency: int
    depth: int
    answers: CallerAnswers
    keep_runs: bool


class McpFlags(ServedFlags):
    """The options of the command."""

    http: bool
    port: int
    listen: str


@click.command("mcp", cls=SectionedCommand)
@option(
    "Agent",
    "-a --agent agents NAME...",
    "An agent that callers may run; the first is the default.  [default: each that corral knows]",
    shell_complete=completing("agents"),
)
@option(
    "Agent",
    "-m --model models NAME...",
    "A model that callers may choose; the first is the default.  [default: any]",
    shell_complete=completing("models"),
)
@policy_options
@run_options(
    tuple(name for name in EVERYWHERE if name not in OF_CALLERS),
    texts=limit_texts("all runs"),
    defaults={"timeout": "10m", "label": "corral mcp"},
)
@option(
    "Callers",
    "--folder folders DIR...",
    "Runs work in this folder or below.  [default: the current folder]",
    type=click.Path(),
)
@option("Callers", "--pipeline pipelines FILE...", "A pipeline that callers may run.",
        type=click.Path())  # fmt: skip
@count_option("--concurrency", "How many runs at once.", 4)
@count_option("--depth", "How many agents may have called each other.", 1)
@option(
    "Callers",
    "--answers",
    "What callers may answer: the questions of agents, or also permission requests and gates.",
    type=click.Choice(("nothing", "questions", "all")),
    default="questions",
)
@option("Callers", "--keep-runs", "Runs go on when the caller goes away.")
@option("Server", "--http", f"Serve HTTP, with a token: {TOKEN}, or a new one.")
@option("Server", "--port", "Listen on this port.", default=0, show_default="a free one")
@option("Server", "--listen ADDRESS", "Listen on this address.", default="127.0.0.1")
@FAKE
def command(**flags: Unpack[McpFlags]) -> None:
    """Serve the Model Context Protocol: other agents run agents, models and pipelines as tools.

    A client starts this command and speaks with it on standard input and output. The options say
    what its callers may do. A caller can ask for less, never for more: without options, agents read
    the files below the current folder. docs/mcp-server.md has the settings of clients.
    """
    allowance = read_allowance(flags)
    enable_gc()
    if flags["http"]:
        _serve_http(allowance, flags)
        return
    if flags["port"] or flags["listen"] != "127.0.0.1":
        raise ConfigError("--port and --listen need --http")
    if allowance.keeps_runs:
        from corral.system.process.daemon import leave_session

        leave_session()
    _serve_streams(allowance)


def read_allowance(flags: ServedFlags) -> Allowance:
    """What the options permit. Raises ``ConfigError``."""
    from corral.core.spending import BudgetLimits
    from corral.policy import Policy
    from corral.serving.allowance import DEFAULT_TIMEOUT, Allowance
    from corral.system import config

    options = read_options(flags)
    for name in flags["agents"]:
        config.find_agent(name)
    policy, timeout = options.pop("policy", None), options.pop("timeout", DEFAULT_TIMEOUT)
    limits = BudgetLimits(
        max_cost=options.pop("max_cost", None),
        max_total_tokens=options.pop("max_total_tokens", None),
        max_calls=options.pop("max_calls", None),
    )
    label = options.pop("label", None) or "corral mcp"
    options.setdefault("grace", GRACE)
    pipelines: dict[str, str] = {}
    for file in flags["pipelines"]:
        name = Path(file).stem
        if name in pipelines:
            raise ConfigError(f"two pipelines are called {name}: {pipelines[name]} and {file}")
        pipelines[name] = str(Path(file).absolute())
    return Allowance(
        set_by=WHO,
        sources=_sources(flags),
        agents=flags["agents"],
        models=flags["models"],
        policy=policy if isinstance(policy, Policy) else Policy.read_only(),
        folders=flags["folders"],
        pipelines=pipelines,
        timeout=float(timeout),
        limits=limits,
        concurrency=flags["concurrency"],
        depth=flags["depth"],
        answers=flags["answers"],
        keeps_runs=flags["keep_runs"],
        label=label,
        options=options,
    )


def _sources(flags: ServedFlags) -> dict[str, str]:
    """Field of the allowance → the options that set it."""
    given = click.get_current_context().get_parameter_source
    named = {"agents": "--agent", "models": "--model", "folders": "--folder",
             "pipelines": "--pipeline", "timeout": "--timeout", "concurrency": "--concurrency",
             "depth": "--depth", "answers": "--answers", "keep_runs": "--keep-runs",
             **{name: f"--{name.replace('_', '-')}" for name in LIMITS}}  # fmt: skip
    default = click.core.ParameterSource.DEFAULT
    found = {name: flag for name, flag in named.items() if given(name) is not default}
    shown = [f"--approve {flags['approve']}"] if flags["approve"] else []
    shown += ["--yolo"] if flags["yolo"] else []
    shown += [f"--policy {flags['policy_file']}"] if flags["policy_file"] else []
    for name in ("allow_tool", "deny_tool", "allow_host"):
        shown += [f"--{name.replace('_', '-')}"] if flags[name] else []
    return {**found, **({"policy": " ".join(shown)} if shown else {})}


def _serve_streams(allowance: Allowance) -> None:
    from corral.cli.ui.signals import signals
    from corral.serving.caller_runs import CallerRuns
    from corral.serving.mcp.server import McpServer, serve_streams
    from corral.serving.mcp.tools import CallerTools
    from corral.system import standard_streams, threads

    async def serve() -> None:
        stop = asyncio.Event()
        with standard_streams.claimed() as streams, signals(stop.set):
            async with CallerRuns(allowance) as runs:
                await serve_streams(McpServer(CallerTools(runs)), streams, stop)
                # A client that closes the connection may have its runs kept; a signal ends them.
                ending = asyncio.create_task(runs.end())
                stopping = asyncio.create_task(stop.wait())
                await asyncio.wait([ending, stopping], return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                await runs.end(keeps=False)
                await ending

    threads.run_event_loop(serve())


def _serve_http(allowance: Allowance, flags: McpFlags) -> None:
    try:
        import uvicorn  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise ConfigError(
            "--http needs uvicorn", hint="Install it: pip install 'corral[view]'"
        ) from error
    from corral.cli.ui.signals import signals
    from corral.serving.caller_runs import CallerRuns
    from corral.serving.mcp.http_app import PATH, McpApp
    from corral.serving.mcp.server import McpServer
    from corral.serving.mcp.tools import CallerTools
    from corral.system import threads
    from corral.system.http import asgi_server
    from corral.system.randomness import new_secret

    token, is_new = os.environ.get(TOKEN), False
    if token is None:
        token, is_new = new_secret(), True
    elif len(token) < 16:
        raise ConfigError(f"{TOKEN} must have at least 16 characters")
    listener = asgi_server.bind(flags["listen"], flags["port"])
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host

    def ready() -> None:
        echo(f"http://{shown}:{port}{PATH}")
        echo(f"Authorization: Bearer {token if is_new else f'${TOKEN}'}")
        if host not in ("127.0.0.1", "::1"):
            echo(f"corral: {host} can be reached by other machines; the connection is not"
                 " encrypted", err=True)  # fmt: skip

    async def serve() -> None:
        stop = asyncio.Event()
        with signals(stop.set):
            async with CallerRuns(allowance) as runs:
                app = McpApp(McpServer(CallerTools(runs)), token)
                await asgi_server.serve(
                    app, listener, on_ready=ready, stop=stop, on_stop=app.cancel_all
                )
                await runs.end(keeps=False)

    threads.run_event_loop(serve())
