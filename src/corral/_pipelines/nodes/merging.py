"""``merge``: branches enter the merge queue of a branch, and are merged behind a gate.

Attributes: ``into``, ``gate`` (a command), ``branches``, ``rounds``, ``gate_timeout``,
``gate_sandbox``, ``gate_env``, and ``agent``, which is asked about branches that no session made.
``branches`` is a placeholder for a list, the name of a key that has one, or names and patterns
separated by commas. Without it, they are those that nodes with ``merge=false`` have kept.

If another process merges the queue, the node waits until its branches have left it. To do it again
after a crash is safe: what is merged already is no change. The sessions that are asked keep their
own policy and limits, unless the node has others, and are within the budget of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import msgspec

from corral._merging.api import ROUNDS, TIMEOUT, MergeOrder, MergeReport, run_order
from corral._merging.owners import BranchOwner, options_to_keep
from corral._pipelines.execution.branch_merge import KEPT
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.node_options import agent_of, number_of, options_of
from corral._pipelines.execution.owner_call import ask_owner
from corral._pipelines.graph import Node
from corral._pipelines.nodes.data import value_of
from corral._pipelines.scheduler.outcome import Outcome, failed
from corral._pipelines.templates import as_text, find
from corral._system.threads import in_thread
from corral.errors import ConfigError
from corral.run_kwargs import RunKwargs
from corral.values import Json, JsonObject, as_texts


async def merge(work: NodeContext) -> Outcome:
    """Success if all branches were merged. If some were, a partial success; if none was, a
    failure."""
    if work.resources.simulate:
        return Outcome(context_updates={"merge.merged": 0, "merge.failed": 0})
    node, names = work.node, branches_of(work)
    if not names:
        updates: JsonObject = {"merge.merged": 0, "merge.failed": 0, "merge.left": []}
        return Outcome(notes="nothing to merge", context_updates=updates)
    into = as_text(value_of(work, node.attrs["into"])).strip()
    return outcome_of(await merge_branches(work, names, into, [node.text("gate")]))


async def merge_branches(
    work: NodeContext,
    branches: Sequence[str],
    into: str,
    gates: Sequence[str],
    options: RunKwargs | None = None,
) -> MergeReport:
    """Merge branches in the way that the attributes of the node say. ``options`` are for the
    sessions that are asked; ``cwd`` is the folder of the repository. Raises ``CorralError``."""
    node, own = work.node, {**(options or {})}
    folder = work.workspace / str(own.pop("cwd", ""))
    order = MergeOrder(
        id=f"{work.run_id}/{work.visit.id}/{work.attempt}",
        branches=branches,
        into=into,
        gates=gates,
        rounds=number_of(node, "rounds", int) if "rounds" in node.attrs else ROUNDS,
        timeout=node.seconds("gate_timeout") or TIMEOUT,
        sandbox=node.text("gate_sandbox"),
        pass_env=work.resources.pass_env(work) + _words(node, "gate_env"),
        wait=True,
    )
    fallback = None
    if node.text("agent"):
        agent, model = agent_of(work)
        given, _ = await in_thread(options_of, work, agent)
        if model is not None:
            given["model"] = model
        fallback = BranchOwner(agent=agent, options=options_to_keep(given))
    ask = partial(ask_owner, work, own=cast("RunKwargs", own))
    return await run_order(folder, order, lambda _entry: None, ask=ask, fallback=fallback)


def branches_of(work: NodeContext) -> list[str]:
    """Raises ``ConfigError`` if ``branches`` is not a list of names."""
    value: Json = find(work.context, KEPT)
    if "branches" in work.node.attrs:
        value = value_of(work, work.node.attrs["branches"])
        if isinstance(value, str) and isinstance(found := find(work.context, value.strip()), list):
            value = found
    if isinstance(value, str):
        return [name for part in value.split(",") if (name := part.strip())]
    names = as_texts(value)
    if value is not None and (not isinstance(value, list) or len(names) != len(value)):
        raise ConfigError(
            f"{work.node.id}: branches must be a list of names, got: {as_text(value)[:100]}"
        )
    return [*names]


def outcome_of(report: MergeReport) -> Outcome:
    """The outcome of the node, with the counts and the reasons."""
    left = [entry.branch for entry in report.entries if entry.state != "merged"]
    summary = report.summary
    updates: JsonObject = {
        "merge.merged": report.merged,
        "merge.failed": len(left),
        "merge.left": [*left],
        "merge.tip": report.tip,
        "merge.pending": report.pending,
        "merge.summary": summary,
    }
    outcome = Outcome(notes=summary)
    if left and report.merged:
        outcome = Outcome(status="partial_success", notes=summary)
    elif left:
        outcome = failed(f"no branch was merged: {'; '.join(report.reasons)}", retryable=False)
    return msgspec.structs.replace(
        outcome, context_updates=updates, cost_usd=report.cost_usd or None
    )


def _words(node: Node, key: str) -> tuple[str, ...]:
    return tuple(node.text(key).replace(",", " ").split())
