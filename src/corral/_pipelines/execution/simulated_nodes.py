"""What is called instead of the handlers of nodes in a simulation (``pipelines.simulation``), and
who answers its gates."""

from __future__ import annotations

from functools import partial

import msgspec

from corral._pipelines import conditions, node_kinds
from corral._pipelines.execution import verdict
from corral._pipelines.execution.handlers import Handler, NodeContext
from corral._pipelines.execution.interviewers import AutoApprove, Interviewer
from corral._pipelines.graph import Node
from corral._pipelines.scheduler.commands import Answer, Question
from corral._pipelines.scheduler.outcome import Outcome
from corral._pipelines.simulation import (
    SIMULATED,
    ScriptedVisit,
    Simulate,
    Simulation,
    simulated_answer,
)
from corral._pipelines.templates import as_text, find
from corral.values import Json, JsonObject


def handler_of(work: NodeContext, handler: Handler) -> Handler:
    """What is called instead of the handler of this node."""
    simulate = work.resources.simulate
    if not isinstance(simulate, Simulation):
        return handler
    if scripted := simulate.visit(work.node.id, work.visit.number):
        return partial(_run_scripted, scripted)
    kind = node_kinds.find(work.node.kind)
    if kind.is_pure:
        return partial(_run_pure, handler)
    # The handlers of agents and models simulate them, and those of the steps of workflows;
    # for_each calls one of them, or skips.
    is_step = kind == node_kinds.COMMAND_STEP
    simulates = (kind.llm != "none" or is_step) and kind.name in node_kinds.KINDS
    return handler if simulates or not simulate.all else skip


async def skip(work: NodeContext) -> Outcome:
    """A success, with the values that the node would set."""
    return Outcome(context_updates=_updates(work.node, simulated_answer(work.node), ok=True))


async def _run_pure(handler: Handler, work: NodeContext) -> Outcome:
    """Run the node. If it fails because what it reads is only simulated, it is a success."""
    outcome = await handler(work) or Outcome()
    text = work.node.text("expr") or work.node.text("condition")
    names = [work.node.text("source") or "last_response"]
    if text:
        names = [clause.key for clause in conditions.clauses(conditions.compile(text).tree)]
    values = (as_text(find(work.context, name)) for name in names)
    is_simulated = node_kinds.ENV.name == work.node.kind or any(
        value.startswith(SIMULATED) for value in values
    )
    if outcome.ok or not is_simulated:
        return outcome
    return msgspec.structs.replace(await skip(work), notes=f"simulated: {outcome.failure_reason}")


async def _run_scripted(scripted: ScriptedVisit, work: NodeContext) -> Outcome:
    node = work.node
    output = simulated_answer(node) if scripted.output is None else scripted.output
    text = as_text(output)
    ok = scripted.outcome not in ("fail", "failed", "failure", "retry")
    updates = _updates(node, output, ok=ok)
    if node_kinds.find(node.kind).llm != "none":
        updates |= {"last_stage": node.id, "last_response": text[:200]}
    work.write_file("response.md", text)
    reported = verdict.read(
        {
            "outcome": scripted.outcome,
            "preferred_label": scripted.label,
            "context_updates": scripted.context,
            "failure_reason": scripted.reason or f"{node.id}: the script says {scripted.outcome}",
        },
        "the script",
    )
    outcome = verdict.apply_verdict(Outcome(context_updates=updates), reported, node.id, "tool")
    if ok:
        return outcome
    failure_class = scripted.failure_class or outcome.failure_class
    return msgspec.structs.replace(outcome, failure_class=failure_class, retryable=False)


def _updates(node: Node, output: Json, *, ok: bool) -> JsonObject:
    """The values that a node of this kind sets, with this output."""
    named = (node.text(name) for name in node_kinds.KEY_ATTRIBUTES)
    updates: JsonObject = {f"{node.id}.output": output, **{key: output for key in named if key}}
    text = as_text(output)
    if node.kind == node_kinds.TOOL.name:
        updates |= {
            "tool.output": text,
            "tool_stdout": text,
            "tool.stderr": "",
            "tool.exit_code": 0 if ok else 1,
            "tool.last_line": text.rstrip().rpartition("\n")[2].strip(),
        }
    elif node.kind == node_kinds.HTTP.name:
        status = 200 if ok else 500
        updates[f"{node.id}.status"] = status
        if key := node.text("status_key"):
            updates[key] = status
    elif node.kind == node_kinds.FOR_EACH.name:
        updates[node.text("results_key") or f"{node.id}.results"] = output
    return updates


class SimulatedPerson:
    """Answers gates by the script, else as ``inner`` does; without it with the default or the first
    choice."""

    def __init__(self, simulation: Simulation, inner: Interviewer | None) -> None:
        self._simulation = simulation
        self._inner = AutoApprove() if simulation.all or inner is None else inner

    async def ask(self, question: Question) -> Answer:
        number = question.id.partition("#")[0].rpartition(".")[2]
        visit = int(number) if number.isdigit() else 1
        scripted = self._simulation.visit(question.node, visit)
        if scripted is not None:
            text = as_text(scripted.output)
            if scripted.outcome in ("fail", "skipped"):
                return Answer(skipped=True)
            if not question.choices:
                return Answer(value=text or scripted.label)
            if scripted.label:
                return Answer(value=scripted.label, text=text)
        if question.default is not None and self._simulation.all:
            return Answer(value=question.default)
        return await self._inner.ask(question)


def interviewer_of(simulate: Simulate, inner: Interviewer | None) -> Interviewer | None:
    """Who answers the gates of a run."""
    return SimulatedPerson(simulate, inner) if isinstance(simulate, Simulation) else inner
