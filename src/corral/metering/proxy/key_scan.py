"""Finds the real key in bytes that come in pieces, before they are passed on.

A key may be split between two pieces. So what could be its beginning is held back until more comes.
The cost of a piece depends on its length and on the keys, not on what came before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote

import msgspec

SHORTEST_KEY = 16
"""Characters of a key that is looked for."""
_DIGIT = re.compile(r"\d")


class KeyFound(Exception):
    """The bytes contain a key."""


class KeyScan:
    """Searches one sequence of bytes."""

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        self._keys = keys
        self.held = b""
        """The end of what came, if it could be the beginning of a key."""

    def receive(self, data: bytes) -> bytes:
        """The bytes that can be passed on now. Raises ``KeyFound``."""
        if self.held:
            data, self.held = self.held + data, b""
        cut = size = len(data)
        for key in self._keys:
            if key in data:
                raise KeyFound
            # The longest end of the data that is the beginning of the key.
            start = size - len(key) + 1
            at = data.find(key[0], start if start > 0 else 0)
            while at >= 0:
                if key.startswith(data[at:]):
                    cut = at if at < cut else cut
                    break
                at = data.find(key[0], at + 1)
        if cut == size:
            return data
        self.held = data[cut:]
        return data[:cut]

    def take_rest(self) -> bytes:
        """What is held at the end."""
        rest, self.held = self.held, b""
        return rest


def searched_forms(keys: Iterable[str]) -> tuple[bytes, ...]:
    """The keys as they may stand in a response: plain, in a URL, in JSON. Local servers take any
    word as a key: one that is short or has no digit may stand in ordinary text, and is left out."""
    secrets = [key for key in keys if len(key) >= SHORTEST_KEY and _DIGIT.search(key)]
    forms = [
        form
        for key in secrets
        for form in (key.encode(), quote(key, safe="").encode(), msgspec.json.encode(key)[1:-1])
    ]
    return tuple(dict.fromkeys(forms))
