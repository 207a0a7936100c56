"""The protocol's methods: the parameters that the client sends, and how it reads the replies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from corral.errors import InvalidRequest, PromptError, StreamBroken
from corral.events import Unknown
from corral.protocol.acp.frames import (
    AgentCapabilities,
    AgentInfo,
    ConfigOption,
    InitializeResult,
    ListResult,
    McpCapabilities,
    Models,
    Modes,
    PromptCapabilities,
    PromptResult,
    PromptTokens,
    Quota,
    QuotaTokens,
    SessionResult,
)
from corral.protocol.acp.quirks import AcpQuirks
from corral.protocol.ndjson import RawEvent, TurnEnd
from corral.values import (
    AgentSession,
    Cost,
    Json,
    JsonObject,
    McpServer,
    Usage,
    as_list,
    convert_to,
    text_or_none,
)

PROTOCOL_VERSION = 1
"""If we offer 2, some agents switch to another schema and reject our parameters."""
_MENTION = r"(?<![^\s\ufeff])@"
MAX_DETAIL = 500
"""Characters of an error's ``data`` that are copied into the message."""

MESSAGES = {
    "max_tokens": "the model reached its token limit before the answer was complete",
    "max_turn_requests": "the agent reached its limit of model requests in one turn",
    "refusal": "the model refused to answer",
    "cancelled": "the turn was cancelled",
}
R = TypeVar("R")


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ImageBlock(msgspec.Struct, frozen=True, tag_field="type", tag="image", rename="camel"):
    data: str
    """Base64."""
    mime_type: str


class AudioBlock(msgspec.Struct, frozen=True, tag_field="type", tag="audio", rename="camel"):
    data: str
    mime_type: str


class Resource(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = None


class ResourceBlock(msgspec.Struct, frozen=True, tag_field="type", tag="resource"):
    """A file with its content, for agents that offer ``embeddedContext``."""

    resource: Resource


class LinkBlock(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag_field="type",
    tag="resource_link",
    rename="camel",
):
    """A file by its URI. The agent reads it."""

    uri: str
    name: str
    mime_type: str | None = None
    size: int | None = None


Block: TypeAlias = TextBlock | ImageBlock | AudioBlock | ResourceBlock | LinkBlock


class Offer(msgspec.Struct, frozen=True):
    """What this client does for the agent. A call of any other method is rejected."""

    read_files: bool = False
    write_files: bool = False
    questions: bool = False
    """A person answers forms."""

    def covers(self, method: str) -> bool:
        return (self.read_files and method == "fs/read_text_file") or (
            self.write_files and method == "fs/write_text_file"
        )


def initialize_params(offer: Offer, name: str, version: str) -> JsonObject:
    questions: JsonObject = {"elicitation": {"form": {}}} if offer.questions else {}
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "clientCapabilities": {
            "fs": {"readTextFile": offer.read_files, "writeTextFile": offer.write_files},
            "terminal": False,
            **questions,
        },
        "clientInfo": {"name": name, "version": version},
    }


def authenticate_params(method_id: str, meta: JsonObject | None = None) -> JsonObject:
    return {"methodId": method_id, **({"_meta": meta} if meta else {})}


def session_params(cwd: str, servers: Iterable[McpServer], session_id: str = "") -> JsonObject:
    """Parameters of ``session/new``; with an id of ``session/load`` and ``session/resume``."""
    named: JsonObject = {"sessionId": session_id} if session_id else {}
    return {**named, "cwd": cwd, "mcpServers": [mcp_server(server) for server in servers]}


def mcp_server(server: McpServer) -> JsonObject:
    if server.url is not None:
        headers = _pairs(server.headers)
        return {"type": "http", "name": server.name, "url": server.url, "headers": headers}
    program, *args = server.command or ("",)
    return {
        "name": server.name,
        "command": program,
        "args": list(args),
        "env": _pairs(server.env),
    }


def model_params(quirks: AcpQuirks, session_id: str, model: str) -> tuple[str, JsonObject] | None:
    """The method and its parameters; ``None`` if the agent cannot choose a model."""
    match quirks.set_model:
        case "session/set_model":
            return "session/set_model", {"sessionId": session_id, "modelId": model}
        case "session/set_config_option":
            return "session/set_config_option", config_option_params(session_id, "model", model)
        case None:
            return None


def config_option_params(session_id: str, config_id: str, value: str) -> JsonObject:
    return {"sessionId": session_id, "configId": config_id, "value": value}


def prompt_params(quirks: AcpQuirks, session_id: str, blocks: Sequence[Block]) -> dict[str, object]:
    """Raises ``PromptError`` for an empty prompt: some agents hang after one."""
    if not any(not isinstance(block, TextBlock) or block.text.strip() for block in blocks):
        raise PromptError("the prompt is empty", hint="Describe the task.")
    first, *rest = blocks
    if isinstance(first, TextBlock) and first.text.startswith(quirks.command_prefixes):
        first = TextBlock(quirks.command_escape + first.text)
    sent = [first, *rest]
    if quirks.mention_escape:
        # A word that starts with "@" names a file, which the agent would add to the prompt.
        sent = [
            TextBlock(re.sub(_MENTION, lambda at: quirks.mention_escape + at[0], block.text))
            if isinstance(block, TextBlock)
            else block
            for block in sent
        ]
    return {"sessionId": session_id, "prompt": sent}


def _pairs(values: dict[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in values.items()]


class AgentFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent reports about itself in reply to ``initialize``."""

    name: str
    version: str | None
    can_load: bool
    """``session/load`` is offered: the agent loads a session and replays its history."""
    session_methods: frozenset[str]
    """Other session methods that it offers: ``resume``, ``list``, ``close``, ``fork`` ..."""
    images: bool
    audio: bool
    embeds_files: bool
    """Accepts files with their content. Links are always accepted."""
    mcp_http: bool
    auth_methods: tuple[str, ...]


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a session offers. Empty where the agent does not report it."""

    session_id: str
    models: tuple[str, ...]
    model: str | None
    modes: tuple[str, ...]
    mode: str | None
    config: tuple[str, ...]
    """Ids of its configuration options."""


def read_initialize(result: Json) -> AgentFeatures:
    """Read the reply to ``initialize``. Raises ``InvalidRequest`` if the agent uses another
    version of the protocol."""
    reply = convert_result(result, InitializeResult)
    if str(reply.protocol_version) != str(PROTOCOL_VERSION):
        raise InvalidRequest(
            f"the agent uses version {reply.protocol_version} of the Agent Client Protocol,"
            f" but corral needs version {PROTOCOL_VERSION}",
            hint="Install a version of the agent that supports it, or update corral.",
            phase="handshake",
        )
    capabilities = reply.agent_capabilities or AgentCapabilities()
    prompts = capabilities.prompt_capabilities or PromptCapabilities()
    mcp = capabilities.mcp_capabilities or McpCapabilities()
    info = reply.agent_info or AgentInfo()
    methods = capabilities.session_capabilities or {}
    return AgentFeatures(
        name=info.name,
        version=info.version,
        can_load=capabilities.load_session,
        session_methods=frozenset(
            name for name, offered in methods.items() if offered not in (None, False)
        ),
        images=prompts.image,
        audio=prompts.audio,
        embeds_files=prompts.embedded_context,
        mcp_http=mcp.http,
        auth_methods=tuple(method.id for method in reply.auth_methods or ()),
    )


def read_session(result: Json, session_id: str = "") -> SessionInfo:
    """Read the reply to ``session/new``, ``load`` or ``resume``. The last two carry no id."""
    reply = convert_result(result, SessionResult)
    if not (reply.session_id or session_id):
        raise StreamBroken("the agent opened a session without an id", phase="handshake")
    options = reply.config_options or []
    models, modes = reply.models or Models(), reply.modes or Modes()
    model, mode = _find_option(options, "model"), _find_option(options, "mode")
    return SessionInfo(
        session_id=reply.session_id or session_id,
        models=tuple(
            [each.model_id for each in models.available_models] or _option_values(model.options)
        ),
        model=models.current_model_id or text_or_none(model.current_value),
        modes=tuple([each.id for each in modes.available_modes] or _option_values(mode.options)),
        mode=modes.current_mode_id or text_or_none(mode.current_value),
        config=tuple(dict.fromkeys(option.id for option in options)),
    )


def _find_option(options: list[ConfigOption], name: str) -> ConfigOption:
    """The option with this category, or else with this id; an empty one if there is neither."""
    by_category = (option for option in options if option.category == name)
    by_id = (option for option in reversed(options) if option.id == name)
    return next(by_category, None) or next(by_id, None) or ConfigOption(name)


def read_session_list(result: Json) -> tuple[list[AgentSession], str | None]:
    """One page of the agent's sessions, and the cursor of the next page."""
    reply = convert_result(result, ListResult)
    found = [AgentSession(s.session_id, s.cwd, s.title, s.updated_at) for s in reply.sessions]
    return found, reply.next_cursor


def convert_result(result: Json, kind: type[R]) -> R:
    """The result of a reply as a struct. Raises ``StreamBroken`` if it does not fit."""
    try:
        return convert_to({} if result is None else result, kind)
    except msgspec.ValidationError as error:
        raise StreamBroken(
            f"the agent sent an invalid reply: {error}", phase="handshake"
        ) from error


def turn_end(
    result: Json, quirks: AcpQuirks, chunk_usage: Usage, cost: Cost, items: list[RawEvent]
) -> TurnEnd:
    """The end of a turn. ``chunk_usage`` and ``cost`` were reported during the turn. A usage that
    cannot be read is added to ``items``: the answer is complete without it."""
    result = {} if result is None else result
    try:
        reply = convert_to(result, PromptResult)
    except msgspec.ValidationError as error:
        known = {"stopReason": result.get("stopReason")} if isinstance(result, dict) else result
        try:
            reply = convert_to(known, PromptResult)
        except msgspec.ValidationError:
            return TurnEnd(
                ok=False, kind="malformed_reply", message=f"the end of the turn is invalid: {error}"
            )
        items.append(Unknown(result))
    reason = reply.stop_reason
    ok = reason == "end_turn"
    quota = reply.meta.quota if reply.meta else None
    reported_usage = _turn_usage(reply, quota, complete=quirks.usage != "last_step")
    message = None
    if not ok:
        message = MESSAGES.get(reason, f"the turn ended for an unknown reason: {reason!r}")
    return TurnEnd(
        ok=ok,
        stop_reason=reason or None,
        usage=reported_usage if reported_usage != Usage() else chunk_usage,
        usage_by_model=_usage_by_model(quota),
        cost=cost,
        model=_main_model(quota),
        kind=None if ok else reason,
        message=message,
    )


def failed_turn_end(code: int, message: str, data: Json) -> TurnEnd:
    """The end of a turn whose prompt got an error reply; details come from its ``data``."""
    detail = _error_detail(data)
    text = message if not detail or detail in message else f"{message}: {detail}".strip(": ")
    return TurnEnd(ok=False, kind=str(code), message=text)


def usage_from_tokens(reply: PromptTokens, *, complete: bool = True) -> Usage:
    """Usage as we count it. Agents differ in whether ``input`` includes cached tokens and
    ``output`` includes reasoning; the total shows which."""
    if reply.input_tokens is None and reply.output_tokens is None:
        return Usage()
    read, written = reply.input_tokens or 0, reply.output_tokens or 0
    cached = (reply.cached_read_tokens or 0) + (reply.cached_write_tokens or 0)
    thought = reply.thought_tokens or 0
    for more_in, more_out in ((0, 0), (cached, 0), (cached, thought), (0, thought)):
        if read + more_in + written + more_out == reply.total_tokens:
            read, written = read + more_in, written + more_out
            break
    return Usage(
        input=read if reply.input_tokens is not None else None,
        output=written if reply.output_tokens is not None else None,
        reasoning=reply.thought_tokens,
        cache_read=reply.cached_read_tokens,
        cache_write=reply.cached_write_tokens,
        coverage="complete" if complete else "partial",
    )


def _turn_usage(reply: PromptResult, quota: Quota | None, *, complete: bool) -> Usage:
    if reply.usage is not None:
        return usage_from_tokens(reply.usage, complete=complete)
    count = quota.token_count if quota else None
    if count is None or (count.input_tokens is None and count.output_tokens is None):
        return Usage()
    return Usage(input=count.input_tokens, output=count.output_tokens, coverage="partial")


def _usage_by_model(quota: Quota | None) -> dict[str, Usage]:
    """Usage by model. Models that are listed without counts are left out."""
    counts = {each.model: each.token_count for each in (quota and quota.model_usage) or ()}
    found = {name: _usage_from_quota(count) for name, count in counts.items() if count is not None}
    return {name: usage for name, usage in found.items() if usage != Usage()}


def _usage_from_quota(count: QuotaTokens) -> Usage:
    if count.input_tokens is not None or count.output_tokens is not None:
        return Usage(input=count.input_tokens, output=count.output_tokens, coverage="partial")
    written = count.camel_write if count.camel_write is not None else count.camel_write_input
    reply = PromptTokens(
        input_tokens=count.camel_input,
        output_tokens=count.camel_output,
        cached_read_tokens=count.camel_read,
        cached_write_tokens=written,
        thought_tokens=count.camel_thought,
        total_tokens=count.camel_total,
    )
    return usage_from_tokens(reply)


def _main_model(quota: Quota | None) -> str | None:
    """The model with most output: a small router model may be listed too."""

    def written(at: int) -> int:
        count = used[at].token_count
        return (count.output_tokens or count.camel_output or 0) if count else 0

    used = (quota.model_usage if quota else None) or []
    return used[max(range(len(used)), key=written)].model if used else None


def _error_detail(data: Json) -> str:
    match data:
        case str(text):
            return text[:MAX_DETAIL]
        case {"details": str(text)} | {"message": str(text)} | {"error": {"message": str(text)}}:
            return text[:MAX_DETAIL]
        case [{"message": str(text)}, *_]:
            return text[:MAX_DETAIL]
        case _:
            return ""


def _option_values(options: list[Json] | None) -> list[str]:
    """The values of a choice. Its options may be grouped."""
    found: list[str] = []
    for option in options or ():
        match option:
            case {"value": str(value)}:
                found.append(value)
            case {"options": group}:
                found += _option_values(as_list(group))
            case _:
                pass
    return found
