"""The workflow ``corral.node``: one visit of a node with all its attempts, or a timer.

Theory of operation
-------------------
Who calls: an executor that takes the workflow from its queue. A run (``corral.run``) or a batch
enqueued it with a ``NodeInput``. There are three forms:

* a visit: attempts are made until one succeeds or the retry rule gives up; the outcome is sent to
  the run as ``Ended``;
* a visit of no run (``alone``, a task of a batch): the outcome is the workflow's output;
* a timer: sleep, then send ``Expired`` or ``Woken`` to the run.

States of a visit: attempt n runs -> pause -> attempt n+1 ... -> outcome sent. Each attempt is a
recorded step with a name of its own (``fix#2``): one that has ended is never run again. The end
of a pause is recorded too, so a restart does not extend it.

Guarantees
* An attempt always has a result: every exception but a cancellation becomes a failed outcome, so
  that a bug fails its node and does not hang its run.
* A message is sent once: its key contains the visit, and only the first message with a key counts.

Crashes
* The worker dies during an attempt: the step has no result, so the next executor runs it again.
  If the node's agent runs in an agent host (``agent_host``), the running or finished job is found
  there; otherwise the attempt starts anew, as the node's ``on_crash`` says (``attempt_runner``).
* It dies ``RECOVERIES`` times: the node is likely what kills the workers. The library gives the
  workflow up, and the run notices (``run_workflow._find_lost``).
* The worker drains: an attempt that has not begun waits for ever (``admitted``), and another
  executor takes the workflow.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from corral.durable.dbos import adapter
from corral.durable.payloads import AttemptResult, NodeInput, Retrying, RunInput, pack, unpack
from corral.durable.worker import attempt_runner, executor
from corral.pipelines.scheduler.commands import Ended, Expired, RunNode, Woken
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.pipelines.scheduler.retry import with_earlier_cost
from corral.values import Json

NAME = "corral.node"
BATCH = "corral.batch"
"""A workflow that does nothing: its input holds what the tasks of a batch share."""
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
            outcome = await attempt_runner.run_attempt(run_input, visit, attempt, here)
        except Exception as error:  # a bug must fail the node, not hang the run
            outcome = failed(f"{type(error).__name__}: {error}".removesuffix(": "))
    return pack(attempt_runner.apply_retry_rule(run_input, visit, outcome, attempt))
