"""One way to run a node: its attempts, and what follows after each of them.

Theory of operation
-------------------
A visit of a node is a sequence of attempts. ``attempt`` makes one and never raises anything but a
cancellation. ``after_attempt``, a pure function, decides what follows: the outcome of the
visit, a pause and another attempt, or a wait for a rate limit after which the same attempt goes on.

What makes an attempt is a function of the visit and the attempt's number: ``NodeRunner.attempt`` in
this process; for a durable run also an agent host, which outlives the process. What remembers a
visit between two attempts differs:

* a run or batch in memory: the task that runs the visit (``run_visit``);
* a node workflow: its journal, by recorded attempts and pauses (``run_visit``);
* a durable run or batch in its own process: the journal of the run
  (``corral._engine.worker.node_workflow``).

Crashes: an attempt without a recorded result is made again. ``apply_crash_rule`` then decides by
the node's ``on_crash`` whether it starts from the beginning, continues in the agent's session, or
fails.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec.structs import replace

from corral._core.lookup import run_of
from corral._core.spending import Spent
from corral._pipelines import events
from corral._pipelines.execution import attempt as execution_attempt
from corral._pipelines.execution import handlers
from corral._pipelines.execution.handlers import NodeContext, NodeResources
from corral._pipelines.execution.run_dir import EVENTS, RunDir
from corral._pipelines.graph import Graph, Node
from corral._pipelines.scheduler import retry
from corral._pipelines.scheduler.commands import RunNode, node_of
from corral._pipelines.scheduler.outcome import AFTER_LIMIT, Outcome, failed, outcome_of_error
from corral._publishing.records import PART_OF, PartOf
from corral._system import clock, fs
from corral.errors import CorralError
from corral.events import Done, Event
from corral.values import Json

if TYPE_CHECKING:
    from corral._metering.budget import Budget
    from corral._pipelines.execution.interviewers import AskPerson

NOWHERE = Path(os.devnull)


class DueAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The next attempt of a visit."""

    visit: RunNode
    attempt: int = 1
    waits: int = 0
    """Rate limits that the visit has waited for. Going on after one is not another attempt."""
    earlier: Outcome | None = None
    """The outcome of the attempts before, with what they cost together."""
    until: float = 0.0
    """When it may start, in seconds since the epoch."""

    @property
    def number(self) -> int:
        """Unique in the visit: an attempt that goes on after a rate limit is another job for an
        agent host, and another step of a journal."""
        return self.attempt + self.waits

    def following(self, outcome: Outcome, *, is_wait: bool, until: float = 0.0) -> DueAttempt:
        """The attempt after this one. ``outcome``: that of all attempts so far."""
        if not is_wait:
            return replace(self, attempt=self.attempt + 1, earlier=outcome, until=until)
        visit, session = self.visit, outcome.context_updates.get(AFTER_LIMIT)
        if isinstance(session, dict) and session.get("resume_token"):
            # Go on in the session that the limit ended.
            thread = visit.thread or visit.id
            updates: dict[str, Json] = {AFTER_LIMIT: session, f"internal.thread.{thread}": session}
            context = {**visit.context, **updates}
            visit = replace(visit, fidelity="full", thread=thread, context=context)
        return replace(self, visit=visit, waits=self.waits + 1, earlier=outcome, until=until)

    def retrying(self, result: AttemptResult) -> Retrying:
        """What is reported before the pause after this attempt."""
        return Retrying(
            visit=self.visit.id,
            node=self.visit.node,
            attempt=self.attempt,
            delay=result.pause or 0.0,
            reason=result.outcome.failure_reason,
        )


class AttemptResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of an attempt, and whether another one follows. Written to journals."""

    outcome: Outcome
    pause: float | None = None
    """Seconds until the next attempt; None: no further attempt."""
    is_wait: bool = False
    """The pause is a wait for a rate limit: the attempt goes on after it."""
    until: float = 0.0
    """When that wait ends, in seconds since the epoch. 0: recorded by an older corral, which sleeps
    in the workflow."""


class Retrying(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="retrying"):
    """A message from a visit to its run: another attempt follows. For display; of a local node also
    what the next attempt needs."""

    visit: str
    node: str
    attempt: int
    delay: float
    reason: str = ""
    outcome: Outcome | None = None
    """Of a local node: the outcome of the attempts so far."""
    until: float = 0.0
    """Of a local node: when the next attempt starts, in seconds since the epoch."""
    is_wait: bool = False
    """Of a local node: the attempt goes on after a rate limit."""


Attempt: TypeAlias = Callable[[RunNode, int], Awaitable[Outcome]]
"""Makes the attempt with this number."""


async def attempt(run: Attempt, graph: Graph, run_id: str, due: DueAttempt) -> AttemptResult:
    """Make an attempt and decide what follows. Raises nothing but a cancellation: a bug must fail
    its node, not hang its run."""
    try:
        outcome = await run(due.visit, due.number)
    except CorralError as error:
        outcome = outcome_of_error(error)
    except Exception as error:
        outcome = failed(f"{type(error).__name__}: {error}".removesuffix(": "))
    if outcome.resets_at is None:
        return after_attempt(graph, run_id, due, outcome)
    from corral._metering.rate_limits import wait_end

    until = wait_end(outcome.resets_at)
    pause = max(0.0, until - clock.now())
    return AttemptResult(outcome=outcome, pause=pause, is_wait=True, until=until)


def after_attempt(graph: Graph, run_id: str, due: DueAttempt, outcome: Outcome) -> AttemptResult:
    """Apply the retry rule to the outcome of an attempt."""
    node = due.visit.definition or graph.nodes.get(due.visit.node)
    if node is None:  # the record of another pipeline
        return AttemptResult(outcome=outcome)
    match retry.after(graph, node, outcome, due.attempt, f"{run_id}/{due.visit.id}"):
        case retry.Pause(seconds=seconds):
            return AttemptResult(outcome=outcome, pause=seconds)
        case final:
            return AttemptResult(outcome=final)


async def run_visit(
    visit: RunNode,
    make: Callable[[DueAttempt], Awaitable[AttemptResult]],
    pause: Callable[[DueAttempt, AttemptResult], Awaitable[None]],
) -> Outcome:
    """Run a visit with all its attempts. ``pause`` is called between two of them."""
    due = DueAttempt(visit=visit)
    while True:
        result = await make(due)
        outcome = retry.with_earlier_cost(result.outcome, due.earlier)
        if result.pause is None:
            return outcome
        await pause(due, result)
        due = due.following(outcome, is_wait=result.is_wait)


@dataclass(kw_only=True)
class NodeRunner:
    """Runs the nodes of one run in this process."""

    run_id: str
    graph: Graph
    resources: NodeResources
    workspace: Path
    started_in: str = ""
    """The repository of the run's worktree, if it has one."""
    folder: RunDir | None = None
    """None: the files of built-in nodes go to a temporary directory that ``close`` removes, and
    others write none."""
    on_event: Callable[[Event], None] | None = None
    """Called with each event of the nodes' agents."""
    budget: Budget | None = None
    """What the model calls of the nodes may use together."""
    ask_person: AskPerson | None = None
    longest_hold: float | None = None
    perform: Callable[[NodeContext], Awaitable[Outcome]] = execution_attempt.attempt
    """Calls the handler."""
    _temporary: fs.TemporaryFolder | None = None

    def close(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    async def run(self, visit: RunNode, on_retry: Callable[[Retrying], None]) -> Outcome:
        """Run a visit with all its attempts; ``on_retry`` is called before each pause."""

        async def pause(due: DueAttempt, result: AttemptResult) -> None:
            on_retry(due.retrying(result))
            await asyncio.sleep(result.pause or 0.0)

        return await run_visit(
            visit, partial(attempt, self.attempt, self.graph, self.run_id), pause
        )

    async def attempt(self, visit: RunNode, number: int) -> Outcome:
        """Make one attempt. Raises ``OSError`` and ``StorageFailed`` if its directory cannot be
        written."""
        node, folder = node_of(self.graph, visit), self.folder
        visit_dir, writes_files = NOWHERE, False
        is_own = not handlers.is_built_in(handlers.for_node(node))
        if folder is None and not is_own:
            if self._temporary is None:
                self._temporary = fs.temporary_folder("corral-run-")
            folder = RunDir(self._temporary.name)
        if folder is not None:
            visit_dir = folder.make_visit_dir(visit.id, visit.node)
            writes_files = True
            decision = apply_crash_rule(visit_dir, node, visit, number)
            if isinstance(decision, Outcome):
                return decision
            node, visit = decision

        def emit(event: Event) -> None:
            if self.on_event is not None:
                self.on_event(event if event.node == node.id else replace(event, node=node.id))

        place = self.started_in or str(self.workspace)
        part_of = PART_OF.set(PartOf(run_of(self.run_id), visit.id, place))
        budget = None if self.budget is None else self.budget.part(f"{self.run_id}/{visit.id}")
        try:
            if budget is not None and is_own:
                budget.check()
            outcome = await self.perform(
                NodeContext(
                    run_id=self.run_id,
                    graph=self.graph,
                    node=node,
                    visit=visit,
                    attempt=number,
                    folder=visit_dir,
                    run_folder=NOWHERE if folder is None else folder.path,
                    workspace=self.workspace,
                    resources=self.resources,
                    emit=emit,
                    budget=budget,
                    ask_person=self.ask_person,
                    writes_files=writes_files,
                    longest_hold=self.longest_hold,
                )
            )
            if budget is not None and is_own:
                # Built-in nodes have counted each model call.
                budget.record(Spent(outcome.cost_usd or 0.0, outcome.tokens or 0))
            return outcome
        finally:
            PART_OF.reset(part_of)
            if budget is not None:
                budget.close()


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
    was_started = fs.exists(marker)
    fs.append(marker, b"")
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
