"""``parallel.fan_in`` with a prompt: a model, or an agent that the node names, ranks the branches.

The branches that did not fail are put before it, and it names the best. Whose context updates
win is the plan's to do.
"""

from __future__ import annotations

from typing import cast

import msgspec

from corral.pipelines.execution import agent_call, node_options
from corral.pipelines.execution import resources as node_resources
from corral.pipelines.execution.handlers import Handler, NodeContext
from corral.pipelines.execution.run_dir import RunDir
from corral.pipelines.nodes.codergen import prompt_of, simulated
from corral.pipelines.nodes.prompt import ask_model, outcome_with_cost
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.values import Json

BEST = "parallel.fan_in.best_id"
PRODUCED = ("response.md", "tool_output.txt")
"""What a branch's last node leaves: an answer, or the output of a command."""
ANSWER = 4_000
"""Characters of a branch's answer that the judge is shown."""


async def fan_in(work: NodeContext) -> Outcome:
    branches = [each for each in _results(work) if each.get("status") not in ("fail", "cancelled")]
    ids = [str(each["id"]) for each in branches if each.get("id")]
    if not ids:
        return failed("there is no branch to rank: none succeeded", retryable=False)
    asked = f"{prompt_of(work)}\n\n{_shown(work, branches)}"
    node_resources.write_node_file(work, "prompt.md", asked)
    if work.resources.simulate:
        node_resources.write_node_file(work, "response.md", simulated(work))
        return Outcome(context_updates=_picked(branches, ids[0]))
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {"best_id": {"enum": [*ids]}, "reason": {"type": "string"}},
        "required": ["best_id"],
    }
    resources = node_resources.resources_of(work)
    model = node_options.model_of(work.node, resources)
    if not work.node.text("agent") and model is not None and ":" in model:
        generation = await ask_model(work, resources, asked, schema)
        outcome, answer = outcome_with_cost(generation, {}), generation.object
    else:
        ask = agent_call.build_call(work, resources, alone=True)
        ask.schema = schema
        result = await agent_call.send_prompt(work, resources, ask, asked)
        outcome, answer = agent_call.outcome_of_result(work, ask, result), result.output
        if not outcome.ok:
            return outcome
    told = cast("dict[str, str]", answer)
    node_resources.write_node_file(work, "response.md", msgspec.json.encode(told))
    return msgspec.structs.replace(
        outcome,
        context_updates=_picked(branches, told["best_id"]),
        notes=told.get("reason", "") or outcome.notes,
    )


def _results(work: NodeContext) -> list[dict[str, Json]]:
    results = work.context.get("parallel.results")
    if not isinstance(results, list):
        return []
    return [each for each in results if isinstance(each, dict)]


def _picked(branches: list[dict[str, Json]], best: str) -> dict[str, Json]:
    status = next((each.get("status") for each in branches if each.get("id") == best), "success")
    return {BEST: best, "parallel.fan_in.best_outcome": status}


def _shown(work: NodeContext, branches: list[dict[str, Json]]) -> str:
    """The branches for a judge: with what their last nodes produced, where that is at hand."""
    told = ["The branches to choose from; answer with the id of the best:"]
    for branch in branches:
        said = _answer(work, str(branch.get("last_visit", ""))) or branch.get("last_response", "")
        told.append(f"## {branch['id']}\n\nstatus: {branch.get('status')}\n\n{said}")
    return "\n\n".join(told)


def _answer(work: NodeContext, visit: str) -> str:
    if not visit:
        return ""
    place = RunDir(work.run_folder).visit_dir(visit)
    for name in PRODUCED:
        try:
            with open(place / name, encoding="utf-8", errors="replace") as file:
                return file.read(ANSWER)
        except OSError:
            continue
    return ""


HANDLERS: dict[str, Handler] = {"parallel.fan_in": fan_in}
