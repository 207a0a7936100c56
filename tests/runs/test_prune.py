"""``prune`` deletes what ended long ago, of every kind, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest
from support.merge_queues import add_branch, make_repository

from corral import merge_queue, runs
from corral._engine.dbos import database
from corral._merging import owners
from corral._merging.owners import BranchOwner
from corral._merging.queue import QueueStore
from corral._sessions import store
from corral._sessions.store import QuestionFile
from corral._sessions.warm.names import StoredName, WarmFiles
from corral._system import fs, paths
from corral.errors import ConfigError
from corral.events import Text


def stored(age: float) -> store.SessionRecord:
    record = store.create("an-agent", "/work")
    record.append_events([Text(delta="hello")])
    record.meta.updated, record.meta.status = time.time() - age, "success"
    record.save()
    return record


def pruned(older_than: float, *, dry_run: bool = False) -> list[tuple[str, str]]:
    found = runs.prune_sync(older_than=older_than, dry_run=dry_run)
    return [(run.kind, run.id) for run in found]


def test_only_sessions_that_nobody_used_for_long_are_deleted() -> None:
    old, new, used = stored(100), stored(1), stored(100)
    used.make_folders()  # locks it
    shown = pruned(50, dry_run=True)
    assert ("session", old.meta.id) in shown
    assert ("session", new.meta.id) not in shown
    assert old.folder.exists()
    pruned(50)
    left = {each.meta.id for each in store.all_sessions()}
    assert left == {new.meta.id, used.meta.id}
    with pytest.raises(ConfigError, match="is in use"):
        runs.delete_sync(used.meta.id)
    used.close(keep=True)
    with pytest.raises(ConfigError, match="must not be negative"):
        pruned(-1)


def test_a_session_that_waits_for_a_person_stays() -> None:
    record = stored(100)
    record.meta.status = store.WAITING
    record.save()
    QuestionFile(record.folder / "turn-1").write("Is it good?", "Is it good?")
    assert pruned(50) == []
    with pytest.raises(ConfigError, match="is waiting, so it cannot be deleted"):
        runs.delete_sync(record.meta.id)


def test_the_name_of_a_deleted_session_is_free_again(tmp_path: Path) -> None:
    record = stored(100)
    files = WarmFiles.of("fix", str(tmp_path))
    paths.make_dir(files.folder)
    name = StoredName(name="fix", cwd=str(tmp_path), agent="an-agent", session=record.meta.id)
    fs.write_atomically(files.meta, msgspec.json.encode(name))
    pruned(50)
    assert files.stored() is None


def test_sessions_are_pruned_without_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    stored(100)
    monkeypatch.setattr(database, "is_installed", lambda: False)
    assert len(pruned(50)) == 1
    assert store.all_sessions() == []


def test_merge_queues_and_records_of_branches_are_pruned(tmp_path: Path) -> None:
    repo = make_repository(tmp_path / "repo")
    add_branch(repo, "one", {"files/one": "1\n"})
    for name in ("target", "busy"):
        add_branch(repo, name, {})
        merge_queue.run_sync(["one"], into=name, gates=["true"], cwd=repo)
    busy, ended = QueueStore.of(repo, "busy"), QueueStore.of(repo, "target")
    busy.change(lambda stored: stored.add("one", "", ""))
    owners.record(repo, "one", BranchOwner(agent="a"))
    owners.record(repo, "two", BranchOwner(agent="a"))
    records = sorted((paths.home() / "owners").glob("*.json"))
    old = time.time() - 100
    for path in (busy.path, ended.path, records[0]):
        os.utime(path, (old, old))
    assert pruned(50, dry_run=True) == [("merge", ended.id)]
    assert ended.path.exists()
    assert pruned(50) == [("merge", ended.id)]
    assert not ended.path.exists()
    assert busy.path.exists()
    assert [path.exists() for path in records] == [False, True]
    with pytest.raises(ConfigError, match="branches wait in"):
        runs.delete_sync(busy.id)
