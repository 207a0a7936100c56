"""write_file and edit_file: exact changes, or an error with the reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builtin_tools import call_error, call_ok, call_tool

from corral._builtin.tools.edit import count_changed_lines, diff
from corral._builtin.tools.workspace import Workspace


async def edit(workspace: Path, old: str, new: str, **more: bool) -> str:
    args = {"file_path": "a", "old_string": old, "new_string": new}
    return await call_ok(Workspace(workspace), "edit_file", **args, **more)


async def edit_refused(workspace: Path, old: str, new: str) -> str:
    args = {"file_path": "a", "old_string": old, "new_string": new}
    return await call_error(Workspace(workspace), "edit_file", **args)


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"one\ntwo\n", "two", "2", b"one\n2\n"),
        (b"one\ntwo", "two", "2", b"one\n2"),
        (b"one\r\ntwo\r\nthree\r\n", "one\ntwo", "1\n2\n2b", b"1\r\n2\r\n2b\r\nthree\r\n"),
        (b"one\r\ntwo\r\n", "one\r\ntwo", "1\n2", b"1\r\n2\r\n"),
        (b"one\r\ntwo\nthree\n", "two\nthree", "2\n3", b"one\r\n2\n3\n"),
        (b"\xe9t\xe9 one\n", "one", "1", b"\xe9t\xe9 1\n"),
        (b"\xef\xbb\xbfone\n", "one", "1", b"\xef\xbb\xbf1\n"),
        ("日本 é 👍\n".encode(), "é 👍", "e", "日本 e\n".encode()),
        (b"one\ntwo\n", "two\n", "", b"one\n"),
        (b"a.*b", ".*", r"\1", rb"a\1b"),
    ],
)
async def test_an_edit_changes_the_place_and_nothing_else(
    workspace: Path, before: bytes, old: str, new: str, after: bytes
) -> None:
    (workspace / "a").write_bytes(before)
    await edit(workspace, old, new)
    assert (workspace / "a").read_bytes() == after


async def test_text_that_occurs_twice_is_an_error_with_its_lines(workspace: Path) -> None:
    (workspace / "a").write_text("x\ny\nx = x\n")
    output = await edit_refused(workspace, "x", "z")
    assert "is in a 3 times, at lines 1, 3, 3" in output
    assert "replace_all" in output
    assert (workspace / "a").read_text() == "x\ny\nx = x\n"
    assert "at 3 places" in await edit(workspace, "x", "z", replace_all=True)
    assert (workspace / "a").read_text() == "z\ny\nz = z\n"


async def test_missing_text_is_an_error_with_similar_lines(workspace: Path) -> None:
    (workspace / "a").write_text("def greet(name):\n    return name\n\ndef part(): ...\n")
    output = await edit_refused(workspace, "def great(name):\n    return nane", "x")
    assert output == (
        "old_string is not in a; the nearest lines are:\n"
        "     1\tdef greet(name):\n     2\t    return name"
    )


async def test_text_that_differs_only_in_spaces_is_reported(workspace: Path) -> None:
    (workspace / "a").write_text("if x:\n\treturn 1\nif x:\n\treturn 2\n")
    output = await edit_refused(workspace, "if x:\n    return 2", "x")
    assert "differ only in leading or trailing spaces:\n     3\tif x:\n     4\t\treturn 2" in output


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("one", "one", "are the same"),
        ("", "x", "old_string: expected at least 1 characters"),
        ("zzzzzzzzzzzz", "x", "nothing in it is similar"),
        ("one", "\ud800", "half a character"),
    ],
)
async def test_an_impossible_edit_is_an_error(
    workspace: Path, old: str, new: str, why: str
) -> None:
    (workspace / "a").write_text("one\n")
    assert why in await edit_refused(workspace, old, new)
    assert (workspace / "a").read_text() == "one\n"
    assert os.listdir(workspace) == ["a"]


async def test_files_that_are_not_text_cannot_be_edited(workspace: Path) -> None:
    assert "a does not exist" in await edit_refused(workspace, "x", "y")
    (workspace / "a").write_bytes(b"\x89PNG\r\n\x1a\n\0\0x")
    assert "a PNG image" in await edit_refused(workspace, "x", "y")
    (workspace / "a").unlink()
    (workspace / "a").mkdir()
    assert "a is a folder" in await edit_refused(workspace, "x", "y")


async def test_a_misspelled_name_is_an_error_with_similar_names(workspace: Path) -> None:
    (workspace / "settings.toml").touch()
    output = await call_error(Workspace(workspace), "read_file", file_path="setings.toml")
    assert output == "setings.toml does not exist; did you mean settings.toml?"


async def test_an_edit_shows_what_changed(workspace: Path) -> None:
    (workspace / "a").write_text("".join(f"line {n}\n" for n in range(1, 100)))
    outcome = await call_tool(
        Workspace(workspace),
        "edit_file",
        file_path="a",
        old_string="line 50\n",
        new_string="L\nM\n",
    )
    assert outcome.text == (
        "Edited a (+2 -1)\n@@ -47,7 +47,8 @@\n line 47\n line 48\n line 49\n-line 50\n+L\n+M\n"
        " line 51\n line 52\n line 53"
    )
    [effect] = outcome.effects
    assert (effect.path, effect.kind) == (str(workspace / "a"), "modified")
    assert (effect.lines_added, effect.lines_removed) == (2, 1)


async def test_a_very_large_change_is_shown_within_the_limit(workspace: Path) -> None:
    (workspace / "a").write_text("".join(f"{n} x\n" for n in range(900)))
    assert len(await edit(workspace, " x", " yyyyyyyy", replace_all=True)) <= 10_000


async def test_writing_creates_folders_and_counts_lines(workspace: Path) -> None:
    outcome = await call_tool(
        Workspace(workspace), "write_file", file_path="new/deep/f.txt", content="é\nb"
    )
    assert outcome.shown == "Created new/deep/f.txt (2 lines)"
    assert (workspace / "new/deep/f.txt").read_bytes() == "é\nb".encode()
    assert [(e.kind, e.lines_added, e.lines_removed) for e in outcome.effects] == [
        ("created", 2, 0)
    ]
    second = await call_tool(
        Workspace(workspace), "write_file", file_path="new/deep/f.txt", content="é\nc\n"
    )
    assert [(e.kind, e.lines_added, e.lines_removed) for e in second.effects] == [
        ("modified", 1, 1)
    ]


async def test_a_file_keeps_its_mode_and_a_new_one_obeys_the_mask(workspace: Path) -> None:
    (workspace / "run").write_text("old")
    (workspace / "run").chmod(0o750)
    here = Workspace(workspace)
    old = os.umask(0o027)
    try:
        await call_ok(here, "write_file", file_path="run", content="new")
        await call_ok(here, "write_file", file_path="fresh", content="new")
    finally:
        os.umask(old)
    assert (workspace / "run").stat().st_mode & 0o7777 == 0o750
    assert (workspace / "fresh").stat().st_mode & 0o7777 == 0o640


async def test_the_set_user_id_bit_is_not_preserved(workspace: Path) -> None:
    (workspace / "run").touch()
    (workspace / "run").chmod(0o4755)
    await call_ok(Workspace(workspace), "write_file", file_path="run", content="new")
    assert (workspace / "run").stat().st_mode & 0o7777 == 0o755


async def test_a_file_is_replaced_atomically(workspace: Path) -> None:
    """Who has the old one open goes on reading the old one."""
    (workspace / "a").write_text("old")
    with (workspace / "a").open() as reading:
        await call_ok(Workspace(workspace), "write_file", file_path="a", content="new")
        assert reading.read() == "old"
    assert os.listdir(workspace) == ["a"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
async def test_read_only_files_are_not_changed(workspace: Path) -> None:
    (workspace / "a").write_text("old")
    (workspace / "a").chmod(0o444)
    output = await call_error(Workspace(workspace), "write_file", file_path="a", content="new")
    assert output == "a is read-only"


async def test_a_file_cannot_replace_a_folder(workspace: Path) -> None:
    (workspace / "folder").mkdir()
    (workspace / "file").touch()
    here = Workspace(workspace)
    for path, why in (("folder", "is a folder"), (".", "is a folder"), ("file/x", "cannot be")):
        assert why in await call_error(here, "write_file", file_path=path, content="x")


async def test_all_argument_errors_are_reported_together(workspace: Path) -> None:
    output = await call_error(Workspace(workspace), "write_file", file_path=3, contents="x")
    assert output.splitlines() == [
        "the arguments do not fit write_file:",
        "- content: is required and missing",
        "- file_path: expected a string, got 3",
        "- contents: is not a known property; did you mean content?",
    ]


async def test_a_null_means_the_default(workspace: Path) -> None:
    (workspace / "a").write_text("x\n")
    here = Workspace(workspace)
    assert "x" in await call_ok(here, "read_file", file_path="a", offset=None, limit=None)


texts = st.lists(st.sampled_from("abc"), max_size=12).map(
    lambda rows: "".join(f"{r}\n" for r in rows)
)


@given(texts, texts)
def test_the_line_counts_of_a_change_match_its_diff(old: str, new: str) -> None:
    added, removed = count_changed_lines(old, new)
    assert added - removed == new.count("\n") - old.count("\n")
    rows = diff(old, new).splitlines()
    assert [sum(row[0] == sign for row in rows) for sign in "+-"] == [added, removed]
