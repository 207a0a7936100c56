"""Checks JSON values against JSON Schemas, with error messages that a model can act on.

Theory of operation
-------------------
A schema may come from a caller of a server, and a value from a model that does what the caller
says. The check runs in the event loop. So it ends in bounded time, whatever both are:

- All that is compared, copied or matched is counted in ``Steps``. Beyond ``MAX_STEPS`` the check
  ends, and its only error says so.
- A part of the value is compared with a part of the schema once: a schema of nine levels of which
  each refers eight times to the next has ten parts, not eight to the ninth.
- Patterns are matched by RE2, in time linear in the value. What RE2 does not have (look-around,
  back references) is refused when a schema is made of JSON. The pattern of a Python type is
  matched by the library of that type, and is skipped here if RE2 does not have it.

``jsonschema`` is not used: it needs five packages, its time is not bounded, and its messages are
for readers who see the schema.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Hashable, Iterable
from difflib import get_close_matches
from operator import ge, gt, le, lt
from typing import NamedTuple, Protocol

import msgspec

from corral.values import Json, JsonObject, as_list, as_object, as_texts, number_or_none

MAX_STEPS = 100_000
"""Of one check, or of all values in one answer: about half a second at most, and a value of 30,000
parts."""
PATTERN_STEPS = 1_000
"""For a pattern to be compiled, beside its length."""
CLASS_STEPS = 200
"""For a class of Unicode in it: ``\\pL`` stands for hundreds of ranges."""
REPETITION_STEPS = 6
"""For each time that a part of it is repeated, at most 1,000: RE2 writes ``x{100}`` out."""
LONGEST_PATTERN = 10_000
"""Characters."""
MATCHES_PER_STEP = 100
"""Comparisons of a character with an instruction of a pattern that count as one step."""
PATTERN_MEMORY = 1 << 18
"""Bytes that RE2 uses for one pattern; one that needs more is refused."""
MAX_LISTED = 1_000
"""Errors of one value that are collected."""
MAX_NAMED = 20
"""Values or names that one error lists."""
MAX_SHOWN = 60
"""Characters of a wrong value, or of a name, that are shown to the model."""
EXACT = 2**53
"""From here on a float and an integer that are equal have different digits."""

TYPES: dict[str, tuple[str, Callable[[Json], bool]]] = {
    "object": ("an object", lambda v: isinstance(v, dict)),
    "array": ("a list", lambda v: isinstance(v, list)),
    "string": ("a string", lambda v: isinstance(v, str)),
    "number": ("a number", lambda v: number_or_none(v) is not None),
    "integer": ("an integer", lambda v: (n := number_or_none(v)) is not None and n % 1 == 0),
    "boolean": ("true or false", lambda v: isinstance(v, bool)),
    "null": ("null", lambda v: v is None),
}


class LimitKeyword(NamedTuple):
    """A keyword that limits a number or a length."""

    size_of: Callable[[Json], float | None]
    """The number to compare; ``None`` if the keyword does not apply to the value."""
    holds: Callable[[float, float], bool]
    description: str


def _length_limits(name: str, kind: type, unit: str) -> dict[str, LimitKeyword]:
    def length(value: Json) -> int | None:
        return len(value) if isinstance(value, str | list | dict) and type(value) is kind else None

    return {
        f"min{name}": LimitKeyword(length, ge, f"at least {{}} {unit}"),
        f"max{name}": LimitKeyword(length, le, f"at most {{}} {unit}"),
    }


LENGTH_LIMITS = {
    **_length_limits("Length", str, "characters"),
    **_length_limits("Items", list, "items"),
    **_length_limits("Properties", dict, "properties"),
}


def _is_multiple(value: float, of: float) -> bool:
    """Exact for the numbers as they are written: 0.07 is a multiple of 0.01, and no digit of a
    large integer is lost in a float."""
    if isinstance(value, int) and isinstance(of, int):
        return value % of == 0
    from fractions import Fraction  # slow to import, and rarely needed

    try:
        return Fraction(repr(value)) % Fraction(repr(of)) == 0
    except ValueError:  # infinite
        return False


LIMITS: dict[str, LimitKeyword] = {
    "minimum": LimitKeyword(number_or_none, ge, "at least {}"),
    "maximum": LimitKeyword(number_or_none, le, "at most {}"),
    "exclusiveMinimum": LimitKeyword(number_or_none, gt, "more than {}"),
    "exclusiveMaximum": LimitKeyword(number_or_none, lt, "less than {}"),
    "multipleOf": LimitKeyword(number_or_none, _is_multiple, "a multiple of {}"),
    **LENGTH_LIMITS,
}
"""Keyword → what it limits."""
OWN_KEYWORDS = frozenset({*LIMITS, "enum", "const", "pattern"})
"""Keywords about a value, and not its parts."""


class OutOfSteps(Exception):
    """A check takes too long."""


class Steps:
    """How much a check may still do. Checks that belong together share one."""

    def __init__(self, left: int = MAX_STEPS) -> None:
        self.left: int = left

    def take(self, count: int = 1) -> None:
        """Raises ``OutOfSteps``."""
        self.left -= count
        if self.left < 0:
            raise OutOfSteps


class WrongPart(NamedTuple):
    """An error: where in the value, and what is wrong."""

    path: str
    message: str


class _Pattern(Protocol):
    """A pattern of RE2, as far as it is used."""

    @property
    def programsize(self) -> int: ...
    def search(self, text: bytes) -> object | None: ...


_REPETITION = re.compile(r"\{(\d{1,4})(?:,(\d{0,4}))?\}")
_UNICODE_CLASS = re.compile(r"\\[pP]|\[:\^")


def compile_pattern(pattern: str, steps: Steps) -> _Pattern:
    """A pattern for RE2. Raises ``ValueError`` for one that is too long or that RE2 does not take,
    and ``OutOfSteps``."""
    import re2

    if len(pattern) > LONGEST_PATTERN:
        raise ValueError(f"it has more than {LONGEST_PATTERN:,} characters")
    numbers = [int(most or least) for least, most in _REPETITION.findall(pattern)]
    # Repetitions may be nested, up to 1,000 together.
    repetitions = min(math.prod(numbers), 1000 * len(numbers))
    classes = len(_UNICODE_CLASS.findall(pattern))
    steps.take(
        PATTERN_STEPS + len(pattern) + CLASS_STEPS * classes + REPETITION_STEPS * repetitions
    )
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY
    options.never_capture = True
    options.log_errors = False
    try:
        compiled: _Pattern = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"{_cut(text)} (patterns are matched in linear time, by RE2)") from error
    return compiled


def check(value: Json, schema: Json, root: JsonObject | None = None, path: str = "") -> list[str]:
    """All errors of the value; none if it fits. ``root``: the document of which the schema is a
    part. ``path``: the name of the value. Raises ``RecursionError`` for a value that is nested too
    deeply, and ``OutOfSteps``."""
    return Validator(as_object(schema) if root is None else root).check(value, schema, path)


class Validator:
    """Checks values against a document, and keeps its patterns."""

    def __init__(self, root: JsonObject) -> None:
        self.root: JsonObject = root
        self.patterns: dict[str, _Pattern | None] = {}
        """None: RE2 does not have what it needs."""

    def check(
        self, value: Json, schema: Json, path: str = "", steps: Steps | None = None
    ) -> list[str]:
        """As the function ``check``."""
        errors = _Comparison(self, steps or Steps()).errors(value, schema)
        return [f"{_join(path, wrong.path) or 'the value'}: {wrong.message}" for wrong in errors]


class _Comparison:
    """One check. ``errors`` is a pure function of a value and a schema, so results are kept."""

    def __init__(self, validator: Validator, steps: Steps) -> None:
        self._validator = validator
        self._steps = steps
        # Both live as long as this object, so their ids stay theirs.
        self._results: dict[tuple[int, int], list[WrongPart]] = {}
        self._allowed: dict[int, frozenset[Hashable]] = {}
        self._targets: dict[str, Json] = {}

    def errors(self, value: Json, schema: Json) -> list[WrongPart]:
        """Each call of another level costs one frame of the stack, or two: values may be deep."""
        self._steps.take()
        if not isinstance(schema, dict):
            return [WrongPart("", "must not be there")] if schema is False else []
        key = id(value), id(schema)
        wrong = self._results.get(key)
        if wrong is not None:
            return wrong
        wrong = self._type_errors(value, schema)
        if not wrong:
            if isinstance(reference := schema.get("$ref"), str):
                self._add(wrong, self.errors(value, self._target(reference)))
            if schema.keys() & OWN_KEYWORDS:
                self._add(wrong, self._own_errors(value, schema))
            if isinstance(value, dict):
                self._add_properties(wrong, value, schema)
            elif isinstance(value, list):
                self._add_items(wrong, value, schema)
            for part in as_list(schema.get("allOf")):
                self._add(wrong, self.errors(value, part))
            for keyword in ("anyOf", "oneOf"):
                if keyword in schema:
                    self._add_alternatives(wrong, value, schema, keyword)
        self._results[key] = wrong
        return wrong

    def _add(self, wrong: list[WrongPart], more: Iterable[WrongPart], step: str = "") -> None:
        """Add errors, of the part of the value that ``step`` leads to."""
        for error in more:
            if len(wrong) == MAX_LISTED:
                return
            self._steps.take()
            wrong.append(error._replace(path=_join(step, error.path)) if step else error)

    def _target(self, reference: str) -> Json:
        if reference not in self._targets:
            self._steps.take(len(reference) // 10)
            self._targets[reference] = resolve_reference(reference, self._validator.root)
        return self._targets[reference]

    def _type_errors(self, value: Json, schema: JsonObject) -> list[WrongPart]:
        types = schema.get("type", [])
        types = types if isinstance(types, list) else [types]
        self._steps.take(len(types))
        if not types or any(TYPES[str(name)][1](value) for name in types):
            return []
        words = " or ".join(dict.fromkeys(TYPES[str(name)][0] for name in types))
        return [WrongPart("", f"expected {words}, got {describe(value)}")]

    def _own_errors(self, value: Json, schema: JsonObject) -> list[WrongPart]:
        """Errors of the value itself: allowed values, limits, pattern."""
        wrong: list[str] = []
        allowed = schema.get("enum")
        if isinstance(allowed, list) and self.comparable(value) not in self._values(allowed):
            named = [_cut(msgspec.json.encode(each).decode()) for each in allowed[:MAX_NAMED]]
            wrong.append(f"expected one of {_listed(named, len(allowed))}, got {describe(value)}")
        if "const" in schema and self.comparable(value) != self.comparable(schema["const"]):
            wrong.append(f"expected {describe(schema['const'])}, got {describe(value)}")
        if "multipleOf" in schema:
            self._steps.take(10)
        for key in LIMITS.keys() & schema.keys():
            size, limit = LIMITS[key].size_of(value), number_or_none(schema[key])
            if size is not None and limit is not None and not LIMITS[key].holds(size, limit):
                expected = LIMITS[key].description.format(limit)
                wrong.append(f"expected {expected}, got {describe(size)}")
        pattern = schema.get("pattern")
        if isinstance(value, str) and isinstance(pattern, str) and not self._fits(value, pattern):
            wrong.append(f"expected a match of {pattern[:200]}, got {describe(value)}")
        return [WrongPart("", message) for message in wrong]

    def _fits(self, value: str, pattern: str) -> bool:
        patterns = self._validator.patterns
        if pattern not in patterns:
            try:
                patterns[pattern] = compile_pattern(pattern, self._steps)
            except ValueError:
                patterns[pattern] = None
        compiled = patterns[pattern]
        if compiled is None:
            return True
        self._steps.take(compiled.programsize * len(value) // MATCHES_PER_STEP)
        return compiled.search(value.encode("utf-8", "replace")) is not None

    def _values(self, allowed: list[Json]) -> frozenset[Hashable]:
        if id(allowed) not in self._allowed:
            self._allowed[id(allowed)] = frozenset(map(self.comparable, allowed))
        return self._allowed[id(allowed)]

    def comparable(self, value: Json) -> Hashable:
        """The value as something that can be in a set: equal if the values are equal as JSON."""
        self._steps.take()
        match value:
            case dict():
                return frozenset((key, self.comparable(each)) for key, each in value.items())
            case list():
                return "list", *map(self.comparable, value)
            case bool():
                return "bool", value
            case int() | float() if abs(value) >= EXACT:
                # Python gives many large integers the same hash: as keys they would be slow.
                return "number", hex(int(value))
            case _:
                return value

    def _add_properties(
        self, wrong: list[WrongPart], value: JsonObject, schema: JsonObject
    ) -> None:
        properties = as_object(schema.get("properties"))
        others = schema.get("additionalProperties", True)
        required = as_texts(schema.get("required"))
        self._steps.take(len(required))
        missing = [name for name in required if name not in value]
        self._add(wrong, (WrongPart(_cut(n), "is required and missing") for n in missing))
        for name, item in value.items():
            if name in properties or others is not False:
                errors = self.errors(item, properties.get(name, others))
                if errors:
                    self._add(wrong, errors, _cut(name))
            elif len(wrong) < MAX_LISTED:
                self._add(wrong, [self._unknown(name, properties)])

    def _unknown(self, name: str, properties: JsonObject) -> WrongPart:
        near: list[str] = []
        if len(name) <= MAX_SHOWN:
            self._steps.take(10 * len(properties))
            near = get_close_matches(name, properties, 1)
        names = list(properties)
        advice = f"did you mean {near[0]}?" if near else f"known are: {_listed(names, len(names))}"
        return WrongPart(_cut(name), f"is not a known property; {advice}")

    def _add_items(self, wrong: list[WrongPart], value: list[Json], schema: JsonObject) -> None:
        first = as_list(schema.get("prefixItems"))
        rest = schema.get("items", True)
        for number, item in enumerate(value):
            errors = self.errors(item, first[number] if number < len(first) else rest)
            if errors:
                self._add(wrong, errors, f"[{number}]")
        if schema.get("uniqueItems") is True:
            earlier: set[Hashable] = set()
            for number, item in enumerate(value):
                comparable = self.comparable(item)
                if comparable in earlier:
                    message = f"is there twice: {describe(item)}"
                    self._add(wrong, [WrongPart(f"[{number}]", message)])
                earlier.add(comparable)

    def _add_alternatives(
        self, wrong: list[WrongPart], value: Json, schema: JsonObject, keyword: str
    ) -> None:
        choices = as_list(schema[keyword])
        self._steps.take(2 * len(choices))
        tried: list[list[WrongPart]] = []
        for choice in choices:
            tried.append(self.errors(value, choice))
            if not tried[-1] and keyword == "anyOf":
                return
        fits = tried.count([])
        if fits == 1:
            return
        if fits:
            message = f"expected to fit one of {len(choices)} alternatives, fits {fits}"
            self._add(wrong, [WrongPart("", message)])
            return
        # An error about a part of the value says more than one about its type.
        deeper = [errors for errors in tried if all(error.path for error in errors)]
        if deeper:
            closest = min(deeper, key=len)
            self._add(wrong, closest)
            return
        self._steps.take(sum(map(len, tried)))
        end = f", got {describe(value)}"
        wanted = dict.fromkeys(
            error.message.removeprefix("expected ").removesuffix(end)
            if not error.path
            else f"{error.path}: {error.message}"
            for errors in tried
            for error in errors
        )
        message = f"expected {_listed([*wanted], len(wanted), ' or ')}{end}"
        self._add(wrong, [WrongPart("", message[:2_000])])


def json_equal(one: Json, other: Json) -> bool:
    """Whether two values are equal as JSON: 1 equals 1.0, but not true."""
    values = _Comparison(Validator({}), Steps(sys.maxsize))
    return values.comparable(one) == values.comparable(other)


def describe(value: object) -> str:
    """A short description of the value for an error message."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool | int | float):
        return "null" if value is None else str(value).lower()[:MAX_SHOWN]
    return f"the string {_cut(str(value))!r}"


def resolve_reference(reference: str, root: Json) -> Json:
    """The schema that a reference names; None if it is outside the document or missing."""
    document, *steps = reference.split("/")
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        root = root.get(name) if isinstance(root, dict) else None
    return root if document == "#" else None


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def _listed(names: list[str], count: int, between: str = ", ") -> str:
    text = between.join(map(_cut, names[:MAX_NAMED]) if between == ", " else names[:MAX_NAMED])
    return text if count <= MAX_NAMED else f"{text}{between}{count - MAX_NAMED} more"


def _join(step: str, path: str) -> str:
    return f"{step}{'' if not step or not path or path.startswith('[') else '.'}{path}"
