"""The formats of what is stored: another one is refused in one line, and stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from corral._comparison import plan
from corral._core import stored_formats
from corral._sessions import store
from corral._system import paths
from corral._system.cassette import format
from corral.errors import FormatUnsupported


def read_session(path: Path) -> None:
    store.find(path.parent.name)


def read_plan(path: Path) -> None:
    plan.load_plan(path.parent.name)


@pytest.mark.parametrize(
    ("name", "field", "read"),
    [
        ("sessions/s/meta.json", "format", read_session),
        ("comparisons/c/plan.json", "version", read_plan),
        ("recording.jsonl", "cassette", format.read),
    ],
)
def test_what_a_newer_corral_stored_is_refused_in_one_line(
    name: str, field: str, read: Callable[[Path], object]
) -> None:
    path = paths.home() / name
    path.parent.mkdir(parents=True)
    path.write_text(f'{{"{field}":9,"new":[]}}\n')
    before = path.read_bytes()
    with pytest.raises(FormatUnsupported) as raised:
        read(path)
    message = str(raised.value)
    assert message.endswith("is stored in format 9, and this corral uses format 1: update corral")
    assert "\n" not in message
    assert path.read_bytes() == before


def test_the_format_of_a_run_is_read_from_the_name_in_its_database() -> None:
    ours = stored_formats.JOURNAL
    assert stored_formats.journal_format(stored_formats.journal_name()) == ours
    assert stored_formats.journal_format("1") == 1
    assert stored_formats.journal_format("format-7") == 7
    assert stored_formats.journal_format("None") == ours
    assert not stored_formats.journal_name().isdecimal()  # see journal_name
