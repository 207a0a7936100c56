"""Does a pattern match a shell command? Pure text, and deliberately suspicious.

A deny pattern looks at every simple command inside a line; an allow pattern
must cover all of them, and covers nothing that hides a command from sight.
"""

from __future__ import annotations

import re

_HIDDEN = re.compile(r"\$\(|\$\{|\$'|`|<\(|>\(|[<>]|\\\n")
"""Substitutions and redirections: what they do cannot be read off the line."""
_PREFIX = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*=\S*|if|then|elif|else|while|until|do|time|!)\s+")
"""What may stand before a command's own name: assignments and the shell's words."""


def matches(pattern: str, command: str) -> bool:
    """Whether any simple command in the line fits the pattern."""
    wanted = _compiled(pattern)
    return any(wanted.fullmatch(part) for part in [_tidy(command), *split(command)])


def covers(pattern: str, command: str) -> bool:
    """Whether the pattern fits every simple command in the line, in full sight."""
    if _HIDDEN.search(command):
        return False
    wanted = _compiled(pattern)
    parts = split(command)
    return bool(parts) and all(wanted.fullmatch(part) for part in parts)


def split(command: str) -> list[str]:
    """The simple commands of a line: cut at ``; & | && ||`` and newlines outside quotes,
    what stands before a command's name dropped, blanks folded."""
    parts: list[str] = []
    current: list[str] = []
    quote = ""
    escaped = False
    for char in command:
        if escaped:
            current.append(char)
            escaped = False
        elif char == "\\" and quote != "'":
            current.append(char)
            escaped = True
        elif quote:
            current.append(char)
            quote = "" if char == quote else quote
        elif char in "'\"":
            current.append(char)
            quote = char
        elif char in ";&|\n":
            parts.append("".join(current))
            current = []
        else:
            current.append(char)
    parts.append("".join(current))
    return [tidy for part in parts if (tidy := _tidy(part))]


def glob_to_regex(pattern: str) -> str:
    """``*`` is anything; a pattern that ends in `` *`` also fits the bare command."""
    if pattern == "*":
        return ".*"
    bare, star = (pattern[:-2], "(?: .*)?") if pattern.endswith(" *") else (pattern, "")
    return ".*".join(re.escape(piece) for piece in bare.split("*")) + star


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(glob_to_regex(pattern), re.DOTALL)


def _tidy(part: str) -> str:
    part = part.strip().strip("(){}! \t")
    while found := _PREFIX.match(part):
        part = part[found.end() :]
    return " ".join(part.split())
