"""The attempts of a comparison, as data: what one is given, and what is known of it at its end."""

from __future__ import annotations

from typing import Literal

import msgspec

from corral.receipt import VerifyFrom
from corral.values import Usage

PATCH, VERIFIER_LOG, ANSWER = "changes.patch", "verifier.txt", "answer.md"
"""Files in the folder of an attempt."""
TIMEOUT = 600.0
"""Seconds that a verifier may take, if its task has no limit."""

Verdict = Literal["passed", "failed", "missing"]


class Verifier(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the attempts at a task are verified. All paths are absolute."""

    command: str = ""
    tests: str = ""
    """A file or folder that is copied into the workspace first."""
    target: str = ""
    """Where in the workspace ``tests`` are copied to."""
    digest: str = ""
    """Of ``tests`` when the comparison was started."""
    is_confined: bool = False
    """Whether it runs in a sandbox only: the task may be a stranger's."""
    timeout: float = TIMEOUT
    verify_from: VerifyFrom = "before"
    verify_with: tuple[str, ...] = ()
    work: tuple[str, ...] = ()
    judge_files: tuple[str, ...] = ()
    put_back: bool = False
    scenarios: str = ""
    """A folder of held-out scenarios."""
    threshold: float = 0.9
    judge: str = ""

    @property
    def is_given(self) -> bool:
        return bool(self.command or self.scenarios)


class AttemptTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a batch's task that is an attempt."""

    id: str
    task: str
    agent: str
    """As it was named."""
    backend: str
    """The agent without the model."""
    model: str = ""
    repeat: int = 1
    prompt: str
    folder: str
    """Where the files of the attempt are stored."""
    repository: str = ""
    """The repository of its worktree; empty: it works in the folder of the comparison."""
    commit: str = ""
    inside: str = ""
    """The working directory in the worktree."""
    timeout: float | None = None
    verifier: Verifier = Verifier()


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of an attempt beside the fields of a ``BatchResult``."""

    task: str
    agent: str
    repeat: int
    verdict: Verdict
    reason: str = ""
    status: str = ""
    """Of the agent's turn."""
    exit_code: int | None = None
    """Of the verifier."""
    agent_version: str = ""
    session: str = ""
    """The id of its stored session."""
    sandbox: str = ""
    usage: Usage = Usage()
    started: float = 0.0
    """Seconds since the epoch."""
    agent_seconds: float = 0.0
    verifier_seconds: float = 0.0
    commit: str = ""
    """Its work; empty if it has changed nothing."""
    base: str = ""
    repository: str = ""
    folder: str = ""
