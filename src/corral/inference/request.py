"""What a caller gives becomes a request, or an error before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, cast, get_args

from corral.errors import ConfigError
from corral.events import Json
from corral.inference.client import Client
from corral.inference.results import Step
from corral.inference.tools import Given, Toolbox, choice_of
from corral.messages import Message, Part, parts_of
from corral.model_types import Request, ResponseFormat, ToolChoice
from corral.prompt import Prompt
from corral.values import Effort

PromptInput: TypeAlias = str | Prompt | Part | Sequence[str | Part] | None
Steps: TypeAlias = tuple[Step, ...]


class Settings(TypedDict, total=False):
    """What is told to the model beside the conversation and the tools."""

    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    stop: str | Sequence[str]
    reasoning_effort: Effort | None
    response_format: ResponseFormat | None
    metadata: Mapping[str, str]
    provider_options: Mapping[str, Mapping[str, Json]]


class RequestOptions(Settings, total=False):
    """Everything the doors take by name.

    After ``max_tool_rounds`` rounds of tools (1; 0 runs none) the calls of the last answer are
    the caller's to run. ``stop_when`` is asked after each round, with the steps so far, whether
    to stop there. ``timeout`` is for all of it, ``step_timeout`` for each answer.
    """

    messages: Sequence[Message] | None
    system: str | None
    tools: Given
    tool_choice: str | ToolChoice | None
    max_tool_rounds: int
    stop_when: Callable[[Steps], bool] | None
    max_retries: int | None
    timeout: float | None
    step_timeout: float | None
    client: Client | None


EFFORTS: tuple[str, ...] = get_args(Effort)
SETTINGS = frozenset(Settings.__annotations__)
OPTIONS = tuple(RequestOptions.__annotations__)
_TIMES = frozenset({"timeout", "step_timeout"})
_COUNTS = frozenset({"max_tool_rounds", "max_retries"})


def checked(options: Mapping[str, Any]) -> None:
    """Raises ``ConfigError`` for an option that is unknown."""
    for name in options:
        if name not in OPTIONS:
            from difflib import get_close_matches

            near = get_close_matches(name, OPTIONS, 1)
            known = ", ".join(OPTIONS)
            advice = f"did you mean {near[0]!r}?" if near else f"known are: {known}"
            raise ConfigError(f"unknown option {name!r}: {advice}")
    for name in _TIMES & options.keys():
        seconds = options[name]
        if seconds is not None and not seconds > 0:
            raise ConfigError(f"{name} must be > 0, got: {seconds:g}")
    for name in _COUNTS & options.keys():
        number = options[name]
        if number is not None and number < 0:
            raise ConfigError(f"{name} cannot be negative: {number}")


def conversation(
    prompt: PromptInput,
    messages: Sequence[Message] | None,
    system: str | None,
) -> tuple[Message, ...]:
    """Raises ``ConfigError`` for both, for neither, and for what is empty."""
    if prompt is not None and messages is not None:
        raise ConfigError(
            "prompt and messages both given", hint="Put the prompt into the messages as the last."
        )
    if prompt is None and messages is None:
        raise ConfigError("there is nothing to answer: give a prompt or messages")
    said: tuple[Message, ...]
    if prompt is not None:
        parts = parts_of(prompt.render() if isinstance(prompt, Prompt) else prompt)
        if not parts or (isinstance(prompt, str) and not prompt.strip()):
            raise ConfigError("the prompt is empty")
        said = (Message("user", parts),)
    else:
        said = tuple(messages or ())
        for message in cast("tuple[object, ...]", said):
            if not isinstance(message, Message):
                raise ConfigError(
                    f"messages holds {type(message).__name__}, not Message",
                    hint="As in Message.user('…'), Message.assistant('…').",
                )
        if not said:
            raise ConfigError("messages is empty")
    return said if system is None else (Message.system(system), *said)


def request(
    model: str,
    messages: tuple[Message, ...],
    box: Toolbox,
    tool_choice: str | ToolChoice | None,
    settings: Mapping[str, Any],
) -> Request:
    """Raises ``ConfigError`` for a setting that cannot be."""
    given = {
        name: value for name, value in settings.items() if value is not None and name in SETTINGS
    }
    if given:
        _mend(given)
    return Request(
        model=model,
        messages=messages,
        tools=box.specs,
        tool_choice=None if tool_choice is None else choice_of(tool_choice, box.specs),
        **given,
    )


def _mend(given: dict[str, Any]) -> None:
    """Settings as a request holds them."""
    for name in ("temperature", "top_p"):
        value: Any = given.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
            raise ConfigError(f"{name} must be a number of 0 or more, got: {value!r}")
    most: Any = given.get("max_tokens", 1)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ConfigError(f"max_tokens must be at least 1, got: {most!r}")
    if given.get("reasoning_effort", "low") not in EFFORTS:
        raise ConfigError(
            f"reasoning_effort is one of {', '.join(EFFORTS)}, got: {given['reasoning_effort']!r}"
        )
    stop: Any = given.get("stop", ())
    given["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    for name in ("metadata", "provider_options"):
        if name in given:
            given[name] = dict(given[name])
