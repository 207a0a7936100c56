"""``codergen``: a prompt to the node's agent, or to the built-in agent with the node's model.

Attributes: ``prompt`` (else the label), ``agent``, ``model`` or ``llm_model`` and
``llm_provider``, ``policy`` (reads, edits, all), ``allowed_tools``, ``sandbox``,
``system_prompt``, ``reasoning_effort``, ``max_turns``, ``max_cost``, ``max_total_tokens``,
``max_calls``, ``timeout``, ``output_schema`` (its value in ``<node>.output``), ``until`` (a
command; ``rounds``), ``images``, ``attachments``, ``output_key`` (a key for the answer's text).
"""

from __future__ import annotations

import msgspec

from corral._pipelines import templates
from corral._pipelines.execution import verdict
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.verdict import NodeVerdict
from corral._pipelines.scheduler.outcome import MAX_IN_CONTEXT, Outcome
from corral._pipelines.simulation import simulated_answer
from corral._pipelines.templates import as_text
from corral.values import JsonObject

MAX_RESPONSE = 200
"""Characters of an answer in the context. ``response.md`` has all of it."""


async def codergen(work: NodeContext) -> Outcome:
    """If the agent's run fails, the node fails with its reason."""
    prompt = prompt_of(work)
    if work.resources.simulate:
        work.write_file("prompt.md", prompt)
        answer = simulated_answer(work.node)
        output: JsonObject = {f"{work.node.id}.output": answer}
        outcome = Outcome(context_updates=output if work.node.text("output_schema") else {})
        return outcome_with_answer(work, answer, outcome=outcome)
    from corral._pipelines.execution import agent_call

    call = agent_call.build_call(work)
    if call.report is not None:
        prompt = f"{prompt}\n\n{call.report.instruction}"
    result = await agent_call.send_prompt(work, call, prompt)
    outcome = agent_call.outcome_of_result(work, call, result)
    if not outcome.ok:
        if result.text:
            work.write_file("response.md", result.text)
        return outcome
    text = work.resources.redactor.clean_text(result.text)
    final = work.resources.redactor.clean_text(result.final_text)
    by_tool = None if call.report is None else call.report.verdict
    outcome = outcome_with_answer(work, text, final, outcome)
    return apply_report(work, outcome, by_tool, final or text)


def prompt_of(work: NodeContext) -> str:
    goal = as_text(work.context.get("graph.goal")) or work.graph.goal
    return templates.fill(work.node.text("prompt") or work.node.label, work.context, goal)


def outcome_with_answer(
    work: NodeContext, text: str, final: str | None = None, outcome: Outcome | None = None
) -> Outcome:
    """A success. Writes ``response.md``, and adds the answer to the context updates."""
    outcome = Outcome() if outcome is None else outcome
    work.write_file("response.md", text)
    answer = final or text
    updates: JsonObject = {"last_stage": work.node.id, "last_response": answer[:MAX_RESPONSE]}
    if key := work.node.text("output_key"):
        updates[key] = truncate_text(answer)
    return msgspec.structs.replace(outcome, context_updates={**updates, **outcome.context_updates})


def apply_report(
    work: NodeContext, outcome: Outcome, by_tool: NodeVerdict | None, text: str
) -> Outcome:
    """The outcome as the agent or model reported it: by the tool, else in its answer. A report in
    ``status.json`` is read later; it wins over one in the answer."""
    if by_tool is not None:
        return verdict.apply_verdict(outcome, by_tool, work.node.id, "tool")
    try:
        in_answer = verdict.find(text)
    except ValueError as error:
        return msgspec.structs.replace(outcome, notes=f"{outcome.notes}; {error}".lstrip("; "))
    if in_answer is None:
        return outcome
    return verdict.apply_verdict(outcome, in_answer, work.node.id, "answer")


def truncate_text(text: str, most: int = MAX_IN_CONTEXT) -> str:
    """At most the first ``most`` bytes, for the context."""
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= most else raw[:most].decode("utf-8", "ignore")
