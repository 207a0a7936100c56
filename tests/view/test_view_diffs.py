"""Stored diffs as rows for two columns."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from corral._system.git.changes import split_lines, unified
from corral._view.diffs import MAX_ROWS, side_by_side

LINES = st.lists(st.sampled_from(["a", "b", "--- a/x", "+++ b/x", "@@ -1 +1 @@", "", "# n"]))


@given(old=LINES, new=LINES)
def test_both_columns_have_the_lines_of_the_diff(old: list[str], new: list[str]) -> None:
    hunks = [*unified(old, new)]
    text = "--- a/f\n+++ b/f\n" + "".join(f"{line}\n" for line in hunks)
    (file,) = side_by_side(text).files
    rows = [row for hunk in file.hunks for row in hunk.rows]
    left = [row.left.text for row in rows if row.left]
    right = [row.right.text for row in rows if row.right]
    assert left == [line[1:] for line in hunks if line[:1] in " -"]
    assert right == [line[1:] for line in hunks if line[:1] in " +"]
    for row in rows:
        if row.left:
            assert old[row.left.n - 1] == row.left.text
        if row.right:
            assert new[row.right.n - 1] == row.right.text
    assert file.added == sum(line[:1] == "+" for line in hunks)


def test_files_without_lines_and_notes() -> None:
    text = (
        "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x\n"
        "# modified big.bin: the file is binary\n"
        "--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-y\n\\ No newline at end of file\n"
        "# 3 more files are not shown: the diff is too long\n"
    )
    new, binary, old, rest = side_by_side(text).files
    assert (new.path, new.kind, new.added) == ("new.py", "created", 1)
    assert (binary.path, binary.binary) == ("big.bin", True)
    assert (old.path, old.kind, old.removed) == ("old.py", "deleted", 1)
    assert rest.truncated


def test_a_diff_of_a_large_file_is_cut() -> None:
    new = split_lines(b"line\n" * (MAX_ROWS + 10))
    text = "--- /dev/null\n+++ b/f\n" + "".join(f"{line}\n" for line in unified([], new))
    (file,) = side_by_side(text).files
    assert file.truncated
    assert sum(len(hunk.rows) for hunk in file.hunks) == MAX_ROWS


def test_the_diff_of_a_real_change(tmp_path: Path) -> None:
    old, new = split_lines(b"a\nb\nc\n"), split_lines(b"a\nB\nc\nd\n")
    text = "--- a/f\n+++ b/f\n" + "".join(f"{line}\n" for line in unified(old, new))
    (file,) = side_by_side(text).files
    assert [row.kind for row in file.hunks[0].rows] == ["same", "changed", "same", "added"]
