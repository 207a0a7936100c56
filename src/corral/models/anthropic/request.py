"""A request in Anthropic's words.

A schema is asked for as a tool that the model must call, under a name of ours by which
the answer is told from other calls.
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import cast

import msgspec

from corral.errors import ConfigError, MediaInvalid
from corral.events import Json
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
from corral.models.encoding import address_of, instructions, merged, own_options
from corral.models.spec import Encoded, JsonObject, Provider

RESULT = "corral_result"
"""The tool that a schema becomes."""
VALUE = "corral_value"
"""The same where the schema is of no object: tools take objects, so it is wrapped in one."""
BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 23808}
"""Tokens for thoughts. With ``ROOM`` the largest makes 32,000, the least output limit of the
models that take a budget; the API takes none below 1,024."""
ROOM = 8192
"""Tokens for an answer where the request says nothing: the API takes no request without."""
CACHED: JsonObject = {"type": "ephemeral"}
THOUGHTFUL = ("enabled", "adaptive")
UNFORCED = "Anthropic forces no tool on a model that thinks"
DEFINITIONS = ("$defs", "definitions")
_NAME = re.compile(r"claude-(?:(?P<family>[a-z]+)-)?(?P<major>\d)(?:[-.](?P<minor>\d{1,2}))?(?!\d)")
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")


class ModelQuirks(msgspec.Struct, frozen=True):
    """What a model takes, told by its name: a newer one refuses what an older one needs."""

    room: int = ROOM
    thinks: bool = True
    adaptive: bool = False
    """Thinks as much as it sees fit, by an effort; otherwise up to a budget."""
    by_default: bool = False
    """Thinks if not told otherwise."""
    quiet: str | None = "disabled"
    """How it is told not to think; None where it always does."""
    forced: bool = True
    """Can be made to call a tool, while it does not think."""
    samples: bool = True
    """Takes ``temperature`` and ``top_p``."""
    both: bool = True
    """Takes the two of them at once."""
    top: str = "xhigh"
    """Its word for the highest effort that we know."""


def quirks(model: str) -> ModelQuirks:
    """A name of another vendor's is taken for a model of the old kind, as its servers do;
    one of Anthropic's without a number for the newest."""
    found = _NAME.search(model)
    if found is None and "claude" not in model:
        return ModelQuirks()
    family = found["family"] if found else re.sub(r".*claude-([a-z]+).*", r"\1", model)

    def since(*version: int) -> bool:
        return found is None or (int(found["major"]), int(found["minor"] or 0)) >= version

    always = family in ("fable", "mythos") or (family == "opus" and since(5, 5))
    between = family == "sonnet" and since(5, 5)
    return ModelQuirks(
        room=32_000 if since(4, 6) else ROOM if since(3, 5) else 4096,
        thinks=since(3, 7),
        adaptive=since(4, 6),
        by_default=since(5, 0),
        quiet=None if always else "between_tools" if between else "disabled",
        forced=not always and not since(5, 5),
        samples=not since(4, 7),
        both=not since(4, 1),
        top="xhigh" if since(4, 7) else "max",
    )


def encode(request: Request, provider: Provider, streamed: bool) -> Encoded:
    warnings: list[str] = []
    options, headers = own_options(request, provider)
    cached = options.pop("cache", True)
    cached = options.pop("auto_cache", cached)
    if betas := options.pop("betas", None):
        if not isinstance(betas, list):
            raise ConfigError(f"provider_options[{provider.name!r}]['betas'] must be a list")
        headers["anthropic-beta"] = ",".join(str(name) for name in betas)
    kind = quirks(request.model)
    said = [text for text in instructions(request) if text.strip()]
    tools = [_tool(tool.name, tool.description, tool.parameters) for tool in request.tools]
    form = request.response_format
    schema = _schema_tool(form) if form is not None and form.type == "json_schema" else None
    if schema is not None:
        tools.append(schema)
    elif form is not None and form.type == "json":
        said.append("Answer with JSON only.")
    thinking: JsonObject | None
    thinking, effort = _thinking(request, kind, warnings)
    thoughtful = kind.by_default if thinking is None else thinking["type"] in THOUGHTFUL
    choice: JsonObject | None = _choice(request, schema)
    if choice is not None and choice["type"] in ("any", "tool"):
        if thoughtful and kind.forced and schema is None and request.reasoning_effort is None:
            thinking = {"type": kind.quiet}
            thoughtful = False
            warnings.append(f"thinking is off: {UNFORCED}")
        elif thoughtful or not kind.forced:
            choice = {"type": "auto"}
            if schema is None:
                warnings.append(f"tool_choice is left to the model: {UNFORCED}")
            else:
                said.append(f"Give your answer by calling {schema['name']}, without other text.")
    body: JsonObject = {
        "model": request.model,
        "max_tokens": _room(request, kind, thinking, warnings),
        "messages": cast("list[Json]", _messages(request, provider)),
    }
    given: JsonObject = {
        "system": cast("list[Json]", [_text(text) for text in said]) or None,
        "tools": cast("list[Json]", tools) or None,
        "tool_choice": choice,
        "thinking": thinking,
        "output_config": _effort(effort),
        "stop_sequences": list(request.stop) or None,
        "metadata": _metadata(request, warnings),
        "stream": streamed or None,
        **_sampling(request, kind, thoughtful, warnings),
    }
    body.update((name, value) for name, value in given.items() if value is not None)
    if cached:
        _mark(body)
    return Encoded(
        path="/v1/messages",
        body=merged(body, options),
        headers=headers,
        warnings=tuple(warnings),
    )


def _effort(effort: str | None) -> JsonObject | None:
    return None if effort is None else {"effort": effort}


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _tool(name: str, description: str, parameters: JsonObject) -> JsonObject:
    tool: JsonObject = {"name": name}
    if description:
        tool["description"] = description
    tool["input_schema"] = {"type": "object", **parameters}
    return tool


def _schema_tool(form: ResponseFormat) -> JsonObject:
    said = f"Hand in your answer, the {form.name}."
    if form.schema.get("type") == "object":
        return _tool(RESULT, said, form.schema)
    # References start at the root of the schema: what they name has to stay there.
    inner = {name: held for name, held in form.schema.items() if name not in DEFINITIONS}
    outer = {name: held for name, held in form.schema.items() if name in DEFINITIONS}
    wrapped: JsonObject = {"properties": {"value": inner}, "required": ["value"], **outer}
    return _tool(VALUE, said, wrapped)


def _choice(request: Request, schema: JsonObject | None) -> JsonObject | None:
    choice = request.tool_choice
    if schema is not None and (choice == "none" or not request.tools):
        return {"type": "tool", "name": schema["name"]}
    if not request.tools:
        return None  # the API refuses a choice of nothing
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
    """How it is to think, and its effort where that is told apart."""
    effort = request.reasoning_effort
    if effort is None or (effort == "none" and not kind.thinks):
        return None, None
    if effort == "none":
        if kind.quiet is not None:
            return {"type": kind.quiet}, None
        warnings.append(f"reasoning_effort is low: {request.model} always thinks")
        return None, "low"
    if not kind.thinks:
        warnings.append(f"reasoning_effort is left out: {request.model} does not think")
        return None, None
    if not kind.adaptive:
        return {"type": "enabled", "budget_tokens": BUDGETS[effort]}, None
    thinking: JsonObject = {"type": "adaptive"}
    if not kind.samples:
        thinking["display"] = "summarized"  # from that generation on it shows nothing unasked
    return thinking, {"minimal": "low", "xhigh": kind.top}.get(effort, effort)


def _room(
    request: Request, kind: ModelQuirks, thinking: JsonObject | None, warnings: list[str]
) -> int:
    """The limit, which holds thoughts and answer: it has to be over the thoughts' own."""
    budget = cast("int", thinking.get("budget_tokens", 0)) if thinking else 0
    if request.max_tokens is None:
        return kind.room + budget
    if request.max_tokens > budget:
        return request.max_tokens
    warnings.append(f"max_tokens is for the answer alone: {budget} for thoughts are added")
    return request.max_tokens + budget


def _sampling(
    request: Request, kind: ModelQuirks, thoughtful: bool, warnings: list[str]
) -> JsonObject:
    given: JsonObject = {}
    for name, value, harmless in (
        ("temperature", request.temperature, 1.0),
        ("top_p", request.top_p, 0.95),
    ):
        if value is None:
            continue
        if not kind.samples:
            warnings.append(f"{name} is left out: {request.model} takes none")
        elif thoughtful and value < harmless:
            warnings.append(f"{name} is left out: Anthropic takes none while the model thinks")
        elif given and not kind.both:
            warnings.append(f"{name} is left out: {request.model} takes one beside temperature")
        else:
            given[name] = value
    return given


def _metadata(request: Request, warnings: list[str]) -> JsonObject | None:
    lost = [name for name in request.metadata if name != "user_id"]
    if lost:
        warnings.append(f"metadata {', '.join(lost)} is left out: Anthropic takes user_id only")
    user = request.metadata.get("user_id")
    return None if user is None else {"user_id": user}


def _mark(body: JsonObject) -> None:
    """Up to three of the four places that may be cached: what changes least comes first."""
    ends = [body.get("tools"), body.get("system")]
    messages = cast("list[JsonObject]", body["messages"])
    ends += [m["content"] for m in reversed(messages) if m["role"] == "user"][:1]
    for blocks in ends:
        if isinstance(blocks, list) and blocks:
            cast("JsonObject", blocks[-1])["cache_control"] = dict(CACHED)


def _messages(request: Request, provider: Provider) -> list[JsonObject]:
    """Roles alternate; the results of calls come first in what follows the calls."""
    messages: list[JsonObject] = []
    for message in request.messages:
        if message.role in ("system", "developer"):
            continue
        role = "assistant" if message.role == "assistant" else "user"
        own = message.provider in (None, provider.name)
        blocks = [block for part in message.content if (block := _block(part, own)) is not None]
        if messages and messages[-1]["role"] == role:
            cast("list[JsonObject]", messages[-1]["content"]).extend(blocks)
        elif blocks:
            messages.append({"role": role, "content": cast("list[Json]", blocks)})
    for entry in messages:
        blocks = cast("list[JsonObject]", entry["content"])
        blocks.sort(key=lambda block: block["type"] != "tool_result")
    if messages and messages[-1]["role"] == "assistant":
        last = cast("list[JsonObject]", messages[-1]["content"])[-1]
        if last["type"] == "text":
            last["text"] = str(last["text"]).rstrip()  # the API refuses blanks at the very end
    return messages


def _block(part: Part, own: bool) -> JsonObject | None:
    match part:
        case Text():
            # The API refuses a text that is blank.
            return _text(part.text) if part.text.strip() else None
        case Thinking():
            if not own or part.signature is None:
                return None  # it takes back only what it has signed
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        case RedactedThinking():
            return {"type": "redacted_thinking", "data": part.data} if own else None
        case ToolCall():
            name, arguments = part.name, cast("Json", part.arguments)
            return {"type": "tool_use", "id": _id(part.id), "name": name, "input": arguments}
        case ToolResult():
            return _result(part)
        case Image():
            return {"type": "image", "source": _source(part)}
        case Document():
            document: JsonObject = {"type": "document", "source": _source(part)}
            return {**document, "title": part.name} if part.name else document
        case Audio():
            raise MediaInvalid(
                "Anthropic's models hear nothing: audio cannot be sent to them",
                hint="Send the text of it, or ask a model that takes audio.",
            )


def _id(id: str) -> str:
    """Another vendor's ids may hold signs that this one refuses."""
    return _FOREIGN.sub("_", id)


def _result(result: ToolResult) -> JsonObject:
    content = result.content
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    block: JsonObject = {
        "type": "tool_result",
        "tool_use_id": _id(result.call_id),
        "content": text,
    }
    if result.is_error:
        block["is_error"] = True
    return block


def _source(part: Image | Document) -> JsonObject:
    address = address_of(part)
    if address is not None:
        if not address.startswith("data:"):
            return _linked(address)
        head, _, data = address.removeprefix("data:").partition(",")
        media, _, coding = head.partition(";")
        if coding.split(";")[-1] != "base64":
            raise MediaInvalid(
                "a data: URL must be in base64 to be sent to Anthropic",
                hint="Give the bytes themselves.",
            )
        return {"type": "base64", "media_type": part.media_type or media, "data": data}
    content, media = cast("bytes", part.source), part.media_type or ""
    if isinstance(part, Document):
        if media.startswith("text/"):
            text = content.decode("utf-8", "replace")
            return {"type": "text", "media_type": "text/plain", "data": text}
        if media != "application/pdf":
            raise MediaInvalid(
                f"Anthropic takes a PDF or a text for a document, not {media or 'an unknown kind'}",
                hint="Convert it to one of these, or send its text in the message.",
            )
    return {"type": "base64", "media_type": media, "data": b64encode(content).decode()}


def _linked(address: str) -> JsonObject:
    if not address.lower().startswith(("http://", "https://")):
        raise MediaInvalid(
            f"Anthropic fetches no {address.partition(':')[0]}: addresses",
            hint="Give an https address, or the bytes themselves.",
        )
    return {"type": "url", "url": address}
