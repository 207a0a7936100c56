"""The record that describes a tool of the built-in agent, and how long texts are cut for the model.

The arguments of a tool are a struct (``Arguments``), from which the schema for the model is made;
one function does the work. ``BuiltinTool.call`` does not raise for mistakes that the model can fix:
they come back as a ``ToolOutcome`` with ``is_error``. Permissions are not checked here; ``kind``,
``paths`` and ``command`` are for the code that does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from corral._builtin.tools.workspace import ToolError, Workspace, replace_surrogates
from corral._protocol.schema import Schema, schema_of
from corral.errors import CorralError
from corral.events import FileKind, ToolKind
from corral.values import Json

ROOM = 100
"""Characters for the marker of what is left out: more than it ever has."""

Output = Callable[[str], None]
"""Receives the output of a tool while it runs."""
Args = dict[str, Json]


class OutputLimits(msgspec.Struct, frozen=True):
    """How much of an output the model sees."""

    chars: int
    lines: int | None = None


READ_LIMITS = OutputLimits(50_000)
SHELL_LIMITS = OutputLimits(30_000, 256)
GREP_LIMITS = OutputLimits(20_000, 200)
GLOB_LIMITS = OutputLimits(20_000, 500)
EDIT_LIMITS = OutputLimits(10_000)


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a call. An unknown name is an error."""


class FileEffect(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a tool has changed."""

    path: str
    """Absolute, links resolved. For a moved file, its new path."""
    kind: FileKind
    lines_added: int | None = None
    lines_removed: int | None = None
    source: str | None = None
    """Where a moved file was."""


class ToolOutcome(msgspec.Struct, frozen=True):
    text: str
    """The complete output, for the event."""
    effects: tuple[FileEffect, ...] = ()
    is_error: bool = False
    shown: str = ""
    """The output for the model. ``BuiltinTool.call`` cuts the text if the tool has not."""


A = TypeVar("A", bound=Arguments)


class BuiltinTool(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    name: str
    kind: ToolKind
    description: str
    arguments: type[A]
    run: Callable[[Workspace, A, Output], Awaitable[ToolOutcome]]
    """Raises ``ToolError`` with a message for the model, or ``OSError``."""
    limits: OutputLimits = READ_LIMITS
    title_form: str
    """A verb and the name of an argument: ``"Read file_path"``."""
    path_arguments: tuple[str, ...] | Callable[[Args], tuple[str, ...]] = ()
    """The names of the arguments that are paths, or a function that returns the paths."""
    command_argument: str | None = None
    """The name of the argument that is a command line."""

    @property
    def parameters(self) -> Schema[A]:
        schema: Schema[A] = _schema(self.arguments, self.name)
        return schema

    def fit(self, args: Json) -> A:
        """The arguments of a call. Raises ``ToolError`` that lists everything that is wrong."""
        if isinstance(args, dict):
            # No argument may be null: a model that sends null means the default.
            args = {name: value for name, value in args.items() if value is not None}
        typed, complaints = self.parameters.fit(args)
        if typed is None:
            listed = "".join(f"\n- {complaint}" for complaint in complaints)
            raise ToolError(f"the arguments do not fit {self.name}:{listed}")
        return typed

    async def call(
        self, workspace: Workspace, args: Args, output: Output = lambda _: None
    ) -> ToolOutcome:
        """Run the tool. Cancellation is passed on, after everything that was started has ended."""
        try:
            outcome = await self.run(workspace, self.fit(args), output)
        except ToolError as error:
            outcome = ToolOutcome(replace_surrogates(str(error)), is_error=True)
        except CorralError as error:
            message = f"{error.message}. {error.hint}" if error.hint else error.message
            outcome = ToolOutcome(replace_surrogates(message), is_error=True)
        except OSError as error:
            about = f": {error.filename}" if isinstance(error.filename, str) else ""
            message = f"{error.strerror or error}{about}"
            outcome = ToolOutcome(replace_surrogates(message), is_error=True)
        return replace(outcome, shown=outcome.shown or truncate(outcome.text, self.limits))

    def paths(self, args: Args) -> tuple[str, ...]:
        """The paths that a call names, as the model wrote them. Never raises, whatever the
        arguments are."""
        if callable(self.path_arguments):
            return self.path_arguments(args)
        paths: list[str] = []
        for argument in self.path_arguments:
            value = args.get(argument)
            several: list[Json] = value if isinstance(value, list) else [value]
            paths += (path for path in several if isinstance(path, str))
        return tuple(paths)

    def command(self, args: Args) -> str | None:
        """The command line of a call, for the policy's shell rules."""
        value = args.get(self.command_argument) if self.command_argument else None
        return value if isinstance(value, str) else None

    def title(self, args: Args) -> str:
        """One line for the user, with the complete argument."""
        verb, _, argument = self.title_form.partition(" ")
        value = args.get(argument)
        if isinstance(value, list):
            value = ", ".join(item for item in value if isinstance(item, str))
        text = " ".join(value.split()) if isinstance(value, str) else ""
        return replace_surrogates(f"{verb} {text}".strip())


@cache
def _schema(arguments: type[A], name: str) -> Schema[A]:
    return schema_of(arguments, name)


def truncate(text: str, limits: OutputLimits) -> str:
    """The text within the limits, by characters and then by lines: its head, how much is left out,
    and its tail."""
    most = limits.lines
    if len(text) <= limits.chars and (most is None or count_lines(text) <= most):
        return text
    if limits.chars <= 2 * ROOM or (most is not None and most < 3):
        # Too small for a head, a marker and a tail.
        return "\n".join(text[: limits.chars].split("\n")[:most])
    half = (limits.chars - ROOM) // 2
    head, tail = (text[:half], text[-half:]) if len(text) > 2 * half else (text, text)
    if most is not None:
        first, last = most // 2, (most - 1) // 2
        if len(parts := head.split("\n", first)) > first:
            head = head[: len(head) - len(parts[-1])]
        if len(parts := tail.removesuffix("\n").rsplit("\n", last)) > last:
            tail = tail[len(parts[0]) + 1 :]
    left_out = text[len(head) : len(text) - len(tail)]
    lines = left_out.count("\n")
    about = f"{len(left_out):,} characters" + (f", {lines:,} lines" if lines else "")
    return f"{head}{'' if head.endswith(chr(10)) else chr(10)}[… {about} left out here …]\n{tail}"


def count_lines(text: str) -> int:
    """The number of lines. A newline at the end does not start another line."""
    return text.count("\n") + (bool(text) and not text.endswith("\n"))
