"""Changes on disk in real folders."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from corral._system.git import changes as workspace_floor
from corral._system.git.changes import compare, take_snapshot, take_snapshot_after
from corral.values import FileChanged

Change = Callable[[], object]


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repo(workspace: Path) -> Path:
    """With a committed file, a dirty one, an untracked one and an ignored one."""
    git(workspace, "init", "-q", "-b", "main")
    for name in ("kept.txt", "dirty.txt", "gone.txt", "script.sh", "sub/deep/nested.txt"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(f"{name}\n")
    (workspace / ".gitignore").write_text("*.log\nbuild/\n")
    git(workspace, "add", "-A")
    git(workspace, "commit", "-q", "-m", "all")
    (workspace / "dirty.txt").write_text("was dirty before\n")
    (workspace / "untracked.txt").write_text("was there before\n")
    (workspace / "old.log").write_text("ignored\n")
    return workspace


@pytest.fixture
def plain(workspace: Path) -> Path:
    """The same without git."""
    for name in ("kept.txt", "gone.txt", "script.sh", "sub/deep/nested.txt", "untracked.txt"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(f"{name}\n")
    return workspace


@pytest.fixture(params=["repo", "plain"])
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def changes(
    folder: Path, change: Change, reported: dict[str, str] | None = None
) -> dict[str, FileChanged]:
    before = take_snapshot(folder)
    assert before.complete
    change()
    after = take_snapshot_after(before)
    found = compare(before, after, reported)
    return {os.path.relpath(changed.path, folder): changed for changed in found}


def kinds(folder: Path, change: Change, reported: dict[str, str] | None = None) -> dict[str, str]:
    return {path: changed.kind for path, changed in changes(folder, change, reported).items()}


def shell(folder: Path, command: str) -> Change:
    return lambda: subprocess.run(["sh", "-c", command], cwd=folder, check=True)


def test_a_folder_left_alone_has_no_changes(folder: Path) -> None:
    assert kinds(folder, lambda: None) == {}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo new > new.txt", {"new.txt": "created"}),
        ("mkdir -p a/b; echo new > a/b/new.txt", {"a/b/new.txt": "created"}),
        ("sed -i s/kept/KEPT/ kept.txt", {"kept.txt": "modified"}),
        ("echo more >> sub/deep/nested.txt", {"sub/deep/nested.txt": "modified"}),
        ("rm gone.txt", {"gone.txt": "deleted"}),
        ("rm -r sub", {"sub/deep/nested.txt": "deleted"}),
        ("mv gone.txt moved.txt", {"gone.txt": "deleted", "moved.txt": "created"}),
        ("cp kept.txt copy.txt", {"copy.txt": "created"}),
        ("cp kept.txt gone.txt", {"gone.txt": "modified"}),
        ("chmod +x script.sh", {"script.sh": "modified"}),
        ("rm kept.txt; ln -s gone.txt kept.txt", {"kept.txt": "modified"}),
        ("touch kept.txt untracked.txt", {}),
        ("cp kept.txt x; rm kept.txt; mv x kept.txt", {}),
        ("echo x > kept.txt; echo kept.txt > kept.txt", {}),
        ("echo x > tmp.txt; rm tmp.txt", {}),
        ("mkdir empty", {}),
        ("echo changed > untracked.txt", {"untracked.txt": "modified"}),
        ("rm untracked.txt", {"untracked.txt": "deleted"}),
        ("printf 'KEPT.TXT\\n' > kept.txt", {"kept.txt": "modified"}),
    ],
)
def test_changes_of_a_command_are_found(
    folder: Path, command: str, expected: dict[str, str]
) -> None:
    assert kinds(folder, shell(folder, command)) == expected


def test_a_change_of_the_same_size_and_time_is_found(folder: Path) -> None:
    info = (folder / "kept.txt").stat()

    def change() -> None:
        (folder / "kept.txt").write_text("KEPT.TXT\n")
        os.utime(folder / "kept.txt", ns=(info.st_atime_ns, info.st_mtime_ns))

    assert kinds(folder, change) == {"kept.txt": "modified"}


@pytest.mark.parametrize("name", ["ünï 世界.txt", 'quo"te.txt', "new\nline.txt", "-dash", "a b"])
def test_file_names_with_any_bytes_are_reported(folder: Path, name: str) -> None:
    assert kinds(folder, lambda: (folder / name).write_text("x")) == {name: "created"}


def test_uncommitted_changes_from_before_are_not_reported(repo: Path) -> None:
    assert kinds(repo, shell(repo, "touch dirty.txt")) == {}
    assert kinds(repo, shell(repo, "echo more >> dirty.txt")) == {"dirty.txt": "modified"}


def test_committing_is_not_a_change(repo: Path) -> None:
    assert kinds(repo, lambda: git(repo, "commit", "-qam", "the dirty one")) == {}


def test_undoing_an_uncommitted_change_is_a_change(repo: Path) -> None:
    assert kinds(repo, lambda: git(repo, "checkout", "-q", "dirty.txt")) == {
        "dirty.txt": "modified"
    }


def test_ignored_files_count_if_a_tool_reports_them(repo: Path) -> None:
    def change() -> None:
        (repo / "new.log").write_text("x")
        (repo / "other.log").write_text("x")

    reported = {str(repo / "new.log"): "created"}
    found = changes(repo, change, reported)
    assert [(path, c.kind, c.by_tool) for path, c in found.items()] == [
        ("new.log", "created", True)
    ]


def test_a_reported_change_that_is_not_on_disk_is_left_out(folder: Path) -> None:
    reported = {str(folder / "kept.txt"): "modified", str(folder / "never.txt"): "created"}
    assert kinds(folder, lambda: None, reported) == {}


def test_a_change_says_whether_a_tool_reported_it(folder: Path) -> None:
    reported = {str(folder / "a.txt"): "created"}
    found = changes(folder, shell(folder, "echo 1 > a.txt; echo 2 > b.txt"), reported)
    assert {path: c.by_tool for path, c in found.items()} == {"a.txt": True, "b.txt": False}


def test_a_file_outside_the_folder_counts_if_a_tool_reports_it(
    folder: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.txt"
    found = kinds(folder, lambda: outside.write_text("x"), {str(outside): "created"})
    assert found == {"../outside.txt": "created"}


def test_lines_of_a_new_text_file_are_counted(folder: Path) -> None:
    def change() -> None:
        (folder / "three.txt").write_text("1\n2\n3")
        (folder / "empty.txt").write_text("")
        (folder / "binary").write_bytes(b"\0\n\n")

    lines = {path: c.lines_added for path, c in changes(folder, change).items()}
    assert lines == {"three.txt": 3, "empty.txt": 0, "binary": None}


def test_a_folder_in_a_repository_lists_only_its_own_files(repo: Path) -> None:
    change = shell(repo, "echo x >> kept.txt; echo x >> sub/deep/nested.txt; echo n > sub/n.txt")
    assert kinds(repo / "sub", change) == {"deep/nested.txt": "modified", "n.txt": "created"}


def test_a_folder_that_becomes_a_repository_loses_nothing(plain: Path) -> None:
    def change() -> None:
        git(plain, "init", "-q")
        (plain / ".gitignore").write_text("*.log\n")
        (plain / "a.log").write_text("x")

    assert kinds(plain, change) == {".gitignore": "created", "a.log": "created"}


def test_generated_folders_are_skipped(plain: Path) -> None:
    change = shell(plain, "mkdir node_modules __pycache__; touch node_modules/a __pycache__/b")
    assert kinds(plain, change) == {}


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    assert kinds(folder, lambda: (tmp_path / "elsewhere" / "x").write_text("x")) == {}


def test_a_link_to_itself_does_not_cause_an_endless_walk(folder: Path) -> None:
    (folder / "loop").symlink_to(folder)
    assert kinds(folder, lambda: None) == {}


def test_a_folder_that_cannot_be_read_is_skipped(folder: Path) -> None:
    (folder / "locked").mkdir()
    (folder / "locked").chmod(0)
    try:
        assert kinds(folder, lambda: (folder / "a.txt").write_text("x")) == {"a.txt": "created"}
    finally:
        (folder / "locked").chmod(0o700)


def test_a_snapshot_over_the_limit_is_incomplete(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_floor, "FILES_LIMIT", 3)
    before = take_snapshot(folder)
    assert not before.complete
    assert len(before.files) == 3
    (folder / "a_new.txt").write_text("x")
    after = take_snapshot_after(before)
    assert not after.complete
    assert [c.kind for c in compare(before, after)] == []


def test_reports_of_tools_count_in_an_incomplete_snapshot(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_floor, "FILES_LIMIT", 3)
    before = take_snapshot(folder)
    (folder / "zz_new.txt").write_text("x")
    found = compare(before, take_snapshot_after(before), {str(folder / "zz_new.txt"): "created"})
    assert [(os.path.basename(c.path), c.by_tool) for c in found] == [("zz_new.txt", True)]


def test_a_file_too_large_to_hash_is_compared_by_its_times(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_floor, "HASHED_FILE", 4)
    assert kinds(plain, lambda: (plain / "kept.txt").write_text("KEPT.TXT\n")) == {
        "kept.txt": "modified"
    }


HOSTILE = {
    "fsmonitor": ("core.fsmonitor", "{trap}"),
    "clean filter": ("filter.evil.clean", "{trap}"),
    "smudge filter": ("filter.evil.smudge", "{trap}"),
    "filter process": ("filter.evil.process", "{trap}"),
    "external diff": ("diff.external", "{trap}"),
    "textconv": ("diff.evil.textconv", "{trap}"),
    "hooks": ("core.hooksPath", "{folder}"),
    "pager": ("core.pager", "{trap}"),
    "editor": ("core.editor", "{trap}"),
    "ssh": ("core.sshCommand", "{trap}"),
    "alias": ("alias.ls-files", "!{trap}"),
}


@pytest.fixture
def trap(tmp_path: Path) -> tuple[Path, Path]:
    """A program that leaves a mark when it is run."""
    mark = tmp_path / "it-ran"
    program = tmp_path / "traps" / "post-index-change"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    program.chmod(0o755)
    return program, mark


@pytest.mark.parametrize("setting", sorted(HOSTILE))
def test_nothing_that_the_repository_configures_is_run(
    repo: Path, trap: tuple[Path, Path], setting: str
) -> None:
    program, mark = trap
    before = take_snapshot(repo)
    name, value = HOSTILE[setting]
    git(repo, "config", name, value.format(trap=program, folder=program.parent))
    (repo / ".git" / "info" / "attributes").write_text("* filter=evil diff=evil\n")
    (repo / "kept.txt").write_text("touched by the agent\n")
    os.utime(repo / "gone.txt")
    mark.unlink(missing_ok=True)
    found = compare(before, take_snapshot_after(before))
    assert [os.path.basename(changed.path) for changed in found] == ["kept.txt"]
    take_snapshot(repo)
    assert not mark.exists()


def test_the_trap_works(repo: Path, trap: tuple[Path, Path]) -> None:
    program, mark = trap
    git(repo, "config", "core.fsmonitor", str(program))
    subprocess.run(["git", "status"], cwd=repo, capture_output=True)
    assert mark.exists()


def test_nothing_that_a_submodule_configures_is_run(
    repo: Path, trap: tuple[Path, Path], tmp_path: Path
) -> None:
    program, mark = trap
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "a.txt").write_text("a\n")
    git(other, "add", "-A")
    git(other, "commit", "-qm", "a")
    git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "inner")
    git(repo, "commit", "-qm", "inner")
    git(repo / "inner", "config", "core.fsmonitor", str(program))
    (repo / "inner" / "a.txt").write_text("changed\n")
    mark.unlink(missing_ok=True)
    take_snapshot(repo)
    assert not mark.exists()


def test_git_variables_of_our_environment_are_ignored(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.excludesFile")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(tmp_path / "ignore"))
    (tmp_path / "ignore").write_text("*\n")
    found = take_snapshot(repo)
    assert {"kept.txt", "untracked.txt"} <= set(found.files)
    assert "kept.txt" in found.staged


def test_reading_leaves_the_repository_unchanged(repo: Path) -> None:
    os.utime(repo / "kept.txt")
    before = sorted((p, p.stat().st_mtime_ns) for p in (repo / ".git").rglob("*"))
    take_snapshot(repo)
    assert sorted((p, p.stat().st_mtime_ns) for p in (repo / ".git").rglob("*")) == before


def test_files_of_a_broken_repository_are_listed(workspace: Path) -> None:
    (workspace / ".git").mkdir()
    (workspace / "a.txt").write_text("a")
    found = take_snapshot(workspace)
    assert set(found.files) == {"a.txt"}
    assert kinds(workspace, lambda: (workspace / "b.txt").write_text("b")) == {"b.txt": "created"}


def test_a_repository_of_sha256_is_read_too(workspace: Path) -> None:
    git(workspace, "init", "-q", "--object-format=sha256")
    (workspace / "a.txt").write_text("a\n")
    git(workspace, "add", "-A")
    assert kinds(workspace, shell(workspace, "touch a.txt")) == {}
    assert kinds(workspace, shell(workspace, "echo b > a.txt")) == {"a.txt": "modified"}


def test_a_snapshot_has_the_paths_that_existed(folder: Path) -> None:
    before = take_snapshot(folder)
    assert before.has(str(folder / "sub/deep/nested.txt"))
    assert not before.has(str(folder / "new.txt"))
