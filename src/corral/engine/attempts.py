"""An attempt at a node, where it belongs: in this process, or in a host that outlives it."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from corral.engine import artefacts, crashes, host, workspaces
from corral.engine.executor import Executor
from corral.engine.journal import Begun, Setting, Verdict
from corral.errors import ConfigError, StorageFailed
from corral.pipelines import attempts, calling, handlers, work
from corral.pipelines.desk import Desk
from corral.pipelines.folder import RunFolder
from corral.pipelines.graph import Node
from corral.pipelines.orders import Visit
from corral.pipelines.outcome import Outcome

IN_A_HOST = {"codergen", "tool", "prompt", "for_each", "parallel.fan_in", "batch.item"}
"""Types that spend money or change the world: worth keeping alive when the worker dies. The
rest costs less than the way to a host."""


def judge(begun: Begun, visit: Visit, outcome: Outcome, attempt: int) -> Verdict:
    """What follows from this attempt, by the rule for retries."""
    node = begun.graph.nodes[visit.node]
    match attempts.after(begun.graph, node, outcome, attempt, f"{begun.run_id}/{visit.id}"):
        case attempts.Pause(seconds=seconds):
            return Verdict(outcome=outcome, pause=seconds)
        case final:
            return Verdict(outcome=final)


async def make(begun: Begun, visit: Visit, attempt: int, here: Executor) -> Outcome:
    """The attempt's own outcome. Only a cancellation passes."""
    node = begun.graph.nodes[visit.node]
    if is_detached(begun.setting, node):
        return await host.attempt(begun, visit, attempt, lambda: here.closing)
    return await tied(begun, visit, attempt, await here.desks.find(begun.setting))


async def tied(begun: Begun, visit: Visit, attempt: int, desk: Desk) -> Outcome:
    """In this process, by its own loop."""
    setting = workspaces.here(begun.setting)
    folder = RunFolder(setting.folder)
    place = folder.stage(visit.id, visit.node)
    as_is = crashes.begin(place, begun.graph.nodes[visit.node], visit, attempt)
    if isinstance(as_is, Outcome):
        return as_is
    node, visit = as_is
    attempt_at = handlers.Work(
        run_id=begun.run_id,
        graph=begun.graph,
        node=node,
        visit=visit,
        attempt=attempt,
        folder=place,
        run_folder=folder.path,
        workspace=Path(setting.workspace),
        desk=desk,
    )
    began = time.time()
    async with workspaces.used(setting):
        outcome = await calling.bounded(work.attempt(attempt_at), node.id, begun.run_id)
        outcome = await workspaces.kept(setting, outcome, visit.id)
    if setting.artefacts and setting.folder != begun.setting.folder:
        # Others, who end the run, do not have this machine's folder.
        outcome = await _left(setting, begun.run_id, outcome, began)
    return outcome


async def _left(setting: Setting, run_id: str, outcome: Outcome, since: float) -> Outcome:
    put = partial(artefacts.put, RunFolder(setting.folder).artifacts, setting.artefacts, run_id)
    try:
        await asyncio.to_thread(put, since=since)
    except (StorageFailed, ConfigError) as error:
        notes = f"{outcome.notes}; {error.message}".removeprefix("; ")
        return replace(outcome, notes=notes)
    return outcome


def is_detached(setting: Setting, node: Node) -> bool:
    """Whether the node's attempts run in a host. ``detached`` of the node wins."""
    said = node.attrs.get("detached")
    if said is not None and said != "":
        return said in (True, "true")
    if setting.simulate or not setting.detached or node.kind not in IN_A_HOST:
        return False
    # A host would not find what was registered by hand here.
    return handlers.is_ours(handlers.for_node(node))
