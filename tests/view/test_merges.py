"""The merge queues in the HTTP API: states, reasons, owners, and what is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.merge_queues import GATE, add_branch, make_repository
from support.repositories import git
from support.view_server import Transcript, running_view

from corral import events, merge_queue
from corral._merging import owners
from corral._merging.owners import BranchOwner
from corral._merging.queue import QueueStore
from corral._view import merges
from corral._view.records import MergeRun, Summary

SESSION = "20260101-000000-aaaaaa"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Its queue has merged a branch, and another one has failed."""
    made = make_repository(tmp_path / "repo")
    add_branch(made, "corral/nightly/good", {"good": "good\n", HOSTILE: "one\n"})
    add_branch(made, "corral/nightly/bad", {HOSTILE: "two\n"})
    names = ("corral/nightly/good", "corral/nightly/bad")
    merge_queue.run_sync(names, into="main", gates=[GATE], rounds=0, cwd=made)
    return made


@pytest.mark.whole_program
async def test_queues_are_listed_with_their_branches(repo: Path, home: Path) -> None:
    Transcript(home, SESSION).write([events.Text("done")])
    owner = BranchOwner(agent="gemini", session=SESSION)
    owners.record(repo, "corral/nightly/good", owner)
    with running_view(home) as view:
        found = await view.get("/api/merges")
        (queue,) = found["queues"]
        tip = git(repo, "rev-parse", "main")
        wanted = {"into": "main", "gates": [GATE], "tip": tip, "repository": str(repo)}
        assert wanted.items() <= queue.items()
        counts = {"open": 0, "merged": 1, "failed": 1, "working": False, "command": None}
        assert counts.items() <= queue.items()
        rows: dict[str, Any] = {row["branch"]: row for row in queue["rows"]}
        good, bad = rows["corral/nightly/good"], rows["corral/nightly/bad"]
        assert (good["state"], good["session"], good["result"]) == ("merged", SESSION, tip)
        assert (bad["state"], bad["session"], bad["files"]) == ("failed", None, [HOSTILE])
        assert bad["reason"].startswith(f"conflict in {HOSTILE}")


def test_what_no_process_works_on_is_interrupted_and_the_command_continues_it(repo: Path) -> None:
    store = QueueStore.of(repo, "main")

    def add(queue: merge_queue.MergeQueue) -> None:
        queue.add("next", "0" * 40, "")
        queue.add("later", "0" * 40, "")
        queue.next().state = "checking"  # type: ignore[union-attr]

    before = merges.version(merges.states())
    store.change(add)
    assert merges.version(merges.states()) != before
    (queue,) = merges.read(merges.states(), [], ()).queues
    assert queue.command == "corral merge --into main"
    assert [row.state for row in queue.rows[:2]] == ["interrupted", "queued"]
    with store.working():
        states = merges.states()
    assert merges.version(states) != merges.version(merges.states())
    (queue,) = merges.read(states, [], ()).queues
    assert (queue.command, queue.rows[0].state) == (None, "checking")


def test_a_branch_names_the_run_that_made_it(repo: Path) -> None:
    runs = [
        Summary(kind="batch", id=name, state="success", state_text="done", db="other")
        for name in ("nightly", "other")
    ]
    QueueStore.of(repo, "main").change(lambda queue: queue.add("nightly/good", "0" * 40, ""))
    (queue,) = merges.read(merges.states(), runs, ()).queues
    made_by = {row.branch: row.run for row in queue.rows}
    batch = MergeRun(kind="batch", id="nightly", db="other")
    assert made_by == {
        "corral/nightly/good": batch,
        "corral/nightly/bad": batch,
        "nightly/good": None,
    }


def test_long_and_hostile_texts_are_cut_and_made_plain(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = QueueStore.of(repo, "main")

    def damage(queue: merge_queue.MergeQueue) -> None:
        entry = queue.find(2)
        entry.reason = "\x1b[31mred\u202e" + "x" * 10_000
        entry.output = "y" * 10_000 + "end"
        entry.files = ("z" * 10_000,) * 100

    store.change(damage)
    monkeypatch.setattr(merges, "MAX_ROWS", 1)
    (queue,) = merges.read(merges.states(), [], ()).queues
    (row,) = queue.rows
    assert (queue.merged, queue.failed) == (1, 1)
    assert row.reason.startswith("red\\u202exxx")
    assert len(row.reason) < merges.MAX_TEXT + 10
    assert (len(row.output), row.output[-3:]) == (merges.MAX_TEXT, "end")
    assert (len(row.files), len(row.files[0])) == (merges.MAX_NAMES, merges.MAX_NAME)
    monkeypatch.setattr(merges, "MAX_QUEUES", 0)
    assert merges.read(merges.states(), [], ()).left == 1


def test_a_damaged_queue_and_a_removed_repository_do_not_hide_the_others(
    repo: Path, tmp_path: Path, home: Path
) -> None:
    damaged = home / "merges" / "damaged"
    damaged.mkdir()
    (damaged / "queue.json").write_text("{")
    repo.rename(tmp_path / "moved")
    (queue,) = merges.read(merges.states(), [], ()).queues
    assert (queue.into, queue.tip, queue.merged) == ("main", None, 1)
