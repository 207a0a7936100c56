"""The run directory: its files, and what happens if it cannot be written."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduler_driver import FAIL, graph_of, run_scheduler

from corral._pipelines import events
from corral._pipelines.events import PipelineStarted, StepStarted
from corral._pipelines.execution.run_dir import (
    LONGEST,
    WRITE_AFTER,
    CheckpointWriter,
    RunDir,
    clear_node_dir,
    file_name,
)
from corral._pipelines.scheduler.commands import Checkpoint
from corral._pipelines.scheduler.outcome import Outcome
from corral._system import fs
from corral.errors import StorageFailed

NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create(graph_of("goal=G; s -> a -> e"), "run-1")
    return made


def test_the_manifest_has_the_name_and_the_start_time(folder: RunDir) -> None:
    manifest = json.loads((folder.path / "manifest.json").read_text())
    assert manifest["name"] == "g"
    assert manifest["goal"] == "G"
    assert manifest["run_id"] == "run-1"
    assert manifest["start_time"].endswith("Z")
    assert folder.artifacts.is_dir()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_a_continued_run_keeps_its_start_time(folder: RunDir) -> None:
    before = (folder.path / "manifest.json").read_bytes()
    RunDir(folder.path).create(graph_of("s -> e"), "run-1")
    assert (folder.path / "manifest.json").read_bytes() == before


def test_the_checkpoint_has_the_state_of_the_run(folder: RunDir) -> None:
    run = run_scheduler("s -> a -> b; b -> e [condition=never]", {"b": FAIL})
    folder.save(folder.encode(run.scheduler.state))
    saved = json.loads((folder.path / "checkpoint.json").read_text())
    assert {"timestamp", "logs"} <= set(saved)
    assert saved["current_node"] == "b"
    assert saved["completed_nodes"] == ["s", "a", "b"]
    assert saved["node_outcomes"]["a"] == {"status": "success"}
    assert saved["node_outcomes"]["b"] == {"status": "fail", "failure_reason": "broken"}
    assert saved["node_retries"] == {}
    assert saved["context"]["outcome"] == "fail"
    assert saved["status"] == "fail"


def test_a_changed_outcome_is_written_again(folder: RunDir) -> None:
    state = run_scheduler("s -> a -> e").scheduler.state
    folder.save(folder.encode(state))
    state.outcomes["a"] = Outcome(status="partial_success")
    folder.save(folder.encode(state))
    saved = json.loads((folder.path / "checkpoint.json").read_text())
    assert saved["node_outcomes"]["a"] == {"status": "partial_success"}


def test_a_node_is_a_link_to_its_latest_visit(folder: RunDir) -> None:
    first = folder.make_visit_dir("a.1", "a")
    (first / "prompt.md").write_text("one")
    assert (folder.path / "a" / "prompt.md").read_text() == "one"
    second = folder.make_visit_dir("a.2", "a")
    assert (folder.path / "a").resolve() == second
    assert (first / "prompt.md").read_text() == "one"
    assert folder.make_visit_dir("a.1", "a") == first  # the first one once more, after a crash
    assert (folder.path / "a").resolve() == second
    assert folder.visit_dir("a.1") == first


def test_a_restart_uses_an_empty_folder_and_loses_no_file(folder: RunDir) -> None:
    (folder.make_visit_dir("a.1", "a") / "prompt.md").write_text("one")
    folder.append_events([PipelineStarted(name="g")])
    folder.save(folder.encode(run_scheduler("s -> a -> e").scheduler.state))
    folder.restart(2)
    assert sorted(os.listdir(folder.path)) == [
        "artifacts",
        "events.ndjson",
        "manifest.json",
        "rounds",
    ]
    assert (folder.path / "rounds" / "1" / "a" / "prompt.md").read_text() == "one"
    (folder.make_visit_dir("a.2", "a") / "prompt.md").write_text("two")
    folder.restart(2)  # called a second time
    assert (folder.path / "a" / "prompt.md").read_text() == "two"
    folder.restart(3)
    assert (folder.path / "rounds" / "2" / "a" / "prompt.md").read_text() == "two"


def test_an_interrupted_restart_is_completed(folder: RunDir) -> None:
    (folder.path / "rounds" / ".1").mkdir(parents=True)
    folder.make_visit_dir("a.1", "a")
    (folder.path / "visits").rename(folder.path / "rounds" / ".1" / "visits")
    folder.restart(2)
    assert (folder.path / "rounds" / "1" / "a").is_dir()


def test_events_are_written_as_lines(folder: RunDir) -> None:
    written: list[events.RunEvent] = [
        PipelineStarted(name="g"),
        StepStarted(node="a", visit="a.1", kind="tool"),
    ]
    folder.append_events(written[:1])
    folder.append_events(written[1:])
    folder.close()
    lines = (folder.path / "events.ndjson").read_bytes().splitlines()
    assert [events.from_json(line) for line in lines] == written


@pytest.mark.parametrize(
    ("id", "name"),
    [
        ("build", "build"),
        ("build.2", "build.2"),
        ("m.1~2.steer", "m.1~2.steer"),
        ("größe", "größe"),
        ("a b", "a b"),
        ("../../etc", "%2E.%2F..%2Fetc"),
        ("a/b", "a%2Fb"),
        ("checkpoint.json", "%63heckpoint.json"),
        ("visits", "%76isits"),
        (".hidden", "%2Ehidden"),
        ("50%", "50%25"),
        ("nul\0", "nul%00"),
    ],
)
def test_every_id_has_a_file_name(id: str, name: str) -> None:
    assert file_name(id) == name


@given(st.text(min_size=1), st.text(min_size=1))
def test_no_two_ids_share_a_file_name_and_none_leaves_the_folder(one: str, other: str) -> None:
    names = [file_name(id) for id in (one, other)]
    assert (names[0] == names[1]) == (one == other)
    for name in names:
        assert 0 < len(name.encode()) <= LONGEST
        assert "/" not in name
        assert not name.startswith(".")


def test_a_folder_that_cannot_be_created_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="cannot write the run folder") as caught:
        RunDir(tmp_path / "file" / "run").create(graph_of("s -> e"), "r")
    assert caught.value.hint


def test_a_folder_that_is_gone_is_made_again(folder: RunDir) -> None:
    (folder.path / "manifest.json").unlink()
    folder.artifacts.rmdir()
    folder.path.rmdir()
    folder.save(folder.encode(run_scheduler("s -> a -> e").scheduler.state))
    assert (folder.path / "checkpoint.json").exists()


READ_ONLY = """
import os, sys
from corral.errors import StorageFailed
from corral._pipelines.execution.run_dir import RunDir
from corral._pipelines.scheduler.state import State, RunLane
os.setuid(int(sys.argv[2]))
folder = RunDir(sys.argv[1])
for act in (lambda: folder.save(folder.encode(State(lanes={"": RunLane(context={})}))),
            lambda: folder.make_visit_dir("a.1", "a"), lambda: folder.restart(2),
            lambda: folder.append_events([])):
    try:
        act()
    except StorageFailed as error:
        print(error.message)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_a_read_only_folder_is_reported(tmp_path: Path) -> None:
    open_to_all = Path("/tmp") if os.access("/tmp", os.W_OK) else tmp_path
    place = open_to_all / f"corral-read-only-{os.getpid()}"
    place.mkdir(mode=0o755)
    try:
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(place), str(NOBODY)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        place.rmdir()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Permission denied") == 4


def ended(node: str) -> Checkpoint:
    return Checkpoint(node=node, visit=f"{node}.1")


def test_nodes_that_end_together_share_one_checkpoint(folder: RunDir) -> None:
    class Counting(RunDir):
        saves = 0

        def save(self, data: bytes) -> None:
            self.saves += 1
            super().save(data)

    counted, saved = Counting(folder.path), list[str]()
    run = run_scheduler("s -> a -> e")

    async def scenario() -> None:
        is_saved = asyncio.Event()

        def on_saved(node: str) -> None:
            saved.append(node)
            if node == "e":
                is_saved.set()

        writer = CheckpointWriter(counted, on_saved)
        for node in "sae":
            writer.node_ended(ended(node), run.scheduler.state)
        assert not (folder.path / "checkpoint.json").exists()
        await asyncio.wait_for(is_saved.wait(), 60)  # nobody calls flush or close
        assert json.loads((folder.path / "checkpoint.json").read_text())["status"] == "success"
        assert counted.saves == 1
        writer.close(run.scheduler.state)

    asyncio.run(scenario())
    assert saved == ["s", "a", "e"]


def test_a_late_thread_does_not_replace_a_newer_checkpoint(folder: RunDir) -> None:
    """The threads of the loop are busy, so the write starts only after ``close``."""
    state = run_scheduler("s -> a -> e").scheduler.state
    old = msgspec.structs.replace(state, finish=None)

    async def scenario() -> None:
        loop, busy = asyncio.get_running_loop(), threading.Event()
        with ThreadPoolExecutor(1) as pool:
            loop.set_default_executor(pool)
            blocked = loop.run_in_executor(None, busy.wait)
            writer = CheckpointWriter(RunDir(folder.path))
            writer.node_ended(ended("a"), old)
            await asyncio.sleep(2 * WRITE_AFTER)
            writer.close(state)
            busy.set()
            await blocked

    asyncio.run(scenario())
    assert json.loads((folder.path / "checkpoint.json").read_text())["status"] == "success"


def test_a_full_disk_prevents_the_checkpoint_and_not_the_run(tmp_path: Path) -> None:
    blocked = tmp_path / "run"
    state = run_scheduler("s -> a -> e").scheduler.state

    async def scenario() -> None:
        writer = CheckpointWriter(RunDir(blocked))
        blocked.write_text("in the way")
        status = Checkpoint(node="a", visit="a.1", outcome=Outcome())
        writer.node_ended(status, state)
        writer.add_event(PipelineStarted(name="g"))
        writer.flush(state)
        assert isinstance(writer.failed, StorageFailed)
        blocked.unlink()
        writer.close(state)
        assert writer.failed is None

    asyncio.run(scenario())
    assert (blocked / "checkpoint.json").exists()
    assert (blocked / "a" / "status.json").exists()
    assert (blocked / "events.ndjson").read_bytes().count(b"\n") == 1


def test_an_attempt_removes_the_files_of_the_last_one_and_its_drafts(tmp_path: Path) -> None:
    visit = tmp_path / "visit"
    visit.mkdir()
    for name in ("prompt.md", "notes.txt", "events.ndjson"):
        (visit / name).write_text("")
    os.close(fs.create_draft(visit / "prompt.md")[0])  # its writer was killed
    clear_node_dir(visit)
    assert sorted(file.name for file in visit.iterdir()) == ["events.ndjson", "notes.txt"]
