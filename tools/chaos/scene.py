"""Where a case happens: its folders, its environment, its streams and its processes."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from chaos import processes
from chaos.agents import ACP, KEY, STREAM, ChaosAgent
from chaos.case import Case, Verdict
from support.namespace import ProcessLimit

CORRAL = str(Path(sys.executable).with_name("corral"))
DEADLINE = 120.0
"""Seconds in which every command must end after its fault. Its own time limits are much shorter;
the rest is for a busy machine."""
REPOSITORY = Path(__file__).parents[2]
FDS = (0, 1, 2)


class Scene:
    """``disk`` holds everything that corral may write to; ``io`` what the case itself uses, which
    no fault affects."""

    def __init__(self, case: Case, folder: Path, template: Path, agent: ChaosAgent | None) -> None:
        self.case, self.folder, self.template = case, folder, template
        self.chance = case.chance("scene")
        self.verdict = Verdict()
        self.disk, self.io = folder / "disk", folder / "io"
        self.home = self.disk / "home"
        self.corral_home = self.disk / "corral"
        self.temporary = self.disk / "tmp"
        self.workspace = self.disk / "work"
        self.db = self.disk / "db" / "runs.db"
        both = case.surface not in ("pool", "session")
        self.agent = agent or (STREAM if both and self.chance.random() < 0.6 else ACP)
        self.timeout = 30.0
        """Seconds for each prompt."""
        self.noise = 0
        """Further lines of the agent's answer."""
        self.env: dict[str, str] = {}
        self.streams = ["null", "file", "file"]
        """For stdin, stdout and stderr: ``null``, ``file``, ``closed``, ``full`` (/dev/full),
        ``gone`` (a pipe without a reader) or ``deep`` (a pipe that is read slowly)."""
        self.limits: dict[int, int] = {}
        self.limits_are_hard = False
        self.process_limit: ProcessLimit | None = None
        self.subject: subprocess.Popen[bytes] | None = None
        """The process that the faults are for."""
        self.others: list[subprocess.Popen[bytes]] = []
        self.was_killed = False
        """The fault ended the subject."""
        self.is_disk_full = False
        self.lift: Callable[[], None] = lambda: None
        """Lift the fault; has no effect the second time."""
        self._claims_fd = -1
        self._readers: list[threading.Thread] = []

    def create(self) -> None:
        """Create the folders; ``disk`` exists."""
        for each in (self.home, self.corral_home, self.temporary, self.workspace, self.db.parent):
            each.mkdir(mode=0o700)
        self.db.write_bytes(self.template.read_bytes())
        self.env = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self.home),
            "CORRAL_HOME": str(self.corral_home),
            "CORRAL_CONFIG": "",
            "TMPDIR": str(self.temporary),
            "GEMINI_API_KEY": KEY,
            "PYTHONPATH": os.pathsep.join(
                str(REPOSITORY / name) for name in ("src", "tests", "tools")
            ),
        }
        if "CHAOS_MODEL" in os.environ:
            self.env["GOOGLE_GEMINI_BASE_URL"] = os.environ["CHAOS_MODEL"]

    @property
    def flags(self) -> list[str]:
        """The options of agents, for every command."""
        box = ["--sandbox", "require"] if self.case.is_boxed else []
        return [*self.agent.flags, "--approve", "all", *box, "--timeout", f"{self.timeout:g}"]

    def prompt(self, work: str) -> str:
        chance = random.Random(f"{self.case.seed}/{self.case.name}/{work}")
        return self.agent.prompt(work, chance, noise=self.noise)

    # Starting.

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the subject, with the fault's environment, streams and limits."""
        reader, writer = os.pipe()
        opened: list[int] = [writer]
        fds = [self._open_stream(fd, opened) for fd in FDS]
        closed = [fd for fd in FDS if self.streams[fd] == "closed"]

        def prepare() -> None:
            for kind, limit in self.limits.items():
                most = limit if self.limits_are_hard else resource.getrlimit(kind)[1]
                resource.setrlimit(kind, (limit, max(limit, most)))
            if self.process_limit is not None:
                self.process_limit.join()
            for fd in closed:
                os.close(fd)

        self.subject = subprocess.Popen(
            words,
            cwd=self.workspace,
            env={**self.env, "CHAOS_CLAIMS": str(writer)},
            stdin=fds[0],
            stdout=fds[1],
            stderr=fds[2],
            pass_fds=[writer],
            preexec_fn=prepare,  # noqa: PLW1509 (this process has one thread until now)
            start_new_session=True,
        )
        self._claims_fd = reader
        for fd in opened:
            os.close(fd)
        for thread in self._readers:
            thread.start()
        return self.subject

    def _open_stream(self, fd: int, opened: list[int]) -> int:
        flags = os.O_RDONLY if fd == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        match self.streams[fd]:
            case "null" | "closed":
                opened.append(os.open(os.devnull, os.O_RDWR))
            case "file":
                opened.append(os.open(self.io / f"stream-{fd}", flags, 0o600))
            case "full":
                opened.append(os.open("/dev/full", os.O_WRONLY))
            case other:
                reader, writer = os.pipe()
                opened.append(writer)
                if other == "gone":
                    os.close(reader)
                else:
                    thread = threading.Thread(target=self._read_slowly, args=(reader, fd))
                    self._readers.append(thread)
        return opened[-1]

    def _read_slowly(self, reader: int, fd: int) -> None:
        pause = self.case.chance("reader").uniform(0.002, 0.02)
        with (self.io / f"stream-{fd}").open("ab") as copy:
            while data := os.read(reader, 16384):
                copy.write(data)
                copy.flush()
                time.sleep(pause)
        os.close(reader)

    def join_readers(self) -> None:
        """Wait until the slow readers have read what is left in their pipes."""
        for thread in self._readers:
            thread.join(DEADLINE)

    def healthy(self, name: str, *words: str) -> int | None:
        """Run a command without the fault; its exit code, or None if it did not end."""
        with (self.io / name).open("ab") as out:
            done = subprocess.Popen(
                words, cwd=self.workspace, env=self.env, stdin=subprocess.DEVNULL, stdout=out,
                stderr=out,
            )  # fmt: skip
            try:
                return done.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                self.verdict.late(f"{' '.join(words[:3])}: {self.text(name)[-500:]}")
                return None

    # What is seen.

    def agents(self) -> list[int]:
        return processes.agents_below(os.getpid(), self.agent.sign)

    def hosts(self) -> list[int]:
        found: list[int] = []
        for file in self.corral_home.glob("hosts/**/pid"):
            try:
                found.append(int(file.read_text()))
            except (OSError, ValueError):
                continue
        running = processes.descendants(os.getpid())
        return [pid for pid in found if pid in running]

    def text(self, name: str) -> str:
        try:
            return (self.io / name).read_text("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def is_done(self, work: str) -> bool:
        """Whether the agent's work is on the disk."""
        try:
            return (self.workspace / work).read_text() == "written\n"
        except OSError:
            return False

    def claims(self) -> list[dict[str, object]]:
        """What a Python program of a case reported."""
        data = b""
        while part := os.read(self._claims_fd, 65536):
            data += part
        os.close(self._claims_fd)
        return [json.loads(line) for line in data.splitlines()]
