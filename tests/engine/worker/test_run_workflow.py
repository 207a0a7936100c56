"""The workflow of a run: its run directory and nested runs."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

from support.durable_processes import CHAIN, DurableProcesses, submit, wait_until

from corral._engine import run_list
from corral._workflows.program_turn import StoredProgram


def test_a_deleted_run_directory_is_written_again(file_processes: DurableProcesses) -> None:
    processes = file_processes
    graph = CHAIN.replace('c [type="t.step"]', f'c [type="t.wait", file="{processes.folder}/go"]')
    run = processes.run(graph)
    wait_until(lambda: processes.attempt_counts()["c.1#1"], "the last node to begin")
    processes.kill(run)
    shutil.rmtree(processes.folder / "r")
    (processes.folder / "go").touch()
    assert processes.wait(processes.run(graph)) == 0, processes.output()
    checkpoint = json.loads((processes.folder / "r" / "checkpoint.json").read_text())
    assert checkpoint["completed_nodes"] == ["start", "a", "b", "c", "exit"]
    types = [
        json.loads(line)["type"]
        for line in (processes.folder / "r" / "events.ndjson").read_text().splitlines()
    ]
    assert types[0] == "pipeline_started"
    assert types.count("step_completed") == 5
    assert types[-1] == "pipeline_completed"


def test_a_run_directory_that_cannot_be_written_does_not_stop_the_run(
    file_processes: DurableProcesses,
) -> None:
    processes = file_processes
    (processes.folder / "r").write_text("in the way")
    assert processes.wait(processes.run(CHAIN)) == 0, processes.output()
    assert "cannot write the run folder" in processes.wait_for_run().outcomes["a"].failure_reason


def test_a_worker_that_cannot_import_a_workflow_says_so_in_one_line(
    file_processes: DurableProcesses,
) -> None:
    processes = file_processes
    program = StoredProgram(path="/f.py", name="f", text="import no_such_module")
    submit(processes, CHAIN, program=program)
    processes.worker()
    output = processes.wait_for_run()
    assert output.status == "fail"
    assert "f.py:1: ModuleNotFoundError: No module named 'no_such_module'" in output.reason
    assert "no_such_module" in processes.output()
    assert "Traceback" not in processes.output()


def test_a_nested_pipeline_is_a_separate_run(processes: DurableProcesses) -> None:
    (processes.workspace / "inner.dot").write_text(
        "digraph inner { start [shape=Mdiamond]; exit [shape=Msquare];"
        ' x [type="t.step"]; start -> x -> exit }'
    )
    processes.worker()
    submit(
        processes,
        "digraph outer { start [shape=Mdiamond]; exit [shape=Msquare];"
        ' in [type=include, dotfile="inner.dot"]; y [type="t.step"]; start -> in -> y -> exit }',
    )
    closed = processes.wait_for_run()
    assert closed.completed == ["start", "in", "y", "exit"]
    assert closed.context["done.x"] == "x.1"
    assert processes.attempt_counts() == {"x.1#1": 1, "y.1#1": 1}
    assert [each.id for each in asyncio.run(run_list.list_runs(db=processes.db))] == ["r"]
    assert Path(processes.folder / "r/in/child/checkpoint.json").exists()


def test_a_missing_nested_pipeline_fails_its_node(processes: DurableProcesses) -> None:
    processes.worker()
    submit(
        processes,
        "digraph outer { start [shape=Mdiamond]; exit [shape=Msquare];"
        ' in [type=include, dotfile="gone.dot"]; start -> in -> exit }',
    )
    assert "gone.dot" in processes.wait_for_run().outcomes["in"].failure_reason
