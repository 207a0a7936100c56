"""A request in the words of OpenAI's Responses API.

Nothing is stored at the vendor (``store: false``): the history is sent each time,
and with it the encrypted thoughts that came with it.
"""

from __future__ import annotations

import re
from typing import cast

import msgspec

from corral.errors import MediaInvalid
from corral.events import Json
from corral.messages import (
    Audio,
    Document,
    Image,
    Message,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from corral.model_types import Request, ResponseFormat, ToolChoice, ToolNamed, ToolSpec
from corral.models.encoding import address_of, instructions, merged, own_options
from corral.models.openai.media import file_of, name_of, url_of
from corral.models.openai.schema import is_strict
from corral.models.spec import Encoded, JsonObject, Provider

PHASES = ("commentary", "final_answer")
"""What the vendor marks a text with, and wants back: dropping it costs quality."""
JSON_WORD = "Answer with a JSON object."
"""Without the word somewhere in the input the API refuses to answer in JSON."""
_REASONS = re.compile(r"(?:^|[/:])(?:o\d|gpt-(?:[5-9]|\d\d)|codex-)")
_NEVER_SAMPLED = re.compile(r"(?:^|[/:])(?:o\d|gpt-5(?![.\d])|codex-)")


def encode(request: Request, provider: Provider, streamed: bool) -> Encoded:
    warnings: list[str] = []
    body: JsonObject = {"model": request.model, "input": _input(request, provider), "store": False}
    if said := instructions(request):
        body["instructions"] = "\n\n".join(said)
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    if request.tool_choice is not None:
        body["tool_choice"] = _choice(request.tool_choice)
    if request.response_format is not None and request.response_format.type != "text":
        body["text"] = {"format": _format(request.response_format)}
    if request.max_tokens is not None:
        body["max_output_tokens"] = request.max_tokens
    if request.metadata:
        body["metadata"] = cast("JsonObject", dict(request.metadata))
    _think(body, request)
    _sample(body, request, warnings)
    if request.stop:
        warnings.append(f"stop is left out: the Responses API of {provider.title} has none")
    if streamed:
        body["stream"] = True
    options, headers = own_options(request, provider)
    return Encoded(
        path="/responses",
        body=merged(body, options),
        headers=headers,
        warnings=tuple(warnings),
    )


def reasons(model: str) -> bool:
    """Whether the name is of a family that thinks. Any other is told so only by its caller."""
    return _REASONS.search(model) is not None and "-chat" not in model


def refuses_sampling(request: Request) -> bool:
    """Known to answer 400 to ``temperature`` and ``top_p``: the first thinkers always, later
    ones while they think. Of what is not known the API decides."""
    if not reasons(request.model):
        return False
    if _NEVER_SAMPLED.search(request.model):
        return True
    return request.reasoning_effort not in (None, "none")


def _think(body: JsonObject, request: Request) -> None:
    effort = request.reasoning_effort
    if effort is not None:
        shown: JsonObject = {} if effort == "none" else {"summary": "auto"}
        body["reasoning"] = {"effort": effort, **shown}
    if effort is not None or reasons(request.model):
        body["include"] = ["reasoning.encrypted_content"]


def _sample(body: JsonObject, request: Request, warnings: list[str]) -> None:
    refused = refuses_sampling(request)
    for name, value in (("temperature", request.temperature), ("top_p", request.top_p)):
        if value is not None and refused:
            warnings.append(f"{name} is left out: {request.model} does not take it")
        elif value is not None:
            body[name] = value


def _tool(tool: ToolSpec) -> JsonObject:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters or {"type": "object", "properties": {}},
        "strict": False,  # left out it would be true, and refuse optional parameters
    }


def _choice(choice: ToolChoice) -> Json:
    return {"type": "function", "name": choice.name} if isinstance(choice, ToolNamed) else choice


def _format(form: ResponseFormat) -> JsonObject:
    if form.type == "json":
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "name": form.name,
        "schema": form.schema,
        "strict": is_strict(form.schema),
    }


def _input(request: Request, provider: Provider) -> list[Json]:
    items: list[Json] = []
    form = request.response_format
    if form is not None and form.type == "json" and not says_json(request):
        items.append({"type": "message", "role": "developer", "content": JSON_WORD})
    for message in request.messages:
        if message.role not in ("system", "developer"):
            items += _items(message, provider)
    return items


def says_json(request: Request) -> bool:
    return any(
        "json" in message.text.lower()
        for message in request.messages
        if message.role in ("user", "assistant")
    )


def _items(message: Message, provider: Provider) -> list[Json]:
    """What of a message is said and shown gathers in one item; all else is an item of its own."""
    own = message.provider in (None, provider.name)
    # The vendor refuses an item by its id where the thoughts before it are missing.
    thought = own and any(_returns(part) for part in message.content)
    items: list[Json] = []
    for part in message.content:
        match part:
            case Text():
                _say(items, message, part, own)
            case Thinking():
                if own and _returns(part):
                    _rethink(items, part)
            case RedactedThinking():
                pass
            case ToolCall():
                made: JsonObject = {
                    "type": "function_call",
                    "call_id": part.id,
                    "name": part.name,
                    "arguments": written(part),
                }
                if thought and part.item_id:
                    made["id"] = part.item_id
                items.append(made)
            case ToolResult():
                items.append(
                    {
                        "type": "function_call_output",
                        "call_id": part.call_id,
                        "output": returned(part),
                    }
                )
            case Image() | Audio() | Document():
                if message.role == "assistant":
                    raise MediaInvalid(
                        f"{provider.title} takes no media that an assistant sent",
                        hint="Put it into a message of the user.",
                    )
                _show(items, "user", _media(part, provider))
    return items


def _say(items: list[Json], message: Message, part: Text, own: bool) -> None:
    if message.role != "assistant":
        _show(items, "user", {"type": "input_text", "text": part.text})
        return
    phase = part.signature if own and part.signature in PHASES else None
    _show(items, "assistant", {"type": "output_text", "text": part.text}, phase)


def _show(items: list[Json], role: str, content: JsonObject, phase: str | None = None) -> None:
    last = cast("JsonObject", items[-1]) if items else {}
    if last.get("role") == role and last.get("phase") == phase:
        cast("list[Json]", last["content"]).append(content)
        return
    entry: JsonObject = {"type": "message", "role": role, "content": [content]}
    if phase is not None:
        entry["phase"] = phase
    items.append(entry)


def _returns(part: object) -> bool:
    """Thoughts go back where there is what only the vendor can read. Others' signatures come
    without the id of an item."""
    return isinstance(part, Thinking) and bool(part.item_id) and part.signature is not None


def _rethink(items: list[Json], part: Thinking) -> None:
    items.append(
        {
            "type": "reasoning",
            "id": part.item_id,
            "summary": [{"type": "summary_text", "text": part.text}] if part.text else [],
            "encrypted_content": part.signature,
        }
    )


def written(call: ToolCall) -> str:
    """The arguments as the model wrote them."""
    return call.raw if call.raw is not None else msgspec.json.encode(call.arguments).decode()


def returned(result: ToolResult) -> str:
    """A tool's result as text; of an error the model is told in words, the API has no field."""
    content = result.content
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    return f"error: {text}" if result.is_error else text


def _media(part: Image | Audio | Document, provider: Provider) -> JsonObject:
    match part:
        case Image():
            return {
                "type": "input_image",
                "image_url": url_of(part, provider),
                "detail": part.detail or "auto",
            }
        case Audio():
            raise MediaInvalid(
                f"the Responses API of {provider.title} takes no audio",
                hint="Its chat-completions API does: openai-chat:gpt-audio.",
            )
        case Document():
            address = address_of(part)
            if address is not None and not address.startswith("data:"):
                return {"type": "input_file", "file_url": url_of(part, provider)}
            media_type, data = file_of(part, provider)
            return {
                "type": "input_file",
                "filename": name_of(part, media_type),
                "file_data": f"data:{media_type};base64,{data}",
            }
