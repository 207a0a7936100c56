"""``for_each``: an agent, a model or a command for each item of a list.

``items`` is a hole that holds a list, the name of a key that does, JSON, or words parted by
commas; in ``prompt`` and ``tool_command`` the holes ``{{item}}``, ``{{item.field}}`` and
``{{index}}`` stand for the one at hand. With ``tool_command`` it is a command; with ``model``
and no ``agent`` one call of that model; else an agent. ``max_parallel`` (4) work at once, each
within ``item_timeout`` and in a folder of its own, ``items/<index>``. ``item_key`` gives the
item a second name, ``results_key`` the results another key.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import cast

import msgspec

from corral.errors import ConfigError, CorralError
from corral.nesting import decode_json
from corral.pipelines.execution import node_dir
from corral.pipelines.execution import resources as node_resources
from corral.pipelines.execution.error_mapping import outcome_of_error
from corral.pipelines.execution.handlers import Handler, NodeContext
from corral.pipelines.execution.node_options import names, number_of
from corral.pipelines.execution.shell import IN_CONTEXT
from corral.pipelines.graph import Node, Value
from corral.pipelines.nodes.codergen import codergen, truncate_text
from corral.pipelines.nodes.data import value_of
from corral.pipelines.nodes.prompt import prompt
from corral.pipelines.nodes.tool import tool
from corral.pipelines.scheduler.outcome import Outcome
from corral.pipelines.templates import as_text, find
from corral.values import Json

MOST = 1000
"""Items, unless ``max_items`` says otherwise: a list may be what a model made."""
ROOM = 512 * 1024
"""Bytes of all answers in the context; the whole of them is in ``results.json``."""
ANSWER = "internal.item"


async def for_each(work: NodeContext) -> Outcome:
    """``<node>.results`` has one entry for each item, in order: ``index``, ``status``, and
    ``output`` or ``error``. Some failed: a partial success; all: a failure."""
    items = items_of(work)
    handler = _handler(work.node)
    width = number_of(work.node, "max_parallel", int) if "max_parallel" in work.node.attrs else 4
    if width < 1:
        raise ConfigError(f"{work.node.id}: max_parallel must be at least 1, got: {width}")
    places = asyncio.Semaphore(width)

    async def one(index: int, item: Json) -> Outcome:
        async with places:
            return await _outcome(_part(work, index, item), handler)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(index, item)) for index, item in enumerate(items)]
    return _together(work, [task.result() for task in tasks])


def items_of(work: NodeContext) -> list[Json]:
    """Raises ``ConfigError`` for what is no list."""
    node = work.node
    if "items" not in node.attrs:
        raise ConfigError(f"the for_each node {node.id} has no items")
    given = value_of(work, node.attrs["items"])
    if isinstance(given, str) and isinstance(held := find(work.context, given.strip()), list):
        given = held  # the bare name of a key
    if isinstance(given, str):
        text = given.strip()
        given = cast("Json", names(text))
        if text.startswith(("[", "{")):
            try:
                parsed: Json = decode_json(text)
            except msgspec.DecodeError as error:
                raise ConfigError(f"{node.id}: items is no JSON: {error}") from error
            given = parsed
    if not isinstance(given, list):
        raise ConfigError(f"{node.id}: items must be a list, got: {type(given).__name__}")
    most = number_of(node, "max_items", int) if "max_items" in node.attrs else MOST
    if len(given) > most:
        raise ConfigError(
            f"{node.id}: there are {len(given):,} items, over {most:,}", hint="Raise max_items."
        )
    return given


def _handler(node: Node) -> Handler:
    if node.text("tool_command"):
        return tool
    if not node.text("prompt"):
        raise ConfigError(f"the for_each node {node.id} has neither a prompt nor a tool_command")
    named = node.text("model") or node.text("llm_model")
    return prompt if named and not node.text("agent") else codergen


def _part(work: NodeContext, index: int, item: Json) -> NodeContext:
    """The work on one item: like the node's own, in a folder and with a context of its own."""
    attrs: dict[str, Value] = {**work.node.attrs, "output_key": ANSWER}
    attrs.pop("timeout", None)
    if "item_timeout" in attrs:
        attrs["timeout"] = attrs["item_timeout"]
    node = msgspec.structs.replace(work.node, attrs=attrs)
    context: dict[str, Json] = {**work.context, "item": item, "index": index}
    if name := work.node.text("item_key"):
        context[name] = item
    return dataclasses.replace(
        work,
        node=node,
        folder=work.folder / "items" / str(index),
        visit=msgspec.structs.replace(work.visit, context=context, thread=None),
    )


async def _outcome(part: NodeContext, handler: Handler) -> Outcome:
    try:
        node_dir.clear(part.folder)
        return await handler(part) or Outcome()
    except CorralError as error:
        return outcome_of_error(error)
    except (OSError, ValueError) as error:
        return Outcome(status="fail", failure_reason=f"{type(error).__name__}: {error}")


def _together(work: NodeContext, outcomes: list[Outcome]) -> Outcome:
    node = work.node
    room = min(IN_CONTEXT, ROOM // max(1, len(outcomes)))
    whole: list[Json] = []
    short: list[Json] = []
    for index, outcome in enumerate(outcomes):
        entry: dict[str, Json] = {"index": index, "status": outcome.status}
        if not outcome.ok:
            entry["error"] = outcome.failure_reason
        typed = f"{node.id}.output"
        output = outcome.context_updates.get(
            typed if node.text("output_schema") else ANSWER, None if outcome.ok else ""
        )
        whole.append({**entry, "output": output})
        short.append({**entry, "output": _shortened(output, room)})
    node_resources.write_node_file(work, "results.json", msgspec.json.encode(whole))
    bad = [outcome for outcome in outcomes if not outcome.ok]
    costs = [outcome.cost_usd for outcome in outcomes if outcome.cost_usd is not None]
    tokens = [outcome.tokens for outcome in outcomes if outcome.tokens is not None]
    told = f"{len(bad)} of {len(outcomes)} items failed: {bad[0].failure_reason}" if bad else ""
    failed = bool(bad) and len(bad) == len(outcomes)
    retryable: bool | None = None
    if failed and any(outcome.retryable for outcome in bad):
        retryable = True
    elif failed and all(outcome.retryable is False for outcome in bad):
        retryable = False
    return Outcome(
        status="fail" if failed else "partial_success" if bad else "success",
        failure_reason=told if failed else "",
        notes="" if failed else told,
        retryable=retryable,
        context_updates={
            node.text("results_key") or f"{node.id}.results": short,
            f"{node.id}.count": len(outcomes),
            f"{node.id}.failed": len(bad),
        },
        cost_usd=sum(costs) if costs else None,
        tokens=sum(tokens) if tokens else None,
    )


def _shortened(output: Json, room: int) -> Json:
    if isinstance(output, str) or len(msgspec.json.encode(output)) > room:
        return truncate_text(as_text(output), room)
    return output


HANDLERS: dict[str, Handler] = {"for_each": for_each}
