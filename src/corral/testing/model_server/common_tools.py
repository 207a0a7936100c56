"""Tool names that a script may use for every agent.

A script that calls ``write_file`` with ``path`` and ``content`` works with every agent: the call is
translated to the tool and the arguments of the agent that sent the request. The agent is found by
the tools that its request offers, and their arguments by the ``forms`` of the agents' specs.

A call is left as it is if the offered tool of that name takes these arguments, if it has other
arguments than those below, or if no known agent offers such tools.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import msgspec

from corral.agents import registry
from corral.agents.corral import FILE_FORMS, PATCH_FORMS
from corral.agents.corral import FORMS as BUILTIN_FORMS
from corral.agents.spec import Act, Form
from corral.testing.model_server.request import Call, Request
from corral.values import Json, JsonObject, as_object, as_text

COMMON: Mapping[str, tuple[Act, Mapping[str, str]]] = {
    "shell": ("run", {"command": "command"}),
    "read_file": ("read", {"path": "path"}),
    "write_file": ("write", {"path": "path", "content": "text"}),
    "edit_file": ("edit", {"path": "path", "old": "before", "new": "after"}),
    "list_files": ("list", {"path": "path"}),
    "search_files": ("search", {"pattern": "pattern", "path": "path"}),
    "fetch_url": ("fetch", {"url": "url"}),
}
"""Name → what it does, and its arguments with the placeholder that each fills in a form."""

Forms = Mapping[Act, Sequence[Form]]
Declared = Mapping[str, frozenset[str] | None]

_SCHEMAS = ("parameters", "input_schema", "parametersJsonSchema", "inputSchema")
_HOLDERS = (
    "tools",
    "functionDeclarations",
    "function_declarations",
    "function",
    "request",
    "input",
)
_PATCH = "*** Begin Patch"
_FOLDER = re.compile(
    r"(?<!temporary )(?:director(?:y|ies)|folder|cwd|workspace)[^/]{0,60}?(/[^\s`'\"<>*]+)",
    re.IGNORECASE,
)


def translated(call: Call, request: Request) -> Call:
    """The call with the name and the arguments of the agent that sent the request."""
    common = COMMON.get(call.name)
    if common is None or not call.args.keys() <= common[1].keys():
        return call
    declared = dict(_declared(request.body))
    own = declared.get(call.name, frozenset())
    if own is None or call.args.keys() <= own:
        return call
    form = _form(common[0], declared)
    if form is None:
        return call
    name, given = form
    values = {hole: as_text(call.args.get(argument)) for argument, hole in common[1].items()}
    cwd = working_directory(request)
    filled = {key: _fill(value, values, cwd, common[0]) for key, value in given.items()}
    return msgspec.structs.replace(call, name=name, args=filled)


def working_directory(request: Request) -> str:
    """The folder that the request names as the agent's; empty if it names none that exists."""
    for text in (request.system, *request.texts):
        for found in _FOLDER.findall(text):
            folder = str(found).rstrip(".,;:)/")
            if os.path.isdir(folder):
                return folder
    return ""


def _form(act: Act, declared: Declared) -> Form | None:
    """How the agent that offers these tools does this: with a tool that it offers, else with the
    one that it hides."""
    ranked = sorted(_agents(), key=lambda forms: -_matches(forms, declared))
    if not ranked or not _matches(ranked[0], declared):
        return None
    for forms in ranked:
        for form in forms.get(act, ()):
            if _fits(form, declared):
                return form
    return next(iter(ranked[0].get(act, ())), None)


def _matches(forms: Forms, declared: Declared) -> int:
    """How many of the agent's tools are declared, with its arguments."""
    return len({form[0] for each in forms.values() for form in each if _fits(form, declared)})


def _fits(form: Form, declared: Declared) -> bool:
    name, given = form
    if name not in declared:
        return False
    parameters = declared[name]
    return parameters is None or given.keys() <= parameters


@cache
def _agents() -> tuple[Forms, ...]:
    acts: list[Act] = [act for act, _ in COMMON.values()]
    probes = (agent.probe for agent in registry.all_agents())
    found: tuple[Forms, ...] = tuple(
        {act: probe.forms_of(act) for act in acts} for probe in probes if probe is not None
    )
    return (*found, {**BUILTIN_FORMS, **FILE_FORMS}, {**BUILTIN_FORMS, **PATCH_FORMS})


def _fill(value: Json, values: Mapping[str, str], cwd: str, act: Act) -> Json:
    if isinstance(value, dict):
        return {key: _fill(each, values, cwd, act) for key, each in value.items()}
    if isinstance(value, list):
        return [_fill(each, values, cwd, act) for each in value]
    if not isinstance(value, str):
        return value
    absolute = os.path.join(cwd, values["path"]) if "path" in values else ""
    # Some agents edit files by absolute paths only; none refuses them.
    path = absolute if act == "edit" and value == "{path}" else values.get("path", "")
    filled = value.replace("{abspath}", absolute).replace("{path}", path)
    for hole, text in values.items():
        for sign in ("+", "-") if filled.startswith(_PATCH) else ():
            lines = "\n".join(f"{sign}{line}" for line in text.splitlines())
            filled = filled.replace(f"{sign}{{{hole}}}", lines)
        filled = filled.replace(f"{{{hole}}}", text)
    return filled


def _declared(body: JsonObject) -> Iterator[tuple[str, frozenset[str] | None]]:
    """The tools of a request, on any wire, with the names of their parameters; None for a tool that
    takes plain text."""
    for key in _HOLDERS:
        value = body.get(key)
        for each in value if isinstance(value, list) else [value]:
            table = as_object(each)
            if not table:
                continue
            if isinstance(name := table.get("name"), str):
                schemas = [as_object(table[key]) for key in _SCHEMAS if key in table]
                named = frozenset(as_object(schemas[0].get("properties"))) if schemas else None
                yield name, named
            yield from _declared(table)
