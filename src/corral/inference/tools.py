"""The tools of a model call: described to the model, and run when it calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from corral.errors import ConfigError
from corral.messages import ToolCall, ToolResult
from corral.model_types import ToolChoice, ToolNamed, ToolSpec
from corral.protocol.schema.build import Schema
from corral.sessions.tools.tools import Tool, Tools
from corral.values import Json, as_object

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
        self.tools = _NONE
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
        return ToolResult(call.id, answer.text, is_error=not answer.ok, name=call.name)


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
