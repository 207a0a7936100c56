"""A conversation's file is given the name of a minute that is over, and nothing else is touched."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from corral.agents.gemini_chats import make_older

ID = "4b969d99-3ae1-4d2f-8c1a-f90185cd65a6"


def name(age: int, short: str = ID[:8]) -> str:
    minute = datetime.now(UTC) - timedelta(minutes=age)
    return f"session-{minute:%Y-%m-%dT%H-%M}-{short}.jsonl"


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    folder = tmp_path / ".gemini" / "tmp" / "workspace" / "chats"
    folder.mkdir(parents=True)
    return folder


def test_one_of_this_minute_becomes_older_and_replaces_none(tmp_path: Path, chats: Path) -> None:
    now = name(0)
    (chats / name(2)).write_text("older")
    (chats / name(1)).write_text("old")
    (chats / now).write_text("new")
    make_older(str(tmp_path), ID)
    assert not (chats / now).exists()
    assert sorted(file.read_text() for file in chats.iterdir()) == ["new", "old", "older"]


def test_others_stay_what_they_are(tmp_path: Path, chats: Path) -> None:
    names = [name(5), name(0, "0f6ffda6"), f"notes-{ID[:8]}.jsonl"]
    for each in names:
        (chats / each).write_text(each)
    make_older(str(tmp_path), ID)
    assert sorted(file.name for file in chats.iterdir()) == sorted(names)
    make_older(str(tmp_path / "nowhere"), ID)
