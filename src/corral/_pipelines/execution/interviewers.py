"""Interviewers answer the questions of human gates: at the terminal, through a function, from a
list, or automatically.

An interviewer is anything with ``async def ask(question) -> Answer``. It may be cancelled at any
time, by a timeout or an answer from elsewhere. Questions that stay open for days, over restarts,
are the task of the durable engine.

``NodeQuestions`` asks the questions of a node's agent through the person of the run (attribute
``questions``). A question has the same id if the attempt is made again after a crash and the agent
asks the same: an answer that was given meanwhile counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import inspect
import os
import re
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeAlias

from corral._core.question_replies import AnswerLike as ReplyLike
from corral._core.question_replies import read_text, text_of
from corral._core.terminal_text import one_line, visible
from corral._pipelines.scheduler.commands import Answer, Choice, Question, RunNode
from corral._pipelines.scheduler.human_gate import find_choice
from corral._system import clock
from corral._system.threads import in_own_thread
from corral.errors import ConfigError
from corral.events import AgentQuestion

AnswerLike: TypeAlias = Answer | str | None
"""A text is the ``value`` of an answer; None skips the question."""
AskPerson: TypeAlias = Callable[[Question], Awaitable[Answer]]
"""Asks the person of the run, and waits for the answer."""

LONGEST_LINE = 64 * 1024
"""Bytes of a line that a person types."""
ANSWER_TIMEOUT = 24 * 3600.0
"""Seconds for an answer to an agent, if the node has no ``answer_timeout``."""
MARK = "?"
"""In the id of a question of an agent, after the id of the visit."""


class Interviewer(Protocol):
    """Answers the questions of a run. Any object with this method is one.

    ::

        class First:
            async def ask(self, question: pipelines.Question) -> pipelines.Answer:
                return pipelines.Answer(value=question.choices[0].key)
    """

    async def ask(self, question: Question) -> Answer: ...


def answer_of(value: AnswerLike) -> Answer:
    """Raises ``ConfigError`` if the value is not an answer."""
    match value:
        case Answer():
            return value
        case str():
            return Answer(value=value)
        case None:
            return Answer(skipped=True)
        case _:
            raise ConfigError(
                f"a question was answered with a {type(value).__name__}",
                hint="Return an Answer, a text, or None to skip it.",
            )


class AutoApprove:
    """Takes the first choice of every question: for runs without a person.

    ::

        pipelines.run_sync("review.dot", interviewer=pipelines.AutoApprove())
    """

    async def ask(self, question: Question) -> Answer:
        if question.choices:
            return Answer(value=question.choices[0].key)
        return Answer(value="approved")


class Queued:
    """Answers from a list, in order. After the last answer every question is skipped.

    ::

        pipelines.run_sync("review.dot", interviewer=pipelines.Queued(["approve", "reject"]))
    """

    def __init__(self, answers: Iterable[Answer | str]) -> None:
        self.left: deque[Answer | str] = deque(answers)

    async def ask(self, question: Question) -> Answer:
        return answer_of(self.left.popleft()) if self.left else Answer(skipped=True)


class Callback:
    """Asks a function, sync or async. A sync one runs in a thread: it may block.

    ::

        interviewer = pipelines.Callback(lambda question: question.choices[0].key)
        pipelines.run_sync("review.dot", interviewer=interviewer)
    """

    def __init__(self, function: Callable[[Question], AnswerLike | Awaitable[AnswerLike]]) -> None:
        self._function = function

    async def ask(self, question: Question) -> Answer:
        call = functools.partial(self._function, question)
        value = call() if inspect.iscoroutinefunction(self._function) else await in_own_thread(call)
        return answer_of(await value if inspect.isawaitable(value) else value)


class Recording:
    """Records the questions and answers of another interviewer.

    ::

        interviewer = pipelines.Recording(pipelines.AutoApprove())
        pipelines.run_sync("review.dot", interviewer=interviewer)
    """

    def __init__(self, inner: Interviewer) -> None:
        self._inner = inner
        self.asked: list[tuple[Question, Answer]] = []

    async def ask(self, question: Question) -> Answer:
        answer = await self._inner.ask(question)
        self.asked.append((question, answer))
        return answer


class Console:
    """A person at a terminal. Questions are asked one after the other.

    The person types the key or the label of a choice. Words after it are a comment
    (``n the second test is wrong``). Enter alone takes the default. Ctrl-D skips.

    ::

        pipelines.run_sync("review.dot", interviewer=pipelines.Console())
    """

    def __init__(self, fd: int | None = None, say: Callable[[str], None] | None = None) -> None:
        """``fd`` is read, by default stdin; ``say`` writes, by default to stderr. Raises
        ``ConfigError`` if the input is not a terminal."""
        self._fd = sys.stdin.fileno() if fd is None else fd
        self._say = say or functools.partial(print, end="", file=sys.stderr, flush=True)
        if not os.isatty(self._fd):
            raise ConfigError(
                "no person can be asked: the input is not a terminal",
                hint="Answer from elsewhere, or approve all questions beforehand.",
            )
        self._turn = asyncio.Lock()
        self._typed = b""

    async def ask(self, question: Question) -> Answer:
        async with self._turn:
            self._say(format_question(question))
            while True:
                line = await self._line()
                if line is None:
                    self._say("(skipped)\n")
                    return Answer(skipped=True)
                answer = parse_answer(question, line)
                if answer is not None:
                    return answer
                keys = ", ".join(choice.key for choice in question.choices)
                wanted = f"answer with one of: {keys}" if keys else "type an answer"
                self._say(f"Please {wanted}\n> ")

    async def _line(self) -> str | None:
        """The next line; None at the end of the input. A cancelled call reads nothing more: the
        next question gets the next line."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._typed:
            ready = asyncio.Event()
            loop.add_reader(self._fd, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(self._fd)
            chunk = b""
            with contextlib.suppress(OSError):  # the terminal is gone
                chunk = os.read(self._fd, 4096)
            if not chunk:
                return None
            self._typed = (self._typed + chunk)[-LONGEST_LINE:]
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode("utf-8", "replace").strip()


def format_question(question: Question) -> str:
    """The question as a terminal shows it. A model may have written the text: invisible characters
    are escaped, and if there are several lines each gets a bar, so that none looks like a
    choice."""
    text = visible(question.text).expandtabs(4).strip("\n").split("\n")
    lines = ["", *(text if len(text) == 1 else (f"| {line}" for line in text)), ""]
    for choice in question.choices:
        default = "  (default)" if choice.key == question.default else ""
        lines.append(f"  [{one_line(choice.key)}] {one_line(choice.label)}{default}")
    if question.deadline is not None:
        until = clock.time_of_day(question.deadline)
        lines.append(f"  (answer by {until}; {one_line(question.at_deadline)})")
    return "\n".join((*lines, "> "))


def parse_answer(question: Question, line: str) -> Answer | None:
    """The answer in a line; None if it matches no choice."""
    if not question.choices:
        return Answer(value=line or question.default or "") if line or question.default else None
    if not line:
        return None if question.default is None else Answer(value=question.default)
    if (choice := find_choice(question.choices, line)) is not None:
        return Answer(value=choice.key)
    names = [
        (name, choice.key)
        for choice in question.choices
        for name in (choice.key, choice.label, choice.target)
    ]
    for name, key in sorted(names, key=lambda pair: -len(pair[0])):
        if match := re.match(rf"{re.escape(name)}[:,.]?\s+(?=\S)", line, re.IGNORECASE):
            return Answer(value=key, text=line[match.end() :])
    return None


class NodeQuestions:
    """The questions of one attempt."""

    def __init__(self, visit: RunNode, ask: AskPerson) -> None:
        self._visit = visit
        self._ask = ask
        self._asked: Counter[str] = Counter()

    async def answer(self, asked: AgentQuestion) -> ReplyLike:
        """The answer of the person; None if the question was skipped. It is asked again until the
        answer fits."""
        problem = ""
        while True:
            question = self._question(asked, problem)
            answer = await self._ask(question)
            if answer.skipped:
                return None
            labels = {choice.key: choice.label for choice in question.choices}
            try:
                return read_text(asked, labels.get(answer.value, answer.value or answer.text))
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
        if not choices:
            lines = [asked.title] if asked.title else []
            for field in asked.fields:
                lines.append(field.text)
                for number, option in enumerate(field.options, 1):
                    more = f": {option.description}" if option.description else ""
                    lines.append(f"{number}. {option.label}{more}")
            text = "\n".join(lines)
        return Question(
            id=f"{self._visit.id}{MARK}{digest}-{self._asked[digest]}",
            node=self._visit.node,
            text=f"{problem}{text}",
            choices=choices,
        )
