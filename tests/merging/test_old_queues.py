"""Merge queues, and records of branches, that were last used long ago are removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.merge_queues import add_branch, make_repository

from corral import merge_queue
from corral._merging import owners
from corral._merging.old_queues import prune_queues
from corral._merging.owners import BranchOwner
from corral._merging.queue import QueueStore


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))


def test_only_what_is_old_and_has_ended_is_removed(tmp_path: Path) -> None:
    repo = make_repository(tmp_path / "repo")
    add_branch(repo, "one", {"files/one": "1\n"})
    for name in ("target", "busy"):
        add_branch(repo, name, {})
        merge_queue.run_sync(["one"], into=name, gates=["true"], cwd=repo)
    busy, ended = QueueStore.of(repo, "busy"), QueueStore.of(repo, "target")
    busy.change(lambda stored: stored.add("one", "", ""))
    owners.record(repo, "one", BranchOwner(agent="a"))
    owners.record(repo, "two", BranchOwner(agent="a"))
    old = time.time() - 100
    for path in (busy.path, ended.path, owners.records()[0]):
        os.utime(path, (old, old))
    shown = prune_queues(older_than=50, dry_run=True)
    assert [(each.kind, each.name) for each in shown] == [
        ("merge", ended.id),
        ("owner", owners.records()[0].stem),
    ]
    assert ended.path.exists()
    assert [each.name for each in prune_queues(older_than=50)] == [each.name for each in shown]
    assert [queue.into for queue in merge_queue.queues()] == ["busy"]
    assert len(owners.records()) == 1
