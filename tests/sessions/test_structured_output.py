"""Typed output: found in the answer, checked, repaired, or an error."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral import errors
from corral._protocol.schema import Schema, schema_not_met, schema_of
from corral._sessions.structured_output import (
    SubmitTool,
    TypedAnswer,
    answer_schema,
    fenced_blocks,
    find,
    instructions,
    repair_prompt,
    run_typed,
)
from corral._sessions.tools.tools import Tools
from corral.events import Error
from corral.result import Answer, Result
from corral.values import Cost, DeniedCall, FileChanged, Json, Usage


@dataclasses.dataclass
class Report:
    title: str
    score: int


def extract(text: str, schema: Schema[Any]) -> Any:
    found = find(text, schema)
    if found.complaints:
        raise schema_not_met(schema.name, found.complaints, text)
    return found.value


REPORT = schema_of(Report)
GOOD = '{"title": "a", "score": 3}'
EXPECTED = Report("a", 3)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"  \n{GOOD}\n",
        f"Here it is:\n```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```\nThat is all.",
        f"~~~~json\n{GOOD}\n~~~~",
        f'First try:\n```json\n{{"title": "old", "score": 1}}\n```\nBetter:\n```json\n{GOOD}\n```',
        f"The answer is {GOOD}, I think.",
        f"I used {{braces}} and [lists], then {GOOD}.",
        f"```json\n{GOOD}",
        f'{{"output": {GOOD}}}',
        f'{{"result": {GOOD}}}',
        json.dumps(GOOD),
        json.dumps({"output": GOOD}),
        json.dumps({"result": {"output": json.dumps(GOOD)}}),
        f"\ufeff{GOOD}",
    ],
)
def test_the_value_is_found_anywhere_in_the_answer(text: str) -> None:
    assert extract(text, REPORT) == EXPECTED


def test_a_real_line_break_in_a_string_is_accepted() -> None:
    assert extract('{"title": "a\nb", "score": 1}', REPORT) == Report("a\nb", 1)


def test_a_field_called_output_is_not_unwrapped_where_it_is_asked_for() -> None:
    schema = schema_of({"type": "object", "required": ["output"]})
    assert extract('{"output": 1}', schema) == {"output": 1}


def test_a_bare_word_is_a_string_where_one_is_asked_for() -> None:
    assert extract(" yes \n", schema_of(Literal["yes", "no"])) == "yes"
    assert extract('"yes"', schema_of(Literal["yes", "no"])) == "yes"
    with pytest.raises(errors.SchemaNotMet):
        extract("perhaps", schema_of(Literal["yes", "no"]))


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("", "there is no JSON"),
        ("I could not do it.", "there is no JSON"),
        ('{"title": "a"}', "score: is required"),
        ('```json\n{"title": "a", "score": "x"}\n```', "score: expected an integer"),
        ("null", "expected an object, got null"),
        ('{"title": "a", "score": NaN}', "there is no JSON"),
        ('{"title": "a", "score": 1', "there is no JSON"),
    ],
)
def test_no_value_is_an_error_that_carries_the_text(text: str, expected_text: str) -> None:
    with pytest.raises(errors.SchemaNotMet, match=expected_text) as info:
        extract(text, REPORT)
    assert info.value.frame == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
    max_leaves=10,
)
PROSE = st.text(st.characters(exclude_characters="`~{}[]", exclude_categories=["Cs"]))


@pytest.mark.deep
@given(st.dictionaries(st.text(), JSON, min_size=1) | st.lists(JSON, min_size=1), PROSE, PROSE)
def test_any_object_or_list_is_found_in_any_prose(value: Any, before: str, after: str) -> None:
    schema = schema_of({"type": ["object", "array"]})
    bare = json.dumps(value)
    pretty = json.dumps(value, indent=1, ensure_ascii=False)
    assert extract(bare, schema) == value
    assert extract(f"{before}\n```json\n{pretty}\n```\n{after}", schema) == value
    assert extract(f"{before}\n{pretty}\n{after}", schema) == value


@given(st.text() | st.text('{}[]",:`\n1a'))
def test_any_text_is_accepted(text: str) -> None:
    value, _, complaints = find(text, REPORT)
    assert bool(complaints) != isinstance(value, Report)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, "[1," * 100_000, '{"a":' * 100_000, "```\n" * 50_000]
)
def test_hostile_text_costs_little(text: str) -> None:
    begin = time.monotonic()
    with pytest.raises(errors.SchemaNotMet):
        extract(text, REPORT)
    assert time.monotonic() - begin < 30


def test_a_block_ends_at_the_first_line_with_its_marks_only() -> None:
    assert fenced_blocks("```\n1\n````\n```x\n``` \t\n2") == ["1\n````\n```x"]
    assert fenced_blocks("~~~\n1\n```\n2\n~~~") == ["1\n```\n2"]
    assert fenced_blocks("```\n~~~json\n{}\n~~~") == ["{}"]
    assert fenced_blocks("```") == []


def test_the_instructions_contain_the_schema_and_the_repair_prompt_the_complaints() -> None:
    assert '"score"' in instructions(REPORT)
    assert "```json" in instructions(REPORT)
    expected_text = repair_prompt(("score: is required and missing",))
    assert "- score: is required and missing" in expected_text


def test_a_schema_that_allows_null_is_refused() -> None:
    for of in (int | None, Any, {"type": ["string", "null"]}):
        with pytest.raises(errors.SchemaInvalid, match="null"):
            answer_schema(of)


class Agent:
    """A session that returns the given texts, one per turn."""

    def __init__(self, *turns: str | Result) -> None:
        self.turns = list(turns)
        self.prompts: list[str] = []
        self.json: Json = None

    async def ask(self, of: object, repairs: int = 2) -> Result:
        typed = TypedAnswer(of, repairs=repairs)

        async def run(prompt: str) -> Result:
            self.prompts.append(prompt)
            turn = self.turns.pop(0)
            if isinstance(turn, str):
                usage = Usage(input=1, output=2)
                turn = Result(status="success", text=turn, final_text=turn, usage=usage)
            if not turn.ok:
                return turn
            self.json, error = typed.read(Answer(turn.text, turn.final_text))
            if error is None:
                return turn
            return msgspec.structs.replace(turn, status=error.status, error=error.event())

        return await run_typed(run, "Review", typed)


async def test_a_good_answer_needs_one_turn() -> None:
    agent = Agent(GOOD)
    result = await agent.ask(Report)
    assert result.output == EXPECTED
    assert len(agent.prompts) == 1
    assert agent.prompts[0].startswith("Review\n\n")
    assert '"score"' in agent.prompts[0]


async def test_a_bad_answer_is_repaired_in_the_same_session() -> None:
    agent = Agent("Done!", '{"title": "a"}', GOOD)
    result = await agent.ask(Report)
    assert result.output == EXPECTED
    assert "there is no JSON" in agent.prompts[1]
    assert "score: is required and missing" in agent.prompts[2]
    assert result.usage.input == 3


async def test_after_the_last_repair_the_error_has_the_raw_text() -> None:
    agent = Agent("one", "two", "three", "never asked")
    result = await agent.ask(Report)
    with pytest.raises(errors.SchemaNotMet) as info:
        assert result.output
    assert info.value.frame == "three"
    assert info.value.result.text == "three"
    assert info.value.cli_exit == 9
    assert agent.turns == ["never asked"]


async def test_no_repairs_are_possible() -> None:
    agent = Agent("one", GOOD)
    with pytest.raises(errors.SchemaNotMet):
        (await agent.ask(Report, repairs=0)).raise_for_status()
    assert len(agent.prompts) == 1


async def test_a_turn_that_failed_is_its_own_error() -> None:
    failed = Result(
        status="timeout", text=GOOD, final_text=GOOD, error=Error(code="timeout", message="late")
    )
    result = await Agent(failed).ask(Report)
    with pytest.raises(errors.TimedOut, match="late"):
        assert result.output


async def test_an_invalid_schema_starts_nothing() -> None:
    agent = Agent(GOOD)
    with pytest.raises(errors.SchemaInvalid):
        await agent.ask({"type": "strin"})
    assert agent.prompts == []


async def test_what_earlier_turns_did_stays_in_the_result() -> None:
    first = Result(
        status="success",
        final_text="done",
        text="done",
        files=(FileChanged("/a", "created"),),
        denied=(DeniedCall("shell"),),
        cost=Cost(1.0, "reported"),
        duration=2.0,
    )
    second = Result(
        status="success",
        final_text=GOOD,
        text=GOOD,
        files=(FileChanged("/b", "modified"),),
        files_complete=False,
        cost=Cost(0.5, "reported"),
        duration=1.0,
    )
    result = await Agent(first, second).ask(Report)
    assert [file.path for file in result.files] == ["/a", "/b"]
    assert not result.files_complete
    assert [refusal.name for refusal in result.denied] == ["shell"]
    assert result.cost == Cost(1.5, "reported")
    assert result.duration == 3.0


async def test_a_value_in_an_earlier_message_is_found() -> None:
    expected_text = Result(status="success", text=f"{GOOD}\n\nAll done.", final_text="All done.")
    assert (await Agent(expected_text).ask(Report)).output == EXPECTED


@pytest.mark.parametrize(
    ("of", "bad", "good", "expected"),
    [
        (Report, {"title": "a"}, {"title": "a", "score": 3}, EXPECTED),
        (Report, {"output": {}}, {"output": {"title": "a", "score": 3}}, EXPECTED),
        (list[int], {"value": ["x"]}, {"value": [1]}, [1]),
        (Literal["yes", "no"], {"value": "maybe"}, {"value": "yes"}, "yes"),
    ],
    ids=str,
)
async def test_the_submit_tool_refuses_what_does_not_fit_and_keeps_what_does(
    of: object, bad: Json, good: Json, expected: object
) -> None:
    submission = SubmitTool(schema_of(of))
    tools = Tools([submission.tool])
    assert submission.tool.parameters.json["type"] == "object"
    refused = await tools.call("submit_result", bad)
    assert refused.status == "error"
    assert "- " in refused.text
    assert submission.found is None
    assert (await tools.call("submit_result", good)).ok
    assert submission.found
    assert submission.found.value == expected


async def test_a_submitted_value_takes_precedence_over_the_text() -> None:
    submission = SubmitTool(schema_of(Report))
    tools = Tools([submission.tool])
    typed = TypedAnswer(Report, submission=submission)

    async def run(prompt: str) -> Result:
        assert "submit_result" in prompt
        await tools.call("submit_result", {"title": "a", "score": 3})
        assert typed.read(Answer("Submitted.", "Submitted.")) == ({"title": "a", "score": 3}, None)
        return Result(status="success", text="Submitted.", final_text="Submitted.")

    result = await run_typed(run, "Review", typed)
    assert result.output == EXPECTED
