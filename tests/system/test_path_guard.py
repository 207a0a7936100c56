"""Paths are checked by where they really lead."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral._system import path_guard
from corral._system.path_guard import PathGuard, PathRefused, open_beneath, resolve


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A workspace with links of every kind; beside it what must not be reached."""
    work = tmp_path / "work"
    for folder in (work / "sub" / "deep", work / ".git", tmp_path / "out", tmp_path / "read"):
        folder.mkdir(parents=True)
    for path in (work / "a.txt", work / "sub" / "b.txt", tmp_path / "out" / "secret"):
        path.write_text("text")
    links = {
        "in-file": "a.txt",
        "in-folder": "sub/deep",
        "dangling-in": "sub/new.txt",
        "dangling-out": "../out/new.txt",
        "dangling-absolute": str(tmp_path / "nowhere" / "new.txt"),
        "out-folder": "../out",
        "out-file": str(tmp_path / "out" / "secret"),
        "chain": "out-folder/secret",
        "circle": "circle",
        "up": "..",
        "self": ".",
        "git": ".git",
        "hooks": ".git/hooks/pre-commit",
        "read": "../read",
        "kernel": "/proc/self/cwd",
        "sub/back": "../in-folder/../b.txt",
        "sub/deep/out": "../../../out",
    }
    for name, target in links.items():
        (work / name).symlink_to(target)
    return work


NAMES = st.sampled_from(
    ["a.txt", "sub", "deep", "in-file", "in-folder", "dangling-in", "dangling-out", "out-folder",
     "chain", "up", "self", "git", "back", "out", "..", ".", "missing", "work", "hooks", "read"]
)  # fmt: skip


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(NAMES, min_size=1, max_size=7), absolute=st.booleans())
def test_resolving_agrees_with_realpath(tree: Path, parts: list[str], absolute: bool) -> None:
    path = "/".join(parts)
    path = str(tree / path) if absolute else path
    assert resolve(path, str(tree)) == os.path.realpath(os.path.join(tree, path))


@pytest.mark.deep
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(NAMES, min_size=1, max_size=7))
def test_an_allowed_path_is_inside_in_every_reading(tree: Path, parts: list[str]) -> None:
    """A program that takes ``..`` away first, and one that follows links first."""
    path = "/".join(parts)
    guard = PathGuard(str(tree))
    for access in ("read", "write"):
        if guard.refusal((path,), access) is None:
            for reading in (path, os.path.normpath(path)):
                real = Path(os.path.realpath(tree / reading))
                assert real.is_relative_to(tree)
                assert access == "read" or ".git" not in real.relative_to(tree).parts


@pytest.mark.parametrize(
    "path",
    ["a.txt", "new.txt", "new/folder/x", "in-file", "in-folder/x", "dangling-in", "sub/back",
     "self/a.txt", "{tree}/a.txt", "sub/../a.txt", "AGENTS.md", ".gitignore", "@types/x", "a b"],
)  # fmt: skip
def test_files_inside_may_be_written(tree: Path, path: str) -> None:
    guard = PathGuard(str(tree))
    assert guard.refusal((path.format(tree=tree),), "write") is None
    assert guard.refusal((path.format(tree=tree),), "read") is None


@pytest.mark.parametrize(
    "path",
    ["..", "../out/secret", "/etc/passwd", "dangling-out", "dangling-absolute", "out-folder/x",
     "out-file", "chain", "up/out/secret", "sub/deep/out/secret", "circle", "circle/x", "kernel",
     "kernel/a.txt", "/proc/self/environ", "/proc/self/cwd/a.txt", "/proc/self/root/etc/passwd",
     "/dev/fd/0", "/dev/stdin", "~/x", "~root/x", "", " ", "a\0b", "{tree}-evil/x", " /etc/passwd",
     "@/etc/passwd", "\\/etc/passwd", "..\\out\\secret", "file:///etc/passwd", "\u00a0/etc/passwd",
     "\ufeff/etc/passwd", "\ufeff out-file", "out-file\ufeff",
     "in-folder/../../../out/secret", "in-folder/../../new.txt", "x" * 300 + "/../../out/secret"],
)  # fmt: skip
def test_paths_that_lead_out_are_refused(tree: Path, path: str) -> None:
    guard = PathGuard(str(tree))
    assert guard.refusal((path.format(tree=tree),), "write")
    assert guard.refusal((path.format(tree=tree),), "read")


@pytest.mark.parametrize(
    "path", [".git", ".git/config", "git", "git/config", "hooks", "self/.git/config", "sub/.git",
             "sub/.git/config", ".GIT/x", "up/work/.git/x", ".claude/settings.json", "corral.toml",
             "\ufeff.envrc", ".envrc\ufeff"]
)  # fmt: skip
def test_protected_names_may_be_read_but_not_written(tree: Path, path: str) -> None:
    guard = PathGuard(str(tree))
    assert "protected" in (guard.refusal((path,), "write") or "")
    assert guard.refusal((path,), "read") is None


def test_a_folder_that_may_be_read_is_not_written_through_a_link(tree: Path) -> None:
    guard = PathGuard(str(tree), readable=["../read"])
    assert guard.refusal(["read/x", "../read/x"], "read") is None
    assert guard.refusal(["read/x"], "write") == "may be read but not written: read/x"
    assert guard.refusal(["a.txt", "../read/x"], "write")


def test_a_writable_folder_is_guarded_too(tree: Path) -> None:
    guard = PathGuard(str(tree), writable=["../out"])
    assert guard.refusal(["../out/x", "out-folder/x", "dangling-out"], "write") is None
    assert guard.refusal(["../out/.git/config"], "write")


def test_a_workspace_may_be_below_a_protected_name(tmp_path: Path) -> None:
    work = tmp_path / ".claude" / "worktrees" / "one"
    work.mkdir(parents=True)
    guard = PathGuard(str(work))
    assert guard.refusal(["a.txt"], "write") is None
    assert guard.refusal([".claude/settings.json"], "write")


def test_a_workspace_reached_by_a_link_is_resolved(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to("work")
    guard = PathGuard(str(tmp_path / "alias"))
    assert guard.refusal([str(tmp_path / "alias" / "a.txt"), str(tree / "a.txt")], "write") is None


def test_links_that_lead_out_are_listed(tree: Path) -> None:
    links = PathGuard(str(tree)).links()
    found = {os.path.relpath(link.path, tree): link for link in links.found}
    assert set(found) == {
        "dangling-out", "dangling-absolute", "out-folder", "out-file", "chain", "circle", "up",
        "git", "hooks", "read", "kernel", "sub/deep/out"}  # fmt: skip
    assert links.complete
    assert {name for name, link in found.items() if link.readable} == {"git", "hooks"}
    assert found["dangling-out"].target == str(tree.parent / "out" / "new.txt")
    assert {link.path for link in links.unreadable} == {
        str(tree / name) for name in set(found) - {"git", "hooks"}
    }


def test_links_into_read_only_folders_and_links_in_them_are_listed(tree: Path) -> None:
    (tree.parent / "read" / "leak").symlink_to("../out/secret")
    links = PathGuard(str(tree), readable=["../read"]).links()
    found = {link.path: link for link in links.found}
    assert found[str(tree / "read")].readable
    assert not found[str(tree.parent / "read" / "leak")].readable


def test_names_of_files_that_may_not_be_written_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    object_name = "0" * 38
    for name in ("work/a.py", "work/sub/.vscode/deep/settings.json", "work/.git/config",
                 f"work/.git/objects/00/{object_name}", "read/b.py", "more/c.py"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    guard = PathGuard(str(tmp_path / "work"), readable=["../read"], writable=["../more"])
    assert guard.links().unwritable == frozenset({"settings.json", "config", "b.py"})
    free = PathGuard(str(tmp_path / "work"), readable=["../read"], protects=False)
    assert free.links().unwritable == frozenset({"b.py"})
    monkeypatch.setattr(path_guard, "MOST_NAMES", 2)
    assert guard.links().unwritable is None


def test_a_walk_over_too_many_files_is_incomplete(tree: Path) -> None:
    assert not PathGuard(str(tree)).links(most=3).complete


def test_too_many_links_make_the_list_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_guard, "MOST_LINKS", 2)
    for number in range(5):
        (tmp_path / f"link{number}").symlink_to("/etc")
    assert not PathGuard(str(tmp_path)).links().complete


def test_a_folder_that_can_be_entered_but_not_listed_makes_the_list_incomplete(
    tmp_path: Path,
) -> None:
    (tmp_path / "dark").mkdir(mode=0o311)
    code = (
        f"import sys; sys.path[:0] = {sys.path!r};"
        f"from corral._system.path_guard import PathGuard;"
        f"import os; os.geteuid() or os.setuid(65534); print(PathGuard('.').links().complete)"
    )
    mine = [each for each in tmp_path.parents if each.name.startswith(("pytest-", "popen-"))]
    for folder in (tmp_path, *mine):
        folder.chmod(folder.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "False", done.stderr


def test_a_file_is_never_opened_through_a_link(tree: Path) -> None:
    fd = open_beneath(str(tree), str(tree / "sub" / "new" / "x"), os.O_WRONLY | os.O_CREAT)
    os.close(fd)
    assert (tree / "sub" / "new" / "x").exists()
    for name in ("out-folder/secret", "out-file", "dangling-out", "in-file"):
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            open_beneath(str(tree), str(tree / name), os.O_WRONLY | os.O_CREAT)
    assert not (tree.parent / "out" / "new.txt").exists()
    for name in ("..", "../out/secret", ""):
        with pytest.raises(PermissionError, match="not below the folder"):
            open_beneath(str(tree), os.path.normpath(tree / name), os.O_RDONLY)


def test_a_name_that_is_not_utf8_is_checked(tree: Path) -> None:
    (tree / os.fsdecode(b"bad\xff")).symlink_to("../out")
    links = PathGuard(str(tree)).links()
    assert str(tree / os.fsdecode(b"bad\xff")) in {link.path for link in links.found}
    with pytest.raises(PathRefused):
        PathGuard(str(tree)).check(os.fsdecode(b"bad\xff/secret"), "read")
    with pytest.raises(PathRefused):
        resolve("half \ud800 character", str(tree))


@pytest.mark.parametrize("target", ["../out", ".git"])
def test_the_path_that_check_returns_was_checked_even_if_a_link_is_replaced(
    tree: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """The link leads elsewhere once the path was resolved for the first time."""
    link = tree / "swapped"
    link.symlink_to("sub")
    seen: list[str] = []

    def swapping(path: str, cwd: str) -> str:
        if path in seen:
            link.unlink()
            link.symlink_to(target)
        seen.append(path)
        return resolve(path, cwd)

    monkeypatch.setattr(path_guard, "resolve", swapping)
    with pytest.raises(PathRefused):
        PathGuard(str(tree)).check("swapped/new", "write")


def test_a_call_with_too_many_paths_is_refused_as_it_is(tmp_path: Path) -> None:
    guard = PathGuard(str(tmp_path))
    assert guard.refusal((f"file-{n}" for n in range(1_000)), "write") is None
    refusal = guard.refusal((f"file-{n}" for n in itertools.count()), "write")
    assert refusal == "one call names more than 1,000 paths"
