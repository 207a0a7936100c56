"""Encodes a request for Anthropic.

A JSON schema is sent as a tool that the model must call, with a reserved name by which the answer
is recognized.
"""

from __future__ import annotations

import re
from base64 import b64encode
from functools import lru_cache

import msgspec

from corral._models.spec import (
    Encoded,
    Provider,
    instructions,
    media_bytes,
    media_url,
    vendor_options,
)
from corral.errors import ConfigError, MediaInvalid
from corral.messages import (
    Audio,
    Document,
    Image,
    Part,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from corral.model_types import Request, ResponseFormat, ToolNamed
from corral.values import JsonObject, deep_merge, int_or_none

RESULT_TOOL = "corral_result"
"""The tool that stands for a schema of an object."""
VALUE_TOOL = "corral_value"
"""The tool that stands for any other schema, wrapped in an object: tools accept only objects."""
BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 23808}
"""Thinking tokens by effort. The largest plus ``DEFAULT_MAX_TOKENS`` is 32,000, the lowest output
limit of the models with a budget; the API accepts no budget below 1,024."""
DEFAULT_MAX_TOKENS = 8192
"""Output tokens if the request sets none: the API requires a limit."""
PATH = "/v1/messages"
CACHED: JsonObject = {"type": "ephemeral"}
THOUGHTFUL = ("enabled", "adaptive")
UNFORCED = "Anthropic cannot force a tool call while the model thinks"
DEFINITIONS = ("$defs", "definitions")
_NAME = re.compile(r"claude-(?:(?P<family>[a-z]+)-)?(?P<major>\d)(?:[-.](?P<minor>\d{1,2}))?(?!\d)")
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")


class ModelQuirks(msgspec.Struct, frozen=True):
    """What a model accepts, by its name: newer models reject what older ones need."""

    default_max_tokens: int = DEFAULT_MAX_TOKENS
    thinks: bool = True
    adaptive: bool = False
    """Chooses how much to think, by an effort; otherwise it thinks up to a budget."""
    thinks_by_default: bool = False
    """Thinks unless the request disables it."""
    no_thinking_type: str | None = "disabled"
    """The ``thinking`` type that disables thinking; None if it cannot be disabled."""
    can_force_tools: bool = True
    """Can be forced to call a tool while it does not think."""
    takes_sampling: bool = True
    """Accepts ``temperature`` and ``top_p``."""
    takes_both_sampling: bool = True
    """Accepts both at once."""
    highest_effort: str = "xhigh"
    """Its name for our highest effort."""


@lru_cache(100)
def model_quirks(model: str) -> ModelQuirks:
    """The quirks of a model. A name of another vendor counts as an old model, as compatible
    servers behave like one; an Anthropic name without a version counts as the newest."""
    versioned = _NAME.search(model)
    if versioned is None and "claude" not in model:
        return ModelQuirks()
    named = versioned or re.search(r"claude-(?P<family>[a-z]+)", model)
    family = named["family"] if named else model

    def since(*version: int) -> bool:
        if versioned is None:
            return True
        return (int(versioned["major"]), int(versioned["minor"] or 0)) >= version

    always = family in ("fable", "mythos") or (family == "opus" and since(5, 5))
    between = family == "sonnet" and since(5, 5)
    return ModelQuirks(
        default_max_tokens=32_000 if since(4, 6) else DEFAULT_MAX_TOKENS if since(3, 5) else 4096,
        thinks=since(3, 7),
        adaptive=since(4, 6),
        thinks_by_default=since(5, 0),
        no_thinking_type=None if always else "between_tools" if between else "disabled",
        can_force_tools=not always and not since(5, 5),
        takes_sampling=not since(4, 7),
        takes_both_sampling=not since(4, 1),
        highest_effort="xhigh" if since(4, 7) else "max",
    )


def encode(request: Request, provider: Provider, streamed: bool) -> Encoded:
    kind = model_quirks(request.model)
    warnings: list[str] = []
    options, headers = vendor_options(request, provider)
    cached = options.pop("auto_cache", options.pop("cache", True))
    if betas := options.pop("betas", None):
        if not isinstance(betas, list):
            raise ConfigError(f"provider_options[{provider.name!r}]['betas'] must be a list")
        headers["anthropic-beta"] = ",".join(str(name) for name in betas)
    form = request.response_format
    schema = _schema_tool(form) if form is not None and form.type == "json_schema" else None
    plan = _plan(request, kind, schema, warnings)
    texts = [text for text in instructions(request) if text.strip()]
    if form is not None and form.type == "json":
        texts.append("Answer with JSON only.")
    if plan.instruction is not None:
        texts.append(plan.instruction)
    system: list[JsonObject] = [{"type": "text", "text": text} for text in texts]
    tools = [_tool(tool.name, tool.description, tool.parameters) for tool in request.tools]
    if schema is not None:
        tools.append(schema)
    turns = _turns(request, provider)
    if cached:
        # Three of the four blocks that may be cached: the most stable ones.
        of_user = [turn.blocks for turn in turns if turn.role == "user"]
        for blocks in (tools, system, *of_user[-1:]):
            if blocks:
                blocks[-1]["cache_control"] = {**CACHED}
    given: JsonObject = {
        "model": request.model,
        "max_tokens": _max_tokens(request, kind, plan.thinking, warnings),
        "messages": [{"role": turn.role, "content": [*turn.blocks]} for turn in turns],
        "system": [*system] or None,
        "tools": [*tools] or None,
        "tool_choice": plan.choice,
        "thinking": plan.thinking,
        "output_config": None if plan.effort is None else {"effort": plan.effort},
        "stop_sequences": list(request.stop) or None,
        "metadata": _metadata(request, warnings),
        "stream": streamed or None,
        **_sampling(request, kind, plan.is_thinking, warnings),
    }
    body: JsonObject = {name: value for name, value in given.items() if value is not None}
    return Encoded(
        path=PATH,
        body=deep_merge(body, options),
        headers=headers,
        warnings=tuple(warnings),
    )


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Thinking and the choice of tools, which exclude each other in part."""

    thinking: JsonObject | None
    effort: str | None
    is_thinking: bool
    choice: JsonObject | None
    instruction: str | None = None
    """Replaces a choice that cannot be forced."""


def _plan(
    request: Request, kind: ModelQuirks, schema: JsonObject | None, warnings: list[str]
) -> _Plan:
    thinking, effort = _thinking(request, kind, warnings)
    is_thinking = kind.thinks_by_default if thinking is None else thinking["type"] in THOUGHTFUL
    choice = _choice(request, schema)
    plan = _Plan(thinking=thinking, effort=effort, is_thinking=is_thinking, choice=choice)
    if choice is None or choice["type"] not in ("any", "tool"):
        return plan
    if kind.can_force_tools and not is_thinking:
        return plan
    if kind.can_force_tools and schema is None and request.reasoning_effort is None:
        warnings.append(f"thinking is off: {UNFORCED}")
        off: JsonObject = {"type": kind.no_thinking_type}
        return msgspec.structs.replace(plan, thinking=off, is_thinking=False)
    instruction = None
    if schema is None:
        warnings.append(f"tool_choice is left to the model: {UNFORCED}")
    else:
        instruction = f"Give your answer by calling {schema['name']}, without other text."
    return msgspec.structs.replace(plan, choice={"type": "auto"}, instruction=instruction)


def _tool(name: str, description: str, parameters: JsonObject) -> JsonObject:
    tool: JsonObject = {"name": name}
    if description:
        tool["description"] = description
    tool["input_schema"] = {"type": "object", **parameters}
    return tool


def _schema_tool(form: ResponseFormat) -> JsonObject:
    description = f"Return your answer, the {form.name}."
    if form.schema.get("type") == "object":
        return _tool(RESULT_TOOL, description, form.schema)
    # References start at the root of the schema: definitions must stay there.
    inner = {name: value for name, value in form.schema.items() if name not in DEFINITIONS}
    outer = {name: value for name, value in form.schema.items() if name in DEFINITIONS}
    wrapped: JsonObject = {"properties": {"value": inner}, "required": ["value"], **outer}
    return _tool(VALUE_TOOL, description, wrapped)


def _choice(request: Request, schema: JsonObject | None) -> JsonObject | None:
    choice = request.tool_choice
    if schema is not None and (choice == "none" or not request.tools):
        return {"type": "tool", "name": schema["name"]}
    if not request.tools:
        return None  # the API rejects a choice without tools
    if isinstance(choice, ToolNamed):
        return {"type": "tool", "name": choice.name}
    if schema is not None:
        return {"type": "any"}
    if choice is None:
        return None
    return {"type": {"auto": "auto", "none": "none", "required": "any"}[choice]}


def _thinking(
    request: Request, kind: ModelQuirks, warnings: list[str]
) -> tuple[JsonObject | None, str | None]:
    """The ``thinking`` object, and the effort if it is a separate field."""
    effort = request.reasoning_effort
    if effort is None or (effort == "none" and not kind.thinks):
        return None, None
    if effort == "none":
        if kind.no_thinking_type is not None:
            return {"type": kind.no_thinking_type}, None
        warnings.append(f"reasoning_effort is low: {request.model} always thinks")
        return None, "low"
    if not kind.thinks:
        warnings.append(f"reasoning_effort is left out: {request.model} does not support it")
        return None, None
    if not kind.adaptive:
        return {"type": "enabled", "budget_tokens": BUDGETS[effort]}, None
    thinking: JsonObject = {"type": "adaptive"}
    if not kind.takes_sampling:
        thinking["display"] = "summarized"  # since that generation thinking is hidden by default
    return thinking, {"minimal": "low", "xhigh": kind.highest_effort}.get(effort, effort)


def _max_tokens(
    request: Request, kind: ModelQuirks, thinking: JsonObject | None, warnings: list[str]
) -> int:
    """The output limit, which covers thinking and answer: it must exceed the thinking budget."""
    budget = (int_or_none(thinking.get("budget_tokens")) if thinking else None) or 0
    if request.max_tokens is None:
        return kind.default_max_tokens + budget
    if request.max_tokens > budget:
        return request.max_tokens
    warnings.append(f"max_tokens is raised by the thinking budget of {budget}")
    return request.max_tokens + budget


def _sampling(
    request: Request, kind: ModelQuirks, is_thinking: bool, warnings: list[str]
) -> JsonObject:
    given: JsonObject = {}
    for name, value, harmless in (
        ("temperature", request.temperature, 1.0),
        ("top_p", request.top_p, 0.95),
    ):
        if value is None:
            continue
        if not kind.takes_sampling:
            warnings.append(f"{name} is left out: {request.model} does not accept it")
        elif is_thinking and value < harmless:
            warnings.append(f"{name} is left out: Anthropic rejects it while the model thinks")
        elif given and not kind.takes_both_sampling:
            warnings.append(f"{name} is left out: {request.model} rejects it with temperature")
        else:
            given[name] = value
    return given


def _metadata(request: Request, warnings: list[str]) -> JsonObject | None:
    if not request.metadata:
        return None
    lost = [name for name in request.metadata if name != "user_id"]
    if lost:
        warnings.append(f"metadata {', '.join(lost)} is left out: Anthropic accepts only user_id")
    user = request.metadata.get("user_id")
    return None if user is None else {"user_id": user}


class _Turn(msgspec.Struct, frozen=True):
    """Consecutive messages of one role."""

    role: str
    blocks: list[JsonObject]


def _turns(request: Request, provider: Provider) -> list[_Turn]:
    """The history. Roles alternate; tool results come first in the message after the calls."""
    turns: list[_Turn] = []
    for message in request.messages:
        if message.role in ("system", "developer"):
            continue
        role = "assistant" if message.role == "assistant" else "user"
        own = message.provider in (None, provider.name)
        blocks: list[JsonObject] = []
        for part in message.content:
            block = _block(part, own)
            if block is not None:
                blocks.append(block)
        if turns and turns[-1].role == role:
            turns[-1].blocks.extend(blocks)
        elif blocks:
            turns.append(_Turn(role, blocks))
    for turn in turns:
        if len(turn.blocks) > 1:
            turn.blocks.sort(key=lambda block: block["type"] != "tool_result")
    if turns and turns[-1].role == "assistant":
        last = turns[-1].blocks[-1]
        if last["type"] == "text":
            last["text"] = str(last["text"]).rstrip()  # the API rejects trailing whitespace
    return turns


def _block(part: Part, own: bool) -> JsonObject | None:
    match part:
        case Text():
            # The API rejects blank text.
            return {"type": "text", "text": part.text} if part.text.strip() else None
        case Thinking():
            if not own or part.signature is None:
                return None  # the API accepts only signed thinking
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        case RedactedThinking():
            return {"type": "redacted_thinking", "data": part.data} if own else None
        case ToolCall():
            call: JsonObject = {"type": "tool_use", "id": _id(part.id), "name": part.name}
            return {**call, "input": part.arguments}
        case ToolResult():
            content = part.content
            text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
            result: JsonObject = {"type": "tool_result", "tool_use_id": _id(part.call_id)}
            result["content"] = text
            if part.is_error:
                result["is_error"] = True
            return result
        case Image():
            return {"type": "image", "source": _source(part)}
        case Document():
            document: JsonObject = {"type": "document", "source": _source(part)}
            return {**document, "title": part.name} if part.name else document
        case Audio():
            raise MediaInvalid(
                "Anthropic's models do not accept audio",
                hint="Send a transcript, or use a model that accepts audio.",
            )


def _id(id: str) -> str:
    """The id without characters that this API rejects."""
    return _FOREIGN.sub("_", id)


def _source(part: Image | Document) -> JsonObject:
    address = media_url(part)
    if address is not None:
        if not address.startswith("data:"):
            if not address.lower().startswith(("http://", "https://")):
                raise MediaInvalid(
                    f"Anthropic cannot fetch {address.partition(':')[0]}: URLs",
                    hint="Pass an https URL, or the bytes themselves.",
                )
            return {"type": "url", "url": address}
        head, _, data = address.removeprefix("data:").partition(",")
        media, _, coding = head.partition(";")
        if coding.split(";")[-1] != "base64":
            raise MediaInvalid(
                "a data: URL must be in base64 to be sent to Anthropic",
                hint="Pass the bytes themselves.",
            )
        return {"type": "base64", "media_type": part.media_type or media, "data": data}
    content, media = media_bytes(part), part.media_type or ""
    if isinstance(part, Document):
        if media.startswith("text/"):
            text = content.decode("utf-8", "replace")
            return {"type": "text", "media_type": "text/plain", "data": text}
        if media != "application/pdf":
            raise MediaInvalid(
                f"Anthropic accepts PDF and text documents, not {media or 'an unknown type'}",
                hint="Convert it to one of these, or send its text in the message.",
            )
    return {"type": "base64", "media_type": media, "data": b64encode(content).decode()}
