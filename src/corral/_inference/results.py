"""The results of ``generate``: one or more responses, and the tool results in between.
Of several models, if the first is not available, the next one answers (``ModelChoice``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Generic

import msgspec

from corral._core.display import Card, Displayed, count, spent
from corral._models.registry import canonical
from corral.errors import (
    AccessDenied,
    AuthenticationFailed,
    ConfigError,
    CorralError,
    ModelNotFound,
    QuotaSpent,
)
from corral.events import Error
from corral.messages import Message, ToolCall, ToolResult
from corral.model_types import FinishReason, Response
from corral.values import Cost, T_co, Usage


class Step(msgspec.Struct, frozen=True, gc=False):
    """One response, and the results of its tool calls.

    ::

        for step in answer.steps:
            print(step.response.usage, step.results)
    """

    response: Response
    results: tuple[ToolResult, ...] = ()


class Generation(Displayed, msgspec.Struct, Generic[T_co], frozen=True, kw_only=True):
    """The last response, with the usage and cost of all. ``generate_object`` with a schema
    ``Review`` returns a ``Generation[Review]``, ``generate`` a ``Generation[None]``.

    ::

        answer = await models.generate("gemini:gemini-2.5-flash", "Say hello")
        print(answer.text, answer.usage.total, answer.cost.usd)
        conversation = [*answer.messages, models.Message.user("And in French?")]
        more = await models.generate("gemini:gemini-2.5-flash", messages=conversation)
    """

    steps: tuple[Step, ...]
    messages: tuple[Message, ...]
    """The complete conversation, to continue it."""
    _output: Any = msgspec.field(default=None, name="output")
    fallbacks: tuple[Fallback, ...] = ()
    """The models that failed before the one that answered."""

    def _card(self) -> Card:
        """What a Python prompt and a notebook show of the answer."""
        calls = count(len(self.tool_calls), "tool call")
        fallbacks = count(len(self.fallbacks), "fallback")
        facts = (self.response.model, *calls, *fallbacks, *spent(self.usage, self.cost))
        return Card(f"Generation {self.finish_reason.reason}", facts, self.text)

    @property
    def output(self) -> T_co:
        """The typed value, from ``generate_object``; else None."""
        value: T_co = self._output
        return value

    @property
    def response(self) -> Response:
        return self.steps[-1].response

    @property
    def text(self) -> str:
        return self.steps[-1].response.message.text

    @property
    def reasoning(self) -> str:
        return self.response.reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the last response that were not run."""
        return () if self.steps[-1].results else self.response.tool_calls

    @property
    def finish_reason(self) -> FinishReason:
        return self.response.finish_reason

    @property
    def usage(self) -> Usage:
        total = Usage()
        for step in self.steps:
            total = total + step.response.usage
        return total

    @property
    def cost(self) -> Cost:
        """The sum, known only if the cost of every step is known."""
        first, *others = (step.response.cost for step in self.steps)
        return sum(others, start=first)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was left out of the request, and which models failed before one answered."""
        warnings = (warning for step in self.steps for warning in step.response.warnings)
        return tuple(dict.fromkeys((*map(str, self.fallbacks), *warnings)))


_log = logging.getLogger("corral.models")

_UNAVAILABLE = (QuotaSpent, ModelNotFound, AuthenticationFailed, AccessDenied)
"""Besides retryable errors: another model can answer, this one cannot."""


class Fallback(msgspec.Struct, frozen=True):
    """A model that failed, so that the next one was called.

    ::

        answer = await models.generate([first, second], "Say hello")
        for failed in answer.fallbacks:
            print(failed.model, failed.error)
    """

    model: str
    error: Error

    def __str__(self) -> str:
        return f"{self.model} failed ({self.error.code}): {self.error.message}"


class ModelChoice:
    """The model that is called now, those that may follow, and those that failed."""

    __slots__ = ("all", "failed")

    def __init__(self, given: str | Sequence[str]) -> None:
        """Raises ``ConfigError`` if there is no model."""
        self.all: tuple[str] | tuple[str, ...] = (
            (canonical(given),) if isinstance(given, str) else tuple(map(canonical, given))
        )
        if not self.all:
            raise ConfigError("the list of models is empty")
        self.failed: tuple[Fallback, ...] = ()

    @property
    def current(self) -> str:
        return self.all[len(self.failed)]

    def fall_back(self, error: CorralError) -> bool:
        """Choose the next model. False if there is none, or if the error is not one of
        availability: a refused or invalid request is the same for every model."""
        if not error.retryable and not isinstance(error, _UNAVAILABLE):
            return False
        if len(self.failed) + 1 == len(self.all):
            for each in self.failed:
                error.add_note(f"before: {each}")
            return False
        self.failed = (*self.failed, Fallback(self.current, error.event()))
        _log.warning("%s; now calling %s", self.failed[-1], self.current)
        return True
