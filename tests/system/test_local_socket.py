"""Requests over a Unix socket of the same user."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from support.descriptors import free_descriptors
from support.scripted_agent import open_descriptors

from corral._system import local_socket
from corral._system.local_socket import LocalServer, request


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("s") / "s")
    if not local_socket.fits(path):
        pytest.skip("the folder for temporary files has a long path")
    return path


def test_a_request_is_answered_until_the_server_is_closed(path: str) -> None:
    server = LocalServer(path, bytes.upper)
    assert [request(path, each, 60) for each in (b"one", b"two")] == [b"ONE", b"TWO"]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    server.close()
    with pytest.raises(FileNotFoundError):
        request(path, b"three", 60)


def test_a_client_that_says_nothing_or_too_much_does_not_stop_the_others(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_socket, "TIMEOUT", 0.1)
    monkeypatch.setattr(local_socket, "LONGEST_REQUEST", 10)
    server = LocalServer(path, bytes.upper)
    try:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(path)
            assert request(path, b"one", 60) == b"ONE"
        with pytest.raises((ConnectionError, BrokenPipeError)):
            request(path, b"x" * 200_000, 60)
        assert request(path, b"two", 60) == b"TWO"
    finally:
        server.close()


def test_a_server_without_free_descriptors_is_an_error_and_opens_nothing(path: str) -> None:
    before = open_descriptors()
    for count in range(4):  # the listener, a pair that wakes the thread, its selector
        with free_descriptors(count), pytest.raises(OSError, match="Too many open files"):
            LocalServer(path, bytes.upper)
        assert open_descriptors() == before
    with free_descriptors(4):
        server = LocalServer(path, bytes.upper)
    assert request(path, b"one", 60) == b"ONE"
    server.close()


def test_a_closed_server_has_closed_its_descriptors(path: str) -> None:
    before = open_descriptors()
    for _ in range(50):
        LocalServer(path, bytes.upper).close()
        assert open_descriptors() == before


def test_the_user_at_the_other_end_is_known(path: str) -> None:
    here, there = socket.socketpair()
    with here, there:
        assert local_socket.peer_user(here) in (os.getuid(), None)


def test_only_a_socket_of_the_same_user_is_spoken_to(path: str, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    with pytest.raises(PermissionError, match="is not a socket of this user"):
        request(str(plain), b"x", 60)
    server = LocalServer(path, bytes.upper)
    try:
        os.symlink(path, tmp_path / "link")
        with pytest.raises(PermissionError, match="is not a socket of this user"):
            request(str(tmp_path / "link"), b"x", 60)
        if os.getuid() == 0:
            os.chown(path, 12345, 12345)
            with pytest.raises(PermissionError, match="is not a socket of this user"):
                request(path, b"x", 60)
    finally:
        server.close()
