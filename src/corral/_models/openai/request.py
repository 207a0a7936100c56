"""Encodes a request for OpenAI's Responses API.

Nothing is stored at the vendor (``store: false``): the history is sent each time, with the
encrypted reasoning that came with it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from functools import lru_cache

import msgspec

from corral._models.openai.schema import is_strict
from corral._models.spec import (
    Encoded,
    Provider,
    instructions,
    media_bytes,
    media_url,
    vendor_options,
)
from corral.errors import MediaInvalid
from corral.messages import (
    Audio,
    Document,
    Image,
    Media,
    Message,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from corral.model_types import Request, ToolNamed
from corral.values import Json, JsonObject, as_object, deep_merge

PATH = "/responses"
PHASES = ("commentary", "final_answer")
"""Labels of texts that the vendor wants back: dropping them reduces quality."""
JSON_INSTRUCTION = "Answer with a JSON object."
"""The API rejects JSON output unless the word JSON is in the input."""
_REASONS = re.compile(r"(?:^|[/:])(?:o\d|gpt-(?:[5-9]|\d\d)|codex-)")
_NEVER_SAMPLED = re.compile(r"(?:^|[/:])(?:o\d|gpt-5(?![.\d])|codex-)")


def encode(request: Request, provider: Provider, streamed: bool) -> Encoded:
    warnings: list[str] = []
    body: JsonObject = {"model": request.model, "input": _input(request, provider), "store": False}
    if texts := instructions(request):
        body["instructions"] = "\n\n".join(texts)
    _add_settings(body, request, provider, warnings)
    effort = request.reasoning_effort
    if effort is not None:
        shown: JsonObject = {} if effort == "none" else {"summary": "auto"}
        body["reasoning"] = {"effort": effort, **shown}
    if effort is not None or is_reasoning_model(request.model):
        body["include"] = ["reasoning.encrypted_content"]
    if streamed:
        body["stream"] = True
    options, headers = vendor_options(request, provider)
    return Encoded(
        path=PATH, body=deep_merge(body, options), headers=headers, warnings=tuple(warnings)
    )


def _add_settings(
    body: JsonObject, request: Request, provider: Provider, warnings: list[str]
) -> None:
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters or {"type": "object", "properties": {}},
                "strict": False,  # the default is true, which rejects optional parameters
            }
            for tool in request.tools
        ]
    if request.tool_choice is not None:
        choice = request.tool_choice
        body["tool_choice"] = (
            {"type": "function", "name": choice.name} if isinstance(choice, ToolNamed) else choice
        )
    form = request.response_format
    if form is not None and form.type == "json":
        body["text"] = {"format": {"type": "json_object"}}
    elif form is not None and form.type == "json_schema":
        schema: JsonObject = {"type": "json_schema", "name": form.name, "schema": form.schema}
        schema["strict"] = is_strict(form.schema)
        body["text"] = {"format": schema}
    if request.max_tokens is not None:
        body["max_output_tokens"] = request.max_tokens
    if request.metadata:
        body["metadata"] = {**request.metadata}
    add_sampling(body, request, warnings, refused=refuses_sampling(request))
    if request.stop:
        warnings.append(
            f"stop is left out: the Responses API of {provider.title} does not support it"
        )


@lru_cache(100)
def is_reasoning_model(model: str) -> bool:
    """Whether the name is that of a known reasoning model."""
    return _REASONS.search(model) is not None and "-chat" not in model


def refuses_sampling(request: Request) -> bool:
    """Whether the model is known to answer 400 to ``temperature`` and ``top_p``: the first
    reasoning models always do, later ones while they reason."""
    if not is_reasoning_model(request.model):
        return False
    if _NEVER_SAMPLED.search(request.model):
        return True
    return request.reasoning_effort not in (None, "none")


def add_sampling(body: JsonObject, request: Request, warnings: list[str], *, refused: bool) -> None:
    for name, value in (("temperature", request.temperature), ("top_p", request.top_p)):
        if value is not None and refused:
            warnings.append(f"{name} is left out: {request.model} does not accept it")
        elif value is not None:
            body[name] = value


def _input(request: Request, provider: Provider) -> list[Json]:
    items: list[Json] = []
    form = request.response_format
    if form is not None and form.type == "json" and not mentions_json(request):
        items.append({"type": "message", "role": "developer", "content": JSON_INSTRUCTION})
    for message in request.messages:
        if message.role == "user" and len(message.content) == 1 and message.is_only_text:
            content: JsonObject = {"type": "input_text", "text": message.text}
            items.append({"type": "message", "role": "user", "content": [content]})
        elif message.role not in ("system", "developer"):
            items += _encode_message(message, provider)
    return items


def mentions_json(request: Request) -> bool:
    return any(
        "json" in message.text.lower()
        for message in request.messages
        if message.role in ("user", "assistant")
    )


def _encode_message(message: Message, provider: Provider) -> list[Json]:
    """The items of one message. Text and media share one item; everything else is its own."""
    own = message.provider in (None, provider.name)
    # The vendor rejects an item with an id if the reasoning before it is missing.
    thought = own and any(_is_returnable(part) for part in message.content)
    items: list[Json] = []
    for part in message.content:
        match part:
            case Text() if message.role == "assistant":
                phase = part.signature if own and part.signature in PHASES else None
                content: JsonObject = {"type": "output_text", "text": part.text}
                _add_content(items, "assistant", content, phase)
            case Text():
                _add_content(items, "user", {"type": "input_text", "text": part.text})
            case Thinking():
                if own and _is_returnable(part):
                    items.append(
                        {
                            "type": "reasoning",
                            "id": part.item_id,
                            "summary": [{"type": "summary_text", "text": part.text}]
                            if part.text
                            else [],
                            "encrypted_content": part.signature,
                        }
                    )
            case RedactedThinking():
                pass
            case ToolCall():
                call: JsonObject = {
                    "type": "function_call",
                    "call_id": part.id,
                    "name": part.name,
                    "arguments": encode_arguments(part),
                }
                if thought and part.item_id:
                    call["id"] = part.item_id
                items.append(call)
            case ToolResult():
                items.append(
                    {
                        "type": "function_call_output",
                        "call_id": part.call_id,
                        "output": encode_result(part),
                    }
                )
            case Image() | Audio() | Document():
                if message.role == "assistant":
                    raise MediaInvalid(
                        f"{provider.title} does not accept media in assistant messages",
                        hint="Put it into a user message.",
                    )
                _add_content(items, "user", _media(part, provider))
    return items


def _add_content(
    items: list[Json], role: str, content: JsonObject, phase: str | None = None
) -> None:
    last = as_object(items[-1]) if items else {}
    shared = last.get("content")
    if isinstance(shared, list) and last.get("role") == role and last.get("phase") == phase:
        shared.append(content)
        return
    entry: JsonObject = {"type": "message", "role": role, "content": [content]}
    if phase is not None:
        entry["phase"] = phase
    items.append(entry)


def _is_returnable(part: object) -> bool:
    """Whether this is encrypted reasoning of OpenAI, which is sent back. Signatures of other
    vendors have no item id."""
    return isinstance(part, Thinking) and bool(part.item_id) and part.signature is not None


def encode_arguments(call: ToolCall) -> str:
    """The arguments as JSON, exactly as the model wrote them."""
    return call.raw if call.raw is not None else msgspec.json.encode(call.arguments).decode()


def encode_result(result: ToolResult) -> str:
    """A tool result as text. An error gets a prefix, as the API has no field for it."""
    content = result.content
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    return f"error: {text}" if result.is_error else text


def _media(part: Image | Audio | Document, provider: Provider) -> JsonObject:
    match part:
        case Image():
            return {
                "type": "input_image",
                "image_url": encode_url(part, provider),
                "detail": part.detail or "auto",
            }
        case Audio():
            raise MediaInvalid(
                f"the Responses API of {provider.title} does not accept audio",
                hint="Its chat-completions API does: openai-chat:gpt-audio.",
            )
        case Document():
            address = media_url(part)
            if address is not None and not address.startswith("data:"):
                return {"type": "input_file", "file_url": encode_url(part, provider)}
            media_type, data = type_and_data(part, provider)
            return {
                "type": "input_file",
                "filename": file_name(part, media_type),
                "file_data": f"data:{media_type};base64,{data}",
            }


FORMATS = {
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
    "audio/wav": "wav",
    "audio/wave": "wav",
    "audio/x-wav": "wav",
    "audio/vnd.wave": "wav",
}


def encode_url(part: Image | Document, provider: Provider) -> str:
    """The web URL of the part, or its bytes as a ``data:`` URL."""
    address = media_url(part)
    if address is None:
        return f"data:{_media_type(part)};base64,{_base64(part)}"
    if address[:5].lower() in ("http:", "https", "data:"):
        return address
    scheme = address.partition(":")[0]
    raise MediaInvalid(
        f"{provider.title} cannot fetch {address[:80]!r}",
        hint=f"It accepts https URLs and files, but no {scheme}: URL.",
    )


def encode_audio(part: Audio, provider: Provider) -> tuple[str, str]:
    """Base64 and the format. Only bytes can be sent, in one of two formats."""
    media_type, data = type_and_data(part, provider)
    if media_type not in FORMATS:
        raise MediaInvalid(
            f"{provider.title} does not accept audio of type {media_type}",
            hint="Send it as WAV or MP3.",
        )
    return data, FORMATS[media_type]


def file_name(part: Document, media_type: str) -> str:
    """A file name: both APIs need one and derive the file type from its extension."""
    if part.name:
        return part.name
    ending = media_type.partition(";")[0].rpartition("/")[2]
    return f"document.{'txt' if ending == 'plain' else ending or 'pdf'}"


def type_and_data(part: Media, provider: Provider) -> tuple[str, str]:
    """The media type and Base64 of a part that holds bytes."""
    address = media_url(part)
    if address is None:
        return _media_type(part), _base64(part)
    head, comma, data = address.partition(",")
    if head[:5].lower() == "data:" and head.endswith(";base64") and comma:
        return part.media_type or head[5:-7].partition(";")[0].lower(), data
    kind = type(part).__name__.lower()
    raise MediaInvalid(
        f"{provider.title} does not accept the URL of a {kind}: {address[:80]!r}",
        hint=f"Download the {kind} and send the file.",
    )


def _media_type(part: Media) -> str:
    if not part.media_type:
        raise MediaInvalid(
            f"the type of this {type(part).__name__.lower()} is unknown",
            hint="Its name needs an ending, as in photo.png; data needs a type, as in image/png.",
        )
    return part.media_type


def _base64(part: Media) -> str:
    return b64encode(media_bytes(part)).decode()
