"""Nodes that change values of the context or files of the workspace, without an agent, a model or a
command.

The path of ``read_file`` and ``write_file`` is resolved, with its links, and rejected if it leads
out of the workspace; see ``builtin.tools.workspace`` for the guarantees. Git's own folder cannot be
written.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from corral._builtin.tools.workspace import ToolError, Workspace
from corral._core.nesting import decode_json
from corral._pipelines import conditions
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.node_options import hidden_of
from corral._pipelines.scheduler import routing
from corral._pipelines.scheduler.outcome import Outcome, failed
from corral._pipelines.templates import PLACEHOLDER, as_text, fill, find
from corral._protocol.schema import Schema
from corral._sessions.structured_output import find as find_json
from corral._system import fs
from corral._system.environment import variable
from corral._system.paths import is_inside
from corral.errors import ConfigError
from corral.values import Json

DEFAULTS = ("default", "else", "otherwise", "*", "_")
"""Labels of the edge that a switch follows for all other values."""
SET = "set."
MAX_FILE = 512 * 1024
"""Bytes of a file that goes into the context."""
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def value_of(work: NodeContext, given: Json) -> Json:
    """An attribute with its placeholders filled. If it is only a placeholder, the result is the
    value itself, which may be a list or an object."""
    if not isinstance(given, str):
        return given
    if only := PLACEHOLDER.fullmatch(given.strip()):
        value = find(work.context, only[1])
        if value is not None or only[1] in work.context:
            return value
    return fill(given, work.context, work.graph.goal)


async def set_values(work: NodeContext) -> Outcome:
    """``key`` and ``value``, and each ``set.<key>=value``."""
    attrs = work.node.attrs
    updates: dict[str, Json] = {}
    if key := work.node.text("key"):
        if "value" not in attrs:
            raise ConfigError(f"the set node {work.node.id} has a key and no value")
        updates[key] = value_of(work, attrs["value"])
    for name, value in attrs.items():
        if name.startswith(SET):
            updates[name.removeprefix(SET)] = value_of(work, value)
    if not updates:
        raise ConfigError(
            f"the set node {work.node.id} sets nothing",
            hint="Give key= and value=, or set.name=value.",
        )
    for key in updates:
        if key.startswith(("internal.", "graph.")):
            raise ConfigError(f"the set node {work.node.id}: {key} is reserved for corral")
    return Outcome(context_updates=updates)


async def switch(work: NodeContext) -> Outcome:
    """Follow the edge whose label equals ``value`` (or the value of ``key``), else the edge with
    the label ``default``, else one without a label. With neither attribute the conditions of the
    edges decide, and the outcome of the node before stays in force."""
    node = work.node
    if "value" in node.attrs:
        case = as_text(value_of(work, node.attrs["value"]))
    elif key := node.text("key"):
        case = as_text(find(work.context, key))
    else:
        return Outcome()
    edges = work.graph.edges_from(node.id)
    free = [edge for edge in edges if conditions.edge_condition(work.graph, edge) is None]
    labels = {routing.normalize_label(edge.label): edge for edge in reversed(free)}
    if case and routing.normalize_label(case) in labels:
        return Outcome(preferred_label=case, notes=f"case {case!r}")
    other = next((labels[name] for name in (*DEFAULTS, "") if name in labels), None)
    if other is not None:
        return Outcome(
            preferred_label=other.label,
            suggested_next_ids=(other.target,),
            notes=f"no edge for {case!r}: by default",
        )
    if len(free) < len(edges):
        return Outcome(preferred_label=case)  # a condition may be true
    known = ", ".join(repr(edge.label) for edge in free) or "none"
    return failed(
        f"the switch {node.id} has no edge for {case!r}: there is {known}", retryable=False
    )


async def json_extract(work: NodeContext) -> Outcome:
    """Find the JSON in ``source`` (a key of the context, by default ``last_response``), also in
    prose or fences, and put what is at ``path`` (``items[0].name``) into ``key`` (by default
    ``<node>.output``). If there is no JSON, ``default`` is used; without it the node fails."""
    node = work.node
    source = node.text("source") or "last_response"
    text = find(work.context, source)
    if text is None and source not in work.context:
        return failed(f"json_extract {node.id}: there is no {source!r} in the context")
    value, wrong = _json_in(text)
    if wrong is None:
        value, wrong = _follow_path(value, node.text("path"))
    if wrong is not None:
        if "default" not in node.attrs:
            return failed(f"json_extract {node.id}: {source}: {wrong}")
        value = value_of(work, node.attrs["default"])
    return Outcome(context_updates={_key(work): value})


async def json_decode(work: NodeContext) -> Outcome:
    """Decode the JSON in ``source`` into ``key`` (by default ``<node>.output``, unless ``prefix``
    is given), and with ``prefix`` each field of an object into ``<prefix><field>``."""
    node = work.node
    decoded, wrong = _json_in(_source(work))
    if wrong is not None:
        return failed(f"json_decode {node.id}: {node.text('source')}: {wrong}")
    updates: dict[str, Json] = {}
    if "prefix" in node.attrs:
        if not isinstance(decoded, dict):
            return failed(f"json_decode {node.id}: prefix needs an object", retryable=False)
        updates = {f"{node.text('prefix')}{name}": value for name, value in decoded.items()}
    if node.text("key") or not updates:
        updates[_key(work)] = decoded
    return Outcome(context_updates=updates)


async def json_pack(work: NodeContext) -> Outcome:
    """Encode the values of ``keys`` (separated by commas) as the text of a JSON object, into
    ``output`` or ``key`` (by default ``<node>.output``)."""
    packed = {name: find(work.context, name) for name in work.node.names("keys")}
    key = work.node.text("output") or _key(work)
    return Outcome(context_updates={key: msgspec.json.encode(packed).decode()})


async def split(work: NodeContext) -> Outcome:
    """Split the text in ``source`` at ``sep`` (by default a comma) into a list in ``key``. Empty
    parts are left out; ``trim=false`` keeps the spaces around each part."""
    node = work.node
    parts = as_text(_source(work)).split(node.text("sep") or ",")
    if node.attrs.get("trim", True) not in (False, "false"):
        parts = [part.strip() for part in parts]
    listed: list[Json] = [part for part in parts if part]
    return Outcome(context_updates={_key(work): listed})


async def regex(work: NodeContext) -> Outcome:
    """Search ``pattern`` in ``source`` and put its ``group`` (by default 0, the match) into
    ``key``. If there is no match, use ``no_match`` or ``default``; without them the node fails."""
    node = work.node
    try:
        match = re.search(node.text("pattern"), as_text(_source(work)))
        value = None if match is None else match[int(node.text("group") or 0)]
    except (re.error, IndexError, ValueError) as error:
        raise ConfigError(f"the regex node {node.id}: {error}") from error
    if value is None:
        other = next((key for key in ("no_match", "default") if key in node.attrs), None)
        if other is None:
            return failed(f"regex {node.id}: {node.text('pattern')!r} does not match")
        return Outcome(context_updates={_key(work): value_of(work, node.attrs[other])})
    return Outcome(context_updates={_key(work): value})


_TEXT_OPS: dict[str, Callable[[str], str]] = {
    "trim": str.strip,
    "lower": str.lower,
    "upper": str.upper,
    "title": str.title,
}


async def string_transform(work: NodeContext) -> Outcome:
    """Apply each of ``ops`` (``trim``, ``lower``, ``upper``, ``title``) to the text in
    ``source``."""
    text = as_text(_source(work))
    for name in (name.strip() for name in work.node.text("ops").split(",")):
        if name not in _TEXT_OPS:
            known = ", ".join(_TEXT_OPS)
            raise ConfigError(
                f"the string_transform node {work.node.id}: no op is called {name!r}"
                f" (known: {known})"
            )
        text = _TEXT_OPS[name](text)
    return Outcome(context_updates={_key(work): text})


async def env(work: NodeContext) -> Outcome:
    """Put the environment variable ``from`` (by default the same as ``key``) into ``key``. If it is
    not set, ``default`` is used; without it the node fails, unless ``required=false``."""
    node = work.node
    key = node.text("key")
    name = node.text("from") or key
    value = variable(name, work.resources.env)
    if value is not None:
        return Outcome(context_updates={key: value})
    if "default" in node.attrs:
        return Outcome(context_updates={key: value_of(work, node.attrs["default"])})
    if node.attrs.get("required", True) in (False, "false"):
        return Outcome(context_updates={key: ""})
    return failed(f"env {node.id}: the variable {name} is not set", retryable=False)


async def check(work: NodeContext) -> Outcome:
    """``assert``: fail with ``message`` unless the condition ``expr`` is true."""
    node = work.node
    text = node.text("expr") or node.text("condition")
    if conditions.compile(text).holds(conditions.lookup_in(work.context)):
        return Outcome()
    message = fill(node.text("message"), work.context, work.graph.goal) or f"{text} is not true"
    return failed(f"assert {node.id}: {message}", retryable=False)


async def sleep(work: NodeContext) -> Outcome:
    """Wait for ``duration``."""
    if not work.resources.simulate:
        await asyncio.sleep(work.node.seconds("duration") or 0.0)
    return Outcome()


async def read_file(work: NodeContext) -> Outcome:
    """Read ``path`` into ``key`` (by default ``<node>.output``). ``format=json`` parses it.
    ``default`` is the value if the file does not exist."""
    node = work.node
    workspace, path = _resolve(work, write=False)
    key = _key(work)
    try:
        with workspace.folder(path.parent) as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(path.name, flags, dir_fd=folder)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return failed(f"{node.id}: {_shown_path(work)} is not a file", retryable=False)
            raw = file.read(MAX_FILE + 1)
    except FileNotFoundError:
        if "default" in node.attrs:
            return Outcome(context_updates={key: value_of(work, node.attrs["default"])})
        return failed(f"{node.id}: there is no file {_shown_path(work)}")
    except OSError as error:
        return failed(f"{node.id}: {_shown_path(work)} cannot be read: {error.strerror}")
    if len(raw) > MAX_FILE:
        reason = f"{_shown_path(work)} has over {MAX_FILE:,} bytes: too large for the context"
        return failed(f"{node.id}: {reason}", retryable=False)
    try:
        text = raw.decode("utf-8-sig")
        value: Json = decode_json(text) if node.text("format") == "json" else text
    except UnicodeDecodeError:
        return failed(f"{node.id}: {_shown_path(work)} is not UTF-8", retryable=False)
    except msgspec.DecodeError as error:
        return failed(f"{node.id}: {_shown_path(work)} is not JSON: {error}", retryable=False)
    return Outcome(context_updates={key: value})


async def write_file(work: NodeContext) -> Outcome:
    """Write ``content`` (or the value of ``source``) to ``path``, atomically; with ``append=true``
    at the end of the file. Missing folders are created."""
    node = work.node
    if "content" in node.attrs:
        content = as_text(value_of(work, node.attrs["content"]))
    else:
        content = as_text(value_of(work, f"{{{{{node.text('source')}}}}}"))
    workspace, path = _resolve(work, write=True)
    raw = content.encode("utf-8", "replace")
    try:
        with workspace.folder(path.parent, write=True, create=True) as folder:
            if node.is_true("append"):
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                with os.fdopen(os.open(path.name, flags, 0o666, dir_fd=folder), "ab") as file:
                    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                        raise OSError(0, "it is not a file")
                    file.write(raw)
            else:
                fs.write_atomically(path.name, raw, mode=0o666, dir_fd=folder)
    except OSError as error:
        return failed(f"{node.id}: {_shown_path(work)} cannot be written: {error.strerror}")
    return Outcome(context_updates={f"{node.id}.path": workspace.name(path)})


def _shown_path(work: NodeContext) -> str:
    return as_text(value_of(work, work.node.text("path")))


def _resolve(work: NodeContext, *, write: bool) -> tuple[Workspace, Path]:
    """The workspace and the path in it. Raises ``ConfigError`` for a path that is not of the
    workspace, or that no agent may read; where a value names it, also for a protected one."""
    is_chosen = PLACEHOLDER.search(work.node.text("path")) is not None
    workspace = Workspace(work.workspace, protects=is_chosen)
    try:
        path = workspace.resolve(_shown_path(work), write=write)
    except ToolError as error:
        raise ConfigError(f"{work.node.id}: {error}") from error
    if any(is_inside(str(path), os.path.realpath(folder)) for folder in hidden_of(work)):
        raise ConfigError(f"{work.node.id}: {_shown_path(work)} is in a hidden folder")
    return workspace, path


def _source(work: NodeContext) -> Json:
    """The value of the key that ``source`` names. Raises ``ConfigError`` if it is missing."""
    node = work.node
    name = node.text("source")
    value = find(work.context, name)
    if value is None and name not in work.context:
        raise ConfigError(f"the {node.kind} node {node.id}: there is no {name!r} in the context")
    return value


def _key(work: NodeContext) -> str:
    return work.node.text("key") or f"{work.node.id}.output"


_CONTAINER: Schema[Json] = Schema(
    "JSON",
    {},
    lambda value: (value, []) if isinstance(value, dict | list) else (None, ["no container"]),
)


def _json_in(value: Json) -> tuple[Json, str | None]:
    """The JSON in a text, or what is wrong: of the whole text any value, in prose or fences an
    object or a list. Other values are returned as they are."""
    if not isinstance(value, str):
        return value, None
    with contextlib.suppress(msgspec.DecodeError):
        return decode_json(value), None
    container, _, problems = find_json(value, _CONTAINER)
    return (None, "there is no JSON in it") if problems else (container, None)


def _follow_path(value: Json, path: str) -> tuple[Json, str | None]:
    """The value at this path, or what is wrong."""
    steps = path.removeprefix("$").removeprefix(".")
    at = 0
    while at < len(steps):
        step = _STEP.match(steps, at)
        if step is None:
            return None, f"{path!r} is not a path: write a.b[0].c"
        name = step[1] if step[1] is not None else step[2]
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None, f"there is no {steps[: step.end()]!r}"
        at = step.end()
        if at < len(steps) and steps[at] == ".":
            at += 1
    return value, None
