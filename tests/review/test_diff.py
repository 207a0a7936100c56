"""Diffs as data: what git and diff(1) write, broken and hostile ones, and their parts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from support.repositories import git

from corral._review.diff import MAX_LINE, ChangedFile, parse, render
from corral.errors import PromptError


def diff_of(folder: Path, *words: str) -> bytes:
    done = subprocess.run(
        ["git", "-C", str(folder), "diff", "--no-color", *words], capture_output=True, check=True
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "kept.py").write_text("".join(f"line {n}\n" for n in range(1, 41)))
    (folder / "old name.txt").write_text("text\n" * 20)
    (folder / "gone.txt").write_text("one\ntwo\n")
    (folder / "mode.sh").write_text("true\n")
    (folder / "data.bin").write_bytes(b"\0\1\2")
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_every_kind_of_change_of_git_is_understood(repository: Path) -> None:
    lines = (repository / "kept.py").read_text().splitlines()
    lines[1], lines[30:32] = "changed", []
    (repository / "kept.py").write_text("\n".join(lines))  # without a newline at the end
    git(repository, "mv", "old name.txt", "new name.txt")
    (repository / "gone.txt").unlink()
    (repository / "mode.sh").chmod(0o755)
    (repository / "data.bin").write_bytes(b"\0\3")
    (repository / "Grüße.txt").write_bytes(b"caf\xe9\n")
    git(repository, "add", "--all")
    files = {file.path: file for file in parse(diff_of(repository, "--cached", "-M"))}
    kinds = {path: file.kind for path, file in files.items()}
    assert kinds == {
        "Grüße.txt": "created",
        "data.bin": "modified",
        "gone.txt": "deleted",
        "kept.py": "modified",
        "mode.sh": "modified",
        "new name.txt": "renamed",
    }
    assert files["new name.txt"].old_path == "old name.txt"
    assert files["data.bin"].is_binary
    assert files["Grüße.txt"].hunks[0].lines == ["+caf\ufffd"]
    kept = files["kept.py"]
    assert kept.shows(2, 2)
    assert kept.shows(30, 30)
    assert not kept.shows(15, 15)
    assert not kept.shows(1_000, 2_000)
    assert files["gone.txt"].shows(2, 2)


def test_paths_that_are_not_utf8_are_quoted(repository: Path) -> None:
    (repository / "caf\udce9\n.txt").write_text("x\n")
    git(repository, "add", "--all")
    [file] = parse(diff_of(repository, "--cached"))
    assert file.path == '"caf\\351\\n.txt"'


def test_a_newline_in_a_name_is_shown_on_one_line() -> None:
    [file] = parse(b'--- /dev/null\n+++ "b/a\\n=== b.py"\n@@ -0,0 +1 @@\n+x\n')
    assert file.path == "a\n=== b.py"
    assert render([file], 1_000)[0].startswith("=== a\\n=== b.py (created)\n")


def test_a_diff_without_git_is_understood() -> None:
    [first, second] = parse(
        b"--- a.py\t2026-01-01 00:00:00\n+++ a.py\t2026-01-02 00:00:00\n@@ -1 +1 @@\n-x\n+y\n"
        b"--- b.py\n+++ b.py\n@@ -1 +1,2 @@\n x\r\n+y\r\n"
    )
    assert (first.path, second.path) == ("a.py", "b.py")
    assert second.hunks[0].lines == [" x\r", "+y\r"]


def test_content_that_looks_like_a_header_stays_content() -> None:
    [file] = parse(
        b"diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,2 +1,3 @@\n"
        b"--- a/other\n+++ b/other\n+@@ -1 +1 @@\n x\n"
    )
    assert file.path == "a"
    assert len(file.hunks) == 1
    assert file.hunks[0].lines[0] == "--- a/other"


@pytest.mark.parametrize("data", [b"", b"\n \n"])
def test_an_empty_diff_has_no_files(data: bytes) -> None:
    assert parse(data) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"hello\n", "not a diff"),
        (b"--- a/x\n+++ b/x\n@@ -1,5 +1,5 @@\n x\n", "ends too early"),
        (b"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\nx\n", "other lines"),
        (b"--- a/x\n+++ b/x\n@@ -1 +1,3 @@\n-x\n-y\n+z\n", "other lines"),
        (b"--- a/x\n+++ b/../../x\n@@ -1 +1 @@\n-x\n+z\n", "outside of the folder"),
        (b"--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-x\n+z\n", "outside of the folder"),
        (b"diff --git a/x b/x\nrename from x\nrename to ../y\n", "outside of the folder"),
        (b"diff --cc x\n@@@ -1,1 -1,1 +1,1 @@@\n", "combined diff"),
    ],
)
def test_what_cannot_be_reviewed_is_an_error(data: bytes, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        parse(data)


def added(path: str, lines: list[str]) -> ChangedFile:
    text = "".join(f"+{line}\n" for line in lines)
    head = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n"
    return parse(f"{head}{text}".encode())[0]


def test_lines_are_numbered_as_in_the_new_file() -> None:
    [file] = parse(b"--- a/x\n+++ b/x\n@@ -7,3 +7,3 @@\n one\n-two\n+2\n three\n")
    assert render([file], 1_000) == [
        "=== x (modified)\n--- lines from 7\n     7   one\n       - two\n     8 + 2\n     9   three"
    ]


def test_links_submodules_and_executable_files_are_marked(repository: Path) -> None:
    (repository / "mode.sh").chmod(0o755)
    (repository / "link").symlink_to("kept.py")
    (repository / "gone.txt").unlink()
    (repository / "gone.txt").symlink_to("kept.py")
    git(repository, "add", "--all")
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{commit},module")
    heads = [
        render([file], 1_000)[0].split("\n")[0] for file in parse(diff_of(repository, "--cached"))
    ]
    assert heads[:2] == ["=== gone.txt (deleted)", "=== gone.txt (created, link)"]
    assert "=== link (created, link)" in heads
    assert "=== mode.sh (modified, now executable)" in heads
    git(repository, "commit", "-q", "-m", "second")
    heads = render(parse(diff_of(repository, "HEAD", "HEAD~1")), 10_000)[0].split("\n")
    assert "=== link (deleted, link)" in heads
    assert "=== mode.sh (modified, now not executable)" in heads
    assert "=== module (deleted, submodule)" in heads


def test_a_changed_target_of_a_link_is_marked(repository: Path) -> None:
    for target in ("kept.py", "mode.sh"):
        (repository / "link").unlink(missing_ok=True)
        (repository / "link").symlink_to(target)
        git(repository, "add", "--all")
        git(repository, "commit", "-q", "-m", target)
    [file] = parse(diff_of(repository, "HEAD~1", "HEAD"))
    assert render([file], 1_000)[0].startswith("=== link (modified, link)\n")


def test_a_large_diff_is_divided_and_every_line_is_in_a_part() -> None:
    files = [added(f"f{n}.py", [f"text {n} {m}" for m in range(300)]) for n in range(5)]
    parts = render(files, 4_000)
    assert len(parts) > 5
    assert max(map(len, parts)) < 4_100
    assert all(part.startswith("=== ") for part in parts)
    shown = re.findall(r"text (\d) (\d+)", "\n".join(parts))
    assert shown == [(str(n), str(m)) for n in range(5) for m in range(300)]


def test_all_of_a_very_long_line_is_shown() -> None:
    line = f"x = 1{' ' * 100_000}; hidden()"
    parts = render([added("min.js", [line])], 10_000)
    assert len(parts) > 10
    assert max(map(len, parts)) < 10_000 + MAX_LINE
    pieces = re.findall(r"^ {5}[1…] \+ (.*)$", "\n".join(parts), re.MULTILINE)
    assert "".join(pieces) == line
