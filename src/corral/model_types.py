"""What is asked of a model and what comes back: request, response, stream events."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from corral.events import Json
from corral.messages import Message, ToolCall
from corral.values import Cost, Effort, Usage

Reason = Literal["stop", "length", "tool_calls", "content_filter", "error", "other"]


class ToolSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function as the model is told of it."""

    name: str
    description: str = ""
    parameters: dict[str, Json] = {}
    """A JSON Schema of an object."""


class ToolNamed(msgspec.Struct, frozen=True):
    """The model must call this one."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | ToolNamed


class ResponseFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """``json`` is any JSON; ``json_schema`` is JSON of this schema."""

    type: Literal["text", "json", "json_schema"] = "text"
    schema: dict[str, Json] = {}
    name: str = "result"


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a model. ``model`` reads ``provider:name``."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice | None = None
    response_format: ResponseFormat | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    reasoning_effort: Effort | None = None
    metadata: dict[str, str] = {}
    provider_options: dict[str, dict[str, Json]] = {}
    """Under a provider's name: what is merged into its body as it is. ``headers`` in it are
    sent as headers."""


class FinishReason(msgspec.Struct, frozen=True, omit_defaults=True):
    reason: Reason
    raw: str | None = None
    """The vendor's own word."""


class RateLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the answer's headers said is left."""

    requests_limit: int | None = None
    requests_remaining: int | None = None
    requests_reset: str | None = None
    tokens_limit: int | None = None
    tokens_remaining: int | None = None
    tokens_reset: str | None = None


class Response(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer, whole. A streamed answer and a completed one are equal, but for ``raw``."""

    id: str
    model: str
    """The model that really answered."""
    provider: str
    message: Message
    finish_reason: FinishReason
    usage: Usage = Usage()
    cost: Cost = Cost()
    warnings: tuple[str, ...] = ()
    """What of the request the vendor cannot take, and was left out."""
    rate_limit: RateLimit | None = None
    raw: Json = None
    """The vendor's own answer, where it came whole."""

    @property
    def text(self) -> str:
        return self.message.text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.message.tool_calls

    @property
    def reasoning(self) -> str:
        return self.message.reasoning


class _Event(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True, gc=False):
    """What all stream events share. ``gc=False``: they hold no cycles."""


class Start(_Event, frozen=True, tag="start"):
    id: str = ""
    model: str = ""
    provider: str = ""


class TextStart(_Event, frozen=True, tag="text_start"):
    part: int


class TextDelta(_Event, frozen=True, tag="text_delta"):
    text: str
    part: int = 0


class TextEnd(_Event, frozen=True, tag="text_end"):
    part: int


class ThinkingStart(_Event, frozen=True, tag="thinking_start"):
    part: int


class ThinkingDelta(_Event, frozen=True, tag="thinking_delta"):
    text: str
    part: int = 0


class ThinkingEnd(_Event, frozen=True, tag="thinking_end"):
    part: int


class ToolCallStart(_Event, frozen=True, tag="tool_call_start"):
    part: int
    id: str
    name: str


class ToolCallDelta(_Event, frozen=True, tag="tool_call_delta"):
    """A piece of the arguments' JSON."""

    part: int
    arguments: str


class ToolCallEnd(_Event, frozen=True, tag="tool_call_end"):
    part: int
    call: ToolCall


class ToolDone(_Event, frozen=True, tag="tool_result"):
    """A tool of the caller's was run between two answers."""

    call_id: str
    name: str
    content: Json
    is_error: bool = False


class StepFinish(_Event, frozen=True, tag="step_finish"):
    """One answer of several is complete; its tools run now."""

    step: int
    response: Response


class Finish(_Event, frozen=True, tag="finish"):
    """The last event of a stream that came to its end."""

    finish_reason: FinishReason
    usage: Usage
    response: Response


class Failed(_Event, frozen=True, tag="error"):
    """The vendor reported an error inside the stream; it is raised right after."""

    code: str
    message: str


class ProviderEvent(_Event, frozen=True, tag="provider_event"):
    """Something of one vendor only, as it came."""

    name: str
    data: Json = None


StreamEvent: TypeAlias = (
    Start
    | TextStart
    | TextDelta
    | TextEnd
    | ThinkingStart
    | ThinkingDelta
    | ThinkingEnd
    | ToolCallStart
    | ToolCallDelta
    | ToolCallEnd
    | ToolDone
    | StepFinish
    | Finish
    | Failed
    | ProviderEvent
)
