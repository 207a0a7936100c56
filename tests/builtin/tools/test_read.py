"""read_file, read_many_files, list_dir and glob: limited output with notes on what is left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builtin_tools import call_error, call_ok, call_tool

from corral._builtin.tools.search import included, pattern
from corral._builtin.tools.workspace import Workspace


async def test_lines_are_numbered_from_one(workspace: Path) -> None:
    (workspace / "a").write_bytes("é\r\n\r\n日本".encode())
    assert await call_ok(Workspace(workspace), "read_file", file_path="a") == (
        "     1\té\n     2\t\n     3\t日本\n"
    )


async def test_a_part_of_a_file_says_its_lines_and_how_to_continue(workspace: Path) -> None:
    (workspace / "a").write_text("".join(f"l{n}\n" for n in range(1, 5_001)))
    here = Workspace(workspace)
    output = await call_ok(here, "read_file", file_path="a", offset=10, limit=2)
    assert (
        output == "    10\tl10\n    11\tl11\n(lines 10 to 11 of 5,000; continue with offset=12)\n"
    )
    assert "(lines 1 to 2,000 of 5,000" in await call_ok(here, "read_file", file_path="a")
    assert await call_ok(here, "read_file", file_path="a", offset=5_000) == "  5000\tl5000\n"
    output = await call_error(here, "read_file", file_path="a", offset=5_001)
    assert output == "a has only 5,000 lines, so there is no line 5,001"
    assert "at least 1" in await call_error(here, "read_file", file_path="a", offset=0)


async def test_an_empty_file_is_reported_as_empty(workspace: Path) -> None:
    (workspace / "a").touch()
    assert await call_ok(Workspace(workspace), "read_file", file_path="a") == "(a is empty)"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", "a PNG image"),
        (b"\xff\xd8\xff\xe0", "a JPEG image"),
        (b"RIFF\1\2\3\4WEBP", "a WebP image"),
        (b"%PDF-1.7", "a PDF document"),
        (b"\x7fELF\0", "a binary file"),
    ],
)
async def test_files_that_are_not_text_are_described(
    workspace: Path, head: bytes, kind: str
) -> None:
    (workspace / "a").write_bytes(head)
    output = await call_error(Workspace(workspace), "read_file", file_path="a")
    assert output == f"a is {kind} of {len(head)} bytes, which cannot be shown as text"


async def test_bytes_that_are_not_utf8_are_replaced_and_reported(workspace: Path) -> None:
    (workspace / "a").write_bytes(b"caf\xe9\n")
    output = await call_ok(Workspace(workspace), "read_file", file_path="a")
    assert output.startswith("     1\tcaf\ufffd\n(some bytes are not UTF-8")


async def test_a_very_large_file_of_one_line_is_read_within_limits(workspace: Path) -> None:
    with (workspace / "a").open("wb") as file:
        file.write(b"x" * 100_000 + b"\nsecond\n")
        file.truncate(200_000_000)  # zeros to the end, which take no room on the disk
    output = await call_ok(Workspace(workspace), "read_file", file_path="a", limit=2)
    assert "[… 98,000 more in this line]" in output
    assert "     2\tsecond\n" in output
    assert len(output) < 3_000


async def test_a_long_file_is_truncated_for_the_model_and_complete_in_the_event(
    workspace: Path,
) -> None:
    (workspace / "a").write_text("".join(f"{'x' * 90} {n}\n" for n in range(1_000)))
    outcome = await call_tool(Workspace(workspace), "read_file", file_path="a")
    assert len(outcome.shown) <= 50_000 < len(outcome.text)
    assert "left out here" in outcome.shown
    assert "left out here" not in outcome.text
    assert outcome.text.count("\n") == 1_000


async def test_several_files_can_be_read_by_path_and_by_pattern(workspace: Path) -> None:
    (workspace / "src").mkdir()
    for name in ("src/a.py", "src/b.py", "c.txt", "src/[x].py"):
        (workspace / name).write_text(f"in {name}\n")
    here = Workspace(workspace)
    output = await call_ok(
        here, "read_many_files", paths=["c.txt", "src/?.py", "missing", "*.none"]
    )
    assert output == (
        "==> c.txt <==\n     1\tin c.txt\n\n\n"
        "==> src/a.py <==\n     1\tin src/a.py\n\n\n"
        "==> src/b.py <==\n     1\tin src/b.py\n\n\n"
        "==> missing <==\n[missing does not exist]\n\n"
        "[no file matches *.none]"
    )
    assert "in src/[x].py" in await call_ok(here, "read_many_files", paths=["src/[x].py"])
    assert "no file matches" in await call_error(here, "read_many_files", paths=["*.none"])


async def test_each_of_several_large_files_gets_its_share(workspace: Path) -> None:
    for number in range(10):
        (workspace / f"{number}.txt").write_text(f"{number}\n" * 20_000)
    outcome = await call_tool(Workspace(workspace), "read_many_files", paths=["*.txt"])
    assert len(outcome.shown) <= 50_000
    assert all(f"==> {number}.txt <==\n     1\t{number}\n" in outcome.shown for number in range(10))


async def test_a_folder_is_listed_with_kinds_and_sizes(workspace: Path) -> None:
    (workspace / "z").mkdir()
    (workspace / "a.txt").write_text("12345")
    (workspace / "run").write_text("1")
    (workspace / "run").chmod(0o755)
    (workspace / "link").symlink_to("a.txt")
    os.mkfifo(workspace / "pipe")
    os.close(os.open(os.fsencode(workspace) + b"/odd\xff", os.O_CREAT, 0o644))
    here = Workspace(workspace)
    assert (await call_ok(here, "list_dir")).splitlines() == [
        "z/",
        "a.txt (5 bytes)",
        "link -> a.txt",
        "odd? (0 bytes)",
        "pipe (not a regular file)",
        "run* (1 byte)",
    ]
    assert await call_ok(here, "list_dir", path="z") == "(z is empty)"
    assert "a.txt is not a folder" in await call_error(here, "list_dir", path="a.txt")


async def test_files_are_found_newest_first(workspace: Path) -> None:
    for age, name in enumerate(["new.py", "deep/er/mid.py", "deep/old.py", "no.txt"]):
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    (workspace / "node_modules").mkdir()
    (workspace / "node_modules" / "x.py").touch()
    here = Workspace(workspace)
    found = (await call_ok(here, "glob", pattern="**/*.py")).splitlines()
    assert found == ["new.py", "deep/er/mid.py", "deep/old.py"]
    assert await call_ok(here, "glob", pattern="*.py", path="deep") == "deep/old.py"
    assert await call_ok(here, "glob", pattern="deep/*.{py,txt}") == "deep/old.py"
    assert await call_ok(here, "glob", pattern=f"{workspace}/deep/*.py") == "deep/old.py"
    assert await call_ok(here, "glob", pattern="*", path="node_modules") == "node_modules/x.py"
    assert await call_ok(here, "glob", pattern="*.rs") == "No file matches *.rs"


async def test_very_many_files_are_bounded(workspace: Path) -> None:
    for number in range(700):
        (workspace / f"{number}").touch()
    outcome = await call_tool(Workspace(workspace), "glob", pattern="*")
    assert len(outcome.text.splitlines()) == 700
    assert len(outcome.shown.splitlines()) <= 500


@pytest.mark.parametrize(
    ("glob", "fits", "fails"),
    [
        ("*.py", ["a.py", ".py"], ["a/b.py", "a.pyc"]),
        ("**/*.py", ["a.py", "a/b/c.py"], ["a.txt"]),
        ("src/**", ["src/a", "src/a/b"], ["a", "other/src/a"]),
        ("a/**/b", ["a/b", "a/x/y/b"], ["a/x", "b"]),
        ("**/a/**/b", ["a/b", "x/a/y/b"], ["b/a"]),
        ("?[ab].{x,y}", ["1a.x", "2b.y"], ["1c.x", "a.x"]),
        ("./a", ["a"], ["b"]),
        ("[", ["["], ["a"]),
    ],
)
def test_patterns(glob: str, fits: list[str], fails: list[str]) -> None:
    assert [path for path in [*fits, *fails] if pattern(glob)(path)] == fits


@given(st.text("*?[]{},!a/-", max_size=30), st.text("a/", min_size=1, max_size=100))
def test_no_pattern_is_an_error_or_takes_long(glob: str, path: str) -> None:
    included(glob)(path)
    pattern("*a" * 50 + "b")("a" * 250)
    pattern("**/" * 50 + "b")("a/" * 50)
