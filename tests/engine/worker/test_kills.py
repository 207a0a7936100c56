"""A run that is killed at any moment continues: no result is lost, and nothing runs twice.

``make test`` uses a sample of the moments; the others are marked ``deep``
(``make test-all``).
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

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
"""More than the number of moments, so that each moment is used."""
SAMPLE = {4: True, 33: False, 71: True}
"""Not deep: share → whether the commands of the run are detached."""


def kills() -> list[object]:
    """All shares, with detached commands and without."""
    return [
        pytest.param(
            share,
            detached,
            id=f"{share}-{'detached' if detached else 'in-process'}",
            marks=[] if SAMPLE.get(share) is detached else pytest.mark.deep,
        )
        for share in range(SHARES)
        for detached in (True, False)
    ]


@contextlib.contextmanager
def not_killed(fork_server: ForkServer, folder: Path) -> Generator[DurableProcesses]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "CORRAL_HOME"):
            patch.setenv(name, str(folder / name))
        processes = DurableProcesses(fork_server, str(folder / "engine.db"), folder)
        with contextlib.closing(processes):
            yield processes
    assert int(processes.moments.read_text()) <= SHARES, "some moments would not be used"


@pytest.fixture(scope="module")
def moments(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The number of moments of a run in one process that is not killed."""
    with not_killed(fork_server, tmp_path_factory.mktemp("not-killed")) as processes:
        run = processes.run(pipeline(processes), kill_at=0, detached=False)
        assert processes.wait(run) == 0, processes.output()
        return int(processes.moments.read_text())


@pytest.fixture(scope="module")
def worker_moments(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The number of moments of a worker that is not killed."""
    with not_killed(fork_server, tmp_path_factory.mktemp("worker")) as processes:
        processes.worker(kill_at=0)
        submit(processes, pipeline(processes), detached=False)
        assert processes.wait_for_run().status == "success", processes.output()
        return int(processes.moments.read_text())


def at(share: int, moments: int) -> int:
    return 1 + share * (moments - 1) // (SHARES - 1)


def pipeline(processes: DurableProcesses) -> str:
    """A graph with each kind of journal entry: a node, a node with a retry, a command, a human gate
    with a timeout."""
    command = f"echo begin tool.1#1 >> {processes.log}; sleep 0.1"
    return f"""digraph all {{
        start [shape=Mdiamond]; exit [shape=Msquare]
        a [type="t.step"]; b [type="t.step", fails=1, max_retries=2]
        tool [shape=parallelogram, tool_command="{command}"]
        gate [shape=hexagon, human.timeout="200ms", human.default_choice=c]; c [type="t.step"]
        start -> a -> b -> tool -> gate -> c -> exit
    }}"""


COMPLETED = ["start", "a", "b", "tool", "gate", "c", "exit"]
ONCE = Counter({"a.1#1": 1, "b.1#1": 1, "b.1#2": 1, "tool.1#1": 1, "c.1#1": 1})


def check(processes: DurableProcesses, detached: bool) -> None:
    closed = processes.wait_for_run()
    assert closed.status == "success", processes.output()
    assert closed.completed == COMPLETED
    assert closed.outcomes["b"].attempts == 2
    moment = processes.moments.read_text()
    started = processes.attempt_counts()
    assert started & ONCE == ONCE
    repeated = started - ONCE
    if moment == "before step nodes":
        # The output is not in the journal: what ended is run again, if anything did.
        assert sum(repeated.values()) <= 1, repeated
        assert not (detached and "tool.1#1" in repeated)
    elif moment.startswith("ended "):
        name = moment.removeprefix("ended ")
        node, _, attempt = name.partition("#")
        is_found = name == "tool#1" and detached
        assert repeated == ({} if is_found else {f"{node}.1#{attempt}": 1}), moment
    elif moment.startswith("before step "):
        # The step has ended but is not in the journal: the worker runs it repeated.
        name = moment.removeprefix("before step ")
        if name == "enqueue" or (name == "tool#1" and detached):
            assert not repeated, moment
        elif name != "look":
            node, _, attempt = name.partition("#")
            assert repeated == {f"{node}.1#{attempt}": 1}, moment
    else:
        assert not repeated, moment


@pytest.mark.parametrize(("share", "detached"), kills())
@pytest.mark.deep_but_first
def test_a_run_in_one_process_continues_after_a_kill(
    file_processes: DurableProcesses, moments: int, share: int, detached: bool
) -> None:
    processes = file_processes
    graph = pipeline(processes)
    code = processes.wait(processes.run(graph, kill_at=at(share, moments), detached=detached))
    assert code == -signal.SIGKILL, processes.output()
    assert processes.wait(processes.run(graph)) == 0, processes.output()
    check(processes, detached)


@pytest.mark.parametrize(("share", "detached"), kills())
def test_a_run_in_one_process_on_a_server_continues_after_a_kill(
    file_processes: DurableProcesses, new_postgres: str, moments: int, share: int, detached: bool
) -> None:
    file_processes.db = new_postgres
    test_a_run_in_one_process_continues_after_a_kill(file_processes, moments, share, detached)


@pytest.mark.parametrize(("share", "detached"), kills())
@pytest.mark.deep_but_first
def test_a_second_worker_continues_after_a_kill(
    file_processes: DurableProcesses,
    new_postgres: str,
    worker_moments: int,
    share: int,
    detached: bool,
) -> None:
    """The second worker starts when the first is dead: so all moments are those of the first."""
    processes = file_processes
    processes.db = new_postgres
    first = processes.worker(kill_at=at(share, worker_moments))
    submit(processes, pipeline(processes), detached=detached)
    assert processes.wait(first) == -signal.SIGKILL, processes.output()
    processes.worker()
    check(processes, detached)


SEEDS = [pytest.param(n, marks=[] if n == 0 else pytest.mark.deep) for n in range(20)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_completes_while_workers_are_killed_at_random(
    processes: DurableProcesses, seed: int
) -> None:
    """Workers are killed at random, and others start, until the run has ended."""
    chance, log = random.Random(seed), processes.log
    lines = "; ".join(
        f'n{i} [shape=parallelogram, tool_command="echo begin n{i}.1#1 >> {log}; sleep 0.5"]'
        for i in range(4)
    )
    graph = (
        f"digraph chain {{ start [shape=Mdiamond]; exit [shape=Msquare]; {lines};"
        f" start -> n0 -> n1 -> n2 -> n3 -> exit }}"
    )
    submit(processes, graph, detached=True)
    workers = [processes.worker(), processes.worker()]
    kills = 0
    until = time.monotonic() + TIMEOUT
    while not is_over(processes) and time.monotonic() < until:
        time.sleep(chance.uniform(0.2, 1.2))
        if kills < 6:
            processes.kill(workers.pop(chance.randrange(len(workers))))
            workers.append(processes.worker())
            kills += 1
    assert processes.wait_for_run().completed == ["start", "n0", "n1", "n2", "n3", "exit"]
    assert processes.attempt_counts() == {f"n{i}.1#1": 1 for i in range(4)}
    assert kills


def is_over(processes: DurableProcesses) -> bool:
    try:
        processes.wait_for_run(timeout=0.1)
    except TimeoutError:
        return False
    return True


def test_results_of_parallel_branches_are_not_mixed_up_by_a_kill(
    processes: DurableProcesses,
) -> None:
    """The branch that starts last ends first, and the worker is killed in between."""
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
    first = processes.worker(kill_at=70)
    submit(processes, graph)
    assert processes.wait(first) == -signal.SIGKILL, processes.output()
    processes.worker()
    closed = processes.wait_for_run()
    assert closed.status == "success"
    results = closed.context["parallel.results"]
    assert isinstance(results, list)
    assert len(results) == 12
    for i in branches:
        assert closed.outcomes[f"y{i}"].status == "success"
    ended = Counter(line.split()[1] for line in processes.lines() if line.startswith("end"))
    assert set(ended) == {f"{name}{i}.1#1" for i in branches for name in "xy"}


def test_a_restart_of_the_server_repeats_no_node(
    file_processes: DurableProcesses, new_postgres: str, restart_postgres: object
) -> None:
    processes = file_processes
    processes.db = new_postgres
    processes.worker()
    submit(processes, parallel_graph(3, f'type="t.wait", file="{processes.folder}/go"'))
    wait_until(lambda: sum(processes.attempt_counts().values()) == 3, "all nodes to start")
    assert callable(restart_postgres)
    restart_postgres()
    (processes.folder / "go").touch()
    assert processes.wait_for_run().status == "success"
    assert sorted(processes.attempt_counts().values()) == [1, 1, 1]


def test_a_command_that_is_not_detached_dies_with_its_worker(
    file_processes: DurableProcesses,
) -> None:
    processes = file_processes
    pids = processes.folder / "pids"
    graph = f"""digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare]; start -> t -> exit
        t [shape=parallelogram, tool_command="echo $$ >> {pids}; sleep 1000"] }}"""
    first = processes.worker()
    submit(processes, graph, detached=False)
    wait_until(lambda: pids.exists() and pids.read_text().strip(), "the command to start")
    processes.kill(first)
    wait_until(lambda: not is_alive(int(pids.read_text())), "the command to end")
