"""Interviewers, at a real terminal and otherwise."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator
from functools import partial

import pytest
from msgspec.structs import replace

from corral._pipelines.execution.interviewers import (
    AnswerLike,
    AutoApprove,
    Callback,
    Console,
    Interviewer,
    Queued,
    Recording,
    format_question,
    parse_answer,
)
from corral._pipelines.scheduler.commands import Answer, Choice, Question
from corral.errors import ConfigError

ASKED = Question(
    id="gate.1",
    node="gate",
    text="Ship it?",
    choices=(Choice("Y", "Yes, ship", "ship"), Choice("F", "Fix it", "fix")),
    default="Y",
)
FREE = Question(id="gate.2", node="gate", text="What is missing?")


class Terminal:
    """Both ends of a terminal."""

    def __init__(self) -> None:
        self.hand, self.fd = os.openpty()
        self.shown: list[str] = []
        self.console = Console(self.fd, self.shown.append)

    def type(self, text: str) -> None:
        os.write(self.hand, text.encode())

    def close(self) -> None:
        os.close(self.hand)
        os.close(self.fd)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


async def asked(interviewer: Interviewer, question: Question = ASKED) -> Answer:
    async with asyncio.timeout(20):
        return await interviewer.ask(question)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("y", Answer(value="Y")),
        ("F", Answer(value="F")),
        ("fix IT", Answer(value="F")),
        ("ship", Answer(value="Y")),
        ("f: the second test is wrong", Answer(value="F", text="the second test is wrong")),
        ("fix it: the second test", Answer(value="F", text="the second test")),
        ("", Answer(value="Y")),
    ],
)
async def test_a_line_at_the_terminal_selects_a_choice(
    terminal: Terminal, line: str, answer: Answer
) -> None:
    terminal.type(f"{line}\n")
    assert await asked(terminal.console) == answer
    assert "Ship it?" in terminal.shown[0]
    assert "[Y] Yes, ship  (default)\n  [F] Fix it" in terminal.shown[0]


async def test_an_invalid_choice_is_asked_again(terminal: Terminal) -> None:
    terminal.type("maybe\nno\nfix\n")
    assert await asked(terminal.console) == Answer(value="F")
    assert terminal.shown[1:] == ["Please answer with one of: Y, F\n> "] * 2


async def test_any_text_is_an_answer_if_there_are_no_choices(terminal: Terminal) -> None:
    terminal.type("\nthe tests, müde\n")
    assert await asked(terminal.console, FREE) == Answer(value="the tests, müde")


async def test_the_end_of_the_input_skips_the_question(terminal: Terminal) -> None:
    terminal.type("\x04")
    assert await asked(terminal.console) == Answer(skipped=True)


async def test_a_cancelled_question_takes_no_line_from_the_next(terminal: Terminal) -> None:
    started = asyncio.Event()
    console = Console(terminal.fd, lambda _: started.set())
    first = asyncio.create_task(console.ask(FREE))
    await started.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not asyncio.get_running_loop().remove_reader(terminal.fd)
    terminal.type("f\n")
    assert await asked(console) == Answer(value="F")


async def test_simultaneous_questions_are_asked_one_after_another(terminal: Terminal) -> None:
    terminal.type("y\n")
    terminal.type("f\n")
    answers = await asyncio.gather(asked(terminal.console), asked(terminal.console))
    assert [answer.value for answer in answers] == ["Y", "F"]


def test_a_pipe_is_rejected_because_it_is_not_a_terminal() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(ConfigError, match="not a terminal"):
            Console(reading)
    finally:
        os.close(reading)
        os.close(writing)


async def test_auto_approve_takes_the_first_choice() -> None:
    assert await asked(AutoApprove()) == Answer(value="Y")
    assert not (await asked(AutoApprove(), FREE)).skipped


async def test_queued_answers_come_in_order_and_then_skip() -> None:
    queue = Queued(["f", Answer(value="y", text="well")])
    assert [await asked(queue) for _ in range(3)] == [
        Answer(value="f"),
        Answer(value="y", text="well"),
        Answer(skipped=True),
    ]


async def test_a_callback_may_be_async_or_blocking() -> None:
    async def later(question: Question) -> AnswerLike:
        await asyncio.sleep(0)
        return question.choices[1].key

    def blocking(_: Question) -> AnswerLike:
        time.sleep(0.01)
        return Answer(value="y")

    assert await asked(Callback(later)) == Answer(value="F")
    assert await asked(Callback(blocking)) == Answer(value="y")
    assert await asked(Callback(lambda _: None)) == Answer(skipped=True)
    assert await asked(Callback(partial(later))) == Answer(value="F")


async def test_a_callback_that_returns_no_answer_is_an_error() -> None:
    with pytest.raises(ConfigError, match="answered with a int"):
        await asked(Callback(lambda _: 3))  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]


async def test_a_recording_has_questions_and_answers() -> None:
    recording = Recording(Queued(["f"]))
    await asked(recording)
    assert recording.asked == [(ASKED, Answer(value="f"))]


def test_the_deadline_of_a_question_is_shown() -> None:
    question = replace(ASKED, default=None, timeout=60.0, deadline=time.time() + 60)
    shown = format_question(question)
    assert re.search(r"answer by \d\d:\d\d:\d\d; then it is asked again, or the gate fails", shown)
    later = replace(question, default="Y", deadline=time.time() + 200_000)
    assert re.search(r"answer by \d{4}-\d\d-\d\d \d\d:\d\d; then", format_question(later))
    assert "answer by" not in format_question(ASKED)


def test_a_label_that_begins_like_a_key_is_matched_as_a_label() -> None:
    question = Question(
        id="q", node="q", text="?", choices=(Choice("A", "go", "x"), Choice("G", "a b", "y"))
    )
    assert parse_answer(question, "a b") == Answer(value="G")
    assert parse_answer(question, "a because") == Answer(value="A", text="because")
    assert parse_answer(question, "a b because") == Answer(value="G", text="because")
    assert "[G] a b" in format_question(question)
