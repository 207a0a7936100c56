"""Questions of a node's agent, asked through the person of the run (attribute ``questions``).

A question has the same id if the attempt is made again after a crash and the agent asks the same:
an answer that was given meanwhile counts.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from corral.core.question_replies import AnswerLike, read_text, text_of
from corral.errors import ConfigError
from corral.events import AgentQuestion
from corral.pipelines.scheduler.commands import Answer, Choice, Question, RunNode

AskPerson: TypeAlias = Callable[[Question], Awaitable[Answer]]
"""Asks the person of the run, and waits for the answer."""

ANSWER_TIMEOUT = 24 * 3600.0
"""Seconds for an answer, if the node has no ``answer_timeout``."""
MARK = "?"
"""In the id of a question of an agent, after the id of the visit."""


class NodeQuestions:
    """The questions of one attempt."""

    def __init__(self, visit: RunNode, ask: AskPerson) -> None:
        self._visit = visit
        self._ask = ask
        self._asked: Counter[str] = Counter()

    async def answer(self, asked: AgentQuestion) -> AnswerLike:
        """The answer of the person; None if the question was skipped. It is asked again until the
        answer fits."""
        problem = ""
        while True:
            question = self._question(asked, problem)
            given = await self._ask(question)
            if given.skipped:
                return None
            labels = {choice.key: choice.label for choice in question.choices}
            try:
                return read_text(asked, labels.get(given.value, given.value or given.text))
            except ConfigError as error:
                problem = f"{error.message}\n"

    def _question(self, asked: AgentQuestion, problem: str) -> Question:
        text = text_of(asked)
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
        self._asked[digest] += 1
        only = asked.fields[0] if len(asked.fields) == 1 else None
        choices: tuple[Choice, ...] = ()
        if only is not None and not only.free_text and not only.multiple:
            choices = tuple(
                Choice(str(number), option.label, "")
                for number, option in enumerate(only.options, 1)
            )
        return Question(
            id=f"{self._visit.id}{MARK}{digest}-{self._asked[digest]}",
            node=self._visit.node,
            text=f"{problem}{text}" if choices else f"{problem}{_with_options(asked)}",
            choices=choices,
        )


def _with_options(asked: AgentQuestion) -> str:
    lines = [asked.title] if asked.title else []
    for field in asked.fields:
        lines.append(field.text)
        for number, option in enumerate(field.options, 1):
            more = f": {option.description}" if option.description else ""
            lines.append(f"{number}. {option.label}{more}")
    return "\n".join(lines)
