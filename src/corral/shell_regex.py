"""Allow patterns as regular expressions, for agents whose own rules are regular expressions.

The expression is JavaScript's and Python's alike, has no repetition inside a repetition, and is
meant for the JSON text of a command (the characters between the quotes of a JSON string). It
accepts a subset of what ``shell_patterns.covers`` accepts for the same pattern: one simple command
whose program the pattern names, with ASCII words and at most two quoted pieces. The caller anchors
it at both ends, with the closing quote of the JSON string behind it.
"""

from __future__ import annotations

import re

from corral.quoting import json_pattern
from corral.shell_patterns import BUILTINS, RESERVED_WORDS

PLAIN = r"[A-Za-z0-9_@%+:,.\/= -]{0,2000}"
"""Unquoted words and the blanks between them."""
SINGLE_QUOTED = r"'[ !#-&\x28-\[\]-~]{0,2000}'"
"""Printable ASCII, but for both quotes and the backslash, which JSON would escape."""
DOUBLE_QUOTED = r'\\"[ #%-\[\]^_a-~]{0,2000}\\"'
"""Printable ASCII, but for the double quote, ``$``, the backtick, the backslash and ``!``."""
SINGLE_BLANKS = r'(?![^\x00]*(  | =| "))'
"""A look-ahead for the start: no two blanks, no blank at the end, no word that starts with ``=``
(zsh replaces it by a path). Stricter than needed inside quotes."""

_QUOTED = (SINGLE_QUOTED, DOUBLE_QUOTED)
_TAILS = (
    *("",),
    *(one + PLAIN for one in _QUOTED),
    *(one + PLAIN + two + PLAIN for one in _QUOTED for two in _QUOTED),
)
_WORDS = PLAIN + "(" + "|".join(_TAILS) + ")"
"""What the last ``*`` of a pattern may be."""
MAX_STARS = 2
"""Each ``*`` multiplies the time that a backtracking matcher may need."""
_PROGRAM = r"[A-Za-z0-9_./][A-Za-z0-9_./+:@,-]*"
_LITERAL = r"[A-Za-z0-9_@%+:,./= -]*"
_SAFE_BUILTINS = frozenset({"cd", "echo", "false", "kill", "pwd", "true", "type", "umask"})


def allow_regex(pattern: str) -> str | None:
    """The expression for an allow pattern, or None where a regular expression cannot be exact:
    a program's name with ``*`` in it, a builtin that evaluates its arguments, quotes beside a
    ``*``, or more than ``MOST_STARS`` of them."""
    if "*" not in pattern:
        return json_pattern(pattern)
    program, _, rest = pattern.partition(" ")
    if (
        re.fullmatch(_PROGRAM, program) is None
        or program in RESERVED_WORDS
        or (program in BUILTINS and program not in _SAFE_BUILTINS)
        or re.fullmatch(_LITERAL, rest.replace("*", "")) is None
        or pattern.count("*") > MAX_STARS
    ):
        return None
    if rest == "*":
        return f"{SINGLE_BLANKS}{json_pattern(program)}(| {_WORDS})"
    is_open = pattern.endswith(" *")
    *before, last = (pattern[:-2] if is_open else pattern).split("*")
    text = PLAIN.join(map(json_pattern, before))
    if is_open:
        text += f"{PLAIN if before else ''}{json_pattern(last)}(| {_WORDS})"
    else:
        text += _WORDS + json_pattern(last)
    return SINGLE_BLANKS + text
