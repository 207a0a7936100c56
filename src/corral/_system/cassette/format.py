"""A recorded conversation with a program, as a file with one JSON object per line.

A file holds takes, one for each recorded process; each line names its take. A take starts with its
head (format, command, folders). Then follow input and output, ordered so that no reply comes
before its request. It ends with the exit. Each line is written with one call: if the recorder is
killed, the file can be read, and the last take has no end.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from corral._core import stored_formats
from corral._core.stored_formats import RECORDING
from corral._system import fs
from corral._system.environment import SecretRedactor
from corral.errors import ConfigError
from corral.values import decode_as, is_object

RUN = "CORRAL_CASSETTE_RUN"
"""The variable that names the run of a take: takes of one run share a file."""
PIECE = 1024 * 1024
"""Bytes of an incomplete line that are buffered until its end arrives."""

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
"""Not ``splitlines``: a carriage return does not end a line here."""

Direction: TypeAlias = Literal["in", "out", "err"]


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The start of a take."""

    cassette: int
    take: str = ""
    """Set by the writer."""
    run: str
    """Takes of one run are in one file; another run overwrites the file."""
    argv: tuple[str, ...]
    words: int = 1
    """How many items of ``argv`` are the program itself."""
    places: dict[str, str] = {}
    """Folders that the program knows, by name."""
    secrets: tuple[str, ...] = ()
    """Names of the secrets that the program was given. More may have been redacted."""
    agent: str | None = None
    version: str | None = None
    recorded: str = ""
    """The time of the start, set by the writer."""

    @property
    def args(self) -> tuple[str, ...]:
        return self.argv[self.words :]


class DataEntry(msgspec.Struct, frozen=True):
    """A line in one direction, or the part of it that arrived."""

    dir: Direction
    data: bytes


class StreamClosed(msgspec.Struct, frozen=True):
    """The end of the input."""


class Given(msgspec.Struct, frozen=True):
    """A file that the arguments or the input refer to."""

    path: str
    text: str


class ProgramEnded(msgspec.Struct, frozen=True):
    code: int | None
    signal: int | None


Entry: TypeAlias = DataEntry | StreamClosed | Given | ProgramEnded


class Take(msgspec.Struct, frozen=True):
    head: Head
    entries: list[Entry]

    @property
    def given(self) -> dict[str, str]:
        return {entry.path: entry.text for entry in self.entries if isinstance(entry, Given)}

    @property
    def input(self) -> bytes:
        """The complete input."""
        data = (entry for entry in self.entries if isinstance(entry, DataEntry))
        return b"".join(entry.data for entry in data if entry.dir == "in")


class _TakeLine(msgspec.Struct):
    """Any line except the first of a take."""

    take: str
    dir: Direction | None = None
    data: str | None = None
    base64: bytes | None = None
    eof: bool = False
    file: str | None = None
    exit: int | None = None
    signal: int | None = None
    ended: bool = False

    @property
    def entry(self) -> Entry:
        text = self.data or ""
        if self.file is not None:
            return Given(self.file, text)
        if self.eof:
            return StreamClosed()
        if self.dir is not None:
            return DataEntry(self.dir, text.encode() if self.base64 is None else self.base64)
        return ProgramEnded(self.exit, self.signal)


def read(path: str | Path) -> list[Take]:
    """Every take of a file, in order of their start. Raises ``ConfigError``."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(
            f"the recording cannot be read: {path}: {error.strerror}",
            hint="Record one with `corral run --record-to FILE` or `corral fake record -o FILE`.",
        ) from error
    takes: dict[str, Take] = {}
    for number, line in enumerate(lines):
        if not line:
            continue
        try:
            if b'"cassette":' in line[:32]:
                stored_formats.check_json(f"the recording {path}", line, "cassette", RECORDING)
                head = decode_as(line, Head)
                takes[head.take] = Take(head, [])
                continue
            take_line = decode_as(line, _TakeLine)
            takes[take_line.take].entries.append(take_line.entry)
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
            if number == len(lines) - 1:
                break  # the writer was killed while it wrote this line
            raise ConfigError(f"not a recording: {path}, line {number + 1}: {error}") from error
    if not takes:
        raise ConfigError(f"the recording is empty: {path}")
    return list(takes.values())


class Writer:
    """Writes one take with known secrets redacted. Can be used by several threads."""

    def __init__(self, path: str | Path, head: Head, redactor: SecretRedactor) -> None:
        """Raises ``OSError``. Later failures end the recording and are in ``failure``."""
        self._take = os.urandom(4).hex()
        self._redactor = redactor
        self._overlap = max(redactor.longest - 1, 0)
        self._lock = threading.Lock()
        self._begin = time.monotonic()
        self._unwritten: dict[Direction, bytearray] = {
            "in": bytearray(), "out": bytearray(), "err": bytearray()
        }  # fmt: skip
        self.failure: OSError | None = None
        clean = msgspec.structs.replace(
            head,
            take=self._take,
            recorded=datetime.now(UTC).isoformat(timespec="seconds"),
            argv=tuple(redactor.clean_text(word) for word in head.argv),
            places={name: redactor.clean_text(path) for name, path in head.places.items()},
        )
        # Open the file to append to and write the head. A file of another run is emptied. A link
        # is not followed: an agent may have made it.
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o600)
        try:
            with fs.hold_lock(fd):  # two processes of one run may start at once
                first = os.pread(fd, 4096, 0).split(b"\n")[0]
                if f'"run":{json.dumps(clean.run)}'.encode() not in first:
                    os.ftruncate(fd, 0)
                fs.write_all(fd, msgspec.json.encode(clean) + b"\n")
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def data(self, dir: Direction, data: bytes) -> None:
        """Record bytes. Complete lines are written now. The rest waits: a secret may be split."""
        with self._lock:
            unwritten = self._unwritten[dir]
            unwritten += data
            end = unwritten.rfind(b"\n") + 1 if b"\n" in data else 0
            if end:
                self._lines(dir, bytes(unwritten[:end]))
                del unwritten[:end]
            elif len(unwritten) > PIECE:
                clean = self._redactor.clean(bytes(unwritten))
                cut = len(clean) - self._overlap
                self._line(dir, clean[:cut])
                unwritten[:] = clean[cut:]

    def closed(self) -> None:
        """The input has ended."""
        with self._lock:
            self._flush("in")
            self._write({"dir": "in", "eof": True})

    def given(self, path: str, text: str) -> None:
        with self._lock:
            self._write({"file": path, "data": self._redactor.clean_text(text)})

    def ended(self, code: int | None, signal: int | None) -> None:
        with self._lock:
            for dir in self._unwritten:
                self._flush(dir)
            self._write({"ended": True, "exit": code, "signal": signal})
            os.close(self._fd)

    def _flush(self, dir: Direction) -> None:
        unwritten = self._unwritten[dir]
        if unwritten:
            self._lines(dir, bytes(unwritten))
            unwritten.clear()

    def _lines(self, dir: Direction, block: bytes) -> None:
        for line in _LINE.findall(self._redactor.clean(block)):
            self._line(dir, line)

    def _line(self, dir: Direction, data: bytes) -> None:
        try:
            self._write({"dir": dir, "data": data.decode()})
        except UnicodeDecodeError:
            self._write({"dir": dir, "base64": base64.b64encode(data).decode()})

    def _write(self, line: Mapping[str, object]) -> None:
        """A failure ends the recording, never the conversation."""
        if self.failure is not None:
            return
        seconds = round(time.monotonic() - self._begin, 3)
        data = json.dumps({"take": self._take, **line, "t": seconds}, ensure_ascii=False).encode()
        try:
            # On a full disk the first part of a line may be written. Then nothing comes after it.
            fs.write_all(self._fd, data + b"\n")
        except OSError as error:
            self.failure = error


PLACE = ("HOME", "DIR", "TMP", "TEMP")
"""Ends of the names of variables that contain a folder."""


def places(cwd: str, env: Mapping[str, str]) -> dict[str, str]:
    """The folders that a program knows from its environment. A session's folder is recognized by
    its folder for temporary files."""
    found = {
        name: value.rstrip("/")
        for name, value in env.items()
        if name.endswith(PLACE) and os.path.isabs(value)
    }
    session, tmp = os.path.split(env.get("TMPDIR", ""))
    if tmp == "tmp" and os.path.isdir(os.path.join(session, "home")):
        found |= {"session": session, "session-id": os.path.basename(session)}
    return {"cwd": cwd, **found}


LARGEST_GIVEN = 1024 * 1024
SHORTEST_STEM = 8
"""Length of a file name that does not occur in a text by accident."""


def named_files(text: str, folders: Mapping[str, str]) -> dict[str, str]:
    """The files prepared for the program that the text names, because their content is part of the
    input: path below the session's home → content."""
    home = os.path.join(folders["session"], "home") if "session" in folders else None
    if home is None or not text:
        return {}
    found: dict[str, str] = {}
    for folder, _, names in os.walk(home):
        for name in names:
            path = os.path.join(folder, name)
            stem = name.partition(".")[0]
            named = path in text or (len(stem) >= SHORTEST_STEM and stem in text)
            # It may be another kind of file, or too large: the agent may have made it.
            content = fs.read_small(path, LARGEST_GIVEN) if named else None
            if content is not None:
                found[os.path.relpath(path, home)] = content.decode("utf-8", "replace")
    return dict(sorted(found.items()))


def is_conversation(data: bytes) -> bool:
    """Whether the data is JSON objects, one per line. Otherwise it is one text."""
    line = data.lstrip().split(b"\n", 1)[0]
    try:
        return is_object(json.loads(line))
    except ValueError:
        return False
