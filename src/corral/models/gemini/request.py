"""A request in Gemini's words."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import cast
from urllib.parse import quote

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
from corral.model_types import Request, ToolNamed
from corral.models.encoding import address_of, instructions, merged, names_of_calls, own_options
from corral.models.gemini.schema import convert
from corral.models.spec import Encoded, JsonObject, Provider

BUDGETS = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 24576}
"""Tokens for thoughts, as the vendor's own table has them for the efforts of others."""
LEVELS = {"none": "minimal", "xhigh": "high"}
UNSIGNED = "skip_thought_signature_validator"
"""What the vendor takes for the signature of a call that has none of its own: another vendor's
model made it, or an older one, or a person wrote it down."""
_VERSION = re.compile(r"gemini-(\d+(?:\.\d+)?)")


def encode(request: Request, provider: Provider, streamed: bool) -> Encoded:
    warnings: list[str] = []
    body: JsonObject = {"contents": _contents(request, provider)}
    if said := instructions(request):
        body["systemInstruction"] = {"parts": [{"text": text} for text in said]}
    if request.tools:
        declared: list[Json] = []
        for tool in request.tools:
            parameters, lost = convert(tool.parameters)
            warnings += [f"{tool.name}: {each}" for each in lost]
            function: JsonObject = {"name": tool.name, "description": tool.description}
            if parameters.get("properties"):
                function["parameters"] = parameters
            declared.append(function)
        body["tools"] = [{"functionDeclarations": declared}]
    if request.tool_choice is not None:
        body["toolConfig"] = {"functionCallingConfig": _choice(request.tool_choice)}
    if config := _config(request, warnings):
        body["generationConfig"] = config
    if request.metadata:
        warnings.append("metadata is left out: Gemini takes none")
    options, headers = own_options(request, provider)
    method = "streamGenerateContent?alt=sse" if streamed else "generateContent"
    name = request.model if "/" in request.model else f"models/{request.model}"
    return Encoded(
        path=f"{provider.traits.model_path}{quote(name, safe='/@')}:{method}",
        body=merged(body, options),
        headers=headers,
        warnings=tuple(warnings),
    )


def _choice(choice: str | ToolNamed) -> JsonObject:
    if isinstance(choice, ToolNamed):
        return {"mode": "ANY", "allowedFunctionNames": [choice.name]}
    return {"mode": {"auto": "AUTO", "none": "NONE", "required": "ANY"}[choice]}


def _config(request: Request, warnings: list[str]) -> JsonObject:
    given: JsonObject = {
        "temperature": request.temperature,
        "topP": request.top_p,
        "maxOutputTokens": request.max_tokens,
        "stopSequences": list(request.stop) or None,
    }
    config: JsonObject = {name: value for name, value in given.items() if value is not None}
    form = request.response_format
    if form is not None and form.type != "text":
        config["responseMimeType"] = "application/json"
        if form.type == "json_schema":
            config["responseSchema"], lost = convert(form.schema)
            warnings += lost
    if request.reasoning_effort is not None:
        thinking = _thinking(request.model, request.reasoning_effort)
        if thinking:
            config["thinkingConfig"] = thinking
        else:
            warnings.append(f"reasoning_effort is left out: {request.model} does not think")
    return config


def _thinking(model: str, effort: str) -> JsonObject:
    """A level from the third generation on, a budget in the second; older ones do not think."""
    found = _VERSION.search(model)
    version = float(found[1]) if found else 3.0
    if version < 2.5:
        return {}
    shown: JsonObject = {} if effort == "none" else {"includeThoughts": True}
    if version < 3:
        least = 128 if "pro" in model else 0  # it cannot be kept from thinking
        return {"thinkingBudget": max(BUDGETS[effort], least), **shown}
    return {"thinkingLevel": LEVELS.get(effort, effort), **shown}


def _contents(request: Request, provider: Provider) -> list[Json]:
    """Consecutive messages of one role are one entry."""
    names = names_of_calls(request.messages)
    theirs = {
        call.id
        for message in request.messages
        if message.provider not in (None, provider.name)
        for call in message.tool_calls
    }
    found = _VERSION.search(request.model)
    signed = found is not None and float(found[1]) >= 3
    contents: list[Json] = []
    for message in request.messages:
        if message.role in ("system", "developer"):
            continue
        role = "model" if message.role == "assistant" else "user"
        parts = _parts(message, provider, names, theirs, signed)
        last = cast("JsonObject", contents[-1]) if contents else {}
        if last.get("role") == role:
            cast("list[Json]", last["parts"]).extend(parts)
        elif parts:
            contents.append({"role": role, "parts": parts})
    return contents


def _parts(
    message: Message,
    provider: Provider,
    names: dict[str, ToolCall],
    theirs: set[str],
    signed: bool,
) -> list[Json]:
    """``theirs`` are the calls that another vendor's model made: its ids stay with it."""
    own = message.provider in (None, provider.name)
    first = True
    parts: list[Json] = []
    for part in message.content:
        entry: JsonObject = {}
        signature: str | None = None
        match part:
            case Text():
                entry, signature = {"text": part.text}, part.signature
            case Thinking():
                if not own or part.signature is None:
                    continue  # what nobody can check is of no use to it
                entry, signature = {"text": part.text, "thought": True}, part.signature
            case RedactedThinking():
                continue
            case ToolCall():
                made: JsonObject = {"name": part.name, "args": part.arguments}
                if own and part.item_id:
                    made["id"] = part.item_id
                entry, signature = {"functionCall": made}, part.signature
                if signed and first and not (own and signature):
                    entry["thoughtSignature"] = UNSIGNED
                first = False  # only the first of an answer is looked at
            case ToolResult():
                entry = {"functionResponse": _returned(part, names, theirs)}
            case Image() | Audio() | Document():
                entry = _media(part)
        if own and signature is not None:
            entry["thoughtSignature"] = signature
        parts.append(entry)
    return parts


def _returned(result: ToolResult, names: dict[str, ToolCall], theirs: set[str]) -> JsonObject:
    made = names.get(result.call_id)
    content = result.content
    response: Json
    if result.is_error:
        response = {"error": content}
    else:
        response = content if isinstance(content, dict) else {"result": content}
    returned: JsonObject = {
        "name": result.name or (made.name if made else result.call_id),
        "response": response,
    }
    if made is not None and made.item_id and made.id not in theirs:
        returned["id"] = made.item_id
    return returned


def _media(part: Image | Audio | Document) -> JsonObject:
    address = address_of(part)
    if address is not None:
        given: JsonObject = {"fileUri": address}
        if part.media_type:
            given["mimeType"] = part.media_type
        return {"fileData": given}
    data = b64encode(cast("bytes", part.source)).decode()
    return {"inlineData": {"mimeType": part.media_type, "data": data}}
