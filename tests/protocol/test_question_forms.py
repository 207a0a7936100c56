"""Questions as agents write them, and the answers as agents read them."""

from __future__ import annotations

from corral._protocol.question_forms import (
    MOST_FIELDS,
    NoteFields,
    choice_answers,
    choice_fields,
    schema_answers,
    schema_fields,
)
from corral.events import QuestionField, QuestionOption
from corral.values import Json

NOTES = NoteFields("vendor", "Other")
FORM: Json = {
    "type": "object",
    "properties": {
        "plain": {"type": "string", "enum": ["a", "b"], "default": "b"},
        "named": {"type": "string", "enum": ["a", "b"], "enumNames": ["First", "Second"]},
        "titled": {
            "type": "string",
            "title": "T",
            "description": "The longer text",
            "oneOf": [
                {"const": "x", "title": "The X", "description": "best"},
                {"const": "y", "title": "Same"},
                {"const": "z", "title": "Same"},
            ],
        },
        "list": {
            "type": "array",
            "items": {"anyOf": [{"const": "1", "title": "One"}, {"const": "2", "title": "Two"}]},
        },
        "flag": {"type": "boolean", "description": "Really?"},
        "size": {"type": "number"},
        "odd": 7,
    },
    "required": ["plain", "flag"],
}


def test_the_fields_of_a_form() -> None:
    fields = {field.key: field for field in schema_fields(FORM)}
    assert fields["plain"] == QuestionField(
        "plain", "plain", options=(QuestionOption("a"), QuestionOption("b")), default="b"
    )
    assert [option.label for option in fields["named"].options] == ["First", "Second"]
    assert (fields["titled"].text, fields["titled"].header) == ("The longer text", "T")
    assert fields["titled"].options[0] == QuestionOption("The X", "best")
    assert [option.label for option in fields["titled"].options] == ["The X", "y", "z"]
    assert fields["list"].multiple
    assert (fields["flag"].type, fields["flag"].required) == ("boolean", True)
    assert (fields["size"].type, fields["size"].required) == ("number", False)
    assert fields["odd"].type == "text"


def test_the_answers_have_the_values_of_the_options() -> None:
    given: dict[str, Json] = {
        "plain": "a",
        "named": "Second",
        "titled": "y",
        "list": ["Two"],
        "flag": True,
    }
    assert schema_answers(FORM, given) == {
        "plain": "a",
        "named": "b",
        "titled": "y",
        "list": ["2"],
        "flag": True,
    }


def test_a_text_beside_the_options_is_a_second_property() -> None:
    form: Json = {
        "properties": {
            "q": {
                "type": "string",
                "oneOf": [{"const": "A", "title": "A"}, {"const": "Other", "title": "Other"}],
                "_meta": {"vendor": {"isSecret": True}},
            },
            "q_note": {"type": "string", "_meta": {"vendor": {"questionId": "q"}}},
        }
    }
    (field,) = schema_fields(form, NOTES)
    assert [option.label for option in field.options] == ["A"]
    assert field.free_text
    assert field.secret
    assert schema_answers(form, {"q": "A"}, NOTES) == {"q": "A"}
    assert schema_answers(form, {"q": "mine"}, NOTES) == {"q": "Other", "q_note": "mine"}


def test_a_list_of_questions() -> None:
    questions: Json = [
        {
            "question": "Which?",
            "header": "H",
            "multiSelect": True,
            "options": [{"label": "a", "description": "b"}, {"label": ""}, 3],
        },
        {"question": "Which?", "options": "none"},
        {"header": "no text"},
        "not a question",
    ]
    assert choice_fields(questions) == (QuestionField("Which?", "Which?", free_text=True),)
    assert choice_fields([as_list[0] for as_list in [questions] if isinstance(as_list, list)]) == (
        QuestionField(
            "Which?",
            "Which?",
            header="H",
            options=(QuestionOption("a", "b"),),
            multiple=True,
            free_text=True,
        ),
    )
    assert choice_answers({"Which?": ["a", "c"], "Sure?": "yes"}) == {
        "Which?": "a, c",
        "Sure?": "yes",
    }


def test_what_cannot_be_understood_or_is_too_much_is_left_out() -> None:
    odd_values: list[Json] = [None, 3, [], {"properties": 4}]
    for odd in odd_values:
        assert schema_fields(odd) == ()
        assert choice_fields(odd) == ()
    many: Json = [{"question": f"q{number}"} for number in range(500)]
    assert len(choice_fields(many)) == MOST_FIELDS
