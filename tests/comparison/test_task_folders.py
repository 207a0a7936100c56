"""The names and files of a task, which may be a stranger's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corral._comparison import task_folders
from corral.errors import ConfigError

BAD_PATHS = (
    *("", ".", "..", "/", "//", "/etc/passwd", "~", "~/.ssh", "../x", "a/../../x", "a/..", "a//b"),
    *("a/./b", "./a", "a/", "a\0b", "a\nb", "a\x1b[2Jb", "\ud800", "x" * 1_001, "a/" * 600 + "a"),
)


@pytest.mark.parametrize("path", BAD_PATHS, ids=lambda path: ascii(path[:20]))
def test_a_path_that_is_not_below_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="task 'one': the path"):
        task_folders.kind_of("one", tmp_path, path)


def test_files_and_folders_are_found_and_read(tmp_path: Path) -> None:
    (tmp_path / "a b" / "..c").mkdir(parents=True)
    (tmp_path / "a b" / "..c" / "ü.md").write_text("text")
    assert task_folders.kind_of("one", tmp_path, "a b") == "folder"
    assert task_folders.kind_of("one", tmp_path, "a b/..c/ü.md") == "file"
    assert task_folders.read_text("one", tmp_path, "a b/..c/ü.md") == "text"
    assert task_folders.kind_of("one", tmp_path, "other/file") is None
    assert task_folders.kind_of("one", tmp_path, "a b/..c/ü.md/more") is None
    assert task_folders.read_text("one", tmp_path, "a b") is None


@pytest.mark.parametrize("path", ["link", "link/id_rsa", "deep/link/id_rsa", "deep/file"])
def test_no_component_may_be_a_link(tmp_path: Path, path: str) -> None:
    keys, task = tmp_path / "keys", tmp_path / "task"
    for folder in (keys, task / "deep"):
        folder.mkdir(parents=True)
    (keys / "id_rsa").write_text("secret")
    (task / "link").symlink_to(keys)
    (task / "deep" / "link").symlink_to("../../keys")
    (task / "deep" / "file").symlink_to(keys / "id_rsa")
    for read in (task_folders.kind_of, task_folders.read_file, task_folders.read_text):
        with pytest.raises(ConfigError, match="leads through a link"):
            read("one", task, path)


def test_special_files_and_large_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="neither a file nor a folder"):
        task_folders.read_file("one", tmp_path, "fifo")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match="more than"):
        task_folders.read_file("one", tmp_path, "large")


@pytest.mark.parametrize("name", ["", " a", "a\n", "a\x1b[2J", "x" * 201, os.fsdecode(b"a\xff")])
def test_an_id_that_cannot_be_printed_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="not a valid name of a task"):
        task_folders.check_id(name)


def test_toml_that_is_nested_too_deeply_is_an_error_and_no_crash() -> None:
    with pytest.raises(ConfigError, match=r"task\.toml is not TOML"):
        task_folders.read_toml(Path("task.toml"), f"a = {'[' * 100_000}")
