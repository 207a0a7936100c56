"""Questions as agents write them, and the answers as agents read them.

Two forms are common: a list of questions with options, as the tools of coding agents take it, and
the JSON Schema of an *elicitation* of the Model Context Protocol, which the Agent Client Protocol
also uses. Both may come from a model or an MCP server: what cannot be understood is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from corral.events import AnswerType, QuestionField, QuestionOption
from corral.values import (
    Json,
    JsonObject,
    as_object,
    as_objects,
    as_text,
    as_texts,
    text_or_none,
)

MOST_FIELDS = 50
MOST_OPTIONS = 200
"""Of one field. A person cannot answer more."""
_TYPES: dict[str, AnswerType] = {
    "boolean": "boolean",
    "integer": "integer",
    "number": "number",
}


def choice_fields(questions: Json) -> tuple[QuestionField, ...]:
    """The fields of a list of questions with options. A field's key is its text, and any text is an
    answer."""
    fields: dict[str, QuestionField] = {}
    for each in as_objects(questions)[:MOST_FIELDS]:
        text = as_text(each.get("question"))
        options = [
            QuestionOption(label, text_or_none(option.get("description")) or None)
            for option in as_objects(each.get("options"))[:MOST_OPTIONS]
            if (label := as_text(option.get("label")))
        ]
        if text:
            fields[text] = QuestionField(
                text,
                text,
                header=text_or_none(each.get("header")) or None,
                options=tuple(options),
                multiple=each.get("multiSelect") is True,
                free_text=True,
                type="number" if each.get("kind") == "number" else "text",
            )
    return tuple(fields.values())


def choice_answers(answers: Mapping[str, Json]) -> JsonObject:
    """The answers to ``choice_fields``: one text for each question."""
    return {
        key: (", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for key, value in answers.items()
    }


class NoteFields(msgspec.Struct, frozen=True):
    """How an agent asks for a text beside the options: as a second property of the form. Its
    ``_meta`` has, below ``key``, the ``questionId`` of the first one."""

    key: str
    other: str
    """The option that stands for the text in the second property."""

    def find(self, schema: Json) -> dict[str, str]:
        """The name of a property → the name of the property with its text."""
        found: dict[str, str] = {}
        for name, each in _properties(schema):
            owner = self.meta(each).get("questionId")
            if isinstance(owner, str):
                found[owner] = name
        return found

    def meta(self, field: JsonObject) -> JsonObject:
        return as_object(as_object(field.get("_meta")).get(self.key))


def schema_fields(schema: Json, notes: NoteFields | None = None) -> tuple[QuestionField, ...]:
    """The fields of an elicitation."""
    required = as_texts(as_object(schema).get("required"))
    texts = notes.find(schema) if notes is not None else {}
    fields: list[QuestionField] = []
    for name, each in _properties(schema):
        if name in texts.values():
            continue
        field = _schema_field(name, each, required=name in required)
        if notes is not None:
            options = tuple(o for o in field.options if o.label != notes.other)
            field = replace(
                field,
                options=options if name in texts else field.options,
                free_text=name in texts,
                secret=notes.meta(each).get("isSecret") is True,
            )
        fields.append(field)
    return tuple(fields)


def schema_answers(
    schema: Json, answers: Mapping[str, Json], notes: NoteFields | None = None
) -> JsonObject:
    """The content of the reply to an elicitation."""
    texts = notes.find(schema) if notes is not None else {}
    content: JsonObject = {}
    for name, each in _properties(schema):
        if name not in answers:
            continue
        value, values = answers[name], _option_values(each)
        if isinstance(value, list):
            content[name] = [values.get(label, label) for label in map(str, value)]
        elif notes is not None and name in texts and value not in values:
            content[name], content[texts[name]] = notes.other, value
        else:
            content[name] = values.get(value, value) if isinstance(value, str) else value
    return content


OTHER = " (other)"
"""Added to the key of a choice, for the property with a text instead of an option."""


def question_schema(fields: Iterable[QuestionField]) -> JsonObject:
    """The JSON Schema of an elicitation for these fields. ``elicited_answers`` reads the reply."""
    properties: dict[str, Json] = {}
    required: list[Json] = []
    for field in fields:
        about: JsonObject = {"title": field.header or field.text, "description": field.text}
        options: list[Json] = [
            {"const": option.label, "title": option.label, "description": option.description or ""}
            for option in field.options
        ]
        if options and field.multiple:
            properties[field.key] = {"type": "array", "items": {"anyOf": options}, **about}
        elif options:
            properties[field.key] = {"type": "string", "oneOf": options, **about}
        else:
            kind = "string" if field.type == "text" else field.type
            properties[field.key] = {"type": kind, **about}
            if field.secret:
                properties[field.key] = {"type": kind, "format": "password", **about}
        if options and field.free_text:
            other = f"Another answer to: {field.header or field.text}"
            properties[field.key + OTHER] = {"type": "string", "title": other}
        elif field.required:
            required.append(field.key)
    return {"type": "object", "properties": properties, "required": required}


def elicited_answers(
    fields: Iterable[QuestionField], content: Mapping[str, Json]
) -> dict[str, Json]:
    """The answers in the reply to ``question_schema``, by the keys of the fields."""
    answers: dict[str, Json] = {}
    for field in fields:
        other = content.get(field.key + OTHER)
        value = other if isinstance(other, str) and other.strip() else content.get(field.key)
        if value is not None:
            answers[field.key] = value
    return answers


def _properties(schema: Json) -> list[tuple[str, JsonObject]]:
    properties = as_object(as_object(schema).get("properties"))
    return [(name, as_object(each)) for name, each in properties.items()][: 2 * MOST_FIELDS]


def _schema_field(name: str, field: JsonObject, *, required: bool) -> QuestionField:
    title, description = text_or_none(field.get("title")), text_or_none(field.get("description"))
    kind, default = field.get("type"), field.get("default")
    texts = sorted({each for each in (title, description) if each}, key=len)
    return QuestionField(
        name,
        texts[-1] if texts else name,
        header=texts[0] if len(texts) == 2 else None,
        options=_options(field),
        multiple=kind == "array",
        type=_TYPES.get(as_text(kind), "text"),
        required=required,
        default=default if isinstance(default, str | bool | int | float | list) else None,
    )


def _options(field: JsonObject) -> tuple[QuestionOption, ...]:
    described = {as_text(each.get("const")): each for each in _titled(field)}
    return tuple(
        QuestionOption(label, text_or_none(described.get(value, {}).get("description")) or None)
        for label, value in _option_values(field).items()
    )[:MOST_OPTIONS]


def _titled(field: JsonObject) -> list[JsonObject]:
    return as_objects(as_object(field.get("items")).get("anyOf")) or as_objects(field.get("oneOf"))


def _option_values(field: JsonObject) -> dict[str, str]:
    """Label → value. A title that two values share is no label."""
    values = as_texts(as_object(field.get("items")).get("enum")) or as_texts(field.get("enum"))
    names = as_texts(field.get("enumNames"))
    pairs = [(value, names[at] if at < len(names) else value) for at, value in enumerate(values)]
    pairs += [
        (value, as_text(each.get("title")) or value)
        for each in _titled(field)
        if (value := as_text(each.get("const")))
    ]
    titles = [title for _, title in pairs]
    return {(title if titles.count(title) == 1 else value): value for value, title in pairs}
