"""The workflow ``corral.run``: one run of a pipeline. The scheduler decides, this executes.

Theory of operation
-------------------
``engine.run_loop`` performs the commands of the scheduler; ``DatabaseJournal`` carries them out: it
enqueues a node workflow or adds a local node, publishes a question, starts a child run or a timer,
cancels, messages a child. Messages come from local nodes (``Ended``) in the output of a step, and
from the run's inbox: those of node workflows (``Ended``, ``Woken``, ``Expired``), of people
(``Answered``), and of the process that cancels the run (``Cancelled``).

Nodes are local (``node_workflow.LocalNodes``) if the run was started in the process that executes
it, without limited queues: a queue would only delay them. The run's input says so, because a replay
must do the same. Timers and child runs always are workflows.

Who calls: an executor (``worker.executor``) that takes the run from its queue. Nothing else calls
into it; other processes send messages to its inbox or read the journal.

Guarantees
* Determinism: the order of messages in the journal is the only input. Nothing here may depend on
  a clock, on randomness, on the environment, or on data that is not in the journal. After a crash
  the recorded messages are passed to a new scheduler, which returns the same commands; the
  journal already has their results, so nothing runs twice.
* Every call of ``adapter`` is recorded by its position. They are never run concurrently, and
  their order may not change while ``stored_formats.JOURNAL`` stays the same.
* The run directory (``Projection``) is written for people. A failure to write it never fails
  the run.

States of a node, as seen here: unknown -> in flight (``in_flight``) -> ended (its message was
taken). A question is in ``questions`` until it is answered, expires or is stopped.

Crashes
* This worker dies: another executor, or ``resume``, starts the workflow again and it replays.
* A node's worker dies: the node workflow is started again by its own rules; the run only waits.
* A node workflow ends without a message (cancelled from outside, dead letter): after ``CHECK``
  seconds without a message the run reads the states of what is in flight and creates the missing
  messages itself (``_find_lost``), in a recorded step.
* A run that was forked has ``known`` messages: if the scheduler returns a command whose result is
  among them, that message is taken at once, and nothing runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from corral._engine.agent_host import client
from corral._engine.dbos import adapter
from corral._engine.dbos.client import queue_for_node
from corral._engine.dbos.database import OPEN_STATES, reading
from corral._engine.node_runner import Retrying
from corral._engine.payloads import (
    BATCH_WORKFLOW,
    NODE_WORKFLOW,
    QUESTIONS,
    RUN_WORKFLOW,
    AgentAsks,
    NodeInput,
    NodesStep,
    PipelineOutput,
    RunConfig,
    RunInput,
    RunWorktree,
    TurnStep,
    pack,
    timer_id,
    unpack,
    unpack_message,
)
from corral._engine.query import NODES, TURN
from corral._engine.run_loop import ProgramLoop, Projection, RunLoop, drawn, mismatch
from corral._engine.worker import executor, node_workflow
from corral._engine.workspace import artifacts
from corral._pipelines import loader
from corral._pipelines.execution.interviewers import MARK
from corral._pipelines.execution.run_dir import EVENTS, RunDir
from corral._pipelines.graph import Graph
from corral._pipelines.run_limits import run_limits
from corral._pipelines.scheduler.commands import (
    Answered,
    Ended,
    Expired,
    FinishRun,
    Message,
    Question,
    RaiseBudget,
    RunChild,
    RunNode,
    Steer,
    Steered,
    Wait,
    Woken,
    node_of,
)
from corral._pipelines.scheduler.merge import has_lanes
from corral._pipelines.scheduler.outcome import Outcome, failed, failed_task
from corral._pipelines.scheduler.state import State
from corral._publishing import published
from corral._system import fs
from corral._workflows.program import load_program
from corral._workflows.program_turn import KnownStep, ProgramTurn, first_difference
from corral._workflows.scheduler import WorkflowScheduler
from corral.errors import ConfigError, CorralError, StorageFailed
from corral.values import Json, as_list, as_object

if TYPE_CHECKING:
    from corral._engine.workspace.branch_worktrees import RunPlace

_log = logging.getLogger("corral.engine")

RECOVERIES = 10_000
"""A run may wait for months, over many restarts. It cannot crash a worker: it only waits."""
CHECK = 15.0
"""Seconds without a message until the states of running nodes are checked: one that was
cancelled from outside sends no message. Doubled each time."""
MAX_CHECK = 3600.0
SOON = 0.05
"""Seconds to wait for the nodes of a turn before it is recorded without their results."""
IDLE = 7 * 86400.0
"""Seconds to wait for a message while only people are waited for."""


_running: dict[str, asyncio.Task[object]] = {}
"""The runs that this process executes, by id."""
_listeners: dict[str, Callable[[], None]] = {}
"""By the id of a run: called when ends of its nodes were recorded here."""


@contextlib.contextmanager
def listened(run_id: str, listener: Callable[[], None]) -> Generator[None]:
    """Within the block ``listener`` is called in the engine's thread when ends of nodes were
    recorded, if this process executes the run. One caller follows a run so."""
    _listeners[run_id] = listener
    try:
        yield
    finally:
        _listeners.pop(run_id, None)


async def run(payload: dict[str, Json]) -> Json:
    with reading(adapter.workflow_id()):
        run_input = unpack(payload, RunInput)
        node_workflow.check_names_itself(run_input, adapter.workflow_id())
    task = asyncio.current_task()
    if task is not None:
        _running[run_input.run_id] = task
        task.add_done_callback(lambda ended: _forget(run_input.run_id, ended))
    node_workflow.remember_run(run_input.without_tasks())
    if "/" in run_input.run_id or run_input.batch is not None:
        # Its outermost run is shown; a batch by the process that writes its results.
        return await _run_to_end(run_input)
    title = run_input.graph.goal or run_input.graph.name
    cwd = run_input.config.on_this_machine().workspace
    db = executor.current().database.shown
    with published("pipeline", run_input.run, title=title, cwd=cwd, db=db):
        return await _run_to_end(run_input)


async def batch(payload: dict[str, Json]) -> Json:
    """As ``run``: a batch has its own name for lists."""
    return await run(payload)


def _forget(run_id: str, task: asyncio.Task[object]) -> None:
    if _running.get(run_id) is task:
        del _running[run_id]


async def leave(run_id: str) -> None:
    """Stop to execute a run, which another process, or this one, can continue. In the event loop of
    the engine."""
    task = _running.get(run_id)
    if task is not None:
        task.cancel()
        await asyncio.wait({task})


async def _run_to_end(run_input: RunInput) -> Json:
    scheduler = run_input.new_scheduler()
    projection = _open_projection(run_input)
    run_input = run_input.without_tasks()
    journal = DatabaseJournal(
        run_input, on_retry=lambda message: projection.record(message, scheduler.state)
    )
    leave = True
    try:
        loop = RunLoop(scheduler, journal, projection)
        if run_input.program is not None and isinstance(scheduler, WorkflowScheduler):
            program = await load_program(run_input.program, run_input.run_id)
            loop = ProgramLoop(scheduler, program, journal, projection)
        finish = await loop.run()
        return pack(await journal.finish(finish, scheduler.state, projection))
    except BaseException as error:
        leave = not adapter.is_cancellation(error)
        raise
    finally:
        await journal.local.close(leave=leave)
        if projection.writer is not None:
            projection.writer.stop()


class DatabaseJournal:
    """Records each call and each message in the database."""

    def __init__(self, run_input: RunInput, on_retry: Callable[[Retrying], None]) -> None:
        self.run_input: RunInput = run_input
        self.id: str = run_input.run_id
        self.config: RunConfig = run_input.config.on_this_machine()
        """With the folders of this machine; ``run_input`` is the same on all machines."""
        self.on_retry = on_retry
        self.queue: str = executor.current().own or run_input.queue
        poll = executor.current().poll
        self.local: node_workflow.LocalNodes = node_workflow.LocalNodes(run_input, poll)
        self.has_mail: bool = False
        """Whether a step has seen a message in the inbox, which is received next."""
        self.in_flight: dict[str, str] = {}
        """Id of a visit, child run or wait -> its workflow id."""
        self.questions: dict[str, Question] = {}
        self.timers: dict[str, str] = {}
        self.pending: list[Message] = []
        """Messages known from the run that this one continues; taken before the inbox."""
        self.steer_count: int = 0
        self.waits: set[str] = set()
        self._turn: ProgramTurn | None = None
        """The turn of the program that is recorded when the run waits."""

    async def next(self) -> list[Message]:
        await self._record_last_turn(SOON)
        pause = CHECK
        while True:
            if self.pending:
                return [self.pending.pop(0)]
            if self.local and not self.has_mail:
                raw = None
                if await self._wait_for_nodes(pause):
                    continue
            else:
                limit = pause if self.in_flight or self.has_mail else IDLE
                self.has_mail = False
                raw = await adapter.receive(limit)
            if raw is not None:
                message = unpack_message(raw)
                if isinstance(message, Retrying):
                    self.on_retry(message)
                    continue
                if isinstance(message, AgentAsks):
                    # The answer may be on its way; the end of the visit closes the question.
                    self.questions[message.question.id] = message.question
                    await self._publish_questions()
                    continue
                await self._on_message(message)
                return [message]
            if self.in_flight:
                result = await adapter.step(
                    "look",
                    partial(_find_lost, dict(self.in_flight), self.waits, self._failed),
                )
                lost = [
                    each
                    for raw in as_list(result)
                    if not isinstance(each := unpack_message(raw), Retrying | AgentAsks)
                ]
                for message in lost:
                    await self._on_message(message)
                if lost:
                    return lost
            pause = min(pause * 2, MAX_CHECK)

    def _failed(self, reason: str, state: str) -> Outcome:
        if self.run_input.batch is None:
            return failed(reason)
        return failed_task(reason, "engine" if state == "failed" else state or "deleted")

    async def _wait_for_nodes(self, pause: float) -> bool:
        """Wait for local nodes or a message in the inbox. What nodes report becomes pending. False
        if nothing happened for so long that the states of workflows must be checked."""
        wait = partial(self.local.next, pause if self.in_flight else None)
        # A preemptible step reads the input of the run each second: that of a batch may be large.
        is_batch = self.run_input.batch is not None
        found = unpack(await adapter.step(NODES, wait, preemptible=not is_batch), NodesStep)
        await self._take_reported(found)
        return found.has_mail or bool(found.messages)

    async def _take_reported(self, found: NodesStep | TurnStep) -> None:
        if found.messages and (listener := _listeners.get(self.id)) is not None:
            listener()
        for message in found.messages:
            self.local.take(message)
            if isinstance(message, Retrying):
                self.on_retry(message)
            else:
                await self._on_message(message)
                self.pending.append(message)
        self.has_mail |= found.has_mail

    async def _on_message(self, message: Message) -> None:
        match message:
            case Ended(id=known) | Woken(id=known):
                self.in_flight.pop(known, None)
                if names := self.config.budgets:
                    from corral._engine import limits

                    database, holder = executor.current().database, f"{self.id}/{known}"
                    # Not in the journal: doing it again changes nothing.
                    with contextlib.suppress(StorageFailed):  # it stays reserved
                        await asyncio.to_thread(limits.settle_budget, names, holder, database)
                for id in [each for each in self.questions if each.startswith(f"{known}{MARK}")]:
                    await self._close_question(id)
            case Answered(id=known) | Expired(id=known):
                await self._close_question(known)
            case _:
                pass

    async def start_node(self, command: RunNode) -> None:
        if self._is_known(command.id):
            return
        if self.run_input.local_nodes:
            self.local.add(command)
            return
        node = node_of(self.run_input.graph, command)
        agent = str(self.run_input.graph.attrs.get("agent") or self.config.agent)
        queue = queue_for_node(self.queue, node, executor.current().all_queues, agent)
        await self._start(command.id, NodeInput(run_id=self.id, visit=command), queue)

    async def start_timer(self, command: Wait) -> None:
        child = self.in_flight.get(command.child, "") if command.child else ""
        then = Woken(id=command.id)
        task = NodeInput(run_id=self.id, sleep=command.seconds, then=then, child=child)
        self.waits.add(command.id)
        await self._start(command.id, task, self.queue)

    async def steer(self, command: Steer) -> None:
        if command.child in self.in_flight:
            self.steer_count += 1
            key = f"steered {self.id} {self.steer_count}"
            message = pack(Steered(updates=command.updates))
            await adapter.send(self.in_flight[command.child], message, key=key)

    async def raise_budget(self, command: RaiseBudget) -> None:
        """Not in the journal: the store does it once."""
        from corral._engine import limits

        database = executor.current().database
        await asyncio.to_thread(
            limits.raise_budget, database, self.id, command.amounts, f"{self.id}/{command.id}"
        )

    async def publish_progress(self, state: State) -> None:
        if self.run_input.reply_to:
            await adapter.publish("progress", state.progress())

    async def record_turn(self, turn: ProgramTurn, known: Mapping[str, KnownStep]) -> ProgramTurn:
        """A turn that only starts nodes of this process is recorded in ``next``, with what they
        report soon: one record instead of two. They start a moment before it is recorded, but what
        a crash in that moment leaves of them is nothing that a replay could find."""
        await self._record_last_turn(0.0)
        if self._starts_only_nodes_here(turn):
            self._turn = turn
            return turn

        async def draw() -> Json:
            return pack(drawn(turn, known))

        return unpack(await adapter.step(TURN, draw), ProgramTurn)

    def _starts_only_nodes_here(self, turn: ProgramTurn) -> bool:
        """Not in an agent host: its job outlives a crash, and the program must do the same then."""
        if not self.run_input.local_nodes or self.run_input.reply_to or turn.stopped or turn.end:
            return False
        return bool(turn.steps) and all(
            step.kind == "visit"
            and step.node is not None
            and not node_workflow.is_detached(self.config, step.node)
            for step in turn.steps
        )

    async def _record_last_turn(self, limit: float) -> None:
        """Record the turn that is not recorded yet, with what its nodes report in ``limit``
        seconds. Raises ``ReplayMismatch``."""
        made, self._turn = self._turn, None
        if made is None:
            return
        limit = 0.0 if self.pending else limit

        async def begin() -> Json:
            if self.has_mail:
                # Received first: steps that end at once would keep it waiting for ever.
                return pack(TurnStep(steps=made.steps))
            found = unpack(await self.local.next(limit), NodesStep)
            messages = tuple(found.messages)
            return pack(TurnStep(steps=made.steps, messages=messages, has_mail=found.has_mail))

        turn = unpack(await adapter.step(TURN, begin), TurnStep)
        if difference := first_difference(turn, made):
            raise mismatch(self.id, difference)
        await self._take_reported(turn)

    async def wait_for_stopped(self) -> None:
        await self.local.wait_for_stopped()

    def _is_known(self, known: str) -> bool:
        """Whether the result is known from the run that this one continues; then it is taken."""
        message = self.run_input.known.get(known)
        if message is not None:
            self.pending.append(message)
        return message is not None

    async def _start(self, known: str, task: NodeInput, queue: str) -> None:
        self.in_flight[known] = f"{self.id}/{known}"
        await adapter.enqueue(NODE_WORKFLOW, self.in_flight[known], queue, pack(task))

    async def ask(self, question: Question) -> None:
        if self._is_known(question.id):
            return
        self.questions[question.id] = question
        await self._publish_questions()
        if question.timeout is not None:
            timer = self.timers[question.id] = timer_id(self.id, question.id)
            then = Expired(id=question.id)
            task = NodeInput(run_id=self.id, sleep=question.timeout, then=then)
            await adapter.enqueue(NODE_WORKFLOW, timer, self.queue, pack(task))

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
        if not self.run_input.reply_to:
            await adapter.label(self.id, {"asks": len(self.questions)})

    async def start_child(self, command: RunChild) -> None:
        if self._is_known(command.id):
            return
        stored = self.run_input.config
        if command.worktrees:
            from corral._engine.workspace import branch_worktrees

            place = branch_worktrees.place_of(self.run_input)
            open_tree = partial(_open_lane, place, command.worktrees)
            opened = await adapter.step(f"worktree {command.id}", open_tree)
            if isinstance(opened, str):
                self.pending.append(Ended(id=command.id, outcome=failed(opened)))
                return
            tree = unpack(opened, RunWorktree)
            stored = replace(stored, tree=tree, workspace=tree.within)
        load = partial(_load, self.run_input, stored.on_this_machine(), command)
        result = await adapter.step(f"load {command.id}", load)
        if isinstance(result, str):
            self.pending.append(Ended(id=command.id, outcome=failed(result, retryable=False)))
            return
        config = stored
        child = f"{self.id}/{command.id}"
        graph = unpack(result, Graph)
        child_budgets = config.budgets
        if graph.has_limits:
            from corral._engine import limits

            # Not in the journal: the name of the store is always the same.
            child_budgets += await asyncio.to_thread(
                limits.create_budget, executor.current().database, child, run_limits(graph)
            )
        run_input = RunInput(
            run_id=child,
            graph=graph,
            config=replace(
                config,
                budgets=child_budgets,
                folder=str(RunDir(config.folder).visit_dir(command.id) / "child"),
                workspace=str(Path(config.workspace) / command.workdir),
            ),
            queue=self.run_input.queue,
            at=self.run_input.at,
            values=command.context,
            reply_to=self.id,
            reply_id=command.id,
            depth=self.run_input.depth + 1,
            lane=command.worktrees[-1] if command.worktrees else "",
            local_nodes=self.run_input.local_nodes,
        )
        self.in_flight[command.id] = child
        await adapter.enqueue(RUN_WORKFLOW, child, self.queue, pack(run_input))

    async def stop(self, id: str) -> None:
        await self._close_question(id)
        is_local = id in self.local
        self.local.stop(id)
        workflow = self.in_flight.pop(id, None)
        if workflow is not None:
            await adapter.cancel([workflow])
        if is_local or workflow is not None:
            # A worker notices only after a second, or may be dead.
            await asyncio.to_thread(client.stop, self.id, id)

    async def finish(
        self, command: FinishRun, state: State, projection: Projection
    ) -> PipelineOutput:
        """Stop what still runs, save the branch, upload the artifacts, and report the end."""
        for known in [*self.questions, *self.local.visits, *self.in_flight]:
            await self.stop(known)
        status, reason = command.status, command.reason
        saved: dict[str, Json] = {}
        if has_lanes(self.run_input.graph, state):
            from corral._engine.workspace import branch_worktrees

            close_lanes = partial(_close_lanes, branch_worktrees.place_of(self.run_input))
            saved["branches"] = await adapter.step("branches", close_lanes)
        if self.config.tree is not None and not self.run_input.reply_to:
            from corral._engine.workspace import run_worktree

            tree, folder = self.config.tree, self.config.folder
            close = partial(run_worktree.close, tree, folder, self.id)
            work = saved["workspace"] = await adapter.step("workspace", close)
            if status == "success" and isinstance(work, dict) and "error" in work:
                status, reason = "fail", f"its work could not be saved: {work['error']}"
        if self.config.artifacts_url:
            put = partial(_upload_artifacts, self.config, self.run_input.run)
            saved["artifacts"] = await adapter.step("artifacts", put)
        output = replace(
            PipelineOutput.of(command, state), status=status, reason=reason, saved=saved
        )
        if projection.writer is not None:
            projection.writer.close(state)
        if projection.spans is not None:
            await projection.spans.close()
        # A workflow's steps are not in its graph.
        has_host = self.run_input.program is not None and bool(self.config.detached)
        nodes = self.run_input.graph.nodes.values()
        if has_host or any(node_workflow.is_detached(self.config, node) for node in nodes):
            await asyncio.to_thread(client.close, self.id, cancel=True)
        if not self.run_input.reply_to:
            spent: dict[str, Json] = {"cost_usd": output.cost_usd, "tokens": output.tokens}
            await adapter.label(
                self.id, {"status": output.status, "reason": reason[:MAX_REASON], **spent}
            )
        else:
            outcome = state.as_outcome()
            if self.run_input.lane:
                found = await adapter.step("lane", partial(_with_lane, self.run_input, outcome))
                outcome = unpack(found, Outcome)
            ended = Ended(id=self.run_input.reply_id, outcome=outcome)
            await adapter.send(
                self.run_input.reply_to, pack(ended), key=f"ended {self.run_input.reply_id}"
            )
        return output


MAX_REASON = 1_000
"""Characters of a reason that are stored for lists."""


async def _find_lost(
    in_flight: dict[str, str], waits: set[str], fail: Callable[[str, str], Outcome]
) -> Json:
    """Messages on behalf of workflows that ended without sending one."""
    states = await adapter.states(list(in_flight.values()))
    reasons = {
        "cancelled": "it was cancelled from outside",
        "failed": "the engine failed",
        "dead_letter": "its worker died too many times while it ran",
    }
    return [
        pack(
            Woken(id=known)
            if known in waits
            else Ended(id=known, outcome=fail(reasons.get(state, "its record was deleted"), state))
        )
        for known, workflow in in_flight.items()
        if (state := states.get(workflow, "")) not in (*OPEN_STATES, "succeeded")
    ]


async def _open_lane(place: RunPlace, worktrees: tuple[str, ...]) -> Json:
    """The worktree of the innermost lane, or the reason why there is none, as text."""
    from corral._engine.workspace import branch_worktrees

    try:
        return pack(await branch_worktrees.open_lane(place, worktrees))
    except (CorralError, OSError) as error:
        return str(error)


async def _close_lanes(place: RunPlace) -> Json:
    from corral._engine.workspace import branch_worktrees

    return [*await branch_worktrees.close(place)]


async def _with_lane(run_input: RunInput, outcome: Outcome) -> Json:
    """The outcome of a child run, with the commit of the lane that it worked in."""
    from corral._engine.workspace import branch_worktrees

    tree = run_input.config.tree
    try:
        if tree is not None:
            outcome = await branch_worktrees.with_commit(outcome, tree, run_input.lane)
    except (CorralError, OSError) as error:
        outcome = failed(f"its work could not be saved: {error}", retryable=False)
    return pack(outcome)


async def _load(run_input: RunInput, config: RunConfig, command: RunChild) -> Json:
    """The child's graph, or the reason why it cannot be loaded, as text."""
    worktree: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
    if config.tree is not None:
        from corral._engine.workspace import run_worktree

        worktree = run_worktree.used(config.tree)
    try:
        async with worktree:
            graph = await asyncio.to_thread(
                loader.load_child,
                command.dotfile,
                values=command.context,
                workspace=Path(config.workspace),
                depth=run_input.depth,
            )
    except (CorralError, OSError) as error:
        return str(error)
    with contextlib.suppress(StorageFailed):
        RunDir(config.folder).make_visit_dir(command.id, command.node)
    return pack(graph)


async def _upload_artifacts(config: RunConfig, run_id: str) -> Json:
    """The names of the uploaded files, or the reason why the upload failed: it must not fail the
    run."""
    folder = RunDir(config.folder).artifacts
    try:
        return [*await asyncio.to_thread(artifacts.upload, folder, config.artifacts_url, run_id)]
    except CorralError as error:
        return str(error)


def _open_projection(run_input: RunInput) -> Projection:
    """A resumed run writes missing files again, and does not repeat events that are in the file. Of
    a batch the process that follows it writes the results and sends the spans."""
    if run_input.batch is not None:
        return Projection(run_input.run_id, None, spans=None, is_journaled=True)
    config = run_input.config
    folder = RunDir(config.on_this_machine().folder)
    workspace = config.workspace if config.tree is None else config.tree.repository
    with contextlib.suppress(StorageFailed):
        folder.create(run_input.graph, run_input.run, workspace, run_input.tries)
    path, data = folder.path / EVENTS, b""
    with contextlib.suppress(OSError):
        data = fs.read_bytes(path)
        end = data.rfind(b"\n") + 1
        if end < len(data):  # an incomplete last line, left by a crash
            os.truncate(path, end)
    spans, options = None, run_input.config.options
    if isinstance(endpoint := options.get("otel"), str):
        from corral._pipelines.events import from_json
        from corral._pipelines.run_spans import LivePipelineSpans

        env = {key: str(value) for key, value in as_object(options.get("env")).items()}
        try:
            spans = LivePipelineSpans(endpoint, env, run_input.graph)
            with contextlib.suppress(msgspec.MsgspecError):
                spans.resume(map(from_json, data[: data.rfind(b"\n") + 1].splitlines()))
        except ConfigError as error:  # this worker has no OpenTelemetry
            _log.warning("no spans are sent: %s", error.message)
    return Projection(
        run_input.run,
        folder,
        spans=spans,
        recorded=data.count(b"\n"),
        is_journaled=True,
    )


def all_workflows() -> dict[str, tuple[adapter.Workflow, int]]:
    """The workflows that every executor runs, by name; each with the number of times that it
    is started again after a crash."""
    return {
        RUN_WORKFLOW: (run, RECOVERIES),
        NODE_WORKFLOW: (node_workflow.visit, node_workflow.RECOVERIES),
        BATCH_WORKFLOW: (batch, RECOVERIES),
    }
