"""Builds a request from the caller's options. Invalid options raise before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, cast, get_args

from corral.errors import ConfigError
from corral.inference.client import Client
from corral.inference.results import Step
from corral.inference.tools import Toolbox, ToolsInput, resolve_tool_choice
from corral.messages import Message, Part, to_parts
from corral.model_types import Request, ResponseFormat, ToolChoice
from corral.prompt import Prompt
from corral.values import Effort, Json

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
    """

    messages: Sequence[Message] | None
    system: str | None
    tools: ToolsInput
    tool_choice: str | ToolChoice | None
    max_tool_rounds: int
    stop_when: Callable[[Steps], bool] | None
    max_retries: int | None
    timeout: float | None
    step_timeout: float | None
    client: Client | None


EFFORTS: tuple[str, ...] = get_args(Effort)
SETTING_NAMES = frozenset(Settings.__annotations__)
OPTION_NAMES = tuple(RequestOptions.__annotations__)
_TIMES = frozenset({"timeout", "step_timeout"})
_COUNTS = frozenset({"max_tool_rounds", "max_retries"})


def check_options(options: Mapping[str, Any]) -> None:
    """Raises ``ConfigError`` for an unknown option or an invalid time or count."""
    for name in options:
        if name not in OPTION_NAMES:
            from difflib import get_close_matches

            near = get_close_matches(name, OPTION_NAMES, 1)
            known = ", ".join(OPTION_NAMES)
            advice = f"did you mean {near[0]!r}?" if near else f"known: {known}"
            raise ConfigError(f"unknown option {name!r}: {advice}")
    for name in _TIMES & options.keys():
        seconds = options[name]
        if seconds is not None and not seconds > 0:
            raise ConfigError(f"{name} must be > 0, got: {seconds:g}")
    for name in _COUNTS & options.keys():
        number = options[name]
        if number is not None and number < 0:
            raise ConfigError(f"{name} must not be negative, got: {number}")


def build_messages(
    prompt: PromptInput,
    messages: Sequence[Message] | None,
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
    if prompt is not None:
        parts = to_parts(prompt.render() if isinstance(prompt, Prompt) else prompt)
        if not parts or (isinstance(prompt, str) and not prompt.strip()):
            raise ConfigError("the prompt is empty")
        conversation = (Message("user", parts),)
    else:
        conversation = tuple(messages or ())
        for message in cast("tuple[object, ...]", conversation):
            if not isinstance(message, Message):
                raise ConfigError(
                    f"messages must contain Message, got: {type(message).__name__}",
                    hint="For example: Message.user('…'), Message.assistant('…').",
                )
        if not conversation:
            raise ConfigError("messages is empty")
    return conversation if system is None else (Message.system(system), *conversation)


def build_request(
    model: str,
    messages: tuple[Message, ...],
    toolbox: Toolbox,
    tool_choice: str | ToolChoice | None,
    settings: Mapping[str, Any],
) -> Request:
    """The request. Raises ``ConfigError`` for an invalid setting."""
    given = {
        name: value
        for name, value in settings.items()
        if value is not None and name in SETTING_NAMES
    }
    if given:
        _normalize_settings(given)
    return Request(
        model=model,
        messages=messages,
        tools=toolbox.specs,
        tool_choice=None
        if tool_choice is None
        else resolve_tool_choice(tool_choice, toolbox.specs),
        **given,
    )


def _normalize_settings(given: dict[str, Any]) -> None:
    """Check the settings and convert them to the types of ``Request``."""
    for name in ("temperature", "top_p"):
        value: Any = given.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
            raise ConfigError(f"{name} must be a number of 0 or more, got: {value!r}")
    most: Any = given.get("max_tokens", 1)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ConfigError(f"max_tokens must be at least 1, got: {most!r}")
    if given.get("reasoning_effort", "low") not in EFFORTS:
        raise ConfigError(
            f"reasoning_effort must be one of {', '.join(EFFORTS)},"
            f" got: {given['reasoning_effort']!r}"
        )
    stop: Any = given.get("stop", ())
    given["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    for name in ("metadata", "provider_options"):
        if name in given:
            given[name] = dict(given[name])
