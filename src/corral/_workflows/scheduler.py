"""The scheduler of a workflow: what its program does, as the commands, events and state of a run.

Theory of operation
-------------------
It has the interface of ``pipelines.scheduler.Scheduler``: messages in, commands out, no I/O. Where
that one follows the edges of a graph, this one is told by the program: ``take`` gets what the
program did until it had to wait (a ``ProgramTurn``) and returns the commands for its steps. A step
is a visit of a node that exists only in this run, so everything that handles visits, questions and
waits, such as workers, agent hosts, budgets and the page, handles steps.

``receive`` gets the messages that the commands lead to. What the program must learn of them
is in ``take_ends``: then it goes on, and the next turn comes.

A run that continues another has ``known`` steps. A step with the path and the inputs of one of
them, or with the same name at its end and the same inputs, has its result: nothing is run.

Guarantees: as those of the other scheduler. It never calls the program, so that a process that only
shows a run (``engine.query``) does not run the program: it passes the recorded turns and messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec.structs import replace

from corral._pipelines import events
from corral._pipelines.graph import Graph, Node
from corral._pipelines.scheduler import human_gate
from corral._pipelines.scheduler.commands import (
    Answered,
    AskHuman,
    BranchWork,
    Cancelled,
    Checkpoint,
    Command,
    EmitEvent,
    Ended,
    Expired,
    FinishRun,
    Message,
    Question,
    RunNode,
    Stop,
    Wait,
    Woken,
)
from corral._pipelines.scheduler.outcome import RESULT, Outcome, failed
from corral._pipelines.scheduler.state import LEFT_OUT, TRUNK, WORKTREE, Open, RunLane, State, What
from corral._workflows.program_turn import DRAWN, KnownStep, ProgramTurn, Step, StepEnd
from corral.values import Json, convert_to

KEPT = "kept from the run that this one continues"


class WorkflowScheduler:
    """``graph`` has the name, the goal and the limits of the run, and no nodes."""

    def __init__(
        self,
        graph: Graph,
        *,
        run_id: str = "",
        known: Mapping[str, KnownStep] | None = None,
    ) -> None:
        lane = RunLane(context={"graph.goal": graph.goal, "graph.name": graph.name})
        self.state: State = State(run_id=run_id, lanes={TRUNK: lane})
        self.kept: dict[str, str] = {}
        """Steps whose result is known, and the ids that they had in the other run."""
        self._graph = graph
        self._known = dict(known or {})
        self._by_digest: dict[str, list[str]] = {}
        for id, step in self._known.items():
            self._by_digest.setdefault(step.digest, []).append(id)
        self._steps: dict[str, Step] = {}
        """Those that have not ended."""
        self._ends: list[StepEnd] = []
        self._commands: list[Command] = []

    def start(self) -> list[Command]:
        self.state.started = True
        self._emit(events.PipelineStarted(name=self._graph.name, goal=self._graph.goal))
        return self._take_commands()

    # What the program did.

    def find_known(self, turn: ProgramTurn) -> dict[str, KnownStep]:
        """The steps of this turn whose results are known. Each known result is used once."""
        found: dict[str, KnownStep] = {}
        for step in turn.steps:
            same = self._by_digest.get(step.digest)
            if not same:
                continue
            name = _last_part(step.name)
            id = step.id if step.id in same else next(
                (each for each in same if _last_part(each.rpartition(".")[0]) == name), None
            )  # fmt: skip
            if id is not None and self._known[id].kind == step.kind:
                same.remove(id)
                found[step.id] = self._known[id]
                self.kept[step.id] = id
        return found

    def take(self, turn: ProgramTurn, known: Mapping[str, KnownStep]) -> list[Command]:
        """The commands that follow from what the program did. ``known``: see ``find_known``."""
        for id in turn.stopped:
            if self.state.open.pop(id, None) is not None:
                step = self._steps.pop(id)
                self._add(Stop(id=id))
                self._record(step, Outcome(status="skipped", notes="the workflow stopped it"))
        for step in turn.steps:
            self._begin(step, known.get(step.id))
        if turn.end is not None:
            if turn.end.ok:
                self.state.context[RESULT] = turn.end.result
            self._finish("success" if turn.end.ok else "fail", turn.end.reason)
        return self._take_commands()

    def fail(self, reason: str) -> list[Command]:
        """End the run."""
        self._finish("fail", reason)
        return self._take_commands()

    def take_ends(self) -> list[StepEnd]:
        """The ends of steps since the last call, in order."""
        ends, self._ends = self._ends, []
        return ends

    def _begin(self, step: Step, known: KnownStep | None) -> None:
        if step.kind in DRAWN:
            self._ends.append(StepEnd(id=step.id, value=step.value))
            return
        node, state = step.node, self.state
        if node is None:
            raise ValueError(f"the step {step.id!r} has no node")
        state.trunk.node = node.id
        state.visits[node.id] = 1
        self._steps[step.id] = step
        self._emit(events.StepStarted(node=node.id, visit=step.id, kind=node.kind))
        what: What = "ask" if step.question is not None else "wait"
        what = "visit" if step.kind == "visit" else what
        state.open[step.id] = Open(TRUNK, what)
        branches: tuple[BranchWork, ...] = ()
        if known is not None and known.message is not None:
            # Its message names the step of the other run.
            self._end(step, replace(known.message, id=step.id), is_known=True)
        elif step.merges and not (branches := self._branches_of(step)):
            self._end(step, Ended(id=step.id, outcome=Outcome(notes="nothing to merge")))
        elif step.kind == "visit":
            thread = step.thread
            context = step.inputs
            if step.worktrees:
                own = {key: state.context.get(key) for key in map(_key_of, step.worktrees)}
                context = {**context, **own}
                # So that the end of the run knows that there is a worktree.
                state.context.update(own)
            self._add(
                RunNode(
                    id=step.id,
                    node=node.id,
                    number=1,
                    context=context,
                    fidelity="full" if thread else "compact",
                    thread=thread,
                    worktrees=step.worktrees,
                    merges=branches,
                    chosen=step.chosen,
                    definition=node,
                )
            )
        elif step.question is not None:
            self._ask(node, step.question)
        else:
            self._add(Wait(id=step.id, node=node.id, seconds=step.seconds))

    def _branches_of(self, step: Step) -> tuple[BranchWork, ...]:
        """What the branches that a step merges have done."""
        found = ((name, self.state.context.get(_key_of(name))) for name in step.merges)
        return tuple(
            replace(convert_to(done, BranchWork), id=name)
            for name, done in found
            if done is not None
        )

    def _ask(self, node: Node, question: Question) -> None:
        self._add(AskHuman(question=question))
        self._emit(
            events.InterviewStarted(
                node=node.id,
                visit=question.id,
                question=question.text,
                choices=tuple(choice.label for choice in question.choices),
                timeout=question.timeout,
                at_deadline="" if question.timeout is None else question.at_deadline,
            )
        )

    # What the commands led to.

    def receive(self, message: Message) -> list[Command]:
        """The commands that follow from this message. One of a step that has ended changes
        nothing."""
        if self.state.finish is not None or not self.state.started:
            return []
        match message:
            case Cancelled():
                self._finish("cancelled", message.reason or "cancelled")
            case Ended() | Answered() | Expired() | Woken():
                if message.id in self.state.open:
                    self._end(self._steps[message.id], message)
            case _:
                pass
        return self._take_commands()

    def _end(self, step: Step, message: Message, *, is_known: bool = False) -> None:
        outcome = Outcome()
        value: Json = None
        match message:
            case Ended():
                outcome = message.outcome
                value = outcome.context_updates.get(LEFT_OUT if step.merges else RESULT)
                self._keep_work(step, outcome)
            case Answered() if step.question is not None:
                text = human_gate.answer_text(step.question, message.answer)
                self._emit(
                    events.InterviewCompleted(
                        node=step.name, visit=step.id, answer=text, by=message.by
                    )
                )
                outcome = human_gate.outcome_of_answer(step.question, message.answer)
                value = _answer_value(step.question, outcome, message.by)
            case Expired() if step.question is not None:
                self._emit(events.InterviewTimeout(node=step.name, visit=step.id))
                outcome = human_gate.outcome_of_timeout(step.question)
                if outcome.status == "retry":
                    outcome = failed("no answer before the timeout", failure_class="timeout")
                value = _answer_value(step.question, outcome, "")
            case _:
                pass
        if is_known:
            outcome = replace(outcome, notes=KEPT)
        del self.state.open[step.id], self._steps[step.id]
        self._record(step, outcome)
        if outcome.ok:
            self._ends.append(StepEnd(id=step.id, value=value))
        else:
            reason = outcome.failure_reason or f"it ended with {outcome.status}"
            self._ends.append(
                StepEnd(
                    id=step.id,
                    value=value if step.merges else None,
                    error=reason,
                    failure_class=outcome.failure_class,
                )
            )

    def _keep_work(self, step: Step, outcome: Outcome) -> None:
        """Keep what the step has done in the worktree of its branch. A step of another run named
        that branch otherwise."""
        done = [value for key, value in outcome.context_updates.items() if key.startswith(WORKTREE)]
        if done and step.worktrees:
            self.state.context[_key_of(step.worktrees[-1])] = done[-1]

    def _record(self, step: Step, outcome: Outcome) -> None:
        state = self.state
        state.completed.append(step.name)
        state.outcomes[step.name] = replace(outcome, context_updates={})
        state.cost_usd += outcome.cost_usd or 0.0
        state.tokens += outcome.tokens or 0
        ended: events.PipelineEvent
        if outcome.status in ("fail", "retry"):
            ended = events.StepFailed(
                node=step.name,
                visit=step.id,
                reason=outcome.failure_reason,
                attempts=outcome.attempts,
            )
        else:
            ended = events.StepCompleted(
                node=step.name,
                visit=step.id,
                status=outcome.status,
                notes=outcome.notes,
                attempts=outcome.attempts,
            )
        self._emit(ended)
        if step.kind == "visit":
            self._add(Checkpoint(node=step.name))
        else:  # no handler has written its outcome down
            self._add(Checkpoint(node=step.name, visit=step.id, outcome=outcome))

    def _finish(self, status: Literal["success", "fail", "cancelled"], reason: str) -> None:
        state = self.state
        for id in [*state.open]:
            del state.open[id], self._steps[id]
            self._add(Stop(id=id))
        state.finish = FinishRun(status=status, reason=reason)
        if status == "success":
            self._emit(events.PipelineCompleted())
        else:
            self._emit(events.PipelineFailed(reason=reason, cancelled=status == "cancelled"))
        self._add(state.finish)

    def _emit(self, event: events.PipelineEvent) -> None:
        self.state.event_count += 1
        self._add(EmitEvent(number=self.state.event_count, event=event))

    def _add(self, command: Command) -> None:
        self._commands.append(command)

    def _take_commands(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands


def _key_of(branch: str) -> str:
    """The key of the context that has what a branch with its own worktree has done."""
    return f"{WORKTREE}{branch}"


def _last_part(name: str) -> str:
    """The name of a step without its scopes and its number."""
    return name.rpartition(".")[2].rstrip("0123456789").removesuffix("-")


def _answer_value(question: Question, outcome: Outcome, by: str) -> Json:
    """The label of the choice, or the text; with the comment beside a choice."""
    updates = outcome.context_updates
    text = updates.get("human.gate.text", "")
    if not question.choices:
        return {"text": text, "by": by}
    return {"text": updates.get("human.gate.label", ""), "comment": text, "by": by}
