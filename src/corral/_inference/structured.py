"""Typed values from a model: requested with a JSON Schema, checked, and repaired if needed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final, Generic, Unpack

from msgspec.structs import replace

from corral._core.display import short_traceback
from corral._inference.api import (
    GenerationLoop,
    GenerationStream,
    Models,
    deadline,
    time_limit,
)
from corral._inference.request import PromptInput, RequestOptions
from corral._inference.results import Generation
from corral._protocol.partial_json import NO_VALUE, NoValue, PartialJson
from corral._protocol.schema import Schema
from corral._sessions.structured_output import REPAIRS, answer_schema, find, repair_prompt
from corral._system.threads import require_event_loop, short_traceback_async, sync_twin
from corral.errors import ConfigError, NoObject
from corral.model_types import Response, ResponseFormat, TextDelta
from corral.values import Json, Output, T, T_co, slug

NoObjectError = NoObject
"""The public name in ``corral.models``."""


@short_traceback_async
async def generate_object(
    model: Models,
    output: Output[T],
    prompt: PromptInput = None,
    *,
    repairs: int = REPAIRS,
    **options: Unpack[RequestOptions],
) -> Generation[T]:
    """Like ``generate``, with a value in ``answer.output``. ``output``: a type or a JSON Schema, as
    in ``corral.run``. If the answer does not fit, the model is asked to repair it at most
    ``repairs`` times; then ``NoObjectError`` is raised, with the last text as ``frame``.

    ::

        answer = await models.generate_object("gemini:gemini-2.5-flash", list[str], "Name colors")
        print(answer.output)
    """
    target = ObjectTarget(output, repairs)
    loop = GenerationLoop(model, prompt, target.add_schema(options))
    client = await loop.client(options)
    async with time_limit(options.get("timeout"), "timeout", loop.waits):
        while True:
            generation: Generation = await loop.run(client, options)
            if target.accept(generation.response):
                return replace(generation, _output=target.value)
            loop.add_user_message(target.repair_prompt)


generate_object_sync: Final = sync_twin(generate_object)
generate_object_sync.__doc__ = """
    ``generate_object`` for code that is not async, with the same arguments; also in a notebook.

    ::

        answer = models.generate_object_sync("gemini:gemini-2.5-flash", list[str], "Name colors")
        print(answer.output)
    """


class ObjectTarget:
    """The schema of the requested value, the repairs that are left, and the value."""

    def __init__(self, output: object, repairs: int) -> None:
        if repairs < 0:
            raise ConfigError(f"repairs must not be negative, got: {repairs}")
        self._schema: Schema[Any] = answer_schema(output)
        self._wrapped = self._schema.json.get("type") != "object"
        self._repairs_left = repairs
        self._complaints: tuple[str, ...] = ()
        self.value: Any = None

    def add_schema(self, options: RequestOptions) -> RequestOptions:
        """The options with the schema. A schema of another type is wrapped in an object, as some
        vendors support only objects."""
        if options.get("response_format") is not None:
            raise ConfigError("response_format and output both given")
        json: dict[str, Json] = self._schema.json
        if self._wrapped:
            shared = {k: value for k, value in json.items() if k in ("$defs", "definitions")}
            inner: dict[str, Json] = {k: value for k, value in json.items() if k not in shared}
            properties: dict[str, Json] = {"value": inner}
            json = {"type": "object", "properties": properties, "required": ["value"], **shared}
        name = slug(self._schema.name, limit=48, allowed="_", fill="_", default="result")
        form = ResponseFormat("json_schema", json, name)
        return {**options, "response_format": form}

    def unwrap(self, value: Json | NoValue) -> Json | NoValue:
        """The value without the wrapping object; ``NO_VALUE`` if it has not started."""
        if self._wrapped and isinstance(value, dict):
            return value.get("value", NO_VALUE)
        return value

    def accept(self, response: Response) -> bool:
        """Whether the response holds the value. Raises ``NoObjectError`` if no repair is left."""
        self.value, _, self._complaints = find(response.text, self._schema)
        if not self._complaints:
            return True
        if self._repairs_left and response.finish_reason.reason != "content_filter":
            self._repairs_left -= 1
            return False
        reason = response.finish_reason.reason
        cut = {"length": "was cut short: no", "content_filter": "was filtered: no"}
        how = cut.get(reason, "does not fit")
        listed = "".join(f"\n- {complaint}" for complaint in self._complaints)
        raise NoObject(
            f"the answer of {response.model} {how} {self._schema.name}:{listed}",
            hint="Raise max_tokens." if reason == "length" else None,
            frame=response.text,
            provider=response.provider,
        )

    @property
    def repair_prompt(self) -> str:
        return repair_prompt(self._complaints)


@short_traceback
def stream_object(
    model: Models,
    output: Output[T],
    prompt: PromptInput = None,
    *,
    repairs: int = REPAIRS,
    **options: Unpack[RequestOptions],
) -> ObjectStream[T]:
    """Partial values: ``async for partial in stream_object(…)``. At the end, ``stream.output`` is
    the typed value.

    ::

        stream = models.stream_object("gemini:gemini-2.5-flash", list[str], "Name colors")
        async for partial in stream:
            print(partial)
    """
    target = ObjectTarget(output, repairs)
    return ObjectStream(GenerationLoop(model, prompt, target.add_schema(options)), target, options)


class ObjectStream(Generic[T_co]):
    """Each value is the part of the answer that was received so far. It grows until the answer is
    complete; a repair starts with an empty value again.

    ::

        stream = models.stream_object("gemini:gemini-2.5-flash", list[str], "Name colors")
        async for partial in stream:
            print(partial)
        print(stream.output)
    """

    def __init__(self, loop: GenerationLoop, target: ObjectTarget, options: RequestOptions) -> None:
        self._loop = loop
        self._target = target
        self._options = options
        self._stream: GenerationStream | None = None
        self.generation: Generation[T_co] | None = None
        """Set when the stream was read to its end."""

    @property
    def output(self) -> T_co:
        """The typed value. Raises ``RuntimeError`` before the stream was read to its end."""
        if self.generation is None:
            raise RuntimeError("read the stream to its end first")
        return self.generation.output

    def __aiter__(self) -> AsyncGenerator[Json, None]:
        return self._values()

    async def __aenter__(self) -> ObjectStream[T_co]:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    async def collect(self) -> Generation[T_co]:
        """Read to the end."""
        async for _ in self:
            pass
        if self.generation is None:
            raise AssertionError("a stream of values ends with a value or raises")
        return self.generation

    async def _values(self) -> AsyncGenerator[Json, None]:
        with short_traceback:
            require_event_loop()
        ends = deadline(self._options.get("timeout"))  # for the repairs too
        while True:
            self._stream = GenerationStream(self._loop, self._options, ends)
            partial = PartialJson()
            shown: Json | NoValue = NO_VALUE
            grown, read = 0, 0
            async for event in self._stream:
                if not isinstance(event, TextDelta):
                    continue
                partial.feed(event.text)
                grown += len(event.text)
                if grown - read < read // 50:
                    continue  # decoding everything for every delta would take quadratic time
                read = grown
                value = self._target.unwrap(partial.value())
                if value is not NO_VALUE and value != shown:
                    shown = value
                    yield value
            generation = self._stream.generation
            if generation is None:
                raise AssertionError("a stream ends with finish or raises")
            if self._target.accept(generation.response):
                typed: Generation = generation
                self.generation = replace(typed, _output=self._target.value)
                last = self._target.unwrap(partial.value())
                if last is not NO_VALUE and last != shown:
                    yield last
                return
            self._loop.add_user_message(self._target.repair_prompt)
