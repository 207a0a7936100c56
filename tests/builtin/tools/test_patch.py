"""Patches in the v4a form: found by their context, applied completely or not at all."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.builtin_tools import call_error, call_ok, call_tool

from corral._builtin.tools.apply_patch import PatchedFile, write_changes
from corral._builtin.tools.files import FileText
from corral._builtin.tools.patch import Update, apply, parse, paths_in
from corral._builtin.tools.workspace import ToolError, Workspace


def patch_of(text: str) -> str:
    return f"*** Begin Patch\n{dedent(text).strip(chr(10))}\n*** End Patch"


def update(*rows: str, path: str = "a") -> str:
    return "\n".join(["*** Begin Patch", f"*** Update File: {path}", *rows, "*** End Patch"])


def applied(before: str, *rows: str) -> str:
    [step] = parse(update(*rows))
    assert isinstance(step, Update)
    return apply(step.hunks, before, "a")


@pytest.mark.parametrize(
    ("before", "rows", "after"),
    [
        pytest.param("a\nb\nc\n", ["@@", " a", "-b", "+B", " c"], "a\nB\nc\n", id="one hunk"),
        pytest.param("a\nb\n", [" a", "-b", "+B"], "a\nB\n", id="the first @@ left out"),
        pytest.param(
            "a\nb\nc\nd\ne\n",
            ["@@", "-a", "+A", " b", "@@", " d", "-e"],
            "A\nb\nc\nd\n",
            id="two hunks",
        ),
        pytest.param(
            "def f():\n  x\ndef g():\n  x\n",
            ["@@ def g():", "-  x", "+  y"],
            "def f():\n  x\ndef g():\n  y\n",
            id="an anchor tells two places apart",
        ),
        pytest.param(
            "class A\n def f\n  x\nclass B\n def f\n  x\n",
            ["@@ class B", "@@  def f", "-  x", "+  y"],
            "class A\n def f\n  x\nclass B\n def f\n  y\n",
            id="anchor below anchor",
        ),
        pytest.param(
            "def f():\n  x\n",
            ["@@ def f():", " def f():", "-  x", "+  y"],
            "def f():\n  y\n",
            id="the anchor again as context",
        ),
        pytest.param(
            "a\nb\n", ["@@ a", "+new"], "a\nnew\nb\n", id="only new lines go below the anchor"
        ),
        pytest.param("a\nb\n", ["@@", "+new"], "a\nb\nnew\n", id="only new lines go to the end"),
        pytest.param("", ["+new"], "new\n", id="into an empty file"),
        pytest.param("a\nb\n", ["-a", "-b"], "", id="every line gone"),
        pytest.param("x\nx\n", ["@@", "-x", "+y", "*** End of File"], "x\ny\n", id="at the end"),
        pytest.param("a\n\nb\n", [" a", "", "-b", "+B"], "a\n\nB\n", id="an empty line is context"),
        pytest.param("a\nb\n", ["-a", "+A", ""], "A\nb\n", id="an empty line after the hunk"),
        pytest.param("a  \nb\n", [" a", "-b", "+B"], "a  \nB\n", id="blanks at the end of a line"),
        pytest.param("\tx\nx \n", ["-x", "+y"], "\tx\ny\n", id="the nearer of two fuzzy places"),
        pytest.param("\ta\n\tb\n", [" a", "-b", "+B"], "\ta\nB\n", id="blanks at both ends"),
        pytest.param(
            "say “hi” – now\nb\n",
            [' say "hi" - now', "-b", "+B"],
            "say “hi” – now\nB\n",
            id="plain punctuation",
        ),
        pytest.param("a\u00a0b\nc\n", [" a b", "-c"], "a\u00a0b\n", id="a blank that is none"),
        pytest.param("a\r\nb\r\n", [" a", "-b", "+B", "+C"], "a\r\nB\r\nC\r\n", id="CRLF"),
        pytest.param("a\nb", [" a", "-b", "+B"], "a\nB", id="no newline at the end"),
        pytest.param("a\nb", [" b", "+c"], "a\nb\nc", id="no newline at the end, a line more"),
        pytest.param("a\nb", ["-b"], "a", id="no newline at the end, a line less"),
        pytest.param("é\n日本\n", [" é", "-日本", "+中文"], "é\n中文\n", id="unicode"),
        pytest.param(
            "a\nb\n", ["@@ -1,2 +1,2 @@ def z():", " a", "-b", "+B"], "a\nB\n", id="git's numbers"
        ),
        pytest.param(
            "a\nb", ["-b", "+B", "\\ No newline at end of file"], "a\nB", id="git's remark"
        ),
        pytest.param("x\n x\n", ["-x", "+y"], "y\n x\n", id="the exact place before a fuzzy one"),
    ],
)
def test_a_hunk_is_applied_where_its_context_is(before: str, rows: list[str], after: str) -> None:
    assert applied(before, *rows) == after


@pytest.mark.parametrize(
    ("before", "rows", "why"),
    [
        pytest.param("a\n", ["-b", "+c"], "was not found", id="not there"),
        pytest.param("x\nx\n", ["-x", "+y"], "fits at lines 1, 2", id="two places"),
        pytest.param("\tx\n x\n", ["-x", "+y"], "fits at lines 1, 2", id="two fuzzy places"),
        pytest.param(
            "f\nx\nf\nx\n", ["@@ f", "-x", "+y"], "fits at lines 2, 4", id="two anchors, two places"
        ),
        pytest.param("a\n", ["@@ nowhere", "-a"], "no line is '@@ nowhere'", id="no anchor"),
        pytest.param(
            "a\nb\n", ["@@", "-b", "@@", "-a"], "in the order of the file", id="hunks out of order"
        ),
        pytest.param(
            "a\nb\n",
            ["-a", "+A", "*** End of File"],
            "not at the end of the file",
            id="not the end",
        ),
        pytest.param("a\n", [" a"], "changes nothing", id="only context"),
        pytest.param("a\n", ["*a"], "starts with a space, - or +", id="no sign"),
        pytest.param("a\n", [], "has no hunk", id="no hunk"),
    ],
)
def test_a_hunk_without_exactly_one_place_is_an_error_that_shows_it(
    before: str, rows: list[str], why: str
) -> None:
    with pytest.raises(ToolError) as caught:
        applied(before, *rows)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ("", "starts with '*** Begin Patch'"),
        ("hello", "starts with '*** Begin Patch'"),
        ("*** Begin Patch\n*** End Patch", "names no file"),
        ("*** Begin Patch\n*** Delete File: a", "got the end of the patch"),
        ("*** Begin Patch\n*** Add File: a\nx\n*** End Patch", "starts with +"),
        ("*** Begin Patch\n*** Add File: \n+x\n*** End Patch", "a path is missing"),
        ("*** Begin Patch\n*** Frobnicate: a\n*** End Patch", "got: '*** Frobnicate: a'"),
        ("*** Begin Patch\n*** Delete File: a\n*** End Patch\nmore", "nothing may follow"),
    ],
)
def test_an_invalid_patch_is_an_error_with_its_line(patch: str, why: str) -> None:
    with pytest.raises(ToolError, match=r"^line \d+ of the patch: ") as caught:
        parse(patch)
    assert why in str(caught.value)


def test_a_patch_in_a_fence_or_with_windows_line_endings_is_accepted() -> None:
    patch = update("-a", "+b")
    assert parse(patch.replace("\n", "\r\n")) == parse(patch)
    assert len(parse(f"```\n{patch}\n```\n")) == 1


def test_the_paths_of_an_invalid_patch_are_found() -> None:
    broken = "*** Update File: a\n*** Move to: b/c\n*** Add File: d e\nrubbish\n*** Delete File: a"
    assert paths_in(broken) == ("a", "b/c", "d e")


async def test_one_patch_adds_updates_moves_and_deletes(workspace: Path) -> None:
    for name in ("a", "b", "c"):
        (workspace / name).write_text("one\ntwo\n")
    (workspace / "b").chmod(0o755)
    (workspace / "c").write_bytes(b"\0\xff")
    patch = patch_of("""
        *** Add File: deep/er/new.txt
        +first
        +
        +third
        *** Update File: a
        @@
         one
        -two
        +2
        *** Update File: b
        *** Move to: deep/b
        @@
        -one
        +1
        *** Delete File: c
    """)
    outcome = await call_tool(Workspace(workspace), "apply_patch", patch=patch)
    assert not outcome.is_error, outcome.text
    assert (workspace / "deep/er/new.txt").read_text() == "first\n\nthird\n"
    assert (workspace / "a").read_text() == "one\n2\n"
    assert (workspace / "deep/b").read_text() == "1\ntwo\n"
    assert (workspace / "deep/b").stat().st_mode & 0o777 == 0o755
    assert sorted(os.listdir(workspace)) == ["a", "deep"]
    reported = [
        (Path(e.path).name, e.kind, e.lines_added, e.lines_removed) for e in outcome.effects
    ]
    assert reported == [
        ("new.txt", "created", 3, 0),
        ("a", "modified", 1, 1),
        ("b", "moved", 1, 1),
        ("c", "deleted", 0, 1),
    ]
    assert outcome.effects[2].source == str(workspace / "b")
    assert outcome.shown.splitlines()[3] == "moved b to deep/b (+1 -1)"


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ("*** Update File: a\n-nowhere", "was not found"),
        ("*** Update File: missing\n-x", "missing does not exist"),
        ("*** Delete File: missing", "missing does not exist"),
        ("*** Delete File: folder", "folder is a folder"),
        ("*** Delete File: link", "link is a link"),
        ("*** Add File: a\n+x", "a exists already"),
        ("*** Add File: folder\n+x", "folder is a folder"),
        ("*** Add File: a/b\n+x", "cannot be written"),
        ("*** Update File: a\n*** Move to: b", "b exists already"),
        ("*** Update File: a\n*** Move to: a\n-one", "cannot be moved to itself"),
        ("*** Update File: a\n*** Move to: ../out\n-one", "outside the workspace"),
        ("*** Add File: ../out\n+x", "outside the workspace"),
        ("*** Update File: binary\n-x", "a binary file"),
        ("*** Add File: half\n+\ud800", "half a character"),
        ("*** Delete File: b\n*** Delete File: b", "the patch itself removes it"),
    ],
)
async def test_a_patch_with_one_bad_part_changes_nothing(
    workspace: Path, last: str, why: str
) -> None:
    for name in ("a", "b", "good"):
        (workspace / name).write_text("one\n")
    (workspace / "binary").write_bytes(b"x\0")
    (workspace / "folder").mkdir()
    (workspace / "link").symlink_to("a")
    patch = patch_of("*** Add File: new\n+x\n*** Update File: good\n-one\n+1\n").replace(
        "*** End Patch", f"{last}\n*** End Patch"
    )
    assert why in await call_error(Workspace(workspace), "apply_patch", patch=patch)
    assert (workspace / "good").read_text() == (workspace / "b").read_text() == "one\n"
    assert sorted(os.listdir(workspace)) == ["a", "b", "binary", "folder", "good", "link"]
    assert not (workspace.parent / "out").exists()


async def test_later_parts_of_a_patch_see_the_effects_of_earlier_ones(workspace: Path) -> None:
    (workspace / "a").write_text("one\ntwo\n")
    patch = patch_of("""
        *** Update File: a
        -one
        +1
        *** Update File: a
         1
        -two
        +2
        *** Delete File: a
        *** Add File: a
        +anew
    """)
    await call_ok(Workspace(workspace), "apply_patch", patch=patch)
    assert (workspace / "a").read_text() == "anew\n"


async def test_a_file_that_vanishes_before_it_can_be_deleted_undoes_the_rest(
    workspace: Path,
) -> None:
    (workspace / "a").write_text("old")
    text = {"old": FileText("old"), "new": FileText("new")}
    changed = {
        workspace / "a": PatchedFile(text["old"], text["new"]),
        workspace / "b": PatchedFile(None, text["new"]),
        workspace / "gone": PatchedFile(text["old"], None),
    }
    with pytest.raises(ToolError, match="the patch was not applied: gone: No such file"):
        await write_changes(Workspace(workspace), changed)
    assert (workspace / "a").read_text() == "old"
    assert os.listdir(workspace) == ["a"]


async def test_bytes_that_are_not_utf8_and_the_byte_order_mark_stay(workspace: Path) -> None:
    (workspace / "a").write_bytes(b"\xef\xbb\xbffirst\r\n\xe9t\xe9\r\n")
    await call_ok(Workspace(workspace), "apply_patch", patch=update("-first", "+FIRST"))
    assert (workspace / "a").read_bytes() == b"\xef\xbb\xbfFIRST\r\n\xe9t\xe9\r\n"


lines = st.lists(st.sampled_from(["a", "b", " b", "c ", "", "é", "-x", "+y", "@@"]), max_size=25)


@example([""], ["a", ""], "\n", True, 1)
@given(lines, lines, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(1, 3))
def test_a_patch_made_of_two_texts_turns_one_into_the_other(
    before: list[str], after: list[str], ending: str, closed: bool, context: int
) -> None:
    def text(of: list[str]) -> str:
        return ending.join(of) + (ending if closed and of else "")

    rows = [
        "@@" if row.startswith("@@") else row
        for row in list(difflib.unified_diff(before, after, n=context, lineterm=""))[2:]
    ]
    # A text of one empty line without an end is an empty file: no patch can tell them apart.
    if not rows or (not closed and ("" in (before[-1:] + after[-1:]) or not before or not after)):
        return
    result = complaint = ""
    try:
        result = applied(text(before), *rows)
    except ToolError as error:
        complaint = str(error)
    if complaint:
        assert "fits at lines" in complaint
        return
    assert result.replace("\r\n", "\n") == text(after).replace("\r\n", "\n")
    assert ending == "\n" or len(before) < 2 or "\n" not in result.replace("\r\n", "")


@pytest.mark.timeout(60)
@pytest.mark.deep
def test_many_equal_lines_take_linear_time() -> None:
    """With each place compared to each line of the hunk this takes minutes."""
    body = "a\n" * 200_000
    patch = "*** Begin Patch\n*** Update File: a\n" + " a\n" * 100_000 + "-b\n*** End Patch"
    [step] = parse(patch)
    assert isinstance(step, Update)
    with pytest.raises(ToolError, match="was not found"):
        apply(step.hunks, body, "a")


@pytest.mark.timeout(60)
@pytest.mark.deep
def test_many_blank_lines_take_linear_time() -> None:
    patch = "*** Begin Patch\n*** Update File: a\n-a\n" + "\n" * 400_000 + "+b\n*** End Patch"
    [step] = parse(patch)
    assert isinstance(step, Update)
    assert len(step.hunks[0].rows) == 400_002


def test_a_patch_of_too_many_sections_is_refused() -> None:
    sections = "".join(f"*** Delete File: {n}\n" for n in range(1001))
    with pytest.raises(ToolError, match="at most 1000 sections"):
        parse(f"*** Begin Patch\n{sections}*** End Patch")
