"""The public functions ``generate`` and ``stream``, which also run tools.

All tool calls of one response run at the same time, and their results are sent in order. A tool
that raises, an unknown tool and invalid arguments give an error *result* to the model, never an
exception to the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Unpack

from msgspec.structs import replace

from corral.errors import TotalTimeout
from corral.inference.client import Client, ResponseStream, default_client
from corral.inference.request import (
    PromptInput,
    RequestOptions,
    build_messages,
    build_request,
    check_options,
)
from corral.inference.results import Generation, Step
from corral.inference.tools import Toolbox
from corral.messages import Message, ToolResult
from corral.model_types import Finish, Response, StepFinish, StreamEvent, TextDelta, ToolDone


async def generate(
    model: str, prompt: PromptInput = None, **options: Unpack[RequestOptions]
) -> Generation:
    """The answer of the model ``vendor:name``, with its tools run. See ``RequestOptions``."""
    rounds = GenerationLoop(model, prompt, options)
    client = options.get("client") or await default_client()
    async with time_limit(options.get("timeout"), "timeout"):
        return await rounds.run(client, options)


class GenerationLoop:
    """The loop of one call: a response, its tool results, the next response."""

    def __init__(self, model: str, prompt: PromptInput, options: RequestOptions) -> None:
        """Raises ``ConfigError`` for invalid options, before anything is sent."""
        check_options(options)
        self._toolbox = Toolbox(options.get("tools", ()))
        self._max_rounds = options.get("max_tool_rounds", 1)
        self._stop_when = options.get("stop_when")
        messages = build_messages(prompt, options.get("messages"), options.get("system"))
        self.request = build_request(
            model, messages, self._toolbox, options.get("tool_choice"), options
        )
        self._steps: list[Step] = []

    async def run(self, client: Client, options: RequestOptions) -> Generation:
        """Call the model and run tools until a response is the last."""
        while True:
            async with time_limit(options.get("step_timeout"), "step_timeout"):
                response = await client.complete(
                    self.request, max_retries=options.get("max_retries")
                )
            if not await self.add_response(response):
                return self.generation

    async def add_response(self, response: Response) -> bool:
        """Add a response and run its tools. Returns whether to call the model again."""
        self._steps.append(Step(response))
        self._append(response.message)
        calls = response.tool_calls
        done = len(self._steps) > self._max_rounds or response.finish_reason.reason != "tool_calls"
        if done or not self._toolbox.can_run_all(calls):
            return False
        results = await self._toolbox.run_calls(calls)
        self._steps[-1] = Step(response, results)
        self._append(Message("tool", results))
        # The required tool was called. Requiring it again would never end.
        if self.request.tool_choice not in (None, "auto", "none"):
            self.request = replace(self.request, tool_choice="auto")
        return self._stop_when is None or not self._stop_when(tuple(self._steps))

    def add_user_message(self, text: str) -> None:
        """Add a message of the user. Calls that were not run get an error result: all vendors
        reject a call without a result."""
        last = self.request.messages[-1]
        if last.tool_calls:
            unrun = (
                ToolResult(call.id, "not run", is_error=True, name=call.name)
                for call in last.tool_calls
            )
            self._append(Message("tool", tuple(unrun)))
        self._append(Message.user(text))

    def _append(self, message: Message) -> None:
        self.request = replace(self.request, messages=(*self.request.messages, message))

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The tool results of the last response."""
        return self._steps[-1].results

    @property
    def step_count(self) -> int:
        return len(self._steps)

    @property
    def generation(self) -> Generation:
        return Generation(steps=tuple(self._steps), messages=self.request.messages)


def stream(
    model: str, prompt: PromptInput = None, **options: Unpack[RequestOptions]
) -> GenerationStream:
    """``generate`` as events: ``async for event in stream("vendor:name", "…")``. Each response
    ends with ``step_finish``, the stream with ``finish``."""
    rounds = GenerationLoop(model, prompt, options)
    client = options.get("client")
    if client is not None:
        client.check(model)
    return GenerationStream(rounds, options)


class GenerationStream:
    """The events of one or more responses. If the iteration is left early, the connection is
    closed; with ``async with`` at once."""

    def __init__(
        self, rounds: GenerationLoop, options: RequestOptions, ends: float | None = None
    ) -> None:
        """``ends``: the loop time at which ``timeout`` expires, if it is already running."""
        self._loop = rounds
        self._deadline = ends
        self._client = options.get("client")
        self._max_retries = options.get("max_retries")
        self._timeout = options.get("timeout")
        self._step_timeout = options.get("step_timeout")
        self._response: ResponseStream | None = None
        self._is_iterated = False
        self.generation: Generation | None = None
        """Set once ``finish`` was emitted."""

    def __aiter__(self) -> AsyncGenerator[StreamEvent, None]:
        if self._is_iterated:
            raise RuntimeError("a stream can be read once")
        self._is_iterated = True
        return self._events()

    async def text(self) -> AsyncGenerator[str, None]:
        """Only the text of the answer, in pieces."""
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
        if self._response is not None:
            self._response.close()

    async def _events(self) -> AsyncGenerator[StreamEvent, None]:
        client = self._client or await default_client()
        client.check(self._loop.request.model)
        ends = deadline(self._timeout) if self._deadline is None else self._deadline
        try:
            while True:
                self._response = client.stream(self._loop.request, max_retries=self._max_retries)
                step_ends = deadline(self._step_timeout)
                batch = self._response.batch
                timed = ends is not None or step_ends is not None
                while True:
                    events = await (
                        self._batch_in_time(batch, ends, step_ends) if timed else batch()
                    )
                    if not events:
                        break
                    last = events[-1]
                    if isinstance(last, Finish):
                        events.pop()
                    for event in events:
                        yield event
                response = self._response.response
                if response is None:
                    raise AssertionError("a stream ends with finish or raises")
                yield StepFinish(self._loop.step_count + 1, response)
                if not await self._add_in_time(response, ends):
                    break
                for result in self._loop.results:
                    yield _tool_done(result)
            generation = self.generation = self._loop.generation
            for result in self._loop.results:
                yield _tool_done(result)
            yield Finish(generation.finish_reason, generation.usage, generation.response)
        finally:
            self.close()

    async def _add_in_time(self, response: Response, ends: float | None) -> bool:
        """Run the tools within ``timeout``, which covers all steps."""
        if ends is None:
            return await self._loop.add_response(response)
        scope = asyncio.timeout_at(ends)
        try:
            async with scope:
                return await self._loop.add_response(response)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise _timeout_error("timeout", self._timeout) from error

    async def _batch_in_time(
        self,
        batch: Callable[[], Awaitable[list[StreamEvent]]],
        ends: float | None,
        step_ends: float | None,
    ) -> list[StreamEvent]:
        """The next batch within the timeouts. The time that the caller takes to read events does
        not count."""
        name = "timeout" if step_ends is None or (ends or step_ends) < step_ends else "step_timeout"
        at = min(moment for moment in (ends, step_ends) if moment is not None)
        try:
            async with asyncio.timeout_at(at):
                return await batch()
        except TimeoutError as error:
            self.close()
            raise _timeout_error(
                name, self._timeout if name == "timeout" else self._step_timeout
            ) from error


def _tool_done(result: ToolResult) -> ToolDone:
    return ToolDone(result.call_id, result.name or "", result.content, result.is_error)


def deadline(seconds: float | None) -> float | None:
    """The loop time in this many seconds."""
    return None if seconds is None else asyncio.get_running_loop().time() + seconds


def _timeout_error(name: str, seconds: float | None) -> TotalTimeout:
    return TotalTimeout(
        f"the model did not answer within {name}={seconds:g} s",
        hint=f"Raise {name}, or request a shorter answer.",
    )


def time_limit(seconds: float | None, name: str) -> AbstractAsyncContextManager[None]:
    """Raises ``TotalTimeout`` after this many seconds; never for None."""
    return nullcontext() if seconds is None else _time_limit(seconds, name)


@asynccontextmanager
async def _time_limit(seconds: float, name: str) -> AsyncGenerator[None]:
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise _timeout_error(name, seconds) from error
