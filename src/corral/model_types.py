"""The types of a model call: request, response, stream events."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import msgspec

from corral.messages import Message, ToolCall
from corral.values import Cost, Effort, Json, Usage, decode_or_none

Reason = Literal["stop", "length", "tool_calls", "content_filter", "error", "other"]


class ToolSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of a tool that is sent to the model.

    ::

        spec = models.ToolSpec("weather", "The weather of a city", {"type": "object"})
        answer = await models.generate("gemini:x", "How is the weather?", tools=[spec])
        print(answer.tool_calls)
    """

    name: str
    description: str = ""
    parameters: dict[str, Json] = {}
    """A JSON Schema with type ``object``."""


class ToolNamed(msgspec.Struct, frozen=True):
    """The model must call this tool.

    ::

        choice = models.ToolNamed("weather")
        answer = await models.generate("gemini:x", "Hello", tools=[weather], tool_choice=choice)
    """

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | ToolNamed


class ResponseFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """``json`` is any JSON; ``json_schema`` is JSON that fits ``schema``.

    ::

        form = models.ResponseFormat("json")
        answer = await models.generate("gemini:x", "Name a color as JSON", response_format=form)
    """

    type: Literal["text", "json", "json_schema"] = "text"
    schema: dict[str, Json] = {}
    name: str = "result"


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One call of a model. ``model`` is ``provider:name``.

    ::

        request = models.Request(
            model="gemini:gemini-2.5-flash", messages=(models.Message.user("Say hello"),)
        )
        response = await client.complete(request)
    """

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
    """Provider name → fields that are merged into its request body. ``headers`` among them are
    sent as HTTP headers."""


class FinishReason(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why a response ended.

    ::

        answer = await models.generate("gemini:gemini-2.5-flash", "Say hello")
        print(answer.finish_reason.reason, answer.finish_reason.raw)
    """

    reason: Reason
    raw: str | None = None
    """The vendor's own name for it."""


class RateLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rate limits from the headers of the response.

    ::

        answer = await models.generate("gemini:gemini-2.5-flash", "Say hello")
        if (limit := answer.response.rate_limit) is not None:
            print(limit.requests_remaining, limit.tokens_remaining)
    """

    requests_limit: int | None = None
    requests_remaining: int | None = None
    requests_reset: str | None = None
    tokens_limit: int | None = None
    tokens_remaining: int | None = None
    tokens_reset: str | None = None


class Response(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One complete response. It is the same with and without streaming, except for ``body``.

    ::

        answer = await models.generate("gemini:gemini-2.5-flash", "Say hello")
        print(answer.response.id, answer.response.model, answer.response.usage)
    """

    id: str
    model: str
    """The model that answered, as the vendor reports it."""
    provider: str
    message: Message
    finish_reason: FinishReason
    usage: Usage = Usage()
    cost: Cost = Cost()
    warnings: tuple[str, ...] = ()
    """What the vendor does not support and was left out of the request."""
    rate_limit: RateLimit | None = None
    body: bytes = b""
    """The vendor's own response as it was sent; empty if it was streamed."""

    @property
    def raw(self) -> Json:
        """The vendor's own response, decoded at each use; None if it was streamed."""
        return decode_or_none(self.body)

    @property
    def text(self) -> str:
        return self.message.text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.message.tool_calls

    @property
    def reasoning(self) -> str:
        return self.message.reasoning


class _ModelEvent(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True, gc=False):
    """The base of all stream events. ``gc=False``: they contain no cycles."""


class Start(_ModelEvent, frozen=True, tag="start"):
    """The first event of a response.

    ::

        async for event in models.stream("gemini:gemini-2.5-flash", "Say hello"):
            if event.type == "start":
                print(event.provider, event.model)
    """

    type: ClassVar[Literal["start"]] = "start"
    id: str = ""
    model: str = ""
    provider: str = ""


class TextStart(_ModelEvent, frozen=True, tag="text_start"):
    """A text part starts.

    ::

        async for event in models.stream("gemini:gemini-2.5-flash", "Say hello"):
            if event.type == "text_start":
                print("text", event.part)
    """

    type: ClassVar[Literal["text_start"]] = "text_start"
    part: int


class TextDelta(_ModelEvent, frozen=True, tag="text_delta"):
    """A piece of text."""

    type: ClassVar[Literal["text_delta"]] = "text_delta"
    text: str
    part: int = 0


class TextEnd(_ModelEvent, frozen=True, tag="text_end"):
    """A text part is complete.

    ::

        async for event in models.stream("gemini:gemini-2.5-flash", "Say hello"):
            if event.type == "text_end":
                print()
    """

    type: ClassVar[Literal["text_end"]] = "text_end"
    part: int


class ThinkingStart(_ModelEvent, frozen=True, tag="thinking_start"):
    """A part of thinking starts.

    ::

        async for event in models.stream("gemini:gemini-2.5-flash", "Say hello"):
            if event.type == "thinking_start":
                print("thinking", event.part)
    """

    type: ClassVar[Literal["thinking_start"]] = "thinking_start"
    part: int


class ThinkingDelta(_ModelEvent, frozen=True, tag="thinking_delta"):
    """A piece of thinking.

    ::

        async for event in models.stream("gemini:gemini-2.5-flash", "Say hello"):
            if event.type == "thinking_delta":
                print(event.text, end="")
    """

    type: ClassVar[Literal["thinking_delta"]] = "thinking_delta"
    text: str
    part: int = 0


class ThinkingEnd(_ModelEvent, frozen=True, tag="thinking_end"):
    """A part of thinking is complete.

    ::

        async for event in models.stream("gemini:gemini-2.5-flash", "Say hello"):
            if event.type == "thinking_end":
                print()
    """

    type: ClassVar[Literal["thinking_end"]] = "thinking_end"
    part: int


class ToolCallStart(_ModelEvent, frozen=True, tag="tool_call_start"):
    """A tool call starts. Its arguments follow in pieces.

    ::

        async for event in models.stream("gemini:gemini-2.5-flash", "Say hello"):
            if event.type == "tool_call_start":
                print(event.id, event.name)
    """

    type: ClassVar[Literal["tool_call_start"]] = "tool_call_start"
    part: int
    id: str
    name: str


class ToolCallDelta(_ModelEvent, frozen=True, tag="tool_call_delta"):
    """A piece of the arguments' JSON.

    ::

        async for event in models.stream("gemini:gemini-2.5-flash", "Say hello"):
            if event.type == "tool_call_delta":
                print(event.arguments, end="")
    """

    type: ClassVar[Literal["tool_call_delta"]] = "tool_call_delta"
    part: int
    arguments: str


class ToolCallEnd(_ModelEvent, frozen=True, tag="tool_call_end"):
    """A tool call is complete.

    ::

        async for event in models.stream("gemini:gemini-2.5-flash", "Say hello"):
            if event.type == "tool_call_end":
                print(event.call.name, event.call.arguments)
    """

    type: ClassVar[Literal["tool_call_end"]] = "tool_call_end"
    part: int
    call: ToolCall


class ToolDone(_ModelEvent, frozen=True, tag="tool_result"):
    """One of the caller's tools ran between two responses.

    ::

        async for event in models.stream("gemini:gemini-2.5-flash", "Say hello"):
            if event.type == "tool_result":
                print(event.name, event.content, event.is_error)
    """

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    call_id: str
    name: str
    content: Json
    is_error: bool = False


class StepFinish(_ModelEvent, frozen=True, tag="step_finish"):
    """One of several responses is complete; its tools run next.

    ::

        async for event in models.stream("gemini:gemini-2.5-flash", "Say hello"):
            if event.type == "step_finish":
                print(event.step, event.response.usage)
    """

    type: ClassVar[Literal["step_finish"]] = "step_finish"
    step: int
    response: Response


class Finish(_ModelEvent, frozen=True, tag="finish"):
    """The last event of a complete stream.

    ::

        async for event in models.stream("gemini:gemini-2.5-flash", "Say hello"):
            if event.type == "finish":
                print(event.finish_reason.reason, event.usage)
    """

    type: ClassVar[Literal["finish"]] = "finish"
    finish_reason: FinishReason
    usage: Usage
    response: Response


class Failed(_ModelEvent, frozen=True, tag="error"):
    """The vendor reported an error inside the stream. It is raised after this event.

    ::

        async for event in models.stream("gemini:gemini-2.5-flash", "Say hello"):
            if event.type == "error":
                print(event.code, event.message)
    """

    type: ClassVar[Literal["error"]] = "error"
    code: str
    message: str


class ProviderEvent(_ModelEvent, frozen=True, tag="provider_event"):
    """An event that only one vendor has, unchanged.

    ::

        async for event in models.stream("gemini:gemini-2.5-flash", "Say hello"):
            if event.type == "provider_event":
                print(event.name, event.data)
    """

    type: ClassVar[Literal["provider_event"]] = "provider_event"
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
