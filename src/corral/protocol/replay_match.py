"""Compares the messages of a replay with a recording.

Two runs with the same meaning differ in call ids, folders, ports, tokens and times.
``ReplayMatcher`` ignores these, learns which recorded value corresponds to which current one, and
rewrites recorded replies with the current values. Anything else that differs is a mismatch.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence

from corral.values import Json

IGNORED_KEYS = frozenset({"_meta", "clientInfo", "timestamp", "uuid", "ts"})
"""Keys that are ignored: client versions and times."""
ID_KEYS = frozenset({"sessionId", "session_id", "sessionID", "request_id", "requestId"})
"""Keys whose values are ids: they differ from run to run."""
SERVER_KEYS = frozenset({"name", "type", "command"})
"""Keys of an MCP server that are compared: its address and secrets are new in every run."""
MAX_DIFF_LENGTH = 3000
"""Characters. An error keeps the last 4,000 characters of a program's output."""

_PORT = re.compile(r"\b(127\.0\.0\.1|localhost|\[::1\]):\d+")
_NAME_END = r"(?![\w-]|\.\w)"
"""``/a/b`` does not match in ``/a/bc`` or ``/a/b.old``, but does before a full stop."""
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.I)


class Folders:
    """Folders by name, with their paths in one run."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self.folders = {name: path for name, path in folders.items() if len(path) > 1}
        longest = sorted(self.folders.items(), key=lambda pair: (-len(pair[1]), pair[0] != "cwd"))
        self._names: dict[str, str] = {}
        for name, path in longest:
            self._names.setdefault(path, name)
        forms = "|".join(
            re.escape(path) + (_NAME_END if "/" in path or "\\" in path else "")
            for path in self._names
        )
        self._any = re.compile(f"({forms})") if forms else None

    def with_names(self, text: str) -> str:
        """The text with the name of each folder in place of its path."""
        if self._any is None:
            return text
        return self._any.sub(lambda found: f"<{self._names[found[1]]}>", text)

    def relocate(self, text: str, there: Folders) -> str:
        """The text with the paths of ``there`` in place of these."""
        if self._any is None:
            return text

        def place(found: re.Match[str]) -> str:
            return there.folders.get(self._names[found[1]], found[1])

        return self._any.sub(place, text)


class ReplayMatcher:
    """What is known about one recording while it is replayed."""

    def __init__(self, recorded: Mapping[str, str], current: Mapping[str, str]) -> None:
        self._recorded = Folders(recorded)
        self._current = Folders(current)
        self._call_ids: dict[str, Json] = {}
        """Ids of our calls, recorded → current. The agent's own ids stay as recorded."""
        self._names: dict[str, str] = {}

    def normalize_recorded_text(self, text: str) -> str:
        return _normalize_text(self._recorded.with_names(text))

    def normalize_current_text(self, text: str) -> str:
        return _normalize_text(self._current.with_names(text))

    def normalize_recorded(self, message: Json) -> Json:
        return normalize_message(message, self._recorded)

    def normalize_current(self, message: Json) -> Json:
        return normalize_message(message, self._current)

    def matches(self, recorded: Json, current: Json) -> bool:
        """Whether the two messages have the same meaning."""
        return self.normalize_recorded(recorded) == self.normalize_current(current)

    def learn_pair(self, recorded: Json, current: Json) -> None:
        """Learn from two matching messages which ids and folders correspond."""
        if not isinstance(recorded, dict) or not isinstance(current, dict):
            return
        if "method" in recorded and "id" in recorded and "id" in current:
            self._call_ids[json.dumps(recorded["id"])] = current["id"]
        folders: dict[str, tuple[str, str]] = {}
        self._pair(recorded, current, folders)
        if folders:
            self._recorded = Folders(
                {**self._recorded.folders, **{k: a for k, (a, _) in folders.items()}}
            )
            self._current = Folders(
                {**self._current.folders, **{k: b for k, (_, b) in folders.items()}}
            )

    def _pair(self, recorded: Json, current: Json, folders: dict[str, tuple[str, str]]) -> None:
        if isinstance(recorded, dict) and isinstance(current, dict):
            for key in recorded.keys() & current.keys():
                one, other = recorded[key], current[key]
                if isinstance(one, str) and isinstance(other, str):
                    if key in ID_KEYS and one != other:
                        self._names[one] = other
                    elif key == "cwd" and one not in self._recorded.folders.values():
                        folders[f"cwd {len(self._recorded.folders)}"] = one, other
                else:
                    self._pair(one, other, folders)
        elif isinstance(recorded, list) and isinstance(current, list):
            for one, other in zip(recorded, current, strict=False):
                self._pair(one, other, folders)

    def rewrite_line(self, line: str) -> str:
        """A recorded line of the agent, with the current ids and folders."""
        if not line.lstrip().startswith("{"):
            return self._recorded.relocate(line, self._current)
        try:
            message: Json = json.loads(line)
        except ValueError:
            return self._recorded.relocate(line, self._current)
        changed = self._rewrite(message)
        if isinstance(changed, dict) and "method" not in changed and "id" in changed:
            changed["id"] = self._call_ids.get(json.dumps(changed["id"]), changed["id"])
        # Unchanged messages keep their exact text.
        return line if changed == message else json.dumps(changed, ensure_ascii=False) + "\n"

    def _rewrite(self, value: Json) -> Json:
        match value:
            case str():
                return self._recorded.relocate(value, self._current)
            case list():
                return [self._rewrite(item) for item in value]
            case dict():
                return {
                    key: self._names.get(item, item)
                    if key in ID_KEYS and isinstance(item, str)
                    else self._rewrite(item)
                    for key, item in value.items()
                }
            case _:
                return value


def normalize_message(message: Json, places: Folders) -> Json:
    """A message without what differs from run to run."""
    if isinstance(message, dict) and "method" in message:
        message = {key: value for key, value in message.items() if key != "id"}
    return _normalize(message, places)


def _normalize(value: Json, places: Folders) -> Json:
    match value:
        case str():
            return _normalize_text(places.with_names(value))
        case list():
            return [_normalize(item, places) for item in value]
        case dict():
            return {
                key: _normalize_member(key, item, places)
                for key, item in value.items()
                if key not in IGNORED_KEYS
            }
        case _:
            return value


def _normalize_member(key: str, value: Json, places: Folders) -> Json:
    if isinstance(value, str) and (key in ID_KEYS or key == "cwd"):
        return f"<{key}>"
    if key == "mcpServers" and isinstance(value, list):
        return [_normalize_server(item, places) for item in value]
    return _normalize(value, places)


def _normalize_server(value: Json, places: Folders) -> Json:
    if not isinstance(value, dict):
        return value
    return {key: _normalize(item, places) for key, item in value.items() if key in SERVER_KEYS}


def _normalize_text(text: str) -> str:
    return _UUID.sub("<uuid>", _PORT.sub(r"\1:<port>", text))


def difference(recorded: Json, current: Json) -> str:
    """A unified diff of the recorded and the current message."""
    lines = list(
        difflib.unified_diff(
            _lines_of(recorded), _lines_of(current), "recorded", "sent", lineterm="", n=2
        )
    )
    text = "\n".join(lines)
    return text if len(text) <= MAX_DIFF_LENGTH else text[:MAX_DIFF_LENGTH] + "\n…"


def _lines_of(value: Json) -> Sequence[str]:
    if isinstance(value, str):
        return value.splitlines()
    # Multi-line strings are shown as lines, so that the diff shows the changed line only.
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\\n", "\n").splitlines()
