"""The spans of ``corral.models``: a ``chat`` for each call of a model, an ``execute_tool`` for each
tool that ran. A call with tools has a span above them, ``invoke_agent corral.models``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from corral._system import clock
from corral._system.clock import random_hex
from corral._system.environment import SecretRedactor, named_secrets, variables
from corral._telemetry import spans, trace_context
from corral._telemetry.sender import sender_for, with_content
from corral._telemetry.spans import Span, Value
from corral._telemetry.trace_context import TraceContext
from corral.errors import CorralError
from corral.messages import Message, Text, Thinking, ToolCall, ToolResult
from corral.model_types import Request, Response
from corral.values import Json

AGENT = "corral.models"


class ModelSpans:
    """Sends the spans of one ``generate`` or ``stream``. ``start`` comes before each request and
    each round of tools."""

    def __init__(self, endpoint: str, *, has_tools: bool) -> None:
        """Raises ``ConfigError``."""
        self._sender = sender_for(endpoint)
        self._parent = trace_context.parent_in()
        self._id = random_hex(8)
        self._top = trace_context.of_turn(self._id, self._parent) if has_tools else None
        self._first = self._started = clock.now()
        self._count = 0
        self._redactor = SecretRedactor(named_secrets(variables())) if with_content() else None

    def start(self) -> None:
        self._started = clock.now()

    def add_response(self, request: Request, response: Response) -> None:
        self._add_chat(request, response, None)

    def add_failure(self, request: Request, error: CorralError) -> None:
        self._add_chat(request, None, error)

    def add_tools(self, calls: Iterable[ToolCall], results: Iterable[ToolResult]) -> None:
        """The calls ran at the same time: each gets the time of all."""
        for call, result in zip(calls, results, strict=False):
            attributes: dict[str, Value] = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call.name,
                "gen_ai.tool.call.id": call.id,
                "gen_ai.tool.type": "function",
            }
            if self._redactor is not None:
                arguments = msgspec.json.encode(call.arguments).decode()[: spans.MAX_CONTENT]
                attributes["gen_ai.tool.call.arguments"] = self._redactor.clean_text(arguments)
                output = _as_text(result.content)[: spans.MAX_CONTENT]
                attributes["gen_ai.tool.call.result"] = self._redactor.clean_text(output)
            error = "error" if result.is_error else None
            self._send(f"execute_tool {call.name}", attributes, error, error)

    def end(self) -> None:
        """Everything was added. The span above it is sent."""
        top, self._top = self._top, None
        if top is not None:
            parent = None if self._parent is None else self._parent.span_id
            attributes: dict[str, Value] = {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": AGENT,
            }
            self._sender.put(
                [
                    Span(
                        context=top,
                        parent_id=parent,
                        name=f"invoke_agent {AGENT}",
                        start=self._first,
                        end=clock.now(),
                        attributes=attributes,
                    )
                ]
            )

    async def flush(self) -> None:
        """Wait a limited time until the spans are sent."""
        await self._sender.flush_soon()

    def _add_chat(
        self, request: Request, response: Response | None, error: CorralError | None
    ) -> None:
        model = spans.bare_model(request.model) or ""
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": spans.provider_name("", request.model),
            "gen_ai.request.model": model,
        }
        if response is not None:
            reason = response.finish_reason.reason.removesuffix("s")  # tool_call
            attributes |= {
                **({"gen_ai.response.id": response.id} if response.id else {}),
                "gen_ai.response.model": spans.bare_model(response.model) or model,
                "gen_ai.response.finish_reasons": [reason],
                **spans.usage_facts(response.usage),
                **spans.cost_facts(response.cost),
            }
            if self._redactor is not None:
                output = f"[{_message(response.message, reason)}]"
                attributes["gen_ai.output.messages"] = self._redactor.clean_text(output)
        if self._redactor is not None:
            attributes["gen_ai.input.messages"] = self._redactor.clean_text(
                _conversation(request.messages)
            )
        code, text = (None, None) if error is None else (error.code, error.message)
        self._send(f"chat {model}".strip(), attributes, code, text)

    def _send(
        self, name: str, attributes: dict[str, Value], code: str | None, error: str | None
    ) -> None:
        self._count += 1
        trace = self._top or trace_context.of_turn(self._id, self._parent)
        above = self._top or self._parent
        if code is not None:
            attributes["error.type"] = code
        span = Span(
            context=TraceContext(
                trace.trace_id, trace_context.span_id(self._id, name, str(self._count))
            ),
            parent_id=None if above is None else above.span_id,
            name=name,
            start=self._started,
            end=clock.now(),
            attributes=attributes,
            error=error,
        )
        self._sender.put([span])


def _conversation(messages: Sequence[Message]) -> str:
    log = spans.MessageLog()
    for message in messages:
        log.add(_message(message))
    return log.json


def _message(message: Message, finish_reason: str | None = None) -> str:
    """In the form of the conventions. Images and files are left out."""
    parts: list[Json] = []
    for part in message.content:
        match part:
            case Text():
                parts.append(spans.text_part(part.text))
            case Thinking():
                parts.append({"type": "reasoning", "content": part.text[: spans.MAX_CONTENT]})
            case ToolCall():
                call: dict[str, Json] = {"id": part.id, "name": part.name}
                parts.append({"type": "tool_call", **call, "arguments": {**part.arguments}})
            case ToolResult():
                parts.append(spans.result_part(part.call_id, _as_text(part.content)))
            case _:
                pass
    return spans.message(message.role, parts, finish_reason)


def _as_text(content: Json) -> str:
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()
