"""One attempt at a node: in this process, or in an agent host that outlives it."""

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


def apply_retry_rule(
    run_input: RunInput, visit: RunNode, outcome: Outcome, attempt: int
) -> AttemptResult:
    """Apply the retry rule to the outcome of an attempt."""
    node = run_input.graph.nodes[visit.node]
    match retry.after(run_input.graph, node, outcome, attempt, f"{run_input.run_id}/{visit.id}"):
        case retry.Pause(seconds=seconds):
            return AttemptResult(outcome=outcome, pause=seconds)
        case final:
            return AttemptResult(outcome=final)


async def run_attempt(run_input: RunInput, visit: RunNode, attempt: int, here: Executor) -> Outcome:
    """The outcome of the attempt. Raises nothing but a cancellation."""
    node = run_input.graph.nodes[visit.node]
    if is_detached(run_input.config, node):
        return await client.attempt(run_input, visit, attempt, lambda: here.closing)
    return await run_in_process(
        run_input, visit, attempt, await here.resource_cache.find(run_input.config)
    )


async def run_in_process(
    run_input: RunInput, visit: RunNode, attempt: int, resources: NodeResources
) -> Outcome:
    """Run the attempt in this process's event loop."""
    config = run_worktree.local_config(run_input.config)
    folder = RunDir(config.folder)
    visit_dir = folder.make_visit_dir(visit.id, visit.node)
    decision = apply_crash_rule(visit_dir, run_input.graph.nodes[visit.node], visit, attempt)
    if isinstance(decision, Outcome):
        return decision
    node, visit = decision
    context = handlers.NodeContext(
        run_id=run_input.run_id,
        graph=run_input.graph,
        node=node,
        visit=visit,
        attempt=attempt,
        folder=visit_dir,
        run_folder=folder.path,
        workspace=Path(config.workspace),
        resources=resources,
    )
    began = time.time()
    async with run_worktree.used(config):
        outcome = await execution_attempt.bounded(
            execution_attempt.attempt(context), node.id, run_input.run_id
        )
        outcome = await run_worktree.save(config, outcome, visit.id)
    if config.artifacts_url and config.folder != run_input.config.folder:
        # The machine that ends the run may be another one, without this directory.
        outcome = await _upload_artifacts(config, run_input.run_id, outcome, began)
    return outcome


async def _upload_artifacts(
    config: RunConfig, run_id: str, outcome: Outcome, since: float
) -> Outcome:
    upload = partial(
        artifacts.upload, RunDir(config.folder).artifacts, config.artifacts_url, run_id
    )
    try:
        await asyncio.to_thread(upload, since=since)
    except (StorageFailed, ConfigError) as error:
        notes = f"{outcome.notes}; {error.message}".removeprefix("; ")
        return replace(outcome, notes=notes)
    return outcome


def is_detached(config: RunConfig, node: Node) -> bool:
    """Whether the node's attempts run in an agent host. The node's ``detached`` wins."""
    given = node.attrs.get("detached")
    if given is not None and given != "":
        return given in (True, "true")
    if config.simulate or not config.detached or not node_kinds.find(node.kind).detached:
        return False
    # A host does not know node kinds that this program registered itself.
    return handlers.is_ours(handlers.for_node(node))


POLICIES = ("rerun", "fail", "resume")
GO_ON = "You were interrupted while you worked on this. Continue where you were:\n\n"
_TAIL = 64 * 1024
"""Bytes at the end of an event file that contain its last event."""


def apply_crash_rule(
    folder: Path, node: Node, visit: RunNode, attempt: int
) -> tuple[Node, RunNode] | Outcome:
    """Apply ``on_crash``: the node and the visit to run, or the outcome if it must not run again.
    Records the start in the visit's directory. Raises ``OSError``."""
    policy = node.text("on_crash", "rerun")
    if policy not in POLICIES:
        given = f"on_crash={policy}: write {', '.join(POLICIES)}"
        return failed(given, retryable=False)
    if policy == "rerun":
        return node, visit
    marker = folder / f".begun.{attempt}"
    was_started = marker.exists()
    marker.touch()
    if policy == "fail":
        if was_started:
            return failed("a crash interrupted it while it ran", retryable=False)
        return node, visit
    thread = visit.thread or visit.id
    visit = replace(visit, fidelity="full", thread=thread)
    session = _interrupted_session(folder / EVENTS) if was_started else None
    if session is None:
        return node, visit
    agent, token = session
    session_update = {f"internal.thread.{thread}": {"agent": agent, "resume_token": token}}
    prompt = GO_ON + (node.text("prompt") or node.label)
    return (
        replace(node, attrs={**node.attrs, "prompt": prompt}),
        replace(visit, context={**visit.context, **session_update}),
    )


def _interrupted_session(event_file: Path) -> tuple[str, str] | None:
    """The agent and the session that were interrupted, by the last recorded event."""
    try:
        with event_file.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            event = events.from_json(line)
        except msgspec.MsgspecError:
            continue  # an incomplete line
        session = event.run_id.rpartition(".")[0]
        return None if isinstance(event, Done) or not session else (event.agent, session)
    return None
