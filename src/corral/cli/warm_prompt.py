"""A further prompt to a named session whose agent runs already: the short way of ``corral run``.

Theory of operation
-------------------
Loading the complete command line takes longer than a prompt to a warm agent. ``send`` does the same
as ``corral run --session NAME --quiet PROMPT`` with the standard library alone: it connects to the
session's background process, writes the request, and prints the text of the answer. The messages
are those of ``corral.sessions.warm.client``.

It returns None, and has done nothing, in every other case: other options, a pipe as stdin, a
terminal, no background process. The complete program then does the work. Errors, and ends other
than success, are reported by the complete program's own functions, which are loaded then.

Once the process has accepted the prompt there is no way back: a prompt must not be sent twice.
"""

from __future__ import annotations

import json
import os
import socket
import stat

from corral.cli.ui.message_text import MessageText
from corral.sessions.warm.address import socket_in, warm_folder
from corral.system.paths import state_folder

CONTROL = b'{"type":"corral.'
"""How a line starts that is not an event."""


class OutputClosed(Exception):
    """The reader of stdout has gone."""


def send(words: list[str]) -> int | None:
    """Send the prompt of these arguments of ``corral run`` and print the answer. Returns the exit
    code; None if the complete program must do it."""
    given = parse(words)
    if given is None or not _has_simple_streams():
        return None
    cwd = os.path.realpath(given.get("cwd", "."))
    connection = _connect(given["session"], cwd)
    if connection is None:
        return None
    request: dict[str, object] = {
        "name": given["session"],
        "text": given["prompt"],
        "options": {"cwd": cwd},
    }
    with connection:
        try:
            return _Exchange(connection).run(request)
        except OutputClosed:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 141


def parse(words: list[str]) -> dict[str, str] | None:
    """The session, the prompt and the folder, if there is nothing else and the run is quiet."""
    found: dict[str, str] = {}
    is_quiet = False
    rest = iter(words)
    for word in rest:
        if word in ("-q", "--quiet"):
            is_quiet = True
            continue
        key = {"--session": "session", "--cwd": "cwd", "-C": "cwd"}.get(word, "prompt")
        value = next(rest, "") if key != "prompt" else word
        if key in found or not value.strip() or value.startswith("-"):
            return None
        found[key] = value
    return found if is_quiet and "session" in found and "prompt" in found else None


def _has_simple_streams() -> bool:
    """Nothing is piped in, the answer goes to a file or a pipe, no one can be asked, there is no
    log, and no configuration file is named."""
    if os.environ.get("CORRAL_LOG") or "CORRAL_CONFIG" in os.environ:
        return False
    try:
        piped = os.fstat(0).st_mode
        return stat.S_ISCHR(piped) and not os.isatty(1) and not (os.isatty(0) and os.isatty(2))
    except OSError:
        return False


def _connect(name: str, cwd: str) -> socket.socket | None:
    home = state_folder()
    path = None if home is None else socket_in(warm_folder(home, name, cwd))
    if path is None or not hasattr(socket, "AF_UNIX"):
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


class _Exchange:
    """One prompt and its answer."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")
        self._message = MessageText()
        self._is_accepted = False
        self._is_cancelled = False
        self._done = b""

    def run(self, request: dict[str, object]) -> int | None:
        try:
            self._write(request)
            while True:
                try:
                    code = self._read()
                except KeyboardInterrupt:
                    if self._is_cancelled:
                        return 130
                    self._is_cancelled = True
                    self._write({"type": "cancel"})
                else:
                    return code
        except ConnectionError:
            return _report_lost(self._connection) if self._is_accepted else None

    def _write(self, message: dict[str, object]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _read(self) -> int | None:
        """Read to the end. Raises ``ConnectionError`` if the process ended."""
        for line in self._lines:
            if not line.startswith(CONTROL):
                self._on_event(line)
                continue
            message = json.loads(line)
            if message["type"] == "corral.end":
                _print(self._message.end())
                return _report_end(line, self._done)
            self._is_accepted = self._is_accepted or message["type"] == "corral.accepted"
            if message["type"] == "corral.question":
                number = message["number"]
                self._write({"type": "answer", "number": number, "given": "deny"})
        raise ConnectionResetError

    def _on_event(self, line: bytes) -> None:
        event = json.loads(line)
        if event.get("parent") is not None:
            return
        if event["type"] == "text" and event.get("delta"):
            _print(self._message.before(event["delta"]) + event["delta"])
        elif event.get("call_id") is not None:
            _print(self._message.end_message())
        if event["type"] == "done":
            self._done = line


def _print(text: str) -> None:
    """Write to stdout, which is not a terminal here: the text is data."""
    data = memoryview(text.encode("utf-8", "replace"))
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError as error:
        raise OutputClosed from error


def _report_end(end: bytes, done: bytes) -> int:
    """The exit code. What is not a success is reported as by the complete program."""
    if not json.loads(end).get("error") and json.loads(done or b"{}").get("status") == "success":
        return 0
    from corral.cli.exit_codes import exit_code
    from corral.cli.main import report_error
    from corral.cli.ui.progress import Progress
    from corral.errors import from_event
    from corral.events import Done, from_json
    from corral.sessions.warm.client import End, control_decoder

    message = control_decoder.decode(end)
    if isinstance(message, End) and message.error is not None:
        return report_error(from_event(message.error))
    event = from_json(done)
    if not isinstance(event, Done):
        return 1
    Progress(enabled=False).summary(event)
    return exit_code(event)


def _report_lost(connection: socket.socket) -> int:
    from pathlib import Path

    from corral.cli.main import report_error
    from corral.sessions.warm.client import process_ended
    from corral.sessions.warm.names import WarmFiles

    return report_error(process_ended(WarmFiles(Path(connection.getpeername()).parent)))
