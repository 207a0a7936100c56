"""Redacts what must not leave the machine: secrets, and the user's home folder.

Logs are redacted when they are written, with the secrets of that run. An export redacts again: with
the secrets of corral's environment now, and by the form of common keys, because an agent may have
printed a key that no variable had.
"""

from __future__ import annotations

import re

from corral._system import paths
from corral._system.environment import SecretRedactor, own_secrets

MARK = b"[key redacted]"
# Agents decide what these patterns see. So each takes time in proportion to the text: what matches
# without a limit is matched once, from its beginning only, and never given back.


def _at_begin(prefix: bytes) -> bytes:
    """A pattern of the prefix at the beginning of a word. The check comes after the prefix, because
    ``re`` finds a pattern fast only if it begins with letters. Most of the data is JSON, and may be
    colored for a terminal: the letters of an escape are no part of the word after them."""
    word = rb"(?<![A-Za-z0-9_]" + prefix + rb")"
    escaped = (rb"\\[bfnrt]", rb"\\u[0-9a-fA-F]{4}", rb"[0-9;\[]m")
    after = (rb"(?<=" + each + prefix + rb")" for each in escaped)
    return prefix + rb"(?:" + rb"|".join((word, *after)) + rb")"


KEY_FORMS = re.compile(
    rb"|".join(
        (
            _at_begin(rb"sk-") + rb"[A-Za-z0-9_-]{16,}",
            _at_begin(rb"AIza") + rb"[0-9A-Za-z_-]{30,}",
            _at_begin(rb"gh[pousr]_") + rb"[A-Za-z0-9]{20,}",
            _at_begin(rb"github_pat_") + rb"[A-Za-z0-9_]{20,}",
            _at_begin(rb"glpat-") + rb"[A-Za-z0-9_-]{16,}",
            _at_begin(rb"xox[abprs]-") + rb"[A-Za-z0-9-]{10,}",
            _at_begin(rb"AKIA") + rb"[0-9A-Z]{16}",
            _at_begin(rb"ya29\.") + rb"[A-Za-z0-9_-]{16,}",
            rb"(?P<scheme>Bearer )[A-Za-z0-9._~+/=-]{16,}",
            # A key has no five dashes before its end, and another begin is not part of it.
            rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[^-]++|-(?!----))*+"
            rb"-----END [A-Z ]{0,40}PRIVATE KEY-----",
        )
    )
)
DOTTED_WORDS = re.compile(rb"(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]{38,}+")
"""Words that may contain a JSON web token: three parts, of which two are encoded JSON objects."""
TOKEN_BEGIN = re.compile(_at_begin(rb"eyJ") + rb"[A-Za-z0-9_-]{10}")
_TOKEN_PART = 10
"""Characters of each part, at least."""
_KEY_BEGINS = (
    *(b"sk-", b"AIza", b"gh", b"glpat-", b"xox", b"AKIA", b"ya29."),
    *(b"Bearer ", b"-----BEGIN"),
)


class ExportRedactor:
    """Redacts bytes that leave the machine. ``hide_home``: the home folder becomes ``~``."""

    def __init__(self, *, hide_home: bool = False) -> None:
        self._secrets = SecretRedactor(own_secrets())
        home = str(paths.user_home()) if hide_home else ""
        self._home = home.encode() if len(home) > 1 else b""

    def clean(self, data: bytes) -> bytes:
        data = self._secrets.clean(data)
        if any(begin in data for begin in _KEY_BEGINS):
            data = KEY_FORMS.sub(lambda key: (key["scheme"] or b"") + MARK, data)
        if b".eyJ" in data:
            data = DOTTED_WORDS.sub(_without_tokens, data)
        if self._home:
            data = re.sub(re.escape(self._home) + rb"(?![\w.-])", b"~", data)
        return data

    def clean_text(self, text: str) -> str:
        return self.clean(text.encode("utf-8", "replace")).decode("utf-8", "replace")


def _without_tokens(word: re.Match[bytes]) -> bytes:
    parts = word[0].split(b".")
    out: list[bytes] = []
    at, end = word.start(), len(parts)
    number = 0
    while number < end:
        part = parts[number]
        found = None
        if number + 2 < end:
            second, third = parts[number + 1 : number + 3]
            is_long = min(len(second) - 3, len(third)) >= _TOKEN_PART
            if is_long and second.startswith(b"eyJ"):
                found = TOKEN_BEGIN.search(word.string, at, at + len(part))
        used = 1 if found is None else 3
        out.append(part if found is None else part[: found.start() - at] + MARK)
        at += sum(len(each) + 1 for each in parts[number : number + used])
        number += used
    return b".".join(out)
