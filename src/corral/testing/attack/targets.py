"""Targets of a program that tries to leave the sandbox: sockets, a process, logins, a key."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import secrets
import selectors
import socket
import subprocess
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from corral.agents import registry
from corral.system.sandbox import credentials
from corral.system.sandbox.box import interpreter

KEY_CALLS = {"x86_64": (248, 250), "aarch64": (217, 219)}
"""Machine → the numbers of ``add_key`` and ``keyctl``."""
SESSION_KEYRING = -3
LONGEST = 4096
SHARED_BYTES, IPC_CREATE, IPC_REMOVE = 64, 0o1000, 0


class Targets:
    """What is outside of ``cwd``, in the folder ``outside`` and on this machine. Serves until
    ``close``."""

    def __init__(self, cwd: Path, outside: Path, login: tuple[str, ...]) -> None:
        """``login``: the agent's own credential files in the home, which it may use."""
        self.messages: list[str] = []
        """What the sockets received."""
        self._names = {
            "abstract": f"corral-{secrets.token_hex(8)}",
            "keyname": f"corral-{secrets.token_hex(8)}",
            "login": f"login-{secrets.token_hex(8)}",
        }
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._selector.register(self._wake, selectors.EVENT_READ)
        udp = self._listen(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        self._listen(socket.AF_UNIX, socket.SOCK_STREAM, str(outside / "socket"))
        self._listen(socket.AF_UNIX, socket.SOCK_STREAM, str(cwd / "socket"))
        self._listen(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self._names['abstract']}")
        self._listen(socket.AF_UNIX, socket.SOCK_DGRAM, str(cwd / "datagrams"))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self._victim = subprocess.Popen(["sleep", "1000000"], start_new_session=True)
        self._planted = [*_plant_logins(self._names["login"])]
        # Put a key into the session's keyring, where the kernel has one.
        number = KEY_CALLS.get(os.uname().machine, (0, 0))[0]
        name, text = self._names["keyname"].encode(), self._names["login"].encode()
        if number:
            ctypes.CDLL(None).syscall(number, b"user", name, text, len(text), SESSION_KEYRING)
        self._shared = _SharedMemory(self._names["login"])
        files = [*self._planted, *_existing_logins(login)]
        self.digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        self.values: Mapping[str, str] = {
            **self._names,
            "shared": str(self._shared.key),
            "udp": str(udp.getsockname()[1]),
            "victimpid": str(self._victim.pid),
            "python": f"{interpreter()} -SI",
            "keyctl": str(KEY_CALLS.get(os.uname().machine, (0, 0))[1]),
            "credentials": " ".join(f"'{file}'" for file in files),
            "object": _repository(outside, self._names["login"]),
        }

    @property
    def killed(self) -> bool:
        return self._victim.poll() is not None

    def close(self) -> None:
        self._waker.close()
        self._thread.join()
        for key in [*self._selector.get_map().values()]:
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        self._shared.close()
        self._victim.kill()
        self._victim.wait()
        for file in self._planted:
            file.unlink(missing_ok=True)

    def _listen(self, family: int, kind: int, address: str | tuple[str, int]) -> socket.socket:
        opened = socket.socket(family, kind)
        opened.bind(address)
        if kind == socket.SOCK_STREAM:
            opened.listen()
        self._selector.register(opened, selectors.EVENT_READ, kind)
        return opened

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                opened = key.fileobj
                if opened is self._wake or not isinstance(opened, socket.socket):
                    return
                with contextlib.suppress(OSError):
                    if key.data == socket.SOCK_DGRAM:
                        self.messages.append(opened.recv(LONGEST).decode("latin-1"))
                        continue
                    accepted, _ = opened.accept()
                    with accepted:
                        accepted.settimeout(5)
                        self.messages.append(accepted.recv(LONGEST).decode("latin-1"))


class _SharedMemory:
    """A segment of System V shared memory with a text in it."""

    def __init__(self, text: str) -> None:
        self.key = secrets.randbelow(1 << 30) + 1
        self._libc = ctypes.CDLL(None)
        self._libc.shmat.restype = ctypes.c_void_p
        self._number: int = self._libc.shmget(self.key, SHARED_BYTES, IPC_CREATE | 0o600)
        if self._number >= 0:
            place = self._libc.shmat(self._number, None, 0)
            ctypes.memmove(place, text.encode(), len(text))
            self._libc.shmdt(ctypes.c_void_p(place))

    def close(self) -> None:
        if self._number >= 0:
            self._libc.shmctl(self._number, IPC_REMOVE, None)


def _plant_logins(text: str) -> Iterator[Path]:
    """A file in the user's home, and one in each folder there that holds credentials."""
    home = Path.home()
    folders = [home / name for name in credentials.NAMES]
    for folder in (home, *(each for each in folders if each.is_dir())):
        file = folder / f"corral-canary-{secrets.token_hex(6)}"
        with contextlib.suppress(OSError):
            file.write_text(f"{text}\n")
            yield file


def _existing_logins(own: tuple[str, ...]) -> Iterator[Path]:
    """The login files of other agents and programs. Only their digests are used."""
    others = [name for agent in registry.all_agents() for name in agent.credential_files]
    for name in dict.fromkeys((*credentials.NAMES, *others)):
        file = Path.home() / name
        if name not in own and file.is_file() and os.access(file, os.R_OK):
            yield file


def _repository(folder: Path, text: str) -> str:
    """Make the folder look like a git folder with one object; return the object's name."""
    content = f"blob {len(text)}\0{text}".encode()
    name = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    file = folder / "objects" / name[:2] / name[2:]
    file.parent.mkdir(parents=True)
    file.write_bytes(zlib.compress(content))
    (folder / "refs").mkdir()
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
    return name
