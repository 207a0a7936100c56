"""Whether what is sent now says what was sent then.

Two conversations with one meaning differ in what nobody chose: the ids of calls, where
the workspace lies, ports, tokens, the time. ``Likeness`` sees past these, remembers
which value of then is which of now, and writes what was answered then with the values
of now. What remains different is a difference.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import cast

from corral.events import Json

DROPPED = frozenset({"_meta", "clientInfo", "timestamp", "uuid", "ts"})
"""Who speaks and when: a newer client says the same."""
NAMES = frozenset({"sessionId", "session_id", "sessionID", "request_id", "requestId"})
"""Keys whose values stand for something and mean nothing themselves."""
SERVER_KEYS = frozenset({"name", "type", "command"})
"""What of a tool server counts: its address and its secrets are new every time."""
LONGEST_DIFF = 3000
"""Characters: an error keeps the last 4,000 of what a program says."""

_PORT = re.compile(r"\b(127\.0\.0\.1|localhost|\[::1\]):\d+")
_WHOLE = r"(?![\w-]|\.\w)"
"""``/a/b`` is no part of ``/a/bc`` or ``/a/b.old``; but a full stop may end a sentence."""
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.I)


class Places:
    """Folders by name, as they lie on one machine in one run."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self.folders = {name: path for name, path in folders.items() if len(path) > 1}
        longest = sorted(self.folders.items(), key=lambda pair: (-len(pair[1]), pair[0] != "cwd"))
        self._names: dict[str, str] = {}
        for name, path in longest:
            self._names.setdefault(path, name)
        forms = "|".join(
            re.escape(path) + (_WHOLE if "/" in path or "\\" in path else "")
            for path in self._names
        )
        self._any = re.compile(f"({forms})") if forms else None

    def named(self, text: str) -> str:
        """The text with every folder under its name."""
        if self._any is None:
            return text
        return self._any.sub(lambda found: f"<{self._names[found[1]]}>", text)

    def moved(self, text: str, there: Places) -> str:
        """The text with every folder as it lies ``there``."""
        if self._any is None:
            return text

        def place(found: re.Match[str]) -> str:
            return there.folders.get(self._names[found[1]], found[1])

        return self._any.sub(place, text)


class Likeness:
    """What is learnt of one conversation while it is gone through again."""

    def __init__(self, then: Mapping[str, str], now: Mapping[str, str]) -> None:
        self._then = Places(then)
        self._now = Places(now)
        self._calls: dict[str, Json] = {}
        """Ids of calls to the agent, then → now. The agent's own are as they were."""
        self._names: dict[str, str] = {}

    def plain_then(self, text: str) -> str:
        return _plain(self._then.named(text))

    def plain_now(self, text: str) -> str:
        return _plain(self._now.named(text))

    def bare_then(self, message: Json) -> Json:
        return bare(message, self._then)

    def bare_now(self, message: Json) -> Json:
        return bare(message, self._now)

    def message(self, then: Json, now: Json) -> bool:
        """Whether they say the same."""
        return self.bare_then(then) == self.bare_now(now)

    def learn(self, then: Json, now: Json) -> None:
        """Two messages that say the same: which id, name and folder is which."""
        if not isinstance(then, dict) or not isinstance(now, dict):
            return
        if "method" in then and "id" in then and "id" in now:
            self._calls[json.dumps(then["id"])] = now["id"]
        folders: dict[str, tuple[str, str]] = {}
        self._pair(then, now, folders)
        if folders:
            self._then = Places({**self._then.folders, **{k: a for k, (a, _) in folders.items()}})
            self._now = Places({**self._now.folders, **{k: b for k, (_, b) in folders.items()}})

    def _pair(self, then: Json, now: Json, folders: dict[str, tuple[str, str]]) -> None:
        if isinstance(then, dict) and isinstance(now, dict):
            for key in then.keys() & now.keys():
                one, other = then[key], now[key]
                if isinstance(one, str) and isinstance(other, str):
                    if key in NAMES and one != other:
                        self._names[one] = other
                    elif key == "cwd" and one not in self._then.folders.values():
                        folders[f"cwd {len(self._then.folders)}"] = one, other
                else:
                    self._pair(one, other, folders)
        elif isinstance(then, list) and isinstance(now, list):
            for one, other in zip(then, now, strict=False):
                self._pair(one, other, folders)

    def answer(self, line: str) -> str:
        """A line the agent wrote then, as it would write it now."""
        if not line.lstrip().startswith("{"):
            return self._then.moved(line, self._now)
        try:
            message = cast("Json", json.loads(line))
        except ValueError:
            return self._then.moved(line, self._now)
        changed = self._answered(message)
        if isinstance(changed, dict) and "method" not in changed and "id" in changed:
            changed["id"] = self._calls.get(json.dumps(changed["id"]), changed["id"])
        # As it was written, wherever nothing of it has changed.
        return line if changed == message else json.dumps(changed, ensure_ascii=False) + "\n"

    def _answered(self, value: Json) -> Json:
        match value:
            case str():
                return self._then.moved(value, self._now)
            case list():
                return [self._answered(item) for item in value]
            case dict():
                return {
                    key: self._names.get(item, item)
                    if key in NAMES and isinstance(item, str)
                    else self._answered(item)
                    for key, item in value.items()
                }
            case _:
                return value


def bare(message: Json, places: Places) -> Json:
    """A message without all that differs from run to run."""
    if isinstance(message, dict) and "method" in message:
        message = {key: value for key, value in message.items() if key != "id"}
    return _bare(message, places)


def _bare(value: Json, places: Places) -> Json:
    match value:
        case str():
            return _plain(places.named(value))
        case list():
            return [_bare(item, places) for item in value]
        case dict():
            return {
                key: _member(key, item, places) for key, item in value.items() if key not in DROPPED
            }
        case _:
            return value


def _member(key: str, value: Json, places: Places) -> Json:
    if isinstance(value, str) and (key in NAMES or key == "cwd"):
        return f"<{key}>"
    if key == "mcpServers" and isinstance(value, list):
        return [_server(item, places) for item in value]
    return _bare(value, places)


def _server(value: Json, places: Places) -> Json:
    if not isinstance(value, dict):
        return value
    return {key: _bare(item, places) for key, item in value.items() if key in SERVER_KEYS}


def _plain(text: str) -> str:
    return _UUID.sub("<uuid>", _PORT.sub(r"\1:<port>", text))


def difference(then: Json, now: Json) -> str:
    """Two things that should be one, line by line."""
    lines = list(
        difflib.unified_diff(_shown(then), _shown(now), "recorded", "sent", lineterm="", n=2)
    )
    text = "\n".join(lines)
    return text if len(text) <= LONGEST_DIFF else text[:LONGEST_DIFF] + "\n…"


def _shown(value: Json) -> Sequence[str]:
    if isinstance(value, str):
        return value.splitlines()
    # A text of several lines is shown as such: a changed word is to be found at a glance.
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\\n", "\n").splitlines()
