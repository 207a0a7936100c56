"""Permission requests: the policy answers, or a person does, or it is denied.

Questions are put one at a time: one answer must not approve two things. Which
option of an agent's list says what was decided is the wire's business
(``acp_commands.Ask.option``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias, get_args

import msgspec

from corral.events import Decider, Decision, PermissionRequest
from corral.options import PermissionMode
from corral.policy import Action, Policy, decide

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
    ) -> None:
        """``timeout``: seconds a question may stay unanswered before it is denied."""
        self._mode = mode
        self._policy = policy
        self._ask = ask
        self._timeout = timeout
        self._turn = asyncio.Lock()

    @property
    def is_unlimited(self) -> bool:
        """Whether the policy knows no workspace."""
        return self._policy.is_unlimited

    def at_once(self, action: Action) -> Answer | None:
        """The answer where nobody need be asked; None where a person decides."""
        ruling = decide(self._policy, action)
        if ruling.verdict == "allow":
            return Answer("allow_once", "policy", ruling.rule)
        if ruling.verdict == "ask" and self._mode != "prompt":
            told: Decision = "allow_once" if self._mode == "auto" else "deny"
            return Answer(told, "policy", f"{ruling.rule}, permission_mode={self._mode}")
        if ruling.verdict == "deny" or self._ask is None:
            nobody = "" if ruling.verdict == "deny" else ", and nobody to ask"
            return Answer("deny", "policy", ruling.rule + nobody)
        return None

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
