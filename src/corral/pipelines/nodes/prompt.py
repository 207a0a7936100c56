"""``prompt``: one call of a model, no tools. ``prompt``, ``model``, ``system_prompt``,
``reasoning_effort``, ``temperature``, ``max_tokens``, ``output_schema``, ``timeout``. The answer
is in ``<node>.output``, and under ``key`` where that is given: as text, or as a value of the
schema."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from corral.errors import ConfigError
from corral.inference.api import generate
from corral.inference.results import Generation
from corral.inference.structured import generate_object
from corral.models.registry import EXAMPLE
from corral.pipelines.execution import node_options, verdict
from corral.pipelines.execution import resources as node_resources
from corral.pipelines.execution.handlers import Handler, NodeContext
from corral.pipelines.execution.resources import NodeResources
from corral.pipelines.nodes.codergen import (
    apply_report,
    outcome_with_answer,
    prompt_of,
    simulated,
    truncate_text,
)
from corral.pipelines.scheduler.outcome import Outcome
from corral.values import Json

TIMEOUT = 600.0
"""Seconds, where the node has none."""


async def prompt(work: NodeContext) -> Outcome:
    text = prompt_of(work)
    wanted = verdict.wanted_of(work.graph, work.node)
    if wanted is not None:
        text = f"{text}\n\n{verdict.instruction(wanted, 'answer')}"
    node_resources.write_node_file(work, "prompt.md", text)
    output = f"{work.node.id}.output"
    if work.resources.simulate:
        said = simulated(work)
        return outcome_with_answer(work, said, outcome=Outcome(context_updates={output: said}))
    resources = node_resources.resources_of(work)
    schema = node_options.schema_of(work)
    generation = await ask_model(work, resources, text, schema)
    said = resources.redactor.clean_text(generation.text)
    value: Json = truncate_text(said) if schema is None else cast("Json", generation.object)
    updates: dict[str, Json] = {output: value}
    if key := work.node.text("key"):
        updates[key] = value
    outcome = outcome_with_answer(work, said, outcome=outcome_with_cost(generation, updates))
    return apply_report(work, outcome, None, said)


async def ask_model(
    work: NodeContext, resources: NodeResources, text: str, schema: dict[str, Json] | None
) -> Generation:
    """One answer of the node's model. Raises ``CorralError``."""
    node = work.node
    model = node_options.model_of(node, resources)
    if model is None:
        raise ConfigError(f"{node.id} names no model", hint=f"As in model={EXAMPLE!r}.")
    options: dict[str, Any] = {
        "client": resources.client(),
        "timeout": node.seconds("timeout") or TIMEOUT,
        "system": node.text("system_prompt") or None,
        "reasoning_effort": node.text("reasoning_effort") or None,
    }
    if "max_tokens" in node.attrs:
        options["max_tokens"] = node_options.number_of(node, "max_tokens", int)
    if "temperature" in node.attrs:
        options["temperature"] = node_options.number_of(node, "temperature", float)
    text = resources.redactor.clean_text(text)
    if schema is None:
        return await generate(model, text, **options)
    return await generate_object(model, schema, text, **options)


def outcome_with_cost(generation: Generation, updates: dict[str, Json]) -> Outcome:
    return msgspec.structs.replace(
        Outcome(context_updates=updates),
        cost_usd=generation.cost.usd,
        tokens=generation.usage.total,
    )


HANDLERS: dict[str, Handler] = {"prompt": prompt}
