"""A function of the result, as a check."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import msgspec

from corral._system.threads import in_own_thread
from corral._verification.check import CheckContext
from corral.errors import ConfigError
from corral.receipt import CheckKind, Evidence
from corral.result import Result
from corral.values import JsonObject

CheckResult: TypeAlias = str | bool | None
"""None or True: done. A text: what is wrong. False: something is."""
ResultFunction: TypeAlias = Callable[[Result], CheckResult | Awaitable[CheckResult]]
NO_REASON = "the check of your work did not pass"


class FunctionCheck(msgspec.Struct, frozen=True):
    """A function of the ``Result``, sync or async."""

    function: ResultFunction

    def __repr__(self) -> str:
        return self.name

    @property
    def kind(self) -> CheckKind:
        return "function"

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def reads_files(self) -> bool:
        return False

    def describe(self) -> JsonObject:
        return {}

    async def run(self, context: CheckContext) -> Evidence:
        """Raises what the function raises."""
        function, result = self.function, context.result
        if result is None:
            reason = "a Python function is known only to the run itself"
            return Evidence(kind="function", name=self.name, outcome="missing", reason=reason)
        verdict: object
        if inspect.iscoroutinefunction(function):
            verdict = await function(result)
        else:
            # A check that blocks must not stop the loop: the agent's tools are served there.
            verdict = await in_own_thread(partial(function, result))
            if inspect.isawaitable(verdict):
                verdict = await verdict
        complaint = read_verdict(verdict, self.name)
        return Evidence(
            kind="function",
            name=self.name,
            outcome="passed" if complaint is None else "failed",
            reason=complaint or "",
        )


def read_verdict(verdict: object, name: str) -> str | None:
    """What is wrong; None if the work is done. Raises ``ConfigError`` for what a check cannot
    return."""
    match verdict:
        case None | True:
            return None
        case str():
            # A command can write anything: no prompt may have a zero byte or a lone surrogate.
            text = verdict.replace("\0", "").encode("utf-8", "replace").decode().strip()
            return text or NO_REASON
        case False:
            return NO_REASON
        case _:
            raise ConfigError(
                f"the check {name} returned a {type(verdict).__name__}",
                hint="Return None or True if done, a text that says what is wrong, or False.",
            )
