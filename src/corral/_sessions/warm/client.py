"""A named warm session, as its callers see it: send a prompt, read the events, stop it.

A named session belongs to a folder and a name. Its agent runs in a background process (``server``)
that answers on a Unix socket, so that later prompts do not start the agent again. The files are
in corral's home, in ``warm/<digest>``, accessible to the owner only:

* ``lock``: held by the background process as long as it lives;
* ``socket``: where it listens; if that path is too long for a socket, it is in the folder for
  temporary files, in a folder of the user's own;
* ``session.json``: the name, the agent, the options and the id of the stored session. It stays when
  the process ends: the next prompt starts another process, which resumes the session;
* ``log``: stderr of the process.

One connection carries one request, as a line of JSON, and its response:

* ``Waiting`` while another prompt of this session runs;
* ``Accepted`` when the prompt is about to be sent to the agent. Before it, a caller may repeat a
  request whose connection was lost; after it, it must not;
* events, each as ``corral.events.to_json`` writes it;
* ``WarmQuestion`` for each permission request and question of the agent, which the caller answers
  with a ``WarmAnswer``;
* ``End``, with the error if the request was rejected, else with the result.

A prompt with a schema, or that is repeated until it is verified, may take several turns: the events
of all of them are sent, and the result is that of all of them together.

A caller cancels a prompt with ``Cancel`` or by closing the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from corral._sessions.warm.names import WarmFiles
from corral._system import clock, paths
from corral._system.process import daemon
from corral.errors import ProcessFailed, StorageFailed, from_event
from corral.events import AgentQuestion, Error, Event, PermissionRequest, from_json
from corral.result import Result
from corral.values import Json, JsonObject, decoder_for

if TYPE_CHECKING:
    from corral._core.question_replies import AnswerLike

MAX_LINE = 1 << 28
"""Bytes of one message."""
START_SECONDS = 60.0
"""How long the background process may take to answer on its socket."""
STOP_SECONDS = 30.0
"""How long the background process may take to end."""
POLL_SECONDS = 0.01
STARTS = 3
"""How often a request is repeated if the process ends before it accepts it."""
IDLE_SECONDS = 1800.0
"""The default idle limit."""

Ask: TypeAlias = "Callable[[PermissionRequest | AgentQuestion], Awaitable[AnswerLike]]"


class WarmRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line that a caller sends."""

    action: Literal["prompt", "stop"] = "prompt"
    name: str = ""
    agent: str | None = None
    """None: the agent of the session."""
    text: str | None = None
    options: dict[str, Json] = {}
    """Options that the caller gave. Others are those of the session."""
    interactive: bool = False
    """Whether permission requests can be answered."""
    schema: JsonObject | None = None
    """The JSON Schema that the answer must fit."""
    wants_result: bool = False
    """``End`` is to have the result."""
    until_verified: bool = False
    """Repeat it until the work is verified, with at most ``rounds`` further rounds."""
    rounds: int = 0
    config: str | None = None
    """The configuration file that the caller names, with ``--config`` or a variable."""


class Waiting(msgspec.Struct, frozen=True, tag_field="type", tag="corral.waiting"):
    """Another prompt of this session is running."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="corral.accepted"):
    session: str
    """The id of the stored session."""
    agent: str
    agent_asks: bool = False
    """The agent has a channel for questions."""
    denied_without_asking: tuple[str, ...] = ()
    """As ``PreparedRun.denied_without_asking``."""


class WarmQuestion(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="corral.question"
):
    number: int
    request: PermissionRequest | AgentQuestion


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="corral.end"):
    error: Error | None = None
    failed: bool = False
    """A deadline passed or the prompt was cancelled."""
    result: Result[Json] | None = None
    """Set if the caller wanted it."""


class WarmAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="answer"):
    number: int
    given: str | dict[str, Json] | None
    """A decision, or the answer to a question."""


class Cancel(msgspec.Struct, frozen=True, tag_field="type", tag="cancel"):
    pass


Control = Waiting | Accepted | WarmQuestion | End
CONTROL_PREFIX = b'{"type":"corral.'
"""How a line starts that is not an event."""
control_decoder: msgspec.json.Decoder[Control] = decoder_for(Control)


def process_ended(files: WarmFiles) -> ProcessFailed:
    """The error if the background process ended after it had accepted a prompt."""
    return ProcessFailed(
        "the background process of the session ended unexpectedly",
        hint=f"See {files.log}. The next prompt starts another process.",
    )


class WarmTurn:
    """One prompt to a named session. Iterate it for the events; ``cancel`` ends it early."""

    def __init__(
        self,
        files: WarmFiles,
        request: WarmRequest,
        *,
        ask: Ask | None = None,
        idle: float = IDLE_SECONDS,
        on_accepted: Callable[[Accepted], None] = lambda _: None,
        on_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """``ask`` answers permission requests. ``idle``: seconds without a prompt after which a
        process that this call starts ends."""
        self._files = files
        self._request = request
        self._ask = ask
        self._idle = idle
        self._on_accepted = on_accepted
        self._on_waiting = on_waiting
        self._writer: asyncio.StreamWriter | None = None
        self._cancelled = False
        self.accepted: Accepted | None = None
        self.failed: bool = False
        """As ``Turn.failed``."""
        self.notes: tuple[str, ...] = ()
        """As ``Turn.notes``."""
        self.result: Result[Json] | None = None
        """Set at the end, if the request wants it."""

    def cancel(self) -> None:
        self._cancelled = self.failed = True
        if self._writer is not None:
            _send(self._writer, Cancel())

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for line in self.lines():
            yield from_json(line)

    async def lines(self) -> AsyncIterator[bytes]:
        """The events as lines of JSON, without the line ends. Raises the error of a request that
        was rejected, and ``ProcessFailed`` if the background process ended."""
        for _ in range(STARTS):
            try:
                async for line in self._attempt():
                    yield line
                return
            except ConnectionError:
                # Not accepted: the process was about to end. Another one is started.
                if self.accepted is not None:
                    break
        raise process_ended(self._files)

    async def _attempt(self) -> AsyncIterator[bytes]:
        reader, self._writer = await open_connection(self._files, self._idle)
        try:
            _send(self._writer, self._request)
            if self._cancelled:
                _send(self._writer, Cancel())
            while True:
                line = (await reader.readline()).removesuffix(b"\n")
                if not line:
                    raise ConnectionResetError
                if not line.startswith(CONTROL_PREFIX):
                    yield line
                    continue
                message = control_decoder.decode(line)
                if isinstance(message, End):
                    self.failed = self.failed or message.failed
                    if message.error is not None:
                        raise from_event(message.error)
                    self.result = message.result
                    return
                await self._on_control(message)
        finally:
            self._writer.close()
            self._writer = None

    async def _on_control(self, message: Control) -> None:
        match message:
            case Accepted():
                self.accepted = message
                self._on_accepted(message)
            case Waiting():
                self._on_waiting()
            case WarmQuestion():
                given: AnswerLike = "deny"
                if self._ask is not None:
                    given = await self._ask(message.request)
                if self._writer is not None:
                    given = dict(given) if isinstance(given, Mapping) else given
                    _send(self._writer, WarmAnswer(number=message.number, given=given))
            case _:
                pass


async def open_connection(
    files: WarmFiles, idle: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the background process of a session; start it if it does not run."""
    waited = clock.Stopwatch()
    started = False
    while True:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return await asyncio.open_unix_connection(files.socket, limit=MAX_LINE)
        if waited.seconds > START_SECONDS:
            raise ProcessFailed(
                "the background process of the session does not answer", hint=f"See {files.log}."
            )
        if not files.is_warm():
            if started:
                raise ProcessFailed(
                    "the background process of the session ended while it started",
                    hint=f"See {files.log}.",
                )
            started = _start_server(files, idle)
        await asyncio.sleep(POLL_SECONDS)


def _start_server(files: WarmFiles, idle: float) -> bool:
    """Start the background process of a session. False if another process has just done so."""
    try:
        paths.make_dir(files.folder)
    except OSError as error:
        raise StorageFailed(
            f"a named session needs a folder for its files, and {files.folder} cannot be"
            f" created: {error.strerror}",
            hint="Set CORRAL_HOME to another folder.",
        ) from error
    try:
        return daemon.start(
            "corral._sessions.warm.server",
            str(files.folder),
            repr(idle),
            lock=files.lock,
            log=files.log,
        )
    except OSError as error:
        raise ProcessFailed(
            f"the background process of the session cannot be started: {error.strerror}",
            hint=f"See {files.log}.",
        ) from error


async def stop(files: WarmFiles) -> bool:
    """End the background process and its agent, and wait until they have ended. False if it does
    not run. Raises ``ProcessFailed`` if it does not end in time."""
    if not files.is_warm():
        return False
    with contextlib.suppress(FileNotFoundError, ConnectionError):
        reader, writer = await asyncio.open_unix_connection(files.socket, limit=MAX_LINE)
        try:
            _send(writer, WarmRequest(action="stop"))
            async with asyncio.timeout(STOP_SECONDS):
                await reader.read()
        except TimeoutError:
            pass
        finally:
            writer.close()
    waited = clock.Stopwatch()
    while files.is_warm():
        if waited.seconds > STOP_SECONDS:
            stored = files.stored()
            pid = f" (process {stored.pid})" if stored is not None else ""
            raise ProcessFailed(
                f"the background process{pid} did not end", hint=f"See {files.log}."
            )
        await asyncio.sleep(POLL_SECONDS)
    return True


def _send(writer: asyncio.StreamWriter, message: WarmRequest | WarmAnswer | Cancel) -> None:
    writer.write(msgspec.json.encode(message) + b"\n")
