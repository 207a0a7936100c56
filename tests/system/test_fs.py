"""Atomic replacement of files, removal of trees, search for programs."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from corral._system import fs


def names(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name != "user-home"]  # a fixture's


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_created_and_replaced_without_leftovers(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "file"
    fs.write_atomically(path, b"one", sync=sync)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    fs.write_atomically(path, b"two", mode=0o640, sync=sync)
    assert path.read_bytes() == b"two"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("has_nameless_files", [True, False])
def test_a_complete_file_is_created_once(
    tmp_path: Path, has_nameless_files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_nameless_files:
        monkeypatch.setattr(fs, "_NAMELESS", os.O_WRONLY)
    path = tmp_path / "file"
    fs.create_complete(path, b"one", mode=0o640)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    with pytest.raises(FileExistsError):
        fs.create_complete(path, b"two")
    with pytest.raises(FileNotFoundError):
        fs.create_complete(tmp_path / "missing" / "file", b"two")
    assert path.read_bytes() == b"one"
    assert names(tmp_path) == ["file"]


def test_the_start_of_a_file_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        fs.overwrite_start(path, b"one")
    path.write_bytes(b"old and long")
    fs.overwrite_start(path, b"new")
    assert path.read_bytes() == b"new and long"


def test_a_draft_is_recognized_by_its_name(tmp_path: Path) -> None:
    assert fs.is_draft(Path(fs.draft_path(tmp_path / "prompt.md")).name)
    assert fs.is_draft(Path(fs.draft_path(tmp_path / ("long" * 50))).name)
    for name in ("prompt.md", ".prompt.md", ".a.0123456789ab.c", "a.0123456789ab", ".0123456789ab"):
        assert not fs.is_draft(name)


def test_a_reader_of_the_old_file_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        fs.write_atomically(path, b"newer")
        assert reader.read() == b"old"


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"mine")
    (tmp_path / "link").symlink_to("target")
    fs.write_atomically(tmp_path / "link", b"data")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"mine"


def test_a_failure_leaves_the_file_and_the_folder_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        fs.write_atomically(tmp_path / "folder", b"data")
    assert names(tmp_path) == ["folder"]


def test_a_path_may_be_relative_to_an_open_folder(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fs.write_atomically("ü" * 127, b"data", dir_fd=folder, sync=True)
    finally:
        os.close(folder)
    assert names(tmp_path) == ["ü" * 127]


def test_large_data_is_written_completely(tmp_path: Path) -> None:
    data = os.urandom(1 << 16) * 64
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        fs.write_all(writer, data)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert file.read() == data
    os.wait()


def test_a_tree_is_removed_without_following_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "stays.txt").write_text("x")
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file").write_text("x")
    (tree / "a" / "folder-link").symlink_to(outside)
    (tree / "file-link").symlink_to(outside / "stays.txt")
    (tree / "broken").symlink_to("nowhere")
    link = tmp_path / "link"
    link.symlink_to(outside)
    fs.remove_tree(tree)
    fs.remove_tree(link)
    fs.remove_tree(tmp_path / "missing")
    assert not tree.exists()
    assert link.is_symlink()
    assert (outside / "stays.txt").read_text() == "x"


def test_programs_are_found_as_the_standard_library_finds_them(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    (tmp_path / "one" / "tool").mkdir()
    (tmp_path / "one" / "plain").write_text("")
    tool = tmp_path / "two" / "tool"
    tool.write_text("")
    tool.chmod(0o755)
    path = f"{tmp_path / 'one'}:{tmp_path / 'two'}"
    for name in ("tool", "plain", "missing", str(tool), str(tmp_path / "one" / "tool")):
        assert fs.find_program(name, path) == shutil.which(name, path=path)
    assert fs.find_program("tool", path) == str(tool)
    assert fs.find_program("tool", "") is None
    assert fs.find_program("sh") == shutil.which("sh")
