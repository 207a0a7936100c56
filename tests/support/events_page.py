"""The tables of events, results and errors in docs/, made of their classes."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from corral import events, values
from corral._docs.error_pages import first_line, from_docstring
from corral.errors import CallerError, CorralError, RemoteError
from corral.result import Result

EVENTS, ERRORS, END = "<!-- made of the events -->", "<!-- made of the errors -->", "<!-- end -->"
PARTS = (
    *(events.QuestionField, events.QuestionOption, events.PlanEntry),
    *(values.Usage, values.Cost, values.FileChanged, values.DeniedCall, values.AskedQuestion),
)
"""What events and results consist of."""


def with_events(page: str) -> str:
    """The page with a table for each event, for its parts and for the result."""
    parts = [_section("Fields of every event", events.Envelope, (), text="")]
    envelope = events.Envelope.__struct_fields__
    for kind in get_args(events.Event):
        parts.append(_section(f"`{kind.__struct_config__.tag}`", kind, envelope, level=3))
    parts.insert(1, "## Event types")
    parts.append("## Parts of events and results")
    parts += [_section(kind.__name__, kind, (), level=3) for kind in PARTS]
    parts.append(_section("The result", Result, (), text=""))
    return _between(page, EVENTS, "\n\n".join(parts))


def with_errors(page: str) -> str:
    """The page with a table of the errors of callers, and one of the others."""
    parts: list[str] = []
    for title, root in (
        ("Errors of the caller", CallerError),
        ("Failures of the agent, the model or the machine", RemoteError),
    ):
        rows = ["| class | `code` | exit | meaning |", "|---|---|---|---|", *_errors(root, 0)]
        parts.append("\n".join([f"## {title}", "", *rows]))
    return _between(page, ERRORS, "\n\n".join(parts))


def _between(page: str, begin: str, made: str) -> str:
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n\n{made}\n\n{END}{rest.partition(END)[2]}"


def _errors(kind: type[CorralError], depth: int) -> Iterator[str]:
    indent = "&nbsp;" * 2 * depth
    yield f"| {indent}`{kind.__name__}` | `{kind.code}` | {kind.cli_exit} | {first_line(kind)} |"
    for each in kind.__subclasses__():
        if each.__module__ == kind.__module__:
            yield from _errors(each, depth + 1)


def _section(
    title: str, kind: type, without: tuple[str, ...], *, level: int = 2, text: str | None = None
) -> str:
    """``text`` replaces that of the class."""
    hints = typing.get_type_hints(kind)
    texts = field_texts(kind)
    lines = [f"{'#' * level} {title}", ""]
    plain = (inspect.getdoc(kind) or "").partition("\n\n::")[0]  # without the sample
    shown = from_docstring(plain) if text is None else text
    lines += [" ".join(shown.split()), ""] if shown else []
    lines += ["| field | type | |", "|---|---|---|"]
    assert issubclass(kind, msgspec.Struct)
    names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    for field, shown in names:
        if field not in without:
            words = " ".join(from_docstring(texts.get(field, "")).split())
            lines.append(f"| `{shown}` | {_type(hints[field])} | {words} |")
    return "\n".join(lines)


def _type(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin in (Union, types.UnionType):
        kinds = [each for each in arguments if each is not type(None)]
        return "JSON" if len(kinds) > 2 else " or ".join(map(_type, kinds))
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"object of {_type(arguments[1])}"
    names = {str: "text", int: "integer", float: "number", bool: "boolean"}
    return names.get(hint) or ("JSON" if hint is Any else str(getattr(hint, "__name__", "JSON")))


def field_texts(kind: type) -> dict[str, str]:
    """The texts below the fields of a class and of its bases."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if not each.__module__.startswith("corral"):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(each)))
        [body] = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
        for field, text in pairwise(body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                    value=ast.Constant(value=str())
                ):
                    found[name] = ast.literal_eval(text.value)
                case _:
                    pass
    return found
