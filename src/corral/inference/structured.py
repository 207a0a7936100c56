"""Typed values from a model: asked for by its own means, checked, repaired, or refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Unpack, cast

from msgspec.structs import replace

from corral.errors import ConfigError, NoObject
from corral.events import Json
from corral.inference.api import GenerationStream, Rounds, deadline, limit
from corral.inference.client import default_client
from corral.inference.request import PromptInput, RequestOptions
from corral.inference.results import Generation
from corral.model_types import Response, ResponseFormat, TextDelta
from corral.protocol.partial_json import NO_VALUE, PartialJson
from corral.protocol.schema.build import Schema
from corral.sessions.structured_output import REPAIRS, answer_schema, find, repair_prompt
from corral.slug import slug


async def generate_object(
    model: str,
    schema: object,
    prompt: PromptInput = None,
    *,
    repairs: int = REPAIRS,
    **options: Unpack[RequestOptions],
) -> Generation:
    """As ``generate``, with ``object``: a value of ``schema``, a type or a JSON Schema. What does
    not fit is repaired in the same conversation at most ``repairs`` times; then ``NoObject`` is
    raised, with the last text as ``frame``."""
    aim = Aim(schema, repairs)
    rounds = Rounds(model, prompt, aim.with_request(options))
    client = options.get("client") or await default_client()
    client.check(model)
    async with limit(options.get("timeout"), "timeout"):
        while True:
            whole = await rounds.play(client, options)
            if aim.met(whole.response):
                return replace(whole, object=aim.value)
            rounds.say(aim.complaint)


class Aim:
    """The value that is wanted, and how far it is."""

    def __init__(self, schema: object, repairs: int) -> None:
        if repairs < 0:
            raise ConfigError(f"repairs cannot be negative: {repairs}")
        self._schema: Schema[Any] = answer_schema(schema)
        self._wrapped = self._schema.json.get("type") != "object"
        self._left = repairs
        self._complaints: tuple[str, ...] = ()
        self.value: Any = None

    def with_request(self, options: RequestOptions) -> RequestOptions:
        """The options, with the schema in the form that every vendor takes: of an object."""
        if options.get("response_format") is not None:
            raise ConfigError("response_format and a schema both given")
        json: dict[str, Json] = self._schema.json
        if self._wrapped:
            shared = {k: held for k, held in json.items() if k in ("$defs", "definitions")}
            inner: dict[str, Json] = {k: held for k, held in json.items() if k not in shared}
            properties: dict[str, Json] = {"value": inner}
            json = {"type": "object", "properties": properties, "required": ["value"], **shared}
        name = slug(self._schema.name, limit=48, allowed="_", fill="_", default="result")
        form = ResponseFormat("json_schema", json, name)
        return cast("RequestOptions", {**options, "response_format": form})

    def shown(self, value: Json | object) -> Json | object:
        """A value under way, without the object that was put around it; ``NOTHING`` before it."""
        if self._wrapped and isinstance(value, dict):
            return cast("dict[str, Json]", value).get("value", NO_VALUE)
        return value

    def met(self, response: Response) -> bool:
        """Whether the answer holds the value. Raises ``NoObject`` where no repair is left."""
        self.value, self._complaints = find(response.text, self._schema)
        if not self._complaints:
            return True
        if self._left and response.finish_reason.reason != "content_filter":
            self._left -= 1
            return False
        cut = {"length": "was cut short", "content_filter": "was filtered"}
        how = cut.get(response.finish_reason.reason, "does not fit")
        listed = "".join(f"\n- {complaint}" for complaint in self._complaints)
        raise NoObject(
            f"the answer of {response.model} {how}: no {self._schema.name}:{listed}",
            hint="Give more max_tokens." if how == "was cut short" else None,
            frame=response.text,
            provider=response.provider,
        )

    @property
    def complaint(self) -> str:
        return repair_prompt(self._complaints)


def stream_object(
    model: str,
    schema: object,
    prompt: PromptInput = None,
    *,
    repairs: int = REPAIRS,
    **options: Unpack[RequestOptions],
) -> ObjectStream:
    """Growing values: ``async for partial in stream_object(…)``; after the last,
    ``stream.object`` is the typed one."""
    aim = Aim(schema, repairs)
    return ObjectStream(Rounds(model, prompt, aim.with_request(options)), aim, options)


class ObjectStream:
    """Each value is JSON as far as it was written; it only grows, until a repair begins anew."""

    def __init__(self, rounds: Rounds, aim: Aim, options: RequestOptions) -> None:
        self._rounds = rounds
        self._aim = aim
        self._options = options
        self._stream: GenerationStream | None = None
        self.object: Any = None
        self.generation: Generation | None = None

    def __aiter__(self) -> AsyncGenerator[Json, None]:
        return self._values()

    async def __aenter__(self) -> ObjectStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    async def collect(self) -> Generation:
        """Read to the end."""
        async for _ in self:
            pass
        if self.generation is None:
            raise AssertionError("a stream of values ends with one or raises")
        return self.generation

    async def _values(self) -> AsyncGenerator[Json, None]:
        ends = deadline(self._options.get("timeout"))  # for the repairs too
        while True:
            self._stream = GenerationStream(self._rounds, self._options, ends)
            written = PartialJson()
            shown: Any = NO_VALUE
            grown, read = 0, 0
            async for event in self._stream:
                if not isinstance(event, TextDelta):
                    continue
                written.feed(event.text)
                grown += len(event.text)
                if grown - read < read // 50:
                    continue  # reading it all for every word would cost its square
                read = grown
                value = self._aim.shown(written.value())
                if value is not NO_VALUE and value != shown:
                    shown = value
                    yield cast("Json", value)
            whole = self._stream.generation
            if whole is None:
                raise AssertionError("a stream ends with finish or raises")
            if self._aim.met(whole.response):
                self.object = self._aim.value
                self.generation = replace(whole, object=self.object)
                last = self._aim.shown(written.value())
                if last is not NO_VALUE and last != shown:
                    yield cast("Json", last)
                return
            self._rounds.say(self._aim.complaint)
