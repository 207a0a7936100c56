"""What a running corral process says about itself: the format of its file and of its socket.

Its file is ``CORRAL_HOME/live/PID-START.json``.

A file is believed only if it belongs to this user and its process still runs: the process with
that pid must have the same start time. Files of processes that have died are removed here, with
their sockets. Files of another container are left alone: their pids mean nothing here.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import msgspec

from corral._core.spending import BudgetState, Raise
from corral._system import fs, paths, platform
from corral.errors import ConfigError
from corral.events import Decision, QuestionField
from corral.values import Json, decode_as

VERSION = 1

Kind = Literal["session", "pipeline", "batch"]
State = Literal["running", "waiting_permission", "waiting_person", "rate_limited", "paused", "idle"]
Program = Literal["run", "session", "batch", "pipeline", "worker", "warm", "agent_host", "python"]
Code = Literal[
    "not_live", "unknown_request", "answered", "refused", "busy", "token", "pipeline", "several"
]


class Pending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that waits for a person.

    ::

        for request in corral.live.pending():
            print(request.run, request.title, request.deadline)
    """

    request_id: str
    """The agent's id. A later process of the session may use it again."""
    key: str = ""
    """Identifies this request for ever."""
    kind: Literal["permission", "question"] = "permission"
    title: str = ""
    """What is asked, in one line, without secrets."""
    tool_kind: str = ""
    """The kind of the tool call: ``execute``, ``edit`` …"""
    since: float = 0.0
    deadline: float | None = None
    """When the request is denied if no one has answered."""
    input: Json = None
    """The arguments of the call, without secrets. Only the socket has them, not the file."""
    fields: tuple[QuestionField, ...] = ()
    """What a question of an agent asks for, without secrets. Only the socket has them."""
    run: str = ""
    """The id of the run that asks. Set by ``corral.live.pending``."""


class PartOf(NamedTuple):
    """Of which run something is a part."""

    run: str = ""
    place: str = ""
    """Where in the run: the visit of a node, a step, a task, an attempt."""
    started_in: str = ""
    """The folder or repository in which a person has started the run."""


NO_PART = PartOf()
PART_OF: ContextVar[PartOf] = ContextVar("PART_OF", default=NO_PART)
"""The run that the current task works for."""


class LiveRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run in progress.

    ::

        waiting = [run.id for each in corral.live.processes() for run in each.runs if run.pending]
    """

    kind: Kind
    id: str
    title: str = ""
    agent: str = ""
    model: str | None = None
    cwd: str = ""
    label: str | None = None
    db: str | None = None
    """The database of a pipeline or batch, without its password."""
    folder: str = ""
    """The run folder of a pipeline in memory."""
    recorded: bool = True
    """Whether a transcript is written."""
    part_of: str = ""
    """The pipeline run or batch that a session works for: it is shown there."""
    state: State = "running"
    since: float = 0.0
    """When the run, or its current turn, started."""
    until: float | None = None
    """When a limit ends, in the states ``rate_limited`` and ``paused``."""
    can_steer: bool = False
    """Whether its agent takes a text while it works."""
    budgets: tuple[BudgetState, ...] = ()
    """Its budget, then those that this one is part of."""
    pending: tuple[Pending, ...] = ()


class LiveProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process with its runs: the content of its file.

    ::

        for process in corral.live.processes():
            print(process.pid, process.cwd, [run.id for run in process.runs])
    """

    version: int = VERSION
    pid: int
    start_time: str
    """When the process started, as the system counts it: with the pid it identifies the process."""
    boot: str
    pid_space: str
    program: Program
    argv: tuple[str, ...] = ()
    """The command line, shortened and without secrets."""
    cwd: str = ""
    since: float = 0.0
    """When the file was first written."""
    socket: str | None = None
    """Where the process answers; None if it cannot."""
    runs: tuple[LiveRun, ...] = ()


class LiveRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client sends."""

    do: Literal["status", "pending", "answer", "cancel", "steer", "budget"]
    run: str = ""
    request_id: str = ""
    key: str = ""
    """If it is given, only the request with this key is answered."""
    decision: Decision | None = None
    text: str = ""
    answers: dict[str, Json] | None = None
    """The answers to a question, by the keys of its fields, in place of ``text``."""
    by: str = ""
    """How the answer was given, for the one who comes second."""
    amounts: Raise = Raise()
    """By how much the budget is raised."""


class Problem(msgspec.Struct, frozen=True):
    """Why a request was not carried out.

    ::

        try:
            corral.runs.cancel_sync("last")
        except corral.live.LiveError as error:
            print(error.code, error.hint)
    """

    code: Code
    message: str
    hint: str | None = None


class LiveReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the process answers."""

    problem: Problem | None = None
    process: LiveProcess | None = None
    pending: tuple[Pending, ...] = ()


class LiveError(ConfigError):
    """A running process could not be reached, or refused what was asked.

    ::

        try:
            corral.runs.cancel_sync("last")
        except corral.live.LiveError as error:
            print(error.code, error)
    """

    __module__ = "corral.live"  # tracebacks show the public name

    code: ClassVar[str] = "live"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message, hint=problem.hint)
        self.problem = problem
        """What went wrong; ``problem.code`` is stable."""


LARGEST_FILE = 8 << 20
"""Bytes. A process with 1,000 runs writes about 300 kB."""


def folder() -> Path:
    """Where the files are."""
    return paths.home() / "live"


def file_of(process: LiveProcess) -> Path:
    """The file of a process."""
    start = "".join(c for c in process.start_time if c.isalnum())
    return folder() / f"{process.pid}-{start}.json"


def socket_of(file: Path) -> Path:
    """The socket of a process, if its path is short enough."""
    return file.with_suffix(".sock")


def processes() -> list[LiveProcess]:
    """The processes that run now and have something to show, the newest first."""
    found: list[LiveProcess] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        for name in fs.list_names(folder()):
            if name.endswith(".json") and not name.startswith("."):
                process = _read(folder() / name)
                if process is not None:
                    found.append(process)
    return sorted(found, key=lambda each: each.since, reverse=True)


def _read(file: Path) -> LiveProcess | None:
    data = fs.read_small(file, LARGEST_FILE) if fs.is_own_file(file) else None
    try:
        process = decode_as(data or b"", LiveProcess)
    except msgspec.MsgspecError:
        return None  # being removed, damaged, or of another version
    if process.version != VERSION:
        return None
    if process.boot == platform.boot_id():
        if process.pid_space != platform.pid_namespace():
            return None
        running = platform.get_process(process.pid)
        if running is not None and running.alive and running.start_time == process.start_time:
            return process
    # Remove what a dead process left.
    with contextlib.suppress(OSError):
        if process.socket is not None and Path(process.socket).name == socket_of(file).name:
            fs.remove_file(process.socket)
    with contextlib.suppress(OSError):
        fs.remove_file(file)
    return None
