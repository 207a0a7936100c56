"""``for_each``: an agent, a model or a command for each item of a list.

``items`` is a placeholder for a list, the name of a key that has one, JSON, or words separated by
commas. In ``prompt`` and ``tool_command`` the placeholders ``{{item}}``, ``{{item.field}}`` and
``{{index}}`` stand for the current item. With ``tool_command`` a command runs; with ``model`` and
no ``agent`` that model is called once; else an agent is. ``max_parallel`` (4) items run at the same
time, each within ``item_timeout`` and in its own folder, ``items/<index>``. ``item_key`` is a
second name for the item, ``results_key`` another key for the results.
"""

from __future__ import annotations

import asyncio

import msgspec

from corral._core.nesting import decode_json
from corral._pipelines.execution import run_dir, simulated_nodes
from corral._pipelines.execution.handlers import Handler, NodeContext
from corral._pipelines.execution.node_options import number_of
from corral._pipelines.graph import Value
from corral._pipelines.nodes.codergen import codergen, truncate_text
from corral._pipelines.nodes.data import value_of
from corral._pipelines.nodes.prompt import prompt
from corral._pipelines.nodes.tool import tool
from corral._pipelines.scheduler.outcome import MAX_IN_CONTEXT, Outcome, failed, outcome_of_error
from corral._pipelines.simulation import SIMULATED, Simulation
from corral._pipelines.templates import as_text, find
from corral.errors import ConfigError, CorralError
from corral.values import Json, JsonObject

MAX_ITEMS = 1000
"""Items, unless ``max_items`` is set: a model may have made the list."""
MAX_RESULTS = 512 * 1024
"""Bytes of all answers in the context. ``results.json`` has all of them."""
ANSWER = "internal.item"


async def for_each(work: NodeContext) -> Outcome:
    """``<node>.results`` has one entry for each item, in order: ``index``, ``status``, and
    ``output`` or ``error``. If some items failed, it is a partial success; if all did, a
    failure."""
    items = items_of(work)
    handler: Handler = tool
    if not work.node.text("tool_command"):
        model = work.node.text("model") or work.node.text("llm_model")
        handler = prompt if model and not work.node.text("agent") else codergen
    elif isinstance(work.resources.simulate, Simulation) and work.resources.simulate.all:
        handler = simulated_nodes.skip
    limit = number_of(work.node, "max_parallel", int) if "max_parallel" in work.node.attrs else 4
    if limit < 1:
        raise ConfigError(f"{work.node.id}: max_parallel must be at least 1, got: {limit}")
    slots = asyncio.Semaphore(limit)

    async def run_item(index: int, item: Json) -> Outcome:
        async with slots:
            item_work = _item_context(work, index, item)
            try:
                run_dir.clear_node_dir(item_work.folder)
                return await handler(item_work) or Outcome()
            except CorralError as error:
                return outcome_of_error(error)
            except (OSError, ValueError) as error:
                return failed(f"{type(error).__name__}: {error}")

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_item(index, item)) for index, item in enumerate(items)]
    return _combine(work, [task.result() for task in tasks])


def items_of(work: NodeContext) -> list[Json]:
    """Raises ``ConfigError`` if ``items`` is not a list."""
    node = work.node
    items = value_of(work, node.attrs["items"])
    if isinstance(items, str):
        # The name of a key, JSON, or words separated by commas.
        text = items.strip()
        value = find(work.context, text)
        if isinstance(value, list):
            items = value
        elif work.resources.simulate and text.startswith(SIMULATED):
            simulated: list[Json] = [text]
            items = simulated
        elif not text.startswith(("[", "{")):
            words: list[Json] = [name for item in text.split(",") if (name := item.strip())]
            items = words
        else:
            try:
                items = decode_json(text)
            except msgspec.DecodeError as error:
                raise ConfigError(f"{node.id}: items is not JSON: {error}") from error
    if not isinstance(items, list):
        raise ConfigError(f"{node.id}: items must be a list, got: {type(items).__name__}")
    most = number_of(node, "max_items", int) if "max_items" in node.attrs else MAX_ITEMS
    if len(items) > most:
        raise ConfigError(
            f"{node.id}: there are {len(items):,} items, over {most:,}", hint="Raise max_items."
        )
    return items


def _item_context(work: NodeContext, index: int, item: Json) -> NodeContext:
    """The context of one item: that of the node, with another folder and the item's values."""
    attrs: dict[str, Value] = {**work.node.attrs, "output_key": ANSWER}
    attrs.pop("timeout", None)
    if "item_timeout" in attrs:
        attrs["timeout"] = attrs["item_timeout"]
    node = msgspec.structs.replace(work.node, attrs=attrs)
    context: JsonObject = {**work.context, "item": item, "index": index}
    if name := work.node.text("item_key"):
        context[name] = item
    return msgspec.structs.replace(
        work,
        node=node,
        folder=work.folder / "items" / str(index),
        visit=msgspec.structs.replace(work.visit, context=context, thread=None),
    )


def _combine(work: NodeContext, outcomes: list[Outcome]) -> Outcome:
    node = work.node
    longest = min(MAX_IN_CONTEXT, MAX_RESULTS // max(1, len(outcomes)))
    key = f"{node.id}.output" if node.text("output_schema") else ANSWER
    entries: list[Json] = []
    short: list[Json] = []
    for index, outcome in enumerate(outcomes):
        output = outcome.context_updates.get(key, None if outcome.ok else "")
        entry: JsonObject = {"index": index, "status": outcome.status, "output": output}
        if not outcome.ok:
            entry["error"] = outcome.failure_reason
        entries.append(entry)
        if isinstance(output, str) or len(msgspec.json.encode(output)) > longest:
            entry = {**entry, "output": truncate_text(as_text(output), longest)}
        short.append(entry)
    work.write_file("results.json", msgspec.json.encode(entries))
    failures = [outcome for outcome in outcomes if not outcome.ok]
    combined = Outcome()
    if failures:
        message = f"{len(failures)} of {len(outcomes)} items failed: {failures[0].failure_reason}"
        combined = Outcome(status="partial_success", notes=message)
        if len(failures) == len(outcomes):
            may_help = {outcome.retryable for outcome in failures}
            retryable = True if True in may_help else False if may_help == {False} else None
            combined = failed(message, retryable=retryable)
    costs = [outcome.cost_usd for outcome in outcomes if outcome.cost_usd is not None]
    tokens = [outcome.tokens for outcome in outcomes if outcome.tokens is not None]
    return msgspec.structs.replace(
        combined,
        context_updates={
            node.text("results_key") or f"{node.id}.results": short,
            f"{node.id}.count": len(outcomes),
            f"{node.id}.failed": len(failures),
        },
        cost_usd=sum(costs) if costs else None,
        tokens=sum(tokens) if tokens else None,
    )
