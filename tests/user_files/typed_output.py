"""Code as a user writes it: type checkers know the type of every output. It is checked, never run.

``assert_type`` fails the check if the type is another. The comment after ``reveal_type`` is the
type that an editor shows.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, assert_type, reveal_type

from pydantic import BaseModel

import corral
from corral import models, pipelines
from corral.values import Json


class Model(BaseModel):
    title: str


@dataclass
class Review:
    summary: str
    problems: list[str]


class Row(TypedDict):
    name: str
    count: int


class Severity(enum.Enum):
    LOW = "low"
    HIGH = "high"


SCHEMA = corral.schema_of({"type": "object"})


def run_sync() -> None:
    reveal_type(corral.run_sync("gemini", "Hello"))  # Result[None]
    reveal_type(corral.run_sync("gemini", "Review", output=Review))  # Result[Review]
    reveal_type(corral.run_sync("gemini", "Review", output=Review).output.problems)  # list[str]
    assert_type(corral.run_sync("gemini", "Hello").output, None)
    assert_type(corral.run_sync("gemini", "Go", output=Review, check=True).output, Review)
    assert_type(corral.run_sync("gemini", "Go", output=Model, timeout="5m").output, Model)
    assert_type(corral.run_sync("gemini", "Go", output=Row).output, Row)
    assert_type(corral.run_sync("gemini", "Go", output=list[Model]).output, list[Model])
    assert_type(corral.run_sync("gemini", "Go", output=Severity).output, Severity)
    assert_type(corral.run_sync("gemini", "Go", output=SCHEMA).output, Json)
    # Type checkers do not accept a special form as type[T]: the value of its schema is Any.
    result = corral.run_sync("gemini", "Go", output=corral.schema_of(Literal["yes", "no"]))
    verdict: Literal["yes", "no"] = result.output
    print(verdict)


async def run() -> None:
    reveal_type(await corral.run("gemini", "Review", output=list[Review]))  # Result[list[Review]]
    assert_type(await corral.run("gemini", "Hello"), corral.Result[None])
    assert_type(await corral.run("gemini", "Go", output=Review), corral.Result[Review])
    assert_type((await corral.run("gemini", "Go", output=Row)).raise_for_status().output, Row)


def prompt() -> None:
    review = corral.Prompt("Review {file}", parameters={"file": str}, output=Review)
    reveal_type(review)  # Prompt[Review]
    assert_type(review.with_(file="a.py"), corral.Prompt[Review])
    assert_type(corral.run_sync("gemini", review.with_(file="a.py")).output, Review)
    hello = corral.Prompt("Hello")
    reveal_type(hello)  # Prompt[None]
    assert_type(corral.run_sync("gemini", hello).output, None)
    assert_type(corral.run_sync("gemini", hello, output=Review).output, Review)


async def session() -> None:
    async with corral.session("gemini") as opened:
        reveal_type(await opened.run("Review", output=Review))  # Result[Review]
        reveal_type(opened.prompt("Review", output=Review))  # Turn[Review]
        assert_type(await opened.run("Hello"), corral.Result[None])
        assert_type((await opened.run("Go", output=list[Row], check=True)).output, list[Row])
        assert_type((await opened.run("Go", output=SCHEMA, timeout=60)).output, Json)
        assert_type((await opened.prompt("Go", output=Model).collect()).output, Model)
        assert_type(await opened.prompt("Hello").collect(), corral.Result[None])


async def pool() -> None:
    async with corral.pool("gemini") as opened:
        reveal_type(await opened.run("Review", output=Review))  # Result[Review]
        assert_type(await opened.run("Hello", cwd="."), corral.Result[None])
        assert_type((await opened.run("Go", output=Model, check=True)).output, Model)
        assert_type((await opened.run("Go", output=SCHEMA)).output, Json)


async def batch() -> None:
    def show(result: corral.BatchResult[Review], report: corral.BatchReport[Review]) -> None:
        print(result.output.summary, report.succeeded)

    reveal_type(corral.batch(["a"], "Review {{task}}", output=Review))  # Batch[Review]
    reveal_type(corral.batch_sync(["a"], output=Review))  # BatchReport[Review]
    report = await corral.batch(["a"], output=Review, on_result=show, durable=False)
    assert_type(report.results[0].output, Review)
    async with corral.batch(["a"], output=list[Row]) as running:
        async for result in running:
            assert_type(result.output, list[Row])
    assert_type(corral.batch_sync(["a"]).results[0].output, None)
    assert_type(corral.batch_sync(["a"], output=SCHEMA, agent="gemini").results[0].output, Json)


async def model_calls() -> None:
    name = "gemini:gemini-2.5-flash"
    reveal_type(await models.generate_object(name, Review, "Review"))  # Generation[Review]
    reveal_type(models.generate_object_sync(name, Review, "Review"))  # Generation[Review]
    assert_type((await models.generate(name, "Hello")).output, None)
    assert_type((await models.generate_object(name, list[Row], "Go")).output, list[Row])
    assert_type((await models.generate_object(name, SCHEMA, "Go")).output, Json)
    stream = models.stream_object(name, Model, "Go")
    reveal_type(stream)  # ObjectStream[Model]
    assert_type((await stream.collect()).output, Model)


def pipeline_values() -> None:
    result = pipelines.run_sync("review.dot")
    reveal_type(result.value("review.output", Review))  # Review
    assert_type(result.value("review.output"), Json)
    assert_type(result.value("review.output", list[Row]), list[Row])
    assert_type(result.value("review.output", SCHEMA), Json)


def annotated(result: corral.Result, typed: corral.Result[Review]) -> None:
    assert_type(result.output, Any)
    assert_type(typed.output, Review)
    annotated(typed, corral.run_sync("gemini", "Go", output=Review))


def sessions_of_code_that_is_not_async() -> None:
    with corral.session_sync("gemini-cli", policy="edits") as session:
        reveal_type(session.run("Review", output=Review))  # Result[Review]
        assert_type(session.run("Go").output, None)
        for event in session.prompt("Go"):
            assert_type(event, corral.Event)


def events(event: corral.Event, piece: models.StreamEvent) -> None:
    if event.type == "text":
        assert_type(event, corral.events.Text)
    elif event.type == "done":
        assert_type(event, corral.events.Done)
    if piece.type == "text_delta":
        assert_type(piece, models.TextDelta)
