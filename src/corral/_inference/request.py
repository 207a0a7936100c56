"""Builds a request from the caller's options. Invalid options raise before anything is sent.
Its tools (``Toolbox``) are described to the model, and run when it calls them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, get_args

from corral._core.lookup import nearest
from corral._inference.client import Client
from corral._inference.results import Step
from corral._protocol.schema import Schema
from corral._sessions.tools.tools import Tool, Tools
from corral.errors import ConfigError
from corral.messages import Message, Part, Text, ToolCall, ToolResult, message_from_dict, to_parts
from corral.model_types import Request, ResponseFormat, ToolChoice, ToolNamed, ToolSpec
from corral.prompt import Prompt
from corral.values import (
    Effort,
    Json,
    as_object,
    int_or_none,
    is_mapping,
    number_or_none,
)

PromptInput: TypeAlias = str | Prompt | Part | Sequence[str | Part] | None
Steps: TypeAlias = tuple[Step, ...]


class RequestSettings(TypedDict, total=False):
    """Settings of the request besides conversation and tools."""

    temperature: float | None
    """As the vendor supports it. What it does not support is left out, with a warning in
    ``response.warnings``."""
    top_p: float | None
    """As the vendor supports it."""
    max_tokens: int | None
    """The most tokens of an answer."""
    stop: str | Sequence[str]
    """Texts at which the answer ends."""
    reasoning_effort: Effort | None
    """How much the model should reason."""
    response_format: ResponseFormat | None
    """JSON, or JSON of a schema."""
    metadata: Mapping[str, str]
    """Stored by the vendor with the call."""
    provider_options: Mapping[str, Mapping[str, Json]]
    """``{"gemini": {…}}`` is merged into the request body of that vendor; ``headers`` in it are
    sent as headers. Of ``anthropic``, ``cache`` (or ``auto_cache``) ``False`` marks nothing for its
    prompt cache, and ``betas`` is a list for the header ``anthropic-beta``."""


class RequestOptions(RequestSettings, total=False):
    """The keyword options of ``generate``, ``stream`` and their variants for objects."""

    messages: Sequence[Message | Mapping[str, object]] | None
    """A conversation instead of the prompt: ``models.Message``, or dicts as in the chat completions
    API, with text, ``image_url``, ``input_audio``, ``file``, ``tool_calls``, ``tool_call_id``."""
    system: str | None
    """The system prompt."""
    tools: ToolsInput
    """Python functions, ``corral.Tool``, ``corral.Tools``; a ``ToolSpec`` only describes a tool to
    the model, and its calls are yours to run."""
    tool_choice: str | ToolChoice | None
    """``auto``, ``none``, ``required``, or the name of a tool."""
    max_tool_rounds: int
    """1; 0 never runs a tool. After them the calls of the last response are yours to run."""
    stop_when: Callable[[Steps], bool] | None
    """A function of the steps so far that ends the rounds."""
    retries: int | None
    """2, with a pause of 1 s, 2 s, 4 s …, or what the vendor says, up to 60 s."""
    on_limit: Literal["fail", "wait"]
    """``wait``: at a rate limit, wait until it ends. The wait is no retry and does not count for
    the timeouts."""
    max_wait: float | str
    """The longest such wait: 24 hours."""
    timeout: float | None
    """Seconds in total."""
    step_timeout: float | None
    """Seconds for each answer."""
    api_key: str | Mapping[str, str] | None
    """Instead of that of the environment; for models of several vendors a dict by vendor."""
    base_url: str | Mapping[str, str] | None
    """Instead of that of the environment; for models of several vendors a dict by vendor."""
    client: Client | None
    """Your own ``Client``; otherwise that of ``models.set_default_client(client)``, otherwise one
    for each event loop, closed with it."""
    otel: str | None
    """Sends OpenTelemetry spans of the call to this OTLP endpoint; ``env``: where the ``OTEL_``
    variables say."""


EFFORTS: tuple[str, ...] = get_args(Effort)
SETTING_NAMES = frozenset(RequestSettings.__annotations__)
OPTION_NAMES = tuple(RequestOptions.__annotations__)


def check_options(options: Mapping[str, object]) -> None:
    """Raises ``ConfigError`` for an unknown option or an invalid time or count."""
    for name, value in options.items():
        check = _CHECKS.get(name, _unknown_option)
        if check is not None:
            check(name, value)


def _unknown_option(name: str, _: object) -> None:
    advice = nearest(name, OPTION_NAMES, f"known: {', '.join(OPTION_NAMES)}")
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
        for message in messages or ():
            if not isinstance(message, Message) and not is_mapping(message):
                raise ConfigError(
                    f"messages must contain Message or dict, got: {type(message).__name__}",
                    hint="For example: {'role': 'user', 'content': '…'}, or Message.user('…').",
                )
        conversation = tuple(
            message if isinstance(message, Message) else message_from_dict(message)
            for message in messages or ()
        )
        if not conversation:
            raise ConfigError("messages is empty")
    else:
        parts = to_parts(prompt.render() if isinstance(prompt, Prompt) else prompt)
        if not parts:
            raise ConfigError("the prompt is empty")
        conversation = (Message("user", parts),)
    return conversation if system is None else (Message.system(system), *conversation)


def build_request(
    model: str,
    messages: tuple[Message, ...],
    toolbox: Toolbox,
    tool_choice: str | ToolChoice | None,
    settings: RequestSettings,
) -> Request:
    """The request. Raises ``ConfigError`` for an invalid setting."""
    return Request(
        model=model,
        messages=messages,
        tools=toolbox.specs,
        tool_choice=None
        if tool_choice is None
        else resolve_tool_choice(tool_choice, toolbox.specs),
        **_fields(settings),
    )


def _fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not None, checked, in the types of ``Request``."""
    fields = {name: value for name, value in settings.items() if name in SETTING_NAMES}
    fields = {name: value for name, value in fields.items() if value is not None}
    for name in ("temperature", "top_p"):
        number = number_or_none(fields.get(name, 0))
        if number is None or not 0 <= number <= 100:
            raise ConfigError(f"{name} must be a number of 0 or more, got: {fields[name]!r}")
    if (int_or_none(fields.get("max_tokens", 1)) or 0) < 1:
        raise ConfigError(f"max_tokens must be at least 1, got: {fields['max_tokens']!r}")
    if fields.get("reasoning_effort", "none") not in EFFORTS:
        known, effort = ", ".join(EFFORTS), fields["reasoning_effort"]
        raise ConfigError(f"reasoning_effort must be one of {known}, got: {effort!r}")
    if "stop" in fields:
        stop = fields["stop"]
        fields["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    if "metadata" in fields:
        fields["metadata"] = dict(fields["metadata"])
    if "provider_options" in fields:
        tables = fields["provider_options"].items()
        fields["provider_options"] = {name: dict(table) for name, table in tables}
    return fields


ToolsInput: TypeAlias = Sequence[Tool | ToolSpec | Callable[..., object]] | Tools


_NONE = Tools(())


class ToolDescription(Protocol):
    """Anything that can be described to a model as a tool."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Schema[Any]: ...


class Toolbox:
    """Functions that run here, and specs whose calls the caller runs."""

    def __init__(self, given: ToolsInput) -> None:
        self.tools: Tools = _NONE
        self.specs: tuple[ToolSpec, ...] = ()
        self._passive: frozenset[str] = frozenset()
        if not isinstance(given, Tools) and not given:
            return  # most calls have none
        if isinstance(given, Tools):
            self.tools, passive = given, tuple[ToolSpec, ...]()
        else:
            passive = tuple(each for each in given if isinstance(each, ToolSpec))
            self.tools = Tools([each for each in given if not isinstance(each, ToolSpec)])
        self._passive = frozenset(spec.name for spec in passive)
        if twice := self._passive & self.tools.by_name.keys():
            raise ConfigError(f"two tools have the name {min(twice)}")
        active = (spec_of(tool) for tool in self.tools.by_name.values())
        self.specs = (*active, *passive)

    def can_run_all(self, calls: Iterable[ToolCall]) -> bool:
        """Whether all calls can be run here. An unknown tool can: it gives an error result."""
        return not any(call.name in self._passive for call in calls)

    async def run_calls(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """Run all calls at once. The results are in the order of the calls. Raises only if it is
        cancelled."""
        if len(calls) == 1:
            return (await self._result(calls[0]),)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._result(call)) for call in calls]
        return tuple(task.result() for task in tasks)

    async def _result(self, call: ToolCall) -> ToolResult:
        if call.raw is not None:
            message = f"the arguments of {call.name} are not a JSON object: {call.raw[:200]}"
            return ToolResult(call.id, message, is_error=True, name=call.name)
        answer = await self.tools.call(call.name, call.arguments, call_id=call.id)
        text, images = answer.text, answer.images
        return ToolResult(call.id, text, is_error=not answer.ok, name=call.name, images=images)


NO_TOOLS = Toolbox(())


def spec_of(tool: ToolDescription) -> ToolSpec:
    """The spec of a tool. ``additionalProperties: false`` is removed: the arguments are checked
    here, and not every vendor supports it."""
    parameters = as_object(_without_closed_objects(tool.parameters.json))
    return ToolSpec(tool.name, tool.description, parameters)


def _without_closed_objects(schema: Json) -> Json:
    if isinstance(schema, list):
        return [_without_closed_objects(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_closed_objects(value)
        for key, value in schema.items()
        if not (key == "additionalProperties" and value is False)
    }


def resolve_tool_choice(
    choice: str | ToolChoice | None, specs: Sequence[ToolSpec]
) -> ToolChoice | None:
    """``auto``, ``none``, ``required``, or the name of a tool. Raises ``ConfigError``."""
    match choice:
        case None | "auto" | "none" | "required":
            return choice
        case ToolNamed(name) | str(name):
            pass
    if name not in {spec.name for spec in specs}:
        known = ", ".join(spec.name for spec in specs) or "none"
        raise ConfigError(
            f"tool_choice {name!r} is not a tool of this call",
            hint=f"Use auto, none, required, or one of: {known}.",
        )
    return ToolNamed(name)
