"""What may decide about the model calls of an agent: a gate for calls, a judge of tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from corral.metering.calls import CallMeter, MeteredCall, ModelRequest

if TYPE_CHECKING:
    from corral.models.tool_gate import WireCall


class Ticket(Protocol):
    """The permission for one model call."""

    def may_continue(self, meter: CallMeter) -> bool:
        """Whether more of the response may come."""
        ...

    def settle(self, call: MeteredCall) -> None:
        """The call has ended. Called once."""
        ...


class CallGate(Protocol):
    """Decides whether a model call may be made."""

    async def admit(self, request: ModelRequest) -> Ticket | str:
        """Waits until the call may be made. A text is a refusal, which the agent gets with the
        status 402."""
        ...


class ToolJudge(Protocol):
    """Decides about the tool calls in a model's response before the agent sees them."""

    def refuse_tools(self, names: Sequence[str]) -> str | None:
        """Why a request with these tools, which the vendor itself runs, may not be sent."""
        ...

    async def decide(self, calls: Sequence[WireCall]) -> list[str] | None:
        """None if all calls may be made. Else none of them is: a text for each that the model
        gets as its result. Waits for a person if one is asked."""
        ...

    def fail(self, text: str) -> None:
        """A refusal could not be passed on to the model: the run must end."""
        ...

    def fail_unreadable(self, text: str) -> None:
        """A response has a form in which its tool calls cannot be judged: the run must end."""
        ...
