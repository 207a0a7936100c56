"""The record that describes a tool of the built-in agent.

The arguments of a tool are a struct (``Arguments``), from which the schema for the model is made;
one function does the work. ``BuiltinTool.call`` does not raise for mistakes that the model can fix:
they come back as an ``Outcome`` with ``is_error``. Permissions are not checked here; ``kind``,
``paths`` and ``command`` are for the code that does.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec

from corral.builtin.tools.truncate import Limits, truncate
from corral.builtin.tools.workspace import ToolError, Workspace, replace_surrogates
from corral.errors import CorralError
from corral.events import FileKind, ToolKind
from corral.protocol.schema.build import Schema, schema_of
from corral.values import Json

Output = Callable[[str], None]
"""Receives the output of a tool while it runs."""
Args = dict[str, Json]


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a call. An unknown name is an error."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a tool has changed."""

    path: str
    """Absolute, links resolved. For a moved file, its new path."""
    kind: FileKind
    lines_added: int | None = None
    lines_removed: int | None = None
    source: str | None = None
    """Where a moved file was."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    """The complete output, for the event."""
    shown: str
    """The truncated output, for the model."""
    effects: tuple[Effect, ...] = ()
    is_error: bool = False


A = TypeVar("A", bound=Arguments)


class BuiltinTool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: ToolKind
    description: str
    parameters: Schema[Any]
    limits: Limits
    run: Callable[[Workspace, Args, Output], Awaitable[Outcome]]
    """Raises ``ToolError`` with a message for the model, or ``OSError``."""
    paths: Callable[[Args], tuple[str, ...]]
    """The paths that a call names, as the model wrote them. Never raises, whatever the arguments
    are."""
    command: Callable[[Args], str | None]
    """The command line of a call, for the policy's shell rules."""
    title: Callable[[Args], str]
    """One line for the user, with the complete argument."""

    def complaints(self, args: Json) -> tuple[str, ...]:
        """What is wrong with the arguments; empty if they are valid."""
        return self.parameters.fit(_without_nulls(args))[1]

    async def call(
        self, workspace: Workspace, args: Args, output: Output = lambda _: None
    ) -> Outcome:
        """Run the tool. Cancellation is passed on, after everything that was started has ended."""
        try:
            return await self.run(workspace, args, output)
        except ToolError as error:
            message = str(error)
        except CorralError as error:
            message = f"{error.message}. {error.hint}" if error.hint else error.message
        except OSError as error:
            about = f": {error.filename}" if isinstance(error.filename, str) else ""
            message = f"{error.strerror or error}{about}"
        message = replace_surrogates(message)
        return Outcome(text=message, shown=truncate(message, self.limits), is_error=True)


def _without_nulls(args: Json) -> Json:
    """No argument may be null: a model that sends null means the default."""
    if isinstance(args, dict):
        return {name: value for name, value in args.items() if value is not None}
    return args


def outcome(
    text: str, limits: Limits, effects: tuple[Effect, ...] = (), *, is_error: bool = False
) -> Outcome:
    """An outcome with this text. The model sees as much of it as the limits allow."""
    return Outcome(text=text, shown=truncate(text, limits), effects=effects, is_error=is_error)


class ToolDefinition(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """What ``define_tool`` makes a tool of."""

    arguments: type[A]
    run: Callable[[Workspace, A, Output], Awaitable[Outcome]]
    name: str
    kind: ToolKind
    description: str
    limits: Limits
    title: str
    """A verb and the name of an argument: ``"Read file_path"``."""
    paths: Callable[[Args], tuple[str, ...]] | tuple[str, ...] = ()
    """The names of the arguments that are paths, or a function that returns the paths."""
    command: str | None = None
    """The name of the argument that is a command line."""


def define_tool(definition: ToolDefinition[A]) -> BuiltinTool:
    """Make a tool of its arguments and its function."""
    name, paths = definition.name, definition.paths
    schema = schema_of(definition.arguments, name)

    async def run_checked(workspace: Workspace, args: Args, output: Output) -> Outcome:
        typed, complaints = schema.fit(_without_nulls(args))
        if typed is None:
            listed = "".join(f"\n- {complaint}" for complaint in complaints)
            raise ToolError(f"the arguments do not fit {name}:{listed}")
        return await definition.run(workspace, typed, output)

    return BuiltinTool(
        name=name,
        kind=definition.kind,
        description=definition.description,
        parameters=schema,
        limits=definition.limits,
        run=run_checked,
        paths=paths if callable(paths) else functools.partial(_named_paths, paths),
        command=functools.partial(_command, definition.command),
        title=functools.partial(_title, definition.title),
    )


def _named_paths(arguments: tuple[str, ...], args: Args) -> tuple[str, ...]:
    found: list[str] = []
    for argument in arguments:
        value = args.get(argument)
        several: list[Json] = value if isinstance(value, list) else [value]
        found += (each for each in several if isinstance(each, str))
    return tuple(found)


def _title(title: str, args: Args) -> str:
    verb, _, argument = title.partition(" ")
    value = args.get(argument)
    if isinstance(value, list):
        value = ", ".join(each for each in value if isinstance(each, str))
    text = " ".join(value.split()) if isinstance(value, str) else ""
    return replace_surrogates(f"{verb} {text}".strip())


def _command(argument: str | None, args: Args) -> str | None:
    value = args.get(argument) if argument else None
    return value if isinstance(value, str) else None
