"""Typed values from a model: requested, checked, repaired or refused."""

from __future__ import annotations

import dataclasses
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from corral import errors, models
from corral.testing import ModelServer, Turn, say

MODEL = "gemini:gemini-2.5-flash"


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Table(TypedDict):
    x: int
    y: int


class Struct(msgspec.Struct):
    x: int
    y: int


class Model(pydantic.BaseModel):
    x: int
    y: int


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x", "y"],
}


def client(server: ModelServer) -> models.Client:
    return models.Client(keys={"gemini": "k"}, base_urls={"gemini": server.url}, environ={})


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (Point, Point(1, 2)),
        (Table, {"x": 1, "y": 2}),
        (Struct, Struct(1, 2)),
        (Model, Model(x=1, y=2)),
        (SCHEMA, {"x": 1, "y": 2}),
    ],
)
async def test_a_value_of_any_kind_of_schema(schema: Any, value: object) -> None:
    async with ModelServer([say('{"x": 1, ', '"y": 2}')] * 2) as server, client(server) as made:
        assert (await models.generate_object(MODEL, schema, "go", client=made)).output == value
        stream = models.stream_object(MODEL, schema, "go", client=made)
        assert [partial async for partial in stream][-1] == {"x": 1, "y": 2}
        assert stream.output == value
        config: Any = server.requests[0].body["generationConfig"]
    assert config["responseMimeType"] == "application/json"
    assert config["responseSchema"]["properties"]["x"]["type"] == "INTEGER"


async def test_a_list_is_requested_inside_an_object_and_returned_without_it() -> None:
    script = [say('{"value": [1, 2]}'), say('{"value": [1, ', "2, ", "3]}")]
    async with ModelServer(script) as server, client(server) as made:
        assert (await models.generate_object(MODEL, list[int], "go", client=made)).output == [1, 2]
        stream = models.stream_object(MODEL, list[int], "go", client=made)
        assert [partial async for partial in stream] == [[1], [1, 2], [1, 2, 3]]
        assert stream.output == [1, 2, 3]


async def test_an_answer_that_does_not_fit_is_repaired_in_the_same_conversation() -> None:
    async with ModelServer([say('{"x": 1}'), say('{"x": 1, "y": 2}')]) as server:
        async with client(server) as made:
            answer = await models.generate_object(MODEL, Point, "go", client=made)
        assert answer.output == Point(1, 2)
        assert len(answer.steps) == 2
        assert "y" in server.requests[1].last_text


@pytest.mark.parametrize("streamed", [False, True])
async def test_after_the_last_repair_the_error_contains_the_text(streamed: bool) -> None:
    async with ModelServer([say("no"), say("still no")]) as server, client(server) as made:
        with pytest.raises(errors.NoObject) as caught:
            if streamed:
                await models.stream_object(MODEL, Point, "go", client=made, repairs=1).collect()
            else:
                await models.generate_object(MODEL, Point, "go", client=made, repairs=1)
        assert len(server.requests) == 2
    assert "does not fit Point:\n- there is no JSON" in caught.value.message
    assert caught.value.frame == "still no"
    assert caught.value.provider == "gemini"


async def test_a_filtered_answer_is_not_repaired() -> None:
    script = [Turn(text="{", finish="SAFETY"), say("never")]
    async with ModelServer(script) as server, client(server) as made:
        with pytest.raises(errors.NoObject, match="filtered"):
            await models.generate_object(MODEL, Point, "go", client=made)
        assert len(server.requests) == 1


async def test_partials_grow() -> None:
    script = [say('{"x": ', "1, ", '"y": 2', "}")]
    async with ModelServer(script) as server, client(server) as made:
        partials = [p async for p in models.stream_object(MODEL, Point, "go", client=made)]
    assert partials == [{}, {"x": 1}, {"x": 1, "y": 2}]
