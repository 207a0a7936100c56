"""How an agent or a model reports the outcome of its node.

A node *decides* something when it has more than one way out, when an edge of it or of a decision
after it has a condition on ``outcome`` or ``preferred_label``, or when it is a goal gate. Such a
node's prompt gets a short instruction: the outcomes and labels that this node may report, and the
channel to report them by:

- ``tool``: a call of ``report_outcome``, for agents that take our tools;
- ``file``: ``status.json`` in the node's folder, for an agent that may write there;
- ``answer``: a JSON object at the end of the answer.

What was reported is read in that order, whichever channel was named. ``outcome`` may be any word
of the author's; all but ``fail`` and ``retry`` are a success. Without a report the node succeeded.
``verdict=off`` on the node or the graph turns the instruction off; a report is read all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal, cast, get_args

import msgspec

from corral.pipelines import conditions
from corral.pipelines.conditions import AllOf, AnyOf, Clause, Tree
from corral.pipelines.graph import Edge, Graph, Node
from corral.pipelines.scheduler.outcome import Outcome, Status, normalize_status, not_json
from corral.pipelines.scheduler.routing import is_decision, normalize_label
from corral.values import Json

Channel = Literal["tool", "file", "answer"]

TOOL = "report_outcome"
KEYS = ("outcome", "preferred_label")
STATUSES: tuple[str, ...] = get_args(Status)
SCANNED = 64 * 1024
"""Characters at the end of an answer in which a report is looked for."""
BRACES = 400
"""Places in them where an object may begin that are tried."""


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
    """What this node may report; None where it decides nothing, or is not to be asked."""
    if node.text("verdict") == "off":
        return None
    if not node.text("verdict") and str(graph.attrs.get("verdict", "")) == "off":
        return None
    edges = graph.edges_from(node.id)
    after = [
        edge
        for known in edges
        if (target := graph.nodes.get(known.target)) is not None and is_decision(target)
        for edge in graph.edges_from(target.id)
    ]
    compared = [clause for edge in (*edges, *after) for clause in _compared(graph, edge)]
    decides = len(edges) > 1 or bool(compared) or node.is_true("goal_gate")
    if not decides:
        return None
    outcomes = ["success", "fail", *(_words(compared, "outcome"))]
    labels = [*_words(compared, "preferred_label")]
    for group in (edges, after):
        free = [edge for edge in group if conditions.edge_condition(graph, edge) is None]
        labels += [edge.label for edge in free if edge.label] if len(group) > 1 else []
    return Wanted(tuple(dict.fromkeys(outcomes)), tuple(dict.fromkeys(labels)))


def instruction(wanted: Wanted, channel: Channel, path: str = "") -> str:
    """What is appended to the prompt of a node that decides something."""
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
    ``preferred_label``; None where there is none."""
    end = text[-SCANNED:]
    decoder = json.JSONDecoder()
    found: dict[str, Json] | None = None
    begin = at = len(end)
    until = -1
    for _ in range(BRACES):
        at = end.rfind("{", 0, at)
        if at < 0:
            break
        try:
            value, stop = decoder.raw_decode(end, at)
        except (ValueError, RecursionError):
            continue
        if found is not None and stop <= begin:
            break  # it ends before the one that was found
        if isinstance(value, dict) and any(key in value for key in KEYS) and stop > until:
            found, begin, until = cast("dict[str, Json]", value), at, stop
    return None if found is None else read(found, "the answer")


def read(given: dict[str, Json], source: str) -> NodeVerdict:
    """A report out of JSON. Raises ``ValueError`` for fields of the wrong type."""
    following = given.get("suggested_next_ids") or []
    updates = given.get("context_updates") or {}
    if not isinstance(following, list) or not isinstance(updates, dict):
        raise ValueError(f"{source}: suggested_next_ids is a list, context_updates an object")
    for key, value in updates.items():
        if wrong := not_json(value):
            raise ValueError(f"{source}: {key!r} {wrong}")
    label = given.get("preferred_label") or given.get("preferred_next_label")
    return NodeVerdict(
        outcome=_word(_text(given.get("outcome", given.get("status")))),
        preferred_label=_text(label).strip(),
        suggested_next_ids=tuple(_text(each) for each in following),
        context_updates=updates,
        notes=_text(given.get("notes")),
        failure_reason=_text(given.get("failure_reason")),
    )


def apply_verdict(outcome: Outcome, verdict: NodeVerdict, node: str, by: Channel) -> Outcome:
    """The outcome of a node that went well, as its agent reported it."""
    word = verdict.outcome
    is_status = word in STATUSES
    status = cast("Status", word) if is_status else "success"
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
    """What is wrong with a reported label: no edge has it; empty where one does, or where the
    node's edges have none."""
    wanted = wanted_of(graph, node)
    known = () if wanted is None else wanted.labels
    accepted = {normalize_label(each) for each in known}
    if not label or not known or normalize_label(label) in accepted:
        return ""
    return f"the reported preferred_label {label!r} is none of: {', '.join(known)}"


def _word(text: str) -> str:
    word = text.strip() or "success"
    return normalize_status(word.lower()) if normalize_status(word.lower()) in STATUSES else word


def _text(value: Json) -> str:
    return "" if value is None else value if isinstance(value, str) else str(value)


def _compared(graph: Graph, edge: Edge) -> Iterator[Clause]:
    """The clauses of an edge's condition that look at what a node reports."""
    try:
        condition = conditions.edge_condition(graph, edge)
    except conditions.ConditionError:
        return
    if condition is not None:
        yield from (
            clause
            for clause in _clauses(condition.tree)
            if clause.key.removeprefix("context.") in KEYS
        )


def _clauses(tree: Tree) -> Iterator[Clause]:
    match tree:
        case Clause():
            yield tree
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from _clauses(part)


def _words(clauses: list[Clause], key: str) -> Iterator[str]:
    for clause in clauses:
        if clause.key.removeprefix("context.") == key and clause.operator == "=" and clause.literal:
            yield clause.literal
