"""``corral.run``: a run of a pipeline. The plan decides, this carries out.

The plan is fed one message at a time, in the order in which they were taken from the run's
one inbox; that order is the journal. After a crash the same messages give the same orders,
which the journal knows already: nothing is done twice. So nothing here may depend on a
clock, on chance, on the environment or on what was not journalled.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from typing import cast

import msgspec

from corral.durable.agent_host import client
from corral.durable.dbos import adapter, queues
from corral.durable.payloads import (
    NodeInput,
    Retrying,
    RunConfig,
    RunInput,
    RunOutput,
    pack,
    unpack,
    unpack_message,
)
from corral.durable.worker import executor, node_workflow
from corral.durable.workspace import artifacts, run_worktree
from corral.durable.workspace.projection import Projection
from corral.events import Json
from corral.pipelines.execution.run_dir import RunDir
from corral.pipelines.graph import Graph
from corral.pipelines.scheduler.commands import (
    Answered,
    AskHuman,
    Checkpoint,
    Child,
    Command,
    EmitEvent,
    Ended,
    Expired,
    FinishRun,
    Message,
    Question,
    Restart,
    RunNode,
    Steer,
    Steered,
    Stop,
    Wait,
    Woken,
)
from corral.pipelines.scheduler.outcome import failed
from corral.pipelines.scheduler.scheduler import Scheduler

NAME = "corral.run"
RECOVERIES = 10_000
"""A run may wait for months, over many restarts. It kills nobody: it only waits."""
QUESTIONS = "questions"
"""Published: the open ones, by id."""
LOOK = 15.0
"""Seconds without a message, while nodes are at work, until it is asked how they are: one
that was cancelled from outside, or gave up, cannot speak. Doubled each time."""
LOOK_AT_MOST = 3600.0
IDLE = 7 * 86400.0
"""Only people are waited for."""


async def run(payload: dict[str, Json]) -> Json:
    begun = unpack(payload, RunInput)
    node_workflow.remember(begun)
    return await _Course(begun).whole()


class _Course:
    def __init__(self, begun: RunInput) -> None:
        self.begun, self.id = begun, begun.run_id
        self.plan = Scheduler(begun.graph, run_id=begun.run_id, values=begun.values)
        self.setting = run_worktree.local_config(begun.setting)
        """With the folders of this machine: ``begun`` may be read on another."""
        self.shown = Projection(begun, Path(self.setting.folder))
        self.queue = executor.current().own or begun.queue
        self.flying: dict[str, str] = {}
        """Visit, child or wait → its workflow."""
        self.questions: dict[str, Question] = {}
        self.timers: dict[str, str] = {}
        self.at_hand: list[Message] = []
        """Known already: taken before anything from the inbox."""
        self.steered = 0
        self.waits: set[str] = set()

    async def whole(self) -> Json:
        orders = self.plan.start()
        while True:
            for order in orders:
                self.shown.see(order, self.plan.state)
                if isinstance(order, FinishRun):
                    return await self._finish(order)
                await self._carry_out(order)
            orders = list[Command]()
            for message in await self._messages():
                orders += self.plan.receive(message)

    async def _messages(self) -> list[Message]:
        if self.at_hand:
            return [self.at_hand.pop(0)]
        pause = LOOK
        while True:
            raw = await self._received(pause if self.flying else IDLE)
            if raw is not None:
                message = unpack_message(raw)
                if isinstance(message, Retrying):
                    self.shown.see(message, self.plan.state)
                    continue
                await self._taken(message)
                return [message]
            if self.flying:
                told = await adapter.step("look", partial(_lost, dict(self.flying), self.waits))
                lost = [
                    each
                    for raw in cast("list[Json]", told)
                    if not isinstance(each := unpack_message(raw), Retrying)
                ]
                for message in lost:
                    await self._taken(message)
                if lost:
                    return lost
            pause = min(pause * 2, LOOK_AT_MOST)

    async def _received(self, timeout: float) -> Json:
        """While nobody speaks, the folder catches up."""
        due = self.shown.catch_up(self.plan.state)
        later = None
        if due is not None:
            later = asyncio.get_running_loop().call_later(due, self._catch_up)
        try:
            return await adapter.receive(timeout)
        finally:
            if later is not None:
                later.cancel()

    def _catch_up(self) -> None:
        self.shown.catch_up(self.plan.state)

    async def _taken(self, message: Message) -> None:
        match message:
            case Ended(id=known) | Woken(id=known):
                self.flying.pop(known, None)
            case Answered(id=known) | Expired(id=known):
                await self._close_question(known)
            case _:
                pass

    async def _carry_out(self, order: Command) -> None:
        match order:
            case RunNode():
                if not self._is_known(order.id):
                    node = self.begun.graph.nodes[order.node]
                    limited = executor.current().all_queues
                    queue = queues.queue_for_node(self.queue, node, limited)
                    await self._start(order.id, NodeInput(run_id=self.id, visit=order), queue)
            case AskHuman(question=question):
                if not self._is_known(question.id):
                    await self._ask(question)
            case Child():
                if not self._is_known(order.id):
                    await self._child(order)
            case Wait():
                child = self.flying.get(order.child, "") if order.child else ""
                then = Woken(id=order.id)
                task = NodeInput(run_id=self.id, sleep=order.seconds, then=then, child=child)
                self.waits.add(order.id)
                await self._start(order.id, task, self.queue)
            case Steer(child=child, updates=updates):
                if child in self.flying:
                    self.steered += 1
                    key = f"steered {self.id} {self.steered}"
                    message = pack(Steered(updates=updates))
                    await adapter.send(self.flying[child], message, key=key)
            case Stop(id=known):
                await self._stop(known)
            case Checkpoint():
                if self.begun.reply_to:
                    await adapter.publish("progress", self._progress())
            case EmitEvent() | Restart() | FinishRun():
                pass

    def _is_known(self, known: str) -> bool:
        message = self.begun.known.get(known)
        if message is not None:
            self.at_hand.append(message)
        return message is not None

    async def _start(self, known: str, task: NodeInput, queue: str) -> None:
        self.flying[known] = f"{self.id}/{known}"
        await adapter.enqueue(node_workflow.NAME, self.flying[known], queue, pack(task))

    async def _ask(self, question: Question) -> None:
        self.questions[question.id] = question
        await self._publish_questions()
        if question.timeout is not None:
            timer = self.timers[question.id] = f"{self.id}/{question.id}/timer"
            then = Expired(id=question.id)
            task = NodeInput(run_id=self.id, sleep=question.timeout, then=then)
            await adapter.enqueue(node_workflow.NAME, timer, self.queue, pack(task))

    async def _close_question(self, known: str) -> None:
        if self.questions.pop(known, None) is not None:
            await self._publish_questions()
            timer = self.timers.pop(known, None)
            if timer is not None:
                await adapter.cancel([timer])

    async def _publish_questions(self) -> None:
        await adapter.publish(
            QUESTIONS, {key: msgspec.to_builtins(each) for key, each in self.questions.items()}
        )
        if not self.begun.reply_to:
            await adapter.label(self.id, {"asks": len(self.questions)})

    async def _child(self, order: Child) -> None:
        load = partial(_load, self.begun, self.setting, order)
        told = await adapter.step(f"load {order.id}", load)
        if isinstance(told, str):
            self.at_hand.append(Ended(id=order.id, outcome=failed(told, retryable=False)))
            return
        setting = self.begun.setting
        child = f"{self.id}/{order.id}"
        begun = RunInput(
            run_id=child,
            graph=unpack(told, Graph),
            setting=msgspec.structs.replace(
                setting,
                folder=str(RunDir(setting.folder).place(order.id) / "child"),
                workspace=str(Path(setting.workspace) / order.workdir),
            ),
            queue=self.begun.queue,
            at=self.begun.at,
            values=order.context,
            reply_to=self.id,
            reply_id=order.id,
            depth=self.begun.depth + 1,
        )
        self.flying[order.id] = child
        await adapter.enqueue(NAME, child, self.queue, pack(begun))

    async def _stop(self, known: str) -> None:
        await self._close_question(known)
        workflow = self.flying.pop(known, None)
        if workflow is not None:
            await adapter.cancel([workflow])
            # Its worker would be a second late, or may be gone.
            await asyncio.to_thread(client.stop, self.id, known)

    def _progress(self) -> dict[str, Json]:
        state = self.plan.state
        last = state.completed[-1] if state.completed else ""
        return {
            "status": "running",
            "current_node": state.current_node,
            "completed": len(state.completed),
            "outcome": state.outcomes[last].status if last in state.outcomes else "",
        }

    async def _left(self) -> dict[str, Json]:
        """What the run leaves beside its outcome: a branch, artefacts."""
        left: dict[str, Json] = {}
        if self.setting.tree is not None and not self.begun.reply_to:
            close = partial(run_worktree.close, self.setting, self.id)
            left["workspace"] = await adapter.step("workspace", close)
        if self.setting.artefacts:
            put = partial(_artefacts, self.setting, self.id)
            left["artefacts"] = await adapter.step("artefacts", put)
        return left

    async def _finish(self, order: FinishRun) -> Json:
        state = self.plan.state
        for known in [*self.questions, *self.flying]:
            await self._stop(known)
        left = await self._left()
        status, reason = _with_lost_work(order, left)
        closed = RunOutput(
            status=status,
            reason=reason,
            context=state.context,
            left=left,
            completed=state.completed,
            outcomes=state.outcomes,
            cost_usd=state.cost_usd,
            tokens=state.tokens,
        )
        self.shown.close(state)
        await asyncio.to_thread(client.close, self.id, cancel=True)
        if not self.begun.reply_to:
            await adapter.label(self.id, {"status": closed.status})
        else:
            ended = Ended(id=self.begun.reply_id, outcome=state.as_outcome())
            await adapter.send(self.begun.reply_to, pack(ended), key=f"ended {self.begun.reply_id}")
        return pack(closed)


def _with_lost_work(order: FinishRun, left: dict[str, Json]) -> tuple[str, str]:
    """The run's status and reason. A run whose work could not be kept did not succeed."""
    work = left.get("workspace")
    if order.status != "success" or not isinstance(work, dict) or "error" not in work:
        return order.status, order.reason
    return "fail", f"its work could not be kept: {work['error']}"


async def _lost(flying: dict[str, str], waits: set[str]) -> Json:
    """Messages in the name of those that cannot speak any more."""
    states = await adapter.states(list(flying.values()))
    words = {
        "CANCELLED": "it was cancelled from outside",
        "ERROR": "the engine failed at it",
        "MAX_RECOVERY_ATTEMPTS_EXCEEDED": "its worker died again and again while it ran",
    }
    return [
        pack(
            Woken(id=known)
            if known in waits
            else Ended(id=known, outcome=failed(words.get(state, "it is gone")))
        )
        for known, workflow in flying.items()
        if (state := states.get(workflow, "")) not in (*adapter.OPEN, "SUCCESS")
    ]


async def _load(begun: RunInput, setting: RunConfig, order: Child) -> Json:
    """The child's graph, or in words why there is none."""
    from corral.errors import CorralError, StorageFailed
    from corral.pipelines import loader
    from corral.pipelines import loader as pipelines_loader

    if begun.depth >= pipelines_loader.DEEPEST:
        return f"pipelines are nested more than {pipelines_loader.DEEPEST} deep"
    path = Path(setting.workspace) / order.dotfile
    try:
        async with run_worktree.used(setting):
            graph = await asyncio.to_thread(
                loader.load, path, values=order.context, workspace=Path(setting.workspace)
            )
    except (CorralError, OSError) as error:
        return f"{order.dotfile}: {error}"
    with contextlib.suppress(StorageFailed):
        RunDir(setting.folder).stage(order.id, order.node)
    return pack(pipelines_loader.beside(graph, path.parent))


async def _artefacts(setting: RunConfig, run_id: str) -> Json:
    """Their names, or in words why they are not there: it must not cost the run."""
    from corral.errors import CorralError

    folder = RunDir(setting.folder).artifacts
    try:
        return [*await asyncio.to_thread(artifacts.put, folder, setting.artefacts, run_id)]
    except CorralError as error:
        return str(error)


def all_workflows() -> dict[str, tuple[adapter.Workflow, int]]:
    """The workflows that every executor runs, by name; each with the number of times that it
    is started again after a crash."""
    return {
        NAME: (run, RECOVERIES),
        node_workflow.NAME: (node_workflow.visit, node_workflow.RECOVERIES),
        node_workflow.BATCH: (node_workflow.batch, node_workflow.RECOVERIES),
    }
