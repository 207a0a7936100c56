"""What the doors return: one answer or several, with the tools that ran in between."""

from __future__ import annotations

from typing import Any

import msgspec

from corral.messages import Message, ToolCall, ToolResult
from corral.model_types import FinishReason, Response
from corral.values import Cost, Usage


class Step(msgspec.Struct, frozen=True):
    """One answer, and what its tools returned."""

    response: Response
    results: tuple[ToolResult, ...] = ()


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """The last answer, and what all of them together took."""

    steps: tuple[Step, ...]
    messages: tuple[Message, ...]
    """The whole conversation, to go on with."""
    object: Any = None
    """Of ``generate_object``: the typed value."""

    @property
    def response(self) -> Response:
        return self.steps[-1].response

    @property
    def text(self) -> str:
        return self.response.text

    @property
    def reasoning(self) -> str:
        return self.response.reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Of the last answer: those that were not run."""
        return () if self.steps[-1].results else self.response.tool_calls

    @property
    def finish_reason(self) -> FinishReason:
        return self.response.finish_reason

    @property
    def usage(self) -> Usage:
        whole = Usage()
        for step in self.steps:
            whole = whole + step.response.usage
        return whole

    @property
    def cost(self) -> Cost:
        """Known only where it is known of every step."""
        known = [step.response.cost.usd for step in self.steps]
        if any(usd is None for usd in known):
            return Cost()
        return Cost(usd=sum(usd for usd in known if usd is not None), source="computed")

    @property
    def warnings(self) -> tuple[str, ...]:
        said = (warning for step in self.steps for warning in step.response.warnings)
        return tuple(dict.fromkeys(said))
