"""A person's gate: what is asked, and what an answer comes to."""

from __future__ import annotations

from itertools import chain

from corral.events import Json
from corral.pipelines import templates
from corral.pipelines.graph import Edge, Graph, Node
from corral.pipelines.scheduler.commands import Answer, Choice, Question
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.pipelines.scheduler.routing import accelerator


def question(
    graph: Graph, node: Node, edges: list[Edge], id: str, context: dict[str, Json]
) -> Question:
    """Raises ``ValueError`` where ``human.timeout`` is no duration."""
    offered = () if asks_for_text(node, edges) else choices(edges)
    default = node.text("human.default_choice") or node.text("default_choice")
    meant = find(offered, default) if default else None
    timeout = node.seconds("human.timeout")
    return Question(
        id=id,
        node=node.id,
        text=_text(graph, node, context),
        choices=offered,
        default=meant.key if meant else default or None if not offered else None,
        timeout=node.seconds("timeout") if timeout is None else timeout,
    )


def asks_for_text(node: Node, edges: list[Edge]) -> bool:
    """Whether any answer will do: there is one way on and it has no label, or the node says so."""
    free = len(edges) == 1 and not edges[0].label.strip()
    return free or node.text("mode") in ("freeform", "text")


def choices(edges: list[Edge]) -> tuple[Choice, ...]:
    """One for each edge, with keys that are all different, whatever their case."""
    named = [(*accelerator(edge.label or edge.target), edge.target) for edge in edges]
    written = [edge.label or edge.target for edge in edges]
    taken: set[str] = set()
    keys: list[str] = []
    for key, _, _ in named:
        keep = bool(key) and key.lower() not in taken
        keys.append(key if keep else "")
        taken.add(key.lower() if keep else "")
    for index, (_, label, _) in enumerate(named):
        if not keys[index]:
            letters = [letter.upper() for letter in label if letter.isalnum()]
            numbers = (str(number) for number in range(1, len(named) + len(taken) + 1))
            keys[index] = next(key for key in (*letters, *numbers) if key.lower() not in taken)
            taken.add(keys[index].lower())
    return tuple(
        Choice(key, label or target, target, as_written)
        for key, (_, label, target), as_written in zip(keys, named, written, strict=True)
    )


def find(offered: tuple[Choice, ...], value: str) -> Choice | None:
    """The choice that is meant by a key, a label or a target, whatever the case."""
    wanted = value.strip().lower()
    bare = accelerator(value)[1].lower()
    by_key = (choice for choice in offered if choice.key.lower() == wanted)
    by_label = (choice for choice in offered if choice.label.lower() in (wanted, bare))
    by_target = (choice for choice in offered if choice.target.lower() == wanted)
    return next(chain(by_key, by_label, by_target), None)


def settled(asked: Question, answer: Answer) -> Outcome:
    """What comes of an answer. One that fits no choice is ``retry``: it is asked again, as
    far as the node's retries go; who takes answers does better to refuse it with ``find``."""
    if answer.skipped:
        return failed(f"the question was skipped: {asked.text}", retryable=False)
    if not asked.choices:
        said = answer.value or answer.text
        return Outcome(
            context_updates={"human.gate.selected": said, "human.gate.text": answer.text}
        )
    choice = find(asked.choices, answer.value)
    if choice is None:
        keys = ", ".join(f"{choice.key} ({choice.label})" for choice in asked.choices)
        reason = f"{answer.value!r} is none of the choices: {keys}"
        return Outcome(status="retry", failure_reason=reason)
    return chosen(choice, answer.text)


def chosen(choice: Choice, text: str = "") -> Outcome:
    updates: dict[str, Json] = {
        "human.gate.selected": choice.key,
        "human.gate.label": choice.written or choice.label,
        "human.gate.text": text,
    }
    return Outcome(
        preferred_label=choice.label, suggested_next_ids=(choice.target,), context_updates=updates
    )


def expired(asked: Question) -> Outcome:
    """At the timeout: the default choice, else ``retry``."""
    if asked.default is not None:
        if not asked.choices:
            return settled(asked, Answer(value=asked.default))
        if choice := find(asked.choices, asked.default):
            return chosen(choice)
    return Outcome(status="retry", failure_reason="nobody answered in time")


def _text(graph: Graph, node: Node, context: dict[str, Json]) -> str:
    parts = [node.text("label"), node.text("prompt")]
    text = "\n\n".join(part for part in parts if part) or node.id
    return templates.fill(text, context, graph.goal)
