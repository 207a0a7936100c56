"""Reading a pipeline's text word by word, with a finger on the place."""

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


class Reader:
    """A text and how far it is read. What does not fit raises ``DotError``."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.at = 0
        self.words = Words()
        self.keys = Keys()
        self._counted = 0
        self._line = 1
        self._line_begins = 0

    def place(self, position: int) -> tuple[int, int]:
        """Line and column. Ask for places in the order of the text: each line is counted once."""
        lines = self.text.count("\n", self._counted, position)
        if lines:
            self._line += lines
            self._line_begins = self.text.rfind("\n", self._counted, position) + 1
        self._counted = position
        return self._line, position - self._line_begins + 1

    def blocks(self) -> dict[str, Value]:
        """``[a=1, b=2] [c=3]``, as many as there are."""
        given: dict[str, Value] = {}
        while self.sees("["):
            line, _ = self.place(self.at)
            self.at += 1
            self.skip()
            while not self.sees("]"):
                if self.at >= len(self.text):
                    raise self.error(f"expected ]: the [ of line {line} is not closed")
                self.attribute(given)
            self.at += 1
            self.skip()
        return given

    def attribute(self, given: dict[str, Value]) -> None:
        begin = self.at
        found = ATTRIBUTE_KEY.match(self.text, begin)
        if found is not None:
            key = found[0]
            self.at = found.end()
        elif self.sees('"'):
            key = self.string()
        else:
            raise self.error("expected the name of an attribute, or ]")
        self.skip()
        if not self.sees("="):
            raise self.error(f"expected = after {key}", hint=f'An attribute is {key}="value".')
        self.at += 1
        given[self.keys[key]] = self.value(key)
        self.skip()
        if self.sees(",") or self.sees(";"):
            self.at += 1
            self.skip()

    def value(self, key: str) -> Value:
        after = self.at
        self.skip()
        if self.sees('"'):
            parts = [self.string()]
            self.skip()
            while self.sees("+"):  # Graphviz joins strings so
                self.at += 1
                self.skip()
                if not self.sees('"'):
                    raise self.error("expected a string after +")
                parts.append(self.string())
                self.skip()
            return "".join(parts)
        if self.sees("<"):
            hint = f'Write text in quotes: {key}="…".'
            raise self.error("HTML values are not understood", hint=hint)
        found = UNQUOTED.match(self.text, self.at)
        if found is None:
            skipped = self.text[after : self.at].strip()
            hint = "A # begins a comment: put such a value in quotes." if skipped[:1] == "#" else ""
            raise self.error(f"expected a value after {key} =", hint=hint or self.odd())
        try:
            value = self.words[found[0]]
        except ValueError as error:
            raise self.error(f"{found[0][:40]} is no value", hint=str(error)) from None
        if not AFTER_VALUE.match(self.text, found.end()):
            raise self.error("this value needs quotes", hint=self.odd())
        self.at = found.end()
        return value

    def name(self, wanted: str) -> str:
        if self.sees('"'):
            return self.string()
        found = IDENTIFIER.match(self.text, self.at)
        if found is None:
            raise self.error(f"expected {wanted}", hint=self.odd())
        if self.text[found.end() : found.end() + 1].isalnum():  # beyond ASCII, that is
            raise self.error("a letter that needs quotes", hint=self.odd())
        self.at = found.end()
        return found[0]

    def port(self) -> None:
        found = PORT.match(self.text, self.at)
        if found is None:
            self.name("a port")
        else:
            self.at = found.end()

    def odd(self) -> str | None:
        """What to do with a name that needs quotes."""
        found = ODD_NAME.match(self.text, self.at)
        if found is None or not (found[0][0].isalnum() or len(found[0]) > 2):
            return None
        return f'Put it in quotes: "{found[0][:40]}".'

    def string(self) -> str:
        found = QUOTED.match(self.text, self.at)
        if found is None:
            raise self.error("this string is not closed", hint='A " inside one is written \\".')
        self.at = found.end()
        return unescaped(found[0][1:-1])

    def keyword(self, at: int | None = None) -> str:
        found = IDENTIFIER.match(self.text, self.at if at is None else at)
        word = found[0].lower() if found else ""
        return word if word in KEYWORDS else ""

    def skip(self) -> None:
        found = SKIP.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        if self.text.startswith("/*", self.at):
            raise self.error("this comment is not closed", hint="It ends at */.")

    def sees(self, character: str) -> bool:
        return self.text.startswith(character, self.at)

    def expect(self, character: str, message: str) -> None:
        if not self.sees(character):
            raise self.error(message, hint=self.odd())
        self.at += 1

    def error(self, message: str, *, hint: str | None = None, at: int | None = None) -> DotError:
        position = self.at if at is None else at
        return DotError(
            message, text=self.text, position=position, source=self.source, hint=hint or None
        )
