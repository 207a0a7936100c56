"""The backend for agents with one process per prompt that write JSON lines until they exit.

If the stream goes both ways, stdin stays open until the turn's end: permission requests are
answered there, and the agent is asked to stop there before it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from corral._agents.spec import Launch, stream_transport
from corral._protocol.ndjson import NdjsonStream, RawEvent, TurnEnd
from corral._sessions.backends.base import AgentProgram, Backend, Fail, unclean_exit
from corral._sessions.event_normalizer import EventNormalizer
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.store import SessionRecord, no_conversation
from corral._system import fs
from corral._system.environment import SecretRedactor
from corral._system.process.process import Exit, Process
from corral.errors import CorralError, PolicyNotLoaded, StreamBroken
from corral.events import AgentQuestion, PermissionDecision, PermissionRequest, QuestionAnswer
from corral.policy import Action
from corral.prompt import check_prompt
from corral.values import JsonObject, weak_callback

if TYPE_CHECKING:
    from corral._core.question_replies import QuestionReply
    from corral._protocol.stream_json.client import (
        StreamJsonClient,
        StreamPermissionRequest,
        StreamQuestion,
    )
    from corral._protocol.stream_json.frames import StreamQuirks
    from corral._sessions.backends.hooked_calls import HookedCalls
    from corral._sessions.permissions import (
        Asker,
        Granted,
        PermissionAnswer,
        PermissionQuestion,
        PermissionQuestions,
    )
    from corral._system.hook_socket import HookSocket


LARGEST_REPORT = 16 * 1024 * 1024
"""Bytes of an agent's own report that are read."""


class StreamBackend(Backend):
    """One process. See ``Backend`` for what each method promises."""

    def __init__(
        self,
        prepared: PreparedRun,
        record: SessionRecord,
        prompt: str,
        redactor: SecretRedactor,
        ask: Asker | None,
        *,
        granted: set[Granted],
    ) -> None:
        """``granted`` is what was allowed for the session, to which answers are added."""
        self._prepared = prepared
        self._record = record
        self._prompt = prompt
        agent = prepared.agent
        self._transport = transport = stream_transport(agent)
        translate = transport.translator()
        self._control: StreamJsonClient | None = None
        self._questions: PermissionQuestions | None = None
        self._decisions: list[RawEvent] = []
        if transport.two_way is not None:
            from corral._protocol.stream_json.client import StreamJsonClient
            from corral._sessions.permissions import PermissionQuestions, broker_of

            self._control = StreamJsonClient(transport.two_way)
            translate = self._control.translate
            broker = broker_of(prepared, ask, record)
            # They hold the list of decisions and not this object: see ``PermissionQuestion.reply``.
            self._questions = PermissionQuestions(broker, self._decisions.append, granted)
        self._hook_socket: HookSocket | None = None
        self._hooked: HookedCalls | None = None
        if transport.command_hook is not None and prepared.hook is not None:
            from corral._sessions.backends.hooked_calls import HookedCalls, hook_questions
            from corral._system.hook_socket import HookSocket

            self._questions = hook_questions(prepared, self._decisions.append)
            self._hooked = HookedCalls(transport.command_hook, self._questions)
            in_sandbox = prepared.sandbox is not None
            self._hook_socket = HookSocket(self._hooked.decide, sandboxed=in_sandbox)
        self._stream = NdjsonStream(transport.frames, translate, clean=redactor.clean)
        self._program = AgentProgram(prepared, record, redactor, self.emit, self._on_fatal_stderr)
        self._turn_ended = False
        self._stdin = b""
        self._process: Process | None = None
        self._ending: asyncio.Task[Exit] | None = None
        self._exit = Exit(None, None)
        self._fail: Fail | None = None
        self._own_items: tuple[RawEvent, ...] = ()
        """Items that did not come on stdout."""

    @property
    def session_id(self) -> str | None:
        launch = self._program.launch
        chosen = launch.session_id if launch else None
        return self._record.meta.session_id or chosen

    @property
    def started(self) -> bool:
        return self._process is not None

    async def prepare(self) -> None:
        meta, program = self._record.meta, self._program
        if meta.lost:
            raise no_conversation(meta)
        launch = await program.prepare(self._prompt, meta.session_id, self._hook_socket)
        if program.meter is not None:
            program.meter.subscribe(self.emit)
        self._stdin = launch.stdin
        self.notes: tuple[str, ...] = launch.notes
        if self._transport.two_way is not None:
            self._stdin = await self._with_files(launch, self._transport.two_way)

    async def begin(self, fail: Fail) -> None:
        self._fail = fail
        self._process = await self._program.start(
            stdin=self._stdin,
            keep_stdin_open=self._control is not None,
            stdout=self._transport.stdout,
            hook=self._hook_socket,
        )
        self._stdin = b""

    async def _with_files(self, launch: Launch, quirks: StreamQuirks) -> bytes:
        """The first bytes for an agent whose stream goes both ways."""
        from corral._protocol.stream_json.client import encode_prompt
        from corral._system.media import prompt_message
        from corral.messages import Text

        text, prepared = launch.stdin.decode(), self._prepared
        if not (prepared.run.images or prepared.run.attachments):
            return encode_prompt(text)
        message = await prompt_message(text, prepared.run, Path(prepared.cwd))
        texts = (part.text for part in message.content if isinstance(part, Text))
        check_prompt("\n".join(texts), prepared.agent.prompt_limit)
        return encode_prompt(text, message.content[1:], quirks.media)

    async def receive(self) -> list[RawEvent] | None:
        if self._process is None:
            return None
        is_asking = self._questions is not None and self._questions.is_asking
        chunk: bytes | None = None
        # An agent that waits for a person's answer is not idle: now and then, nothing came.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._prepared.run.idle_timeout / 2 if is_asking else None):
                chunk = await self._process.read_interruptible()
        items = self._handle_items(self._stream.receive(chunk)) if chunk else []
        if self._own_items:
            items = [*self._own_items, *items]
            self._own_items = ()
        self._move_decisions(items)
        unshown = self._hooked.check(items) if self._hooked is not None else None
        if unshown is not None:
            self.fail(unshown)
        return None if chunk == b"" and not items else items

    def _handle_items(self, items: list[RawEvent]) -> list[RawEvent]:
        """Answer permission requests; after the turn's end, close stdin so that the agent exits."""
        control, questions = self._control, self._questions
        if control is None or questions is None:
            return items
        out: list[RawEvent] = []
        for item in items:
            out.append(item)
            if isinstance(item, PermissionRequest):
                ask = control.open_requests.get(item.request_id)
                if ask is not None:
                    questions.put(_question(ask, control, weak_callback(self._write)))
            elif isinstance(item, AgentQuestion):
                asked = control.open_questions.get(item.request_id)
                if asked is not None:
                    reply = partial(_reply, asked, control, weak_callback(self._write))
                    questions.put_question(item, reply)
            elif isinstance(item, PermissionDecision | QuestionAnswer):  # the agent took it back
                questions.withdraw(item.request_id)
            self._move_decisions(out)
        for line in control.replies:
            self._write(line)
        control.replies.clear()
        if any(isinstance(item, TurnEnd) for item in items) and self._process is not None:
            self._turn_ended = True
            self._process.close_stdin()
        return out

    def _move_decisions(self, out: list[RawEvent]) -> None:
        out += self._decisions
        self._decisions.clear()

    def _write(self, data: bytes) -> None:
        if self._process is not None:
            self._process.write(data)
            self._process.interrupt_read()

    @property
    def service_url(self) -> str | None:
        return self._program.launch.service_url if self._program.launch else None

    def fail(self, error: CorralError) -> None:
        """End the turn with this error."""
        if self._fail is not None:
            self._fail(error)

    def emit(self, item: RawEvent) -> None:
        self._own_items = (*self._own_items, item)
        if self._process is not None:
            self._process.interrupt_read()

    def end_soon(self) -> None:
        if self._process is not None and self._ending is None:
            end = self._interrupt if self._control and not self._turn_ended else self._end
            self._ending = asyncio.get_running_loop().create_task(end(self._process))

    async def _end(self, process: Process) -> Exit:
        return await process.end(self._prepared.run.grace)

    async def _interrupt(self, process: Process) -> Exit:
        """Ask the agent to stop first: then it reports its usage, and the session can be
        resumed."""
        if self._control is not None:
            self._write(self._control.interrupt())
        try:
            async with asyncio.timeout(self._prepared.run.grace):
                await process.wait()
        except TimeoutError:
            pass
        return await self._end(process)

    async def finish(self) -> list[RawEvent]:
        items: list[RawEvent] = []
        if self._control is not None and self._process is not None and self._ending is not None:
            while (chunk := await self._process.read_interruptible()) != b"":
                items += self._handle_items(self._stream.receive(chunk)) if chunk else []
        await self.close()
        items += [*self._own_items, *self._stream.end()]
        self._own_items = ()
        return items + self._program.take_warnings()

    async def close(self) -> None:
        try:
            if self._hook_socket is not None:
                await self._hook_socket.close()
            if self._questions is not None:
                await self._questions.close()
        finally:
            self._exit = await self._program.end(self._prepared.run.grace)
            if self._ending is not None:
                await asyncio.wait([self._ending])

    def explain(self, normalizer: EventNormalizer, *, lingered: bool) -> CorralError | None:
        read, launch = self._transport.read_report, self._program.launch
        report = None if launch is None else launch.report
        if read is not None and report is not None and normalizer.finish is not None:
            # An agent that was ended before it wrote a report has none.
            with contextlib.suppress(OSError), fs.open_regular(report) as file:
                normalizer.finish = read(file.read(LARGEST_REPORT), normalizer.finish)
        ended = Exit(0, None) if lingered else self._exit
        error = self._prepared.explain(
            ended, self.stderr, normalizer.finish, answered=normalizer.answered
        )
        if self._program.meter is not None:
            error = self._program.meter.cause_of(error)
        return error or unclean_exit(ended.code, ended.signal)  # a success needs a clean exit

    def add_facts(self, error: CorralError) -> None:
        self._program.add_facts(error)
        error.exit_code, error.signal = self._exit.code, self._exit.signal
        if isinstance(error, StreamBroken):
            error.frame = self._stream.lines.last_line[:2000].decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self._program.stderr

    def _on_fatal_stderr(self, line: str) -> None:
        name = self._prepared.agent.name
        self.fail(
            PolicyNotLoaded(
                f"{name} did not take the policy, and was ended at once: {line}",
                hint="Report this with the policy you gave: corral wrote the file.",
            )
        )


def _reply(
    asked: StreamQuestion,
    control: StreamJsonClient,
    write: Callable[[bytes], None],
    given: QuestionReply,
) -> None:
    answers = given.answers if given.outcome == "answered" else None
    stop = given.outcome == "cancelled"
    write(control.answer_question(asked, answers, message=given.refusal, stop=stop))


def _question(
    ask: StreamPermissionRequest, control: StreamJsonClient, write: Callable[[bytes], None]
) -> PermissionQuestion:
    def reply(answer: PermissionAnswer) -> None:
        message = f"Not allowed ({answer.rule}). Do not try it in another way."
        stop = answer.decision == "cancel"
        write(control.answer(ask, allow=answer.is_allowed, message=message, stop=stop))

    def edited(arguments: JsonObject) -> PermissionQuestion:
        other = _question(control.edited(ask, arguments), control, write)
        return replace(other, new_input=arguments)

    from corral._sessions.permissions import PermissionQuestion

    return PermissionQuestion(
        ask.request,
        Action(ask.name, ask.request.kind, ask.command, own=ask.own),
        ask.paths,
        reply,
        edited if control.edits_calls else None,
    )
