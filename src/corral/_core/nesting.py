"""Decodes JSON and TOML from outside, with a limit on the nesting depth.

Decoders and encoders recurse, and the possible depth depends on the caller: a value that was
decoded may be too deep to encode. Input that is nested deeper than ``MAX_DEPTH`` is therefore
rejected where it is read, instead of raising ``RecursionError`` later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeAlias, TypeVar, overload

import msgspec

from corral.values import Json, JsonObject, decode_as, is_object

MAX_DEPTH = 200
TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"
MAX_KEY_PARTS = 50
"""Parts of one dotted TOML key. The parser's time grows with their square."""

_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_KEY_PARTS}}}"

_INVALID = "Invalid value"
_EXPECTED = f"{_INVALID}: expected a number, true, false, a list, or a text in quotes"
_JSON_STRING = rb'"(?:[^"\\]++|\\.)*+"'

T = TypeVar("T")


@overload
def decode_json(data: bytes | str) -> Json: ...
@overload
def decode_json(data: bytes | str, type: type[T]) -> T: ...
def decode_json(data: bytes | str, type: object = Any) -> object:
    """Raises ``msgspec.DecodeError`` (or ``UnicodeDecodeError``), also if it is too deep."""
    try:
        value: object = decode_as(data, type)
    except RecursionError as error:
        raise msgspec.DecodeError(TOO_DEEP) from error
    if is_too_deep(value):
        raise msgspec.DecodeError(TOO_DEEP)
    return value


def has_more_containers(data: bytes, most: int) -> bool:
    """Whether JSON text has more than ``most`` lists and objects. Those cost most when it is
    decoded, 50 times the size of the text, and this is known before."""
    if data.count(b"[") + data.count(b"{") <= most:
        return False
    plain = re.sub(_JSON_STRING, b"", data)
    return plain.count(b"[") + plain.count(b"{") > most


def decode_toml(text: str) -> JsonObject:
    """Raises ``tomllib.TOMLDecodeError``, also if a key or value is too deep. A date or time stays
    an object of ``datetime``: nothing that is read from TOML here may be one."""
    import tomllib

    if re.search(_LONG_KEY, text):
        raise tomllib.TOMLDecodeError(f"a key has more than {MAX_KEY_PARTS} parts")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:  # its message ends in line and column
        raise tomllib.TOMLDecodeError(str(error).replace(_INVALID, _EXPECTED, 1)) from error
    except RecursionError as error:
        raise tomllib.TOMLDecodeError(TOO_DEEP) from error
    if is_too_deep(table):
        raise tomllib.TOMLDecodeError(TOO_DEEP)
    return table


def is_too_deep(value: object) -> bool:
    """Whether lists and dicts are nested deeper than ``MAX_DEPTH``. Never recurses."""
    if is_object(value):
        for each in value.values():
            if type(each) not in _SCALARS:
                break
        else:
            return False  # the arguments of most tool calls
    level = _containers_in((value,))
    if not level:
        return False
    for _ in range(MAX_DEPTH):
        below: list[_Container] = []
        for each in level:
            below += _containers_in(each.values() if isinstance(each, dict) else each)
        if not below:
            return False
        level = below
    return bool(level)


_SCALARS: frozenset[type] = frozenset({str, int, float, bool, type(None)})
_Container: TypeAlias = dict[str, Json] | list[Json]


def _containers_in(values: Iterable[object]) -> list[_Container]:
    return [each for each in values if isinstance(each, (dict, list))]
