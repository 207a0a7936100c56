"""What a permission question shows of a command and of a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral._runs.permission_details import MOST_LINES, details
from corral.values import Json


def shown(given: Json, cwd: Path | str = ".", title: str | None = None) -> list[str]:
    return [line.text for line in details(given, title, str(cwd))]


def test_a_command_is_shown_first_with_all_its_lines() -> None:
    given: Json = {"timeout": 5, "command": "make\n\trm -rf x\x1b[2J"}
    assert shown(given, title="Run make") == [
        "Run make",
        "$ make",
        r"      rm -rf x\x1b[2J",
        "timeout: 5",
    ]


@pytest.mark.parametrize(
    ("old", "new"), [("old_string", "new_string"), ("oldText", "newText"), ("old_str", "new_str")]
)
def test_a_replacement_is_shown_as_a_diff(old: str, new: str) -> None:
    given: Json = {"file_path": "a.py", old: "a\nb\nc", new: "a\nB\nc", "replace_all": True}
    assert shown(given) == ["a.py", " a", "-b", "+B", " c", "replace_all: true"]


def test_new_content_is_compared_with_the_file(workspace: Path) -> None:
    (workspace / "a").write_text("".join(f"{n}\n" for n in range(20)))
    text = "".join(f"{n}\n" for n in range(20) if n != 10)
    assert shown({"file_path": "a", "content": text}, workspace) == [
        "a",
        "@@ -8,7 +8,6 @@",
        *(" 7", " 8", " 9", "-10", " 11", " 12", " 13"),
    ]
    assert shown({"path": "b", "content": "x\ny"}, workspace) == ["b (new file)", "+x", "+y"]
    (workspace / "c").write_bytes(b"\xff")
    assert shown({"path": "c", "content": "x"}, workspace)[0] == "c (replaces a binary file)"
    (workspace / "d").mkdir()
    assert "cannot be read" in shown({"path": "d", "content": "x"}, workspace)[0]
    assert shown({"path": "a", "content": (workspace / "a").read_text()}, workspace) == [
        "a",
        "(no change)",
    ]


def test_several_changes_are_shown_one_after_another() -> None:
    changes: list[Json] = [
        {"path": "a", "old_text": "1", "new_text": "2"},
        {"path": "b", "old_text": None, "new_text": "new"},
    ]
    assert shown({"changes": changes}) == ["a", "-1", "+2", "b (new file)", "+new"]


def test_invisible_characters_of_a_change_are_shown() -> None:
    lines = shown({"path": "a", "old_text": "x", "new_text": "x\u202e\u200b\r"})
    assert r"+x\u202e\u200b\x0d" in lines


def test_a_change_that_is_too_long_to_compare_is_shown_in_full() -> None:
    old = "\n".join(f"{n}" for n in range(MOST_LINES))
    lines = shown({"path": "a", "old_text": old, "new_text": f"{old}\nend"})
    assert len(lines) == 2 * MOST_LINES + 2
    assert lines[-1] == "+end"


def test_what_is_not_a_change_is_shown_as_arguments() -> None:
    assert shown({"path": "a", "new_text": "x"}) == ["path: a", "new_text: x"]
    assert shown({"changes": [{"path": "a"}]}) == ["changes:", "  1:", "    path: a"]
    assert shown({"path": "a", "content": ["x"]}) == ["path: a", "content:", "  1: x"]
