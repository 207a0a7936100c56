"""Where the files of a named session are. Loads little, for the fast start of the command line."""

from __future__ import annotations

import hashlib
import os

MAX_SOCKET_PATH = 100
"""Bytes of a socket's path: systems allow 104 or 108."""


def warm_folder(home: str, name: str, cwd: str) -> str:
    """The folder of the session with this name. ``cwd``: its resolved working directory."""
    digest = hashlib.blake2b(f"{cwd}\0{name}".encode(), digest_size=10).hexdigest()
    return os.path.join(home, "warm", digest)


def socket_in(folder: str) -> str | None:
    """The socket of a session in its folder; None if that path is too long for a socket."""
    path = os.path.join(folder, "socket")
    return path if len(os.fsencode(path)) <= MAX_SOCKET_PATH else None
