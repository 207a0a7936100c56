"""``parallel.fan_in`` with a prompt: a model, or an agent that the node names, ranks the branches.

It gets the branches that did not fail, and names the best. The scheduler merges their context
updates.
"""

from __future__ import annotations

import msgspec

from corral.pipelines.execution import agent_call
from corral.pipelines.execution.handlers import NodeContext
from corral.pipelines.execution.run_dir import RunDir
from corral.pipelines.nodes.codergen import prompt_of, simulated_answer
from corral.pipelines.nodes.prompt import ask_model, outcome_with_cost
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.values import JsonObject, as_object, as_objects, as_text

BEST = "parallel.fan_in.best_id"
OUTPUT_FILES = ("response.md", "tool_output.txt")
"""Output of a branch's last node: an answer, or the output of a command."""
MAX_ANSWER = 4_000
"""Characters of a branch's answer in the prompt."""


async def fan_in(work: NodeContext) -> Outcome:
    results = as_objects(work.context.get("parallel.results"))
    branches = [each for each in results if each.get("status") not in ("fail", "cancelled")]
    ids = [str(each["id"]) for each in branches if each.get("id")]
    if not ids:
        return failed("there is no branch to rank: none succeeded", retryable=False)
    prompt = f"{prompt_of(work)}\n\n{_describe(work, branches)}"
    work.write_file("prompt.md", prompt)
    if work.resources.simulate:
        work.write_file("response.md", simulated_answer(work))
        return Outcome(context_updates=_best_updates(branches, ids[0]))
    schema: JsonObject = {
        "type": "object",
        "properties": {"best_id": {"enum": [*ids]}, "reason": {"type": "string"}},
        "required": ["best_id"],
    }
    outcome, choice = await _ask(work, prompt, schema)
    if not outcome.ok:
        return outcome
    work.write_file("response.md", msgspec.json.encode(choice))
    return msgspec.structs.replace(
        outcome,
        context_updates=_best_updates(branches, as_text(choice.get("best_id"))),
        notes=as_text(choice.get("reason")) or outcome.notes,
    )


async def _ask(work: NodeContext, prompt: str, schema: JsonObject) -> tuple[Outcome, JsonObject]:
    """The outcome with its cost, and the answer; empty if the outcome is a failure."""
    model = agent_call.model_of(work.node, work.resources)
    if not work.node.text("agent") and model is not None and ":" in model:
        generation = await ask_model(work, prompt, schema)
        return outcome_with_cost(generation, {}), as_object(generation.output)
    call = agent_call.build_call(work, alone=True)
    call.schema = schema
    result = await agent_call.send_prompt(work, call, prompt)
    outcome = agent_call.outcome_of_result(work, call, result)
    return outcome, as_object(result.output if result.ok else None)


def _best_updates(branches: list[JsonObject], best: str) -> JsonObject:
    status = next((each.get("status") for each in branches if each.get("id") == best), "success")
    return {BEST: best, "parallel.fan_in.best_outcome": status}


def _describe(work: NodeContext, branches: list[JsonObject]) -> str:
    """The branches for the prompt, with the output of their last nodes if it can be read."""
    parts = ["The branches to choose from; answer with the id of the best:"]
    for branch in branches:
        answer = _output(work, str(branch.get("last_visit", ""))) or branch.get("last_response", "")
        parts.append(f"## {branch['id']}\n\nstatus: {branch.get('status')}\n\n{answer}")
    return "\n\n".join(parts)


def _output(work: NodeContext, visit: str) -> str:
    if not visit:
        return ""
    folder = RunDir(work.run_folder).visit_dir(visit)
    for name in OUTPUT_FILES:
        try:
            with open(folder / name, encoding="utf-8", errors="replace") as file:
                return file.read(MAX_ANSWER)
        except OSError:
            continue
    return ""
