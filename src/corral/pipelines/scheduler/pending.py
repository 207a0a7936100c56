"""What a plan has ordered, and what of it is still open.

An order is made from the state alone, so that one that is still open can be given again.
"""

from __future__ import annotations

from typing import Literal

from corral.pipelines import events as told
from corral.pipelines import graph as pipelines_graph
from corral.pipelines import templates
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
from corral.pipelines.scheduler.state import Lane, Open, State, copied, without_own

What = Literal["visit", "ask", "child", "wait"]


class PendingCommands:
    def __init__(self, graph: Graph, state: State, routes: Routes) -> None:
        self._graph = graph
        self._state = state
        self._routes = routes
        self._orders: list[Command] = []

    def add(self, order: Command) -> None:
        self._orders.append(order)

    def tell(self, event: told.PipelineEvent) -> None:
        self._state.told += 1
        self._orders.append(EmitEvent(number=self._state.told, event=event))

    def take(self) -> list[Command]:
        """The orders since the last time."""
        orders, self._orders = self._orders, []
        return orders

    def open(self, lane: Lane, id: str, what: What) -> None:
        """Order it. Raises ``ValueError`` where an attribute of the node is of no use."""
        opened = Open(lane.id, what)
        order = self.order_of(id, opened)
        self._state.open[id] = opened
        lane.open.append(id)
        self.add(order)
        if isinstance(order, AskHuman):
            asked = order.question
            labels = tuple(choice.label for choice in asked.choices)
            self.tell(
                told.InterviewStarted(node=lane.node, visit=id, question=asked.text, choices=labels)
            )

    def close(self, lane: Lane, answered: str | None = None) -> None:
        """Nothing of this lane is waited for any more; what was not answered is to end."""
        for id in lane.open:
            del self._state.open[id]
            if id != answered:
                self.add(Stop(id=id))
        lane.open = []

    def answered(self, lane: Lane, id: str) -> None:
        """This one is; the rest stays open."""
        del self._state.open[id]
        lane.open.remove(id)

    def pending(self) -> list[Command]:
        return [self.order_of(id, opened) for id, opened in self._state.open.items()]

    def order_of(self, id: str, opened: Open) -> Command:
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
                    context=copied(without_own(lane.context)),
                )
            case "wait":
                child = lane.visit if lane.visit in self._state.open else ""
                return Wait(id=id, node=node.id, seconds=pipelines_graph.poll(node), child=child)
            case "visit":
                return self._visit(id, lane, node)

    def question(self, lane: Lane, node: Node) -> Question:
        id = lane.visit if lane.attempt == 1 else f"{lane.visit}#{lane.attempt}"
        return human_gate.question(self._graph, node, self._routes.options(node), id, lane.context)

    def _filled(self, text: str, lane: Lane) -> str:
        return templates.fill(text, lane.context, self._graph.goal)

    def _visit(self, id: str, lane: Lane, node: Node) -> RunNode:
        fidelity = (
            lane.fidelity
            or node.text("fidelity")
            or str(self._graph.attrs.get("default_fidelity") or "compact")
        )
        return RunNode(
            id=id,
            node=node.id,
            number=lane.number,
            context=copied(lane.context),
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
