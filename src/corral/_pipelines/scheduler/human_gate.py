"""The human gate: the question that is asked, and the outcome of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from corral._pipelines import templates
from corral._pipelines.graph import Edge, Graph, Node
from corral._pipelines.scheduler.commands import Answer, Choice, Question
from corral._pipelines.scheduler.outcome import Outcome, failed
from corral._pipelines.scheduler.routing import accelerator
from corral.values import Json


def build_question(
    graph: Graph, node: Node, edges: list[Edge], id: str, context: dict[str, Json]
) -> Question:
    """Raises ``ValueError`` if ``human.timeout`` is not a duration."""
    # Any text is an answer if the only edge has no label, or if ``mode`` says so.
    is_unlabelled = len(edges) == 1 and not edges[0].label.strip()
    takes_text = is_unlabelled or node.text("mode") in ("freeform", "text")
    offered = () if takes_text else choices(edges)
    default = node.text("human.default_choice") or node.text("default_choice")
    chosen = find_choice(offered, default) if default else None
    parts = [node.text("label"), node.text("prompt")]
    text = "\n\n".join(part for part in parts if part) or node.id
    return Question(
        id=id,
        node=node.id,
        text=templates.fill(text, context, graph.goal),
        choices=offered,
        default=chosen.key if chosen else default or None if not offered else None,
        timeout=node.gate_timeout,
    )


def choices(edges: list[Edge]) -> tuple[Choice, ...]:
    """One choice per edge."""
    written = [edge.label or edge.target for edge in edges]
    return question_choices(written, [edge.target for edge in edges])


def question_choices(
    written: Sequence[str], targets: Sequence[str] | None = None
) -> tuple[Choice, ...]:
    """One choice per label, which leads to a target, or to its own name. The keys differ from
    each other even if case is ignored: the accelerator, unless an earlier choice has it, else a
    letter of the label, else a number."""
    targets = written if targets is None else targets
    named = [accelerator(text) for text in written]
    taken: set[str] = set()
    keys: list[str] = []
    for key, _ in named:
        is_free = key.lower() not in taken
        keys.append(key if is_free else "")
        taken.add(key.lower())
    for index, (_, label) in enumerate(named):
        if not keys[index]:
            letters = [letter.upper() for letter in label if letter.isalnum()]
            numbers = (str(number) for number in range(1, len(named) + len(taken) + 1))
            keys[index] = next(key for key in (*letters, *numbers) if key.lower() not in taken)
            taken.add(keys[index].lower())
    return tuple(
        Choice(key, label or target, target, text)
        for key, (_, label), target, text in zip(keys, named, targets, written, strict=True)
    )


def find_choice(offered: tuple[Choice, ...], value: str) -> Choice | None:
    """The choice with this key, label or target. Case does not matter."""
    wanted = value.strip().lower()
    without_key = accelerator(value)[1].lower()
    by_key = (choice for choice in offered if choice.key.lower() == wanted)
    by_label = (choice for choice in offered if choice.label.lower() in (wanted, without_key))
    by_target = (choice for choice in offered if choice.target.lower() == wanted)
    return next(chain(by_key, by_label, by_target), None)


def answer_text(question: Question, answer: Answer) -> str:
    """What was chosen, and after a colon the comment; or the text."""
    if answer.skipped:
        return "skipped"
    choice = find_choice(question.choices, answer.value)
    chosen = answer.value if choice is None else choice.label
    return ": ".join(part for part in (chosen, answer.text) if part)


def outcome_of_answer(question: Question, answer: Answer) -> Outcome:
    """An answer that matches no choice gives ``retry``: the person is asked again, as often as
    the node may be retried. Callers that take answers should reject it with ``find_choice``."""
    if answer.skipped:
        return failed(f"the question was skipped: {question.text}", retryable=False)
    if not question.choices:
        text = "\n".join(part for part in (answer.value, answer.text) if part)
        return Outcome(context_updates=gate_updates(text=text))
    choice = find_choice(question.choices, answer.value)
    if choice is None:
        keys = ", ".join(f"{choice.key} ({choice.label})" for choice in question.choices)
        reason = f"{answer.value!r} is not one of the choices: {keys}"
        return Outcome(status="retry", failure_reason=reason)
    return outcome_of_choice(choice, answer.text)


def outcome_of_choice(choice: Choice, text: str = "") -> Outcome:
    return Outcome(
        preferred_label=choice.label,
        suggested_next_ids=(choice.target,),
        context_updates=gate_updates(choice.key, choice.written or choice.label, text),
    )


def gate_updates(key: str = "", label: str = "", text: str = "") -> dict[str, Json]:
    """All three keys, so that none is left from the answer to an earlier gate."""
    return {"human.gate.selected": key, "human.gate.label": label, "human.gate.text": text}


def outcome_of_timeout(question: Question) -> Outcome:
    """The default choice, else ``retry``."""
    if question.default is not None:
        if not question.choices:
            return outcome_of_answer(question, Answer(value=question.default))
        if choice := find_choice(question.choices, question.default):
            return outcome_of_choice(choice)
    return Outcome(status="retry", failure_reason="no answer before the timeout")
