"""The targets of an attack: a workspace, a folder outside, a process and a web address; for a
program that tries to leave the sandbox also sockets, logins and a key.

Each attempt has its own targets, so that an effect belongs to exactly one attempt.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import secrets
import selectors
import shlex
import socket
import subprocess
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

from corral._agents import registry
from corral._system import paths
from corral._system.sandbox.box import CREDENTIALS, interpreter
from corral._testing.attack.attempts.attempt import Attempt
from corral._testing.attack.attempts.ways_out import END
from corral._testing.kits import RecordingServer

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
        self.digests: list[str] = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
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
    folders = [home / name for name in CREDENTIALS]
    for folder in (home, *(each for each in folders if each.is_dir())):
        file = folder / f"corral-canary-{secrets.token_hex(6)}"
        with contextlib.suppress(OSError):
            file.write_text(f"{text}\n")
            yield file


def _existing_logins(own: tuple[str, ...]) -> Iterator[Path]:
    """The login files of other agents and programs. Only their digests are used."""
    others = [name for agent in registry.all_agents() for name in agent.credential_files]
    for name in dict.fromkeys((*CREDENTIALS, *others)):
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


ORIGINAL = "original\n"
PLANTED = (
    "DATABASE_URL",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "CORRAL_DB",
    "GITHUB_PAT",
    "STRIPE_SECRET_KEY",
    "NPM_TOKEN",
)
"""Variables of the user that no agent and no command may get."""
AGENT_FOLDERS = (".agents", ".claude", ".cline", ".codex", ".config/opencode", ".copilot",
                 ".gemini", ".pi", ".qwen")  # fmt: skip
"""Where agents keep their settings and memory in the user's home."""
LARGE = 1024 * 1024
"""Bytes: larger files are not searched."""


class Arena:
    """A context manager; ``folder`` must exist and be empty."""

    def __init__(self, folder: Path, *, links: bool, login: tuple[str, ...] | None = None) -> None:
        """``login``: if given, there are targets for leaving the sandbox, without these files."""
        root = folder.resolve()
        self._login = login
        self.targets: Targets | None = None
        self.links = links
        self.cwd: Path = root / "workspace"
        self.outside: Path = root / "outside"
        self.notes: Path = self.cwd / "notes" if login is not None else root / "notes"
        self.recording: Path = self.cwd / "recorded" / "session.ndjson"
        """Of the session that is attacked in the sandbox. Commands of an agent that runs in this
        process must not use it either."""
        self.key: str = f"attack-key-{secrets.token_hex(12)}"
        self.planted: str = f"planted-{secrets.token_hex(12)}"
        self._names: dict[int, str] = {}
        self._shared = {
            "cwd": str(self.cwd),
            "outside": str(self.outside),
            "key": self.key,
            "planted": self.planted,
            "listing": f"listing-{secrets.token_hex(8)}",
            "here": f"here-{secrets.token_hex(8)}",
            "process": f"process-{secrets.token_hex(12)}",
            "recording": str(self.recording),
        }
        self._canaries: dict[str, str] = {}
        self._begin = time.time()
        self._before: dict[str, bytes] = {}

    def __enter__(self) -> Self:
        self.address: RecordingServer = RecordingServer()
        self._process = subprocess.Popen(
            ["sleep", "1000000"], env={"CANARY": self._shared["process"]}, start_new_session=True
        )
        self._shared |= {"pid": str(self._process.pid)}
        self._build()
        if self._login is not None:
            paths.announce(self.recording)
            self.targets = Targets(self.cwd, self.outside, self._login)
            self._shared |= self.targets.values
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self.address.close()
        if self.targets is not None:
            self.targets.close()
        for name in self._names.values():
            Path.home().joinpath(name).unlink(missing_ok=True)

    def _build(self) -> None:
        for folder in ("victims", "sub", "kept"):
            (self.cwd / folder).mkdir(parents=True)
        for folder in ("victims", "secrets", "folder"):
            (self.outside / folder).mkdir(parents=True)
        self.notes.mkdir()
        (self.outside / self._shared["listing"]).touch()
        (self.cwd / "here.txt").write_text(self._shared["here"] + "\n")
        (self.cwd / "payload").write_text("payload\n")
        (self.cwd / "large").write_text("a line of text\n" * 2000)
        self.recording.parent.mkdir()
        self.recording.write_text('{"cassette":1,"run":""}\n')
        # A git directory as ``git init`` makes it, and those of two submodules, without starting
        # git.
        git = self.cwd / ".git"
        _make_git_folder(git)
        self._before[str(git / "config")] = (git / "config").read_bytes()
        for name in ("lib", "deep/lib"):
            _make_git_folder(git / "modules" / name, f"\tworktree = {self.cwd / name}\n")
            (self.cwd / name).mkdir(parents=True)
            (self.cwd / name / ".git").write_text(f"gitdir: {git / 'modules' / name}\n")
        (self.cwd / "swapped").symlink_to("kept")
        if self.links:
            links = self.cwd / "links"
            links.mkdir()
            (links / "folder").symlink_to(self.outside / "folder")
            (links / "secrets").symlink_to(self.outside / "secrets")
            (links / "outside").symlink_to(self.outside)
            (links / "parent").symlink_to(self.cwd.parent)

    def plant(self, attempts: Iterable[Attempt]) -> None:
        """Make the targets of these attempts."""
        for number, attempt in enumerate(attempts):
            name = f"t{number:03}{secrets.token_hex(3)}"
            self._names[id(attempt)] = name
            canary = self._canaries[name] = f"canary-{secrets.token_hex(8)}"
            (self.outside / "secrets" / name).write_text(canary + "\n")
            for folder in (self.cwd, self.outside):
                victim = folder / "victims" / name
                victim.write_text(ORIGINAL)
                self._before[str(victim)] = ORIGINAL.encode()
            if self.links:
                self._link(name)

    def _link(self, name: str) -> None:
        links = self.cwd / "links"
        (links / f"{name}.file").symlink_to(self.outside / "victims" / name)
        (links / f"{name}.chain").symlink_to(f"{name}.file")
        (links / f"{name}.secret").symlink_to(self.outside / "secrets" / name)
        (links / f"{name}.dangling").symlink_to(self.outside / f"{name}.out")

    def write_script(self, attempts: Iterable[Attempt]) -> None:
        """Write the script that makes these attempts, and keeps what each prints."""
        lines = [
            f"cd {shlex.quote(str(self.cwd))} && mkdir -p ways-out",
            "exec 9< .",  # an open folder
            'attempt() { timeout 20 sh -c "$2" > "$1" 2>&1 < /dev/null; }',
            '[ -d ways-out ] || attempt() { timeout 20 sh -c "$2" > /dev/null 2>&1 < /dev/null; }',
        ]
        for attempt in attempts:
            command = self.fill(attempt.given["command"], attempt)
            lines.append(f"attempt ways-out/{self.name(attempt)} {shlex.quote(command)}")
        (self.cwd / "ways-out.sh").write_text("\n".join([*lines, f"echo {END}", ""]))

    def printed(self, attempt: Attempt) -> str:
        """What the script's command printed."""
        try:
            return (self.cwd / "ways-out" / self.name(attempt)).read_text("latin-1")
        except OSError:
            return ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.address.port}"

    def name(self, attempt: Attempt) -> str:
        return self._names[id(attempt)]

    def fill(self, text: str, attempt: Attempt) -> str:
        """``text`` with the placeholders replaced by this attempt's targets."""
        for placeholder, value in self._values(self.name(attempt)).items():
            text = text.replace("{" + placeholder + "}", value)
        return text

    def _values(self, name: str) -> Mapping[str, str]:
        port = self.address.port
        return {
            **self._shared,
            "name": name,
            "made": f"{name}.made",
            "out": str(self.outside / f"{name}.out"),
            "victim": f"victims/{name}",
            "outvictim": str(self.outside / "victims" / name),
            "secret": str(self.outside / "secrets" / name),
            "canary": self._canaries[name],
            "home": str(Path.home() / name),
            "url": f"http://127.0.0.1:{port}/{name}",
            "localhost": f"http://localhost:{port}/{name}",
            "port": str(port),
            "seconds": f"90{int(name[1:4]):03}.{int(name[4:], 16):08}",
        }

    def holding(self, text: str) -> str:
        """A file with this text that was written since the arena was made, in the workspace or in
        the agents' folders in the user's home; empty if there is none."""
        for folder in (self.cwd, *(Path.home() / name for name in AGENT_FOLDERS)):
            for path in folder.rglob("*"):
                with contextlib.suppress(OSError):
                    is_new = path.is_file() and path.stat().st_mtime >= self._begin
                    if is_new and path.stat().st_size < LARGE and text in path.read_text("latin-1"):
                        return str(path)
        return ""

    def is_recorded(self, line: str) -> bool:
        """Whether this is a line of the recording."""
        try:
            return line in self.recording.read_text("utf-8").splitlines()
        except OSError:
            return False

    def differs(self, path: str) -> bool:
        """Whether a file was changed or removed."""
        absolute = os.path.join(self.cwd, path)
        try:
            return Path(absolute).read_bytes() != self._before[absolute]
        except OSError:
            return True


def _make_git_folder(git: Path, settings: str = "") -> None:
    for folder in ("hooks", "info", "objects", "refs/heads"):
        (git / folder).mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "config").write_text("[core]\n\trepositoryformatversion = 0\n" + settings)


class LinkSwapper:
    """Switches a link in the workspace between a folder inside and one outside."""

    def __init__(self, arena: Arena) -> None:
        self._link = arena.cwd / "swapped"
        self._spare = arena.cwd / "swapped.spare"
        self._targets = (str(arena.outside / "folder"), "kept")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._swap, daemon=True)

    def start(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _swap(self) -> None:
        turn = 0
        while not self._over.wait(0.0005):
            self._spare.symlink_to(self._targets[turn % 2])
            os.replace(self._spare, self._link)
            turn += 1
