"""A Unix socket on which one process answers short requests of the same user.

A request is one line, and so is its answer. The server has its own thread, because a process
may have several event loops, or one that is busy. The thread serves one connection at a time, and
waits at most ``TIMEOUT`` seconds for it. Only the user who started the process is answered: the
socket is readable by its owner alone, and the kernel says who has connected. The same thread can
do other short work (``tick``), which then needs no thread.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable

from corral._system import threads

TIMEOUT = 2.0
"""Seconds that a connection may take to send its request, or to read the answer."""
PATIENCE = 0.5
"""Seconds that ``close`` waits for the thread."""
LONGEST_REQUEST = 1 << 20
"""Bytes of one request."""
LONGEST_PATH = 100
"""Bytes of a socket's path: systems allow 104 or 108."""
END = b"!"
"""Ends the thread."""
WAITING = 128
"""Connections that may wait to be served."""


def fits(path: str) -> bool:
    """Whether a path is short enough for a socket."""
    return len(os.fsencode(path)) <= LONGEST_PATH


class LocalServer:
    """Answers from when it is made until ``close``."""

    def __init__(
        self,
        path: str,
        answer: Callable[[bytes], bytes],
        tick: Callable[[], float | None] = lambda: None,
    ) -> None:
        """``answer`` gets each request without its line end, in the server's thread. ``tick`` is
        called there after ``wake`` and after each request, and returns after how many seconds it
        is to be called next; None: not before. Neither may raise. A file at ``path`` is replaced.
        Raises ``OSError`` and ``NoThread``."""
        self.path = path
        self._answer = answer
        self._tick = tick
        with contextlib.ExitStack() as undo:
            self._listener = socket.socket(socket.AF_UNIX)
            undo.callback(self._listener.close)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            self._listener.bind(path)
            os.chmod(path, 0o600)
            self._listener.listen(WAITING)
            self._listener.setblocking(False)
            self._wake, self._woken = socket.socketpair()
            undo.callback(self._wake.close)
            undo.callback(self._woken.close)
            self._wake.setblocking(False)
            # Not in the thread: an error there would reach no caller.
            self._selector = selectors.DefaultSelector()
            undo.callback(self._selector.close)
            self._thread = threading.Thread(target=self._serve, name="corral-live", daemon=True)
            threads.start(self._thread)
            undo.pop_all()

    def wake(self) -> None:
        """Have ``tick`` called soon. Does not block, and never raises."""
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    def close(self) -> None:
        """Remove the socket and end the thread, which closes its descriptors. Requests that are not
        answered yet are not. Waits for the thread, but not long for one that is busy."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        with contextlib.suppress(OSError):
            self._wake.send(END)
        if self._thread is not threading.current_thread():
            self._thread.join(PATIENCE)

    def _serve(self) -> None:
        with contextlib.closing(self._selector) as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            pause: float | None = None
            while True:
                ready = [key.fileobj for key, _ in selector.select(pause)]
                if self._woken in ready and END in self._woken.recv(4096):
                    break
                if self._listener in ready:
                    with contextlib.suppress(OSError), self._listener.accept()[0] as connection:
                        connection.settimeout(TIMEOUT)
                        if peer_user(connection) in (None, os.getuid()):
                            line = _read_line(connection, LONGEST_REQUEST)
                            if line is not None:
                                connection.sendall(self._answer(line) + b"\n")
                pause = self._tick()
        for end in (self._listener, self._wake, self._woken):
            end.close()


def request(path: str, line: bytes, timeout: float) -> bytes:
    """Send a request and return its answer. Blocks. Raises ``OSError``; ``PermissionError`` if the
    socket is not the user's own."""
    found = os.lstat(path)  # links are not followed
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{path} is not a socket of this user")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(path)
        if peer_user(connection) not in (None, os.getuid()):
            raise PermissionError(f"{path} is served by another user")
        connection.sendall(line + b"\n")
        answer = _read_line(connection, None)
        if answer is None:
            raise ConnectionResetError(f"{path} closed the connection without an answer")
        return answer


def peer_user(connection: socket.socket) -> int | None:
    """The user id of the process at the other end; None if the system does not tell."""
    if sys.platform == "linux":
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", found)[1])
    if sys.platform == "darwin":
        local, credentials = 0, 1  # SOL_LOCAL, LOCAL_PEERCRED: the version and the user come first
        found = connection.getsockopt(local, credentials, struct.calcsize("2i"))
        return int(struct.unpack("2i", found[:8])[1])
    return None


def _read_line(connection: socket.socket, limit: int | None) -> bytes | None:
    """The bytes before the first line end; None if there is no complete line."""
    data = bytearray()
    while b"\n" not in data:
        if limit is not None and len(data) > limit:
            return None
        chunk = connection.recv(1 << 16)
        if not chunk:
            return None
        data += chunk
    return bytes(data.partition(b"\n")[0])
