"""``set``, ``switch`` and ``json_extract``: values of the context, without anybody's help."""

from __future__ import annotations

import re
from typing import cast

from corral.errors import ConfigError
from corral.events import Json
from corral.pipelines import routes
from corral.pipelines.conditions import as_text, find
from corral.pipelines.conditions import of_edge as condition_of
from corral.pipelines.handlers import Handler, Work
from corral.pipelines.outcome import Outcome, failed
from corral.pipelines.templates import fill
from corral.sessions.output import find as find_json
from corral.wire.schema import Schema

DEFAULTS = ("default", "else", "otherwise", "*")
"""Labels of a switch's edge for all other values."""
SET = "set."

_WHOLE = re.compile(r"\s*\{\{\s*\.?([A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*)\s*\}\}\s*")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def value_of(work: Work, given: Json) -> Json:
    """An attribute with its holes filled; one that is a single hole is the value itself, a list
    or an object too."""
    if not isinstance(given, str):
        return given
    if whole := _WHOLE.fullmatch(given):
        found = find(work.context, whole[1])
        if found is not None or whole[1] in work.context:
            return found
    return fill(given, work.context, work.graph.goal)


async def set_values(work: Work) -> Outcome:
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


async def switch(work: Work) -> Outcome:
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
    labels = {routes.plain(edge.label): edge for edge in reversed(free)}
    if case and routes.plain(case) in labels:
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


async def json_extract(work: Work) -> Outcome:
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
}
