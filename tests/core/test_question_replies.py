"""Answers to the questions of an agent, checked against the question."""

from __future__ import annotations

import pytest

from corral._core.question_replies import (
    NO_PERSON,
    QuestionReply,
    read_reply,
    read_text,
    shown_answers,
    summary,
)
from corral.errors import ConfigError
from corral.events import AgentQuestion, QuestionAnswer, QuestionField, QuestionOption
from corral.values import AskedQuestion, Json

COLORS = (QuestionOption("Red"), QuestionOption("Green", "like grass"), QuestionOption("green-2"))
COLOR = QuestionField("color", "Which color?", options=COLORS)
SEVERAL = QuestionField("all", "Which of them?", options=COLORS, multiple=True, free_text=True)
COATS = QuestionField("coats", "How many?", type="integer", required=False, default=2)
DRY = QuestionField("dry", "Dry first?", type="boolean")
NAME = QuestionField("name", "Whose wall?")
PASSWORD = QuestionField("password", "The password?", secret=True)


def asked(*fields: QuestionField, title: str = "") -> AgentQuestion:
    return AgentQuestion("1", title=title, fields=fields)


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        (COLOR, "Red", "Red"),
        (COLOR, " red ", "Red"),
        (COLOR, "2", "Green"),
        (SEVERAL, "1,3", ["Red", "green-2"]),
        (SEVERAL, "blue, but not too dark", ["blue, but not too dark"]),
        (SEVERAL, "Red", ["Red"]),
        (COATS, "3", 3),
        (COATS, "", 2),
        (DRY, "yes", True),
        (DRY, "N", False),
        (NAME, "mine", "mine"),
    ],
)
def test_a_text_answers_a_question_with_one_field(
    field: QuestionField, text: str, value: Json
) -> None:
    assert read_text(asked(field), text) == {field.key: value}


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        (COLOR, "blue", "'blue' is not one of: Red, Green, green-2"),
        (COLOR, "4", "is not one of"),
        (COLOR, "", "an answer is needed"),
        (COATS, "2.5", "number"),
        (COATS, "many", "answer with a number"),
        (DRY, "perhaps", "answer with yes or no"),
    ],
)
def test_a_text_that_does_not_fit_is_an_error(
    field: QuestionField, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_text(asked(field), text)


def test_several_fields_are_answered_by_lines_or_by_json() -> None:
    question = asked(COLOR, COATS, DRY)
    expected = {"color": "Green", "coats": 5, "dry": True}
    assert read_text(question, "2\n5\nyes") == expected
    assert read_text(question, '{"color": "Green", "coats": 5, "dry": true}') == expected
    assert read_text(question, '{"color": "Green", "dry": true}') == {**expected, "coats": 2}
    with pytest.raises(ConfigError, match="has 3 fields, and the answer has 1"):
        read_text(question, "2")
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_text(question, "{color}")
    with pytest.raises(ConfigError, match="no field 'colour'"):
        read_text(question, '{"colour": "Red"}')


def test_a_function_returns_a_text_or_a_mapping_or_none() -> None:
    assert read_reply(asked(COLOR), "green") == QuestionReply("answered", {"color": "Green"})
    assert read_reply(asked(COLOR), {"color": "Red"}).answers == {"color": "Red"}
    assert read_reply(asked(SEVERAL), {"all": ["Red", "own"]}).answers == {"all": ["Red", "own"]}
    assert read_reply(asked(COLOR), None).outcome == "declined"
    with pytest.raises(ConfigError, match="answered with a int"):
        read_reply(asked(COLOR), 3)
    with pytest.raises(ConfigError, match="answer with one option"):
        read_reply(asked(COLOR), {"color": ["Red", "Green"]})


def test_permission_decisions_are_not_answers() -> None:
    assert read_reply(asked(NAME), "deny").outcome == "declined"
    assert read_reply(asked(NAME), "cancel").outcome == "cancelled"
    with pytest.raises(ConfigError, match="answers a permission request"):
        read_reply(asked(NAME), "allow_once")
    options = (QuestionOption("deny"), QuestionOption("cancel"))
    choice = asked(QuestionField("x", "What then?", options=options))
    assert read_reply(choice, "deny").answers == {"x": "deny"}
    assert read_reply(choice, "cancel").answers == {"x": "cancel"}
    assert read_reply(asked(NAME), {"name": "cancel"}).answers == {"name": "cancel"}


def test_a_question_without_fields_is_confirmed_or_declined() -> None:
    assert read_reply(asked(title="Go on?"), "yes") == QuestionReply("answered")
    assert read_reply(asked(title="Go on?"), "deny").outcome == "declined"
    with pytest.raises(ConfigError, match="answer yes, or decline"):
        read_text(asked(title="Go on?"), "perhaps")


def test_secret_answers_are_not_shown() -> None:
    question = asked(NAME, PASSWORD)
    answers: dict[str, Json] = {"name": "mine", "password": "hunter2"}
    assert shown_answers(question, answers) == {"name": "mine"}
    event = QuestionAnswer("1", "answered", {"name": "mine"}, reason="asked")
    assert summary(question, event) == AskedQuestion(
        "Whose wall? The password?",
        "answered",
        answer="Whose wall?: mine; The password?: (secret)",
        reason="asked",
    )


def test_each_way_not_to_answer_tells_the_agent_why() -> None:
    assert QuestionReply("no_person").refusal == NO_PERSON
    late = QuestionReply("timeout", reason="no answer in 3 s").refusal
    assert late.startswith("No person answered (no answer in 3 s). Decide yourself")
    assert "did not answer" in QuestionReply("declined").refusal
