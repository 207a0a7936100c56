"""The doors of the model layer: ``generate`` and ``stream``, with tools.

All calls of one answer run at the same time and go back in order. A tool that
raises, an unknown tool, arguments that do not fit: an error *result* to the
model, never an exception to the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Unpack

from msgspec.structs import replace

from corral.errors import TotalTimeout
from corral.inference.client import AnswerStream, Client, default_client
from corral.inference.request import PromptInput, RequestOptions, checked, conversation, request
from corral.inference.results import Generation, Step
from corral.inference.tools import Toolbox
from corral.messages import Message, ToolResult
from corral.model_types import Finish, Response, StepFinish, StreamEvent, TextDelta, ToolDone


async def generate(
    model: str, prompt: PromptInput = None, **options: Unpack[RequestOptions]
) -> Generation:
    """The answer of a model, ``vendor:name``, with its tools run; see ``Options``."""
    rounds = Rounds(model, prompt, options)
    client = options.get("client") or await default_client()
    async with limit(options.get("timeout"), "timeout"):
        return await rounds.play(client, options)


class Rounds:
    """A conversation that grows by an answer and the results of its tools."""

    def __init__(self, model: str, prompt: PromptInput, options: RequestOptions) -> None:
        """Raises ``ConfigError`` for whatever cannot be, before anything is sent."""
        checked(options)
        self._box = Toolbox(options.get("tools", ()))
        self._most = options.get("max_tool_rounds", 1)
        self._stop_when = options.get("stop_when")
        said = conversation(prompt, options.get("messages"), options.get("system"))
        self.request = request(model, said, self._box, options.get("tool_choice"), options)
        self._steps: list[Step] = []

    async def play(self, client: Client, options: RequestOptions) -> Generation:
        """Ask and run tools until an answer is the last."""
        while True:
            async with limit(options.get("step_timeout"), "step_timeout"):
                response = await client.complete(
                    self.request, max_retries=options.get("max_retries")
                )
            if not await self.go_on(response):
                return self.generation

    async def go_on(self, response: Response) -> bool:
        """Take an answer, run its tools; whether the model is to be asked again."""
        self._steps.append(Step(response))
        self._grow(response.message)
        calls = response.tool_calls
        done = len(self._steps) > self._most or response.finish_reason.reason != "tool_calls"
        if done or not self._box.runs(calls):
            return False
        results = await self._box.results(calls)
        self._steps[-1] = Step(response, results)
        self._grow(Message("tool", results))
        # A tool that must be called was called; asked for again it would be called for ever.
        if self.request.tool_choice not in (None, "auto", "none"):
            self.request = replace(self.request, tool_choice="auto")
        return self._stop_when is None or not self._stop_when(tuple(self._steps))

    def say(self, text: str) -> None:
        """The user's next words. Calls that nobody ran get a result that says so: no vendor
        takes one without."""
        last = self.request.messages[-1]
        if last.tool_calls:
            unrun = (
                ToolResult(call.id, "not run", is_error=True, name=call.name)
                for call in last.tool_calls
            )
            self._grow(Message("tool", tuple(unrun)))
        self._grow(Message.user(text))

    def _grow(self, message: Message) -> None:
        self.request = replace(self.request, messages=(*self.request.messages, message))

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """Of the last answer's tools."""
        return self._steps[-1].results

    @property
    def count(self) -> int:
        return len(self._steps)

    @property
    def generation(self) -> Generation:
        return Generation(steps=tuple(self._steps), messages=self.request.messages)


def stream(
    model: str, prompt: PromptInput = None, **options: Unpack[RequestOptions]
) -> GenerationStream:
    """``generate`` as events: ``async for event in stream("vendor:name", "…")``. Each answer
    ends with ``step_finish``, the whole with ``finish``."""
    rounds = Rounds(model, prompt, options)
    client = options.get("client")
    if client is not None:
        client.check(model)
    return GenerationStream(rounds, options)


class GenerationStream:
    """The events of one or more answers. Left half-way, the connection is closed; as
    ``async with`` at once."""

    def __init__(self, rounds: Rounds, options: RequestOptions, ends: float | None = None) -> None:
        """``ends``: the loop's time at which ``timeout`` is over, where it runs already."""
        self._rounds = rounds
        self._ends = ends
        self._client = options.get("client")
        self._max_retries = options.get("max_retries")
        self._timeout = options.get("timeout")
        self._step_timeout = options.get("step_timeout")
        self._answer: AnswerStream | None = None
        self._iterated = False
        self.generation: Generation | None = None
        """Once ``finish`` was handed out."""

    def __aiter__(self) -> AsyncGenerator[StreamEvent, None]:
        if self._iterated:
            raise RuntimeError("a stream can be read once")
        self._iterated = True
        return self._events()

    async def text(self) -> AsyncGenerator[str, None]:
        """The pieces of the answer's text alone."""
        async for event in self:
            if isinstance(event, TextDelta):
                yield event.text

    async def collect(self) -> Generation:
        """Read to the end."""
        async for _ in self:
            pass
        if self.generation is None:
            raise AssertionError("a stream ends with finish or raises")
        return self.generation

    async def __aenter__(self) -> GenerationStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()

    async def _events(self) -> AsyncGenerator[StreamEvent, None]:
        client = self._client or await default_client()
        client.check(self._rounds.request.model)
        ends = deadline(self._timeout) if self._ends is None else self._ends
        try:
            while True:
                self._answer = client.stream(self._rounds.request, max_retries=self._max_retries)
                step_ends = deadline(self._step_timeout)
                batch = self._answer.batch
                timed = ends is not None or step_ends is not None
                while True:
                    events = await (self._in_time(batch, ends, step_ends) if timed else batch())
                    if not events:
                        break
                    last = events[-1]
                    if isinstance(last, Finish):
                        events.pop()
                    for event in events:
                        yield event
                response = self._answer.response
                if response is None:
                    raise AssertionError("a stream ends with finish or raises")
                yield StepFinish(self._rounds.count + 1, response)
                if not await self._ran_in_time(response, ends):
                    break
                for result in self._rounds.results:
                    yield _done(result)
            whole = self.generation = self._rounds.generation
            for result in self._rounds.results:
                yield _done(result)
            yield Finish(whole.finish_reason, whole.usage, whole.response)
        finally:
            self.close()

    async def _ran_in_time(self, response: Response, ends: float | None) -> bool:
        """The tools count too: the caller's ``timeout`` is for all of it."""
        if ends is None:
            return await self._rounds.go_on(response)
        scope = asyncio.timeout_at(ends)
        try:
            async with scope:
                return await self._rounds.go_on(response)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise _late("timeout", self._timeout) from error

    async def _in_time(
        self,
        batch: Callable[[], Awaitable[list[StreamEvent]]],
        ends: float | None,
        step_ends: float | None,
    ) -> list[StreamEvent]:
        """Only our own waiting counts: a slow reader of events is not a slow model."""
        name = "timeout" if step_ends is None or (ends or step_ends) < step_ends else "step_timeout"
        at = min(moment for moment in (ends, step_ends) if moment is not None)
        try:
            async with asyncio.timeout_at(at):
                return await batch()
        except TimeoutError as error:
            self.close()
            raise _late(name, self._timeout if name == "timeout" else self._step_timeout) from error


def _done(result: ToolResult) -> ToolDone:
    return ToolDone(result.call_id, result.name or "", result.content, result.is_error)


def deadline(seconds: float | None) -> float | None:
    """Seconds from now as the loop's time."""
    return None if seconds is None else asyncio.get_running_loop().time() + seconds


def _late(name: str, seconds: float | None) -> TotalTimeout:
    return TotalTimeout(
        f"the model did not answer within {name}={seconds:g} s",
        hint=f"Give it longer with {name}, or ask for less.",
    )


def limit(seconds: float | None, name: str) -> AbstractAsyncContextManager[None]:
    """``TotalTimeout`` once the seconds are over; none for None."""
    return nullcontext() if seconds is None else _limited(seconds, name)


@asynccontextmanager
async def _limited(seconds: float, name: str) -> AsyncGenerator[None]:
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise _late(name, seconds) from error
