"""Killed at any moment, a run goes on as if nothing had been: nothing lost, nothing twice.

``slow`` are the moments that others stand for: all of them are killed at by
``make test AGENTS=all``.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter

import pytest
from support.durable_processes import (
    TIMEOUT,
    DurableProcesses,
    ForkServer,
    is_alive,
    parallel_graph,
    submit,
    wait_until,
)

SHARES = 72
"""More than the run has moments, so each of them is one's."""
SAMPLE = {4: True, 19: False, 33: True, 50: False, 71: True}
"""Not slow: share → whether it is of a run whose commands are in a host."""


def kills() -> list[object]:
    """Share and way, all of them."""
    return [
        pytest.param(
            share,
            detached,
            id=f"{share}-{'detached' if detached else 'tied'}",
            marks=[] if SAMPLE.get(share) is detached else pytest.mark.slow,
        )
        for share in range(SHARES)
        for detached in (True, False)
    ]


@pytest.fixture(scope="module")
def moments(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many a run has that nobody kills."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "CORRAL_HOME"):
            patch.setenv(name, str(folder / name))
        world = DurableProcesses(fork_server, str(folder / "engine.db"), folder)
        with contextlib.closing(world):
            assert world.wait(world.run(pipeline(world), kill_at=0, detached=False)) == 0
        found = int(world.moments.read_text())
    assert found <= SHARES, "some would be left out"
    return found


def at(share: int, moments: int) -> int:
    return 1 + share * (moments - 1) // (SHARES - 1)


def pipeline(world: DurableProcesses) -> str:
    """Each kind of entry in a journal: a node, one that is tried again, a command in a host or
    here, a gate with a deadline."""
    command = f"echo begin tool.1#1 >> {world.log}; sleep 0.1"
    return f"""digraph all {{
        start [shape=Mdiamond]; exit [shape=Msquare]
        a [type="t.step"]; b [type="t.step", fails=1, max_retries=2]
        tool [shape=parallelogram, tool_command="{command}"]
        gate [shape=hexagon, human.timeout="200ms", human.default_choice=c]; c [type="t.step"]
        start -> a -> b -> tool -> gate -> c -> exit
    }}"""


COMPLETED = ["start", "a", "b", "tool", "gate", "c", "exit"]
ONCE = Counter({"a.1#1": 1, "b.1#1": 1, "b.1#2": 1, "tool.1#1": 1, "c.1#1": 1})


def check(world: DurableProcesses, detached: bool) -> None:
    closed = world.wait_for_run()
    assert closed.status == "success", world.output()
    assert closed.completed == COMPLETED
    assert closed.outcomes["b"].attempts == 2
    moment = world.moments.read_text()
    begun = world.attempt_counts()
    assert begun & ONCE == ONCE
    again = begun - ONCE
    if moment.startswith("before step "):
        # Done, and not journalled yet: a step of the worker's own is done again.
        name = moment.removeprefix("before step ")
        if name == "tool#1" and detached:
            assert not again, moment
        elif name != "look":
            node, _, attempt = name.partition("#")
            assert again == {f"{node}.1#{attempt}": 1}, moment
    else:
        assert not again, moment


@pytest.mark.parametrize(("share", "detached"), kills())
def test_a_run_of_one_process_goes_on(
    file_world: DurableProcesses, moments: int, share: int, detached: bool
) -> None:
    world = file_world
    graph = pipeline(world)
    code = world.wait(world.run(graph, kill_at=at(share, moments), detached=detached))
    assert code == -signal.SIGKILL, world.output()
    assert world.wait(world.run(graph)) == 0, world.output()
    check(world, detached)


@pytest.mark.parametrize(("share", "detached"), kills())
def test_a_run_of_two_workers_goes_on(
    file_world: DurableProcesses, new_postgres: str, moments: int, share: int, detached: bool
) -> None:
    """The second comes when the first is dead: else nobody knew who comes to which moment."""
    world = file_world
    world.db = new_postgres
    first = world.worker(kill_at=at(share, moments))
    submit(world, pipeline(world), detached=detached)
    assert world.wait(first) == -signal.SIGKILL, world.output()
    world.worker()
    check(world, detached)


SEEDS = [pytest.param(n, marks=[] if n == 0 else pytest.mark.slow) for n in range(20)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_of_kills_is_weathered(world: DurableProcesses, seed: int) -> None:
    """Workers die at random, and others come, until the run is done."""
    chance = random.Random(seed)
    lines = "; ".join(
        f'n{i} [shape=parallelogram, tool_command="echo begin n{i}.1#1 >> {world.log}; sleep 0.5"]'
        for i in range(4)
    )
    graph = (
        f"digraph storm {{ start [shape=Mdiamond]; exit [shape=Msquare]; {lines};"
        f" start -> n0 -> n1 -> n2 -> n3 -> exit }}"
    )
    submit(world, graph, detached=True)
    workers = [world.worker(), world.worker()]
    kills = 0
    until = time.monotonic() + TIMEOUT
    while not is_over(world) and time.monotonic() < until:
        time.sleep(chance.uniform(0.2, 1.2))
        if kills < 6:
            world.kill(workers.pop(chance.randrange(len(workers))))
            workers.append(world.worker())
            kills += 1
    assert world.wait_for_run().completed == ["start", "n0", "n1", "n2", "n3", "exit"]
    assert world.attempt_counts() == {f"n{i}.1#1": 1 for i in range(4)}
    assert kills


def is_over(world: DurableProcesses) -> bool:
    try:
        world.wait_for_run(timeout=0.1)
    except TimeoutError:
        return False
    return True


def test_twelve_branches_that_end_in_any_order_are_not_mixed_up(world: DurableProcesses) -> None:
    """The last begun ends first, and the engine dies in the middle."""
    branches = range(12)
    chains = "\n".join(
        f'x{i} [type="t.step", sleep={(12 - i) * 0.08}]; y{i} [type="t.step", sleep=0.05];'
        f" fork -> x{i} -> y{i} -> join"
        for i in branches
    )
    graph = (
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; join [shape=tripleoctagon]\n"
        f"fork [shape=component, max_parallel=12]; start -> fork; join -> exit\n{chains} }}"
    )
    first = world.worker(kill_at=70)
    submit(world, graph)
    assert world.wait(first) == -signal.SIGKILL, world.output()
    world.worker()
    closed = world.wait_for_run()
    assert closed.status == "success"
    results = closed.context["parallel.results"]
    assert isinstance(results, list)
    assert len(results) == 12
    for i in branches:
        assert closed.outcomes[f"y{i}"].status == "success"
    ended = Counter(line.split()[1] for line in world.lines() if line.startswith("end"))
    assert set(ended) == {f"{name}{i}.1#1" for i in branches for name in "xy"}


def test_a_server_that_is_restarted_costs_nothing(
    file_world: DurableProcesses, new_postgres: str, restart_postgres: object
) -> None:
    world = file_world
    world.db = new_postgres
    world.worker()
    submit(world, parallel_graph(3, f'type="t.wait", file="{world.folder}/go"'))
    while sum(world.attempt_counts().values()) < 3:
        time.sleep(0.01)
    assert callable(restart_postgres)
    restart_postgres()
    (world.folder / "go").touch()
    assert world.wait_for_run().status == "success"
    assert sorted(world.attempt_counts().values()) == [1, 1, 1]


def test_what_a_worker_began_itself_dies_with_it(file_world: DurableProcesses) -> None:
    world = file_world
    pids = world.folder / "pids"
    graph = f"""digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare]; start -> t -> exit
        t [shape=parallelogram, tool_command="echo $$ >> {pids}; sleep 1000"] }}"""
    first = world.worker()
    submit(world, graph, detached=False)
    wait_until(lambda: pids.exists() and pids.read_text().strip(), "the command to begin")
    world.kill(first)
    wait_until(lambda: not is_alive(int(pids.read_text())), "the command to be gone")
