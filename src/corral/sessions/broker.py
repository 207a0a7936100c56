"""Permission requests: the policy answers, or a person does, or it is denied.

A request to read or write is judged by its paths too, after links are resolved and at the moment
the answer is given:

- A write outside the workspace and the writable folders, of a protected name
  (``corral.protected_paths``), or of files that the request does not name, is denied. Nobody is
  asked: the policy has no word that would allow it.
- A read outside is what the policy says of commands: who may run commands may read anywhere.
- An unlimited policy has no workspace. Under ``native`` a person may allow what is outside.

Questions are put one at a time: one answer must not approve two things. Which
option of an agent's list says what was decided is the wire's business
(``acp_commands.Ask.option``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TypeAlias, get_args

import msgspec

from corral.events import Decider, Decision, PermissionRequest
from corral.io.path_guard import PathGuard
from corral.options import PermissionMode, Run
from corral.policy import CAPABILITY_OF, Action, Policy, Ruling, decide

Asker: TypeAlias = Callable[[PermissionRequest], Awaitable[Decision] | Decision]
"""Whoever answers questions: a person at a terminal, a page, a callback."""

_DECISIONS: tuple[str, ...] = get_args(Decision)


class Answer(msgspec.Struct, frozen=True):
    decision: Decision
    by: Decider
    rule: str


class Broker:
    def __init__(
        self,
        policy: Policy,
        ask: Asker | None = None,
        timeout: float = 300.0,
        mode: PermissionMode = "prompt",
        *,
        guard: PathGuard | None = None,
    ) -> None:
        """``timeout``: seconds a question may stay unanswered before it is denied. ``guard``
        judges the paths of requests; None where the caller does so itself."""
        self._guard = None if policy.is_unlimited else guard
        self._mode = mode
        self._policy = policy
        self._ask = ask
        self._timeout = timeout
        self._turn = asyncio.Lock()

    @property
    def is_unlimited(self) -> bool:
        """Whether the policy knows no workspace."""
        return self._policy.is_unlimited

    def at_once(self, action: Action, paths: Collection[str] | None = None) -> Answer | None:
        """The answer where nobody need be asked; None where a person decides. ``paths`` are all
        that the request names; None for a request that is not about files."""
        ruling = decide(self._policy, action)
        if ruling.verdict != "deny" and paths is not None:
            ruling = self._path_ruling(action, paths) or ruling
        if ruling.verdict == "allow":
            return Answer("allow_once", "policy", ruling.rule)
        if ruling.verdict == "ask" and self._mode != "prompt":
            told: Decision = "allow_once" if self._mode == "auto" else "deny"
            return Answer(told, "policy", f"{ruling.rule}, permission_mode={self._mode}")
        if ruling.verdict == "deny" or self._ask is None:
            nobody = "" if ruling.verdict == "deny" else ", and nobody to ask"
            return Answer("deny", "policy", ruling.rule + nobody)
        return None

    def confirmed(self, answer: Answer, action: Action, paths: Collection[str]) -> Answer:
        """A person's answer, unless what the request names has come to be denied meanwhile."""
        if not answer.decision.startswith("allow"):
            return answer
        ruling = self._path_ruling(action, paths)
        if ruling is not None and ruling.verdict == "deny":
            return Answer("deny", "policy", ruling.rule)
        return answer

    def _path_ruling(self, action: Action, paths: Collection[str]) -> Ruling | None:
        """What the paths of a request say, where they do not allow it."""
        capability = CAPABILITY_OF[action.kind]
        if self._guard is None or capability not in ("read", "write"):
            return None
        refusal = self._guard.refusal(paths, "write" if capability == "write" else "read")
        if capability == "write" and not paths:
            refusal = "the request does not name the files it writes"
        if refusal is None:
            return None
        if self._policy.mode == "native" and self._mode == "prompt":
            return Ruling("ask", refusal)
        if capability == "read" and self._policy.allow_tools is None:
            shell = self._policy.verdict("shell")
            return None if shell == "allow" else Ruling(shell, f"{refusal}, shell={shell}")
        return Ruling("deny", refusal)

    async def put(self, request: PermissionRequest) -> Answer:
        """Ask, and wait for the answer. A question that fails, or takes too long, is denied."""
        if self._ask is None:
            return Answer("deny", "policy", "nobody to ask")
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout):
                    told = self._ask(request)
                    decision = await told if isinstance(told, Awaitable) else told
            except TimeoutError:
                return Answer("deny", "timeout", f"no answer in {self._timeout:g} s")
            except Exception as error:
                return Answer("deny", "person", f"the question failed: {error}")
        if decision not in _DECISIONS:
            return Answer("deny", "person", f"not an answer: {decision!r}")
        return Answer(decision, "person", "asked")


def guard_of(run: Run, cwd: str) -> PathGuard:
    """The folders of a session."""
    protects = not run.policy.is_unlimited
    return PathGuard(cwd, run.include_directories, run.policy.writable, protects=protects)
