"""What a running corral process says about itself: the format of its file and of its socket."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from corral.core.spending import BudgetState, Raise
from corral.errors import ConfigError
from corral.events import Decision, QuestionField
from corral.values import Json

VERSION = 1

Kind = Literal["session", "pipeline", "batch"]
State = Literal["running", "waiting_permission", "waiting_person", "rate_limited", "paused", "idle"]
Program = Literal["run", "session", "batch", "pipeline", "worker", "warm", "agent_host", "python"]
Code = Literal[
    "not_live", "unknown_request", "answered", "refused", "busy", "token", "pipeline", "several"
]


class Pending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that waits for a person."""

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


class LiveRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run in progress."""

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
    """A process with its runs: the content of its file."""

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


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    """Why a request was not carried out."""

    code: Code
    message: str
    hint: str | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the process answers."""

    problem: Problem | None = None
    process: LiveProcess | None = None
    pending: tuple[Pending, ...] = ()


class LiveError(ConfigError):
    """A running process could not be reached, or refused what was asked."""

    code: ClassVar[str] = "live"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message, hint=problem.hint)
        self.problem = problem
        """What went wrong; ``problem.code`` is stable."""
