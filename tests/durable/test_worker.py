"""Several workers: each task once, the work of a dead one taken over, limits kept."""

from __future__ import annotations

import asyncio
import os
import re
import signal

import pytest
from support.durable_processes import DurableProcesses, is_alive, parallel_graph, submit, wait_until

from corral.durable import query, service
from corral.pipelines.scheduler.commands import Ended


def at_once(world: DurableProcesses) -> int:
    """The most that ran at the same time, by the log."""
    running: set[str] = set()
    most = 0
    for line in world.lines():
        what, name, *_ = line.split()
        if what == "begin":
            running.add(name)
        else:
            running.discard(name)
        most = max(most, len(running))
    return most


def test_two_workers_share_the_nodes_and_none_is_run_twice(world: DurableProcesses) -> None:
    workers = {world.worker(at_once=4), world.worker(at_once=4)}
    submit(world, parallel_graph(8, 'type="t.step", sleep=0.5'))
    assert world.wait_for_run().status == "success"
    assert sorted(world.attempt_counts().values()) == [1] * 8
    assert {int(line.split()[2]) for line in world.lines()} == workers


def test_the_work_of_a_killed_worker_is_taken_over(world: DurableProcesses) -> None:
    first = world.worker()
    submit(world, f'digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare];'
           f' a [type="t.wait", file="{world.folder}/go"]; start -> a -> exit }}')  # fmt: skip
    wait_until(lambda: world.attempt_counts()["a.1#1"], "the node to begin")
    second = world.worker()
    world.kill(first)
    wait_until(lambda: world.attempt_counts()["a.1#1"] == 2, "the node to be taken over")
    (world.folder / "go").touch()
    assert world.wait_for_run().status == "success"
    assert world.attempt_counts() == {"a.1#1": 2}
    assert [int(line.split()[2]) for line in world.lines()] == [first, second]


def test_one_of_four_is_killed_and_all_is_done(world: DurableProcesses) -> None:
    workers = [world.worker() for _ in range(4)]
    submit(world, parallel_graph(8, 'type="t.step", sleep=0.7'))
    wait_until(lambda: sum(world.attempt_counts().values()) >= 4, "half of the nodes to begin")
    world.kill(workers[0])
    assert world.wait_for_run().status == "success"
    begun = world.attempt_counts()
    assert set(begun) == {f"n{i}.1#1" for i in range(8)}
    ended = [line.split()[1] for line in world.lines() if line.startswith("end")]
    # A node may be journalled after its worker has said that it ended: then it is run again.
    assert set(ended) == set(begun)


def test_the_places_of_a_killed_worker_are_free_again(world: DurableProcesses) -> None:
    limit = [{"resource": "scarce", "everywhere": 2}]
    first = world.worker(limits=limit)
    submit(world, parallel_graph(4, f'type="t.wait", queue=scarce, file="{world.folder}/go"'))
    wait_until(lambda: sum(world.attempt_counts().values()) == 2, "two nodes to begin")
    world.kill(first)
    (world.folder / "go").touch()
    world.worker(limits=limit)
    assert world.wait_for_run().status == "success"


@pytest.mark.parametrize("limit", [{"everywhere": 2}, {"each": 1}, {"everywhere": 2, "each": 1}])
def test_a_limit_is_kept_over_two_workers(world: DurableProcesses, limit: dict[str, int]) -> None:
    for _ in range(2):
        world.worker(limits=[{"resource": "scarce", **limit}])
    submit(world, parallel_graph(5, 'type="t.step", queue=scarce, sleep=0.2'))
    assert world.wait_for_run().status == "success"
    assert at_once(world) <= 2
    assert sorted(world.attempt_counts().values()) == [1] * 5


def test_a_second_process_begins_nothing_again(world: DurableProcesses) -> None:
    world.worker()
    graph = (
        f"digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare];"
        f' a [type="t.wait", file="{world.folder}/go"]; start -> a -> exit }}'
    )
    submit(world, graph)
    wait_until(lambda: world.attempt_counts()["a.1#1"], "the node to begin")
    # One that runs something else, one that resumes the same, and one that only looks.
    other = re.sub("digraph d", "digraph e", graph).replace(f"{world.folder}/go", "/")
    assert world.wait(world.run(other, "other")) == 0, world.output()
    resumed = world.run(graph, "r")
    assert [each.id for each in asyncio.run(query.list_runs(db=world.db))] == ["other", "r"]
    assert asyncio.run(query.show("r", db=world.db)).status == "running"
    (world.folder / "go").touch()
    assert world.wait(resumed) == 0, world.output()
    assert world.attempt_counts()["a.1#1"] == 2  # that of the other run is called so too


def test_a_worker_that_was_only_asleep_changes_nothing_any_more(world: DurableProcesses) -> None:
    first = world.worker()
    graph = (
        f'digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare]; b [type="t.step"]'
        f' a [type="t.wait", file="{world.folder}/go"]; start -> a -> b -> exit }}'
    )
    submit(world, graph)
    wait_until(lambda: world.attempt_counts()["a.1#1"], "the node to begin")
    os.kill(first, signal.SIGSTOP)
    # Its lease is held by a sleeper: taken over by force, as after a partition.
    steal(world, first)
    world.worker()
    (world.folder / "go").touch()
    assert world.wait_for_run().completed == ["start", "a", "b", "exit"]
    os.kill(first, signal.SIGCONT)
    shown = asyncio.run(query.show("r", db=world.db))
    assert [each.id for each in shown_messages(world)] == ["a.1", "b.1"]
    assert shown.status == "success"
    assert world.attempt_counts()["b.1#1"] == 1


def steal(world: DurableProcesses, pid: int) -> None:
    """Put what this process runs back on the queues, though it lives."""
    from corral.durable.dbos.client import Client, with_client
    from corral.durable.dbos.database import find

    name = (world.folder / "ready1").read_text()

    def move(client: Client) -> None:
        for each in client.list_workflows(states=["PENDING"]):
            if each.executor == name:
                client.resume([each.id], each.queue)

    assert str(pid) in name
    asyncio.run(with_client(find(world.db), move))


def shown_messages(world: DurableProcesses) -> list[Ended]:
    from corral.durable import query
    from corral.durable.dbos.client import with_client
    from corral.durable.dbos.database import find

    found = asyncio.run(with_client(find(world.db), lambda c: query.replay_run(c, "r")[1].messages))
    return [each for each in found if isinstance(each, Ended)]


def test_a_node_that_kills_its_workers_is_given_up(world: DurableProcesses) -> None:
    graph = (
        'digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; b [type="t.step"]'
        ' a [type="t.kill", error_policy=continue]; start -> a -> b -> exit }'
    )
    submit(world, graph)
    quick = {"visits.RECOVERIES": 1, "runs.CHECK": 0.3}
    for _ in range(2):
        worker = world.start("work", queue_names=["default"], ready="/dev/null", constants=quick)
        assert world.wait(worker) == -signal.SIGKILL, world.output()
    world.worker(constants=quick)
    closed = world.wait_for_run()
    assert "died too many times" in closed.outcomes["a"].failure_reason
    assert closed.completed == ["start", "a", "b", "exit"]
    assert world.attempt_counts() == {"a.1#1": 2, "b.1#1": 1}


def test_a_worker_that_is_told_to_end_lets_its_nodes_finish(world: DurableProcesses) -> None:
    worker = world.worker(drain=30.0)
    submit(world, f'digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare];'
           f' a [type="t.wait", file="{world.folder}/go"]; b [type="t.step"];'
           f' start -> a -> b -> exit }}')  # fmt: skip
    wait_until(lambda: world.attempt_counts()["a.1#1"], "the node to begin")
    os.kill(worker, signal.SIGTERM)
    (world.folder / "go").touch()
    assert world.wait(worker) == 0, world.output()
    world.worker()
    assert world.wait_for_run().status == "success"
    assert world.attempt_counts() == {"a.1#1": 1, "b.1#1": 1}


def test_a_worker_that_is_told_twice_ends_at_once(world: DurableProcesses) -> None:
    worker = world.worker(drain=1000.0)
    submit(world, 'digraph d { start [shape=Mdiamond]; exit [shape=Msquare];'
           ' a [type="t.wait", file="/never"]; start -> a -> exit }')  # fmt: skip
    wait_until(lambda: world.attempt_counts()["a.1#1"], "the node to begin")
    os.kill(worker, signal.SIGTERM)
    os.kill(worker, signal.SIGINT)
    assert world.wait(worker) == 0, world.output()


def test_cancelling_a_run_reaches_a_node_that_its_worker_runs_itself(
    world: DurableProcesses,
) -> None:
    worker = world.worker()
    pids = world.folder / "pids"
    submit(
        world,
        f"""digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare]; start -> t -> exit
        t [shape=parallelogram, tool_command="echo $$ > {pids}; sleep 1000"] }}""",
        detached=False,
    )
    wait_until(lambda: pids.exists() and pids.read_text().strip(), "the command to begin")
    asyncio.run(service.cancel("r", db=world.db))
    assert world.wait_for_run().status == "cancelled"
    wait_until(lambda: not is_alive(int(pids.read_text())), "the command to be gone")
    world.kill(worker)


def test_a_node_that_is_cancelled_from_outside_is_told_to_its_run(world: DurableProcesses) -> None:
    from corral.durable.dbos.client import with_client
    from corral.durable.dbos.database import find

    world.worker(constants={"runs.CHECK": 0.3})
    submit(
        world,
        'digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; b [type="t.step"]'
        ' a [type="t.wait", file="/never", error_policy=continue]; start -> a -> b -> exit }',
    )
    wait_until(lambda: world.attempt_counts()["a.1#1"], "the node to begin")
    asyncio.run(with_client(find(world.db), lambda client: client.cancel(["r/a.1"])))
    closed = world.wait_for_run()
    assert "cancelled from outside" in closed.outcomes["a"].failure_reason
    assert closed.completed == ["start", "a", "b", "exit"]


def test_a_manager_watches_over_its_child(world: DurableProcesses) -> None:
    (world.workspace / "inner.dot").write_text(
        "digraph inner { start [shape=Mdiamond]; exit [shape=Msquare]; start -> x -> y -> exit;"
        f' x [type="t.wait", file="{world.folder}/go"]; y [type="t.step"] }}'
    )
    world.worker()
    submit(
        world,
        "digraph outer { start [shape=Mdiamond]; exit [shape=Msquare];"
        ' boss [shape=house, stack.child_dotfile="inner.dot", manager.poll_interval="200ms"];'
        " start -> boss -> exit }",
    )
    wait_until(lambda: world.attempt_counts()["x.1#1"], "the child's node to begin")
    (world.folder / "go").touch()
    closed = world.wait_for_run()
    assert closed.completed == ["start", "boss", "exit"]
    assert closed.context["stack.child.status"] == "completed"
    assert world.attempt_counts() == {"x.1#1": 1, "y.1#1": 1}


def test_a_lease_that_is_lost_for_a_moment_costs_nothing(
    file_world: DurableProcesses, new_postgres: str
) -> None:
    import psycopg

    world = file_world
    world.db = new_postgres
    first = world.worker()
    submit(
        world,
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> a -> exit"
        f' a [type="t.wait", file="{world.folder}/go"] }}',
    )
    wait_until(lambda: world.attempt_counts()["a.1#1"], "the node to begin")
    world.worker()
    with psycopg.connect(new_postgres, autocommit=True) as server:
        ours = "application_name = 'corral lease' AND datname = current_database()"
        ended = server.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}".encode()
        ).fetchall()
        assert len(ended) >= 2
        again = f"SELECT count(*) FROM pg_stat_activity WHERE {ours}".encode()
        wait_until(lambda: server.execute(again).fetchone() == (2,), "the leases to be back")
    # They are leases again: it is taken over when it dies, and not before.
    assert world.attempt_counts() == {"a.1#1": 1}
    world.kill(first)
    wait_until(lambda: world.attempt_counts()["a.1#1"] == 2, "the node to be taken over")
    (world.folder / "go").touch()
    assert world.wait_for_run().status == "success"
