"""``corral.node``: one visit of a node with all its attempts, or a wait. Answers its run.

Each attempt is a step with a name of its own (``fix#2``), so a finished one is never run
again; the pause between two is kept over restarts. An attempt that was under way when its
worker died is taken up again: where its agent runs in a host (``host``) it is found there,
still at work or done; else it is begun anew.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from corral.durable.dbos import adapter
from corral.durable.payloads import AttemptResult, NodeInput, Retrying, RunInput, pack, unpack
from corral.durable.worker import attempt_runner, executor
from corral.events import Json
from corral.pipelines.scheduler.commands import Ended, Expired, RunNode, Woken
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.pipelines.scheduler.retry import with_earlier_cost

NAME = "corral.node"
BATCH = "corral.batch"
"""What the tasks of a batch share is the input of one of these, which does nothing."""
RECOVERIES = 20
"""Times that a visit is taken up again after its worker died: then it is what kills them."""

_CACHE = 64
_begun: OrderedDict[str, RunInput] = OrderedDict()


def remember(begun: RunInput) -> None:
    """A run's input never changes: one that runs here need not be read for each node."""
    _begun[begun.run_id] = begun
    _begun.move_to_end(begun.run_id)
    while len(_begun) > _CACHE:
        _begun.popitem(last=False)


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
        told = await adapter.step(f"{visit.node}#{attempt}", step, preemptible=True)
        verdict = unpack(told, AttemptResult)
        outcome = earlier = with_earlier_cost(verdict.outcome, earlier)
        if verdict.pause is None:
            return outcome
        retrying = Retrying(
            visit=visit.id,
            node=visit.node,
            attempt=attempt,
            delay=verdict.pause,
            reason=verdict.outcome.failure_reason,
        )
        if not alone:
            await adapter.send(run_id, pack(retrying), key=f"retrying {visit.id}#{attempt}")
        await adapter.sleep(verdict.pause)
        attempt += 1


async def _wait(run_id: str, seconds: float, message: Expired | Woken, child: str) -> None:
    await adapter.sleep(seconds)
    if child and isinstance(message, Woken):
        seen = await adapter.step("look", partial(adapter.published, child, "progress"))
        message = Woken(id=message.id, seen=seen if isinstance(seen, dict) else {})
    await adapter.send(run_id, pack(message), key=f"{type(message).__name__} {message.id}")


async def _attempt(run_id: str, visit: RunNode, attempt: int) -> Json:
    """One attempt, always with a verdict: only a cancellation passes."""
    here = executor.current()
    await here.admitted()
    begun = _begun.get(run_id)
    if begun is None:
        begun = unpack(await adapter.input_of(run_id), RunInput)
        remember(begun)
    with here.attempt(f"{visit.id} of {run_id}"):
        try:
            outcome = await attempt_runner.run_attempt(begun, visit, attempt, here)
        except Exception as error:  # a bug of ours must fail its node, not hang its run
            outcome = failed(f"{type(error).__name__}: {error}".removesuffix(": "))
    return pack(attempt_runner.judge(begun, visit, outcome, attempt))
