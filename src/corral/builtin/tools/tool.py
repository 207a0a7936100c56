"""The record that describes a tool of the built-in agent.

The arguments of a tool are a struct (``Arguments``), from which the schema for the model is made;
one function does the work. ``BuiltinTool.call`` does not raise for mistakes that the model can fix:
they come back as an ``Outcome`` with ``is_error``. Permissions are not checked here; ``kind``,
``paths`` and ``command`` are for the code that does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from corral.builtin.tools.truncate import Limits, truncate
from corral.builtin.tools.workspace import ToolError, Workspace, replace_surrogates
from corral.errors import CorralError
from corral.events import FileKind, ToolKind
from corral.protocol.schema.build import Schema, schema_of
from corral.values import Json

__all__ = ["Arguments", "BuiltinTool", "Effect", "Outcome", "Output", "ToolError", "outcome"]

Output = Callable[[str], None]
"""Takes what a tool puts out while it still runs."""
Args = dict[str, Json]


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a call is given. A misspelt name is a complaint, not a default."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a tool has changed."""

    path: str
    """Absolute, links resolved. Of a file that was moved, where it is now."""
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
    """What a call touches, as the model wrote it. Never raises, whatever the arguments are."""
    command: Callable[[Args], str | None]
    """The command line of a call, for the policy's shell rules."""
    title: Callable[[Args], str]
    """One line for people, with all of the argument that it names."""

    def complaints(self, args: Json) -> tuple[str, ...]:
        """What is wrong with the arguments; empty when they fit."""
        return self.parameters.fit(_without_nulls(args))[1]

    async def call(
        self, workspace: Workspace, args: Args, output: Output = lambda _: None
    ) -> Outcome:
        """Do it. Cancellation passes through; what was started is ended by then."""
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
    """None of our arguments may be null: a model that sends one means the default."""
    if isinstance(args, dict):
        return {name: value for name, value in args.items() if value is not None}
    return args


def outcome(
    text: str, limits: Limits, effects: tuple[Effect, ...] = (), *, is_error: bool = False
) -> Outcome:
    """The text, and as much of it as the limits let the model see."""
    return Outcome(text=text, shown=truncate(text, limits), effects=effects, is_error=is_error)


def define_tool(  # noqa: PLR0913
    arguments: type[A],
    run: Callable[[Workspace, A, Output], Awaitable[Outcome]],
    *,
    name: str,
    kind: ToolKind,
    description: str,
    limits: Limits,
    title: str,
    paths: Callable[[Args], tuple[str, ...]] | tuple[str, ...] = (),
    command: str | None = None,
) -> BuiltinTool:
    """A tool out of its arguments and its function. ``title``, ``paths`` and ``command`` name
    the arguments that each is read from; ``title`` after the verb: ``"Read file_path"``."""
    schema = schema_of(arguments, name)

    async def checked(workspace: Workspace, args: Args, output: Output) -> Outcome:
        typed, complaints = schema.fit(_without_nulls(args))
        if typed is None:
            listed = "".join(f"\n- {complaint}" for complaint in complaints)
            raise ToolError(f"the arguments do not fit {name}:{listed}")
        return await run(workspace, typed, output)

    def named(args: Args) -> tuple[str, ...]:
        found: list[str] = []
        for argument in () if callable(paths) else paths:
            value = args.get(argument)
            several: list[Json] = value if isinstance(value, list) else [value]
            found += (each for each in several if isinstance(each, str))
        return tuple(found)

    def titled(args: Args) -> str:
        verb, _, about = title.partition(" ")
        value = args.get(about)
        if isinstance(value, list):
            value = ", ".join(each for each in value if isinstance(each, str))
        message = " ".join(value.split()) if isinstance(value, str) else ""
        return replace_surrogates(f"{verb} {message}".strip())

    def line(args: Args) -> str | None:
        value = args.get(command) if command else None
        return value if isinstance(value, str) else None

    return BuiltinTool(
        name=name,
        kind=kind,
        description=description,
        parameters=schema,
        limits=limits,
        run=checked,
        paths=paths if callable(paths) else named,
        command=line,
        title=titled,
    )
