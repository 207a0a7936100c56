"""Truncate long texts for the model: the head, the tail, and how much is left out between."""

from __future__ import annotations

import msgspec

ROOM = 100
"""Characters for the marker: more than it ever has."""


class Limits(msgspec.Struct, frozen=True):
    chars: int
    lines: int | None = None


READ = Limits(50_000)
SHELL = Limits(30_000, 256)
GREP = Limits(20_000, 200)
GLOB = Limits(20_000, 500)
EDIT = Limits(10_000)


def truncate(text: str, limits: Limits) -> str:
    """The text within the limits, by characters and then by lines; the marker counts too."""
    most = limits.lines
    if len(text) <= limits.chars and (most is None or count_lines(text) <= most):
        return text
    if limits.chars <= 2 * ROOM or (most is not None and most < 3):
        # Too small for a head, a marker and a tail.
        return "\n".join(text[: limits.chars].split("\n")[:most])
    half = (limits.chars - ROOM) // 2
    head, tail = (text[:half], text[-half:]) if len(text) > 2 * half else (text, text)
    if most is not None:
        head, tail = _first(head, most // 2), _last(tail, (most - 1) // 2)
    left_out = text[len(head) : len(text) - len(tail)]
    lines = left_out.count("\n")
    about = f"{len(left_out):,} characters" + (f", {lines:,} lines" if lines else "")
    return f"{head}{'' if head.endswith(chr(10)) else chr(10)}[… {about} left out here …]\n{tail}"


def count_lines(text: str) -> int:
    """The number of lines. A newline at the end does not start another line."""
    return text.count("\n") + (bool(text) and not text.endswith("\n"))


def _first(text: str, lines: int) -> str:
    at = 0
    for _ in range(lines):
        found = text.find("\n", at)
        if found < 0:
            return text
        at = found + 1
    return text[:at]


def _last(text: str, lines: int) -> str:
    at = len(text) - text.endswith("\n")
    for _ in range(lines):
        found = text.rfind("\n", 0, at)
        if found < 0:
            return text
        at = found
    return text[at + 1 :]
