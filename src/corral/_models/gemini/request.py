"""Encodes a request for Gemini."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import lru_cache
from urllib.parse import quote

import msgspec

from corral._models.gemini.schema import to_gemini_parameters, to_gemini_schema
from corral._models.spec import (
    Encoded,
    Provider,
    instructions,
    media_bytes,
    media_url,
    vendor_options,
)
from corral.messages import (
    Audio,
    Document,
    Image,
    Message,
    Part,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from corral.model_types import Request, ToolNamed
from corral.values import Json, JsonObject, deep_merge

BUDGETS = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 24576}
"""Thinking tokens by effort, from the vendor's own compatibility table."""
LEVELS = {"none": "minimal", "xhigh": "high"}
UNSIGNED = "skip_thought_signature_validator"
"""The signature that the vendor accepts for a tool call without one: a call of another vendor's
model, of an older model, or written by hand."""
_VERSION = re.compile(r"gemini-(\d+(?:\.\d+)?)")


def encode(request: Request, provider: Provider, streamed: bool) -> Encoded:
    path = _path(provider.traits.model_path, request.model, streamed)
    body: JsonObject = {"contents": _contents(request, provider)}
    if texts := [text for text in instructions(request) if text]:
        body["systemInstruction"] = {"parts": [{"text": text} for text in texts]}
    warnings: list[str] = []
    if request.tools:
        declared: list[Json] = []
        for tool in request.tools:
            parameters, lost = to_gemini_parameters(tool.name, tool.parameters)
            warnings += lost
            function: JsonObject = {"name": tool.name, "description": tool.description}
            if parameters:
                function["parameters"] = parameters
            declared.append(function)
        body["tools"] = [{"functionDeclarations": declared}]
    choice = request.tool_choice
    if isinstance(choice, ToolNamed):
        named: JsonObject = {"mode": "ANY", "allowedFunctionNames": [choice.name]}
        body["toolConfig"] = {"functionCallingConfig": named}
    elif choice is not None:
        mode = {"auto": "AUTO", "none": "NONE", "required": "ANY"}[choice]
        body["toolConfig"] = {"functionCallingConfig": {"mode": mode}}
    if config := _config(request, warnings):
        body["generationConfig"] = config
    if request.metadata:
        warnings.append("metadata is left out: Gemini does not support it")
    options, headers = vendor_options(request, provider)
    return Encoded(
        path=path,
        body=deep_merge(body, options),
        headers=headers,
        warnings=tuple(warnings),
    )


@lru_cache(100)
def _path(start: str, model: str, streamed: bool) -> str:
    method = "streamGenerateContent?alt=sse" if streamed else "generateContent"
    name = model if "/" in model else f"models/{model}"
    return f"{start}{quote(name, safe='/@')}:{method}"


def _config(request: Request, warnings: list[str]) -> JsonObject:
    config: JsonObject = {}
    if request.temperature is not None:
        config["temperature"] = request.temperature
    if request.top_p is not None:
        config["topP"] = request.top_p
    if request.max_tokens is not None:
        config["maxOutputTokens"] = request.max_tokens
    if request.stop:
        config["stopSequences"] = list(request.stop)
    form = request.response_format
    if form is not None and form.type != "text":
        config["responseMimeType"] = "application/json"
        if form.type == "json_schema":
            config["responseSchema"], lost = to_gemini_schema(form.schema)
            warnings += lost
    if request.reasoning_effort is not None:
        thinking = thinking_config(request.model, request.reasoning_effort)
        if thinking:
            config["thinkingConfig"] = thinking
        else:
            warnings.append(f"reasoning_effort is left out: {request.model} does not support it")
    return config


def thinking_config(model: str, effort: str) -> JsonObject:
    """A thinking level since Gemini 3, a budget for 2.5; older models have neither."""
    found = _VERSION.search(model)
    version = float(found[1]) if found else 3.0
    if version < 2.5:
        return {}
    shown: JsonObject = {} if effort == "none" else {"includeThoughts": True}
    if version < 3:
        least = 128 if "pro" in model else 0  # its thinking cannot be disabled
        return {"thinkingBudget": max(BUDGETS[effort], least), **shown}
    return {"thinkingLevel": LEVELS.get(effort, effort), **shown}


def _contents(request: Request, provider: Provider) -> list[Json]:
    """The history. Consecutive messages of one role become one entry."""
    # A tool result has only the id of its call. Another turn may use the id again.
    calls: dict[str, ToolCall] = {}
    version = _VERSION.search(request.model)
    signed = version is not None and float(version[1]) >= 3
    contents: list[Json] = []
    last_role, last_parts = "", list[Json]()
    for message in request.messages:
        if message.role in ("system", "developer"):
            continue
        role = "model" if message.role == "assistant" else "user"
        own = message.provider in (None, provider.name)
        for call in message.tool_calls:  # the ids of other vendors' calls are not sent
            calls[call.id] = call if own else msgspec.structs.replace(call, item_id=None)
        parts = _encode_message(message, own, calls, signed)
        if contents and role == last_role:
            last_parts.extend(parts)
        elif parts:
            last_role, last_parts = role, parts
            contents.append({"role": role, "parts": parts})
    return contents


def _encode_message(
    message: Message, own: bool, calls: dict[str, ToolCall], signed: bool
) -> list[Json]:
    """The parts of one message. ``own``: this vendor's model wrote it, or nobody says whose."""
    is_first_call = True
    parts: list[Json] = []
    for part in message.content:
        if type(part) is Text and not (own and part.signature):
            if part.text:  # the vendor refuses an empty one
                parts.append({"text": part.text})
            continue
        entry = _encode_part(part, own, calls)
        if entry is None:
            continue
        signature: str | None = getattr(part, "signature", None)
        if own and signature is not None:
            entry["thoughtSignature"] = signature
        elif signed and is_first_call and isinstance(part, ToolCall):
            entry["thoughtSignature"] = UNSIGNED  # only the first call of a message is checked
        is_first_call = is_first_call and not isinstance(part, ToolCall)
        parts.append(entry)
    return parts


def _encode_part(part: Part, own: bool, calls: dict[str, ToolCall]) -> JsonObject | None:
    match part:
        case Text():
            return {"text": part.text}
        case Thinking():
            # Without a signature the vendor ignores it.
            is_signed = own and part.signature is not None
            return {"text": part.text, "thought": True} if is_signed else None
        case RedactedThinking():
            return None
        case ToolCall():
            call: JsonObject = {"name": part.name, "args": part.arguments}
            if own and part.item_id:
                call["id"] = part.item_id
            return {"functionCall": call}
        case ToolResult():
            made = calls.get(part.call_id)
            content = part.content
            response: Json = content if isinstance(content, dict) else {"result": content}
            returned: JsonObject = {
                "name": part.name or (made.name if made else part.call_id),
                "response": {"error": content} if part.is_error else response,
            }
            if made is not None and made.item_id:
                returned["id"] = made.item_id
            return {"functionResponse": returned}
        case Image() | Audio() | Document():
            address = media_url(part)
            if address is not None:
                given: JsonObject = {"fileUri": address}
                if part.media_type:
                    given["mimeType"] = part.media_type
                return {"fileData": given}
            data = b64encode(media_bytes(part)).decode()
            return {"inlineData": {"mimeType": part.media_type, "data": data}}
