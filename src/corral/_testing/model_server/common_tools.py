"""Tool names that a script may use for every agent.

A script that calls ``write_file`` with ``path`` and ``content`` works with every agent: the call is
translated to the tool and the arguments of the agent that sent the request. The agent is found by
the tools that its request offers, and their arguments by the ``forms`` of the agents' specs. What
an agent has no tool for, such as reading a file, is a command of its shell. A Python function of
the run (``tools=``) is called by its own name; agents offer it with a prefix.

Codex has models that call tools in JavaScript only: the call is the text of a program then. Claude
Code takes typed output as the arguments of a tool: an answer in JSON is a call of that tool then.

A call is left as it is if the offered tool of that name takes these arguments, if it has other
arguments than those below, or if no known agent offers such tools.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from corral._agents import registry
from corral._agents.corral import FILE_FORMS, PATCH_FORMS
from corral._agents.corral import FORMS as BUILTIN_FORMS
from corral._agents.spec import Act, Form
from corral._sessions.structured_output import answer_schema, find
from corral._testing.model_server.request import Call, Request, tables
from corral._testing.model_server.script import Turn, pieces
from corral.options import OWN_SERVER
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

_COMMANDS: Mapping[Act, str] = {
    "read": "cat {path}",
    "list": "ls {path}",
    "search": "grep -rn -e {pattern} {path}",
    "fetch": "curl -sS {url}",
}
"""For agents without such a tool."""
_SCHEMAS = ("parameters", "input_schema", "parametersJsonSchema", "inputSchema")
_HOLDERS = (
    "tools",
    "functionDeclarations",
    "function_declarations",
    "function",
    "request",
    "input",
)
_IN_CODE = re.compile(r"declare const tools: \{ (\w+)\(")
"""A tool that the program of another tool calls, in the description of that one."""
_SEARCHES = frozenset({"ToolSearch", "tool_search"})
"""Tools by which a model finds tools that the request does not declare."""
_FUNCTION = f"mcp__{OWN_SERVER}__"
_NAMED_FUNCTION = re.compile(rf"{_FUNCTION}(\w+)")
_NO_FUNCTION = ("no such tool", "is not a function", "unsupported call", "unknown tool")
_PATCH = "*** Begin Patch"
_ANSWER = "StructuredOutput"
"""The tool of Claude Code that takes typed output."""
_FOLDER = re.compile(
    r"(?<!temporary )(?:director(?:y|ies)|folder|cwd|workspace)[^/]{0,60}?(/[^\s`'\"<>*]+)",
    re.IGNORECASE,
)


def translated(call: Call, request: Request) -> Call:
    """The call with the name and the arguments of the agent that sent the request."""
    tools = list(_tools(request.body))
    declared: Declared = {
        **{name: None for tool in tools for name in tool.in_code},
        **{tool.name: tool.parameters for tool in tools},
    }
    made = _call_of_agent(call, declared, request)
    program = next((tool.name for tool in tools if tool.in_code), None)
    if program is None or made.name in {tool.name for tool in tools} or "mcp_" in made.name:
        return made
    # Tools of MCP servers are callable, but not described.
    name = made.name if made.name in declared else f"{_FUNCTION}{made.name}"
    given = made.args["input"] if [*made.args] == ["input"] else made.args
    code = f"text(await tools.{name}({json.dumps(given)}))"
    return msgspec.structs.replace(made, name=program, args={"input": code})


def as_typed_output(turn: Turn, request: Request) -> Turn:
    """The turn, or a call of the agent's tool that takes typed output, if it has one and the text
    has a value that fits."""
    declared = (tool for tool in tables(request.body.get("tools")) if tool.get("name") == _ANSWER)
    tool = next(declared, None)
    if tool is None or turn.calls or not turn.is_answer:
        return turn
    schema = answer_schema(as_object(tool.get("input_schema")))
    value = find("".join(pieces(turn.text)), schema).json
    if not isinstance(value, dict):
        return turn
    return msgspec.structs.replace(turn, text=(), calls=[Call(_ANSWER, value)])


def why_untaken(call: Call, request: Request) -> str | None:
    """Why a translated call has no effect: the request offers tools, but not this one, and no agent
    has and hides it, or finds it by a search."""
    offered = {*request.tools, *(tool.name for tool in _tools(request.body))}
    known = call.name in _agents().tools or call.name.startswith((OWN_SERVER, "mcp_"))
    if not offered or call.name in offered or known:
        return None
    arguments = ", ".join(call.args)
    return f"no tool takes the call {call.name}({arguments}): offered: {', '.join(sorted(offered))}"


def unknown_function(request: Request) -> str | None:
    """The Python function that the last call named, if the agent answers that it has none. Some
    agents declare functions only after a search, so a call of one may be a mistake."""
    last = request.history[-1].results if request.history else ()
    for result in last:
        text = f"{result.name} {as_text(result.response) or result.response}"
        found = _NAMED_FUNCTION.search(text)
        if found is not None and any(sign in text.lower() for sign in _NO_FUNCTION):
            return found[1]
    return None


def _call_of_agent(call: Call, declared: Declared, request: Request) -> Call:
    common = COMMON.get(call.name)
    if common is None or not call.args.keys() <= common[1].keys():
        return msgspec.structs.replace(call, name=_own_tool(call.name, declared, request))
    own = declared.get(call.name, frozenset())
    if own is None or call.args.keys() <= own:
        return call
    act, arguments = common
    values = {hole: as_text(call.args.get(argument)) for argument, hole in arguments.items()}
    form = _form(act, declared)
    if form is None and act in _COMMANDS and (form := _form("run", declared)) is not None:
        quoted = {hole: shlex.quote(text or ".") for hole, text in values.items()}
        act, values = "run", {"command": _COMMANDS[act].format_map(quoted)}
    if form is None:
        return call
    cwd = working_directory(request)
    is_patch = any(as_text(value).startswith(_PATCH) for value in form[1].values())
    if act == "write" and is_patch and (old := _text_of(os.path.join(cwd, values["path"]))):
        # Some agents add only files that do not exist.
        act, form = "edit", _form("edit", declared) or form
        values = {"path": values["path"], "before": old, "after": values["text"]}
    name, given = form
    filled = {key: _fill(value, values, cwd, act) for key, value in given.items()}
    return msgspec.structs.replace(call, name=name, args=filled)


def _own_tool(name: str, declared: Declared, request: Request) -> str:
    """The agent's name for a Python function of the run; the name itself if it has none."""
    offered = [form.format(server=OWN_SERVER, tool=name) for form in _agents().mcp_names]
    found = next((each for each in (name, *offered) if each in declared), None)
    if found is None and name not in _agents().tools and "mcp_" not in name:
        found = f"{_FUNCTION}{name}" if _SEARCHES & {*declared, *request.tools} else name
    return found or name


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
    ranked = sorted(_agents().forms, key=lambda forms: -_matches(forms, declared))
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


class _KnownAgents(NamedTuple):
    forms: tuple[Forms, ...]
    mcp_names: tuple[str, ...]
    tools: frozenset[str]
    """The names of all their tools."""


@cache
def _agents() -> _KnownAgents:
    acts: list[Act] = [act for act, _ in COMMON.values()]
    known = [(agent.probe, agent.tools) for agent in registry.all_agents()]
    probes = [probe for probe, _ in known if probe is not None]
    forms: list[Forms] = [{act: probe.forms.get(act, ()) for act in acts} for probe in probes]
    own: list[Forms] = [{**BUILTIN_FORMS, **FILE_FORMS}, {**BUILTIN_FORMS, **PATCH_FORMS}]
    forms += own
    names = {form[0] for each in forms for some in each.values() for form in some}
    return _KnownAgents(
        tuple(forms),
        tuple(dict.fromkeys(probe.mcp_name for probe in probes)),
        frozenset(names.union(*(tools for _, tools in known))),
    )


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
    is_patch = filled.startswith(_PATCH)
    if is_patch and act == "edit":
        values = _whole_lines(values, absolute)
    for hole, text in values.items():
        for sign in ("+", "-") if is_patch else ():
            lines = "\n".join(f"{sign}{line}" for line in text.splitlines())
            filled = filled.replace(f"{sign}{{{hole}}}", lines)
        filled = filled.replace(f"{{{hole}}}", text)
    return filled


def _text_of(path: str) -> str:
    """The text of a file; empty if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeError):
        return ""


def _whole_lines(values: Mapping[str, str], path: str) -> Mapping[str, str]:
    """A patch has complete lines, and a script may edit a part of one: the rest is in the file."""
    head, found, tail = _text_of(path).partition(values["before"] or "\n")
    if not found:
        return values
    start, end = head.rpartition("\n")[2], tail.partition("\n")[0]
    return {**values, **{hole: f"{start}{values[hole]}{end}" for hole in ("before", "after")}}


class _Tool(NamedTuple):
    name: str
    parameters: frozenset[str] | None
    """None for a tool that takes plain text."""
    in_code: tuple[str, ...]
    """The tools that its text, a program, may call."""


def _tools(body: JsonObject) -> Iterator[_Tool]:
    """The tools of a request, on any wire."""
    for key in _HOLDERS:
        value = body.get(key)
        for each in value if isinstance(value, list) else [value]:
            table = as_object(each)
            if not table:
                continue
            if isinstance(name := table.get("name"), str):
                schemas = [as_object(table[key]) for key in _SCHEMAS if key in table]
                named = frozenset(as_object(schemas[0].get("properties"))) if schemas else None
                described = as_text(table.get("description"))
                yield _Tool(name, named, tuple(_IN_CODE.findall(described)))
            yield from _tools(table)
