"""``codergen``: a prompt to the node's agent, or to our own agent on the node's model.

Attributes: ``prompt`` (else the label), ``agent``, ``model`` or ``llm_model`` and
``llm_provider``, ``policy`` (reads, edits, all), ``allowed_tools``, ``system_prompt``,
``reasoning_effort``, ``max_turns``, ``max_budget_usd``, ``timeout``, ``output_schema`` (its
value in ``<node>.output``), ``until`` (a command; ``rounds``, ``max_total_tokens``), ``images``,
``attachments``, ``output_key`` (a key for the answer's text).
"""

from __future__ import annotations

import msgspec

from corral.pipelines import templates
from corral.pipelines.execution import agent_call, verdict
from corral.pipelines.execution import resources as node_resources
from corral.pipelines.execution.handlers import Handler, NodeContext
from corral.pipelines.execution.shell import IN_CONTEXT
from corral.pipelines.execution.verdict import NodeVerdict
from corral.pipelines.scheduler.outcome import Outcome
from corral.pipelines.templates import as_text
from corral.values import Json

RESPONSE = 200
"""Characters of an answer in the context; the whole is in ``response.md``."""


async def codergen(work: NodeContext) -> Outcome:
    """A failed run fails the node with its reason."""
    prompt = prompt_of(work)
    if work.resources.simulate:
        node_resources.write_node_file(work, "prompt.md", prompt)
        return outcome_with_answer(work, simulated(work))
    resources = node_resources.resources_of(work)
    ask = agent_call.build_call(work, resources)
    if ask.report is not None:
        prompt = f"{prompt}\n\n{ask.report.instruction}"
    result = await agent_call.send_prompt(work, resources, ask, prompt)
    outcome = agent_call.outcome_of_result(work, ask, result)
    if not outcome.ok:
        if result.text:
            node_resources.write_node_file(work, "response.md", result.text)
        return outcome
    text = resources.redactor.clean_text(result.text)
    final = resources.redactor.clean_text(result.final_text)
    by_tool = None if ask.report is None else ask.report.verdict
    return apply_report(
        work, outcome_with_answer(work, text, final, outcome), by_tool, final or text
    )


def prompt_of(work: NodeContext) -> str:
    goal = as_text(work.context.get("graph.goal")) or work.graph.goal
    return templates.fill(work.node.text("prompt") or work.node.label, work.context, goal)


def simulated(work: NodeContext) -> str:
    return f"[Simulated] Response for stage: {work.node.id}"


def outcome_with_answer(
    work: NodeContext, text: str, final: str | None = None, outcome: Outcome | None = None
) -> Outcome:
    """A success, with the answer where people and later nodes find it."""
    outcome = Outcome() if outcome is None else outcome
    node_resources.write_node_file(work, "response.md", text)
    said = final or text
    updates: dict[str, Json] = {"last_stage": work.node.id, "last_response": said[:RESPONSE]}
    if key := work.node.text("output_key"):
        updates[key] = truncate_text(said)
    return msgspec.structs.replace(outcome, context_updates={**updates, **outcome.context_updates})


def apply_report(
    work: NodeContext, outcome: Outcome, by_tool: NodeVerdict | None, text: str
) -> Outcome:
    """The outcome as the agent or model reported it: by the tool, else in its answer. What it
    wrote into ``status.json`` is read later, and stands between the two."""
    if by_tool is not None:
        return verdict.apply_verdict(outcome, by_tool, work.node.id, "tool")
    try:
        in_answer = verdict.find(text)
    except ValueError as error:
        return msgspec.structs.replace(outcome, notes=f"{outcome.notes}; {error}".lstrip("; "))
    if in_answer is None:
        return outcome
    return verdict.apply_verdict(outcome, in_answer, work.node.id, "answer")


def truncate_text(text: str, most: int = IN_CONTEXT) -> str:
    """As much of an answer as goes into the context."""
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= most else raw[:most].decode("utf-8", "ignore")


HANDLERS: dict[str, Handler] = {"codergen": codergen}
