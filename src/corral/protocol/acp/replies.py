"""Replies of an agent → our own words: what it is, what a session offers, how a turn ended."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec

from corral.errors import InvalidRequest, StreamBroken
from corral.events import Json
from corral.protocol.acp.frames import (
    InitializeResult,
    ListResult,
    PromptResult,
    Quota,
    QuotaTokens,
    SessionResult,
    Tokens,
)
from corral.protocol.acp.quirks import AcpQuirks
from corral.protocol.acp.requests import PROTOCOL_VERSION
from corral.protocol.ndjson import TurnEnd
from corral.values import AgentSession, Cost, Usage

DETAIL = 500
"""Characters of an error's ``data`` that go into a message."""

MESSAGES = {
    "max_tokens": "the model reached its token limit before the answer was complete",
    "max_turn_requests": "the agent reached its limit of model requests in one turn",
    "refusal": "the model refused to answer",
    "cancelled": "the turn was cancelled",
}
R = TypeVar("R")


class Initialized(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent says of itself."""

    name: str
    version: str | None
    loads: bool
    """``session/load`` is offered: a session comes back with its history replayed."""
    sessions: frozenset[str]
    """What else it does with sessions: ``resume``, ``list``, ``close``, ``fork`` …"""
    images: bool
    audio: bool
    embeds: bool
    """Takes files with their content; a link it always takes."""
    mcp_http: bool
    auth_methods: tuple[str, ...]


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """What a session offers. Empty where the agent does not tell."""

    session_id: str
    models: tuple[str, ...]
    model: str | None
    modes: tuple[str, ...]
    mode: str | None
    config: tuple[str, ...]
    """Ids of its configuration options."""


def initialized(result: Json) -> Initialized:
    """Raises ``InvalidRequest`` where the agent speaks another version of the protocol."""
    told = read(result, InitializeResult)
    if str(told.protocol_version) != str(PROTOCOL_VERSION):
        raise InvalidRequest(
            f"the agent speaks version {told.protocol_version} of the Agent Client Protocol,"
            f" and version {PROTOCOL_VERSION} is spoken here",
            hint="Install a version of the agent that speaks it, or update corral.",
            phase="handshake",
        )
    can = told.agent_capabilities
    prompts = can.prompt_capabilities if can else None
    mcp = can.mcp_capabilities if can else None
    info = told.agent_info
    return Initialized(
        name=info.name if info else "",
        version=info.version if info else None,
        loads=can is not None and can.load_session,
        sessions=frozenset(
            name
            for name, how in ((can.session_capabilities if can else None) or {}).items()
            if how is not None and how is not False
        ),
        images=prompts is not None and prompts.image,
        audio=prompts is not None and prompts.audio,
        embeds=prompts is not None and prompts.embedded_context,
        mcp_http=mcp is not None and mcp.http,
        auth_methods=tuple(method.id for method in told.auth_methods or ()),
    )


def opened(result: Json, session_id: str = "") -> Opened:
    """Of a reply to ``session/new``, ``load`` or ``resume``; the last two name no session."""
    told = read(result, SessionResult)
    if not (told.session_id or session_id):
        raise StreamBroken("the agent opened a session and did not name it", phase="handshake")
    config = {option.id: option for option in told.config_options or ()}
    by_category = {option.category: option for option in reversed(told.config_options or ())}
    model = by_category.get("model") or config.get("model")
    mode = by_category.get("mode") or config.get("mode")
    models = [entry.model_id for entry in told.models.available_models] if told.models else []
    modes = [entry.id for entry in told.modes.available_modes] if told.modes else []
    return Opened(
        session_id=told.session_id or session_id,
        models=tuple(models or (_values(model.options) if model else ())),
        model=(told.models.current_model_id if told.models else None)
        or (_text(model.current_value) if model else None),
        modes=tuple(modes or (_values(mode.options) if mode else ())),
        mode=(told.modes.current_mode_id if told.modes else None)
        or (_text(mode.current_value) if mode else None),
        config=tuple(config),
    )


def listed(result: Json) -> tuple[list[AgentSession], str | None]:
    """One page of the agent's sessions, and where the next one begins."""
    told = read(result, ListResult)
    found = [AgentSession(s.session_id, s.cwd, s.title, s.updated_at) for s in told.sessions]
    return found, told.next_cursor


def read(result: Json, kind: type[R]) -> R:
    """A reply's result as a struct. Raises ``StreamBroken`` where it is none."""
    try:
        return msgspec.convert({} if result is None else result, kind)
    except msgspec.ValidationError as error:
        raise StreamBroken(
            f"a reply of the agent cannot be understood: {error}", phase="handshake"
        ) from error


def finish(result: Json, quirks: AcpQuirks, counted: Usage, cost: Cost) -> TurnEnd:
    """The end of a turn. ``counted`` and ``cost`` are what was told on the way."""
    try:
        told = msgspec.convert({} if result is None else result, PromptResult)
    except msgspec.ValidationError as error:
        return TurnEnd(
            ok=False, kind="malformed_reply", message=f"the turn's end is unreadable: {error}"
        )
    reason = told.stop_reason
    ok = reason == "end_turn"
    quota = told.meta.quota if told.meta else None
    told_usage = _usage(told, quota, whole=quirks.usage != "last_step")
    message = None
    if not ok:
        message = MESSAGES.get(reason, f"the turn ended for a reason nobody knows: {reason!r}")
    return TurnEnd(
        ok=ok,
        stop_reason=reason or None,
        usage=told_usage if told_usage != Usage() else counted,
        usage_by_model=_by_model(quota),
        cost=cost,
        model=_model(quota),
        kind=None if ok else reason,
        message=message,
    )


def failed(code: int, message: str, data: Json) -> TurnEnd:
    """A prompt that ended in an error, with what its ``data`` adds."""
    detail = _detail(data)
    told = message if not detail or detail in message else f"{message}: {detail}".strip(": ")
    return TurnEnd(ok=False, kind=str(code), message=told)


def tokens(told: Tokens, *, whole: bool = True) -> Usage:
    """Whether ``input`` holds the cache and ``output`` the reasoning differs from agent
    to agent; the total tells which."""
    if told.input_tokens is None and told.output_tokens is None:
        return Usage()
    taken, written = told.input_tokens or 0, told.output_tokens or 0
    cached = (told.cached_read_tokens or 0) + (told.cached_write_tokens or 0)
    thought = told.thought_tokens or 0
    for more_in, more_out in ((0, 0), (cached, 0), (cached, thought), (0, thought)):
        if taken + more_in + written + more_out == told.total_tokens:
            taken, written = taken + more_in, written + more_out
            break
    return Usage(
        input=taken if told.input_tokens is not None else None,
        output=written if told.output_tokens is not None else None,
        reasoning=told.thought_tokens,
        cache_read=told.cached_read_tokens,
        cache_write=told.cached_write_tokens,
        coverage="complete" if whole else "partial",
    )


def _usage(told: PromptResult, quota: Quota | None, *, whole: bool) -> Usage:
    if told.usage is not None:
        return tokens(told.usage, whole=whole)
    count = quota.token_count if quota else None
    if count is None or (count.input_tokens is None and count.output_tokens is None):
        return Usage()
    return Usage(input=count.input_tokens, output=count.output_tokens, coverage="partial")


def _by_model(quota: Quota | None) -> dict[str, Usage]:
    """Models that are listed without any count are left out."""
    counts = {each.model: each.token_count for each in (quota and quota.model_usage) or ()}
    found = {name: _counted(count) for name, count in counts.items() if count is not None}
    return {name: usage for name, usage in found.items() if usage != Usage()}


def _counted(count: QuotaTokens) -> Usage:
    if count.input_tokens is not None or count.output_tokens is not None:
        return Usage(input=count.input_tokens, output=count.output_tokens, coverage="partial")
    written = count.camel_write if count.camel_write is not None else count.camel_write_input
    told = Tokens(
        input_tokens=count.camel_input,
        output_tokens=count.camel_output,
        cached_read_tokens=count.camel_read,
        cached_write_tokens=written,
        thought_tokens=count.camel_thought,
        total_tokens=count.camel_total,
    )
    return tokens(told)


def _model(quota: Quota | None) -> str | None:
    """The one that wrote most: a small router model may stand beside it."""

    def written(at: int) -> int:
        count = used[at].token_count
        return (count.output_tokens or count.camel_output or 0) if count else 0

    used = (quota.model_usage if quota else None) or []
    return used[max(range(len(used)), key=written)].model if used else None


def _detail(data: Json) -> str:
    match data:
        case str(text):
            return text[:DETAIL]
        case {"details": str(text)} | {"message": str(text)} | {"error": {"message": str(text)}}:
            return text[:DETAIL]
        case [{"message": str(text)}, *_]:
            return text[:DETAIL]
        case _:
            return ""


def _values(options: list[Any] | None) -> list[str]:
    """Of a choice; its options may stand in groups."""
    found: list[str] = []
    for option in options or ():
        match option:
            case {"value": str(value)}:
                found.append(value)
            case {"options": list()}:
                found += _values(cast("dict[str, list[Any]]", option)["options"])
            case _:
                pass
    return found


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
