"""An attempt at a node, where it belongs: in this process, or in a host that outlives it."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral.durable.agent_host import client
from corral.durable.payloads import AttemptResult, RunConfig, RunInput
from corral.durable.worker.executor import Executor
from corral.durable.workspace import artifacts, run_worktree
from corral.errors import ConfigError, StorageFailed
from corral.events import Done
from corral.pipelines import events, node_kinds
from corral.pipelines.execution import attempt as execution_attempt
from corral.pipelines.execution import handlers
from corral.pipelines.execution.resources import NodeResources
from corral.pipelines.execution.run_dir import EVENTS, RunDir
from corral.pipelines.graph import Node
from corral.pipelines.scheduler import retry
from corral.pipelines.scheduler.commands import RunNode
from corral.pipelines.scheduler.outcome import Outcome, failed


def judge(begun: RunInput, visit: RunNode, outcome: Outcome, attempt: int) -> AttemptResult:
    """What follows from this attempt, by the rule for retries."""
    node = begun.graph.nodes[visit.node]
    match retry.after(begun.graph, node, outcome, attempt, f"{begun.run_id}/{visit.id}"):
        case retry.Pause(seconds=seconds):
            return AttemptResult(outcome=outcome, pause=seconds)
        case final:
            return AttemptResult(outcome=final)


async def run_attempt(begun: RunInput, visit: RunNode, attempt: int, here: Executor) -> Outcome:
    """The attempt's own outcome. Only a cancellation passes."""
    node = begun.graph.nodes[visit.node]
    if is_detached(begun.setting, node):
        return await client.attempt(begun, visit, attempt, lambda: here.closing)
    return await run_in_process(begun, visit, attempt, await here.desks.find(begun.setting))


async def run_in_process(
    begun: RunInput, visit: RunNode, attempt: int, desk: NodeResources
) -> Outcome:
    """In this process, by its own loop."""
    setting = run_worktree.local_config(begun.setting)
    folder = RunDir(setting.folder)
    place = folder.stage(visit.id, visit.node)
    as_is = begin(place, begun.graph.nodes[visit.node], visit, attempt)
    if isinstance(as_is, Outcome):
        return as_is
    node, visit = as_is
    attempt_at = handlers.NodeContext(
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
    async with run_worktree.used(setting):
        outcome = await execution_attempt.bounded(
            execution_attempt.attempt(attempt_at), node.id, begun.run_id
        )
        outcome = await run_worktree.save(setting, outcome, visit.id)
    if setting.artefacts and setting.folder != begun.setting.folder:
        # Others, who end the run, do not have this machine's folder.
        outcome = await _left(setting, begun.run_id, outcome, began)
    return outcome


async def _left(setting: RunConfig, run_id: str, outcome: Outcome, since: float) -> Outcome:
    put = partial(artifacts.put, RunDir(setting.folder).artifacts, setting.artefacts, run_id)
    try:
        await asyncio.to_thread(put, since=since)
    except (StorageFailed, ConfigError) as error:
        notes = f"{outcome.notes}; {error.message}".removeprefix("; ")
        return replace(outcome, notes=notes)
    return outcome


def is_detached(setting: RunConfig, node: Node) -> bool:
    """Whether the node's attempts run in a host. ``detached`` of the node wins."""
    said = node.attrs.get("detached")
    if said is not None and said != "":
        return said in (True, "true")
    if setting.simulate or not setting.detached or not node_kinds.find(node.kind).detached:
        return False
    # A host would not find what was registered by hand here.
    return handlers.is_ours(handlers.for_node(node))


POLICIES = ("rerun", "fail", "resume")
GO_ON = "You were interrupted while you worked on this. Go on where you were:\n\n"
_TAIL = 64 * 1024
"""Bytes of a diary in which its last event is."""


def begin(folder: Path, node: Node, visit: RunNode, attempt: int) -> tuple[Node, RunNode] | Outcome:
    """The node and the visit as they are to be worked at, or at once what came of them. Notes
    in the visit's folder that it has begun. Raises ``OSError``."""
    policy = node.text("on_crash", "rerun")
    if policy not in POLICIES:
        said = f"on_crash={policy}: write {', '.join(POLICIES)}"
        return failed(said, retryable=False)
    if policy == "rerun":
        return node, visit
    note = folder / f".begun.{attempt}"
    was_begun = note.exists()
    note.touch()
    if policy == "fail":
        if was_begun:
            return failed("it was cut short by a crash while it ran", retryable=False)
        return node, visit
    thread = visit.thread or visit.id
    visit = replace(visit, fidelity="full", thread=thread)
    session = _session(folder / EVENTS) if was_begun else None
    if session is None:
        return node, visit
    agent, token = session
    kept = {f"internal.thread.{thread}": {"agent": agent, "resume_token": token}}
    prompt = GO_ON + (node.text("prompt") or node.label)
    return (
        replace(node, attrs={**node.attrs, "prompt": prompt}),
        replace(visit, context={**visit.context, **kept}),
    )


def _session(diary: Path) -> tuple[str, str] | None:
    """The agent and its session that were cut short, by the last thing that was said."""
    try:
        with diary.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            event = events.from_json(line)
        except msgspec.MsgspecError:
            continue  # half a line, or the end of one
        session = event.run_id.rpartition(".")[0]
        return None if isinstance(event, Done) or not session else (event.agent, session)
    return None
