"""The session that made a branch is asked to repair it, as a part of the run of a node.

It keeps the policy and the limits of its own run, unless the node has others; its model calls are
within the budget of this run, and are counted for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from corral._merging import owners
from corral._merging.owners import BranchOwner
from corral._pipelines.execution.agent_call import recorded_usage
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.node_options import options_of
from corral._system.threads import in_thread
from corral.result import Result
from corral.run_kwargs import RunKwargs


async def ask_owner(
    work: NodeContext,
    owner: BranchOwner,
    prompt: str,
    folder: Path,
    *,
    own: RunKwargs | None = None,
) -> Result:
    """Give the prompt to the session, in this worktree. ``own``: options that win over all others.
    Raises ``CorralError`` if it cannot be started."""
    given, _ = await in_thread(options_of, work, owner.agent)
    # ``timeout`` of the node is that of all its work.
    attributes = {*work.node.attrs} - {"timeout"}
    options = {
        name: value
        for name, value in given.items()
        if name not in (*owners.LIMITS, "cwd") or name in attributes
    }
    options |= {"env": {**work.resources.env}, **(own or {})}
    with recorded_usage(work, owner.agent, is_stored=bool(given.get("record"))) as emit:
        return await owners.ask(
            owner,
            prompt,
            folder,
            cast("RunKwargs", options),
            budget=work.budget,
            on_event=emit,
        )
