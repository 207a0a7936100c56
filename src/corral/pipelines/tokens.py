"""The words of a pipeline file: names, values, comments; and the error that points at one.

Every pattern is possessive: none ever goes back over what it has read, so no input, however
nasty, takes more than one look at each character.
"""

from __future__ import annotations

import re
from math import isfinite

from corral.errors import PipelineInvalid
from corral.pipelines.graph import Value

ID = r"[A-Za-z_][A-Za-z0-9_]*+"
KEY = r"[A-Za-z_][A-Za-z0-9_]*+(?:\.[A-Za-z0-9_]++)*+"
STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
BARE = r"-?[A-Za-z0-9_.][A-Za-z0-9_.:-]*+"
"""Any value without quotes; ``Words`` says what it is."""

SKIP = re.compile(
    r"(?:\s++|//[^\n]*+|\#[^\n]*+|/\*[^*]*+(?:\*(?!/)[^*]*+)*+\*/)*+",
)
IDENTIFIER = re.compile(ID)
PORT = re.compile(r"[A-Za-z0-9_]++")
ATTRIBUTE_KEY = re.compile(KEY)
QUOTED = re.compile(STRING, re.DOTALL)
UNQUOTED = re.compile(BARE)
AFTER_VALUE = re.compile(r"[\s,;\[\]{}#]|//|/\*|\Z")
ODD_NAME = re.compile(r"[^\s\[\]{}()\"';,=<>]++")
"""What somebody may have meant as a name, for a message."""

KEYWORDS = frozenset(("node", "edge", "graph", "digraph", "subgraph", "strict"))
"""In any case of letters, as Graphviz has it; in quotes they are names."""

_INTEGER = re.compile(r"-?[0-9]+")
_FLOAT = re.compile(r"-?(?:[0-9]+\.[0-9]*|\.[0-9]+)")
_DURATION = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d)")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "\n": ""}
"""A backslash before the end of a line joins it to the next, as in Graphviz. Any other stays
as it is: prompts are full of them."""
_LARGEST = 2**63 - 1
"""What JSON readers take as an integer."""
_LINE_SHOWN = 100


class DotError(PipelineInvalid):
    """A file that is no pipeline: where, what was expected there, and what to do."""

    code = "dot"

    def __init__(
        self, message: str, *, text: str, position: int, source: str, hint: str | None = None
    ) -> None:
        self.line = text.count("\n", 0, position) + 1
        begin = text.rfind("\n", 0, position) + 1
        self.column = position - begin + 1
        self.source = source
        self.problem = message
        whole = f"{source}:{self.line}:{self.column}: {message}"
        super().__init__(f"{whole}\n{_shown(text, begin, position)}", hint=hint)


def _shown(text: str, begin: int, position: int) -> str:
    """The line with a caret below the place; of a long one, what is near it."""
    end = text.find("\n", position)
    end = len(text) if end < 0 else end
    first = max(begin, position - _LINE_SHOWN // 2)
    last = min(end, first + _LINE_SHOWN)
    before = "".join("\t" if c == "\t" else " " for c in text[first:position])
    head, tail = "…" * (first > begin), "…" * (last < end)
    return f"    {head}{text[first:last]}{tail}\n    {' ' * len(head)}{before}^"


def unescaped(text: str) -> str:
    """What stands between quotes, as it is meant."""
    return _ESCAPE.sub(_meant, text) if "\\" in text else text


def _meant(match: re.Match[str]) -> str:
    return _ESCAPED.get(match[1], match[0])


class Words(dict[str, Value]):
    """What a value without quotes is; found once a word. Raises ``ValueError``, with what to
    do, for what is none."""

    def __missing__(self, text: str) -> Value:
        value = self[text] = _value(text)
        return value


class Keys(dict[str, str]):
    """One string for each name of an attribute, however often it is written."""

    def __missing__(self, text: str) -> str:
        self[text] = text
        return text


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    if _WORD.fullmatch(text) or _DURATION.fullmatch(text):
        return text
    if _INTEGER.fullmatch(text):
        whole = int(text) if len(text) < 25 else _LARGEST + 1
        if abs(whole) > _LARGEST:
            raise ValueError("Integers have at most 64 bits; put a longer one in quotes.")
        return whole
    if _FLOAT.fullmatch(text) and isfinite(number := float(text)):
        return number
    raise ValueError(f'Put it in quotes: "{text[:40]}".')
