"""Killed at any moment, a run goes on as if nothing had been: nothing lost, nothing twice."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from engine_world import World

CHAIN = """digraph chain {
    start [shape=Mdiamond]; exit [shape=Msquare]
    a [type="t.step"]; b [type="t.step", fails=1, max_retries=2]; c [type="t.step"]
    start -> a -> b -> c -> exit
}"""


def test_a_run_comes_to_its_end(world: World) -> None:
    assert world.ended(world.run(CHAIN)) == 0, world.said()
    closed = world.closed()
    assert closed.status == "success"
    assert closed.completed == ["start", "a", "b", "c", "exit"]
    assert world.begun() == {"a.1#1": 1, "b.1#1": 1, "b.1#2": 1, "c.1#1": 1}


@pytest.mark.parametrize("number", range(1, 40, 3))
def test_killed_at_a_write_it_goes_on(file_world: World, number: int) -> None:
    world = file_world
    code = world.ended(world.run(CHAIN, kill_at=number))
    if code == 0:
        pytest.skip(f"the run has fewer than {number} moments")
    assert code == -signal.SIGKILL, world.said()
    assert world.ended(world.run(CHAIN)) == 0, world.said()
    closed = world.closed()
    assert closed.completed == ["start", "a", "b", "c", "exit"]
    moment = world.moments.read_text()
    again = world.begun() - Counter({"a.1#1": 1, "b.1#1": 1, "b.1#2": 1, "c.1#1": 1})
    assert sum(again.values()) == (1 if moment.startswith("before step") else 0), moment
