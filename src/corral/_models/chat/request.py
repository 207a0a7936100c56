"""Encodes a request for chat completions, according to the vendor's traits."""

from __future__ import annotations

import re
from base64 import b64decode
from hashlib import sha256

import msgspec

from corral._models.openai.request import (
    JSON_INSTRUCTION,
    add_sampling,
    encode_arguments,
    encode_audio,
    encode_result,
    encode_url,
    file_name,
    mentions_json,
    refuses_sampling,
    type_and_data,
)
from corral._models.openai.schema import is_strict
from corral._models.spec import Encoded, Provider, Traits, instructions, vendor_options
from corral.errors import MediaInvalid
from corral.messages import Audio, Document, Image, Message, Text, ToolResult
from corral.model_types import Request, ResponseFormat, ToolNamed
from corral.values import Json, JsonObject, deep_merge

PATH = "/chat/completions"
SCHEMA_INSTRUCTION = "Answer only with JSON that fits this JSON Schema:\n"
_STREAMED: JsonObject = {"stream": True, "stream_options": {"include_usage": True}}
_SHORT = re.compile(r"[a-zA-Z0-9]{9}")


def encode(request: Request, provider: Provider, streamed: bool) -> Encoded:
    traits = provider.traits
    instruction_texts = instructions(request)
    warnings: list[str] = []
    form = _format(request, provider, traits, instruction_texts, warnings)
    messages: list[Json] = []
    if instruction_texts:
        messages.append({"role": traits.system_role, "content": "\n\n".join(instruction_texts)})
    for message in request.messages:
        if message.role not in ("system", "developer"):
            messages += _encode_message(message, provider, traits)
    body: JsonObject = {"model": request.model, "messages": messages}
    if form is not None:
        body["response_format"] = form
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters or {"type": "object", "properties": {}},
                },
            }
            for tool in request.tools
        ]
    choice = request.tool_choice
    if isinstance(choice, ToolNamed):
        body["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not None:
        body["tool_choice"] = choice
    if request.max_tokens is not None:
        body[traits.max_tokens_field] = request.max_tokens
    if request.stop:
        body["stop"] = list(request.stop)
    add_sampling(
        body, request, warnings, refused=traits.openai_model_names and refuses_sampling(request)
    )
    body = _add_effort(body, request, provider, traits, warnings)
    if request.metadata and traits.takes_metadata:
        body["metadata"] = {**request.metadata}
    elif request.metadata:
        warnings.append(f"metadata is left out: {provider.title} does not support it")
    if streamed:
        body.update(_STREAMED if traits.stream_usage else {"stream": True})
    options, headers = vendor_options(request, provider)
    return Encoded(
        path=PATH,
        body=deep_merge(body, options),
        headers=headers,
        warnings=tuple(warnings),
    )


def _add_effort(
    body: JsonObject,
    request: Request,
    provider: Provider,
    traits: Traits,
    warnings: list[str],
) -> JsonObject:
    effort = request.reasoning_effort
    if effort is None:
        return body
    if effort in traits.effort_overrides:
        return deep_merge(body, traits.effort_overrides[effort])
    if traits.reasoning_field is None:
        warnings.append(f"reasoning_effort is left out: {provider.title} does not support it")
        return body
    table, dot, name = traits.reasoning_field.rpartition(".")
    return deep_merge(body, {table: {name: effort}} if dot else {name: effort})


def _format(
    request: Request,
    provider: Provider,
    traits: Traits,
    instruction_texts: list[str],
    warnings: list[str],
) -> JsonObject | None:
    """The response format. What the server has no field for is added to the instructions."""
    form = request.response_format
    if form is None or form.type == "text":
        return None
    if form.type == "json_schema":
        if traits.json_schema:
            return _schema_format(form)
        instruction_texts.append(SCHEMA_INSTRUCTION + msgspec.json.encode(form.schema).decode())
        warnings.append(
            f"the schema is added to the instructions: {provider.title} does not support schemas"
        )
    elif not mentions_json(request) and not any(
        "json" in each.lower() for each in instruction_texts
    ):
        instruction_texts.append(JSON_INSTRUCTION)
    if traits.json_object:
        return {"type": "json_object"}
    if traits.json_schema:
        return _schema_format(ResponseFormat("json_schema", {"type": "object"}))
    return None


def _schema_format(form: ResponseFormat) -> JsonObject:
    table: JsonObject = {
        "name": form.name,
        "schema": form.schema,
        "strict": is_strict(form.schema),
    }
    return {"type": "json_schema", "json_schema": table}


def _encode_message(message: Message, provider: Provider, traits: Traits) -> list[Json]:
    """The messages for one entry of the history. Tool results come first: they must follow the
    calls directly."""
    if message.role == "assistant":
        return _encode_assistant(message, provider, traits)
    if len(message.content) == 1 and type(only := message.content[0]) is Text:
        return [{"role": "user", "content": only.text}]
    entries: list[Json] = [
        {"role": "tool", "tool_call_id": _id(part.call_id, traits), "content": encode_result(part)}
        for part in message.content
        if isinstance(part, ToolResult)
    ]
    shown: list[JsonObject] = []
    for part in message.content:
        match part:
            case Text():
                shown.append({"type": "text", "text": part.text})
            case Image() | Audio() | Document():
                shown.append(_media(part, provider))
            case _:
                pass
    if len(shown) == 1 and "text" in shown[0]:
        entries.append({"role": "user", "content": shown[0]["text"]})
    elif shown:
        entries.append({"role": "user", "content": [*shown]})
    return entries


def _encode_assistant(message: Message, provider: Provider, traits: Traits) -> list[Json]:
    if any(isinstance(part, Image | Audio | Document) for part in message.content):
        raise MediaInvalid(
            f"{provider.title} does not accept media in assistant messages",
            hint="Put it into a user message.",
        )
    calls: list[Json] = [
        {
            "id": _id(call.id, traits),
            "type": "function",
            "function": {"name": call.name, "arguments": encode_arguments(call)},
        }
        for call in message.tool_calls
    ]
    text = message.text
    if not text and not calls:
        return []  # thinking only, which is not sent back
    entry: JsonObject = {"role": "assistant", "content": text or None}
    if calls:
        entry["tool_calls"] = calls
        if traits.reasoning_content_field is not None:
            own = message.provider in (None, provider.name)
            entry[traits.reasoning_content_field] = message.reasoning if own else ""
    return [entry]


def _id(id: str, traits: Traits) -> str:
    if not traits.short_ids or _SHORT.fullmatch(id):
        return id
    return sha256(id.encode()).hexdigest()[:9]


def _media(part: Image | Audio | Document, provider: Provider) -> JsonObject:
    match part:
        case Image():
            image: JsonObject = {"url": encode_url(part, provider)}
            if part.detail is not None:
                image["detail"] = part.detail
            return {"type": "image_url", "image_url": image}
        case Audio():
            data, kind = encode_audio(part, provider)
            return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}
        case Document():
            pass
    # A PDF is sent as a file; a text document is sent as text.
    media_type, data = type_and_data(part, provider)
    if media_type.startswith("text/") or media_type == "application/json":
        text = b64decode(data).decode("utf-8", "replace")
        return {"type": "text", "text": f"{part.name}:\n\n{text}" if part.name else text}
    if media_type != "application/pdf":
        raise MediaInvalid(
            f"{provider.title} does not accept documents of type {media_type}",
            hint="Send it as a PDF or as text.",
        )
    file: JsonObject = {
        "filename": file_name(part, media_type),
        "file_data": f"data:{media_type};base64,{data}",
    }
    return {"type": "file", "file": file}


def ask_for_usage(body: bytes, request: JsonObject) -> bytes | None:
    """The body of a streamed request that asks for the usage. Only these bytes are added, where
    possible."""
    if request.get("stream") is not True:
        return None
    options = request.get("stream_options")
    if options is None and "stream_options" not in request:
        return body.replace(b"{", b'{"stream_options":{"include_usage":true},', 1)
    if isinstance(options, dict) and options.get("include_usage") is True:
        return None
    asked = {**options} if isinstance(options, dict) else {}
    asked["include_usage"] = True
    return msgspec.json.encode({**request, "stream_options": asked})
