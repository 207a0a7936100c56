"""Typed output from any agent: request it, find it in the answer, validate it, repair it.

A value comes as fenced JSON in the final text, which every agent can write, or through the tool
``submit_result``, for agents that are given tools. It is always validated against the schema. If
there is no valid value, the run has failed; a success always has a value.

A turn gets the ``TypedAnswer`` of its run and calls ``read`` at its end. So the last event of the
last turn has the value, or the error.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from corral._protocol.schema import Schema, schema_not_met, schema_of
from corral._protocol.validation import Steps
from corral._sessions.tools.tools import Tool
from corral.errors import ConfigError, SchemaInvalid, SchemaNotMet
from corral.result import Answer, Result, combine_results, with_output, without_output
from corral.values import Json, JsonObject

T = TypeVar("T")
RunTurn = Callable[[str], Awaitable[Result]]

REPAIRS = 2
SUBMIT = "submit_result"
WRAPPERS = ("output", "result", "value")
"""Names of objects that models often put around the requested value."""
DEPTH = 4
"""How many layers are unwrapped. JSON in a string in a wrapper has two."""
SCAN_FACTOR = 8
"""The search for JSON reads at most this many times the length of the text. Without a limit, a
text of many open braces would be read again from each brace."""

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})(.*)")
"""A line that begins or ends a block."""


def answer_schema(of: object) -> Schema[object]:
    """The schema of the answer. Raises ``SchemaInvalid`` if ``null`` is valid: it could not be
    distinguished from no answer."""
    schema: Schema[object] = schema_of(of)
    if not schema.fit(None)[1]:
        raise SchemaInvalid(
            f"{schema.name} may be null, which looks like no answer",
            hint="Put it into an object, as a field that may be null.",
        )
    return schema


def instructions(schema: Schema[object]) -> str:
    """What to append to a prompt."""
    return (
        "When you are done, end your answer with one fenced block of JSON and nothing after it."
        " It must fit this JSON Schema:\n\n"
        f"```json\n{json.dumps(schema.json, indent=1, ensure_ascii=False)}\n```\n\n"
        "Write the value itself, not the schema, as:\n\n```json\n…\n```"
    )


def repair_prompt(complaints: Sequence[str]) -> str:
    """The prompt for an agent whose value is invalid."""
    listed = "\n".join(f"- {complaint}" for complaint in complaints)
    return (
        f"The result you gave does not fit what was asked for:\n{listed}\n\n"
        "Do no other work. Answer with the whole corrected result as one fenced block of JSON"
        " (```json) and nothing else."
    )


class FoundValue(NamedTuple, Generic[T]):
    """A value that fits, also as JSON; or the complaints, and None."""

    value: T | None
    json: Json = None
    complaints: tuple[str, ...] = ()


def find(text: str, schema: Schema[T]) -> FoundValue[T]:
    """The value in an answer: the complete text, the last fenced block, or the first object or
    list that fits; else the complaints about the likeliest candidate."""
    complaints: tuple[str, ...] = ()
    steps = Steps()
    for candidate in _candidates(text):
        found = unwrap(candidate, schema, steps)
        if not found.complaints:
            return found
        complaints = complaints or found.complaints
    value, wrong = schema.fit_within(text.strip(), steps)
    if not wrong and text.strip():
        return FoundValue(value, text.strip())
    return FoundValue(None, complaints=complaints or ("there is no JSON in the answer",))


def unwrap(value: Json, schema: Schema[T], steps: Steps) -> FoundValue[T]:
    """The valid value, as it is or inside ``{"output": …}``, ``{"result": …}`` or a string of
    JSON; else the complaints about it."""
    fitted, complaints = schema.fit_within(value, steps)
    layers = 0
    inner = value
    wrong = complaints
    while wrong and layers < DEPTH:
        layers += 1
        match inner:
            case dict() if len(inner) == 1 and (name := next(iter(inner))) in WRAPPERS:
                inner = inner[name]
            case str():
                try:
                    inner = _parse_json(inner)
                except (ValueError, RecursionError):
                    break
            case _:
                break
        fitted, wrong = schema.fit_within(inner, steps)
    return FoundValue(None, complaints=complaints) if wrong else FoundValue(fitted, inner)


def _candidates(text: str) -> Iterator[Json]:
    """JSON values in the text, the likeliest first."""
    for block in (text, *reversed(fenced_blocks(text))):
        try:
            yield _parse_json(block)
        except (ValueError, RecursionError):
            continue
    yield from _embedded_json(text)


def fenced_blocks(text: str) -> list[str]:
    """The contents of the fenced blocks. A block ends at the first line that has its marks only;
    without such a line there is no block."""
    lines = text.split("\n")
    marks = [_FENCE.match(line) for line in lines]
    ends: dict[str, list[int]] = {}
    for number, mark in enumerate(marks):
        if mark and not mark[2].strip(" \t\r"):
            ends.setdefault(mark[1], []).append(number)
    blocks: list[str] = []
    at = 0
    while at < len(lines):
        begin = marks[at]
        at += 1
        if begin is None or "`" in begin[2]:
            continue
        possible = ends.get(begin[1], [])
        first = bisect_left(possible, at)
        if first < len(possible):
            blocks.append("\n".join(lines[at : possible[first]]))
            at = possible[first] + 1
    return blocks


def _reject_constant(constant: str) -> Json:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(strict=False, parse_constant=_reject_constant)
"""Not strict: models write real line breaks into strings."""


def _parse_json(text: str) -> Json:
    value: Json = _decoder.decode(text.strip("\ufeff \t\r\n"))
    return value


def _embedded_json(text: str) -> Iterator[Json]:
    at = 0
    budget = SCAN_FACTOR * len(text) + 10_000
    while budget > 0 and (opening := re.compile(r"[{\[]").search(text, at)):
        at = opening.start()
        try:
            value, end = _decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            # The error counts the lines before its position, which is fast but not free.
            budget -= error.pos - at + 1 + error.pos // 64
            at += 1
        except (ValueError, RecursionError):
            budget -= len(text) - at
            at += 1
        else:
            at = end
            yield value


class SubmitTool:
    """The tool with which an agent submits its result, and the submitted values.

    A value that does not fit is refused with the complaints, so that the agent can
    fix it in the same turn. Of several that fit, the last counts.
    """

    def __init__(self, schema: Schema[object]) -> None:
        self._submitted: list[FoundValue[object]] = []
        is_object = schema.json.get("type") == "object"
        advertised: JsonObject = schema.json
        if not is_object:
            defs = schema.json.get("$defs")
            advertised = {
                "type": "object",
                "properties": {"value": {k: v for k, v in schema.json.items() if k != "$defs"}},
                "required": ["value"],
                **({"$defs": defs} if defs is not None else {}),
            }

        def read(given: Json) -> tuple[dict[str, object], list[str]]:
            inner = given
            if not is_object and isinstance(given, dict) and given.keys() == {"value"}:
                inner = given["value"]
            found = unwrap(inner, schema, Steps())
            return {"found": found}, list(found.complaints)

        async def submit(found: FoundValue[object]) -> str:
            self._submitted.append(found)
            return "accepted: the task is done, finish now"

        self.tool: Tool = Tool(
            name=SUBMIT,
            description="Submits the result of the task. Call it once, when you are done.",
            parameters=Schema(SUBMIT, advertised, read),
            function=submit,
            is_answer=True,
        )

    @property
    def found(self) -> FoundValue[object] | None:
        """The submitted value; None if there is none."""
        return self._submitted[-1] if self._submitted else None

    @property
    def instructions(self) -> str:
        return f"When you are done, submit the result by calling the tool {SUBMIT}."


class TypedAnswer:
    """The value that a run must return: how it is requested, and what was found.

    Each turn of the run calls ``read`` once, at its end, unless it failed. Then either ``is_found``
    is true, or ``read`` has returned an error, or ``repair_prompt`` is the prompt of the next turn.
    """

    def __init__(
        self, output: object, *, repairs: int = REPAIRS, submission: SubmitTool | None = None
    ) -> None:
        """``submission`` is for an agent that was given its tool. Raises ``SchemaInvalid``."""
        if repairs < 0:
            raise ConfigError(f"repairs cannot be negative: {repairs}")
        self.schema: Schema[object] = answer_schema(output)
        self._submission = submission
        self._repairs_left = repairs
        self._complaints: tuple[str, ...] = ()
        self.is_found: bool = False
        self.value: object = None

    def first_prompt(self, prompt: str, *, native: bool = False) -> str:
        """The prompt with the request for the value. ``native``: the agent is given the schema in
        its own way."""
        if native:
            return prompt
        asked = self._submission.instructions if self._submission else instructions(self.schema)
        return f"{prompt}\n\n{asked}"

    @property
    def repair_prompt(self) -> str:
        return repair_prompt(self._complaints)

    def read(self, answer: Answer) -> tuple[Json, SchemaNotMet | None]:
        """Look for the value in the answer of a turn: the value as JSON, or the error if no repair
        is left."""
        found = self._submission.found if self._submission else None
        if found is None:
            found = find(answer.final_text, self.schema)
            if found.complaints and answer.text != answer.final_text:
                other = find(answer.text, self.schema)
                found = found if other.complaints else other
        self._complaints = found.complaints
        if not found.complaints:
            self.is_found, self.value = True, found.value
            return found.json, None
        if self._repairs_left:
            self._repairs_left -= 1
            return None, None
        text = answer.final_text or answer.text
        return None, schema_not_met(self.schema.name, found.complaints, text)


async def run_typed(
    run: RunTurn, prompt: str, typed: TypedAnswer, *, native: bool = False
) -> Result:
    """The result of all turns together, with the value as its ``output``.

    ``run`` is one turn of a session that stays the same; it calls ``typed.read``. A turn that
    failed is the last; the error of one whose value does not fit is ``SchemaNotMet``.
    """
    text_to_send = typed.first_prompt(prompt, native=native)
    combined: Result | None = None
    while True:
        result = await run(text_to_send)
        combined = result if combined is None else combine_results(combined, result)
        if not combined.ok:
            return without_output(combined)
        if typed.is_found:
            return with_output(combined, typed.value)
        text_to_send = typed.repair_prompt
