"""The file of a conversation is renamed to an earlier minute; no other file changes."""

from __future__ import annotations

from corral.agents.gemini.session_files import rename_to_earlier

ID = "4b969d99-3ae1-4d2f-8c1a-f90185cd65a6"
NOON = 1_800_014_430.0  # 2027-01-15 12:00:30


def name(minute: str, short: str = ID[:8]) -> str:
    return f"session-2027-01-15T{minute}-{short}.jsonl"


def test_a_file_of_this_minute_gets_an_earlier_free_name() -> None:
    names = [name("11-58"), name("11-59"), name("12-00")]
    assert rename_to_earlier(names, ID, NOON) == {name("12-00"): name("11-57")}
    ahead = [name("12-00"), name("12-05")]  # the clock was set back
    assert rename_to_earlier(ahead, ID, NOON) == {
        name("12-00"): name("11-59"),
        name("12-05"): name("11-58"),
    }


def test_files_of_other_minutes_are_not_renamed() -> None:
    assert rename_to_earlier([name("11-59"), name("12-00", "0f6ffda6")], ID, NOON) == {}
