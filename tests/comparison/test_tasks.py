"""Tasks of strangers, read from a file: nothing outside of its folder is read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from corral._comparison import tasks
from corral._comparison.tasks import CompareTask
from corral.errors import ConfigError


def read(given: Path) -> list[CompareTask]:
    return tasks.read(given, given.parent)


BAD_PATHS = (
    *("", ".", "..", "/", "//", "/etc/passwd", "~", "~/.ssh", "../x", "a/../../x", "a/..", "a//b"),
    *("a/./b", "./a", "a/", "a\0b", "a\nb", "a\x1b[2Jb", "\ud800", "x" * 1_001, "a/" * 600 + "a"),
)


@pytest.mark.parametrize("path", BAD_PATHS, ids=lambda path: ascii(path[:20]))
def test_a_path_that_is_not_below_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="task 'one': the path"):
        tasks.kind_of("one", tmp_path, path)


def test_files_and_folders_are_found(tmp_path: Path) -> None:
    (tmp_path / "a b" / "..c").mkdir(parents=True)
    (tmp_path / "a b" / "..c" / "ü.md").write_text("text")
    assert tasks.kind_of("one", tmp_path, "a b") == "folder"
    assert tasks.kind_of("one", tmp_path, "a b/..c/ü.md") == "file"
    assert tasks.kind_of("one", tmp_path, "other/file") is None
    assert tasks.kind_of("one", tmp_path, "a b/..c/ü.md/more") is None


@pytest.mark.parametrize("path", ["link", "link/id_rsa", "deep/link/id_rsa", "deep/file"])
def test_no_component_may_be_a_link(tmp_path: Path, path: str) -> None:
    keys, task = tmp_path / "keys", tmp_path / "task"
    for folder in (keys, task / "deep"):
        folder.mkdir(parents=True)
    (keys / "id_rsa").write_text("secret")
    (task / "link").symlink_to(keys)
    (task / "deep" / "link").symlink_to("../../keys")
    (task / "deep" / "file").symlink_to(keys / "id_rsa")
    with pytest.raises(ConfigError, match="leads through a link"):
        tasks.kind_of("one", task, path)


def test_special_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="neither a file nor a folder"):
        tasks.kind_of("one", tmp_path, "fifo")


def test_toml_that_is_nested_too_deeply_is_an_error_and_no_crash(tmp_path: Path) -> None:
    file = tmp_path / "tasks.toml"
    file.write_text(f"a = {'[' * 100_000}")
    with pytest.raises(ConfigError, match=r"tasks\.toml is not TOML"):
        read(file)


def test_a_folder_is_no_list_of_tasks_and_no_prompt(tmp_path: Path) -> None:
    for given in (tmp_path, str(tmp_path)):
        with pytest.raises(ConfigError, match="not a file of tasks") as caught:
            tasks.read(given, tmp_path)
        assert ".jsonl" in (caught.value.hint or "")


@pytest.mark.parametrize("field", ["tests", "folder"])
def test_paths_of_a_task_file_stay_in_its_folder(tmp_path: Path, field: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "tasks"
    for each in (outside, folder / "one"):
        each.mkdir(parents=True)
    file = folder / "tasks.jsonl"
    (folder / "link").symlink_to(outside)
    for path in (str(outside), "../outside", "link", "link/.."):
        file.write_text(json.dumps({"id": "one", "prompt": "x", field: path}))
        with pytest.raises(ConfigError, match="task 'one': "):
            read(file)
        (task,) = tasks.read(file, folder, trusted=True)
        assert not task.is_confined
    file.write_text(json.dumps({"id": "one", "prompt": "x", field: "one/"}))
    (task,) = read(file)
    assert getattr(task, field) == str(folder / "one")
    assert task.is_confined


def test_a_task_that_is_only_a_prompt_is_not_confined(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('"a prompt"\n{"prompt": "b", "verify": "true"}\n')
    assert [task.is_confined for task in read(file)] == [False, True]
    given = [{"prompt": "b", "verify": "true", "folder": str(tmp_path)}]
    assert [task.is_confined for task in tasks.read(given, tmp_path)] == [False]
