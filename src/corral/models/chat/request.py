"""A request in the words of chat completions, with the accent of the vendor's traits."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import cast

import msgspec

from corral.errors import MediaInvalid
from corral.events import Json
from corral.messages import Audio, Document, Image, Message, Text, ToolCall, ToolResult
from corral.model_types import Request, ResponseFormat, ToolChoice, ToolNamed, ToolSpec
from corral.models.encoding import instructions, merged, own_options
from corral.models.openai.media import audio_of, file_of, name_of, text_of, url_of
from corral.models.openai.request import JSON_WORD, refuses_sampling, returned, says_json, written
from corral.models.openai.schema import is_strict
from corral.models.spec import Encoded, JsonObject, Provider, Traits

SCHEMA_WORDS = "Answer only with JSON that fits this JSON Schema:\n"
_SHORT = re.compile(r"[a-zA-Z0-9]{9}")


def encode(request: Request, provider: Provider, streamed: bool) -> Encoded:
    warnings: list[str] = []
    traits = provider.traits
    said = instructions(request)
    form = _format(request, provider, traits, said, warnings)
    messages: list[Json] = []
    if said:
        messages.append({"role": traits.system_role, "content": "\n\n".join(said)})
    for message in request.messages:
        if message.role not in ("system", "developer"):
            messages += _entries(message, provider, traits)
    body: JsonObject = {"model": request.model, "messages": messages}
    if form is not None:
        body["response_format"] = form
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    if request.tool_choice is not None:
        body["tool_choice"] = _choice(request.tool_choice)
    if request.max_tokens is not None:
        body[traits.max_tokens_field] = request.max_tokens
    if request.stop:
        body["stop"] = list(request.stop)
    _sample(body, request, traits, warnings)
    body = _think(body, request, provider, traits, warnings)
    if request.metadata and traits.takes_metadata:
        body["metadata"] = cast("JsonObject", dict(request.metadata))
    elif request.metadata:
        warnings.append(f"metadata is left out: {provider.title} takes none")
    if streamed:
        body["stream"] = True
        if traits.stream_usage:
            body["stream_options"] = {"include_usage": True}
    options, headers = own_options(request, provider)
    return Encoded(
        path="/chat/completions",
        body=merged(body, options),
        headers=headers,
        warnings=tuple(warnings),
    )


def _sample(body: JsonObject, request: Request, traits: Traits, warnings: list[str]) -> None:
    refused = traits.names_tell_thinkers and refuses_sampling(request)
    for name, value in (("temperature", request.temperature), ("top_p", request.top_p)):
        if value is not None and refused:
            warnings.append(f"{name} is left out: {request.model} does not take it")
        elif value is not None:
            body[name] = value


def _think(
    body: JsonObject,
    request: Request,
    provider: Provider,
    traits: Traits,
    warnings: list[str],
) -> JsonObject:
    effort = request.reasoning_effort
    if effort is None:
        return body
    if effort in traits.efforts:
        return merged(body, traits.efforts[effort])
    if traits.reasoning_field is None:
        warnings.append(f"reasoning_effort is left out: {provider.title} takes none")
        return body
    table, dot, name = traits.reasoning_field.rpartition(".")
    return merged(body, {table: {name: effort}} if dot else {name: effort})


def _format(
    request: Request,
    provider: Provider,
    traits: Traits,
    said: list[str],
    warnings: list[str],
) -> JsonObject | None:
    """How the answer is asked for; what the server has no field for joins the instructions."""
    form = request.response_format
    if form is None or form.type == "text":
        return None
    if form.type == "json_schema":
        if traits.json_schema:
            return _by_schema(form)
        said.append(SCHEMA_WORDS + msgspec.json.encode(form.schema).decode())
        warnings.append(f"the schema is put into words: {provider.title} answers by none")
    elif not says_json(request) and not any("json" in each.lower() for each in said):
        said.append(JSON_WORD)
    if traits.json_object:
        return {"type": "json_object"}
    if traits.json_schema:
        return _by_schema(ResponseFormat("json_schema", {"type": "object"}))
    return None


def _by_schema(form: ResponseFormat) -> JsonObject:
    table: JsonObject = {
        "name": form.name,
        "schema": form.schema,
        "strict": is_strict(form.schema),
    }
    return {"type": "json_schema", "json_schema": table}


def _tool(tool: ToolSpec) -> JsonObject:
    function: JsonObject = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> Json:
    if isinstance(choice, ToolNamed):
        return {"type": "function", "function": {"name": choice.name}}
    return choice


def _entries(message: Message, provider: Provider, traits: Traits) -> list[Json]:
    """Results come first: they must follow the calls at once."""
    if message.role == "assistant":
        return _answered(message, provider, traits)
    entries: list[Json] = [
        {"role": "tool", "tool_call_id": _id(part.call_id, traits), "content": returned(part)}
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
        entries.append({"role": "user", "content": cast("list[Json]", shown)})
    return entries


def _answered(message: Message, provider: Provider, traits: Traits) -> list[Json]:
    if any(isinstance(part, Image | Audio | Document) for part in message.content):
        raise MediaInvalid(
            f"{provider.title} takes no media that an assistant sent",
            hint="Put it into a message of the user.",
        )
    calls: list[Json] = [_call(call, traits) for call in message.tool_calls]
    text = message.text
    if not text and not calls:
        return []  # thoughts alone, which are nobody's but the vendor's
    entry: JsonObject = {"role": "assistant", "content": text or None}
    if calls:
        entry["tool_calls"] = calls
        if traits.returned_thoughts is not None:
            own = message.provider in (None, provider.name)
            entry[traits.returned_thoughts] = message.reasoning if own else ""
    return [entry]


def _call(call: ToolCall, traits: Traits) -> JsonObject:
    function: JsonObject = {"name": call.name, "arguments": written(call)}
    return {"id": _id(call.id, traits), "type": "function", "function": function}


def _id(id: str, traits: Traits) -> str:
    if not traits.short_ids or _SHORT.fullmatch(id):
        return id
    return sha256(id.encode()).hexdigest()[:9]


def _media(part: Image | Audio | Document, provider: Provider) -> JsonObject:
    match part:
        case Image():
            image: JsonObject = {"url": url_of(part, provider)}
            if part.detail is not None:
                image["detail"] = part.detail
            return {"type": "image_url", "image_url": image}
        case Audio():
            data, kind = audio_of(part, provider)
            return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}
        case Document():
            return _document(part, provider)


def _document(part: Document, provider: Provider) -> JsonObject:
    """A PDF goes as a file; of a text the API takes only what it says."""
    media_type, data = file_of(part, provider)
    if media_type.startswith("text/") or media_type == "application/json":
        text = text_of(data)
        return {"type": "text", "text": f"{part.name}:\n\n{text}" if part.name else text}
    if media_type != "application/pdf":
        raise MediaInvalid(
            f"{provider.title} takes no document of type {media_type}",
            hint="Send it as a PDF or as text.",
        )
    file: JsonObject = {
        "filename": name_of(part, media_type),
        "file_data": f"data:{media_type};base64,{data}",
    }
    return {"type": "file", "file": file}
