"""Typed output of run, session, pool and batch: every kind of type, with the built-in agent."""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field
from support.batches import MODEL
from support.real_agents import KEY

import corral
from corral import errors, events
from corral.result import result_from_events
from corral.run_kwargs import RunKwargs
from corral.testing import ModelServer, Request, Turn, call, say


class Model(BaseModel):
    title: str
    score: int = Field(le=10)


@dataclass
class Data:
    title: str
    score: int


class Table(TypedDict):
    title: str
    score: int


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "score": {"type": "integer"}},
    "required": ["title", "score"],
}
GOOD = {"title": "a", "score": 3}
BAD = {"title": "a", "score": "many"}

INVALID: Any = {"type": "strin"}
KINDS: dict[str, tuple[Any, object, object]] = {
    "pydantic": (Model, GOOD, Model(title="a", score=3)),
    "dataclass": (Data, GOOD, Data("a", 3)),
    "TypedDict": (Table, GOOD, GOOD),
    "list of models": (list[Model], [GOOD, GOOD], [Model(title="a", score=3)] * 2),
    "list of dataclasses": (list[Data], [GOOD], [Data("a", 3)]),
    "Literal": (Literal["yes", "no"], "yes", "yes"),
    "enum": (Color, "blue", Color.BLUE),
    "JSON Schema": (SCHEMA, GOOD, GOOD),
    "schema_of": (corral.schema_of(SCHEMA), GOOD, GOOD),
}
"""Name → what is given as ``output``, the model's JSON, and the value."""
EACH = pytest.mark.parametrize("kind", KINDS)


class Answers:
    """A model that gives these answers, and the options of a run with it."""

    def __init__(self, server: ModelServer, workspace: Path) -> None:
        self.answers: list[object] = []
        self.requests: list[Request] = []
        name = re.sub(r"\W+", "-", str(workspace.parent.name))
        lane = server.lane(f"typed-{name}", self._answer)
        env = {"GOOGLE_GEMINI_BASE_URL": lane.url, "GEMINI_API_KEY": KEY}
        self.options: RunKwargs = {"model": MODEL, "cwd": workspace, "env": env, "retries": 0}

    def _answer(self, request: Request) -> Turn:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Turn):
            return answer
        return say(f"Here:\n```json\n{json.dumps(answer)}\n```")


@pytest.fixture
def model(model_server: ModelServer, workspace: Path) -> Answers:
    return Answers(model_server, workspace)


@EACH
async def test_run_returns_a_value_of_the_type(model: Answers, kind: str) -> None:
    output, answer, value = KINDS[kind]
    model.answers = ["neither this", answer]
    result = await corral.run(prompt="go", output=output, check=True, **model.options)
    assert result.output == value
    assert type(result.output) is type(value)
    assert "does not fit" in model.requests[1].last_text


@EACH
async def test_a_prompt_of_a_session_returns_a_value_of_the_type(model: Answers, kind: str) -> None:
    output, answer, value = KINDS[kind]
    model.answers = ["neither this", answer]
    async with corral.session(**model.options) as session:
        result = await session.run("go", output=output)
    assert result.output == value
    assert type(result.output) is type(value)
    assert "does not fit" in model.requests[1].last_text


@EACH
async def test_the_tasks_of_a_batch_return_values_of_the_type(model: Answers, kind: str) -> None:
    output, answer, value = KINDS[kind]
    model.answers = [answer]
    report = await corral.batch(["a", "b"], output=output, durable=False, **model.options)
    assert [each.output for each in report.results] == [value, value]
    assert {type(each.output) for each in report.results} == {type(value)}


async def test_a_session_returns_text_and_values_in_turn(model: Answers) -> None:
    async with corral.session(**model.options) as session:
        model.answers = ["hello"]
        first = await session.run("say hello")
        assert (first.output, "hello" in first.text) == (None, True)
        model.answers = [GOOD]
        assert (await session.run("go", output=Data)).output == Data("a", 3)
        assert (await session.run(corral.Prompt("go", output=Data))).output == Data("a", 3)


async def test_a_session_returns_the_error_of_a_value_that_never_fits(model: Answers) -> None:
    model.answers = [BAD]
    async with corral.session(**model.options) as session:
        result = await session.run("go", output=Data, repairs=1)
        assert len(model.requests) == 2
        assert (result.ok, result.error and result.error.code) == (False, "schema_not_met")
        with pytest.raises(errors.SchemaNotMet, match="score: expected an integer"):
            assert result.output
        with pytest.raises(errors.SchemaNotMet):
            await session.run("go", output=Data, repairs=0, check=True)


async def test_an_invalid_type_costs_nothing(model: Answers) -> None:
    async with corral.session(**model.options) as session:
        with pytest.raises(errors.SchemaInvalid):
            await session.run("go", output=INVALID)
        with pytest.raises(errors.ConfigError, match="repairs"):
            await session.run("go", output=Data, repairs=-1)
    assert model.requests == []


async def test_the_last_event_of_a_stream_has_text_and_output(model: Answers) -> None:
    model.answers = [GOOD]
    async with corral.session(**model.options) as session:
        seen = [event async for event in session.prompt("go", output=Model)]
    done = seen[-1]
    assert isinstance(done, events.Done)
    assert (done.output, "```json" in done.text) == (GOOD, True)
    assert result_from_events(seen).output == GOOD
    assert result_from_events([done]).text == done.text


async def test_a_stream_with_a_value_that_does_not_fit_ends_with_the_error(
    model: Answers,
) -> None:
    model.answers = [BAD]
    async with corral.session(**model.options) as session:
        turn = session.prompt("go", output=Model)
        seen = [event async for event in turn]
        done = seen[-1]
        assert isinstance(done, events.Done)
        assert done.error is not None
        assert (done.status, done.error.code, done.output) == ("error", "schema_not_met", None)


async def test_each_turn_of_a_repaired_run_ends_and_only_the_last_has_the_output(
    model: Answers,
) -> None:
    model.answers = [BAD, GOOD]
    seen: list[events.Event] = []
    await corral.run(prompt="go", output=Data, on_event=seen.append, **model.options)
    ends = [event for event in seen if isinstance(event, events.Done)]
    assert [end.output for end in ends] == [None, GOOD]
    assert seen[-1] is ends[-1]


def helper() -> str:
    """Helps."""
    return "so"


async def test_a_session_with_tools_returns_values_too(model: Answers) -> None:
    model.answers = [call("helper"), BAD, GOOD]
    async with corral.session(tools=[helper], **model.options) as session:
        assert (await session.run("go", output=Data)).output == Data("a", 3)
    assert len(model.requests) == 3


async def test_a_prompt_file_is_sent_once_and_then_the_correction(
    model: Answers, workspace: Path
) -> None:
    (workspace / "prompt.md").write_text("Rate this project")
    model.answers = [BAD, GOOD]
    options: RunKwargs = {**model.options, "prompt_file": "prompt.md"}
    result = await corral.run(output=Data, **options)
    assert result.output == Data("a", 3)
    first, second = (request.last_text for request in model.requests)
    assert first.startswith("Rate this project")
    assert "does not fit" in second
    assert "Rate this project" not in second


async def test_a_secret_in_a_submitted_value_is_redacted_in_the_last_event(
    model: Answers,
) -> None:
    model.answers = [call("submit_result", title=KEY, score=3), say("done")]
    seen: list[events.Event] = []
    result = await corral.run(
        prompt="go", output=Data, tools=[helper], on_event=seen.append, **model.options
    )
    done = seen[-1]
    assert isinstance(done, events.Done)
    assert isinstance(done.output, dict)
    assert (done.output["score"], KEY in str(done.output)) == (3, False)
    assert result.output == Data(KEY, 3)


async def test_the_text_of_a_long_answer_is_cut_in_the_last_event_only_if_it_is_not_collected(
    model: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral._sessions.turn.MAX_TEXT", 10)
    model.answers = [say("12345", "67890", "more")]
    async with corral.session(**model.options) as session:
        *_, done = [event async for event in session.prompt("go")]
        assert isinstance(done, events.Done)
        assert (done.text, done.text_complete) == ("1234567890", False)
        collected: list[events.Event] = []
        result = await session.prompt("go").collect(collected.append)
        last = collected[-1]
        assert isinstance(last, events.Done)
        assert (last.text, last.text_complete) == (result.text, True)
        assert result.text == "1234567890more"
