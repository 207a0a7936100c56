"""Agents and commands in a host go on when the worker dies, and are found again."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from support.durable_processes import DurableProcesses, is_alive, wait_until

from corral.durable import service
from corral.durable.agent_host import client
from corral.pipelines import node_kinds
from corral.pipelines.execution import handlers


def pipeline(world: DurableProcesses, *, then: str = "", attrs: str = "", timeout: str = "") -> str:
    """A command that says it began, waits for a file ``go``, and says it ended."""
    command = (
        f"echo begin slow.1#1 >> {world.log}; {then or waiting(world)}; echo end >> {world.log}"
    )
    return f"""digraph one {{
        start [shape=Mdiamond]; exit [shape=Msquare]
        slow [shape=parallelogram, tool_command="{command}" {attrs}]
        start -> slow -> exit
    }}"""


def waiting(world: DurableProcesses) -> str:
    return f"while ! test -e {world.folder}/go; do sleep 0.02; done"


def go(world: DurableProcesses) -> None:
    (world.folder / "go").touch()


def began(world: DurableProcesses, times: int = 1) -> None:
    wait_until(
        lambda: world.attempt_counts()["slow.1#1"] >= times,
        f"the command to begin: {world.output()}",
    )


def host_pid(run: str = "r") -> int:
    return int((client.HostFiles.for_run(run).folder / "pid").read_text())


def test_a_command_outlives_its_worker_and_is_found_at_work(file_world: DurableProcesses) -> None:
    world = file_world
    graph = pipeline(world)
    first = world.run(graph)
    began(world)
    world.kill(first)
    second = world.run(graph)
    go(world)
    assert world.wait(second) == 0, world.output()
    assert world.wait_for_run().status == "success"
    assert world.attempt_counts() == {"slow.1#1": 1}


def test_a_command_that_ended_while_nobody_looked_is_not_run_again(
    file_world: DurableProcesses,
) -> None:
    world = file_world
    graph = pipeline(world)
    first = world.run(graph)
    began(world)
    world.kill(first)
    go(world)
    wait_until(lambda: "end" in world.lines(), "the command to end")
    assert world.wait(world.run(graph)) == 0, world.output()
    assert world.attempt_counts() == {"slow.1#1": 1}


def test_a_host_that_was_killed_begins_the_command_again(file_world: DurableProcesses) -> None:
    world = file_world
    pids = world.folder / "pids"
    run = world.run(pipeline(world, then=f"echo $$ >> {pids}; {waiting(world)}"))
    wait_until(lambda: pids.exists() and pids.read_text().strip(), "the command's pid")
    os.kill(host_pid(), signal.SIGKILL)
    began(world, 2)
    assert not is_alive(int(pids.read_text().split()[0])), "the first works beside the second"
    go(world)
    assert world.wait(run) == 0, world.output()
    assert world.wait_for_run().status == "success"
    assert world.attempt_counts() == {"slow.1#1": 2}


def test_a_node_may_rather_fail_than_be_begun_twice(file_world: DurableProcesses) -> None:
    world = file_world
    run = world.run(pipeline(world, attrs=", on_crash=fail"))
    began(world)
    os.kill(host_pid(), signal.SIGKILL)
    assert world.wait(run) == 0, world.output()
    slow = world.wait_for_run().outcomes["slow"]
    assert slow.status == "fail"
    assert "crash interrupted it" in slow.failure_reason
    assert world.attempt_counts() == {"slow.1#1": 1}


def test_what_kills_its_host_every_time_fails_after_three(file_world: DurableProcesses) -> None:
    world = file_world
    # A child of the host's: its parent's parent is the host.
    graph = pipeline(world, then="kill -9 $(cut -d' ' -f4 /proc/$PPID/stat) $PPID; sleep 1")
    assert world.wait(world.run(graph)) == 0, world.output()
    assert "3 times" in world.wait_for_run().outcomes["slow"].failure_reason
    assert world.attempt_counts() == {"slow.1#1": 3}


def test_the_neighbours_of_what_kills_their_host_are_not_blamed_for_it(
    file_world: DurableProcesses,
) -> None:
    world = file_world
    kill = "kill -9 $(cut -d' ' -f4 /proc/$PPID/stat) $PPID; sleep 1"
    nodes: list[str] = []
    for name in ("n0", "n1", "n2", "poison"):
        begins = f"echo begin {name} >> {world.log}"
        # It strikes when all are at work, and they last until it is given up.
        all_there = f"while test $(sort -u {world.log} | wc -l) -lt 4; do sleep 0.02; done"
        work = f"{begins}; {all_there}; {kill if name == 'poison' else waiting(world)}"
        nodes.append(f'{name} [shape=parallelogram, tool_command="{work}"]; fork -> {name} -> join')
    run = world.run(
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> fork; join -> exit;"
        ' fork [shape=component, max_parallel=4, join_policy="wait_all"];'
        f" join [shape=tripleoctagon]; {'; '.join(nodes)} }}"
    )
    wait_until(
        lambda: world.attempt_counts()["poison"] == 3, f"poison to strike thrice: {world.output()}"
    )
    wait_until(lambda: world.attempt_counts()["n2"] == 2, "its neighbours to be begun again")
    go(world)
    assert world.wait(run) == 0, world.output()
    closed = world.wait_for_run()
    assert closed.outcomes["poison"].status == "fail"
    assert "agent host was killed while it ran, 3 times" in closed.outcomes["poison"].failure_reason
    assert [closed.outcomes[name].status for name in ("n0", "n1", "n2")] == ["success"] * 3
    assert world.attempt_counts() == {"n0": 2, "n1": 2, "n2": 2, "poison": 3}
    wait_until(lambda: not client.HostFiles.for_run("r").folder.exists(), "all hosts to be gone")


def test_cancelling_a_run_ends_what_goes_on_apart(file_world: DurableProcesses) -> None:
    world = file_world
    pids = world.folder / "pids"
    run = world.run(pipeline(world, then=f"echo $$ >> {pids}; sleep 1000"))
    wait_until(lambda: pids.exists() and pids.read_text().strip(), "the command's pid")
    os.kill(host_pid(), signal.SIGKILL)
    wait_until(lambda: len(pids.read_text().split()) == 2, "it to be begun again")
    asyncio.run(service.cancel("r", db=world.db))
    assert world.wait(run) == 0, world.output()
    assert world.wait_for_run().status == "cancelled"
    wait_until(
        lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()),
        "the command to be gone",
    )
    wait_until(lambda: not client.HostFiles.for_run("r").folder.exists(), "the host to be gone")


def test_cancelling_a_run_ends_its_command(file_world: DurableProcesses) -> None:
    world = file_world
    pids = world.folder / "pids"
    run = world.run(pipeline(world, then=f"echo $$ > {pids}; sleep 1000"))
    began(world)
    wait_until(lambda: pids.exists() and pids.read_text().strip(), "the command's pid")
    asyncio.run(service.cancel("r", db=world.db))
    assert world.wait(run) == 0, world.output()
    assert world.wait_for_run().status == "cancelled"
    pid = int(pids.read_text())
    wait_until(lambda: not is_alive(pid), "the command to be gone")
    wait_until(lambda: not client.HostFiles.for_run("r").folder.exists(), "the host to be gone")


@pytest.mark.parametrize("attrs", ["", ", detached=false"])
def test_cancelling_a_run_that_nobody_runs_ends_its_command(
    file_world: DurableProcesses, attrs: str
) -> None:
    world = file_world
    pids = world.folder / "pids"
    run = world.run(pipeline(world, then=f"echo $$ > {pids}; sleep 1000", attrs=attrs))
    wait_until(lambda: pids.exists() and pids.read_text().strip(), "the command's pid")
    world.kill(run)
    asyncio.run(service.cancel("r", reason="no more", db=world.db))
    closed = world.wait_for_run()
    assert (closed.status, closed.reason) == ("cancelled", "no more")
    wait_until(lambda: not is_alive(int(pids.read_text())), "the command to be gone")
    wait_until(lambda: not client.HostFiles.for_run("r").folder.exists(), "the host to be gone")


def test_a_host_goes_when_its_run_has_ended_and_takes_its_files_along(
    file_world: DurableProcesses,
) -> None:
    world = file_world
    go(world)
    assert world.wait(world.run(pipeline(world))) == 0, world.output()
    wait_until(lambda: not client.HostFiles.for_run("r").folder.exists(), "the host to be gone")


@pytest.mark.parametrize("said", ["false", "true"])
def test_a_node_says_itself_whether_it_is_detached(file_world: DurableProcesses, said: str) -> None:
    world = file_world
    run = world.run(pipeline(world, attrs=f", detached={said}"), detached=said != "true")
    began(world)
    assert client.HostFiles.for_run("r").folder.exists() == (said == "true")
    go(world)
    assert world.wait(run) == 0, world.output()


def test_the_types_that_run_in_a_host_are_types_of_ours() -> None:
    for kind in (kind for kind in node_kinds.KINDS.values() if kind.detached):
        assert handlers.find(kind.name).__module__.startswith("corral.pipelines.nodes.")


def test_a_node_that_its_worker_runs_itself_may_rather_fail_too(
    file_world: DurableProcesses,
) -> None:
    world = file_world
    graph = pipeline(world, attrs=", on_crash=fail, detached=false")
    run = world.run(graph)
    began(world)
    world.kill(run)
    assert world.wait(world.run(graph)) == 0, world.output()
    assert "crash interrupted it" in world.wait_for_run().outcomes["slow"].failure_reason
    assert world.attempt_counts() == {"slow.1#1": 1}


def test_a_policy_for_crashes_that_there_is_not_fails_the_node(tmp_path: Path) -> None:
    from corral.durable.worker import node_workflow
    from corral.pipelines.graph import Node
    from corral.pipelines.scheduler.commands import RunNode
    from corral.pipelines.scheduler.outcome import Outcome

    visit = RunNode(id="a.1", node="a", number=1, context={})
    told = node_workflow.apply_crash_rule(tmp_path, Node("a", {"on_crash": "cry"}), visit, 1)
    assert isinstance(told, Outcome)
    assert "write rerun, fail, resume" in told.failure_reason


def test_an_agent_that_was_cut_short_goes_on_in_its_own_session(tmp_path: Path) -> None:
    from corral import events
    from corral.durable.worker import node_workflow
    from corral.pipelines.graph import Node
    from corral.pipelines.scheduler.commands import RunNode

    node = Node("fix", {"prompt": "Mend it.", "on_crash": "resume"})
    visit = RunNode(id="fix.1", node="fix", number=1, context={})
    first = node_workflow.apply_crash_rule(tmp_path, node, visit, 1)
    assert isinstance(first, tuple)
    assert first[0].text("prompt") == "Mend it."
    assert (first[1].fidelity, first[1].thread) == ("full", "fix.1")  # so its session is kept
    said = events.to_json(events.Text(run_id="2026-s.1", agent="codex-cli", delta="I look"))
    (tmp_path / "events.ndjson").write_bytes(said + b'\n{"type": "te')
    second = node_workflow.apply_crash_rule(tmp_path, node, visit, 1)
    assert isinstance(second, tuple)
    assert second[0].text("prompt") == node_workflow.GO_ON + "Mend it."
    held = second[1].context["internal.thread.fix.1"]
    assert held == {"agent": "codex-cli", "resume_token": "2026-s"}
    # Another attempt, after one that came to its end, begins anew.
    third = node_workflow.apply_crash_rule(tmp_path, node, visit, 2)
    assert isinstance(third, tuple)
    assert third[0].text("prompt") == "Mend it."
