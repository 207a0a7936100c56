"""Answers to the questions of an agent: what a person or a function gave, checked against the
question."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from corral._core.display import shorten
from corral.errors import ConfigError
from corral.events import AgentQuestion, QuestionAnswer, QuestionField
from corral.values import AskedQuestion, Json, QuestionOutcome, is_mapping, is_sequence

AnswerLike: TypeAlias = str | Mapping[str, Json] | None
"""The answer to a question: a text if it has one field, a mapping of keys to values, or None for no
answer. ``deny`` also means no answer, and ``cancel`` stops the turn."""

NO_PERSON = "No person is available to answer. Decide yourself and say what you assumed, or stop."
DECLINED = "The person did not answer. Decide yourself and say what you assumed, or stop."
LONGEST_SUMMARY = 1000
"""Characters of a question, and of its answer, in a result."""

_YES = frozenset({"y", "yes", "true", "1", "on"})
_NO = frozenset({"n", "no", "false", "0", "off"})


class QuestionReply(msgspec.Struct, frozen=True):
    """How a question ended."""

    outcome: QuestionOutcome
    answers: dict[str, Json] = {}
    """By the keys of the fields."""
    reason: str = ""
    """Who answered, or why there is no answer."""

    @property
    def refusal(self) -> str:
        """What the agent gets if there is no answer."""
        match self.outcome:
            case "no_person":
                return NO_PERSON
            case "timeout":
                return f"No person answered ({self.reason}). {NO_PERSON.partition('. ')[2]}"
            case _:
                return DECLINED


def read_reply(question: AgentQuestion, given: object) -> QuestionReply:
    """The reply that a function returned. Raises ``ConfigError`` if it is not an answer."""
    if given is None:
        return QuestionReply("declined", reason="no answer was given")
    options = question.fields[0].options if len(question.fields) == 1 else ()
    is_label = any(option.label == given for option in options)
    if given in ("deny", "cancel") and not is_label:
        if given == "deny":
            return QuestionReply("declined", reason="a person declined to answer")
        return QuestionReply("cancelled", reason="a person stopped the turn")
    if isinstance(given, str):
        if given in ("allow_once", "allow_session") and question.fields:
            raise ConfigError(f"{given!r} answers a permission request, not a question")
        return QuestionReply("answered", read_text(question, given))
    if not is_mapping(given):
        raise ConfigError(
            f"a question was answered with a {type(given).__name__}",
            hint="Return a text, a mapping of keys to values, or None for no answer.",
        )
    return QuestionReply("answered", read_answers(question, given))


def read_text(question: AgentQuestion, text: str) -> dict[str, Json]:
    """The answers in a text that a person typed: for one field its value, or the number of an
    option; for several fields a JSON object, or one line for each. Raises ``ConfigError`` if it is
    not an answer."""
    fields = question.fields
    if not fields:
        if text.strip().lower() in _YES | {"allow_once", "allow_session", "ok"}:
            return {}
        raise ConfigError("answer yes, or decline")
    if len(fields) == 1:
        value = read_value(fields[0], text)
        return {} if value is None else {fields[0].key: value}
    if text.lstrip().startswith("{"):
        try:
            given: object = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"the answer is not valid JSON: {error}") from error
        return read_answers(question, given if is_mapping(given) else {})
    lines = text.strip("\n").split("\n")
    if len(lines) != len(fields):
        keys = ", ".join(json.dumps(field.key) for field in fields)
        raise ConfigError(
            f"the question has {len(fields)} fields, and the answer has {len(lines)}",
            hint=f"Give one line for each, or a JSON object with the keys {keys}.",
        )
    return read_answers(question, {f.key: line for f, line in zip(fields, lines, strict=True)})


def read_value(field: QuestionField, text: str) -> Json:
    """The value in a text for one field; None if it may be left out. Raises ``ConfigError``."""
    text = text.strip()
    if not text:
        if field.default is None and field.required:
            raise ConfigError(f"{_name(field)}: an answer is needed")
        return field.default
    return _check(field, text)


def text_of(question: AgentQuestion) -> str:
    """The question in one text."""
    texts = [field.text for field in question.fields if field.text]
    return "\n".join(dict.fromkeys(filter(None, (question.title, *texts)))) or "(no text)"


def shown_answers(question: AgentQuestion, answers: Mapping[str, Json]) -> dict[str, Json]:
    """The answers that may be stored and shown."""
    secret = {field.key for field in question.fields if field.secret}
    return {key: value for key, value in answers.items() if key not in secret}


def summary(question: AgentQuestion, reply: QuestionAnswer) -> AskedQuestion:
    """The question with its answer, as a result lists it."""
    answer: str | None = None
    if reply.outcome == "answered":
        shown: dict[str, str] = {}
        for field in question.fields:
            value = reply.answers.get(field.key)
            if isinstance(value, list):
                value = ", ".join(map(str, value))
            text = value if isinstance(value, str) else json.dumps(value)
            if field.key in reply.answers or field.secret:
                shown[field.header or field.text] = "(secret)" if field.secret else text
        several = [f"{name}: {value}" for name, value in shown.items()]
        answer = next(iter(shown.values()), "yes") if len(shown) < 2 else "; ".join(several)
    return AskedQuestion(
        shorten(text_of(question), LONGEST_SUMMARY),
        reply.outcome,
        answer=None if answer is None else shorten(answer, LONGEST_SUMMARY),
        reason=reply.reason or None,
        call_id=question.call_id,
    )


def read_answers(question: AgentQuestion, given: Mapping[str, Json]) -> dict[str, Json]:
    """Answers by the keys of the fields, checked. Raises ``ConfigError``."""
    known = {field.key: field for field in question.fields}
    if unknown := [key for key in given if key not in known]:
        raise ConfigError(
            f"the question has no field {unknown[0]!r}", hint=f"It has: {', '.join(known)}."
        )
    answers: dict[str, Json] = {}
    for key, field in known.items():
        value = given.get(key)
        checked = read_value(field, "") if value is None else _check(field, value)
        if checked is not None:
            answers[key] = checked
    return answers


def _check(field: QuestionField, value: object) -> Json:
    if field.options:
        return _check_choice(field, value)
    match field.type, value:
        case "boolean", bool():
            return value
        case "boolean", str() if value.strip().lower() in _YES | _NO:
            return value.strip().lower() in _YES
        case "integer" | "number", bool():
            pass
        case "integer" | "number", int() | float() | str():
            return _check_number(field, value)
        case "text", str() if value.strip() or not field.required:
            return value
        case _:
            pass
    wanted = {"text": "a text", "boolean": "yes or no"}.get(field.type, "a number")
    raise ConfigError(f"{_name(field)}: answer with {wanted}")


def _check_number(field: QuestionField, value: float | str) -> Json:
    try:
        number = float(value)
        as_int = int(value) if isinstance(value, str) and field.type == "integer" else int(number)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{_name(field)}: answer with a number") from error
    if field.type == "integer" and as_int != number:
        raise ConfigError(f"{_name(field)}: answer with a whole number")
    return as_int if as_int == number else number


def _check_choice(field: QuestionField, value: object) -> Json:
    if not field.multiple:
        if isinstance(value, str):
            return _choice(field, value)
        raise ConfigError(f"{_name(field)}: answer with one option")
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        # A text may have commas.
        if field.free_text and not all(_find(field, part) for part in parts):
            return [_choice(field, value)]
        value = parts
    if not is_sequence(value):
        raise ConfigError(f"{_name(field)}: answer with a list of options")
    chosen: list[Json] = [_choice(field, each) for each in value if isinstance(each, str) and each]
    return chosen


def _choice(field: QuestionField, text: str) -> str:
    found = _find(field, text.strip())
    if found is not None:
        return found
    if field.free_text and text.strip():
        return text.strip()
    labels = ", ".join(option.label for option in field.options)
    raise ConfigError(f"{_name(field)}: {text!r} is not one of: {labels}")


def _find(field: QuestionField, text: str) -> str | None:
    """The label that is meant: itself, in any case, or its number from 1."""
    labels = [option.label for option in field.options]
    if text in labels:
        return text
    by_case = [label for label in labels if label.lower() == text.lower()]
    if len(by_case) == 1:
        return by_case[0]
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0
    return labels[number - 1] if 0 < number <= len(labels) else None


def _name(field: QuestionField) -> str:
    return shorten(field.header or field.text or field.key, 80)
