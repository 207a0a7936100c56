"""The preamble: what an agent that starts a new session learns about the run before its prompt.

``truncate``: the goal and the run. ``compact`` adds the status of each node and the values of the
context, one line each. ``summary:low|medium|high`` has more of the answers and values, up to about
600, 1,500 or 3,000 tokens. ``full`` adds no text: the agent resumes the session of its thread. If
that is not possible, it gets ``summary:high``. A node with nothing before it gets no preamble.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from corral._pipelines import node_kinds
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.run_dir import CHECKPOINT, file_name
from corral._pipelines.graph import Node
from corral._pipelines.templates import as_text
from corral._system import fs
from corral.values import JsonObject, as_object

TOKEN = 4
"""Characters of a token, about."""
SIZES = {
    "truncate": 400 * TOKEN,
    "compact": 1000 * TOKEN,
    "summary:low": 600 * TOKEN,
    "summary:medium": 1500 * TOKEN,
    "summary:high": 3000 * TOKEN,
}
"""Characters of a preamble."""
VALUES = {"compact": 200, "summary:low": 120, "summary:medium": 600, "summary:high": 2000}
"""Characters of one value of the context."""
MAX_CHECKPOINT = 16 * 1024 * 1024

_HIDDEN = (
    "graph.",
    "internal.",
    "parallel.results",
    "parallel.branch.",
    "stack.",
    "current_node",
    "last_stage",
    "last_response",
    "outcome",
    "preferred_label",
)
"""Prefixes of context keys that are not shown."""


def with_preamble(work: NodeContext, prompt: str, fidelity: str) -> str:
    text = preamble(work, fidelity)
    return f"{text}\n\n# Your task\n\n{prompt}" if text else prompt


def preamble(work: NodeContext, fidelity: str) -> str:
    """The text before the prompt; empty if nothing came before this node. An unknown fidelity is
    treated as ``compact``."""
    if fidelity == "full":
        fidelity = "summary:high"
    if fidelity not in SIZES:
        fidelity = "compact"
    values = {key: value for key, value in work.context.items() if not key.startswith(_HIDDEN)}
    stages = _stages(work)
    if not values and not stages and not work.context.get("last_response"):
        return ""
    lines = ["# The run so far", ""]
    if goal := as_text(work.context.get("graph.goal")) or work.graph.goal:
        lines.append(f"Goal: {goal}")
    lines.append(f"Run: {work.run_id}, now at: {work.node.id}")
    if fidelity != "truncate":
        longest, previous = VALUES[fidelity], work.visit.previous
        if stages:
            lines += ["", "Stages:", *(f"- {name}: {status}" for name, status in stages)]
        if previous and (answer := _read_answer(work, previous, longest)):
            lines += ["", f"Answer of {previous}:", answer]
        if values:
            shown = ((key, _cut(as_text(value), longest)) for key, value in sorted(values.items()))
            lines += ["", "Context:", *(f"- {key}: {text}" for key, text in shown)]
    return _cut("\n".join(lines), SIZES[fidelity])


def _stages(work: NodeContext) -> list[tuple[str, str]]:
    """Each node that has ended, with its status: from the checkpoint if it can be read, else only
    the previous node."""
    checkpoint: JsonObject = {}
    data = fs.read_small(work.run_folder / CHECKPOINT, MAX_CHECKPOINT)
    # It may be on another machine, or incomplete; then the context is enough.
    with suppress(msgspec.DecodeError):
        checkpoint = as_object(msgspec.json.decode(data or b"{}"))
    outcomes = checkpoint.get("node_outcomes")
    completed = checkpoint.get("completed_nodes")
    if isinstance(outcomes, dict) and isinstance(completed, list):
        names = dict.fromkeys(str(name) for name in completed)
        return [
            (name, str(outcome.get("status", "")))
            for name in names
            if isinstance(outcome := outcomes.get(name), dict)
            and _is_step(work.graph.nodes.get(name))
        ]
    previous = work.visit.previous
    node = work.graph.nodes.get(previous or "")
    status = as_text(work.context.get("outcome"))
    if previous is None or not status or not _is_step(node):
        return []
    return [(previous, status)]


def _is_step(node: Node | None) -> bool:
    return node is None or node_kinds.find(node.kind).works


def _read_answer(work: NodeContext, previous: str, longest: int) -> str:
    """The last answer: from its file if it can be read, else the part that is in the context."""
    try:
        with fs.open_regular(work.run_folder / file_name(previous) / "response.md") as file:
            # A character has at most four bytes. The last one may be cut.
            text = file.read(4 * (longest + 1)).decode("utf-8", "ignore")
            return _cut(text[: longest + 1].strip(), longest)
    except OSError:
        return _cut(as_text(work.context.get("last_response")), longest)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
