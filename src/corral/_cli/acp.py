"""``corral acp``: an agent for editors and other clients of the Agent Client Protocol."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Unpack

import click

from corral._cli.command_types import SectionedCommand, enable_gc, option
from corral._cli.options import (
    EVERYWHERE,
    FAKE,
    PolicyFlags,
    agent_option,
    choose_agent,
    count_option,
    given_options,
    limit_texts,
    policy_options,
    read_options,
    run_options,
)
from corral._cli.ui.terminal import echo
from corral._core.spending import LIMITS

if TYPE_CHECKING:
    from corral.run_kwargs import RunKwargs

    class AcpFlags(PolicyFlags, RunKwargs):
        """The options of the command."""

        folders: tuple[str, ...]
        depth: int


@click.command("acp", cls=SectionedCommand)
@agent_option
@policy_options
@run_options(tuple(name for name in EVERYWHERE if name != "cwd"), texts=limit_texts("all sessions"))
@option(
    "Callers",
    "--folder folders DIR...",
    "Sessions work in this folder or below.  [default: any folder]",
    type=click.Path(),
)
@count_option("--depth", "How many agents may have called each other.", 1)
@FAKE
def command(agent: str | None, **flags: Unpack[AcpFlags]) -> int:
    """Be an agent for an editor: the Agent Client Protocol on stdin and stdout.

    An editor starts this command. It gets corral's own agent on any model, or
    --agent NAME behind corral's policy, sandbox and limits. --approve is the most
    that the client may choose; limits such as --max-cost are for all its
    sessions together. docs/acp.md has the settings of editors.
    """
    if sys.stdin.isatty():
        echo("corral: stdin is a terminal; an editor starts this command (docs/acp.md)", err=True)
    from corral._system import threads

    options = read_options(flags)
    chosen = choose_agent(agent, options)
    enable_gc()
    return threads.run_event_loop(_serve(chosen, options, flags))


async def _serve(agent: str, options: RunKwargs, flags: AcpFlags) -> int:
    from corral._cli.ui.signals import signals
    from corral._core.spending import BudgetLimits
    from corral._metering.budget import Budget
    from corral._serving.acp.service import AcpService
    from corral._serving.allowance import Allowance
    from corral._system import config
    from corral._system.standard_streams import claimed
    from corral.options import RunOptions

    name = config.find_agent(agent).name
    run = RunOptions.build(name, options, config.load(name), "corral.toml")
    limits = BudgetLimits(
        max_cost=run.max_cost, max_total_tokens=run.max_total_tokens, max_calls=run.max_calls
    )
    shared = ("policy", "timeout", *LIMITS)  # the allowance has them
    allowance = Allowance(
        set_by="the one who started corral acp",
        sources={"policy": _source(flags), "folders": "--folder"},
        agents=(agent,),
        policy=run.policy,
        folders=tuple(map(os.path.abspath, flags["folders"])) or ("/",),
        timeout=run.timeout,
        limits=limits,
        depth=flags["depth"],
        label=run.label or "acp",
        options=given_options({k: v for k, v in options.items() if k not in shared}),
    )
    budget = Budget(**limits.as_dict(), on_budget=run.on_budget) if limits.exist else None
    with claimed() as streams:
        service = AcpService(agent, allowance, streams, budget)
        with signals(service.stop):
            await service.serve()
    return 0


def _source(flags: AcpFlags) -> str:
    """How the policy was set."""
    if flags["yolo"] or flags["approve"]:
        return f"--approve {flags['approve'] or 'all'}"
    return "--policy" if flags["policy_file"] else "the default"
