"""The targets of an attack: a workspace, a folder outside, a process and a web address.

Each attempt has its own targets, so that an effect belongs to exactly one attempt.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from corral.system import paths
from corral.testing.attack.attempts.attempt import Attempt
from corral.testing.attack.attempts.ways_out import END
from corral.testing.attack.targets import Targets
from corral.testing.http_canary import Address

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
        self.cwd = root / "workspace"
        self.outside = root / "outside"
        self.notes = self.cwd / "notes" if login is not None else root / "notes"
        self.recording = self.cwd / "recorded" / "session.ndjson"
        """Of the session that is attacked in the sandbox. Commands of an agent that runs in this
        process must not use it either."""
        self.key = f"attack-key-{secrets.token_hex(12)}"
        self.planted = f"planted-{secrets.token_hex(12)}"
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
        self.address = Address()
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
