"""Be the program that was recorded: the same answers to the same words, at once.

What is sent is held against the recording, message by message. Something else, or
something less that is waited for, ends it with ``DIFFERS`` and a difference to read:
never silence. Needs nothing of the program, of its machine, or its keys.
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
from typing import cast

from corral.errors import CorralError
from corral.protocol.replay_match import ReplayMatcher, difference
from corral.system import paths
from corral.system.cassette import format
from corral.system.cassette.format import DataEntry, Direction, Ended, Entry, StreamClosed, Take
from corral.system.cassette.record import RUN, SECRETS, die, open_environment, write
from corral.system.environment import SecretRedactor, named_secrets
from corral.values import Json

DIFFERS = 90
"""The exit code of a replay that differs from the recording. No known agent uses it."""
SIGN = "corral replay: "
"""The start of the reason on stderr."""
PATIENCE = 10.0
"""Seconds for what was sent then, while the other side waits for us: else it waits for ever."""
OLD = 24 * 3600.0
"""Seconds after which nobody asks any more which takes a run has used."""
END = "(the end of the input)"


class _Differs(Exception):
    """The input differs from the recorded input."""


def replay(path: str, args: Sequence[str]) -> int:
    """Answer on our own stdin, stdout and stderr. The exit code; where the program was killed,
    so are we."""
    try:
        return _play(path, list(args))
    except (_Differs, CorralError) as error:
        write(2, f"{SIGN}{error}\n".encode())
        return DIFFERS


def _play(path: str, args: list[str]) -> int:
    secrets = {**named_secrets(os.environ), **open_environment(os.environ.get(SECRETS))}
    stage = _Stage(path, format.read(path), args, SecretRedactor(secrets))
    if not any(format.objects(take.typed) for take in stage.takes):
        was_read = any(StreamClosed() in take.entries for take in stage.takes)
        typed = b"".join(iter(lambda: os.read(0, 1 << 20), b"")) if was_read else b""
        return _recite(stage, stage.eraser.clean(typed).decode("utf-8", "replace"))
    return _Talk(stage).play()


def _recite(stage: _Stage, sent: str) -> int:
    """A program that reads all its input at the start."""
    take, like = stage.choose(sent, None)
    for entry in merge_entries(take.entries):
        if isinstance(entry, Ended):
            return _end(entry)
        if isinstance(entry, DataEntry) and entry.dir != "in":
            _say(entry, like)
    raise _Differs(stage.unfinished)


class _Stage:
    """The recording, and how we were started."""

    def __init__(
        self, path: str, takes: list[Take], args: list[str], eraser: SecretRedactor
    ) -> None:
        self.path = path
        self.takes = takes
        self.eraser = eraser
        self._args = args
        self._folders = format.places(os.getcwd(), os.environ)
        self._run = os.environ.get(RUN)
        self.unfinished = f"{path} ends here: the recorder was killed"

    def choose(self, text: str | None, first: bytes | None) -> tuple[Take, ReplayMatcher]:
        """The first take that began so, and was not played yet."""
        fitting = 0
        for take in self.takes:
            like = ReplayMatcher(take.head.places, self._folders)
            if self._then(take, like) != self._now(text, like) or not self._greets(
                take, first, like
            ):
                continue
            fitting += 1
            if self._claim(take.head.take):
                return take, like
        if fitting:
            raise _Differs(f"{self.path} has this {fitting} times, and it was requested once more")
        # Of the takes still to come, the first is most likely what was meant.
        meant = next((take for take in self.takes if not self._is_claimed(take)), self.takes[-1])
        like = ReplayMatcher(meant.head.places, self._folders)
        then, now = self._then(meant, like), self._now(text, like)
        if then == now and first is not None:
            then = like.normalize_recorded(parsed(meant.typed.split(b"\n", 1)[0]))
            now = like.normalize_current(self.got(first))
        raise _Differs(
            f"this request is not the one recorded in {self.path}\n{difference(then, now)}"
        )

    def got(self, line: bytes) -> Json:
        return parsed(self.eraser.clean(line))

    def _greets(self, take: Take, first: bytes | None, like: ReplayMatcher) -> bool:
        """Whether what comes first is of the take; where several talk it may stand anywhere."""
        if first is None:
            return True
        got = self.got(first)
        return any(like.matches(parsed(line), got) for line in take.typed.splitlines())

    def _then(self, take: Take, like: ReplayMatcher) -> Json:
        """What the program was told by its command line, its input and the files they name."""
        typed = None if format.objects(take.typed) else take.typed.decode("utf-8", "replace")
        return _told(list(take.head.args), typed, take.given, like.normalize_recorded_text)

    def _now(self, text: str | None, like: ReplayMatcher) -> Json:
        files = format.pointed_at("\n".join(self._args), self._folders)
        files |= format.pointed_at(text or "", self._folders)
        clean = self.eraser.clean_text
        args = [clean(word) for word in self._args]
        files = {name: clean(content) for name, content in files.items()}
        return _told(args, text, files, like.normalize_current_text)

    def _claim(self, take: str) -> bool:
        """Two processes of one run do not play the same take."""
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


class _Talk:
    """A program that exchanges JSON objects, one per line."""

    def __init__(self, stage: _Stage) -> None:
        self._stage = stage
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._early: list[bytes] = []
        """Sent, and not yet what is expected."""
        self._expected: list[Json] = []
        self._open = 0
        """Calls of the other side that wait for our answer."""
        self._is_closed = False
        threading.Thread(target=self._listen, daemon=True).start()

    def play(self) -> int:
        first = self._next(None)
        take, like = self._stage.choose(None, first)
        if first is not None:
            self._early.append(first)
        entries = list(merge_entries(take.entries))
        said = (entry for entry in entries if isinstance(entry, DataEntry) and entry.dir == "in")
        self._expected = [parsed(entry.data) for entry in said]
        for entry in entries:
            match entry:
                case DataEntry(dir="in"):
                    self._expect(like)
                case DataEntry():
                    _say(entry, like)
                    self._open -= _is_answer(entry)
                case StreamClosed():
                    self._expect_end(like)
                case Ended():
                    return _end(entry)
                case _:
                    pass
        if self._is_closed:
            return 0
        raise _Differs(self._stage.unfinished)

    def _expect(self, like: ReplayMatcher) -> None:
        """Until the next message has come. Later ones may come before it, as several may talk
        at once; but not for long, as their answers stand behind it."""
        wanted = self._expected.pop(0)
        is_reply = isinstance(wanted, dict) and "method" not in wanted
        until = time.monotonic() + PATIENCE
        looked_at = 0
        while True:
            for line in self._early[looked_at:]:
                got = self._stage.got(line)
                if like.matches(wanted, got):
                    self._early.remove(line)
                    like.learn_pair(wanted, got)
                    self._open += isinstance(got, dict) and "method" in got and "id" in got
                    return
                if not any(like.matches(then, got) for then in self._expected):
                    raise _Differs(self._other(wanted, got, like))
            looked_at = len(self._early)
            # A person may take their time over a reply. All else has to come, if it is we
            # who are waited for.
            is_due = bool(self._early) or (self._open > 0 and not is_reply)
            came = self._next(max(until - time.monotonic(), 0.0) if is_due else None)
            if came is None:
                raise _Differs(self._other(wanted, END if self._is_closed else None, like))
            self._early.append(came)

    def _expect_end(self, like: ReplayMatcher) -> None:
        line = self._early[0] if self._early else self._next(None)
        if line is not None:
            raise _Differs(self._other(END, self._stage.got(line), like))

    def _other(self, wanted: Json, got: Json, like: ReplayMatcher) -> str:
        what = f"this request is not the one recorded in {self._stage.path}"
        if got is None:
            late = f" (nothing came for {PATIENCE:g} s)" if not self._early else ""
            got = self._stage.got(self._early[0]) if self._early else ""
            what += late
        return f"{what}\n{difference(like.normalize_recorded(wanted), like.normalize_current(got))}"

    def _listen(self) -> None:
        with open(0, "rb", closefd=False) as typed:
            for line in typed:
                if line.strip():
                    self._lines.put(line)
        self._lines.put(None)

    def _next(self, seconds: float | None) -> bytes | None:
        """The next line; None at the end, or when none came in time."""
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
    begun: dict[Direction, bytes] = {}
    for entry in entries:
        if not isinstance(entry, DataEntry):
            for dir in list(begun):
                if isinstance(entry, Ended) or (isinstance(entry, StreamClosed) and dir == "in"):
                    yield DataEntry(dir, begun.pop(dir))
            yield entry
            continue
        data = begun.pop(entry.dir, b"") + entry.data
        if data.endswith(b"\n"):
            if data.strip() or entry.dir != "in":
                yield DataEntry(entry.dir, data)
        else:
            begun[entry.dir] = data


def parsed(line: bytes) -> Json:
    """A message, or a text where it is none."""
    text = line.decode("utf-8", "replace")
    try:
        return cast("Json", json.loads(text))
    except (ValueError, RecursionError):
        return text


def _is_answer(entry: DataEntry) -> bool:
    if entry.dir != "out" or b'"id"' not in entry.data:
        return False
    message = parsed(entry.data)
    return isinstance(message, dict) and "id" in message and "method" not in message


def _told(
    args: list[str], text: str | None, files: Mapping[str, str], plain: Callable[[str], str]
) -> Json:
    """All that a program is told when it starts, without what nobody chose."""
    told: dict[str, Json] = {"args": [plain(word) for word in args]}
    if text is not None:
        told["input"] = plain(text)
    for name, content in sorted(files.items()):
        told[f"file {plain(name)}"] = plain(content)
    return told


def _used(run: str) -> Path:
    return paths.cache() / "replays" / run


def _forget_old(now: float) -> None:
    for used in _used("").glob("*"):
        with contextlib.suppress(OSError):
            if used.stat().st_mtime < now - OLD:
                shutil.rmtree(used)


def _say(entry: DataEntry, like: ReplayMatcher) -> None:
    data = entry.data
    if entry.dir == "out":
        with contextlib.suppress(UnicodeDecodeError):
            data = like.rewrite_line(data.decode()).encode()
    if not write(1 if entry.dir == "out" else 2, data):
        os._exit(1)  # nobody listens any more


def _end(entry: Ended) -> int:
    _forget_old(time.time())
    if entry.signal is not None:
        die(entry.signal)
    return entry.code or 0


def main(words: Sequence[str]) -> None:
    """``FILE ARGUMENT…``: how a run starts it."""
    path, *args = words
    # Not sys.exit: a thread still waits for our input, and nothing is left to flush.
    os._exit(replay(path, args))
