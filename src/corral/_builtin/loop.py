"""The loop of the built-in agent: ask the model, run its tool calls, until it calls no more.

Theory of operation
-------------------

A ``Loop`` is one conversation with one model. ``run(prompt)`` runs one turn of it:

1. The prompt is added to the history.
2. The model is asked with the system prompt, the tools and the history. Its answer is streamed:
   text and thinking are emitted as they come, redacted; the complete answer goes into the history.
3. If the answer has tool calls, ``ToolExecutor`` runs them, and their results go into the history
   with texts that ``steer`` has left in the mailbox. Then step 2 again.
4. If it has none, texts of ``follow_up`` (and late ones of ``steer``) continue the turn with step
   2. Without any, the answer is returned.

Callers: ``Driver``'s turn runs the main loop in a task; ``Subagents`` runs a loop for each
sub-agent, with its own history and the same executor, limits and totals. Events go to ``emit``.
After each batch of the stream the loop waits while the event queue is full, so a slow reader slows
the model's stream.

The turn ends with the last answer, or with an exception:

- ``TurnLimit`` after ``max_turns`` answers or ``max_tool_rounds`` rounds of tools, and its
  subclass ``RepeatedCalls`` after ``max_repeated_calls`` equal calls in a row with equal results;
- ``BudgetExceeded`` if the next model call does not fit into the budget;
- ``ContextLengthExceeded`` if the request does not fit even with a shrunk history, or the answer
  was cut; ``ContentRefused``, ``InvalidRequest`` or ``EmptyAnswer`` for other unusable answers;
- the error of the model call, after its retries. An answer whose stream breaks is asked for again
  only if none of its text was emitted;
- ``Interrupted`` if a person ended the run from a permission request.

Guarantees: every tool call in the history has a result before the next request, because vendors
reject a call without one. A malformed call is reported back to the model at most
``MAX_MALFORMED`` times per turn. Repeated equal calls get one piece of advice, then the count
starts again; whatever the advice did, equal calls with equal results end the turn at their limit. A
limit ends the turn before the next answer is asked for: what was done stays in the history, and the
session can be resumed. Usage is counted for every answer, also of a turn that fails.

On a cancellation the stream is closed and the tools' processes are ended; the history keeps what
was complete, and ``close_open_calls`` adds the missing results before the next prompt. If this
process is killed, the history on disk lacks at most the message that was being written; resuming
the session repairs it in the same way.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from corral._builtin.history import History
from corral._builtin.tool_execution import Emit, ToolExecutor
from corral._inference.client import Client
from corral._inference.transport import retry_delay
from corral._sessions.structured_output import SUBMIT
from corral._system.environment import SecretRedactor, StreamRedactor
from corral.errors import (
    ContentRefused,
    ContextLengthExceeded,
    CorralError,
    EmptyAnswer,
    InvalidRequest,
    RepeatedCalls,
    StreamBroken,
    TurnLimit,
)
from corral.events import Error, ModelCall, Text, Thinking, UsageReport, Vendor
from corral.messages import Message, ToolCall, ToolResult
from corral.model_types import (
    Finish,
    ProviderEvent,
    Request,
    Response,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
)
from corral.values import Cost, Json, Usage, add_by_model

if TYPE_CHECKING:
    from corral._metering.budget_gate import BudgetGate
    from corral._metering.rate_limits import LimitWaits

NEARLY_FULL = 0.8
"""The share of the context window above which a warning is emitted."""
MAX_MALFORMED = 2
"""Malformed calls of one turn that are reported back to the model."""
_VERSION_SUFFIX = re.compile(r"([-@]\d{3,}(-\d+)*)?")
"""Version suffixes of model names: ``-20250929``, ``-2024-08-06``, ``-001``."""
MALFORMED_ADVICE = (
    "Your last tool call was malformed and was not run. Make it again, as plain JSON."
)
REPEATED_CALLS = 10
"""Calls that must repeat with one period before the model gets advice."""
POLLING = ("wait",)
"""Tools that a model calls again and again because it has nothing else to do."""

REPETITION_ADVICE = (
    "You have made the same tool calls over and over without getting further. Stop, think about"
    " why they do not help, and do something else; if the task cannot be done, say so."
)


class TurnTotals:
    """Usage and cost of a turn: all answers, including those of sub-agents."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.usage: Usage = Usage()
        self.usage_by_model: dict[str, Usage] = {}
        self._cost: Cost | None = None
        """None before the first answer."""
        self.model: str | None = None

    def add(self, response: Response, requested: str) -> None:
        self.usage = self.usage + response.usage
        self._cost = response.cost if self._cost is None else self._cost + response.cost
        provider, _, name = requested.partition(":")
        # A dated version of the requested model is the same model; any other longer name is not.
        rest = response.model.removeprefix(name.removesuffix("-latest"))
        same = not response.model or _VERSION_SUFFIX.fullmatch(rest)
        self.model = requested if same else f"{provider}:{response.model}"
        by_model = {self.model: response.usage}
        self.usage_by_model = add_by_model(self.usage_by_model, by_model)

    @property
    def cost(self) -> Cost:
        """The cost; known only if it is known for every answer."""
        return self._cost or Cost()


class Mailbox:
    """Texts that arrive while the agent works."""

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


class RepetitionDetector:
    """Detects that the last ``count`` tool calls repeat each other."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._last: deque[bytes] = deque(maxlen=count)

    def repeats(self, call: ToolCall, result: Json = None) -> bool:
        """Whether the last calls, including this one, repeat with a period of 1, 2 or 3. After
        it was reported, counting starts again. With ``result``, the results must be equal too."""
        made: list[Json] = [call.name, call.arguments, call.raw, result]
        self._last.append(msgspec.json.encode(made, order="sorted"))
        last = list(self._last)
        if len(last) < self._count:
            return False
        for period in (1, 2, 3):
            enough = self._count >= 2 * period
            if enough and all(last[at] == last[at - period] for at in range(period, len(last))):
                self._last.clear()
                return True
        return False


class LoopLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_turns: int | None = None
    """Answers of the model per prompt."""
    max_tool_rounds: int | None = None
    max_repeated_calls: int | None = None
    gate: BudgetGate | None = None
    """What the model calls may use."""
    retries: int = 2
    waits: LimitWaits | None = None
    """The waits for rate limits; None if a call fails at one."""
    window: int | None = None
    """Size of the context window in tokens, if known."""


class LoopOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Where the events of a loop go."""

    emit: Emit
    wait_for_room: Callable[[], Awaitable[None]]
    """Waits while the event queue is full."""
    redactor: SecretRedactor
    thinking: bool = True
    """Whether thinking is emitted."""


class Loop:
    """One conversation with one model. ``run`` it once for each prompt."""

    def __init__(
        self,
        client: Client,
        request: Request,
        history: History,
        executor: ToolExecutor,
        output: LoopOutput,
        *,
        limits: LoopLimits,
        totals: TurnTotals,
        mailbox: Mailbox,
    ) -> None:
        """``request`` has the system prompt and the tools."""
        self._client = client
        self._request = request
        self._history = history
        self._executor = executor
        self._emit = output.emit
        self._wait_for_room = output.wait_for_room
        self._clean = output.redactor.clean_text
        self._pieces = StreamRedactor(output.redactor)
        self._is_text = True
        """Whether the current delta is text, not thinking."""
        self._limits = limits
        self._totals = totals
        self._mailbox = mailbox
        self._thinking = output.thinking
        self._start_counting()
        self._warned = False
        self._sent_warnings: set[str] = set()
        self._answers = 0
        self._stream_started = False
        """Whether any part of the current answer has arrived."""
        self._text_sent = False

    async def run(self, prompt: Message) -> Response:
        """Run one turn and return the last answer. Raises ``CorralError`` if the turn ends
        otherwise."""
        history, limits = self._history, self._limits
        history.begin(prompt)
        self._start_counting()  # another prompt may need the same calls again
        answers = rounds = malformed = 0
        submitted = False
        while True:
            if limits.max_turns is not None and answers >= limits.max_turns:
                raise _limit_error(f"max_turns={limits.max_turns}")
            response = await self._answer()
            answers += 1
            history.add(response.message)
            reason = response.finish_reason.reason
            if reason == "tool_calls":
                if limits.max_tool_rounds is not None and rounds >= limits.max_tool_rounds:
                    raise _limit_error(f"max_tool_rounds={limits.max_tool_rounds}")
                rounds += 1
                submitted = any(call.name == SUBMIT for call in response.tool_calls)
                results = await self._executor.execute(response.tool_calls, self._emit)
                history.add(Message("tool", results))
                self._check_repetition(response, results)
                repeated = [self._advised.repeats(call) for call in response.tool_calls]
                if any(repeated):
                    self._warn("repetition", "the agent repeats the same calls; it was warned")
                    history.add(Message.user(REPETITION_ADVICE))
                for text in self._mailbox.after_tools():
                    history.add(Message.user(text))
                continue
            history.close_open_calls()
            if reason == "error" and malformed < MAX_MALFORMED:
                malformed += 1
                self._warn(
                    "malformed_call",
                    f"the model sent a malformed tool call: {response.finish_reason.raw}",
                )
                history.add(Message.user(MALFORMED_ADVICE))
                continue
            _check_last_answer(response, submitted=submitted)
            more = self._mailbox.after_answer()
            if not more:
                return response
            for text in more:
                history.add(Message.user(text))

    def _start_counting(self) -> None:
        most = self._limits.max_repeated_calls
        self._advised = RepetitionDetector(REPEATED_CALLS if most is None else max(2, most // 2))
        self._repetition = None if most is None else RepetitionDetector(most)

    def _check_repetition(self, response: Response, results: tuple[ToolResult, ...]) -> None:
        """Raises ``RepeatedCalls`` if neither the calls nor their results change any more."""
        if self._repetition is None:
            return
        for call, result in zip(response.tool_calls, results, strict=True):
            if call.name not in POLLING and self._repetition.repeats(call, result.content):
                raise RepeatedCalls(
                    f"the model made the same tool calls {self._limits.max_repeated_calls} times"
                    f" in a row, with the same results; the last one: {call.name}",
                    hint="Make the prompt more precise, try another model, or raise"
                    " max_repeated_calls.",
                )

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
                    "the conversation does not fit the context window; its older half is left out:"
                    f" {error.message}",
                )
            except CorralError as error:
                # The client retries what fails before the stream starts. After text was emitted, a
                # retry would emit it twice.
                if not self._stream_started or self._text_sent:
                    raise
                waits = self._client.call_waits(self._request, self._limits.waits)
                if waits is not None and await waits.after(error) is not None:
                    continue  # a rate limit that was reported inside the stream
                wait = retry_delay(broken, error)
                broken += 1
                if broken > self._limits.retries or wait is None:
                    raise
                self._warn_retry(error, wait)
                await asyncio.sleep(wait)

    async def _stream(self) -> Response:
        messages = (*self._request.messages, *self._history.messages)
        request = replace(self._request, messages=messages)
        self._stream_started = self._text_sent = False
        self._answers += 1
        if self._limits.gate is None:
            return await self._receive(request)
        call = await self._limits.gate.reserve(request)
        response: Response | None = None
        try:
            response = await self._receive(request)
            return response
        finally:
            call.settle_response(response, was_billed=self._stream_started)

    async def _receive(self, request: Request) -> Response:
        clock = asyncio.get_running_loop().time
        started = clock()
        limits = self._limits
        stream = self._client.stream(
            request, retries=limits.retries, on_retry=self._warn_retry, waits=limits.waits
        )
        try:
            async with stream:
                while events := await stream.batch():
                    self._stream_started = True
                    self._emit_events(events)
                    await self._wait_for_room()
        finally:
            self._emit_text(self._pieces.finish())
        response = stream.response
        if response is None:
            raise StreamBroken("the model's answer ended early")
        self._count_usage(response, clock() - started)
        return response

    def _emit_events(self, events: list[StreamEvent]) -> None:
        for event in events:
            match event:
                case TextDelta():
                    self._text_sent = True
                    self._emit_delta(event.text, is_text=True)
                case ThinkingDelta():
                    if self._thinking:
                        self._emit_delta(event.text, is_text=False)
                case ProviderEvent():
                    self._emit(Vendor(event.name, event.data))
                case Finish():
                    for warning in event.response.warnings:
                        if warning not in self._sent_warnings:
                            self._sent_warnings.add(warning)
                            self._warn("request_changed", warning)
                case _:
                    pass

    def _emit_delta(self, text: str, *, is_text: bool) -> None:
        if is_text != self._is_text:
            self._emit_text(self._pieces.finish())
            self._is_text = is_text
        self._emit_text(self._pieces.add(text))

    def _emit_text(self, text: str) -> None:
        if text and self._is_text:
            self._emit(Text(text, message_id=f"answer-{self._answers}"))
        elif text:
            self._emit(Thinking(text))

    def _count_usage(self, response: Response, seconds: float) -> None:
        totals, window = self._totals, self._limits.window
        totals.add(response, self._request.model)
        size = response.usage.total
        cost = response.cost
        self._emit(
            ModelCall(
                model=totals.model or self._request.model,
                usage=response.usage,
                cost=replace(cost, source="metered") if cost.source == "computed" else cost,
                partial=response.usage.coverage != "complete",
                duration_ms=round(seconds * 1000),
            )
        )
        self._emit(UsageReport(totals.usage, context_size=size, cost=totals.cost))
        if window and size and size > NEARLY_FULL * window and not self._warned:
            self._warned = True
            self._warn(
                "context_nearly_full",
                f"{size:,} of {window:,} tokens of the model's context window are used",
            )

    def _warn_retry(self, error: CorralError, wait: float) -> None:
        self._warn(error.code, f"{error.message}; tried again in {wait:.0f} s", retryable=True)

    def _warn(self, code: str, message: str, *, retryable: bool = False) -> None:
        self._emit(
            Error(
                code,
                self._clean(message),
                recoverable=True,
                retryable=retryable,
                level="warning",
                phase="request",
            )
        )


def _limit_error(which: str) -> TurnLimit:
    return TurnLimit(
        f"the agent was not done within {which}",
        hint="Raise it, resume the session to continue, or give the agent a smaller task.",
    )


def _check_last_answer(response: Response, *, submitted: bool) -> None:
    """Raise the error for a last answer that is not usable. A model that has ``submitted`` a
    result need not write any text."""
    reason, raw = response.finish_reason.reason, response.finish_reason.raw
    match reason:
        case "length":
            raise ContextLengthExceeded(
                f"the answer was cut at the model's output limit ({raw})",
                hint="Ask for less at once, or use a model with a larger output limit.",
            )
        case "content_filter":
            raise ContentRefused(
                f"the model's vendor filtered the answer ({raw})",
                hint="Rephrase the prompt, or use another model.",
            )
        case "error":
            raise InvalidRequest(f"the model could not make its call: {raw}")
        case _ if not response.text.strip() and not submitted:
            raise EmptyAnswer(
                "the model ended its turn without any answer",
                hint="Try again, rephrase the prompt, or use another model.",
            )
        case _:
            pass
