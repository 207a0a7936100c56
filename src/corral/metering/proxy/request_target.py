"""The target of a request, read once: what is judged is what is sent.

Servers read the same target in different ways: ``/v1/messages#/count_tokens`` is ``/v1/messages``
for one and an unknown path for another, and so it is with ``models/../files``, ``%2e%2e``, ``//``
and ``;a=b``. A target that could have more than one meaning is refused. All others are sent in one
form: the decoded path, which needs no escapes, and the query, encoded again.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote_plus, unquote_to_bytes

import msgspec

LARGEST_TARGET = 16 * 1024
"""Characters."""
_SEGMENT = re.compile(r"[A-Za-z0-9._~!$&'()*+,=:@-]+")
"""A decoded segment: what RFC 3986 allows without escapes, but no ``;``, which begins parameters of
the segment for some servers."""
_QUERY = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@%/?\[\]|-]*")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_UNESCAPED = "!'()*,:@~/$"
"""Characters of a query that are not escaped."""


class BadTarget(ValueError):
    """A target that could be read in more than one way."""


class RequestTarget(msgspec.Struct, frozen=True):
    path: str
    """Below the path of the base URL, decoded."""
    query: tuple[tuple[str, str], ...] = ()
    """Decoded, in order."""

    def encode(self) -> str:
        """As it is sent, without the path of the base URL."""
        parameters = [
            f"{quote(name, safe=_UNESCAPED)}={quote(value, safe=_UNESCAPED)}"
            for name, value in self.query
        ]
        return f"{self.path}?{'&'.join(parameters)}" if parameters else self.path


def parse_target(target: str, base: str) -> RequestTarget:
    """The path below ``base``, and the query. ``base`` is the path of the vendor's base URL,
    without a slash at its end; the target must begin with it literally. Raises ``BadTarget``."""
    if len(target) > LARGEST_TARGET:
        raise BadTarget(f"it has more than {LARGEST_TARGET:,} characters")
    if not target.startswith(f"{base}/"):
        raise BadTarget(f"it is not below {base or '/'}")
    if _BAD_ESCAPE.search(target):
        raise BadTarget("a % is not followed by two hexadecimal digits")
    path, _, query = target[len(base) + 1 :].partition("?")
    try:
        segments = [unquote_to_bytes(part).decode() for part in path.split("/")]
        if not all(map(_SEGMENT.fullmatch, segments)):
            raise BadTarget(
                "a segment of its path is empty, or has a character such as # ; \\ or %2F"
            )
        if any(part in (".", "..") for part in segments):
            raise BadTarget("its path has a dot segment")
        return RequestTarget(f"/{'/'.join(segments)}", _read_query(query))
    except UnicodeDecodeError:
        raise BadTarget("it is not UTF-8") from None


def _read_query(query: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in query.split("&") if part]
    read = tuple(
        (unquote_plus(name, errors="strict"), unquote_plus(value, errors="strict"))
        for name, _, value in pairs
    )
    if not _QUERY.fullmatch(query) or any(_CONTROL.search(text) for pair in read for text in pair):
        raise BadTarget("its query has a character that must be escaped, or a control character")
    return read
