"""Files that an agent reads and writes through corral, never outside of its folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.files import file_names

from corral._sessions.acp import client_requests
from corral._sessions.acp.client_requests import WorkspaceFiles
from corral._system.path_guard import Access, PathGuard


@pytest.fixture
def files(workspace: Path) -> WorkspaceFiles:
    return WorkspaceFiles(PathGuard(str(workspace)))


def test_a_file_is_read_byte_for_byte(files: WorkspaceFiles, workspace: Path) -> None:
    text = "one\r\ntwo\n\u2028three\x0bfour\rfive ü 漢"
    (workspace / "a.txt").write_bytes(text.encode())
    assert files.read(f"{workspace}/a.txt") == text


def test_a_file_is_written_byte_for_byte_with_its_folders(
    files: WorkspaceFiles, workspace: Path
) -> None:
    text = "one\r\ntwo\nü"
    path, is_new = files.write(f"{workspace}/deep/er/a.txt", text)
    assert path == workspace / "deep" / "er" / "a.txt"
    assert is_new
    assert path.read_bytes() == text.encode()
    assert files.write(str(path), "again") == (path, False)
    assert path.read_bytes() == b"again"


@pytest.mark.parametrize(
    ("line", "limit", "wanted"),
    [
        (None, None, "a\nb\u2028b\nc\n"),
        (1, None, "a\nb\u2028b\nc\n"),
        (2, None, "b\u2028b\nc\n"),
        (2, 1, "b\u2028b\n"),
        (None, 1, "a\n"),
        (3, 9, "c\n"),
        (9, 1, ""),
        (0, 1, "a\n"),
        (-5, 1, "a\n"),
        (1, 0, ""),
        (1, -1, ""),
    ],
)
def test_some_lines_of_a_file_are_counted_from_one(
    files: WorkspaceFiles, workspace: Path, line: int | None, limit: int | None, wanted: str
) -> None:
    (workspace / "a.txt").write_text("a\nb\u2028b\nc\n")
    assert files.read(f"{workspace}/a.txt", line, limit) == wanted


def test_bytes_that_are_not_utf8_are_read_with_replacement(
    files: WorkspaceFiles, workspace: Path
) -> None:
    (workspace / "a.bin").write_bytes(b"\xff\x00ok")
    assert files.read(f"{workspace}/a.bin") == "\ufffd\x00ok"


def test_a_missing_file_and_a_file_outside_have_different_errors(
    files: WorkspaceFiles, workspace: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        files.read(f"{workspace}/none")


@pytest.mark.parametrize(
    "path",
    [
        "{ws}-evil/secret",
        "{ws}/../workspace-evil/secret",
        "{ws}/deep/../../workspace-evil/secret",
        "{ws}/door/secret",
        "{ws}/link",
        "{ws}/chain",
        "{ws}/dangling",
        "{ws}/loop",
        "{ws}/loop/x",
        "{ws}/nul\0byte",
        "/etc/passwd",
        "/",
        "relative",
        "../workspace-evil/secret",
        "~/secret",
        "",
    ],
)
def test_no_path_leads_out(
    files: WorkspaceFiles, workspace: Path, tmp_path: Path, path: str
) -> None:
    beside = tmp_path / "workspace-evil"
    beside.mkdir()
    (beside / "secret").write_text("SECRET")
    (workspace / "deep").mkdir()
    (workspace / "door").symlink_to(beside)
    (workspace / "link").symlink_to("../workspace-evil/secret")
    (workspace / "chain").symlink_to(workspace / "link")
    (workspace / "dangling").symlink_to(beside / "fresh")
    (workspace / "loop").symlink_to(workspace / "loop")
    full_path = path.format(ws=workspace)
    with pytest.raises(PermissionError):
        files.read(full_path)
    with pytest.raises(PermissionError):
        files.write(full_path, "overwritten")
    assert os.listdir(beside) == ["secret"]
    assert (beside / "secret").read_text() == "SECRET"


def test_links_that_stay_inside_are_followed(files: WorkspaceFiles, workspace: Path) -> None:
    (workspace / "real.txt").write_text("words")
    (workspace / "link.txt").symlink_to("real.txt")
    assert files.read(f"{workspace}/link.txt") == "words"
    assert files.write(f"{workspace}/link.txt", "new")[0] == workspace / "real.txt"
    assert (workspace / "link.txt").is_symlink()


def test_a_workspace_reached_by_a_link_is_the_same_workspace(
    workspace: Path, tmp_path: Path
) -> None:
    (workspace / "a.txt").write_text("words")
    (tmp_path / "alias").symlink_to(workspace)
    files = WorkspaceFiles(PathGuard(str(tmp_path / "alias")))
    assert files.read(f"{tmp_path}/alias/a.txt") == "words"
    assert files.read(f"{workspace}/a.txt") == "words"


def test_further_folders_are_readable_and_only_the_writable_ones_written(
    workspace: Path, tmp_path: Path
) -> None:
    for name in ("read", "write"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(name)
    files = WorkspaceFiles(PathGuard(str(workspace), ["../read"], [str(tmp_path / "write")]))
    assert files.read(f"{tmp_path}/read/a.txt") == "read"
    assert files.read(f"{tmp_path}/write/a.txt") == "write"
    files.write(f"{tmp_path}/write/a.txt", "new")
    assert (tmp_path / "write" / "a.txt").read_text() == "new"
    with pytest.raises(PermissionError):
        files.write(f"{tmp_path}/read/a.txt", "new")
    assert (tmp_path / "read" / "a.txt").read_text() == "read"


def test_folders_are_relative_to_the_workspace_and_not_to_where_we_run(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "more").mkdir(parents=True)
    (elsewhere / "more" / "a.txt").write_text("not yours")
    monkeypatch.chdir(elsewhere)
    files = WorkspaceFiles(PathGuard(str(workspace), ["more"], ["more"]))
    with pytest.raises(PermissionError):
        files.read(f"{elsewhere}/more/a.txt")
    with pytest.raises(PermissionError):
        files.write(f"{elsewhere}/more/a.txt", "new")


def test_special_files_are_refused_without_blocking(files: WorkspaceFiles, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    (workspace / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match="not a regular file"):
            files.read(f"{workspace}/{name}")
        with pytest.raises(OSError, match="not a regular file"):
            files.write(f"{workspace}/{name}", "x")


def test_a_file_too_large_is_refused_before_it_is_read(
    files: WorkspaceFiles, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "LARGEST", 10)
    (workspace / "big").write_bytes(b"x" * 11)
    (workspace / "fits").write_bytes(b"x" * 10)
    with pytest.raises(OSError, match="over 10 bytes"):
        files.read(f"{workspace}/big")
    assert files.read(f"{workspace}/fits") == "x" * 10


def test_protected_names_are_read_but_not_written(files: WorkspaceFiles, workspace: Path) -> None:
    (workspace / ".git").mkdir()
    (workspace / ".git" / "config").write_text("[core]")
    (workspace / "hooks").symlink_to(".git/hooks")
    assert files.read(f"{workspace}/.git/config") == "[core]"
    for name in (".git/config", "hooks/pre-commit", "sub/.git", ".qwen/settings.json"):
        with pytest.raises(PermissionError, match="protected"):
            files.write(f"{workspace}/{name}", "x")
    assert file_names(workspace) == [".git/config", "hooks"]
    unlimited = WorkspaceFiles(PathGuard(str(workspace), protects=False))
    unlimited.write(f"{workspace}/.git/config", "[user]")
    assert (workspace / ".git" / "config").read_text() == "[user]"


def test_replacing_folders_by_links_during_access_reveals_nothing(
    workspace: Path, tmp_path: Path
) -> None:
    """The guard says yes, and then the folder is a link: what is opened follows none."""

    class Swapping(PathGuard):
        def check(self, path: str, access: Access) -> str:
            real = super().check(path, access)
            if (workspace / "sub").is_dir() and not (workspace / "sub").is_symlink():
                (workspace / "sub").rename(tmp_path / "moved")
                (workspace / "sub").symlink_to(out)
            return real

    out = tmp_path / "out"
    out.mkdir()
    (out / "a.txt").write_text("SECRET")
    for write in (False, True):
        (workspace / "sub").unlink(missing_ok=True)
        (tmp_path / "moved").mkdir(exist_ok=True)
        (tmp_path / "moved").rename(workspace / "sub")
        (workspace / "sub" / "a.txt").write_text("words")
        swapped = WorkspaceFiles(Swapping(str(workspace)))
        with pytest.raises(OSError, match=r"[Nn]ot a directory"):
            swapped.write(f"{workspace}/sub/a.txt", "x") if write else swapped.read(
                f"{workspace}/sub/a.txt"
            )
    assert (out / "a.txt").read_text() == "SECRET"
