"""Reading a pipeline's text word by word, with a finger on the place."""

from __future__ import annotations

from corral.pipelines import tokens
from corral.pipelines.graph import Value
from corral.pipelines.tokens import KEYWORDS, DotError


class Reader:
    """A text and how far it is read. What does not fit raises ``DotError``."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.at = 0
        self.words = tokens.Words()
        self.keys = tokens.Keys()
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
        found = tokens.ATTRIBUTE_KEY.match(self.text, begin)
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
        found = tokens.UNQUOTED.match(self.text, self.at)
        if found is None:
            skipped = self.text[after : self.at].strip()
            hint = "A # begins a comment: put such a value in quotes." if skipped[:1] == "#" else ""
            raise self.error(f"expected a value after {key} =", hint=hint or self.odd())
        try:
            value = self.words[found[0]]
        except ValueError as error:
            raise self.error(f"{found[0][:40]} is no value", hint=str(error)) from None
        if not tokens.AFTER_VALUE.match(self.text, found.end()):
            raise self.error("this value needs quotes", hint=self.odd())
        self.at = found.end()
        return value

    def name(self, wanted: str) -> str:
        if self.sees('"'):
            return self.string()
        found = tokens.IDENTIFIER.match(self.text, self.at)
        if found is None:
            raise self.error(f"expected {wanted}", hint=self.odd())
        if self.text[found.end() : found.end() + 1].isalnum():  # beyond ASCII, that is
            raise self.error("a letter that needs quotes", hint=self.odd())
        self.at = found.end()
        return found[0]

    def port(self) -> None:
        found = tokens.PORT.match(self.text, self.at)
        if found is None:
            self.name("a port")
        else:
            self.at = found.end()

    def odd(self) -> str | None:
        """What to do with a name that needs quotes."""
        found = tokens.ODD_NAME.match(self.text, self.at)
        if found is None or not (found[0][0].isalnum() or len(found[0]) > 2):
            return None
        return f'Put it in quotes: "{found[0][:40]}".'

    def string(self) -> str:
        found = tokens.QUOTED.match(self.text, self.at)
        if found is None:
            raise self.error("this string is not closed", hint='A " inside one is written \\".')
        self.at = found.end()
        return tokens.unescaped(found[0][1:-1])

    def keyword(self, at: int | None = None) -> str:
        found = tokens.IDENTIFIER.match(self.text, self.at if at is None else at)
        word = found[0].lower() if found else ""
        return word if word in KEYWORDS else ""

    def skip(self) -> None:
        found = tokens.SKIP.match(self.text, self.at)
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
