"""A text as a string of another language: JSON, TOML, a regular expression over JSON."""

from __future__ import annotations

import re

import msgspec

_SPECIAL = re.compile(r"[\\^$.*+?()\[\]{}|/\-]")


def json_string(text: str) -> str:
    """A JSON string. Only what must be escaped is. A lone surrogate, which JSON cannot contain,
    becomes U+FFFD."""
    try:
        return msgspec.json.encode(text).decode()
    except UnicodeEncodeError:
        plain = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return msgspec.json.encode(plain).decode()


def toml_string(text: str) -> str:
    """A TOML basic string. JSON's escapes are TOML's but for DEL, which JSON leaves as it is."""
    return json_string(text).replace("\x7f", "\\u007f")


def json_pattern(text: str) -> str:
    """A regular expression that matches the text inside a JSON string."""
    return _SPECIAL.sub(lambda found: "\\" + found[0], json_string(text)[1:-1])
