"""A workflow: an async function, its parameters, its result, and the file that it is in."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import types
import typing
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

import msgspec

from corral._system import fs
from corral._workflows.stored_values import check_type, to_json_value, typed_value
from corral.errors import ConfigError, CorralError
from corral.values import Json, convert_to

if TYPE_CHECKING:
    from corral._workflows.flow import Flow

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

_MODULE = "corral_workflow_"
"""How the modules of workflow files are called."""
_EXAMPLES: dict[object, str] = {
    **dict.fromkeys((list, tuple, set, frozenset), '["one", "two"]'),
    dict: '{"key": "value"}',
}
"""Of arguments whose texts are JSON."""
_loading = threading.Lock()
_imported: ContextVar[str] = ContextVar("imported", default="")
"""The workflow file that is being imported; empty: none."""


class Workflow(Generic[P, R_co]):
    """A function that ``corral.workflow`` has made a workflow.

    ::

        @corral.workflow
        async def greet(flow: corral.workflows.Flow, name: str) -> str:
            return await flow.generate("gemini:gemini-2.5-flash", f"Greet {name}")

        result = corral.workflows.run_sync(greet, {"name": "Ada"})

    Another workflow calls it with its own ``flow``: ``await greet(flow, "Ada")``.
    """

    def __init__(self, function: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R_co]]) -> None:
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(
                f"the workflow {getattr(function, '__name__', function)!r} must be an async"
                " function: async def"
            )
        self.function = function
        self.text: str = ""
        """The text of its file, if that was loaded with ``load_text``."""
        self.name: str = function.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or parameters[0].kind not in (
            parameters[0].POSITIONAL_ONLY,
            parameters[0].POSITIONAL_OR_KEYWORD,
        ):
            raise ConfigError(f"the workflow {self.name!r} needs a first parameter: flow")
        self.parameters: list[inspect.Parameter] = parameters[1:]
        for each in self.parameters:
            if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY):
                raise ConfigError(
                    f"the parameter {each.name!r} of the workflow {self.name!r} has no name of its"
                    " own: *args, **kwargs and positional parameters cannot be stored"
                )

    def __call__(self, flow: Flow, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Run it as a part of the workflow that ``flow`` belongs to."""
        if not hasattr(flow, "calls"):
            raise ConfigError(
                f"the workflow {self.name!r} was called with {flow!r} instead of a flow",
                hint=f"Run it: corral.workflows.run_sync({self.name}, …). Inside of a workflow:"
                f" await {self.name}(flow, …).",
            )
        return flow.calls.within(self.name, lambda: self.function(flow, *args, **kwargs))

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    @property
    def file(self) -> str:
        """The file that it is in; empty: none, as at a prompt."""
        name = inspect.getfile(self.function)
        return "" if name.startswith("<") else os.path.abspath(name)

    @property
    def goal(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    def _hints(self) -> dict[str, object]:
        try:
            return typing.get_type_hints(self.function, include_extras=True)
        except Exception as error:  # annotations may contain anything
            raise ConfigError(
                f"{self._line}: the types of the workflow {self.name!r} cannot be read: {error}"
            ) from error

    @property
    def _line(self) -> str:
        code = getattr(self.function, "__code__", None)
        name = os.path.basename(inspect.getfile(self.function))
        return f"{name}:{getattr(code, 'co_firstlineno', 0)}"

    def check_types(self) -> None:
        """Raises ``ConfigError`` if its types cannot be read, or its arguments or its result could
        not be stored as these types."""
        for name, kind in self._hints().items():
            of = "the result" if name == "return" else f"the argument {name!r}"
            what = f"{self._line}: {of} of {self.name}"
            if name == "return" or name in {each.name for each in self.parameters}:
                check_type(kind, what)

    def stored_args(self, given: Mapping[str, object]) -> dict[str, Json]:
        """The arguments as JSON. Raises ``ConfigError`` if one is missing, unknown, of another
        type, or cannot be stored."""
        stored: dict[str, Json] = {}
        for name, value in given.items():
            try:
                stored[name] = to_json_value(value)
            except TypeError as error:
                raise ConfigError(f"the argument {name!r} of {self.name} {error}") from error
        self.typed_args(stored)
        return stored

    def args_from_texts(self, given: Mapping[str, str]) -> dict[str, object]:
        """Arguments that were written as text: a number for ``int``, JSON for other types. Raises
        ``ConfigError`` for a list or a dictionary that is no JSON."""
        hints, args = self._hints(), dict[str, object]()
        for name, text in given.items():
            args[name] = text
            kind = hints.get(name, str)
            if kind is str or name not in {each.name for each in self.parameters}:
                continue
            try:
                value: object = convert_to(text, kind, strict=False)
            except (msgspec.ValidationError, TypeError):
                try:
                    value = msgspec.json.decode(text)
                except msgspec.DecodeError as error:
                    example = _EXAMPLES.get(typing.get_origin(kind) or kind)
                    if example is None:
                        continue  # ``typed_args`` says what is wrong
                    raise ConfigError(
                        f"the argument {name!r} of {self.name} must be JSON, got {text!r}",
                        hint=f"For example: --arg '{name}={example}'.",
                    ) from error
            args[name] = value
        return args

    def typed_args(self, stored: Mapping[str, Json]) -> dict[str, Any]:
        """The arguments as the function takes them. Raises ``ConfigError``."""
        known = {each.name: each for each in self.parameters}
        needed = [each.name for each in self.parameters if each.default is each.empty]
        takes = ", ".join(known) or "none"
        if unknown := [name for name in stored if name not in known]:
            raise ConfigError(
                f"the workflow {self.name} has no parameter {', '.join(unknown)}",
                hint=f"Its parameters: {takes}.",
            )
        if missing := [name for name in needed if name not in stored]:
            raise ConfigError(
                f"the workflow {self.name} needs {', '.join(missing)}",
                hint=f"Its parameters: {takes}. Write --arg {missing[0]}=VALUE.",
            )
        hints = self._hints()
        return {
            name: typed_value(value, hints.get(name), f"the argument {name!r} of {self.name}")
            for name, value in stored.items()
        }

    def typed_result(self, value: Json) -> R_co:
        """The result as the function returned it. Raises ``ConfigError``."""
        typed: R_co = typed_value(value, self._hints().get("return"), f"the result of {self.name}")
        return typed


def workflow(
    function: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R_co]],
) -> Workflow[P, R_co]:
    """Makes an async function a workflow: its steps are calls on its first argument.

    ::

        @corral.workflow
        async def fix(flow: corral.workflows.Flow, issue: str) -> str:
            done = await flow.run("gemini-cli", f"Fix {issue}", policy="edits")
            check = await flow.command("pytest -q")
            return done.text if check.ok else check.stdout
    """
    return Workflow(function)


# Files.


def text_digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def read_file(path: str | os.PathLike[str]) -> str:
    """The text of a workflow file. Raises ``ConfigError``."""
    try:
        return fs.read_text(Path(path))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise ConfigError(f"the workflow file {os.fspath(path)!r} cannot be read: {why}") from error


def load_text(path: str, text: str, name: str = "") -> Workflow[Any, Any]:
    """The workflow of this name in the text of a file, which is executed as a module once in this
    process; without a name the only one. Raises ``ConfigError``."""
    module = _module_of(path, text)
    found: dict[str, Workflow[Any, Any]] = {
        key: each
        for key, each in vars(module).items()
        if isinstance(each, Workflow) and each.function.__module__ == module.__name__
    }
    for each in found.values():
        each.text = text
    shown = os.path.basename(path)
    if name:
        if name not in found:
            known = ", ".join(found) or "none"
            raise ConfigError(f"{shown} has no workflow {name!r}", hint=f"It has: {known}.")
        return found[name]
    if len(found) != 1:
        hint = "Decorate an async function at its top level with @corral.workflow."
        if found:
            hint = f"Choose one: {shown}:NAME. It has: {', '.join(found)}."
        count = "several workflows" if found else "no workflow"
        raise ConfigError(f"{shown} has {count}", hint=hint)
    return next(iter(found.values()))


def check_not_importing() -> None:
    """Raises ``ConfigError`` if a workflow file starts a run while it is imported. Each run imports
    its file: such runs would never end."""
    if path := _imported.get():
        raise ConfigError(
            f"a run is started while {os.path.basename(path)} is imported",
            hint="Each run of a workflow imports its file. Start runs only under"
            ' `if __name__ == "__main__":`.',
        )


def _module_of(path: str, text: str) -> types.ModuleType:
    name = f"{_MODULE}{text_digest(path + chr(0) + text)}"
    check_not_importing()
    with _loading:
        if name in sys.modules:
            return sys.modules[name]
        shown = os.path.basename(path)
        try:
            code = compile(text, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            where = "" if line is None else f":{line}"
            why = error.msg if isinstance(error, SyntaxError) else str(error)
            raise ConfigError(f"{shown}{where} is not Python: {why}") from error
        module = types.ModuleType(name)
        module.__file__ = path
        sys.modules[name] = module  # dataclasses look their module up
        importing = _imported.set(path)
        try:
            with _importable(os.path.dirname(path)):
                exec(code, module.__dict__)  # noqa: S102 (the user's own file, as Python would run it)
        except BaseException as error:
            del sys.modules[name]
            if isinstance(error, KeyboardInterrupt):
                raise
            line = line_of_error(error, path)
            if isinstance(error, CorralError):
                raise ConfigError(f"{line or shown}: {error.message}", hint=error.hint) from error
            hint = ""
            if isinstance(error, ModuleNotFoundError):
                hint = "Modules are found beside the file, in PYTHONPATH, and beside corral."
            why = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise ConfigError(
                f"{shown} cannot be imported: {line or shown}: {why}", hint=hint
            ) from error
        finally:
            _imported.reset(importing)
        return module


@contextmanager
def _importable(folder: str) -> Generator[None]:
    """Modules beside the file can be imported, as if Python ran it."""
    added = folder not in sys.path
    if added:
        sys.path.insert(0, folder)
    try:
        yield
    finally:
        if added and folder in sys.path:
            sys.path.remove(folder)


def line_of_error(error: BaseException, path: str) -> str:
    """The last line of this file that the error came through: ``fix.py:12``; empty: none."""
    line, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = f"{os.path.basename(path)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line
