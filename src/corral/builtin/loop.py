"""The loop: the user speaks, the model answers, its tools run, until it calls no more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from corral.builtin.history import History
from corral.builtin.repetition import ADVICE, Repetition
from corral.builtin.secret_filter import SecretFilter
from corral.builtin.tool_execution import Emit, ToolExecutor
from corral.errors import (
    ContentRefused,
    ContextLengthExceeded,
    CorralError,
    EmptyAnswer,
    InvalidRequest,
    StreamBroken,
    TurnLimit,
)
from corral.events import Error, Text, Thinking, UsageReport, Vendor
from corral.inference.client import Client
from corral.inference.retry import delay
from corral.messages import Message
from corral.model_types import (
    Finish,
    ProviderEvent,
    Request,
    Response,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
)
from corral.sessions.structured_output import SUBMIT
from corral.values import Cost, Usage, add_by_model

NEARLY_FULL = 0.8
"""Of the model's window, when it is worth a warning."""
MALFORMED = 2
"""Times a model may botch a call in one turn before that is an error."""
DATED = re.compile(r"([-@]\d{3,}(-\d+)*)?")
"""What vendors put behind a model's name: ``-20250929``, ``-2024-08-06``, ``-001``."""
BOTCHED = "Your last tool call was malformed and was not run. Make it again, as plain JSON."


class Tally:
    """What a turn took, of all its answers and sub-agents."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.usage = Usage()
        self.usage_by_model: dict[str, Usage] = {}
        self._usd: float | None = 0.0
        self.model: str | None = None

    def add(self, response: Response, asked: str) -> None:
        self.usage = self.usage + response.usage
        known = response.cost.usd
        self._usd = None if known is None or self._usd is None else self._usd + known
        provider, _, name = asked.partition(":")
        # A dated version of what was asked for is what was asked for; any longer name is not.
        rest = response.model.removeprefix(name.removesuffix("-latest"))
        same = not response.model or DATED.fullmatch(rest)
        self.model = asked if same else f"{provider}:{response.model}"
        by_model = {self.model: response.usage}
        self.usage_by_model = add_by_model(self.usage_by_model, by_model)

    @property
    def cost(self) -> Cost:
        """Known only where it is known of every answer."""
        if self._usd is None or self.model is None:
            return Cost()
        return Cost(usd=self._usd, source="computed")


class Mailbox:
    """Words that come while the agent works."""

    def __init__(self) -> None:
        self._steering: list[str] = []
        self._following: list[str] = []

    def steer(self, text: str) -> None:
        self._steering.append(text)

    def follow_up(self, text: str) -> None:
        self._following.append(text)

    def after_tools(self) -> list[str]:
        texts, self._steering = self._steering, []
        return texts

    def after_answer(self) -> list[str]:
        texts = [*self._steering, *self._following]
        self.clear()
        return texts

    def clear(self) -> None:
        self._steering, self._following = [], []


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    max_turns: int | None = None
    """Answers of the model to one prompt."""
    max_tool_rounds: int | None = None
    retries: int = 2
    window: int | None = None
    """Tokens the model takes in, where that is known."""


class Loop:
    """One conversation with one model. ``run`` it once for each prompt."""

    def __init__(
        self,
        client: Client,
        request: Request,
        history: History,
        hands: ToolExecutor,
        emit: Emit,
        *,
        room: Callable[[], Awaitable[None]],
        eraser: SecretFilter,
        limits: Limits,
        tally: Tally,
        mailbox: Mailbox,
        thinking: bool = True,
    ) -> None:
        """``request`` holds the system prompt and the tools; ``emit`` takes what happens, and
        ``room`` waits while nobody takes it away."""
        self._client = client
        self._request = request
        self._history = history
        self._hands = hands
        self._emit = emit
        self._room = room
        self._clean = eraser.clean_text
        self._pieces = eraser.pieces()
        self._aloud = True
        """Whether the words under way are said, and not thought."""
        self._limits = limits
        self._tally = tally
        self._mailbox = mailbox
        self._thinking = thinking
        self._repetition = Repetition()
        self._warned = False
        self._said: set[str] = set()
        self._answers = 0
        self._began = False
        """Whether anything of the answer under way came."""
        self._spoke = False

    async def run(self, prompt: Message) -> Response:
        """The last answer. Raises ``CorralError`` for whatever else ends it."""
        history, limits = self._history, self._limits
        history.begin(prompt)
        self._repetition = Repetition()  # another prompt may well ask for the same again
        answers = rounds = botched = 0
        handed_in = False
        while True:
            if limits.max_turns is not None and answers >= limits.max_turns:
                raise _limit(f"max_turns={limits.max_turns}")
            response = await self._answer()
            answers += 1
            history.add(response.message)
            reason = response.finish_reason.reason
            if reason == "tool_calls":
                if limits.max_tool_rounds is not None and rounds >= limits.max_tool_rounds:
                    raise _limit(f"max_tool_rounds={limits.max_tool_rounds}")
                rounds += 1
                handed_in = any(call.name == SUBMIT for call in response.tool_calls)
                results = await self._hands.results(response.tool_calls, self._emit)
                history.add(Message("tool", results))
                for text in (*self._advice(response), *self._mailbox.after_tools()):
                    history.add(Message.user(text))
                continue
            history.mend()
            if reason == "error" and botched < MALFORMED:
                botched += 1
                self._warn(
                    "malformed_call", f"the model botched a call: {response.finish_reason.raw}"
                )
                history.add(Message.user(BOTCHED))
                continue
            _refuse(response, handed_in=handed_in)
            more = self._mailbox.after_answer()
            if not more:
                return response
            for text in more:
                history.add(Message.user(text))

    def _advice(self, response: Response) -> list[str]:
        circles = [self._repetition.circles(call) for call in response.tool_calls]
        if not any(circles):
            return []
        self._warn("repetition", "the agent repeats the same calls; it was warned")
        return [ADVICE]

    async def _answer(self) -> Response:
        broken = 0
        while True:
            try:
                return await self._stream()
            except ContextLengthExceeded as error:
                if not self._history.shrink():
                    raise
                self._warn(
                    "context_shrunk",
                    f"the conversation no longer fits, its older half is left out: {error.message}",
                )
            except CorralError as error:
                # What fails before it began was tried again below. Once words of it were passed
                # on, asking again would say them twice.
                wait = delay(broken, error)
                broken += 1
                if not self._began or self._spoke or broken > self._limits.retries or wait is None:
                    raise
                self._retried(error, wait)
                await asyncio.sleep(wait)

    async def _stream(self) -> Response:
        messages = (*self._request.messages, *self._history.messages)
        request = replace(self._request, messages=messages)
        self._began = self._spoke = False
        self._answers += 1
        stream = self._client.stream(
            request, max_retries=self._limits.retries, on_retry=self._retried
        )
        try:
            async with stream:
                while events := await stream.batch():
                    self._began = True
                    self._tell(events)
                    await self._room()
        finally:
            self._pass_on(self._pieces.rest())
        response = stream.response
        if response is None:
            raise StreamBroken("the model's answer has no end")
        self._count(response)
        return response

    def _tell(self, events: list[StreamEvent]) -> None:
        for event in events:
            match event:
                case TextDelta():
                    self._spoke = True
                    self._speak(event.text, aloud=True)
                case ThinkingDelta():
                    if self._thinking:
                        self._speak(event.text, aloud=False)
                case ProviderEvent():
                    self._emit(Vendor(event.name, event.data))
                case Finish():
                    for warning in event.response.warnings:
                        self._warn_once("request_changed", warning)
                case _:
                    pass

    def _speak(self, words: str, *, aloud: bool) -> None:
        if aloud != self._aloud:
            self._pass_on(self._pieces.rest())
            self._aloud = aloud
        self._pass_on(self._pieces.add(words))

    def _pass_on(self, words: str) -> None:
        if words and self._aloud:
            self._emit(Text(words, message_id=f"answer-{self._answers}"))
        elif words:
            self._emit(Thinking(words))

    def _count(self, response: Response) -> None:
        tally, window = self._tally, self._limits.window
        tally.add(response, self._request.model)
        size = response.usage.total
        self._emit(UsageReport(tally.usage, context_size=size, cost=tally.cost))
        if window and size and size > NEARLY_FULL * window and not self._warned:
            self._warned = True
            self._warn(
                "context_nearly_full",
                f"{size:,} of {window:,} tokens of the model's window are used",
            )

    def _retried(self, error: CorralError, wait: float) -> None:
        self._warn(error.code, f"{error.message}; tried again in {wait:.0f} s")

    def _warn_once(self, code: str, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._warn(code, message)

    def _warn(self, code: str, message: str) -> None:
        said = self._clean(message)
        self._emit(Error(code, said, recoverable=True, level="warning", phase="request"))


def _limit(which: str) -> TurnLimit:
    return TurnLimit(
        f"the agent was not done within {which}", hint="Raise it, or give it a smaller task."
    )


def _refuse(response: Response, *, handed_in: bool) -> None:
    """Raise what a last answer that is none means. Who has ``handed_in`` a result need say no
    more."""
    reason, raw = response.finish_reason.reason, response.finish_reason.raw
    match reason:
        case "length":
            raise ContextLengthExceeded(
                f"the answer was cut at the model's output limit ({raw})",
                hint="Ask for less at once, or take a model with a larger output.",
            )
        case "content_filter":
            raise ContentRefused(
                f"the model's vendor filtered the answer ({raw})",
                hint="Say it in another way, or take another model.",
            )
        case "error":
            raise InvalidRequest(f"the model could not make its call: {raw}")
        case _ if not response.text.strip() and not handed_in:
            raise EmptyAnswer(
                "the model ended its turn without any answer",
                hint="Try again, rephrase, or take another model.",
            )
        case _:
            pass
