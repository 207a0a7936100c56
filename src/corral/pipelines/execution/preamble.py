"""What an agent is told of the run before its own prompt, where it begins a session of its own.

``truncate``: the goal and the run. ``compact`` adds how each node ended and what the context
holds, a line each. ``summary:low|medium|high`` adds more of what was said, up to about 600,
1,500 or 3,000 tokens. ``full`` is no text: the agent goes on with the session of its thread;
where that cannot be, it is told ``summary:high``. A node with nothing before it is told
nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import msgspec

from corral.pipelines import node_kinds
from corral.pipelines.execution.handlers import NodeContext
from corral.pipelines.execution.run_dir import file_name
from corral.pipelines.graph import Node
from corral.pipelines.templates import as_text
from corral.values import Json

TOKEN = 4
"""Characters, about."""
SIZES = {
    "truncate": 400 * TOKEN,
    "compact": 1000 * TOKEN,
    "summary:low": 600 * TOKEN,
    "summary:medium": 1500 * TOKEN,
    "summary:high": 3000 * TOKEN,
}
"""Characters that a preamble may have."""
VALUES = {"compact": 200, "summary:low": 120, "summary:medium": 600, "summary:high": 2000}
"""Characters of one value of the context."""
LARGEST_CHECKPOINT = 16 * 1024 * 1024

_NOT_TOLD = (
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


def preamble(work: NodeContext, fidelity: str) -> str:
    """What goes before the prompt; empty where there is nothing to tell. An unknown fidelity is
    told as ``compact``."""
    if fidelity == "full":
        fidelity = "summary:high"
    if fidelity not in SIZES:
        fidelity = "compact"
    previous = work.visit.previous
    told = {key: value for key, value in work.context.items() if not key.startswith(_NOT_TOLD)}
    stages = _stages(work)
    if not told and not stages and not work.context.get("last_response"):
        return ""
    lines = ["# The run so far", ""]
    if goal := as_text(work.context.get("graph.goal")) or work.graph.goal:
        lines.append(f"Goal: {goal}")
    lines.append(f"Run: {work.run_id}, now at: {work.node.id}")
    if fidelity == "truncate":
        return _cut("\n".join(lines), SIZES[fidelity])
    if stages:
        lines += ["", "Stages:", *(f"- {name}: {status}" for name, status in stages)]
    most = VALUES[fidelity]
    if previous and (said := _said(work, previous, most)):
        lines += ["", f"Answer of {previous}:", said]
    if told:
        lines += ["", "Context:"]
        lines += [f"- {key}: {_cut(as_text(value), most)}" for key, value in sorted(told.items())]
    return _cut("\n".join(lines), SIZES[fidelity])


def with_preamble(work: NodeContext, prompt: str, fidelity: str) -> str:
    told = preamble(work, fidelity)
    return f"{told}\n\n# Your task\n\n{prompt}" if told else prompt


def _stages(work: NodeContext) -> list[tuple[str, str]]:
    """Each node that has ended, and how: of the checkpoint where it is at hand, else of the one
    before alone."""
    checkpoint = _checkpoint(work.run_folder / "checkpoint.json")
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


def _checkpoint(path: Path) -> dict[str, Json]:
    try:
        if os.path.getsize(path) > LARGEST_CHECKPOINT:
            return {}
        read: object = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}  # another machine's, or half a one: the context says enough
    return cast("dict[str, Json]", read) if isinstance(read, dict) else {}


def _said(work: NodeContext, previous: str, most: int) -> str:
    """The last answer: of its file where that is at hand, else what the context has of it."""
    try:
        with open(work.run_folder / file_name(previous) / "response.md", encoding="utf-8") as file:
            return _cut(file.read(most + 1).strip(), most)
    except (OSError, UnicodeDecodeError):
        return _cut(as_text(work.context.get("last_response")), most)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
