"""Nodes that ask a model. ``prompt``: one call, without tools.

Attributes: ``prompt``, ``model``, ``system_prompt``, ``reasoning_effort``, ``temperature``,
``max_tokens``, ``output_schema``, ``timeout``. The answer is in ``<node>.output``, and in ``key``
if that is given: as text, or as a value of the schema.

``parallel.fan_in`` with a prompt: a model, or an agent that the node names, ranks the branches. It
gets those that did not fail, and names the best. The scheduler merges their context updates.
"""

from __future__ import annotations

from contextlib import ExitStack

import msgspec

from corral._inference.api import generate
from corral._inference.counted_calls import CountedCalls
from corral._inference.request import RequestOptions
from corral._inference.results import Generation
from corral._inference.structured import generate_object
from corral._metering.budget_gate import BudgetGate, paused_event
from corral._models.registry import EXAMPLE
from corral._pipelines.execution import agent_call, verdict
from corral._pipelines.execution.agent_call import store_usage
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.node_options import (
    EFFORTS,
    budget_of,
    choice_of,
    model_of,
    number_of,
    read_output_schema,
)
from corral._pipelines.execution.run_dir import RunDir
from corral._pipelines.execution.shell import node_span
from corral._pipelines.nodes.codergen import (
    apply_report,
    outcome_with_answer,
    prompt_of,
    truncate_text,
)
from corral._pipelines.scheduler.outcome import Outcome, failed
from corral._pipelines.simulation import simulated_answer
from corral._protocol.schema import schema_of
from corral._system import clock, fs
from corral._telemetry import trace_context
from corral.errors import ConfigError
from corral.events import Done
from corral.values import Json, JsonObject, as_object, as_objects, as_text

PROMPT = "prompt"
"""What ``corral runs usage`` calls the agent of a model call without an agent."""
TIMEOUT = 600.0
"""Seconds, if the node has no ``timeout``."""
BEST = "parallel.fan_in.best_id"
OUTPUT_FILES = ("response.md", "tool_output.txt")
"""Output of a branch's last node: an answer, or the output of a command."""
MAX_ANSWER = 4_000
"""Characters of a branch's answer in the prompt."""


async def prompt(work: NodeContext) -> Outcome:
    text = prompt_of(work)
    wanted = verdict.wanted_of(work.graph, work.node)
    if wanted is not None:
        text = f"{text}\n\n{verdict.instruction(wanted, 'answer')}"
    work.write_file("prompt.md", text)
    output = f"{work.node.id}.output"
    if work.resources.simulate:
        answer = simulated_answer(work.node)
        simulated: JsonObject = {name: answer for name in (output, work.node.text("key")) if name}
        return outcome_with_answer(work, answer, outcome=Outcome(context_updates=simulated))
    schema = read_output_schema(work)
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
        "reasoning_effort": choice_of(node, "reasoning_effort", EFFORTS),
    }
    if "max_tokens" in node.attrs:
        options["max_tokens"] = number_of(node, "max_tokens", int)
    if "temperature" in node.attrs:
        options["temperature"] = number_of(node, "temperature", float)
    text = resources.redactor.clean_text(text)
    if (budget := budget_of(work)) is not None:
        gate = BudgetGate(budget, lambda text: work.emit(paused_event(text)))
        options["client"] = resources.client().with_middleware(CountedCalls(gate))
    generation: Generation
    with ExitStack() as stack:
        if (endpoint := resources.options.get("otel")) is not None:
            options["otel"] = endpoint
            stack.enter_context(trace_context.active(node_span(work)))
        if schema is None:
            generation = await generate(model, text, **options)
        else:
            generation = await generate_object(model, schema_of(schema), text, **options)
    done = Done(
        status="success",
        model=generation.response.model,
        usage=generation.usage,
        cost=generation.cost,
        ts=clock.now(),
    )
    store_usage(work, PROMPT, [done])
    return generation


def outcome_with_cost(generation: Generation, updates: JsonObject) -> Outcome:
    cost, tokens = generation.cost.usd, generation.usage.total
    return Outcome(context_updates=updates, cost_usd=cost, tokens=tokens)


async def fan_in(work: NodeContext) -> Outcome:
    results = as_objects(work.context.get("parallel.results"))
    branches = [branch for branch in results if branch.get("status") not in ("fail", "cancelled")]
    ids = [str(branch["id"]) for branch in branches if branch.get("id")]
    if not ids:
        return failed("there is no branch to rank: none succeeded", retryable=False)
    parts = [prompt_of(work), "The branches to choose from; answer with the id of the best:"]
    for branch in branches:
        output = _last_output(work, str(branch.get("last_visit", "")))
        answer = output or branch.get("last_response", "")
        parts.append(f"## {branch['id']}\n\nstatus: {branch.get('status')}\n\n{answer}")
    text = "\n\n".join(parts)
    work.write_file("prompt.md", text)
    if work.resources.simulate:
        work.write_file("response.md", simulated_answer(work.node))
        return Outcome(context_updates=_best_updates(branches, ids[0]))
    schema: JsonObject = {
        "type": "object",
        "properties": {"best_id": {"enum": [*ids]}, "reason": {"type": "string"}},
        "required": ["best_id"],
    }
    model = model_of(work.node, work.resources)
    if not work.node.text("agent") and model is not None and ":" in model:
        generation = await ask_model(work, text, schema)
        outcome, choice = outcome_with_cost(generation, {}), as_object(generation.output)
    else:
        call = agent_call.build_call(work, alone=True)
        call.schema = schema
        result = await agent_call.send_prompt(work, call, text)
        outcome = agent_call.outcome_of_result(work, call, result)
        choice = as_object(result.output if result.ok else None)
    if not outcome.ok:
        return outcome
    work.write_file("response.md", msgspec.json.encode(choice))
    return msgspec.structs.replace(
        outcome,
        context_updates=_best_updates(branches, as_text(choice.get("best_id"))),
        notes=as_text(choice.get("reason")) or outcome.notes,
    )


def _best_updates(branches: list[JsonObject], best: str) -> JsonObject:
    status = next(
        (branch.get("status") for branch in branches if branch.get("id") == best), "success"
    )
    return {BEST: best, "parallel.fan_in.best_outcome": status}


def _last_output(work: NodeContext, visit: str) -> str:
    """The output of a branch's last node, if it can be read."""
    if not visit:
        return ""
    folder = RunDir(work.run_folder).visit_dir(visit)
    for name in OUTPUT_FILES:
        try:
            with fs.open_regular(folder / name) as file:
                # A character has at most four bytes.
                return file.read(4 * MAX_ANSWER).decode("utf-8", "replace")[:MAX_ANSWER]
        except OSError:
            continue
    return ""
