"""Locks on files between processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from corral._system import fs

HOLDER = """
import sys
from pathlib import Path
from corral._system import fs
fd = fs.lock_file(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_lock_ends_when_its_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not fs.is_locked(path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        assert fs.is_locked(path)
        with pytest.raises(BlockingIOError):
            fs.lock_file(path)
    finally:
        holder.kill()
        holder.communicate()
    assert not fs.is_locked(path)
    os.close(fs.lock_file(path))


def test_a_child_that_inherits_the_descriptor_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with fs.exclusive_lock(path) as fd:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(fd,))
    try:
        assert fs.is_locked(path)
    finally:
        child.communicate()
    assert not fs.is_locked(path)


def test_exclusive_fails_if_the_previous_holder_removed_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with fs.exclusive_lock(folder / "lock"):
        shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError), fs.exclusive_lock(folder / "lock"):
        pass


def test_shared_locks_exclude_an_exclusive_one(tmp_path: Path) -> None:
    one, two, three = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(3))
    try:
        fs.lock_shared(one)
        fs.lock_shared(two)
        assert not fs.try_lock(three)
        os.close(one)
        assert not fs.try_lock(three)
        os.close(two)
        assert fs.try_lock(three)
    finally:
        os.close(three)
