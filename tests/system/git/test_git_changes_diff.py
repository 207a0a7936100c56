"""The diff of files that changed since a snapshot."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.repositories import git

from corral._system.git import changes
from corral._system.git.changes import MAX_COMPARED, MAX_FILE, diff_since, split_lines, unified

ROOM = 1 << 20


def diff(root: Path, change: dict[str, bytes | None], *, room: int = ROOM) -> str:
    """The diff after these files were written, or removed."""
    before = changes.take_snapshot(root, room=room)
    for name, data in change.items():
        if data is None:
            (root / name).unlink()
        else:
            (root / name).write_bytes(data)
    return diff_since(before, changes.compare(before, changes.take_snapshot_after(before)))


def test_changed_new_and_removed_files_are_shown(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "gone.txt").write_text("bye\n")
    found = diff(tmp_path, {"a.txt": b"one\n2\nthree\n", "gone.txt": None, "new.txt": b"hi"})
    assert found == (
        "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
        "--- a/gone.txt\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-bye\n"
        "--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1,1 @@\n+hi\n\\ No newline at end of file\n"
    )


def test_the_content_before_comes_from_git_if_the_file_was_as_in_the_index(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.txt").write_text("one\n")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "-q", "-m", "first")
    found = diff(tmp_path, {"a.txt": b"two\n"}, room=0)
    assert found == "--- a/a.txt\n+++ b/a.txt\n@@ -1,1 +1,1 @@\n-one\n+two\n"


def test_what_is_not_known_binary_or_large_is_only_named(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"x\n")
    assert "# modified a: the content before is not known" in diff(tmp_path, {"a": b"yy"}, room=0)
    assert diff(tmp_path, {"b": b"\0"}) == "# modified b: the file is binary\n"
    large = diff(tmp_path, {"c": b"x" * (MAX_FILE + 1)})
    assert large == "# modified c: the file is large or cannot be read\n"


def test_a_long_diff_is_cut_at_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_TOTAL", 150)
    found = diff(tmp_path, {name: name.encode() * 20 for name in ("a", "b", "c")})
    assert "+++ b/a" in found
    assert found.endswith("# 2 more files are not shown: the diff is too long\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n", b"a\nB\nc\nd\ne\nf\ng\nh\ni\nJ\n"),
        (b"a\n" * 50, b"a\n" * 25 + b"b\n" + b"a\n" * 25),
        (b"a\nb", b"a\nb\n"),
        (b"a\n", b"a\nb\n"),
        (b"same\n" + b"x\n" * (MAX_COMPARED + 5) + b"end\n", b"same\n" + b"y\n" * 3 + b"end\n"),
    ],
)
def test_the_diff_applied_to_the_old_content_gives_the_new(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    hunks = "".join(f"{line}\n" for line in unified(split_lines(old), split_lines(new)))
    (tmp_path / "f").write_bytes(old)
    (tmp_path / "p").write_text(f"--- a/f\n+++ b/f\n{hunks}", encoding="utf-8")
    subprocess.run(["git", "apply", "p"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "f").read_bytes() == new
