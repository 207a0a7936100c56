"""The commands of a scheduler: those to hand out now, and those that wait for a reply.

A command is built from the state alone, so that one without a reply can be given again after the
state went through JSON.
"""

from __future__ import annotations

from typing import Literal

from corral.pipelines import events, templates
from corral.pipelines import graph as pipelines_graph
from corral.pipelines.graph import Graph, Node
from corral.pipelines.scheduler import human_gate
from corral.pipelines.scheduler.commands import (
    AskHuman,
    Child,
    Command,
    EmitEvent,
    Question,
    RunNode,
    Stop,
    Wait,
)
from corral.pipelines.scheduler.routing import Routes
from corral.pipelines.scheduler.state import Lane, Open, State, deep_copy, without_internal_keys

What = Literal["visit", "ask", "child", "wait"]


class PendingCommands:
    """Shares the state with the traversal, and records there what is open."""

    def __init__(self, graph: Graph, state: State, routes: Routes) -> None:
        self._graph = graph
        self._state = state
        self._routes = routes
        self._commands: list[Command] = []

    def add(self, command: Command) -> None:
        self._commands.append(command)

    def emit(self, event: events.PipelineEvent) -> None:
        self._state.event_count += 1
        self._commands.append(EmitEvent(number=self._state.event_count, event=event))

    def take(self) -> list[Command]:
        """The commands since the last call."""
        commands, self._commands = self._commands, []
        return commands

    def open(self, lane: Lane, id: str, what: What) -> None:
        """Give a command and wait for its reply. Raises ``ValueError`` if an attribute of the node
        is invalid."""
        opened = Open(lane.id, what)
        command = self._command(id, opened)
        self._state.open[id] = opened
        lane.open.append(id)
        self.add(command)
        if isinstance(command, AskHuman):
            text = command.question.text
            labels = tuple(choice.label for choice in command.question.choices)
            self.emit(
                events.InterviewStarted(node=lane.node, visit=id, question=text, choices=labels)
            )

    def close(self, lane: Lane, answered: str | None = None) -> None:
        """The lane waits for nothing any more: stop all of its commands but the answered one."""
        for id in lane.open:
            del self._state.open[id]
            if id != answered:
                self.add(Stop(id=id))
        lane.open = []

    def close_one(self, lane: Lane, id: str) -> None:
        """This command has its reply; the lane's others stay open."""
        del self._state.open[id]
        lane.open.remove(id)

    def open_commands(self) -> list[Command]:
        """The commands without a reply, built again."""
        return [self._command(id, opened) for id, opened in self._state.open.items()]

    def _command(self, id: str, opened: Open) -> Command:
        lane = self._state.lanes[opened.lane]
        node = self._graph.nodes[lane.node]
        match opened.what:
            case "ask":
                return AskHuman(question=self.question(lane, node))
            case "child":
                return Child(
                    id=id,
                    node=node.id,
                    dotfile=self._filled(pipelines_graph.dotfile(self._graph, node), lane),
                    workdir=self._filled(pipelines_graph.workdir(self._graph, node), lane),
                    context=deep_copy(without_internal_keys(lane.context)),
                )
            case "wait":
                child = lane.visit if lane.visit in self._state.open else ""
                return Wait(id=id, node=node.id, seconds=pipelines_graph.poll(node), child=child)
            case "visit":
                return self._run_node(id, lane, node)

    def question(self, lane: Lane, node: Node) -> Question:
        id = lane.visit if lane.attempt == 1 else f"{lane.visit}#{lane.attempt}"
        return human_gate.build_question(
            self._graph, node, self._routes.options(node), id, lane.context
        )

    def _filled(self, text: str, lane: Lane) -> str:
        return templates.fill(text, lane.context, self._graph.goal)

    def _run_node(self, id: str, lane: Lane, node: Node) -> RunNode:
        fidelity = (
            lane.fidelity
            or node.text("fidelity")
            or str(self._graph.attrs.get("default_fidelity") or "compact")
        )
        return RunNode(
            id=id,
            node=node.id,
            number=lane.number,
            context=deep_copy(lane.context),
            fidelity=fidelity,
            thread=self._thread(lane, node) if fidelity == "full" else None,
            previous=lane.previous,
        )

    def _thread(self, lane: Lane, node: Node) -> str | None:
        return (
            node.text("thread_id")
            or lane.thread
            or str(self._graph.attrs.get("thread_id", ""))
            or node.within
            or lane.previous
        )
