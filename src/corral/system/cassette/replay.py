"""Replace a recorded program: the same output for the same input, without delay.

The input is compared with the recording, message by message. If a message differs, or an expected
one does not arrive, the replay ends with the exit code ``DIFFERS`` and prints the difference. It
never waits in silence. It needs neither the program nor its machine nor its API keys.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from corral.errors import CorralError
from corral.protocol.replay_match import ReplayMatcher, difference
from corral.system import paths
from corral.system.cassette import format
from corral.system.cassette.format import DataEntry, Direction, Ended, Entry, StreamClosed, Take
from corral.system.cassette.record import die, write
from corral.system.environment import SecretRedactor, named_secrets
from corral.values import Json

DIFFERS = 90
"""The exit code of a replay that differs from the recording. No known agent uses it."""
SIGN = "corral record play: "
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
        return _play(path, list(args))
    except (_Differs, CorralError) as error:
        write(2, f"{SIGN}{error}\n".encode())
        return DIFFERS


def _play(path: str, args: list[str]) -> int:
    given: dict[str, str] = json.loads(os.environ.get(SECRETS) or "{}")
    ours = {name: value for name, value in os.environ.items() if name != SECRETS}
    redactor = SecretRedactor({**named_secrets(ours), **given})
    recording = _Recording(path, format.read(path), args, redactor)
    if not any(format.is_conversation(take.input) for take in recording.takes):
        was_read = any(StreamClosed() in take.entries for take in recording.takes)
        data = b"".join(iter(lambda: os.read(0, 1 << 20), b"")) if was_read else b""
        return _replay_text(recording, recording.redactor.clean(data).decode("utf-8", "replace"))
    return _Conversation(recording).play()


def _replay_text(recording: _Recording, sent: str) -> int:
    """A program that reads all its input at the start."""
    take, like = recording.choose(sent, None)
    for entry in merge_entries(take.entries):
        if isinstance(entry, Ended):
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
        for take in self.takes:
            like = ReplayMatcher(take.head.places, self._folders)
            if self._then(take, like) != self._now(text, like) or not self._has_message(
                take, first, like
            ):
                continue
            fitting += 1
            if self._claim(take.head.take):
                return take, like
        if fitting:
            raise _Differs(
                f"{self.path} has this request {fitting} times, and it was made once more"
            )
        # Most likely the first take that was not used yet was expected.
        expected = next((take for take in self.takes if not self._is_claimed(take)), self.takes[-1])
        like = ReplayMatcher(expected.head.places, self._folders)
        then, now = self._then(expected, like), self._now(text, like)
        if then == now and first is not None:
            then = like.normalize_recorded(parsed(expected.input.split(b"\n", 1)[0]))
            now = like.normalize_current(self.got(first))
        raise _Differs(
            f"this request is not the one recorded in {self.path}\n{difference(then, now)}"
        )

    def got(self, line: bytes) -> Json:
        return parsed(self.redactor.clean(line))

    def _has_message(self, take: Take, first: bytes | None, like: ReplayMatcher) -> bool:
        """Whether the take has this first message. It may be anywhere, as messages may be sent in
        parallel."""
        if first is None:
            return True
        got = self.got(first)
        return any(like.matches(parsed(line), got) for line in take.input.splitlines())

    def _then(self, take: Take, like: ReplayMatcher) -> Json:
        """What the recorded program got: command line, input, and the files that they name."""
        text = None if format.is_conversation(take.input) else take.input.decode("utf-8", "replace")
        return _start_facts(list(take.head.args), text, take.given, like.normalize_recorded_text)

    def _now(self, text: str | None, like: ReplayMatcher) -> Json:
        files = format.named_files("\n".join(self._args), self._folders)
        files |= format.named_files(text or "", self._folders)
        clean = self.redactor.clean_text
        args = [clean(word) for word in self._args]
        files = {name: clean(content) for name, content in files.items()}
        return _start_facts(args, text, files, like.normalize_current_text)

    def _claim(self, take: str) -> bool:
        """Mark a take as used. Return False if another process of the run has used it."""
        if self._run is None:
            return True
        used = _used(self._run)
        try:
            used.mkdir(parents=True, exist_ok=True)
            (used / take).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _is_claimed(self, take: Take) -> bool:
        return self._run is not None and (_used(self._run) / take.head.take).exists()


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
                    self._open -= _is_answer(entry)
                case StreamClosed():
                    line = self._early[0] if self._early else self._next(None)
                    if line is not None:
                        raise _Differs(self._other(END, self._recording.got(line), like))
                case Ended():
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
        return f"{what}\n{difference(like.normalize_recorded(wanted), like.normalize_current(got))}"

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
                if isinstance(entry, Ended) or (isinstance(entry, StreamClosed) and dir == "in"):
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


def _is_answer(entry: DataEntry) -> bool:
    if entry.dir != "out" or b'"id"' not in entry.data:
        return False
    message = parsed(entry.data)
    return isinstance(message, dict) and "id" in message and "method" not in message


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


def _end(entry: Ended) -> int:
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
