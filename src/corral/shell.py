"""Does a pattern match a shell command? Pure text, and deliberately suspicious.

A deny pattern looks at every simple command inside a line; an allow pattern
must cover all of them, and covers nothing that hides a command from sight.
"""

from __future__ import annotations

import re

# Texts: re compiles them when first needed, which most runs never do.
_HIDDEN = r"\$\(|\$\{|\$'|`|<\(|>\(|[<>]|\\\n"
"""Substitutions and redirections: what they do cannot be read off the line."""
_PREFIX = r"""(?x)
        (?: [A-Za-z_]\w*\+?= (?: '[^']*' | "[^"]*" | \\. | [^\s'"\\] )*
          | \d*[<>]+[&|]?\s*[^\s<>]+
          | if | then | elif | else | while | until | do | time | !
        )\s+"""
"""What may stand before a command's own name: assignments, redirections, the shell's words."""
_QUOTES = str.maketrans("", "", "'\"\\")


def matches(pattern: str, command: str) -> bool:
    """Whether any simple command in the line fits the pattern, substitutions included."""
    wanted = _compiled(pattern)
    bare = [_bare(part) for part in [_tidy(command), *split(command)]]
    # "git" push and g\it push are git push.
    return any(wanted.fullmatch(part) for part in [*bare, *(p.translate(_QUOTES) for p in bare)])


def covers(pattern: str, command: str) -> bool:
    """Whether the pattern fits every simple command in the line, in full sight. An assignment
    before a command counts as part of it: ``PATH=. git status`` is not ``git status``."""
    if re.search(_HIDDEN, command):
        return False
    wanted = _compiled(pattern)
    parts = split(command)
    return bool(parts) and all(wanted.fullmatch(part) for part in parts)


def split(command: str) -> list[str]:
    """The simple commands of a line, blanks folded: cut outside quotes at ``; & | && ||``,
    newlines and parentheses, and at substitutions even inside double quotes."""
    parts: list[str] = []
    current: list[str] = []
    around: list[str] = []
    quote = ""
    escaped = False

    def cut() -> None:
        parts.append("".join(current))
        current.clear()

    for char in command:
        if escaped or (char == "\\" and quote != "'"):
            current.append(char)
            escaped = not escaped
        elif char == "(" and quote != "'" and (not quote or current[-1:] == ["$"]):
            around.append(quote + char)
            quote = ""
            cut()
        elif char == "`" and quote != "'":
            inside = bool(around) and around[-1].endswith(char) and not quote
            if inside:
                quote = around.pop()[:-1]
            else:
                around.append(quote + char)
                quote = ""
            cut()
        elif quote:
            current.append(char)
            quote = "" if char == quote else quote
        elif char == ")":
            quote = around.pop()[:-1] if around and around[-1].endswith("(") else ""
            cut()
        elif char in "'\"":
            current.append(char)
            quote = char
        elif char in ";&|\n":
            cut()
        else:
            current.append(char)
    cut()
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
    return " ".join(part.strip().strip("{}! \t").split())


def _bare(part: str) -> str:
    while found := re.match(_PREFIX, part):
        part = part[found.end() :]
    return part
