"""What the modules of the scheduler share while they handle a message.

A ``RunContext`` collects the commands that the message leads to, and remembers which commands
have no reply. It builds a command from the state alone, so that a command without a reply can be
given again after the state was stored as JSON.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property

from corral._pipelines import events, templates
from corral._pipelines import graph as pipelines_graph
from corral._pipelines.graph import Graph, Node
from corral._pipelines.scheduler import human_gate, merge
from corral._pipelines.scheduler.commands import (
    AskHuman,
    Command,
    EmitEvent,
    Question,
    RunChild,
    RunNode,
    Stop,
    Wait,
)
from corral._pipelines.scheduler.joins import BranchSection, Joins
from corral._pipelines.scheduler.routing import Routes
from corral._pipelines.scheduler.state import (
    Fork,
    Open,
    RunLane,
    State,
    What,
    deep_copy,
    without_internal_keys,
)


class RunContext:
    """The graph and the state of a run, and the commands since the last ``take_commands``. Raises
    ``ConditionError`` if a condition in the graph is invalid."""

    def __init__(self, graph: Graph, state: State) -> None:
        self.graph = graph
        self.state = state
        self.routes: Routes = Routes(graph)
        self.ready: deque[RunLane] = deque()
        """Lanes that are at a node which they have not entered yet."""
        self._commands: list[Command] = []
        self._sections: dict[str, BranchSection] = {}

    def node_of(self, lane: RunLane) -> Node:
        return self.graph.nodes[lane.node]

    def section(self, fork_id: str) -> BranchSection:
        """Where the branches of this fork run and join."""
        if fork_id not in self._sections:
            fork = self.state.forks[fork_id]
            lane = self.state.lanes[fork.lane]
            outer = self.section(lane.fork).behind if lane.fork else frozenset[str]()
            heads = (branch.target for branch in fork.branches)
            self._sections[fork_id] = self._joins.section(lane.node, heads, outer)
        return self._sections[fork_id]

    @cached_property
    def _joins(self) -> Joins:
        return Joins(self.graph)

    # Commands to hand out.

    def add(self, command: Command) -> None:
        self._commands.append(command)

    def emit(self, event: events.PipelineEvent) -> None:
        self.state.event_count += 1
        self._commands.append(EmitEvent(number=self.state.event_count, event=event))

    def take_commands(self) -> list[Command]:
        """The commands since the last call."""
        commands, self._commands = self._commands, []
        return commands

    # Commands that wait for a reply.

    def open(self, lane: RunLane, id: str, what: What) -> None:
        """Give a command and wait for its reply. Raises ``ValueError`` if an attribute of the node
        is invalid."""
        opened = Open(lane.id, what)
        command = self._command(id, opened)
        self.state.open[id] = opened
        lane.open.append(id)
        self.add(command)
        if isinstance(command, AskHuman):
            asked = command.question
            self.emit(
                events.InterviewStarted(
                    node=lane.node,
                    visit=id,
                    question=asked.text,
                    choices=tuple(choice.label for choice in asked.choices),
                    timeout=asked.timeout,
                    at_deadline="" if asked.timeout is None else asked.at_deadline,
                )
            )

    def close(self, lane: RunLane, answered: str | None = None) -> None:
        """The lane waits for nothing any more: stop all of its commands but the answered one."""
        for id in lane.open:
            del self.state.open[id]
            if id != answered:
                self.add(Stop(id=id))
        lane.open = []

    def close_one(self, lane: RunLane, id: str) -> None:
        """This command has its reply; the other commands of the lane stay open."""
        del self.state.open[id]
        lane.open.remove(id)

    def stop_lane(self, lane: RunLane) -> None:
        """Stop everything that this lane waits for, its own branches first."""
        for fork in [fork for fork in self.state.forks.values() if fork.lane == lane.id]:
            self.stop_fork(fork)
        self.close(lane)

    def stop_fork(self, fork: Fork) -> None:
        """Stop the branches of a fork that still run, and remove the fork."""
        state = self.state
        for number, branch in enumerate(fork.branches):
            lane = state.lanes.get(fork.lane_id(number))
            if lane is not None:
                self.stop_lane(lane)
                del state.lanes[lane.id]
            if branch.status in ("running", "waiting"):
                was_running, branch.status = branch.status == "running", "cancelled"
                if was_running:
                    self.emit_branch_completed(fork, number)
        del state.forks[fork.id]
        self._sections.pop(fork.id, None)

    def emit_branch_completed(self, fork: Fork, number: int) -> None:
        branch = fork.branches[number]
        node = self.state.lanes[fork.lane].node
        self.emit(
            events.BranchCompleted(node=node, visit=fork.id, branch=branch.id, status=branch.status)
        )

    # Building a command.

    def _command(self, id: str, opened: Open) -> Command:
        lane = self.state.lanes[opened.lane]
        node = self.node_of(lane)
        match opened.what:
            case "ask" if lane.merging is not None:
                return AskHuman(question=merge.question(lane, node, lane.merging))
            case "ask":
                return AskHuman(question=self.question(lane, node))
            case "child":
                return RunChild(
                    id=id,
                    node=node.id,
                    dotfile=self._filled(pipelines_graph.dotfile(self.graph, node), lane),
                    workdir=self._filled(pipelines_graph.workdir(self.graph, node), lane),
                    context=deep_copy(without_internal_keys(lane.context)),
                    worktrees=lane.worktrees,
                )
            case "wait":
                child = lane.visit if lane.visit in self.state.open else ""
                seconds = pipelines_graph.poll_interval(node)
                return Wait(id=id, node=node.id, seconds=seconds, child=child)
            case "visit":
                fidelity = (
                    lane.fidelity
                    or node.text("fidelity")
                    or str(self.graph.attrs.get("default_fidelity") or "compact")
                )
                thread: str | None = None
                if fidelity == "full":
                    thread = (
                        node.text("thread_id")
                        or lane.thread
                        or str(self.graph.attrs.get("thread_id", ""))
                        or node.within
                        or lane.previous
                    )
                return RunNode(
                    id=id,
                    node=node.id,
                    number=lane.number,
                    context=deep_copy(lane.context),
                    fidelity=fidelity,
                    thread=thread,
                    previous=lane.previous,
                    worktrees=lane.worktrees,
                    merges=() if lane.merging is None else lane.merging.merges,
                    chosen="" if lane.merging is None else lane.merging.chosen,
                )

    def question(self, lane: RunLane, node: Node) -> Question:
        """The question of a human gate. Raises ``ValueError``."""
        id = lane.visit if lane.attempt == 1 else f"{lane.visit}#{lane.attempt}"
        edges = self.graph.edges_from(node.id)
        return human_gate.build_question(self.graph, node, edges, id, lane.context)

    def _filled(self, text: str, lane: RunLane) -> str:
        return templates.fill(text, lane.context, self.graph.goal)
