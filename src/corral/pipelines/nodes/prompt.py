"""``prompt``: one call of a model, without tools.

Attributes: ``prompt``, ``model``, ``system_prompt``, ``reasoning_effort``, ``temperature``,
``max_tokens``, ``output_schema``, ``timeout``. The answer is in ``<node>.output``, and in ``key``
if that is given: as text, or as a value of the schema.
"""

from __future__ import annotations

import msgspec

from corral.errors import ConfigError
from corral.events import Done
from corral.inference.api import generate
from corral.inference.request import RequestOptions
from corral.inference.results import Generation
from corral.inference.structured import generate_object
from corral.models.registry import EXAMPLE
from corral.pipelines.execution import verdict
from corral.pipelines.execution.agent_call import effort_of, model_of, number_of, schema_of
from corral.pipelines.execution.handlers import NodeContext
from corral.pipelines.execution.node_usage import store_usage
from corral.pipelines.nodes.codergen import (
    apply_report,
    outcome_with_answer,
    prompt_of,
    simulated_answer,
    truncate_text,
)
from corral.pipelines.scheduler.outcome import Outcome
from corral.system import clock
from corral.values import Json, JsonObject

PROMPT = "prompt"
"""What ``corral usage`` calls the agent of a model call without an agent."""
TIMEOUT = 600.0
"""Seconds, if the node has no ``timeout``."""


async def prompt(work: NodeContext) -> Outcome:
    text = prompt_of(work)
    wanted = verdict.wanted_of(work.graph, work.node)
    if wanted is not None:
        text = f"{text}\n\n{verdict.instruction(wanted, 'answer')}"
    work.write_file("prompt.md", text)
    output = f"{work.node.id}.output"
    if work.resources.simulate:
        answer = simulated_answer(work)
        return outcome_with_answer(work, answer, outcome=Outcome(context_updates={output: answer}))
    schema = schema_of(work)
    generation = await ask_model(work, text, schema)
    answer = work.resources.redactor.clean_text(generation.text)
    value: Json = truncate_text(answer) if schema is None else generation.output
    updates: JsonObject = {output: value}
    if key := work.node.text("key"):
        updates[key] = value
    outcome = outcome_with_answer(work, answer, outcome=outcome_with_cost(generation, updates))
    return apply_report(work, outcome, None, answer)


async def ask_model(work: NodeContext, text: str, schema: JsonObject | None) -> Generation:
    """One answer of the node's model. Raises ``CorralError``."""
    node, resources = work.node, work.resources
    model = model_of(node, resources)
    if model is None:
        raise ConfigError(f"{node.id} names no model", hint=f"For example model={EXAMPLE!r}.")
    options: RequestOptions = {
        "client": resources.client(),
        "timeout": node.seconds("timeout") or TIMEOUT,
        "system": node.text("system_prompt") or None,
        "reasoning_effort": effort_of(node),
    }
    if "max_tokens" in node.attrs:
        options["max_tokens"] = number_of(node, "max_tokens", int)
    if "temperature" in node.attrs:
        options["temperature"] = number_of(node, "temperature", float)
    text = resources.redactor.clean_text(text)
    if work.budget is not None:
        from corral.pipelines.execution.run_budget import CountedCalls

        options["client"] = resources.client().with_middleware(CountedCalls(work, work.budget))
    found: Generation
    if schema is None:
        found = await generate(model, text, **options)
    else:
        found = await generate_object(model, schema, text, **options)
    done = Done(
        status="success",
        model=found.response.model,
        usage=found.usage,
        cost=found.cost,
        ts=clock.now(),
    )
    store_usage(work, PROMPT, [done])
    return found


def outcome_with_cost(generation: Generation, updates: JsonObject) -> Outcome:
    return msgspec.structs.replace(
        Outcome(context_updates=updates),
        cost_usd=generation.cost.usd,
        tokens=generation.usage.total,
    )
