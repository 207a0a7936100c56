"""Python functions as tools.

::

    def weather(city: str, days: int = 1) -> Forecast:
        '''The forecast for a city.

        Args:
            city: Its name, in English.
        '''

    tools = Tools([weather], hooks=[call_budget(20)])
    answer = await tools.call("weather", {"city": "Ghent"})

A call never raises: a tool that raises, hangs, is unknown, gets wrong arguments
or returns what cannot be JSON is an *error answer*, as text for the model. Only
the cancellation of the call itself passes through. The order is fixed: look up,
check the arguments, ask the hooks, run, show the answer to the hooks.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import msgspec

from corral._protocol.schema import Schema, schema_of
from corral._protocol.validation import check
from corral._sessions.tools.hooks import (
    CallFailed,
    Deny,
    Edit,
    Hook,
    HookAnswer,
    ToolRequest,
    call_function,
    describe_error,
    inner_function,
    maybe_await,
)
from corral._system.clock import Stopwatch, random_hex
from corral._system.media import load_media
from corral.errors import ConfigError, MediaInvalid, SchemaInvalid
from corral.events import Event, ToolResult, ToolUse
from corral.messages import Image, Message
from corral.values import Json, JsonObject, as_object

T = TypeVar("T")


@runtime_checkable
class _Model(Protocol):
    """A pydantic model, which is not imported here."""

    def model_dump(self, *, mode: str) -> object: ...


TIMEOUT = 120.0
"""Seconds. Agents abandon a call after 60 to 600 seconds of silence, with a less helpful
message."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,47}|mcp__[A-Za-z0-9_-]{1,59}")
"""Agents put a prefix such as ``mcp__corral__`` before it, and models stop at 64."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function, what it is called, and what it takes.

    ::

        tool = corral.Tool.of(weather, timeout=10)
        corral.run_sync("gemini-cli", "How is the weather in Ghent?", tools=[tool])
    """

    name: str
    description: str
    parameters: Schema[dict[str, object]]
    """An object schema; the function is called with a valid value."""
    function: Callable[..., object]
    positional: tuple[str, ...] = ()
    timeout: float | None = TIMEOUT
    is_answer: bool = False
    """A successful call submits the turn's answer: the agent need not write any text."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"{self.name!r} cannot be a tool's name",
                hint="Give name=: a letter, then up to 47 letters, digits, _ or -.",
            )
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigError(
                f"the timeout of {self.name} must be more than 0, got: {self.timeout:g}"
            )

    @classmethod
    def of(
        cls,
        function: Callable[..., object],
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = TIMEOUT,
    ) -> Tool:
        """The tool behind a function, sync or async, from its signature and docstring.

        Raises ``SchemaInvalid`` if its parameters cannot be described to an agent.
        """
        if not callable(function):
            raise SchemaInvalid(f"a tool must be a function, got: {type(function).__name__}")
        inner = inner_function(function)
        label = name or _name(function) or _name(inner)
        summary, described = documentation(inspect.getdoc(inner) or "")
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError) as error:
            raise SchemaInvalid(f"{label} has no readable signature: {error}") from error
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise SchemaInvalid(
                    f"{label}: {parameter} has no parameter names to describe to an agent"
                )
        return cls(
            name=label,
            description=description if description is not None else summary,
            parameters=_object(label, parameters, _hints(inner, label), described),
            function=function,
            positional=tuple(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY),
            timeout=timeout,
        )


class Tools:
    """Tools by name, with their hooks.

    ``on_event`` gets a ``ToolUse`` and a ``ToolResult`` for every call that is not ``quiet``; a
    call is quiet if the agent reports it itself. ``agent_hooks`` are called for every call of an
    agent that runs in this process, also of its own tools. Other agents do not support them.

    ::

        tools = corral.Tools([weather], hooks=[corral.call_budget(20)])
        corral.run_sync("gemini-cli", "How is the weather in Ghent?", tools=tools)
    """

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., object]],
        *,
        hooks: Iterable[Hook] = (),
        agent_hooks: Iterable[Hook] = (),
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.by_name: dict[str, Tool] = {}
        self.hooks: tuple[Hook, ...] = tuple(hooks)
        self.agent_hooks: tuple[Hook, ...] = tuple(agent_hooks)
        self.on_event = on_event
        self.answers: int = 0
        """Calls that succeeded of tools with ``is_answer``."""
        if callable(tools):
            raise ConfigError("tools must be a list of functions", hint="Write tools=[function].")
        for function in tools:
            tool = function if isinstance(function, Tool) else Tool.of(function)
            if tool.name in self.by_name:
                raise ConfigError(
                    f"two tools are called {tool.name}", hint="Rename one: Tool.of(f, name=…)."
                )
            self.by_name[tool.name] = tool

    async def call(
        self, name: str, arguments: Json = None, *, call_id: str | None = None, quiet: bool = False
    ) -> HookAnswer:
        """The answer, whatever happens. Raises nothing but ``CancelledError``."""
        call_id = call_id or random_hex(16)
        report = None if quiet else self.on_event
        if report is not None:
            report(ToolUse(call_id=call_id, name=name, kind="mcp", input=arguments))
        stopwatch = Stopwatch()
        answer = HookAnswer("cancelled", "cancelled")
        try:
            answer = await self._call_checked(name, arguments, call_id)
        finally:
            if report is not None:
                result = ToolResult(
                    call_id=call_id,
                    name=name,
                    status=answer.status,
                    output=answer.text if answer.ok else None,
                    error=None if answer.ok else answer.text,
                    duration_ms=round(stopwatch.seconds * 1000),
                )
                report(result)
        return answer

    async def _call_checked(self, name: str, arguments: Json, call_id: str) -> HookAnswer:
        tool = self.by_name.get(name)
        if tool is None:
            known = ", ".join(self.by_name) or "none"
            return HookAnswer(f"there is no tool {name!r}; known are: {known}", "error")
        given: Json = {} if arguments is None else arguments
        if not isinstance(given, dict):
            return HookAnswer(f"the arguments of {name} must be an object", "error")
        call = ToolRequest(call_id, name, given)
        values, complaints = tool.parameters.fit(given)
        if values is None:
            return _wrong_arguments(name, complaints)
        for hook in self.hooks:
            try:
                verdict = await maybe_await(hook.before(call)) if hook.before else None
            except Exception as error:
                return HookAnswer(
                    f"{name} was not run: a check of it failed: {describe_error(error)}", "error"
                )
            if isinstance(verdict, Deny):
                return await self._run_after_hooks(
                    call, HookAnswer(f"denied: {verdict.reason}", "denied")
                )
            if isinstance(verdict, Edit):
                call = ToolRequest(call_id, name, verdict.arguments)
                values, complaints = tool.parameters.fit(call.arguments)
                if values is None:
                    return _wrong_arguments(name, complaints)
        answer = await self._run_after_hooks(call, await _run(tool, values))
        self.answers += tool.is_answer and answer.ok
        return answer

    async def _run_after_hooks(self, call: ToolRequest, answer: HookAnswer) -> HookAnswer:
        for hook in self.hooks:
            try:
                other = await maybe_await(hook.after(call, answer)) if hook.after else None
            except Exception as error:
                why = describe_error(error)
                return HookAnswer(
                    f"{call.name} has run, but a check of its answer failed: {why}", "error"
                )
            answer = other or answer
        return answer


GivenTools: TypeAlias = Sequence[Tool | Callable[..., object]] | Tools
"""How callers give tools: functions, or functions with names and limits of their own."""


def _wrong_arguments(name: str, complaints: tuple[str, ...]) -> HookAnswer:
    listed = "".join(f"\n- {complaint}" for complaint in complaints)
    return HookAnswer(f"the arguments do not fit {name}; it was not run:{listed}", "error")


async def _run(tool: Tool, values: dict[str, object]) -> HookAnswer:
    first = [values.pop(name) for name in tool.positional if name in values]
    try:
        call = partial(tool.function, *first, **values)
        returned = await call_function(call, tool.timeout)
    except CallFailed as failure:
        why = f"timed out after {tool.timeout:g}s" if failure.is_late else str(failure)
        return HookAnswer(f"{tool.name} {why}", "error")
    if isinstance(returned, HookAnswer):
        return returned
    try:
        return await _answer(returned)
    except MediaInvalid as error:
        return HookAnswer(f"{tool.name} returned an image that cannot be sent: {error}", "error")
    except Exception as error:  # a model's own serializer may raise anything
        return HookAnswer(
            f"{tool.name} returned a value that is not JSON: {describe_error(error)}",
            "error",
        )


async def _answer(returned: object) -> HookAnswer:
    """What a function returned: a text, an image, a list with images, or any JSON value."""
    if isinstance(returned, str):  # a lone surrogate cannot be encoded
        return HookAnswer(returned.encode("utf-8", "replace").decode())
    is_list = isinstance(returned, list | tuple)
    several = cast("Sequence[object]", returned) if is_list else [returned]
    if not any(isinstance(part, Image) for part in several):
        return HookAnswer(msgspec.json.encode(returned, enc_hook=_encoded).decode())
    images: list[Image] = []
    texts: list[str] = []
    for part in several:
        if not isinstance(part, Image):
            texts.append((await _answer(part)).text)
            continue
        (loaded,) = (await load_media([Message.user(part)]))[0].content
        if isinstance(loaded, Image) and isinstance(loaded.source, bytes):
            images.append(loaded)
            texts.append(f"[image: {loaded.media_type}]")
        else:
            texts.append(str(part.source))  # a URL, which is not fetched here
    return HookAnswer("\n".join(texts), images=tuple(images))


def _name(function: Callable[..., object]) -> str:
    name: str = getattr(function, "__name__", "")
    return name


def _encoded(value: object) -> object:
    if isinstance(value, _Model):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"a {type(value).__name__}")


def _hints(inner: Callable[..., object], label: str) -> dict[str, object]:
    try:
        return typing.get_type_hints(inner, include_extras=True)
    except Exception as error:  # annotations are the caller's own code
        raise SchemaInvalid(
            f"{label}: its annotations cannot be read: {error}",
            hint="Types that an annotation names as text must be found in its module.",
        ) from error


def _object(
    label: str,
    parameters: list[inspect.Parameter],
    hints: Mapping[str, object],
    described: Mapping[str, str],
) -> Schema[dict[str, object]]:
    """One schema for all parameters, their definitions at its root."""
    properties: JsonObject = {}
    defs: JsonObject = {}
    schemas: dict[str, Schema[object]] = {}
    for parameter in parameters:
        hint = hints.get(parameter.name, Any)
        schemas[parameter.name] = schema_of(hint, f"{label}.{parameter.name}")
        json = dict(schemas[parameter.name].json)
        for name, found in as_object(json.pop("$defs", None)).items():
            if defs.setdefault(name, found) != found:
                raise SchemaInvalid(f"{label}: two different types are called {name}")
        about = _annotated(hint) or described.get(parameter.name)
        if about is not None:
            json.setdefault("description", about)
        if isinstance(parameter.default, str | int | float | bool):
            json.setdefault("default", parameter.default)
        properties[parameter.name] = json
    required = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    combined: JsonObject = {"type": "object", "properties": properties, "required": [*required]}
    combined |= {"additionalProperties": False, **({"$defs": defs} if defs else {})}

    def read(given: Json) -> tuple[dict[str, object], list[str]]:
        values: dict[str, object] = {}
        wrong: list[str] = []
        arguments = as_object(given)
        for name in schemas.keys() & arguments.keys():
            values[name], complaints = schemas[name].fit(arguments[name])
            wrong += [f"{name}: {complaint}" for complaint in complaints]
        if wrong or not values.keys() >= {*required} or arguments.keys() != values.keys():
            return {}, check(given, combined) or wrong
        return values, []

    return Schema(label, combined, read)


def _annotated(hint: object) -> str | None:
    for note in getattr(hint, "__metadata__", ()):
        about = note if isinstance(note, str) else getattr(note, "description", None)
        if isinstance(about, str):
            return about
    return None


_PARAMETER_SECTIONS = ("Args", "Arguments", "Parameters", "Params")
_SECTIONS = (
    *_PARAMETER_SECTIONS,
    "Returns",
    "Return",
    "Raises",
    "Yields",
    "Examples",
    "Example",
    "Notes",
)
_ENTRY = re.compile(r"\*{0,2}(\w+)(?:(?:\s*\([^)]*\))?:(?:\s+(.*))?|(?: : .*)?)")
"""``name (type): text`` of Google's style, or ``name : type`` of numpy's."""
_FIELD = re.compile(r":param\s([^:]*):\s*(.*)")
"""``:param type name: text`` of reST."""


def documentation(doc: str) -> tuple[str, dict[str, str]]:
    """The summary of a docstring, and the text of each parameter: Google, numpy or reST style."""
    reader = _DocstringReader()
    for line in doc.splitlines():
        reader.read(line)
    combined = {name: " ".join(filter(None, parts)) for name, parts in reader.described.items()}
    texts = {name: text for name, text in combined.items() if text}
    return "\n".join(reader.summary).strip(), texts


class _DocstringReader:
    """Collects the lines of a docstring: of the summary, or of the parameter that they describe."""

    def __init__(self) -> None:
        self.summary: list[str] = []
        self.described: dict[str, list[str]] = {}
        self._current = self.summary
        """Where a line goes that starts nothing new."""
        self._in_parameters = False
        self._depth = -1
        """The indentation of the parameters' names; -1 before the first."""

    def read(self, line: str) -> None:
        text, indent = line.strip(), len(line) - len(line.lstrip())
        section = text.removesuffix(":")
        if (field := _FIELD.match(text)) and (words := field[1].split()):
            self._current = self.described.setdefault(words[-1], [field[2]])
        elif text.startswith(":") and not self._in_parameters:
            self._current = []
        elif indent == 0 and section in _SECTIONS:
            self._in_parameters = section in _PARAMETER_SECTIONS
            self._depth, self._current = -1, []
        elif not self._in_parameters:
            self._current.append(text)
        elif text and set(text) != {"-"}:
            self._read_parameter(text, indent)

    def _read_parameter(self, text: str, indent: int) -> None:
        self._depth = indent if self._depth < 0 else self._depth
        if indent <= self._depth and (entry := _ENTRY.fullmatch(text)):
            self._current = self.described.setdefault(entry[1], [entry[2] or ""])
        else:
            self._current.append(text)
