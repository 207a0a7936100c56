"""``corral acp``: an agent for editors and other clients of the Agent Client Protocol."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Unpack

import click

from corral._cli.command_types import SectionedCommand, enable_gc, examples
from corral._cli.options import FAKE, choose_agent, read_options
from corral._cli.served_options import CallerFlags, one_agent_options, read_agent_allowance
from corral._cli.ui.terminal import echo

if TYPE_CHECKING:
    from corral._metering.budget import Budget
    from corral._serving.allowance import Allowance


@click.command(
    "acp",
    cls=SectionedCommand,
    epilog=examples("corral acp --agent claude", "corral acp --approve reads --sandbox require"),
)
@one_agent_options()
@FAKE
def command(agent: str | None, **flags: Unpack[CallerFlags]) -> int:
    """Be an agent for an editor: the Agent Client Protocol on stdin and stdout.

    An editor starts this command. It gets corral's own agent on any model, or
    --agent NAME behind corral's policy, sandbox and limits. --approve is the most
    that the client may choose; limits such as --max-cost are for all its
    sessions together. `corral docs acp` has the settings of editors.
    """
    if sys.stdin.isatty():
        echo(
            "corral: stdin is a terminal; an editor starts this command (corral docs acp)", err=True
        )
    from corral._metering.budget import Budget
    from corral._system import threads

    options = read_options(flags)
    chosen = choose_agent(agent, options)
    allowance, run = read_agent_allowance(chosen, flags, options, "corral acp")
    limits = allowance.limits
    budget = Budget(**limits.as_dict(), on_budget=run.on_budget) if limits.exist else None
    enable_gc()
    return threads.run_event_loop(_serve(chosen, allowance, budget))


async def _serve(agent: str, allowance: Allowance, budget: Budget | None) -> int:
    from corral._cli.ui.signals import signals
    from corral._serving.acp.service import AcpService
    from corral._system.standard_streams import claimed

    with claimed() as streams:
        service = AcpService(agent, allowance, streams, budget)
        with signals(service.stop):
            await service.serve()
    return 0
