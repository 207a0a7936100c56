"""The simulation of workers on one database, against results of queueing theory."""

from __future__ import annotations

import random
import sys
from math import factorial
from pathlib import Path
from statistics import fmean

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.fleet_model import Costs, Fleet, Node, simulate, steady_work

FREE = Costs(worker=0.0, server=0.0)


def erlang_wait(places: int, load: float) -> float:
    """The mean wait in a queue with random arrivals and durations of 1 on average (M/M/c)."""
    offered = places * load
    full = offered**places / factorial(places) / (1 - load)
    part = sum(offered**count / factorial(count) for count in range(places))
    return full / (part + full) / (places * (1 - load))


@pytest.mark.parametrize(("workers", "at_once"), [(1, 4), (4, 1)])
@pytest.mark.deep_but_first
def test_waits_are_those_of_queueing_theory(workers: int, at_once: int) -> None:
    source = random.Random(7)
    now, nodes = 0.0, list[Node]()
    for _ in range(20_000):
        now += source.expovariate(0.6 * 4)
        nodes.append(Node(now, source.expovariate(1)))
    fleet = Fleet(workers=workers, at_once=at_once, server_cores=1, poll=1e-6)
    waited = fmean(simulate(fleet, FREE, nodes).waited)
    assert waited == pytest.approx(erlang_wait(4, 0.6), rel=0.1)


def test_a_worker_takes_nodes_only_when_it_looks() -> None:
    nodes = [Node(0.001, 0.25)] * 10
    slow = Fleet(workers=1, at_once=1, server_cores=1, poll=1.0)
    assert 9 < simulate(slow, FREE, nodes).seconds < 11
    fast = Fleet(workers=1, at_once=1, server_cores=1, poll=1e-6)
    assert simulate(fast, FREE, nodes).seconds == pytest.approx(2.501, rel=1e-3)


def test_the_database_limits_short_nodes() -> None:
    """A server with 2 cores, at 10 ms for each node, does at most 200 nodes in a second."""
    costs = Costs(worker=0.0, server=0.01)
    fleet = Fleet(workers=50, at_once=100, server_cores=2)
    found = simulate(fleet, costs, [Node(0.001, 0.0)] * 2_000)
    assert found.seconds == pytest.approx(10, rel=0.02)
    assert found.server_load == pytest.approx(1, rel=0.02)


def test_one_machine_shares_its_cores() -> None:
    costs = Costs(worker=0.03, server=0.01)
    fleet = Fleet(workers=8, at_once=4, server_cores=2, shared_cores=2, poll=0.001)
    found = simulate(fleet, costs, [Node(0.001, 0.0)] * 100)
    assert found.seconds == pytest.approx(100 * 0.04 / 2, rel=0.1)


def test_work_that_the_idle_workers_leave_no_time_for_is_refused() -> None:
    costs = Costs(worker=0.01, server=0.01, idle_server=0.02)
    with pytest.raises(ValueError, match="100 idle workers use"):
        simulate(Fleet(workers=100, at_once=1, server_cores=2), costs, [Node(0.1, 1.0)])


def test_steady_work_uses_its_share_of_the_places_from_the_beginning() -> None:
    nodes = steady_work(1_000, 0.9, 60.0, until=600.0)
    for moment in (1.0, 300.0, 599.0):
        running = sum(node.arrival <= moment < node.arrival + node.duration for node in nodes)
        assert running == pytest.approx(900, rel=0.15)
