"""What goes in and what is counted: attachments, usage, cost, files, refusals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

Coverage = Literal["complete", "partial", "unknown"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
"""How hard a model should think."""
CostSource = Literal["reported", "computed", "unknown"]
MOST_TOKENS = 10**12
MOST_USD = 1e9
"""Nobody's run takes more. A number beyond is an agent's mistake, and would spoil every sum."""
_COUNTS = ("input", "output", "reasoning", "cache_read", "cache_write")


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens. ``None`` is *not reported*, which is not 0; ``+`` keeps that.

    ``input`` includes what was read from and written to a cache; ``output``
    includes ``reasoning``.
    """

    input: int | None = None
    output: int | None = None
    reasoning: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    coverage: Coverage = "unknown"

    @property
    def total(self) -> int | None:
        """Input and output together, where either was reported."""
        known = [n for n in (self.input, self.output) if n is not None]
        return sum(known) if known else None

    def __add__(self, other: Usage) -> Usage:
        """Of two *separate* runs. A count that only one side knows makes the sum partial."""
        if self == Usage():
            return other
        if other == Usage():
            return self
        gaps = False

        def plus(a: int | None, b: int | None) -> int | None:
            nonlocal gaps
            if a is None or b is None:
                gaps = gaps or a is not b
                return a if b is None else b
            return a + b

        summed = Usage(
            input=plus(self.input, other.input),
            output=plus(self.output, other.output),
            reasoning=plus(self.reasoning, other.reasoning),
            cache_read=plus(self.cache_read, other.cache_read),
            cache_write=plus(self.cache_write, other.cache_write),
        )
        whole = not gaps and self.coverage == other.coverage == "complete"
        return msgspec.structs.replace(summed, coverage="complete" if whole else "partial")

    def __sub__(self, earlier: Usage) -> Usage:
        """What came since, of counters that go on from one turn to the next."""

        def since(now: int | None, then: int | None) -> int | None:
            return None if now is None else max(0, now - (then or 0))

        return msgspec.structs.replace(
            self,
            input=since(self.input, earlier.input),
            output=since(self.output, earlier.output),
            reasoning=since(self.reasoning, earlier.reasoning),
            cache_read=since(self.cache_read, earlier.cache_read),
            cache_write=since(self.cache_write, earlier.cache_write),
        )

    def plausible(self) -> Usage:
        """The same, without counts that cannot be: negative, or beyond ``MOST_TOKENS``. What
        is left out is not reported, and the coverage then partial."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        wrong = [n for n, count in counts.items() if count and not 0 <= count <= MOST_TOKENS]
        if not wrong:
            return self
        return msgspec.structs.replace(self, **dict.fromkeys(wrong), coverage="partial")


def add_by_model(one: Mapping[str, Usage], other: Mapping[str, Usage]) -> dict[str, Usage]:
    """Usage by model of two separate runs."""
    return {name: one.get(name, Usage()) + other.get(name, Usage()) for name in {**one, **other}}


def since_by_model(now: Mapping[str, Usage], then: Mapping[str, Usage]) -> dict[str, Usage]:
    """Usage by model that came since, of counters that go on from one turn to the next. A model
    that was not used meanwhile is left out."""
    return {
        name: usage - then.get(name, Usage())
        for name, usage in now.items()
        if usage != then.get(name)
    }


class Cost(msgspec.Struct, frozen=True, omit_defaults=True):
    """Money, with where the figure comes from. Unknown is ``None``, never 0."""

    usd: float | None = None
    source: CostSource = "unknown"

    def plausible(self) -> Cost:
        """The same, or unknown where the sum is negative, endless or no number."""
        return self if self.usd is None or 0 <= self.usd <= MOST_USD else Cost()


_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
_UNQUOTED = re.compile(rb'\\([0-3][0-7]{2}|[abtnvfr"\\])')


def printable_path(path: str) -> str:
    """The path as text that every JSON writer accepts.

    A path that is valid Unicode stays as it is. One that is not (its bytes are not UTF-8, so
    Python holds lone surrogates) is quoted as git quotes paths: ``"caf\\351.txt"``, with the double
    quotes. A path that begins with a double quote is quoted too, so nothing is ambiguous.
    ``path_from_printable`` gives the path back.
    """
    try:
        path.encode()
        if not path.startswith('"'):
            return path
    except UnicodeEncodeError:
        pass
    parts: list[str] = []
    for byte in path.encode("utf-8", "surrogateescape"):
        if byte in _ESCAPES:
            parts.append(f"\\{_ESCAPES[byte]}")
        else:
            parts.append(chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
    return f'"{"".join(parts)}"'


def path_from_printable(text: str) -> str:
    """The path that ``printable_path`` wrote, as Python's file functions take it."""
    if len(text) < 2 or not (text.startswith('"') and text.endswith('"')):
        return text
    named = {letter.encode(): bytes([byte]) for byte, letter in _ESCAPES.items()}

    def plain(found: re.Match[bytes]) -> bytes:
        word = found[1]
        return named[word] if word in named else bytes([int(word, 8)])

    data = _UNQUOTED.sub(plain, text[1:-1].encode("utf-8", "surrogateescape"))
    return data.decode("utf-8", "surrogateescape")


class FileChanged(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file in a result: what happened to it, and who says so."""

    path: str
    """Absolute. Where the name on disk is not UTF-8, quoted: see ``printable_path``."""
    kind: Literal["created", "modified", "deleted", "moved"]
    lines_added: int | None = None
    lines_removed: int | None = None
    by_tool: bool = False
    """A tool of the agent reported it; false: only the disk shows it."""


class DeniedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something the agent tried and was not allowed."""

    name: str
    title: str | None = None
    reason: str | None = None
    call_id: str | None = None
    rule: str | None = None


class McpServer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool server the agent may use: a command, or a URL. ``env`` and ``headers`` are secret."""

    name: str
    command: tuple[str, ...] = ()
    url: str | None = None
    env: dict[str, str] = {}
    headers: dict[str, str] = {}
    own: bool = False
    """The server of the caller's own functions. Set by corral; only such a server may have the
    name ``corral``, by which policies know it."""

    def __repr__(self) -> str:
        where = self.url or " ".join(self.command)
        return (
            f"McpServer({self.name!r}, {where!r}, secrets={sorted({**self.env, **self.headers})})"
        )


class AgentSession(msgspec.Struct, frozen=True, omit_defaults=True):
    """A conversation that the agent itself keeps, as it lists it."""

    id: str
    """The agent's own, as in ``result.session_id``."""
    cwd: str | None = None
    title: str | None = None
    updated_at: str | None = None
    """As the agent writes it: by the protocol an ISO 8601 time."""
