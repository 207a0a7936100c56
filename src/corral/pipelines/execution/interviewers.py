"""People who are asked: at the terminal, through a function, from a list, or nobody at all.

An interviewer is anything with ``async def ask(question) -> Answer``. It may be cancelled at
any time: a timeout, or an answer from elsewhere. Asking over days and restarts is the
engine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol, TypeAlias

from corral.errors import ConfigError
from corral.pipelines.scheduler.commands import Answer, Question
from corral.pipelines.scheduler.human_gate import find_choice
from corral.system.threads import in_own_thread
from corral.terminal_text import one_line, visible

AnswerLike: TypeAlias = Answer | str | None
"""A text is an answer's ``value``; None skips the question."""

LONGEST = 64 * 1024
"""Bytes of a line that somebody types."""


class Interviewer(Protocol):
    async def ask(self, question: Question) -> Answer: ...


def answer_of(said: AnswerLike) -> Answer:
    """Raises ``ConfigError`` for what is no answer."""
    match said:
        case Answer():
            return said
        case str():
            return Answer(value=said)
        case None:
            return Answer(skipped=True)
        case _:
            raise ConfigError(
                f"a question was answered with a {type(said).__name__}",
                hint="Return an Answer, a text, or None to skip it.",
            )


class AutoApprove:
    """Takes the first choice of every question: for runs that nobody watches."""

    async def ask(self, question: Question) -> Answer:
        if question.choices:
            return Answer(value=question.choices[0].key)
        return Answer(value="approved")


class Queued:
    """Answers from a list, in order; when it is used up, every question is skipped."""

    def __init__(self, answers: Iterable[Answer | str]) -> None:
        self.left = deque(answers)

    async def ask(self, question: Question) -> Answer:
        return answer_of(self.left.popleft()) if self.left else Answer(skipped=True)


class Callback:
    """Asks a function, sync or async. A sync one runs in a thread: it may block."""

    def __init__(self, function: Callable[[Question], AnswerLike | Awaitable[AnswerLike]]) -> None:
        self._function = function

    async def ask(self, question: Question) -> Answer:
        call = partial(self._function, question)
        told = call() if inspect.iscoroutinefunction(self._function) else await in_own_thread(call)
        return answer_of(await told if inspect.isawaitable(told) else told)


class Recording:
    """Keeps what another was asked, and what it answered."""

    def __init__(self, inner: Interviewer) -> None:
        self._inner = inner
        self.asked: list[tuple[Question, Answer]] = []

    async def ask(self, question: Question) -> Answer:
        answer = await self._inner.ask(question)
        self.asked.append((question, answer))
        return answer


class Console:
    """A person at a terminal. One question at a time, however many are put at once.

    A choice is made by its key or its label; words after the key go along as the answer's
    text (``n the second test is wrong``). Enter alone takes the default. Ctrl-D skips.
    """

    def __init__(self, fd: int | None = None, say: Callable[[str], None] | None = None) -> None:
        """``fd`` is what is read, stdin unless told; ``say`` writes, to stderr unless told.
        Raises ``ConfigError`` where nobody can type."""
        self._fd = sys.stdin.fileno() if fd is None else fd
        self._say = _to_stderr if say is None else say
        if not os.isatty(self._fd):
            raise ConfigError(
                "nobody can be asked: the input is no terminal",
                hint="Answer from elsewhere, or approve everything beforehand.",
            )
        self._turn = asyncio.Lock()
        self._typed = b""

    async def ask(self, question: Question) -> Answer:
        async with self._turn:
            self._say(shown(question))
            while True:
                line = await self._line()
                if line is None:
                    self._say("(skipped)\n")
                    return Answer(skipped=True)
                answer = read(question, line)
                if answer is not None:
                    return answer
                keys = ", ".join(choice.key for choice in question.choices)
                wanted = f"answer with one of: {keys}" if keys else "type an answer"
                self._say(f"Please {wanted}\n> ")

    async def _line(self) -> str | None:
        """What is typed up to Enter; None at the end of the input. Nothing is left reading when
        this is cancelled: the next question gets the next line."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._typed:
            ready: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self._fd, _wake, ready)
            try:
                await ready
            finally:
                loop.remove_reader(self._fd)
            chunk = b""
            with contextlib.suppress(OSError):  # the terminal is gone
                chunk = os.read(self._fd, 4096)
            if not chunk:
                return None
            self._typed = (self._typed + chunk)[-LONGEST:]
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode("utf-8", "replace").strip()


def shown(question: Question) -> str:
    """As a person reads it at a terminal. The text may hold words of a model: what cannot be
    seen is escaped, and of several lines each has a bar, so that none passes for a choice."""
    text = visible(question.text).expandtabs(4).strip("\n").split("\n")
    lines = ["", *(text if len(text) == 1 else (f"| {line}" for line in text)), ""]
    for choice in question.choices:
        usual = "  (default)" if choice.key == question.default else ""
        lines.append(f"  [{one_line(choice.key)}] {one_line(choice.label)}{usual}")
    return "\n".join((*lines, "> "))


def read(question: Question, line: str) -> Answer | None:
    """The answer that a line stands for; None where it fits no choice."""
    if not question.choices:
        return Answer(value=line or question.default or "") if line or question.default else None
    if not line:
        return None if question.default is None else Answer(value=question.default)
    if (choice := find_choice(question.choices, line)) is not None:
        return Answer(value=choice.key)
    key, _, rest = line.partition(" ")
    meant = next((c for c in question.choices if c.key.lower() == key.rstrip(":,.").lower()), None)
    return None if meant is None else Answer(value=meant.key, text=rest.strip())


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
