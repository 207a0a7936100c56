"""The public functions ``generate`` and ``stream``, which also run tools.

All tool calls of one response run at the same time, and their results are sent in order. A tool
that raises, an unknown tool and invalid arguments give an error *result* to the model, never an
exception to the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Final, TypeAlias, Unpack

from msgspec.structs import replace

from corral._core.display import short_traceback
from corral._core.durations import seconds
from corral._inference.client import Client, ResponseStream, default_client
from corral._inference.request import (
    NO_TOOLS,
    PromptInput,
    RequestOptions,
    Toolbox,
    build_messages,
    build_request,
    check_options,
)
from corral._inference.results import Generation, ModelChoice, Step
from corral._system.threads import iterate, require_event_loop, short_traceback_async, sync_twin
from corral.errors import ConfigError, CorralError, TotalTimeout
from corral.messages import Message, ToolResult
from corral.model_types import (
    Finish,
    Request,
    Response,
    StepFinish,
    StreamEvent,
    TextDelta,
    ToolDone,
)

if TYPE_CHECKING:
    from corral._metering.rate_limits import LimitWaits
    from corral._telemetry.model_spans import ModelSpans

Models: TypeAlias = str | Sequence[str]
"""A model, or models in the order in which they are tried."""


@short_traceback_async
async def generate(
    model: Models, prompt: PromptInput = None, **options: Unpack[RequestOptions]
) -> Generation[None]:
    """The answer of the model ``vendor:name``, with its tools run. See ``RequestOptions``.

    ::

        answer = await models.generate("gemini:gemini-2.5-flash", "Say hello")
        print(answer.text, answer.usage, answer.cost)

    Of a list of models the first is called. If it is not available (a retryable error after its
    retries, a spent quota, an unknown model, refused credentials), the next one is called;
    ``answer.fallbacks`` has the models that failed.
    """
    rounds = GenerationLoop(model, prompt, options)
    client = await rounds.client(options)
    async with time_limit(options.get("timeout"), "timeout", rounds.waits):
        return await rounds.run(client, options)


class GenerationLoop:
    """The loop of one call: a response, its tool results, the next response."""

    def __init__(self, model: Models, prompt: PromptInput, options: RequestOptions) -> None:
        """Raises ``ConfigError`` for invalid options, before anything is sent."""
        check_options(options)
        self._models = ModelChoice(model)
        tools = options.get("tools")
        self._toolbox = Toolbox(tools) if tools else NO_TOOLS
        self._max_rounds = options.get("max_tool_rounds", 1)
        self._stop_when = options.get("stop_when")
        messages = build_messages(prompt, options.get("messages"), options.get("system"))
        self._messages = messages
        """The conversation so far, with what was added since the last request."""
        self._request = build_request(
            self._models.all[0], messages, self._toolbox, options.get("tool_choice"), options
        )
        self._steps: list[Step] = []
        self.spans: ModelSpans | None = None
        if (endpoint := options.get("otel")) is not None:
            from corral._telemetry.model_spans import ModelSpans

            self.spans = ModelSpans(endpoint, has_tools=bool(tools))
        self.waits: LimitWaits | None = limit_waits(options) if "on_limit" in options else None
        """The waits for rate limits; None if the call fails at one."""

    async def client(self, options: RequestOptions) -> Client:
        """The client of the call. Raises if one of the models cannot be called."""
        return self.with_access(options.get("client") or await default_client(), options)

    def with_access(self, client: Client, options: RequestOptions) -> Client:
        """The client with the keys of the call. Raises if one of the models cannot be called."""
        models = self._models.all
        client = client.with_access(models, options.get("api_key"), options.get("base_url"))
        for name in models:
            client.check(name)
        return client

    async def run(self, client: Client, options: RequestOptions) -> Generation[None]:
        """Call the model and run tools until a response is the last."""
        step_timeout, retries = options.get("step_timeout"), options.get("retries")
        try:
            while True:
                self.start_call()
                try:
                    async with time_limit(step_timeout, "step_timeout", self.waits):
                        response = await client.complete(
                            self.request, retries=retries, waits=self.waits
                        )
                except CorralError as error:
                    if not self.fall_back(error):
                        raise
                    continue
                if not self.add_response(response) or not await self.run_tools(response):
                    return self.generation
        finally:
            await self.end_spans()

    def start_call(self) -> None:
        """A request is sent now."""
        if self.spans is not None:
            self.spans.start()

    async def end_spans(self) -> None:
        """No more calls are made."""
        if self.spans is not None:
            self.spans.end()
            await self.spans.flush()

    def fall_back(self, error: CorralError) -> bool:
        """Continue with the next model, if there is one and the error is one of availability."""
        if self.spans is not None:
            self.spans.add_failure(self.request, error)
        if not self._models.fall_back(error):
            return False
        self._request = replace(self._request, model=self._models.current)
        return True

    def add_response(self, response: Response) -> bool:
        """Add a response. Returns whether ``run_tools`` is next; otherwise it was the last."""
        if self.spans is not None:
            self.spans.add_response(self.request, response)
        self._steps.append(Step(response))
        self._messages = (*self._messages, response.message)
        if response.finish_reason.reason != "tool_calls" or len(self._steps) > self._max_rounds:
            return False
        return self._toolbox.can_run_all(response.tool_calls)

    async def run_tools(self, response: Response) -> bool:
        """Run the tools of the response that was added. Returns whether to call the model again."""
        self.start_call()
        results = await self._toolbox.run_calls(response.tool_calls)
        if self.spans is not None:
            self.spans.add_tools(response.tool_calls, results)
        self._steps[-1] = Step(response, results)
        self._messages = (*self._messages, Message("tool", results))
        # The required tool was called. Requiring it again would never end.
        if self._request.tool_choice not in (None, "auto", "none"):
            self._request = replace(self._request, tool_choice="auto")
        return self._stop_when is None or not self._stop_when(tuple(self._steps))

    def add_user_message(self, text: str) -> None:
        """Add a message of the user. Calls that were not run get an error result: all vendors
        reject a call without a result."""
        last = self._messages[-1]
        if last.tool_calls:
            unrun = (
                ToolResult(call.id, "not run", is_error=True, name=call.name)
                for call in last.tool_calls
            )
            self._messages = (*self._messages, Message("tool", tuple(unrun)))
        self._messages = (*self._messages, Message.user(text))

    @property
    def request(self) -> Request:
        """The next request: the conversation so far."""
        if self._request.messages is not self._messages:
            self._request = replace(self._request, messages=self._messages)
        return self._request

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The tool results of the last response."""
        return self._steps[-1].results

    @property
    def step_count(self) -> int:
        return len(self._steps)

    @property
    def generation(self) -> Generation[None]:
        return Generation(
            steps=tuple(self._steps),
            messages=self._messages,
            fallbacks=self._models.failed,
        )


generate_sync: Final = sync_twin(generate)
generate_sync.__doc__ = """
    ``generate`` for code that is not async, with the same arguments; also in a notebook.

    ::

        print(models.generate_sync("gemini:gemini-2.5-flash", "Say hello").text)
    """


@short_traceback
def stream(
    model: Models, prompt: PromptInput = None, **options: Unpack[RequestOptions]
) -> GenerationStream:
    """``generate`` as events. Each response ends with ``step_finish``, the stream with ``finish``.

    ::

        async for event in models.stream("gemini:gemini-2.5-flash", "Say hello"):
            if event.type == "text_delta":
                print(event.text, end="")

    Of a list of models, the next one is called only while nothing of a response was received.
    """
    rounds = GenerationLoop(model, prompt, options)
    client = options.get("client")
    if client is not None:
        rounds.with_access(client, options)
    return GenerationStream(rounds, options)


@short_traceback
def stream_sync(
    model: Models, prompt: PromptInput = None, **options: Unpack[RequestOptions]
) -> SyncGenerationStream:
    """``stream`` for code that is not async, with the same arguments; also in a notebook.

    ::

        for piece in models.stream_sync("gemini:gemini-2.5-flash", "Say hello").text():
            print(piece, end="")
    """
    return SyncGenerationStream(stream(model, prompt, **options))


class GenerationStream:
    """The events of one or more responses. If the iteration is left early, the connection is
    closed; with ``async with`` at once.

    ::

        async with models.stream("gemini:gemini-2.5-flash", "Say hello") as stream:
            async for piece in stream.text():
                print(piece, end="")
        print(stream.generation)
    """

    def __init__(
        self, rounds: GenerationLoop, options: RequestOptions, ends: float | None = None
    ) -> None:
        """``ends``: the loop time at which ``timeout`` expires, if it is already running."""
        self._loop = rounds
        self._deadline = ends
        self._step_deadline: float | None = None
        self._options = options
        self._retries = options.get("retries")
        self._timeout = options.get("timeout")
        self._step_timeout = options.get("step_timeout")
        self._response: ResponseStream | None = None
        self._is_iterated = False
        self.generation: Generation[None] | None = None
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

    async def collect(self) -> Generation[None]:
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
        try:
            with short_traceback:
                require_event_loop()
                client = await self._loop.client(self._options)
                if self._deadline is None:
                    self._deadline = deadline(self._timeout)
                while True:
                    events = await self._first_batch(client)
                    while events:
                        last = events[-1]
                        if isinstance(last, Finish):
                            events.pop()
                        for event in events:
                            yield event
                        events = await self._next_batch()
                    response = self._response.response if self._response is not None else None
                    if response is None:
                        raise AssertionError("a stream ends with finish or raises")
                    yield StepFinish(self._loop.step_count + 1, response)
                    if not self._loop.add_response(response):
                        break
                    # ``timeout`` covers all steps, so also their tools.
                    async with time_limit(self._timeout, "timeout", None, self._deadline):
                        is_last = not await self._loop.run_tools(response)
                    if is_last:
                        break
                    for result in self._loop.results:
                        yield _tool_done(result)
                generation = self.generation = self._loop.generation
                for result in self._loop.results:
                    yield _tool_done(result)
                await self._loop.end_spans()
                yield Finish(generation.finish_reason, generation.usage, generation.response)
        finally:
            self.close()
            if self._loop.spans is not None:
                self._loop.spans.end()

    async def _first_batch(self, client: Client) -> list[StreamEvent]:
        """Send the request and read its first events. The caller has none of the response yet, so
        another model may answer."""
        while True:
            self._loop.start_call()
            self._response = client.stream(
                self._loop.request, retries=self._retries, waits=self._loop.waits
            )
            self._step_deadline = deadline(self._step_timeout)
            try:
                return await self._next_batch()
            except CorralError as error:
                self.close()
                now = asyncio.get_running_loop().time()
                is_late = self._deadline is not None and now >= self._deadline
                if is_late or not self._loop.fall_back(error):
                    raise

    async def _next_batch(self) -> list[StreamEvent]:
        """The next events, within the timeouts. The time that the caller takes to read events does
        not count."""
        if self._response is None:
            raise AssertionError("the request was not sent")
        ends, step_ends = self._deadline, self._step_deadline
        if ends is None and step_ends is None:
            return await self._response.batch()
        name, limit = "timeout", self._timeout
        if ends is None or (step_ends is not None and step_ends <= ends):
            name, limit = "step_timeout", self._step_timeout
        waits = self._loop.waits
        waited_before = 0.0 if waits is None else waits.waited
        try:
            async with time_limit(limit, name, waits, ends if name == "timeout" else step_ends):
                return await self._response.batch()
        except TotalTimeout:
            self.close()
            raise
        finally:
            if waits is not None:
                waited = waits.waited - waited_before
                self._deadline = None if ends is None else ends + waited
                self._step_deadline = None if step_ends is None else step_ends + waited


class SyncGenerationStream:
    """``GenerationStream`` for code that is not async: ``for event in stream``. If the iteration is
    left early, the connection is closed; with ``with`` at once.

    ::

        with models.stream_sync("gemini:gemini-2.5-flash", "Say hello") as stream:
            for event in stream:
                print(event.type)
        print(stream.generation)
    """

    def __init__(self, stream: GenerationStream) -> None:
        self._stream = stream
        self._events: Generator[StreamEvent] | None = None

    @property
    def generation(self) -> Generation | None:
        """Set once ``finish`` was emitted."""
        return self._stream.generation

    def __iter__(self) -> Generator[StreamEvent]:
        self._events = iterate(aiter(self._stream), "stream")
        return self._events

    def text(self) -> Generator[str]:
        """Only the text of the answer, in pieces."""
        for event in self:
            if isinstance(event, TextDelta):
                yield event.text

    def collect(self) -> Generation:
        """Read to the end."""
        for _ in self:
            pass
        if self._stream.generation is None:
            raise AssertionError("a stream ends with finish or raises")
        return self._stream.generation

    def close(self) -> None:
        """Close the connection."""
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> SyncGenerationStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tool_done(result: ToolResult) -> ToolDone:
    return ToolDone(result.call_id, result.name or "", result.content, result.is_error)


def deadline(seconds: float | None) -> float | None:
    """The loop time in this many seconds."""
    return None if seconds is None else asyncio.get_running_loop().time() + seconds


def limit_waits(options: RequestOptions) -> LimitWaits | None:
    """The waits of a call with these options. Raises ``ConfigError``."""
    if options.get("on_limit", "fail") == "fail":
        return None
    from corral._metering.rate_limits import LONGEST_WAIT, LimitWaits

    given = options.get("max_wait", LONGEST_WAIT)
    try:
        longest = seconds(given)
    except ValueError as error:
        raise ConfigError(f"max_wait: {error}") from error
    if not longest > 0:
        raise ConfigError(f"max_wait must be more than 0, got: {longest:g}")
    return LimitWaits(longest)


def time_limit(
    seconds: float | None, name: str, waits: LimitWaits | None, ends: float | None = None
) -> AbstractAsyncContextManager[None]:
    """Raises ``TotalTimeout`` after this many seconds, without ``waits``; never for None. ``ends``
    is the loop time of the end, if the time is running already."""
    return nullcontext() if seconds is None else _limited(seconds, name, waits, ends)


@asynccontextmanager
async def _limited(
    seconds: float, name: str, waits: LimitWaits | None, ends: float | None
) -> AsyncGenerator[None]:
    scope = asyncio.timeout(seconds) if ends is None else asyncio.timeout_at(ends)
    try:
        async with scope:
            with nullcontext() if waits is None else waits.exempt_from(scope):
                yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise TotalTimeout(
            f"the model did not answer within {name}={seconds:g} s",
            hint=f"Raise {name}, or request a shorter answer.",
        ) from error
