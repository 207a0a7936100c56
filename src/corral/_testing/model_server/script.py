"""The script of a scripted model: a list of turns.

A turn is served to the first request that it applies to, and a request gets the
first turn, in order, that applies to it and has servings left. Turns without
``match``, ``pattern`` or ``for_method`` apply to every request of the
conversation, so a list of such turns is used from top to bottom.

This module is independent of the vendors' protocols: all of them use the same scripts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec

from corral._core.lookup import check_keys
from corral._core.nesting import TOO_DEEP, decode_toml, is_too_deep
from corral._testing.model_server.request import Call, Request
from corral.errors import ConfigError
from corral.values import Json, convert_to

if TYPE_CHECKING:
    Raw: TypeAlias = str | bytes
else:
    Raw = Any  # to msgspec, bytes are base64 in a string and clash with text

Restart = Literal["never", "at_end", "per_conversation"]
"""When a script starts over: never; when all its turns are served; or for each conversation, which
is a request without an answer of the model in its history."""

USAGE = ("input", "output", "cached", "written", "thoughts", "tool", "total")


class Expect(msgspec.Struct, frozen=True, kw_only=True):
    """What a request must contain to get its turn. A string means a list of one string.

    ::

        turn = Turn(text="hello", expect=Expect(text="Say hello", tools="read_file"))
    """

    tools: str | Sequence[str] = ()
    no_tools: str | Sequence[str] = ()
    text: str | Sequence[str] = ()
    """Each must be in the history or the system prompt."""
    no_text: str | Sequence[str] = ()
    results: str | Sequence[str] = ()
    """Tools whose result is in the history."""
    model: str | None = None

    def complaints(self, request: Request) -> list[str]:
        """Every way in which ``request`` is not as expected."""
        texts = "\n".join((request.system, *request.texts))
        returned = {name for name, _ in request.tool_results}
        wrong = [f"no tool {n!r} is declared" for n in pieces(self.tools) if n not in request.tools]
        wrong += [f"tool {n!r} is declared" for n in pieces(self.no_tools) if n in request.tools]
        wrong += [f"text {text!r} is missing" for text in pieces(self.text) if text not in texts]
        wrong += [f"text {text!r} is present" for text in pieces(self.no_text) if text in texts]
        wrong += [f"no result of {n!r}" for n in pieces(self.results) if n not in returned]
        if self.model is not None and self.model != request.model:
            wrong.append(f"the model is {request.model!r}, not {self.model!r}")
        return wrong


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, or one fault in its place. Raises ``ConfigError`` if the fields conflict.

    ::

        turn = Turn(text=["hel", "lo"], usage={"input": 10, "output": 2})
    """

    text: str | Sequence[str] = ()
    """Several strings are several chunks of the stream."""
    thoughts: str | Sequence[str] = ()
    signature: str | None = None
    """The thought signature, before encoding. Thoughts come with one in any case."""
    calls: Sequence[Call] = ()
    usage: Mapping[str, int] | bool | None = None
    """``input`` includes what was ``cached`` before and is ``written`` to the cache now; ``output``
    is without ``thoughts``. ``None``: counted from the text. ``False``: none is sent."""
    finish: str | None = "STOP"
    """``None`` or empty: the stream ends without one."""
    block_reason: str | None = None
    """The prompt is refused: the response has no candidate, only this reason."""

    status: int | None = None
    """An HTTP error in place of an answer."""
    late: bool = False
    """The error is sent in the stream, after the content of the turn. Without a stream it replaces
    the content."""
    message: str | None = None
    error_status: str | None = None
    """For example ``RESOURCE_EXHAUSTED``. Default: the one for ``status``."""
    retry_after: float | None = None
    quota_id: str | None = None

    delay: float = 0.0
    """Seconds before the first byte."""
    chunk_delay: float = 0.0
    hang: bool | Literal["after"] = False
    """True: nothing is sent. ``after``: nothing is sent after the first chunk."""
    cut: int | None = None
    """The connection is closed after this many chunks. 0: without a response."""
    cut_bytes: int | None = None
    """The same, counted in bytes of the body."""
    malformed: Raw | None = None
    """``html``, ``json`` or the bytes themselves, after the chunks of ``text`` if there are any."""

    repeat: int | Literal["forever"] = 1
    match: str | None = None
    """Only for requests whose last user text contains this."""
    pattern: str | None = None
    """Only for requests in whose last user text this regular expression is found."""
    for_method: str | None = None
    """Only for this method, and then also for calls outside the conversation."""
    expect: Expect | None = None

    def __post_init__(self) -> None:
        if isinstance(self.usage, Mapping):
            check_keys("usage:", self.usage, USAGE)
        if self.usage is True:
            raise ConfigError("usage must be a table of counts, or false")
        self._check_status()
        if type(self.malformed) not in (str, bytes, type(None)):
            raise ConfigError("malformed must be text or bytes")
        if self.repeat != "forever" and self.repeat < 1:
            raise ConfigError(f"repeat must be 1 or more, or 'forever', not {self.repeat}")
        for name in ("delay", "chunk_delay", "retry_after", "cut", "cut_bytes"):
            if (number := getattr(self, name)) is not None and number < 0:
                raise ConfigError(f"{name} cannot be negative: {number}")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ConfigError(f"pattern {self.pattern!r}: {error}") from error

    def _check_status(self) -> None:
        if self.late and self.status is None:
            raise ConfigError("a late error needs a status")
        if self.status is None:
            return
        if not 400 <= self.status <= 599:
            raise ConfigError(f"status must be an HTTP error from 400 to 599, not {self.status}")
        if (self.text or self.calls or self.thoughts) and not self.late:
            raise ConfigError(
                "a turn with a status answers with an error: it cannot have content unless late"
            )

    @property
    def is_answer(self) -> bool:
        """Whether the client gets a complete answer."""
        faults = (self.status, self.cut, self.cut_bytes, self.malformed, self.block_reason)
        return not self.hang and all(fault is None for fault in faults)

    def applies(self, request: Request) -> bool:
        if self.for_method is None and request.aside:
            return False
        return (
            (self.for_method is None or self.for_method == request.method)
            and (self.match is None or self.match in request.last_text)
            and (self.pattern is None or re.search(self.pattern, request.last_text) is not None)
        )


def say(*chunks: str, usage: Mapping[str, int] | None = None, finish: str = "STOP") -> Turn:
    """A turn with this text, one chunk per string.

    ::

        script = [say("hel", "lo")]
    """
    return Turn(text=chunks, usage=usage, finish=finish)


def call(name: str, /, **args: Json) -> Turn:
    """A turn with one function call.

    ::

        script = [call("read_file", file_path="README.md"), say("It is a small project.")]
    """
    return Turn(calls=[Call(name, args)])


def fail(
    status: int,
    message: str | None = None,
    *,
    retry_after: float | None = None,
    quota_id: str | None = None,
    times: int | Literal["forever"] = 1,
) -> Turn:
    """A turn that fails with this HTTP status, ``times`` times.

    ::

        script = [fail(429, "too many requests"), say("hello")]
    """
    return Turn(
        status=status, message=message, retry_after=retry_after, quota_id=quota_id, repeat=times
    )


def hang(first: str | None = None) -> Turn:
    """A turn without a response, or one that stops after a first chunk.

    ::

        script = [hang("The answer is")]
    """
    return Turn(hang=True) if first is None else Turn(text=first, hang="after")


class Script(msgspec.Struct, frozen=True):
    """The turns of the default lane, and of lanes with their own.

    ::

        script = Script.load("script.toml")
        with ModelServer(script) as server:
            print(server.url)
    """

    turns: Sequence[Turn] = ()
    lanes: Mapping[str, Sequence[Turn]] = {}
    restart: Restart = "never"
    """When the turns of a lane start over."""

    @classmethod
    def load(cls, path: str | Path) -> Script:
        """Read a ``.toml`` or ``.json`` file. Raises ``ConfigError``, with the place."""
        path = Path(path)
        try:
            return cls.parse(path.read_text("utf-8"), "json" if path.suffix == ".json" else "toml")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text in UTF-8"
            hint = f"`corral fake new {path}` writes an example." if not path.exists() else ""
            raise ConfigError(f"cannot read the script {path}: {why}", hint=hint) from error
        except ConfigError as error:
            raise ConfigError(f"{path}{error.message}", hint=error.hint) from error.__cause__

    @classmethod
    def parse(cls, text: str, syntax: Literal["toml", "json"] = "toml") -> Script:
        """The same from a string. A message starts with the place: ``:3:7: …``."""
        table = _parse_toml(text) if syntax == "toml" else _parse_json(text)
        if not isinstance(table, dict):
            raise ConfigError(": a script is a table with [[turn]] entries")
        check_keys(":", table, ("turn", "lane", "restart"))
        lanes = table.get("lane", {})
        if not isinstance(lanes, dict):
            raise ConfigError(": lane must be a table: [[lane.NAME.turn]]")
        lane_turns: dict[str, tuple[Turn, ...]] = {}
        for name, lane in lanes.items():
            if not isinstance(lane, dict):
                raise ConfigError(f": lane {name!r} must be a table: [[lane.{name}.turn]]")
            check_keys(f": lane {name!r}:", lane, ("turn",))
            lane_turns[name] = _parse_turns(f": lane {name!r}, ", lane.get("turn", []))
        restart = table.get("restart", "never")
        if restart not in get_args(Restart):
            known = ", ".join(get_args(Restart))
            raise ConfigError(f": restart must be one of {known}, got: {restart!r}")
        turns = _parse_turns(": ", table.get("turn", []))
        return cls(turns, lane_turns, convert_to(restart, Restart))


Source: TypeAlias = "Script | Sequence[Turn] | Callable[[Request], Turn]"


class Cursor:
    """The position of one lane in its script, or with ``per_conversation`` that of each of its
    conversations."""

    def __init__(
        self,
        source: Iterable[Turn] | Callable[[Request], Turn],
        restart: Restart = "never",
    ) -> None:
        self.served: int = 0
        self.is_function: bool = callable(source)
        self._ask = source if callable(source) else None
        self._turns = () if callable(source) else tuple(source)
        self._restart = restart
        self._position = _Position(self._turns)
        self._conversations: dict[str, list[_Position]] = {}
        """The first text of the user → the conversations that began with it."""

    def take(self, request: Request) -> Turn | None:
        """The turn for ``request``; ``None`` if no turn applies any more."""
        if self._ask is not None:
            if request.aside:
                return None
            self.served += 1
            return self._ask(request)
        position = self._position_for(request)
        turn = position.take(request)
        if turn is None and self._restart == "at_end" and not request.aside:
            position = self._position = _Position(self._turns)
            turn = position.take(request)
        self.served += turn is not None
        return turn

    def _position_for(self, request: Request) -> _Position:
        if self._restart != "per_conversation" or request.aside:
            return self._position
        first = next((message.texts for message in request.history if message.texts), ())
        known = self._conversations.setdefault("\n".join(first), [])
        answers = sum(message.role == "model" for message in request.history)
        for position in reversed(known):
            if position.answers == answers:
                return position
        if answers and known:  # the client left some answers out of its history
            return known[-1]
        known.append(_Position(self._turns))
        return known[-1]


class _Position:
    """The turns that are left, of one conversation or of all of them."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._left = [(t, float("inf") if t.repeat == "forever" else t.repeat) for t in turns]
        self.answers = 0
        """Turns served that are an answer and not a fault."""

    def take(self, request: Request) -> Turn | None:
        for place, (turn, servings) in enumerate(self._left):
            if turn.applies(request):
                if servings > 1:
                    self._left[place] = (turn, servings - 1)
                else:
                    del self._left[place]
                self.answers += turn.is_answer
                return turn
        return None


def pieces(text: str | Sequence[str]) -> Sequence[str]:
    """A string as a list of one."""
    return (text,) if isinstance(text, str) else text


def _parse_turns(where: str, entries: Json) -> tuple[Turn, ...]:
    if not isinstance(entries, list):
        raise ConfigError(f"{where}turn must be a list of tables: [[turn]]")
    return tuple(_parse_turn(f"{where}turn {n}:", entry) for n, entry in enumerate(entries, 1))


def _parse_turn(where: str, entry: Json) -> Turn:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} a turn must be a table")
    if "call" in entry:
        entry = {"calls" if key == "call" else key: value for key, value in entry.items()}
    check_keys(where, entry, Turn.__struct_fields__)
    calls, expect = entry.get("calls"), entry.get("expect")
    for n, made in enumerate(calls if isinstance(calls, list) else [], 1):
        if isinstance(made, dict):
            check_keys(f"{where} call {n}:", made, Call.__struct_fields__)
    if isinstance(expect, dict):
        check_keys(f"{where} expect:", expect, Expect.__struct_fields__)
    try:
        return convert_to(entry, Turn)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        place = f" {place.rstrip('`')}:" if place else ""
        raise ConfigError(f"{where}{place} {what[:1].lower()}{what[1:]}") from error


def _parse_toml(text: str) -> Json:
    import tomllib

    try:
        return decode_toml(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", str(error))
        if at is None:
            raise ConfigError(f": {error}") from error
        line, column = at[1] or text.count("\n") + 1, at[2] or len(text) - text.rfind("\n")
        raise ConfigError(f":{line}:{column}: {str(error)[: at.start()]}") from error


def _parse_json(text: str) -> Json:
    import json

    try:
        table: Json = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f":{error.lineno}:{error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise ConfigError(f": {TOO_DEEP}") from error
    if is_too_deep(table):
        raise ConfigError(f": {TOO_DEEP}")
    return table
