"""How an agent or a model reports the outcome of its node.

A node *decides* something if it has more than one outgoing edge, if an edge of it or of a decision
after it has a condition on ``outcome`` or ``preferred_label``, or if it is a goal gate. Such a
node's prompt gets a short instruction: the outcomes and labels that this node may report, and the
channel to report them by:

- ``tool``: a call of ``report_outcome``, for agents that accept corral's tools;
- ``file``: ``status.json`` in the node's directory, for an agent that may write there;
- ``answer``: a JSON object at the end of the answer.

All channels are read, in this order, whichever the instruction named. ``outcome`` may be any word;
all but ``fail`` and ``retry`` are a success. Without a report the node succeeded. ``verdict=off``
on the node or the graph turns the instruction off, but a report is still read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal, get_args

import msgspec

from corral._pipelines import conditions
from corral._pipelines.conditions import Clause
from corral._pipelines.graph import Edge, Graph, Node
from corral._pipelines.scheduler.outcome import Outcome, Status, normalize_status, not_json
from corral._pipelines.scheduler.routing import is_decision, normalize_label
from corral._pipelines.scheduler.state import without_internal_keys
from corral.values import Json, JsonObject, is_object

Channel = Literal["tool", "file", "answer"]

TOOL = "report_outcome"
KEYS = ("outcome", "preferred_label")
STATUSES: tuple[Status, ...] = get_args(Status)
MAX_SCANNED = 64 * 1024
"""Characters at the end of an answer in which a report is searched."""
MAX_BRACES = 400
"""Opening braces in them that are tried as the beginning of an object."""


class Wanted(msgspec.Struct, frozen=True):
    """What a node may report."""

    outcomes: tuple[str, ...]
    labels: tuple[str, ...]


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent, a model or a command reported."""

    outcome: str = "success"
    preferred_label: str = ""
    suggested_next_ids: tuple[str, ...] = ()
    context_updates: dict[str, Json] = {}
    notes: str = ""
    failure_reason: str = ""


def wanted_of(graph: Graph, node: Node) -> Wanted | None:
    """What this node may report; None if it decides nothing, or has ``verdict=off``."""
    if (node.text("verdict") or str(graph.attrs.get("verdict", ""))) == "off":
        return None
    edges = graph.edges_from(node.id)
    # The edges that leave the decisions to which the node's edges lead.
    targets = (graph.nodes.get(edge.target) for edge in edges)
    decisions = (target for target in targets if target is not None and is_decision(target))
    after = [edge for decision in decisions for edge in graph.edges_from(decision.id)]
    compared = [clause for edge in (*edges, *after) for clause in _compared(graph, edge)]
    decides = len(edges) > 1 or bool(compared) or node.is_true("goal_gate")
    if not decides:
        return None
    outcomes = ["success", "fail", *(_literals(compared, "outcome"))]
    labels = [*_literals(compared, "preferred_label")]
    labels += [*_free_labels(graph, edges), *_free_labels(graph, after)]
    return Wanted(tuple(dict.fromkeys(outcomes)), tuple(dict.fromkeys(labels)))


def _free_labels(graph: Graph, edges: list[Edge]) -> Iterator[str]:
    """The labels of edges without a condition, if there is more than one edge to choose from."""
    if len(edges) > 1:
        for edge in edges:
            if edge.label and conditions.edge_condition(graph, edge) is None:
                yield edge.label


def instruction(wanted: Wanted, channel: Channel, path: str = "") -> str:
    """The text that is appended to the prompt of a node that decides something."""
    how = {
        "tool": f"call the tool `{TOOL}` once, as the last thing you do",
        "file": f"write a JSON object to the file {path}",
        "answer": "end your answer with one JSON object on a separate line",
    }[channel]
    fields = ['"outcome": one of ' + ", ".join(json.dumps(word) for word in wanted.outcomes)]
    if wanted.labels:
        shown = ", ".join(json.dumps(label, ensure_ascii=False) for label in wanted.labels)
        fields.append(f'"preferred_label" (optional): one of {shown}')
    fields.append('"notes" (optional): one sentence')
    listed = "\n".join(f"- {field}" for field in fields)
    return f"When you are done, report the outcome of this step: {how}, with\n{listed}"


def find(text: str) -> NodeVerdict | None:
    """The last JSON object of an answer, bare or fenced, that has an ``outcome`` or a
    ``preferred_label``; None if it has no such object."""
    end = text[-MAX_SCANNED:]
    decoder = json.JSONDecoder()
    found: JsonObject | None = None
    begin = at = len(end)
    until = -1
    for _ in range(MAX_BRACES):
        at = end.rfind("{", 0, at)
        if at < 0:
            break
        try:
            value, stop = decoder.raw_decode(end, at)
        except (ValueError, RecursionError):
            continue
        if found is not None and stop <= begin:
            break  # it ends before the one that was found
        if is_object(value) and any(key in value for key in KEYS) and stop > until:
            found, begin, until = value, at, stop
    return None if found is None else read(found, "the answer")


def read(given: dict[str, Json], source: str) -> NodeVerdict:
    """The report in a JSON object. Keys of the context that corral itself sets are left out: they
    name sessions to resume and branches to merge. Raises ``ValueError`` if a field has the wrong
    type."""
    following = given.get("suggested_next_ids") or []
    updates = given.get("context_updates") or {}
    if not isinstance(following, list) or not isinstance(updates, dict):
        raise ValueError(
            f"{source}: suggested_next_ids must be a list and context_updates an object"
        )
    for key, value in updates.items():
        if wrong := not_json(value):
            raise ValueError(f"{source}: {key!r} {wrong}")
    label = given.get("preferred_label") or given.get("preferred_next_label")
    word = _text(given.get("outcome", given.get("status"))).strip() or "success"
    status = normalize_status(word.lower())
    return NodeVerdict(
        outcome=status if status in STATUSES else word,
        preferred_label=_text(label).strip(),
        suggested_next_ids=tuple(_text(name) for name in following),
        context_updates=without_internal_keys(updates),
        notes=_text(given.get("notes")),
        failure_reason=_text(given.get("failure_reason")),
    )


def apply_verdict(outcome: Outcome, verdict: NodeVerdict, node: str, by: Channel) -> Outcome:
    """The outcome of a node that succeeded, changed by the report of its agent."""
    word = verdict.outcome
    status = next((status for status in STATUSES if status == word), None)
    is_status, status = status is not None, status or "success"
    has_failed = status in ("fail", "retry")
    reason = verdict.failure_reason
    if has_failed and not reason:
        reason = verdict.notes or f"{node} reported outcome={word}"
    return msgspec.structs.replace(
        outcome,
        status=status,
        verdict="" if is_status else word,
        verdict_by=by,
        preferred_label=verdict.preferred_label or outcome.preferred_label,
        suggested_next_ids=verdict.suggested_next_ids or outcome.suggested_next_ids,
        context_updates={**outcome.context_updates, **verdict.context_updates},
        notes=verdict.notes or outcome.notes,
        failure_reason=reason if has_failed else "",
        failure_class="verdict" if has_failed else "",
    )


def unknown_label(graph: Graph, node: Node, label: str) -> str:
    """A message if no edge has the reported label; empty if one has it, or if no edge of the node
    has a label."""
    wanted = wanted_of(graph, node)
    known = () if wanted is None else wanted.labels
    accepted = {normalize_label(name) for name in known}
    if not label or not known or normalize_label(label) in accepted:
        return ""
    return f"the reported preferred_label {label!r} is not one of: {', '.join(known)}"


def _text(value: Json) -> str:
    return "" if value is None else value if isinstance(value, str) else str(value)


def _compared(graph: Graph, edge: Edge) -> Iterator[Clause]:
    """The clauses of an edge's condition that compare what a node reports."""
    try:
        condition = conditions.edge_condition(graph, edge)
    except conditions.ConditionError:
        return
    if condition is not None:
        yield from (
            clause
            for clause in conditions.clauses(condition.tree)
            if clause.key.removeprefix("context.") in KEYS
        )


def _literals(clauses: list[Clause], key: str) -> Iterator[str]:
    """The texts with which these clauses compare this key."""
    for clause in clauses:
        if clause.key.removeprefix("context.") == key and clause.operator == "=" and clause.literal:
            yield clause.literal
