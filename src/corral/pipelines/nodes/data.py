"""Nodes that work on values of the context: no agent, no model, no command."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from typing import cast

import msgspec

from corral.errors import ConfigError
from corral.pipelines import conditions
from corral.pipelines.conditions import edge_condition as condition_of
from corral.pipelines.execution import resources as node_resources
from corral.pipelines.execution.handlers import Handler, NodeContext
from corral.pipelines.scheduler import routing
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.pipelines.templates import as_text, fill, find
from corral.protocol.schema.build import Schema
from corral.sessions.structured_output import find as find_json
from corral.values import Json

DEFAULTS = ("default", "else", "otherwise", "*", "_")
"""Labels of a switch's edge for all other values."""
SET = "set."

_WHOLE = re.compile(r"\s*\{\{\s*\.?([A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*)\s*\}\}\s*")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def value_of(work: NodeContext, given: Json) -> Json:
    """An attribute with its holes filled; one that is a single hole is the value itself, a list
    or an object too."""
    if not isinstance(given, str):
        return given
    if whole := _WHOLE.fullmatch(given):
        found = find(work.context, whole[1])
        if found is not None or whole[1] in work.context:
            return found
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
            raise ConfigError(f"the set node {work.node.id}: {key} is the engine's own")
    return Outcome(context_updates=updates)


async def switch(work: NodeContext) -> Outcome:
    """Goes where the label of an edge equals ``value`` (or the value of ``key``), else by the
    edge labelled ``default``, else by one without a label. With neither attribute the edges'
    conditions decide, and the outcome so far stays in force."""
    node = work.node
    if "value" in node.attrs:
        case = as_text(value_of(work, node.attrs["value"]))
    elif key := node.text("key"):
        case = as_text(find(work.context, key))
    else:
        return Outcome()
    free = [
        edge for edge in work.graph.edges_from(node.id) if condition_of(work.graph, edge) is None
    ]
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
    if len(free) < len(work.graph.edges_from(node.id)):
        return Outcome(preferred_label=case)  # a condition may hold
    known = ", ".join(repr(edge.label) for edge in free) or "none"
    return failed(
        f"the switch {node.id} has no edge for {case!r}: there is {known}", retryable=False
    )


async def json_extract(work: NodeContext) -> Outcome:
    """The JSON in ``source`` (a key of the context; ``last_response`` unless told), in prose or
    fences too; of it what ``path`` leads to (``items[0].name``), into ``key`` (``<node>.output``
    unless told). ``default`` where there is none; without it the node fails."""
    node = work.node
    source = node.text("source") or "last_response"
    held = find(work.context, source)
    if held is None and source not in work.context:
        return failed(f"json_extract {node.id}: there is no {source!r} in the context")
    value, wrong = _json_in(held)
    if wrong is None:
        value, wrong = _at(value, node.text("path"))
    if wrong is not None:
        if "default" not in node.attrs:
            return failed(f"json_extract {node.id}: {source}: {wrong}")
        value = value_of(work, node.attrs["default"])
    return Outcome(context_updates={node.text("key") or f"{node.id}.output": value})


async def json_decode(work: NodeContext) -> Outcome:
    """The JSON in ``source``: the whole of it into ``key`` (``<node>.output`` unless ``prefix`` is
    given), and with ``prefix`` each field of an object into ``<prefix><field>``."""
    node = work.node
    held, wrong = _json_in(_source(work))
    if wrong is not None:
        return failed(f"json_decode {node.id}: {node.text('source')}: {wrong}")
    updates: dict[str, Json] = {}
    if "prefix" in node.attrs:
        if not isinstance(held, dict):
            return failed(f"json_decode {node.id}: prefix needs an object", retryable=False)
        updates = {f"{node.text('prefix')}{name}": value for name, value in held.items()}
    if node.text("key") or not updates:
        updates[_key(work)] = held
    return Outcome(context_updates=updates)


async def json_pack(work: NodeContext) -> Outcome:
    """The values of ``keys`` (a comma list) as one JSON object, a text, into ``output`` or ``key``
    (``<node>.output`` unless given)."""
    names = [name.strip() for name in work.node.text("keys").split(",") if name.strip()]
    if not names:
        raise ConfigError(f"the json_pack node {work.node.id} has no keys")
    packed = {name: find(work.context, name) for name in names}
    key = work.node.text("output") or _key(work)
    return Outcome(context_updates={key: msgspec.json.encode(packed).decode()})


async def split(work: NodeContext) -> Outcome:
    """The text in ``source``, cut at ``sep`` (a comma unless given) into a list in ``key``. Empty
    parts are left out; ``trim=false`` keeps the blanks around each part."""
    node = work.node
    parts = as_text(_source(work)).split(node.text("sep") or ",")
    if node.attrs.get("trim", True) not in (False, "false"):
        parts = [part.strip() for part in parts]
    listed: list[Json] = [part for part in parts if part]
    return Outcome(context_updates={_key(work): listed})


async def regex(work: NodeContext) -> Outcome:
    """What ``pattern`` finds in ``source``: its ``group`` (0, the whole match) into ``key``; where
    it finds nothing ``no_match`` or ``default``, else the node fails."""
    node = work.node
    try:
        found = re.search(node.text("pattern"), as_text(_source(work)))
        value = None if found is None else found[int(node.text("group") or 0)]
    except (re.error, IndexError, ValueError) as error:
        raise ConfigError(f"the regex node {node.id}: {error}") from error
    if value is None:
        other = next((key for key in ("no_match", "default") if key in node.attrs), None)
        if other is None:
            return failed(f"regex {node.id}: {node.text('pattern')!r} finds nothing")
        return Outcome(context_updates={_key(work): value_of(work, node.attrs[other])})
    return Outcome(context_updates={_key(work): value})


_TEXT_OPS: dict[str, Callable[[str], str]] = {
    "trim": str.strip,
    "lower": str.lower,
    "upper": str.upper,
    "title": str.title,
}


async def string_transform(work: NodeContext) -> Outcome:
    """The text in ``source`` after each of ``ops`` (``trim``, ``lower``, ``upper``, ``title``)."""
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
    """The environment variable ``from`` (the ``key`` unless given) into ``key``; ``default`` where
    it is not set; without one the node fails, unless ``required=false``."""
    node = work.node
    key = node.text("key")
    if not key:
        raise ConfigError(f"the env node {node.id} has no key")
    name = node.text("from") or key
    value = node_resources.resources_of(work).env.get(name) or os.environ.get(name)
    if value is not None:
        return Outcome(context_updates={key: value})
    if "default" in node.attrs:
        return Outcome(context_updates={key: value_of(work, node.attrs["default"])})
    if node.attrs.get("required", True) in (False, "false"):
        return Outcome(context_updates={key: ""})
    return failed(f"env {node.id}: the variable {name} is not set", retryable=False)


async def check(work: NodeContext) -> Outcome:
    """``assert``: fails with ``message`` unless the condition ``expr`` holds."""
    node = work.node
    text = node.text("expr") or node.text("condition")
    if not text.strip():
        raise ConfigError(f"the assert node {node.id} has no expr")
    if conditions.compile(text).holds(conditions.lookup_in(work.context)):
        return Outcome()
    said = fill(node.text("message"), work.context, work.graph.goal) or f"{text} does not hold"
    return failed(f"assert {node.id}: {said}", retryable=False)


async def sleep(work: NodeContext) -> Outcome:
    """Waits for ``duration``."""
    pause = work.node.seconds("duration")
    if pause is None:
        raise ConfigError(f"the sleep node {work.node.id} has no duration")
    if not work.resources.simulate:
        await asyncio.sleep(pause)
    return Outcome()


def _source(work: NodeContext) -> Json:
    """The value of the key that ``source`` names. Raises ``ConfigError`` where there is none."""
    node = work.node
    name = node.text("source")
    held = find(work.context, name) if name else None
    if not name or (held is None and name not in work.context):
        problem = f"there is no {name!r} in the context" if name else "it has no source"
        raise ConfigError(f"the {node.kind} node {node.id}: {problem}")
    return held


def _key(work: NodeContext) -> str:
    return work.node.text("key") or f"{work.node.id}.output"


def _anything(value: Json) -> tuple[Json, list[str]]:
    return (value, []) if isinstance(value, dict | list) else (None, ["no object and no list"])


_ANY: Schema[Json] = Schema("JSON", {}, _anything)


def _json_in(held: Json) -> tuple[Json, str | None]:
    if not isinstance(held, str):
        return held, None
    value, complaints = find_json(held, _ANY)
    return (None, "there is no JSON in it") if complaints else (cast("Json", value), None)


def _at(value: Json, path: str) -> tuple[Json, str | None]:
    """What the path leads to, or why it leads nowhere."""
    steps = path.removeprefix("$").removeprefix(".")
    at = 0
    while at < len(steps):
        step = _STEP.match(steps, at)
        if step is None:
            return None, f"{path!r} is no path: write a.b[0].c"
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


HANDLERS: dict[str, Handler] = {
    "set": set_values,
    "switch": switch,
    "json_extract": json_extract,
    "json_decode": json_decode,
    "json_pack": json_pack,
    "split": split,
    "regex": regex,
    "string_transform": string_transform,
    "env": env,
    "assert": check,
    "sleep": sleep,
}
