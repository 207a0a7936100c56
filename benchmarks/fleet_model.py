"""A queueing model of workers on one database, as a simulation of discrete events.

A node waits in the queue until a worker with a free place looks for work, which each worker does
after a fixed time. It then costs CPU time in the worker and on the database server, runs for the
time of its agent, and costs CPU time again when it ends. Each worker computes in one thread. The
costs are measured (``fleet``); the model says what follows from them for fleets that are larger
than the machine at hand.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, exp, inf, log
from statistics import fmean
from typing import NamedTuple, TypeAlias

Event: TypeAlias = Callable[[float], None]
"""Called with the time at which it happens."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """CPU seconds, as measured."""

    worker: float
    """Of a worker for each node."""
    server: float
    """Of the database server for each node."""
    idle_worker: float = 0.0
    """Of a worker in each second, without any work."""
    idle_server: float = 0.0
    """Of the database server in each second, for each worker."""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    workers: int
    at_once: int
    """Nodes that run at once in each worker."""
    server_cores: int
    """Of the database server."""
    poll: float = 1.0
    """Seconds between two looks of a worker. Their costs are part of those without work."""
    shared_cores: int | None = None
    """If workers and database are on one machine: its cores."""


class Node(NamedTuple):
    arrival: float
    """When it enters the queue. 0: it runs from the beginning, shared out evenly."""
    duration: float
    """How long its agent runs."""


class Outcome(NamedTuple):
    seconds: float
    """Until the last node has ended, or the given time."""
    waited: Sequence[float]
    """How long each node waited until it was started, sorted."""
    server_load: float
    """Part of the server's CPU time that was used."""
    worker_load: float
    """The same of all workers, of one core each."""

    def percentile(self, part: float) -> float:
        return self.waited[min(len(self.waited) - 1, int(part * len(self.waited)))]


class _Station:
    """Servers that take one job each, in the order of arrival."""

    def __init__(self, servers: int, slowdown: float = 1.0) -> None:
        self._free = servers
        self._queue: deque[Event] = deque()
        self.slowdown = slowdown
        self.used = 0.0

    def acquire(self, now: float, then: Event) -> None:
        if self._free:
            self._free -= 1
            then(now)
        else:
            self._queue.append(then)

    def release(self, now: float) -> None:
        if self._queue:
            self._queue.popleft()(now)
        else:
            self._free += 1


class _Simulation:
    def __init__(self, fleet: Fleet, costs: Costs, seed: int) -> None:
        self._fleet, self._costs = fleet, costs
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Event]] = []
        self._number = 0
        cores = fleet.shared_cores or 0
        idle = fleet.workers * (costs.idle_server + (costs.idle_worker if cores else 0.0))
        capacity = cores or fleet.server_cores
        if idle >= capacity:
            raise ValueError(f"{fleet.workers} idle workers use {idle:.1f} of {capacity} cores")
        slowdown = 1 / (1 - idle / capacity)
        self._cores = _Station(cores, slowdown) if cores else None
        self._server = _Station(fleet.server_cores, slowdown)
        self._threads = [_Station(1) for _ in range(fleet.workers)]
        self._free = [fleet.at_once] * fleet.workers
        self._with_room = dict.fromkeys(range(fleet.workers))
        self._first_look = [self._random.uniform(0, fleet.poll) for _ in range(fleet.workers)]
        self._will_look = [False] * fleet.workers
        self._waiting: deque[tuple[float, float]] = deque()
        self._waits: list[float] = []
        self._left = 0

    def run(self, nodes: Sequence[Node], until: float) -> Outcome:
        self._left = len(nodes)
        for number, node in enumerate(nodes):
            if node.arrival:
                self._add(node.arrival, partial(self._enqueue, node.duration))
            else:
                worker = number % self._fleet.workers
                self._free[worker] -= 1
                self._add(node.duration, partial(self._stop, worker))
        now = 0.0
        while self._left and now < until:
            now, _, happens = heapq.heappop(self._events)
            happens(now)
        fleet, costs = self._fleet, self._costs
        return Outcome(
            now,
            sorted(self._waits),
            (self._server.used / now + fleet.workers * costs.idle_server) / fleet.server_cores,
            fmean(thread.used for thread in self._threads) / now + costs.idle_worker,
        )

    def _enqueue(self, duration: float, now: float) -> None:
        self._waiting.append((now, duration))
        for worker in self._with_room:
            self._look_next(worker, now)

    def _look_next(self, worker: int, now: float) -> None:
        """The next look of this worker may find work; others need not be simulated."""
        if not self._will_look[worker]:
            self._will_look[worker] = True
            first, poll = self._first_look[worker], self._fleet.poll
            passed = max(0, ceil((now - first) / poll))
            self._add(first + passed * poll, partial(self._take, worker))

    def _take(self, worker: int, now: float) -> None:
        """A worker takes as many nodes as it has free places."""
        self._will_look[worker] = False
        while self._free[worker] and self._waiting:
            since, duration = self._waiting.popleft()
            self._free[worker] -= 1
            self._compute(worker, now, partial(self._start, worker, since, duration))
        if not self._free[worker]:
            self._with_room.pop(worker, None)

    def _start(self, worker: int, since: float, duration: float, now: float) -> None:
        self._waits.append(now - since)
        self._add(now + duration, partial(self._stop, worker))

    def _stop(self, worker: int, now: float) -> None:
        self._compute(worker, now, partial(self._end, worker))

    def _end(self, worker: int, now: float) -> None:
        self._free[worker] += 1
        self._with_room[worker] = None
        self._left -= 1
        if self._waiting:
            self._look_next(worker, now)

    def _compute(self, worker: int, now: float, then: Event) -> None:
        """Half of what a node costs, on the server and then in the worker."""

        def in_worker(now: float) -> None:
            self._occupy(self._threads[worker], now, self._costs.worker / 2, then)

        self._occupy(self._server, now, self._costs.server / 2, in_worker)

    def _occupy(self, station: _Station, now: float, cost: float, then: Event) -> None:
        """Use a station for this CPU time, after those who came before."""
        station.used += cost
        cores = self._cores

        def begin(now: float) -> None:
            self._add(now + cost * (cores or station).slowdown, end)

        def end(now: float) -> None:
            if cores is not None:
                cores.release(now)
            station.release(now)
            then(now)

        def get_core(now: float) -> None:
            if cores is not None:  # on one machine a thread also needs a core
                cores.acquire(now, begin)
            else:
                begin(now)

        station.acquire(now, get_core)

    def _add(self, at: float, happens: Event) -> None:
        self._number += 1
        heapq.heappush(self._events, (at, self._number, happens))


def simulate(
    fleet: Fleet, costs: Costs, nodes: Sequence[Node], *, until: float = inf, seed: int = 1
) -> Outcome:
    return _Simulation(fleet, costs, seed).run(nodes, until)


def steady_work(places: int, load: float, median: float, until: float, seed: int = 1) -> list[Node]:
    """Nodes that arrive at random so that ``load`` of the places are in use, from the beginning.

    Their durations are log-normal with this median: a few take much longer than most, a sixth
    more than twice the median.
    """
    source = random.Random(seed)
    spread = log(2)

    def duration() -> float:
        return exp(source.gauss(log(median), spread))

    rate = places * load / (median * exp(spread**2 / 2))
    nodes = [Node(0.0, duration() * source.random()) for _ in range(round(places * load))]
    now = source.expovariate(rate)
    while now < until:
        nodes.append(Node(now, duration()))
        now += source.expovariate(rate)
    return nodes
