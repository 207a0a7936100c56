"""Replace a recorded program: the same output for the same input, without delay.

The input is compared with the recording, message by message. If a message differs, or an expected
one does not arrive, the replay ends with the exit code ``DIFFERS`` and prints the difference. It
never waits in silence. It needs neither the program nor its machine nor its API keys.

Two runs with the same meaning differ in call ids, folders, ports, tokens and times.
``ReplayMatcher`` ignores these, learns which recorded value corresponds to which current one, and
rewrites recorded replies with the current values. Anything else that differs is a mismatch.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import queue
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from corral._system import paths
from corral._system.cassette import format
from corral._system.cassette.format import (
    DataEntry,
    Direction,
    Entry,
    ProgramEnded,
    StreamClosed,
    Take,
)
from corral._system.cassette.record import die, write
from corral._system.environment import SecretRedactor, named_secrets
from corral.errors import CorralError
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
        self.folders: dict[str, str] = {
            name: path for name, path in folders.items() if len(path) > 1
        }
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

    def normalize_text(self, text: str) -> str:
        """A text without what differs from run to run."""
        return _UUID.sub("<uuid>", _PORT.sub(r"\1:<port>", self.with_names(text)))

    def normalize(self, message: Json) -> Json:
        """A message without what differs from run to run."""
        if isinstance(message, dict) and "method" in message:
            message = {key: value for key, value in message.items() if key != "id"}
        return self._normalize(message)

    def _normalize(self, value: Json, key: str = "") -> Json:
        """``key``: that of the member of an object."""
        match value:
            case str():
                is_id = key in ID_KEYS or key == "cwd"
                return f"<{key}>" if is_id else self.normalize_text(value)
            case list() if key == "mcpServers":
                return [
                    {name: self._normalize(item[name]) for name in item if name in SERVER_KEYS}
                    if isinstance(item, dict)
                    else item
                    for item in value
                ]
            case list():
                return [self._normalize(item) for item in value]
            case dict():
                return {
                    name: self._normalize(item, name)
                    for name, item in value.items()
                    if name not in IGNORED_KEYS
                }
            case _:
                return value


class ReplayMatcher:
    """What is known about one recording while it is replayed."""

    def __init__(self, recorded: Mapping[str, str], current: Mapping[str, str]) -> None:
        self.recorded: Folders = Folders(recorded)
        self.current: Folders = Folders(current)
        self._call_ids: dict[str, Json] = {}
        """Ids of our calls, recorded → current. The agent's own ids stay as recorded."""
        self._names: dict[str, str] = {}

    def matches(self, recorded: Json, current: Json) -> bool:
        """Whether the two messages have the same meaning."""
        return self.recorded.normalize(recorded) == self.current.normalize(current)

    def learn_pair(self, recorded: Json, current: Json) -> None:
        """Learn from two matching messages which ids and folders correspond."""
        if not isinstance(recorded, dict) or not isinstance(current, dict):
            return
        if "method" in recorded and "id" in recorded and "id" in current:
            self._call_ids[json.dumps(recorded["id"])] = current["id"]
        folders: dict[str, tuple[str, str]] = {}
        self._pair(recorded, current, folders)
        if folders:
            self.recorded = Folders(
                {**self.recorded.folders, **{k: a for k, (a, _) in folders.items()}}
            )
            self.current = Folders(
                {**self.current.folders, **{k: b for k, (_, b) in folders.items()}}
            )

    def _pair(self, recorded: Json, current: Json, folders: dict[str, tuple[str, str]]) -> None:
        if isinstance(recorded, dict) and isinstance(current, dict):
            for key in recorded.keys() & current.keys():
                one, other = recorded[key], current[key]
                if isinstance(one, str) and isinstance(other, str):
                    if key in ID_KEYS and one != other:
                        self._names[one] = other
                    elif key == "cwd" and one not in self.recorded.folders.values():
                        folders[f"cwd {len(self.recorded.folders)}"] = one, other
                else:
                    self._pair(one, other, folders)
        elif isinstance(recorded, list) and isinstance(current, list):
            for one, other in zip(recorded, current, strict=False):
                self._pair(one, other, folders)

    def rewrite_line(self, line: str) -> str:
        """A recorded line of the agent, with the current ids and folders."""
        if not line.lstrip().startswith("{"):
            return self.recorded.relocate(line, self.current)
        try:
            message: Json = json.loads(line)
        except ValueError:
            return self.recorded.relocate(line, self.current)
        changed = self._rewrite(message)
        if isinstance(changed, dict) and "method" not in changed and "id" in changed:
            changed["id"] = self._call_ids.get(json.dumps(changed["id"]), changed["id"])
        # Unchanged messages keep their exact text.
        return line if changed == message else json.dumps(changed, ensure_ascii=False) + "\n"

    def _rewrite(self, value: Json) -> Json:
        match value:
            case str():
                return self.recorded.relocate(value, self.current)
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


DIFFERS = 90
"""The exit code of a replay that differs from the recording. No known agent uses it."""
SIGN = "corral fake play: "
"""The start of the reason on stderr."""
SECRETS = "CORRAL_CASSETTE_SECRETS"
"""The variable with what is redacted in the input before it is compared, as JSON: name → value."""
PATIENCE = 10.0
"""Seconds to wait for the next recorded input if the other side waits for our output."""
OLD = 24 * 3600.0
"""Seconds after which the record of the takes that a run has used is removed."""
END = "(the end of the input)"


class _Differs(Exception):
    """The input differs from the recorded input."""


def replay(path: str, args: Sequence[str]) -> int:
    """Replay on our own stdin, stdout and stderr. Return the exit code. If the recorded program
    was killed by a signal, this process ends with the same signal."""
    try:
        given: dict[str, str] = json.loads(os.environ.get(SECRETS) or "{}")
        ours = {name: value for name, value in os.environ.items() if name != SECRETS}
        redactor = SecretRedactor({**named_secrets(ours), **given})
        recording = _Recording(path, format.read(path), list(args), redactor)
        if any(format.is_conversation(take.input) for take in recording.takes):
            return _Conversation(recording).play()
        return _replay_text(recording)
    except (_Differs, CorralError) as error:
        write(2, f"{SIGN}{error}\n".encode())
        return DIFFERS


def _replay_text(recording: _Recording) -> int:
    """A program that reads all its input at the start."""
    was_read = any(StreamClosed() in take.entries for take in recording.takes)
    data = b"".join(iter(lambda: os.read(0, 1 << 20), b"")) if was_read else b""
    sent = recording.redactor.clean(data).decode("utf-8", "replace")
    take, like = recording.choose(sent, None)
    for entry in merge_entries(take.entries):
        if isinstance(entry, ProgramEnded):
            return _end(entry)
        if isinstance(entry, DataEntry) and entry.dir != "in":
            _output(entry, like)
    raise _Differs(recording.unfinished)


class _Recording:
    """The recording, and the command line and environment of this process."""

    def __init__(
        self, path: str, takes: list[Take], args: list[str], redactor: SecretRedactor
    ) -> None:
        self.path = path
        self.takes = takes
        self.redactor = redactor
        self._args = args
        self._folders = format.places(os.getcwd(), os.environ)
        self._run = os.environ.get(format.RUN)
        self.unfinished = f"{path} ends here: it was not recorded to its end"

    def choose(self, text: str | None, first: bytes | None) -> tuple[Take, ReplayMatcher]:
        """The first take that starts in the same way and was not used yet. Raises ``_Differs``."""
        fitting = 0
        used = None if self._run is None else _used(self._run)
        for take in self.takes:
            like = ReplayMatcher(take.head.places, self._folders)
            if self._then(take, like) != self._now(text, like):
                continue
            # The first message may be anywhere, as messages may be sent in parallel.
            messages = map(parsed, take.input.splitlines())
            got = None if first is None else self.got(first)
            if first is not None and not any(like.matches(message, got) for message in messages):
                continue
            fitting += 1
            try:
                if used is not None:
                    used.mkdir(parents=True, exist_ok=True)
                    (used / take.head.take).touch(exist_ok=False)
            except FileExistsError:  # another process of the run has used it
                continue
            return take, like
        if fitting:
            raise _Differs(
                f"{self.path} has this request {fitting} times, and it was made once more"
            )
        # Most likely the first take that was not used yet was expected.
        left = (take for take in self.takes if used is None or not (used / take.head.take).exists())
        expected = next(left, self.takes[-1])
        like = ReplayMatcher(expected.head.places, self._folders)
        then, now = self._then(expected, like), self._now(text, like)
        if then == now and first is not None:
            then = like.recorded.normalize(parsed(expected.input.split(b"\n", 1)[0]))
            now = like.current.normalize(self.got(first))
        raise _Differs(
            f"this request is not the one recorded in {self.path}\n{difference(then, now)}"
        )

    def got(self, line: bytes) -> Json:
        return parsed(self.redactor.clean(line))

    def _then(self, take: Take, like: ReplayMatcher) -> Json:
        """What the recorded program got: command line, input, and the files that they name."""
        text = None if format.is_conversation(take.input) else take.input.decode("utf-8", "replace")
        return _start_facts(list(take.head.args), text, take.given, like.recorded.normalize_text)

    def _now(self, text: str | None, like: ReplayMatcher) -> Json:
        files = format.named_files("\n".join(self._args), self._folders)
        files |= format.named_files(text or "", self._folders)
        clean = self.redactor.clean_text
        args = [clean(word) for word in self._args]
        files = {name: clean(content) for name, content in files.items()}
        return _start_facts(args, text, files, like.current.normalize_text)


class _Conversation:
    """A program that exchanges JSON objects, one per line."""

    def __init__(self, recording: _Recording) -> None:
        self._recording = recording
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._early: list[bytes] = []
        """Messages that arrived before they were expected."""
        self._expected: list[Json] = []
        self._open = 0
        """Requests of the other side that have no reply yet."""
        self._is_closed = False
        threading.Thread(target=self._listen, daemon=True).start()

    def play(self) -> int:
        first = self._next(None)
        take, like = self._recording.choose(None, first)
        if first is not None:
            self._early.append(first)
        entries = list(merge_entries(take.entries))
        inputs = (entry for entry in entries if isinstance(entry, DataEntry) and entry.dir == "in")
        self._expected = [parsed(entry.data) for entry in inputs]
        for entry in entries:
            match entry:
                case DataEntry(dir="in"):
                    self._expect(like)
                case DataEntry():
                    _output(entry, like)
                    message = parsed(entry.data) if entry.dir == "out" else None
                    if isinstance(message, dict) and "id" in message and "method" not in message:
                        self._open -= 1
                case StreamClosed():
                    line = self._early[0] if self._early else self._next(None)
                    if line is not None:
                        raise _Differs(self._other(END, self._recording.got(line), like))
                case ProgramEnded():
                    return _end(entry)
                case _:
                    pass
        if self._is_closed:
            return 0
        raise _Differs(self._recording.unfinished)

    def _expect(self, like: ReplayMatcher) -> None:
        """Wait for the next recorded message. Later ones may arrive before it, because messages may
        be sent in parallel; but the wait is limited, because their replies come after it."""
        wanted = self._expected.pop(0)
        is_reply = isinstance(wanted, dict) and "method" not in wanted
        until = time.monotonic() + PATIENCE
        looked_at = 0
        while True:
            for line in self._early[looked_at:]:
                got = self._recording.got(line)
                if like.matches(wanted, got):
                    self._early.remove(line)
                    like.learn_pair(wanted, got)
                    self._open += isinstance(got, dict) and "method" in got and "id" in got
                    return
                if not any(like.matches(then, got) for then in self._expected):
                    raise _Differs(self._other(wanted, got, like))
            looked_at = len(self._early)
            # A reply may depend on a person and take long. Every other message must come in time
            # if the other side waits for our output.
            is_due = bool(self._early) or (self._open > 0 and not is_reply)
            came = self._next(max(until - time.monotonic(), 0.0) if is_due else None)
            if came is None:
                raise _Differs(self._other(wanted, END if self._is_closed else None, like))
            self._early.append(came)

    def _other(self, wanted: Json, got: Json, like: ReplayMatcher) -> str:
        what = f"this request is not the one recorded in {self._recording.path}"
        if got is None:
            late = f" (nothing came for {PATIENCE:g} s)" if not self._early else ""
            got = self._recording.got(self._early[0]) if self._early else ""
            what += late
        return f"{what}\n{difference(like.recorded.normalize(wanted), like.current.normalize(got))}"

    def _listen(self) -> None:
        with open(0, "rb", closefd=False) as stdin:
            for line in stdin:
                if line.strip():
                    self._lines.put(line)
        self._lines.put(None)

    def _next(self, seconds: float | None) -> bytes | None:
        """The next line; None at the end of the input, or if none came in time."""
        if self._is_closed:
            return None
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return None
        self._is_closed = line is None
        return line


def merge_entries(entries: list[Entry]) -> Iterator[Entry]:
    """The entries with every line in one piece, however long it is."""
    partial: dict[Direction, bytes] = {}
    for entry in entries:
        if not isinstance(entry, DataEntry):
            for dir in list(partial):
                if isinstance(entry, ProgramEnded) or (
                    isinstance(entry, StreamClosed) and dir == "in"
                ):
                    yield DataEntry(dir, partial.pop(dir))
            yield entry
            continue
        data = partial.pop(entry.dir, b"") + entry.data
        if data.endswith(b"\n"):
            if data.strip() or entry.dir != "in":
                yield DataEntry(entry.dir, data)
        else:
            partial[entry.dir] = data


def parsed(line: bytes) -> Json:
    """The message; the text itself if it is not JSON."""
    text = line.decode("utf-8", "replace")
    try:
        message: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return message


def _start_facts(
    args: list[str], text: str | None, files: Mapping[str, str], plain: Callable[[str], str]
) -> Json:
    """The arguments, input and files of a program, without parts that differ between runs."""
    facts: dict[str, Json] = {"args": [plain(word) for word in args]}
    if text is not None:
        facts["input"] = plain(text)
    for name, content in sorted(files.items()):
        facts[f"file {plain(name)}"] = plain(content)
    return facts


def _used(run: str) -> Path:
    return paths.cache() / "replays" / run


def _output(entry: DataEntry, like: ReplayMatcher) -> None:
    data = entry.data
    if entry.dir == "out":
        with contextlib.suppress(UnicodeDecodeError):
            data = like.rewrite_line(data.decode()).encode()
    if not write(1 if entry.dir == "out" else 2, data):
        os._exit(1)  # the reader is gone


def _end(entry: ProgramEnded) -> int:
    now = time.time()
    for used in _used("").glob("*"):
        with contextlib.suppress(OSError):
            if used.stat().st_mtime < now - OLD:
                shutil.rmtree(used)
    if entry.signal is not None:
        die(entry.signal)
    return entry.code or 0


def main(words: Sequence[str]) -> None:
    """The arguments are ``FILE ARGUMENT…``."""
    path, *args = words
    # Not sys.exit: a thread still reads our input, and nothing is left to flush.
    os._exit(replay(path, args))
