"""Builds a request from the caller's options. Invalid options raise before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict, get_args

from corral.errors import ConfigError
from corral.inference.client import Client
from corral.inference.results import Step
from corral.inference.tools import Toolbox, ToolsInput, resolve_tool_choice
from corral.messages import Message, Part, Text, message_from_dict, to_parts
from corral.model_types import Request, ResponseFormat, ToolChoice
from corral.prompt import Prompt
from corral.values import Effort, Json, JsonObject, int_or_none, is_mapping, number_or_none

PromptInput: TypeAlias = str | Prompt | Part | Sequence[str | Part] | None
Steps: TypeAlias = tuple[Step, ...]


class Settings(TypedDict, total=False):
    """Settings of the request besides conversation and tools."""

    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    stop: str | Sequence[str]
    reasoning_effort: Effort | None
    response_format: ResponseFormat | None
    metadata: Mapping[str, str]
    provider_options: Mapping[str, Mapping[str, Json]]


class RequestOptions(Settings, total=False):
    """The keyword options of ``generate``, ``stream`` and their variants for objects.

    After ``max_tool_rounds`` rounds of tools (default 1; 0 runs none) the caller must run the
    calls of the last response. ``stop_when`` is called after each round with the steps so far and
    returns whether to stop. ``timeout`` covers the complete call, ``step_timeout`` each response.

    With ``on_limit="wait"``, a call that meets a rate limit waits until it ends, at most
    ``max_wait`` (24 hours); the wait is no retry and does not count for the timeouts.

    ``messages`` may be dicts: ``{"role": "user", "content": "…"}``. ``api_key`` and ``base_url``
    are used for this call instead of those of the environment; for models of several vendors they
    are dicts by vendor.
    """

    messages: Sequence[Message | Mapping[str, object]] | None
    system: str | None
    tools: ToolsInput
    tool_choice: str | ToolChoice | None
    max_tool_rounds: int
    stop_when: Callable[[Steps], bool] | None
    retries: int | None
    on_limit: Literal["fail", "wait"]
    max_wait: float | str
    timeout: float | None
    step_timeout: float | None
    api_key: str | Mapping[str, str] | None
    base_url: str | Mapping[str, str] | None
    client: Client | None


EFFORTS: tuple[str, ...] = get_args(Effort)
SETTING_NAMES = frozenset(Settings.__annotations__)
OPTION_NAMES = tuple(RequestOptions.__annotations__)


def check_options(options: Mapping[str, object]) -> None:
    """Raises ``ConfigError`` for an unknown option or an invalid time or count."""
    for name, value in options.items():
        check = _CHECKS.get(name, _unknown_option)
        if check is not None:
            check(name, value)


def _unknown_option(name: str, _: object) -> None:
    from difflib import get_close_matches

    near = get_close_matches(name, OPTION_NAMES, 1)
    known = ", ".join(OPTION_NAMES)
    advice = f"did you mean {near[0]!r}?" if near else f"known: {known}"
    raise ConfigError(f"unknown option {name!r}: {advice}")


def _check_time(name: str, value: object) -> None:
    seconds = number_or_none(value)
    if value is not None and (seconds is None or not seconds > 0):
        raise ConfigError(f"{name} must be a number > 0, got: {value!r}")


def _check_count(name: str, value: object) -> None:
    count = int_or_none(value)
    if value is not None and (count is None or count < 0):
        raise ConfigError(f"{name} must be an integer of 0 or more, got: {value!r}")


def _check_on_limit(_: str, value: object) -> None:
    if value not in ("fail", "wait"):
        raise ConfigError(
            f"on_limit must be fail or wait, got: {value!r}",
            hint="Give a list of models to call another one at a limit.",
        )


_CHECKS: dict[str, Callable[[str, object], None] | None] = {
    **dict.fromkeys(OPTION_NAMES),
    "timeout": _check_time,
    "step_timeout": _check_time,
    "max_tool_rounds": _check_count,
    "retries": _check_count,
    "on_limit": _check_on_limit,
}
"""Of every option: what checks its value here, if anything does."""


def build_messages(
    prompt: PromptInput,
    messages: Sequence[Message | Mapping[str, object]] | None,
    system: str | None,
) -> tuple[Message, ...]:
    """The messages of the request. Raises ``ConfigError`` if both prompt and messages are given,
    if neither is, and if they are empty."""
    if prompt is not None and messages is not None:
        raise ConfigError(
            "prompt and messages both given", hint="Add the prompt as the last of the messages."
        )
    if prompt is None and messages is None:
        raise ConfigError("there is no prompt: pass a prompt or messages")
    conversation: tuple[Message, ...]
    if isinstance(prompt, str):
        if not prompt.strip():
            raise ConfigError("the prompt is empty")
        conversation = (Message("user", (Text(prompt),)),)
    elif prompt is None:
        conversation = tuple(map(_to_message, messages or ()))
        if not conversation:
            raise ConfigError("messages is empty")
    else:
        parts = to_parts(prompt.render() if isinstance(prompt, Prompt) else prompt)
        if not parts:
            raise ConfigError("the prompt is empty")
        conversation = (Message("user", parts),)
    return conversation if system is None else (Message.system(system), *conversation)


def _to_message(given: object) -> Message:
    if isinstance(given, Message):
        return given
    if is_mapping(given):
        return message_from_dict(given)
    raise ConfigError(
        f"messages must contain Message or dict, got: {type(given).__name__}",
        hint="For example: {'role': 'user', 'content': '…'}, or Message.user('…').",
    )


class _RequestFields(TypedDict, total=False):
    """``Settings`` in the types of ``Request``."""

    temperature: float
    top_p: float
    max_tokens: int
    stop: tuple[str, ...]
    reasoning_effort: Effort
    response_format: ResponseFormat
    metadata: dict[str, str]
    provider_options: dict[str, JsonObject]


def build_request(
    model: str,
    messages: tuple[Message, ...],
    toolbox: Toolbox,
    tool_choice: str | ToolChoice | None,
    settings: Settings,
) -> Request:
    """The request. Raises ``ConfigError`` for an invalid setting."""
    fields: _RequestFields = {} if SETTING_NAMES.isdisjoint(settings) else _fields(settings)
    return Request(
        model=model,
        messages=messages,
        tools=toolbox.specs,
        tool_choice=None
        if tool_choice is None
        else resolve_tool_choice(tool_choice, toolbox.specs),
        **fields,
    )


def _fields(settings: Settings) -> _RequestFields:
    """The settings that are not None, checked."""
    fields = _checked_fields(settings)
    if (stop := settings.get("stop")) is not None:
        fields["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    if (response_format := settings.get("response_format")) is not None:
        fields["response_format"] = response_format
    if (metadata := settings.get("metadata")) is not None:
        fields["metadata"] = dict(metadata)
    if (options := settings.get("provider_options")) is not None:
        fields["provider_options"] = {name: dict(table) for name, table in options.items()}
    return fields


def _checked_fields(settings: Settings) -> _RequestFields:
    fields: _RequestFields = {}
    if (temperature := settings.get("temperature")) is not None:
        _check_number("temperature", temperature)
        fields["temperature"] = temperature
    if (top_p := settings.get("top_p")) is not None:
        _check_number("top_p", top_p)
        fields["top_p"] = top_p
    if (max_tokens := settings.get("max_tokens")) is not None:
        if (int_or_none(max_tokens) or 0) < 1:
            raise ConfigError(f"max_tokens must be at least 1, got: {max_tokens!r}")
        fields["max_tokens"] = max_tokens
    if (effort := settings.get("reasoning_effort")) is not None:
        if effort not in EFFORTS:
            known = ", ".join(EFFORTS)
            raise ConfigError(f"reasoning_effort must be one of {known}, got: {effort!r}")
        fields["reasoning_effort"] = effort
    return fields


def _check_number(name: str, value: object) -> None:
    number = number_or_none(value)
    if number is None or not 0 <= number <= 100:
        raise ConfigError(f"{name} must be a number of 0 or more, got: {value!r}")
