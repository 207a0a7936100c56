"""Small value types: JSON, usage, cost, budgets, changed files, MCP servers; slugs and paths.

``Json`` is the type of every value that came from a JSON decoder (``msgspec.json.decode`` returns
``Any``, so ``value: Json = msgspec.json.decode(data)`` needs no cast). The ``as_...`` and
``..._or_none`` functions read fields of untrusted JSON: a field of another type is treated as
missing, never as an error.
"""

from __future__ import annotations

import functools
import re
import weakref
from _thread import allocate_lock
from collections.abc import Callable, Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeGuard,
    overload,
)

import msgspec

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # only type checkers have it, and know the default

    Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True, default=Any)
    OutputT = TypeVar("OutputT", default=None)
    OutputT_co = TypeVar("OutputT_co", covariant=True, default=None)
    ValueT = TypeVar("ValueT", default=Json)
else:
    from typing import TypeVar

    Json = Any  # msgspec does not support recursive aliases
    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)
    OutputT = TypeVar("OutputT")
    OutputT_co = TypeVar("OutputT_co", covariant=True)
    ValueT = TypeVar("ValueT")
"""``T_co`` is the type of typed output: ``Result`` without a parameter is ``Result[Any]``.
``OutputT`` is that of a call with ``output``, and ``ValueT`` that of a value that is read: without
``output`` they are ``None`` and ``Json``. With these defaults one signature is enough: for a
misspelled keyword of a function with overloads, type checkers print all of them."""
__all__ = [
    "AgentSession", "AskedQuestion", "Cost", "CostSource", "Coverage", "DeniedCall", "Effort",
    "FileChanged", "Json", "JsonObject", "McpServer", "Output", "OutputSchema", "Proof",
    "QuestionOutcome", "Usage", "UsageSource", "path_from_printable", "printable_path",
]  # fmt: skip
P = ParamSpec("P")
JsonObject: TypeAlias = dict[str, Json]


class OutputSchema(Protocol[T_co]):
    """What ``corral.schema_of`` returns, for the layers below it.

    ::

        schema = corral.schema_of({"type": "object", "properties": {"name": {"type": "string"}}})
        print(corral.run_sync("gemini", "Invent a name", output=schema).output)
    """

    def typed_value(self, value: Json) -> T_co: ...


Output: TypeAlias = type[T] | OutputSchema[T]
"""The type of ``output``: a class or a generic type such as ``list[Review]``. For type checkers,
``corral.schema_of`` makes one of everything else: a JSON Schema, ``Literal`` or a union."""
DecodeHook: TypeAlias = Callable[[type, Any], Any]

Coverage = Literal["complete", "partial", "estimated", "unknown"]
"""``estimated``: no one reported the usage of a model call that was sent, at least in part, and it
is counted by the size of the request."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
"""How much a model should reason."""
CostSource = Literal["metered", "estimated", "reported", "computed", "unknown"]
"""``metered``: by the tokens of all model calls, which corral counted, and known prices;
``estimated``: so, but the tokens of at least one call are an estimate."""
UsageSource = Literal["metered", "reported", "unknown"]
"""``metered``: corral counted all model calls; ``reported``: by the agent."""
Proof = Literal["tested", "probed", "trusted", "untested"]
"""What is known about an agent's program: corral was ``tested`` with these files; it was ``probed``
once with a scripted model; the caller ``trusted`` it; or nothing is known."""
MAX_TOKENS = 10**12
MAX_USD = 1e9
"""No run uses more. A larger number is an error of the agent and would make sums useless."""
_COUNTS = ("input", "output", "reasoning", "cache_read", "cache_write")


_built: set[object] = set()
_building = allocate_lock()
"""Of ``_thread``: this layer must not load ``threading``."""


def _build(kind: object) -> None:
    """Build what msgspec stores of a type at its first use, in one thread: it crashes the process
    if a second thread uses the type meanwhile."""
    if kind not in _built:
        with _building:
            msgspec.msgpack.Decoder(kind)
            _built.add(kind)


def weak_callback(method: Callable[P, object]) -> Callable[P, None]:
    """A function that calls a bound method, unless its object is gone. The object is not kept alive
    by this: a timer or another process must not hold what was dropped."""
    weak = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        bound = weak()
        if bound is not None:
            bound(*args, **kwargs)

    return call


@overload
def decode_as(data: bytes | str, kind: type[T], *, dec_hook: DecodeHook | None = None) -> T: ...
@overload
def decode_as(data: bytes | str, kind: Any, *, dec_hook: DecodeHook | None = None) -> Any: ...
def decode_as(data: bytes | str, kind: Any, *, dec_hook: DecodeHook | None = None) -> Any:
    """JSON as a value of this type, in any thread."""
    _build(kind)
    return msgspec.json.decode(data, type=kind, dec_hook=dec_hook)


def decode_or_none(body: bytes) -> Json:
    """The decoded JSON, or None if it is malformed."""
    try:
        value: Json = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value


@overload
def convert_to(value: object, kind: type[T], **options: Any) -> T: ...
@overload
def convert_to(value: object, kind: Any, **options: Any) -> Any: ...
def convert_to(value: object, kind: Any, **options: Any) -> Any:
    """Decoded JSON as a value of this type, in any thread. Options: as of ``msgspec.convert``."""
    _build(kind)
    return msgspec.convert(value, kind, **options)


@overload
def decoder_for(kind: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def decoder_for(kind: Any) -> msgspec.json.Decoder[Any]: ...
def decoder_for(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of JSON for this type, made in any thread. It is shared: it has no state."""
    with _building:
        return _decoder(kind)


@functools.lru_cache(maxsize=128)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def is_object(value: object) -> TypeGuard[JsonObject]:
    """Whether decoded JSON is an object. A decoder makes no keys but strings."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Json]]:
    """Whether decoded JSON is a list."""
    return isinstance(value, list)


def is_mapping(value: object) -> TypeGuard[Mapping[str, Json]]:
    """Whether this is any mapping, for JSON that the caller of the library passes."""
    return isinstance(value, Mapping)


def is_sequence(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    """Whether this is a list or a tuple."""
    return isinstance(value, list | tuple)


def as_object(value: object) -> JsonObject:
    """The value if it is an object, else an empty object."""
    return value if is_object(value) else {}


def as_list(value: object) -> list[Json]:
    """The value if it is a list, else an empty list."""
    return value if is_list(value) else []


def as_objects(value: object) -> list[JsonObject]:
    """The objects in a list; empty if the value is not a list."""
    return [each for each in as_list(value) if is_object(each)]


def as_texts(value: object) -> list[str]:
    """The strings in a list; empty if the value is not a list."""
    return [each for each in as_list(value) if isinstance(each, str)]


def deep_merge(body: Mapping[str, Json], more: Mapping[str, Json]) -> JsonObject:
    """Both merged: objects are merged recursively, anything else is replaced by ``more``."""
    result = dict(body)
    for name, value in more.items():
        before = result.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            result[name] = deep_merge(before, value)
        else:
            result[name] = value
    return result


def as_text(value: object) -> str:
    """The value if it is a string, else an empty string."""
    return value if isinstance(value, str) else ""


def text_or_none(value: object) -> str | None:
    """The value if it is a string."""
    return value if isinstance(value, str) else None


def int_or_none(value: object) -> int | None:
    """The value if it is an integer. ``True`` and ``False`` are not."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number_or_none(value: object) -> float | None:
    """The value if it is an integer or a float. ``True`` and ``False`` are not."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


SHORTEST_SECRET = 8
"""Characters. Redacting shorter values would damage ordinary text."""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Token counts. ``None`` means *not reported*, which is not 0; ``+`` preserves this.

    ``input`` includes tokens read from and written to a cache; ``output`` includes ``reasoning``.

    ::

        print(result.usage.input, result.usage.output, result.usage.total)
    """

    input: int | None = None
    """With what was read from and written to a cache."""
    output: int | None = None
    """With ``reasoning``."""
    reasoning: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    coverage: Coverage = "unknown"

    @property
    def total(self) -> int | None:
        """Input plus output, if either was reported."""
        known = [n for n in (self.input, self.output) if n is not None]
        return sum(known) if known else None

    def __add__(self, other: Usage) -> Usage:
        """The sum of two *separate* runs. A count that only one run has makes it partial, and an
        estimate makes it an estimate."""
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
        coverage: Coverage = "partial"
        if "estimated" in (self.coverage, other.coverage):
            coverage = "estimated"
        elif not gaps and self.coverage == other.coverage == "complete":
            coverage = "complete"
        return msgspec.structs.replace(summed, coverage=coverage)

    def __sub__(self, earlier: Usage) -> Usage:
        """The difference of two readings of the same cumulative counters."""

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
        """The same without impossible counts: negative, or above ``MAX_TOKENS``. These become
        *not reported*, and the coverage partial."""
        for count in (self.input, self.output, self.reasoning, self.cache_read, self.cache_write):
            if count and not 0 <= count <= MAX_TOKENS:
                break
        else:
            return self  # nearly always
        counts = {name: getattr(self, name) for name in _COUNTS}
        wrong = [n for n, count in counts.items() if count and not 0 <= count <= MAX_TOKENS]
        return msgspec.structs.replace(self, **dict.fromkeys(wrong), coverage="partial")


def add_by_model(one: Mapping[str, Usage], other: Mapping[str, Usage]) -> dict[str, Usage]:
    """The sum of two separate runs, by model."""
    return {name: one.get(name, Usage()) + other.get(name, Usage()) for name in {**one, **other}}


def subtract_by_model(now: Mapping[str, Usage], then: Mapping[str, Usage]) -> dict[str, Usage]:
    """The difference of two readings of the same cumulative counters, by model. A model that was
    not used in between is left out."""
    return {
        name: usage - then.get(name, Usage())
        for name, usage in now.items()
        if usage != then.get(name)
    }


class Cost(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A cost and its source. Unknown is ``None``, never 0.

    ::

        print(result.cost.usd, result.cost.source)
    """

    usd: float | None = None
    source: CostSource = "unknown"

    def __add__(self, other: Cost) -> Cost:
        """The sum of two separate runs; unknown if one of them is."""
        if self.usd is None or other.usd is None:
            return Cost()
        source: CostSource = self.source if self.source == other.source else "computed"
        if "estimated" in (self.source, other.source):
            source = "estimated"
        return Cost(self.usd + other.usd, source)

    def plausible(self) -> Cost:
        """The same, or unknown if the amount is negative, infinite or not a number."""
        return self if self.usd is None or 0 <= self.usd <= MAX_USD else Cost()


_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
_ESCAPED = rb'\\([0-3][0-7]{2}|[abtnvfr"\\])'


def printable_path(path: str) -> str:
    """The path as text that every JSON writer accepts.

    A path that is valid Unicode stays as it is. One that is not (its bytes are not UTF-8, so
    Python holds lone surrogates) is quoted as git quotes paths: ``"caf\\351.txt"``, with the double
    quotes. A path that begins with a double quote is quoted too, so nothing is ambiguous.
    ``path_from_printable`` gives the path back.

    ::

        print(printable_path(os.fsdecode(b"/w/caf\\351.txt")))
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
    """The path that ``printable_path`` wrote, as Python's file functions take it.

    ::

        for file in result.files:
            print(open(path_from_printable(file.path)).read())
    """
    if len(text) < 2 or not (text.startswith('"') and text.endswith('"')):
        return text
    named = {letter.encode(): bytes([byte]) for byte, letter in _ESCAPES.items()}

    def unescape(found: re.Match[bytes]) -> bytes:
        escape = found[1]
        return named[escape] if escape in named else bytes([int(escape, 8)])

    data = re.sub(_ESCAPED, unescape, text[1:-1].encode("utf-8", "surrogateescape"))
    return data.decode("utf-8", "surrogateescape")


def slug(text: str, *, limit: int, allowed: str = "", fill: str = "-", default: str = "") -> str:
    """Return ``text`` as a name of ASCII letters and digits, and characters of ``allowed``.

    Every other character becomes ``fill``. The name has at most ``limit`` characters and no
    ``fill`` or dot at its ends; if nothing is left it is ``default``. Different texts may get the
    same slug: add a hash where that matters.
    """
    name = re.sub(f"[^A-Za-z0-9{re.escape(allowed)}]", fill, text)
    return name.strip(f"{fill}.")[:limit].rstrip(f"{fill}.") or default


PUBLISH_AFTER = 1.0
"""Seconds after which a turn or a run becomes visible to other processes: a short one costs
nothing."""


class FileChanged(msgspec.Struct, frozen=True, omit_defaults=True):
    """One changed file of a result.

    ::

        for file in result.files:
            print(file.kind, file.path, file.lines_added)
    """

    path: str
    """Absolute. Quoted if the name on disk is not UTF-8: see ``printable_path``."""
    kind: Literal["created", "modified", "deleted", "moved"]
    lines_added: int | None = None
    lines_removed: int | None = None
    by_tool: bool = False
    """True if a tool of the agent reported it; false if only the disk shows it."""


def join_files(
    earlier: Iterable[FileChanged], later: Iterable[FileChanged]
) -> tuple[FileChanged, ...]:
    """What two turns, one after the other, changed together. The lines of a file that both changed
    are known only if the first created it."""
    files = {file.path: file for file in earlier}
    for file in later:
        old = files.pop(file.path, None)
        if old is None:
            files[file.path] = file
        elif (joined := _join_file(old, file)) is not None:
            files[file.path] = joined
    return tuple(files.values())


def _join_file(old: FileChanged, new: FileChanged) -> FileChanged | None:
    """None if it was created and deleted."""
    by_tool = old.by_tool or new.by_tool
    match old.kind, new.kind:
        case "created", "deleted":
            return None
        case "created", _:
            counts = (old.lines_added, new.lines_added, new.lines_removed)
            known = [each for each in counts if each is not None]
            added = known[0] + known[1] - known[2] if len(known) == len(counts) else None
            return FileChanged(new.path, "created", added, old.lines_removed, by_tool=by_tool)
        case "deleted", "created":
            return FileChanged(new.path, "modified", by_tool=by_tool)
        case _, kind:
            return FileChanged(new.path, kind, by_tool=by_tool)


class DeniedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call of the agent that was denied.

    ::

        for call in result.denied:
            print(call.name, call.title, call.rule)
    """

    name: str
    title: str | None = None
    reason: str | None = None
    """The agent's words, or ``permission was refused``."""
    call_id: str | None = None
    rule: str | None = None
    """The rule that denied it, if it is known."""


QuestionOutcome = Literal["answered", "declined", "no_person", "timeout", "cancelled"]
"""``declined``: a person gave no answer; ``no_person``: there was no one to ask; ``cancelled``: the
agent took the question back, or the turn was stopped."""


class AskedQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question of the agent to a person.

    ::

        for asked in result.questions:
            print(asked.text, asked.outcome, asked.answer)
    """

    text: str
    outcome: QuestionOutcome
    answer: str | None = None
    """The answer in one line, without secret parts; None if there was none."""
    reason: str | None = None
    """Who answered, or why there is no answer."""
    call_id: str | None = None


class McpServer(msgspec.Struct, frozen=True, omit_defaults=True):
    """An MCP server for the agent: a command or a URL. ``env`` and ``headers`` are secret.

    ::

        server = corral.McpServer("notes", ("python", "notes_server.py"))
        corral.run_sync("gemini-cli", "List my notes", mcp_servers=[server])
    """

    name: str
    """Letters, digits and ``-``: with ``_`` agents separate it from the name of a tool."""
    command: tuple[str, ...] = ()
    url: str | None = None
    env: dict[str, str] = {}
    headers: dict[str, str] = {}
    own: bool = False
    """The server of the caller's own functions. Set by corral; only this server may have the
    name ``corral``, which policies use."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9-]+", self.name):
            near = re.sub(r"[^A-Za-z0-9-]+", "-", self.name).strip("-")
            advice = f", such as {near}" if near else ""
            raise ValueError(f"MCP server name {self.name!r}: letters, digits and - only{advice}")

    def __repr__(self) -> str:
        where = self.url or " ".join(self.command)
        return (
            f"McpServer({self.name!r}, {where!r}, secrets={sorted({**self.env, **self.headers})})"
        )


class AgentSession(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session that the agent has stored, as the agent lists it.

    ::

        async with corral.session("opencode") as session:
            print([each.title for each in await session.list_sessions()])
    """

    id: str
    """The agent's own id, as in ``result.session_id``."""
    cwd: str | None = None
    title: str | None = None
    updated_at: str | None = None
    """As the agent writes it; by the protocol an ISO 8601 time."""
