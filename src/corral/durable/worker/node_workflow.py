"""The workflow ``corral.node``: one visit of a node with all its attempts, or a timer.

Theory of operation
-------------------
Who calls: an executor that takes the workflow from its queue. A run (``corral.run``) or a batch
enqueued it with a ``NodeInput``. There are three forms:

* a visit: attempts are made until one succeeds or the retry rule allows no more; the outcome is
  sent to the run as ``Ended``;
* a visit of no run (``alone``, a task of a batch): the outcome is the workflow's output;
* a timer: sleep, then send ``Expired`` or ``Woken`` to the run.

States of a visit: attempt n runs -> pause -> attempt n+1 ... -> outcome sent. Each attempt is a
recorded step with its own name (``fix#2``): one that has ended is never run again. The end
of a pause is recorded too, so a restart does not extend it.

Guarantees
* An attempt always has a result: every exception but a cancellation becomes a failed outcome, so
  that a bug fails its node and does not hang its run.
* A message is sent once: its key contains the visit, and only the first message with a key counts.

Crashes
* The worker dies during an attempt: the step has no result, so the next executor runs it again.
  If the node's agent runs in an agent host (``agent_host``), the running or finished job is found
  there; otherwise the attempt starts again, as the node's attribute ``on_crash`` says
  (``apply_crash_rule``).
* It dies ``RECOVERIES`` times: the node is likely what kills the workers. The library gives the
  workflow up, and the run notices (``run_workflow._find_lost``).
* The worker drains: an attempt that has not started waits for ever (``admitted``), and another
  executor takes the workflow.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from corral.durable.agent_host import client
from corral.durable.dbos import adapter
from corral.durable.payloads import (
    AttemptResult,
    NodeInput,
    Retrying,
    RunConfig,
    RunInput,
    pack,
    unpack,
)
from corral.durable.worker import executor
from corral.durable.worker.executor import Executor
from corral.durable.workspace import artifacts, run_worktree
from corral.errors import ConfigError, StorageFailed
from corral.events import Done
from corral.pipelines import events, node_kinds
from corral.pipelines.execution import attempt as execution_attempt
from corral.pipelines.execution import handlers
from corral.pipelines.execution.handlers import NodeResources
from corral.pipelines.execution.run_dir import EVENTS, RunDir
from corral.pipelines.graph import Node
from corral.pipelines.scheduler import retry
from corral.pipelines.scheduler.commands import Ended, Expired, RunNode, Woken
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.pipelines.scheduler.retry import with_earlier_cost
from corral.values import Json

if TYPE_CHECKING:
    from corral.sessions.budget import Budget

RECOVERIES = 20
"""Times that a visit is started again after its worker died."""

_CACHE = 64
_run_inputs: OrderedDict[str, RunInput] = OrderedDict()


def remember_run(run_input: RunInput) -> None:
    """Keep a run's input in memory: it never changes, and each node needs it."""
    _run_inputs[run_input.run_id] = run_input
    _run_inputs.move_to_end(run_input.run_id)
    while len(_run_inputs) > _CACHE:
        _run_inputs.popitem(last=False)


async def visit(payload: dict[str, Json]) -> Json:
    task = unpack(payload, NodeInput)
    if task.then is not None:
        await _wait(task.run_id, task.sleep, task.then, task.child)
    if task.visit is None:
        return None
    outcome = await _visit(task.run_id, task.visit, alone=task.alone)
    if task.alone:
        return pack(outcome)
    message = pack(Ended(id=task.visit.id, outcome=outcome))
    await adapter.send(task.run_id, message, key=f"ended {task.visit.id}")
    return None


async def batch(_payload: dict[str, Json]) -> Json:
    return None


async def _visit(run_id: str, visit: RunNode, *, alone: bool) -> Outcome:
    attempt, earlier = 1, None
    while True:
        step = partial(_attempt, run_id, visit, attempt)
        recorded = await adapter.step(f"{visit.node}#{attempt}", step, preemptible=True)
        result = unpack(recorded, AttemptResult)
        outcome = earlier = with_earlier_cost(result.outcome, earlier)
        if result.pause is None:
            return outcome
        retrying = Retrying(
            visit=visit.id,
            node=visit.node,
            attempt=attempt,
            delay=result.pause,
            reason=result.outcome.failure_reason,
        )
        if not alone:
            await adapter.send(run_id, pack(retrying), key=f"retrying {visit.id}#{attempt}")
        await adapter.sleep(result.pause)
        attempt += 1


async def _wait(run_id: str, seconds: float, message: Expired | Woken, child: str) -> None:
    await adapter.sleep(seconds)
    if child and isinstance(message, Woken):
        progress = await adapter.step("look", partial(adapter.published, child, "progress"))
        message = Woken(id=message.id, seen=progress if isinstance(progress, dict) else {})
    await adapter.send(run_id, pack(message), key=f"{type(message).__name__} {message.id}")


async def _attempt(run_id: str, visit: RunNode, attempt: int) -> Json:
    """One attempt; raises nothing but a cancellation."""
    here = executor.current()
    await here.admitted()
    run_input = _run_inputs.get(run_id)
    if run_input is None:
        run_input = unpack(await adapter.input_of(run_id), RunInput)
        remember_run(run_input)
    with here.attempt(f"{visit.id} of {run_id}"):
        try:
            outcome = await run_attempt(run_input, visit, attempt, here)
        except Exception as error:  # a bug must fail the node, not hang the run
            outcome = failed(f"{type(error).__name__}: {error}".removesuffix(": "))
    return pack(apply_retry_rule(run_input, visit, outcome, attempt))


# One attempt: in this process, or in an agent host that outlives it.


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
        budget=await _budget(run_input, visit.id),
    )
    began = time.time()
    async with run_worktree.used(config):
        outcome = await execution_attempt.run_bounded(
            execution_attempt.attempt(context), node.id, run_input.run_id
        )
        outcome = await run_worktree.save(config, outcome, visit.id)
    if config.artifacts_url and config.folder != run_input.config.folder:
        # The machine that ends the run may be another one, without this directory.
        outcome = await _upload_artifacts(config, run_input.run_id, outcome, began)
    return outcome


async def _budget(run_input: RunInput, visit: str) -> Budget | None:
    """What the model calls of the visit may use. Raises ``StorageFailed``."""
    names = run_input.config.budgets
    if not names:
        return None
    from corral.durable import budgets

    here, holder = executor.running(), budgets.holder_of(run_input.run_id, visit)
    database = None if here is None else here.database
    return await asyncio.to_thread(budgets.budget_of, names, holder, database)


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
    return handlers.is_built_in(handlers.for_node(node))


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
    marker = folder / f".started.{attempt}"
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
