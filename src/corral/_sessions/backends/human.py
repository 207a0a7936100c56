"""A person as the agent: the same events and the same result.

The prompt and the answer are stored as files, whichever way the answer comes. So a run that is
interrupted, times out or is killed can be resumed, and finds what was answered meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from corral._protocol.ndjson import RawEvent, TurnEnd
from corral._sessions import store
from corral._sessions.backends.base import Backend, Fail
from corral._sessions.event_normalizer import EventNormalizer
from corral._sessions.permissions import Asker
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.store import QuestionFile, SessionRecord, title_of
from corral._sessions.tools.tools import GivenTools
from corral._system import clock, fs, terminal
from corral._system.environment import SecretRedactor
from corral._system.terminal import Watch
from corral.errors import ConfigError, CorralError, EmptyAnswer, Interrupted, ProcessFailed
from corral.events import Error, Init, Log

STABLE_SECONDS = 1.0
"""Seconds that an answer found at the start must stay as it is: it may be half written."""
CUT_LINE = "──── write above this line; what is below it is not part of the answer ────"

_log = logging.getLogger("corral.manual")


class HumanDriver:
    """See ``sessions.backends.base.AgentDriver``."""

    def __init__(
        self,
        prepared: PreparedRun,
        record: SessionRecord,
        redactor: SecretRedactor,
        _ask: Asker | None,
        tools: GivenTools,
    ) -> None:
        self.prepared: PreparedRun = prepared
        self.record = record
        self.redactor = redactor
        if tools:
            raise ConfigError(
                "a person cannot call functions", hint="Give tools to an agent that is a program."
            )
        via = prepared.run.via
        if via == "terminal" and not terminal.is_interactive():
            raise ConfigError(
                "via='terminal', but there is no terminal", hint="Use via='file' instead."
            )
        self.editor: tuple[str, ...] = terminal.editor_command() if via == "editor" else ()

    def turn(self, prompt: str, prepared: PreparedRun) -> HumanTurn:
        self.prepared = prepared
        return HumanTurn(self, prompt)

    async def close(self) -> None:
        """Nothing runs between turns."""

    def prompt_text(self, prompt: str) -> str:
        """The prompt as a person needs it, who sees nothing else of the run."""
        prepared, run = self.prepared, self.prepared.run
        parts = [prompt] if run.system_prompt is None else [run.system_prompt, prompt]
        if files := (*run.images, *run.audio, *run.attachments):
            parts.append("\n".join(["Attached files:", *(f"- {path}" for path in files)]))
        denied = [row.capability for row in prepared.compiled.report if row.verdict == "deny"]
        if denied:
            parts.append(f"Please do not use: {', '.join(denied)}.")
        parts.append(f"<!-- Work in {prepared.cwd}; the answer goes into answer.md. -->")
        return "\n\n".join(parts) + "\n"


class HumanTurn(Backend):
    """One question. See ``Backend`` for what each method promises."""

    def __init__(self, driver: HumanDriver, prompt: str) -> None:
        self._driver = driver
        self._prompt = prompt
        self._question: QuestionFile | None = None
        self._was_open = False
        self._sent_init = False
        self._task: asyncio.Task[str] | None = None
        self._cancelled = False
        self._answered = False
        self._failure: CorralError | None = None

    @property
    def session_id(self) -> str:
        return self._driver.record.meta.id

    @property
    def started(self) -> bool:
        return self._question is not None

    async def prepare(self) -> None:
        self._driver.record.make_folders()

    async def begin(self, fail: Fail) -> None:
        driver, record = self._driver, self._driver.record
        question, self._was_open = store.next_question(record, self._prompt)
        if not self._was_open:
            question.write(self._prompt, driver.prompt_text(self._prompt))
        self._question = question
        meta = record.meta
        meta.session_id, meta.status, meta.updated = meta.id, store.WAITING, clock.now()
        meta.title = meta.title or title_of(self._prompt, driver.redactor)
        if driver.prepared.run.keep:
            record.save()  # now, and not at the end: we may be killed before

    async def receive(self) -> list[RawEvent] | None:
        question = self._question
        if question is None or self._cancelled or self._answered:
            return None
        if not self._sent_init:
            self._sent_init = True
            items: list[RawEvent] = [Init(session_id=self.session_id)]
            where = [f"a person is asked: {question.prompt}"]
            if self._driver.prepared.run.via in (None, "file"):
                where.append(f"the answer is awaited in: {question.answer}")
                where.append(f"or by: corral runs answer {self.session_id} -f FILE")
            for line in where:
                _log.info("%s", line)
            items += [Log(line) for line in where]
            if self._was_open:
                message = (
                    "the question was asked before; files that were changed in between are not"
                    " listed"
                )
                items.append(Error("question_open", message, recoverable=True, level="warning"))
            return items
        if self._task is None:
            # Only after the greeting was read: at a terminal it is shown above the question.
            self._task = asyncio.get_running_loop().create_task(self._answer(question))
        await asyncio.wait([self._task])
        if self._task.cancelled():
            return None
        error = self._task.exception()
        if isinstance(error, CorralError):
            self._failure = error
            return None
        text = self._task.result()
        self._answered = True
        return [text]

    def end_soon(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def finish(self) -> list[RawEvent]:
        await self.close()
        return [TurnEnd(ok=self._answered)]

    async def close(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    def explain(self, normalizer: EventNormalizer, *, lingered: bool) -> CorralError | None:
        if self._answered:
            return None
        return self._failure or Interrupted("the run was cancelled")

    def add_facts(self, error: CorralError) -> None:
        if self._question is not None and self._driver.prepared.run.keep:
            error.hint = (
                f"The question stays open: answer it in {self._question.answer},"
                f" and resume with --resume {self.session_id}."
            )

    async def _answer(self, question: QuestionFile) -> str:
        match self._driver.prepared.run.via:
            case "terminal":
                return await _first_result(
                    self._answer_from_terminal(question), _wait_for_answer_file(question)
                )
            case "editor":
                # The draft stays on disk: a resumed session continues with it.
                if (answer := question.read_answer()) is not None:
                    return answer.text
                if not fs.exists(question.draft):
                    prompt_text = fs.read_text(question.prompt)
                    fs.write_atomically(question.draft, f"\n\n{CUT_LINE}\n\n{prompt_text}".encode())
                code = await terminal.edit(self._driver.editor, question.draft)
                if code:
                    raise ProcessFailed(f"the editor exited with {code}")
                written = fs.read_bytes(question.draft).decode("utf-8", "replace")
                text = written.partition(CUT_LINE)[0].strip("\n")
                if not text.strip():
                    raise EmptyAnswer("nothing was written above the line")
                question.write_answer(text)
                return text
            case _:
                return await _wait_for_answer_file(question)

    async def _answer_from_terminal(self, question: QuestionFile) -> str:
        prompt_text = fs.read_text(question.prompt)
        how = "Type the answer; end it with Ctrl-D, or with a line that is a single dot."
        text = (await terminal.read_typed(f"\n{prompt_text}\n{how}\n")).strip("\n")
        if not text.strip():
            raise EmptyAnswer("nothing was typed")
        question.write_answer(text)
        return text


async def _wait_for_answer_file(question: QuestionFile) -> str:
    """The answer, once its file is saved and done."""
    with Watch(question.folder, question.answer.name) as watch:
        was_saved, last, pause = False, None, STABLE_SECONDS
        while True:
            answer = question.read_answer()
            if answer is not None and (was_saved or answer == last):
                return answer.text
            last = answer
            was_saved = await watch.wait_saved(pause)
            pause = watch.pause


async def _first_result(*ways: Coroutine[None, None, str]) -> str:
    """The result of the one that ends first; the others are cancelled."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
