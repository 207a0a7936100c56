"""The guarantees of the scheduler, for generated graphs and orders of messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral._pipelines.graph import Edge, Graph, Node
from corral._pipelines.scheduler.commands import (
    Answer,
    Answered,
    AskHuman,
    Cancelled,
    Command,
    Ended,
    Expired,
    Message,
    RunChild,
    RunNode,
    Stop,
    Wait,
    Woken,
)
from corral._pipelines.scheduler.outcome import Outcome
from corral._pipelines.scheduler.scheduler import Scheduler
from corral._pipelines.scheduler.state import from_json, to_json

KINDS = (
    ["codergen"] * 3
    + ["conditional", "parallel", "parallel", "parallel.fan_in", "parallel.fan_in", "wait.human"]
    + ["include", "stack.manager_loop", "exit"]
)
CONDITIONS = ["", "", "", "outcome=success", "outcome=fail", "preferred_label=x", "n > <", "flag"]
STATUSES = ["success", "success", "fail", "partial_success", "retry", "skipped"]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    names = [f"n{number}" for number in range(draw(st.integers(1, 9)))]
    nodes = {"s": Node("s", {"type": "start"}), "e": Node("e", {"type": "exit"})}
    every = [*names, "e"]
    for name in names:
        attrs: dict[str, Any] = {"type": draw(st.sampled_from(KINDS))}
        if draw(st.booleans()):
            attrs["goal_gate"] = draw(st.booleans())
            attrs["retry_target"] = draw(st.sampled_from([*every, "gone"]))
        if attrs["type"] == "parallel":
            attrs["max_parallel"] = draw(st.integers(1, 3))
            attrs["join_policy"] = draw(st.sampled_from(["wait_all", "first_success"]))
        if attrs["type"] in ("parallel.fan_in", "stack.manager_loop") and draw(st.booleans()):
            attrs["prompt"] = "pick"
        if attrs["type"] == "wait.human":
            attrs["max_retries"] = draw(st.integers(0, 2))
        attrs |= {"stack.child_dotfile": "x.dot", "manager.max_cycles": 3}
        attrs["manager.actions"] = "observe,steer,wait"
        nodes[name] = Node(name, attrs)
    edges = [Edge("s", names[0])]
    for source in names:
        for target in draw(st.lists(st.sampled_from(every), max_size=4)):
            edge: dict[str, Any] = {"weight": draw(st.integers(0, 2))}
            condition = draw(st.sampled_from(CONDITIONS))
            if condition and ">" not in condition:
                edge["condition"] = condition
            if draw(st.integers(0, 9)) == 0:
                edge["loop_restart"] = True
            if draw(st.booleans()):
                edge["label"] = draw(st.sampled_from(["x", "[X] x", "y"]))
            edges.append(Edge(source, target, edge))
    attrs = {"max_visits": draw(st.integers(1, 4)), "goal": "g"}
    return Graph("random", attrs, nodes, edges)


class RandomDriver:
    """A driver that carries out commands in an order that generated numbers decide."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.open: dict[str, str] = {}
        self.ever: set[str] = set()

    def take(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case RunNode(id=id) | RunChild(id=id):
                    self._opened(id, "visit")
                case Wait(id=id):
                    self._opened(id, "wait")
                case AskHuman(question=question):
                    self._opened(question.id, "ask")
                case Stop(id=id):
                    del self.open[id]
                case _:
                    pass

    def _opened(self, id: str, what: str) -> None:
        assert id not in self.ever, "an id is used once in a run"
        self.ever.add(id)
        self.open[id] = what

    def message(self, data: st.DataObject) -> Message:
        draw = data.draw
        id = draw(st.sampled_from(sorted(self.open)))
        match self.open.pop(id):
            case "wait":
                return Woken(id=id, seen={"status": "running"})
            case "ask" if draw(st.booleans()):
                return Expired(id=id)
            case "ask":
                answer = Answer(value=draw(st.sampled_from(["x", "y", "e", "?"])))
                return Answered(id=id, answer=answer)
            case _:
                status: Any = draw(st.sampled_from(STATUSES))
                updates: dict[str, Any] = {"flag": draw(st.booleans()), "deep": {"a": [id]}}
                outcome = Outcome(
                    status=status,
                    preferred_label=draw(st.sampled_from(["", "x"])),
                    suggested_next_ids=("n1",),
                    context_updates=updates,
                    attempts=draw(st.integers(1, 3)),
                    tokens=1,
                )
                return Ended(id=id, outcome=outcome)


@pytest.mark.deep
@settings(max_examples=100)
@given(st.data())
def test_every_run_ends_and_continues_after_a_json_round_trip(
    data: st.DataObject,
) -> None:
    graph = data.draw(graphs())
    original, resumed = Scheduler(graph, run_id="r"), Scheduler(graph, run_id="r")
    driver = RandomDriver(graph)
    commands = original.start()
    assert resumed.start() == commands
    driver.take(commands)
    messages: list[Message] = []
    while original.state.finish is None:
        assert driver.open, "nothing is open and the run has not ended"
        assert set(original.state.open) == set(driver.open)
        message = driver.message(data)
        messages.append(message)
        commands = original.receive(message)
        driver.take(commands)
        stored = to_json(resumed.state)
        assert to_json(from_json(stored)) == stored
        resumed = Scheduler(graph, state=from_json(stored))
        assert resumed.receive(message) == commands, "the resumed scheduler gives other commands"
        assert to_json(resumed.state) == to_json(original.state)
        assert original.receive(message) == [], "the same message twice"
    assert commands[-1] == original.state.finish
    assert not driver.open
    assert not original.state.open
    assert not original.state.forks
    assert set(original.state.lanes) == {""}
    most = int(graph.attrs["max_visits"])
    assert all(count <= most for count in original.state.visits.values())
    replayed = Scheduler(graph, run_id="r")
    replayed.start()
    for message in messages:
        replayed.receive(message)
    assert to_json(replayed.state) == to_json(original.state)


@pytest.mark.deep
@settings(max_examples=100)
@given(st.data())
def test_a_cancelled_run_leaves_nothing_open(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    scheduler, driver = Scheduler(graph), RandomDriver(graph)
    driver.take(scheduler.start())
    for _ in range(data.draw(st.integers(0, 12))):
        if scheduler.state.finish is None:
            driver.take(scheduler.receive(driver.message(data)))
    driver.take(scheduler.receive(Cancelled(reason="enough")))
    assert scheduler.state.finish is not None
    assert not driver.open
    assert not scheduler.state.open
