"""Sessions that were last used long ago are removed, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from corral._cli import prune
from corral._engine.dbos import database
from corral._sessions import store
from corral._sessions.retention import prune_sessions
from corral._sessions.store import QuestionFile
from corral._sessions.warm.names import StoredName, WarmFiles
from corral._system import fs, paths
from corral.events import Text


def stored(age: float) -> store.SessionRecord:
    record = store.create("an-agent", "/work")
    record.append_events([Text(delta="hello")])
    record.meta.updated, record.meta.status = time.time() - age, "success"
    record.save()
    return record


def test_only_sessions_that_nobody_used_for_long_are_removed() -> None:
    old, new, used = stored(100), stored(1), stored(100)
    used.make_folders()  # locks it
    shown = prune_sessions(older_than=50, dry_run=True)
    assert [each.name for each in shown] == [old.meta.id]
    assert old.folder.exists()
    assert [each.name for each in prune_sessions(older_than=50)] == [old.meta.id]
    left = {each.meta.id for each in store.all_sessions()}
    assert left == {new.meta.id, used.meta.id}
    used.close(keep=True)


def test_a_session_that_waits_for_a_person_stays() -> None:
    record = stored(100)
    record.meta.status = "error"
    record.save()
    QuestionFile(record.folder / "turn-1").write("Is it good?", "Is it good?")
    assert prune_sessions(older_than=50) == []


def test_the_name_of_a_removed_session_is_free_again(tmp_path: Path) -> None:
    record = stored(100)
    files = WarmFiles.of("fix", str(tmp_path))
    paths.make_dir(files.folder)
    name = StoredName(name="fix", cwd=str(tmp_path), agent="an-agent", session=record.meta.id)
    fs.write_atomically(files.meta, msgspec.json.encode(name))
    prune_sessions(older_than=50)
    assert files.stored() is None


def test_prune_needs_no_engine_for_sessions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = stored(100)
    monkeypatch.setattr(database, "is_installed", lambda: False)
    prune.command.main(["--older-than", "1m"], standalone_mode=False)
    assert record.meta.id in capsys.readouterr().out
    assert store.all_sessions() == []
