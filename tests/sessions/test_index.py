"""The search index over stored sessions."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from corral._sessions import index, store
from corral._sessions.index import Query, search
from corral._system import paths
from corral.errors import StorageFailed
from corral.events import Error, Text, ToolUse, Vendor


def stored(
    answer: str = "", *, agent: str = "gemini-cli", cwd: str = "/work", updated: float = 1_000.0
) -> store.SessionRecord:
    record = store.create(agent, cwd)
    paths.make_dir(record.folder)
    record.meta.updated, record.meta.turns = updated, 1
    if answer:
        record.append_events([Text(delta=answer)])
    record.save()
    record.close(keep=True)
    return record


def found(query: Query) -> list[str]:
    return [match.meta.id for match in search(query)]


def test_without_conditions_all_sessions_are_listed_newest_first() -> None:
    old, new = stored(updated=1.0), stored(updated=2.0)
    assert found(Query()) == [new.meta.id, old.meta.id]
    assert found(Query(limit=1)) == [new.meta.id]
    assert search(Query())[0].meta == new.meta


def test_there_may_be_no_session() -> None:
    assert search(Query()) == []
    assert search(Query(grep="anything")) == []


@pytest.mark.parametrize(
    ("text", "grep"),
    [
        ("The Parser fails", "parser F"),
        ('say "hi" now', '"hi"'),
        ("naïve Straße 東京都", "東京都"),
        ("a*b OR c", "*b or"),
        ("ab", "ab"),
        ("50% of_it", "0% OF_"),
    ],
)
def test_grep_finds_a_substring_in_any_case(text: str, grep: str) -> None:
    hit = stored(f"before {text} after")
    stored("something else")
    assert found(Query(grep=grep)) == [hit.meta.id]


def test_prompts_tool_calls_and_errors_are_searched() -> None:
    record = stored()
    record.append_events(
        [
            Vendor(name="prompt", data="Rename the needle"),
            ToolUse(call_id="1", name="shell", title="cat haystack.txt"),
            Text(delta="par"),
            Text(delta="tial"),
            Error(code="x", message="quota spent"),
        ]
    )
    record.save()
    for grep in ("needle", "haystack", "partial", "quota"):
        assert found(Query(grep=grep)) == [record.meta.id], grep
    assert "haystack" in search(Query(grep="haystack"))[0].snippet


def test_changed_and_deleted_sessions_are_noticed() -> None:
    record, other = stored("first"), stored("first")
    assert len(found(Query(grep="first"))) == 2
    record.append_events([Text(delta=" second")])
    record.save()
    os.utime(record.folder / store.META, ns=(0, 1))  # a clock that stands still
    assert found(Query(grep="second")) == [record.meta.id]
    other.close(keep=False)
    assert found(Query(grep="first")) == [record.meta.id]


def index_file() -> Path:
    return paths.sessions() / ".index.sqlite"


def test_a_lost_or_damaged_index_is_built_again() -> None:
    record = stored("needle")
    assert found(Query(grep="needle")) == [record.meta.id]
    index_file().unlink()
    assert found(Query(grep="needle")) == [record.meta.id]
    for suffix in ("-wal", "-shm"):
        Path(f"{index_file()}{suffix}").unlink(missing_ok=True)
    index_file().write_bytes(b"this is no database" * 500)
    assert found(Query(grep="needle")) == [record.meta.id]


def test_an_index_of_another_version_is_built_again() -> None:
    record = stored("needle")
    found(Query())
    db = sqlite3.connect(index_file())
    db.execute("pragma user_version = 99")
    db.execute("drop table sessions")
    db.close()
    assert found(Query(grep="needle")) == [record.meta.id]


def test_a_damaged_session_is_left_out() -> None:
    stored("good")
    bad = stored("bad")
    (bad.folder / store.META).write_text("{")
    assert len(found(Query())) == 1


def test_several_processes_may_search_at_once() -> None:
    ids = {stored(f"needle {n}").meta.id for n in range(50)}
    code = "from corral._sessions.index import *; print(len(search(Query(grep='needle'))))"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)
    ]
    outputs = [process.communicate(timeout=100)[0].strip() for process in processes]
    assert outputs == [str(len(ids)).encode()] * 4


def test_an_index_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stored("x")
    monkeypatch.setattr(index, "_path", lambda: paths.sessions() / "missing" / "index.sqlite")
    with pytest.raises(StorageFailed, match="delete this file"):
        search(Query())
