"""The backend for ACP agents: one prompt over a persistent connection. Also lists and loads the
sessions that an agent itself has stored.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from corral import errors
from corral._agents.spec import AcpTransport
from corral._protocol.acp.client import SessionInfo, read_session, read_session_list
from corral._protocol.acp.frames import (
    AudioBlock,
    Block,
    ImageBlock,
    LinkBlock,
    Resource,
    ResourceBlock,
    TextBlock,
)
from corral._protocol.ndjson import RawEvent
from corral._sessions.acp.connection import AcpConnection, AcpSession, ConnectionSource
from corral._sessions.backends.base import Backend, Fail, unclean_exit
from corral._sessions.event_normalizer import EventNormalizer
from corral._sessions.permissions import Asker
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.sinks import warning
from corral._sessions.store import SessionRecord, conversation_files, make_loadable, no_conversation
from corral._system import fs
from corral._system.media import media_type_of
from corral._system.process.process import Exit
from corral._system.threads import in_thread
from corral.errors import (
    ConfigError,
    CorralError,
    InputRejected,
    InvalidRequest,
    ProcessFailed,
    ResumeLost,
    ServerFailed,
    StartupTimeout,
    StreamBroken,
)
from corral.events import Thinking
from corral.values import AgentSession

if TYPE_CHECKING:
    from corral._sessions.meter import Meter


_STOP_ERRORS: dict[str, type[CorralError]] = {
    "cancelled": errors.Interrupted,
    "max_turn_requests": errors.TurnLimit,
    "max_tokens": errors.ContextLengthExceeded,
    "refusal": errors.ContentRefused,
}


LATE_UPDATES_TIMEOUT = 5.0
"""Seconds to wait for updates that come after a turn's end, however many come."""
PAUSE = 0.05
"""Seconds without text after which it may be the answer of another model call."""


class AcpBackend(Backend):
    """One prompt. See ``Backend`` for what each method promises."""

    def __init__(
        self,
        prepared: PreparedRun,
        record: SessionRecord,
        prompt: str,
        source: ConnectionSource,
        ask: Asker | None,
    ) -> None:
        self._prepared = prepared
        self._record = record
        self._prompt = prompt
        self._source = source
        self._ask = ask
        self._connection: AcpConnection | None = None
        self._session: AcpSession | None = None
        self._call: int | None = None
        self._was_cancelled = False
        self._timer: asyncio.TimerHandle | None = None
        self._discarding: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._failed_to_open = False
        self._reported_start = False
        self._drain_until: float | None = None
        self._is_drained = False
        self._tail: ConversationTail | None = None
        self._last_text: float | None = None
        """When the last text of this prompt came."""

    @property
    def session_id(self) -> str | None:
        return self._session.session_id if self._session else None

    @property
    def agent_version(self) -> str | None:
        if self._connection is None or self._prepared.agent.package.tested:
            return None  # the version of a known program is that of its package
        return self._connection.agent_version

    @property
    def stays_open(self) -> bool:
        return self._connection is not None and self._connection.dead is None

    @property
    def started(self) -> bool:
        return self._connection is not None or self._failed_to_open

    async def prepare(self) -> None:
        """Connecting may take long: ``end_soon`` cancels it."""
        opening = self._opening = asyncio.get_running_loop().create_task(self._connect())
        try:
            await asyncio.wait([opening])
        finally:
            if not opening.done():
                opening.cancel()
                await asyncio.wait([opening])
        if opening.cancelled():
            self._failed_to_open = True
            raise errors.Interrupted("the run was cancelled")
        opening.result()

    async def _connect(self) -> None:
        run = self._prepared.run
        try:
            connection = await self._source.connection(self._prepared)
        except errors.RemoteError as error:  # it ran, and the handshake failed
            self._failed_to_open = error.phase not in ("config", "spawn")
            raise
        self._connection = connection
        self.notes: tuple[str, ...] = (
            connection.program.launch.notes if connection.program.launch else ()
        )
        session = self._source.session
        if session is None:
            session = await self._open(connection)
            self._source.session = session
        else:
            await self._switch_model(connection, session)
        session.use_policy(self._prepared, self._ask, self._record)
        self._session = session
        if run.model is not None and session.models and run.model not in session.models:
            self.notes += (f"the agent does not list the model {run.model}",)
        agent = connection.agent
        for files, is_taken, what in (
            (run.images, agent is not None and agent.prompt_capabilities.image, "images"),
            (run.audio, agent is not None and agent.prompt_capabilities.audio, "audio"),
        ):
            if files and not is_taken:
                raise errors.ConfigError(f"{self._prepared.agent.name} takes no {what}")

    async def _open(self, connection: AcpConnection) -> AcpSession:
        prepared, meta = self._prepared, self._record.meta
        run = prepared.run
        if meta.lost:
            raise no_conversation(meta)
        if meta.session_id is not None:
            if run.resume is None and not connection.can_load:
                raise errors.ResumeLost(
                    "the agent's process ended, and it cannot load a conversation again",
                    hint="Start a new session.",
                )
            await in_thread(make_loadable, prepared.acp, self._record)
            session, loaded = await load_session(connection, meta.session_id, prepared, self._ask)
            session.model = session.first_model = loaded.model
            await self._switch_model(connection, session)
            return session
        session, offered = await connection.new_session(prepared, self._ask)
        session.models = offered.models
        session.model = session.first_model = offered.model
        await self._choose_mode(connection, session, offered.modes)
        await self._switch_model(connection, session)
        return session

    async def _switch_model(self, connection: AcpConnection, session: AcpSession) -> None:
        """Have the session answer with the model of this prompt; without one, with the model
        that it began with."""
        agent, model = self._prepared.agent, self._prepared.run.model or session.first_model
        if self._prepared.acp.model_at_start or session.model == model:
            return
        if model is None:
            raise errors.ConfigError(
                f"{agent.name} does not report which model it started with, and the last prompt"
                " chose another",
                hint="Give the session a model, or each of its prompts.",
            )
        complete = connection.acp.quirks.model_list_complete and session.models
        if complete and model not in session.models:
            raise errors.ModelNotFound(
                f"{agent.name} has no model {model!r}",
                hint=f"It has: {', '.join(session.models)}.",
            )
        sent = connection.acp.set_model(session.session_id, model)
        await connection.call(sent, connection.handshake_timeout)
        session.model = model

    async def _choose_mode(
        self, connection: AcpConnection, session: AcpSession, offered: tuple[str, ...]
    ) -> None:
        """Set the session mode. If the agent refuses it, the run continues with a warning."""
        run = self._prepared.run
        planning = run.policy.mode == "plan" and "plan" in offered
        mode = run.session_mode or (
            "plan" if planning and not self._prepared.acp.mode_at_start else None
        )
        if mode is None:
            return
        try:
            params = {"sessionId": session.session_id, "modeId": mode}
            sent = connection.acp.call("session/set_mode", session.session_id, params)
            await connection.call(sent, connection.handshake_timeout)
        except errors.RemoteError as error:
            if connection.dead is not None:
                raise
            has = f" It has: {', '.join(offered)}." if offered else ""
            message = f"the agent refused the mode {mode!r}: {error.message}.{has}"
            session.emit(replace(warning("mode_refused", message), phase="handshake"))

    async def begin(self, fail: Fail) -> None:
        connection, session = self._connection, self._session
        if connection is None or session is None:
            raise RuntimeError("prepare first")
        session.is_abandoned = False
        self._last_text = None
        if self._prepared.acp.read_refused_calls is not None:
            self._tail = await in_thread(
                ConversationTail, self._prepared.acp, connection.program.home, session.session_id
            )
        if session.was_prompted:
            connection.drop_late_text(session)
        session.was_prompted = True
        if connection.program.meter is not None:
            connection.program.meter.subscribe(self.emit, session.session_id, self._prompt)
        run, text = self._prepared.run, self._prompt
        if run.system_prompt is not None:
            text = f"{run.system_prompt}\n\n{text}"
        blocks: list[Block] = [TextBlock(text)]
        for name in run.images:
            blocks.append(ImageBlock(*self._encode(name, "image/png")))
        for name in run.audio:
            blocks.append(AudioBlock(*self._encode(name, "audio/wav")))
        for name in run.attachments:
            blocks.append(self._attachment(name))
        self._call = connection.prompt(session, blocks)

    async def receive(self) -> list[RawEvent] | None:
        if self._connection is None or self._session is None or self._call is None:
            return None
        if not self._reported_start:  # the handshake is a sign of life, without items
            self._reported_start = True
            return []
        items: list[RawEvent] | None = []
        is_asking = self._session.is_asking
        # An agent that waits for a person's answer is not idle: now and then, nothing came.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._prepared.run.idle_timeout / 2 if is_asking else None):
                items = await self._connection.items(self._session, self._call)
        if items is None and not self._is_drained:
            items = await self._late_items(self._connection, self._session)
        if items and self._tail is not None and any(type(item) is str for item in items):
            items = await self._refused_before(items)
        if items is None or self._prepared.run.thinking:
            return items
        return [item for item in items if not isinstance(item, Thinking)]

    async def _refused_before(self, items: list[RawEvent]) -> list[RawEvent]:
        """The items of an answer, after the calls that the agent refused before it began: else its
        text would continue the message before them."""
        now = asyncio.get_running_loop().time()
        last, self._last_text = self._last_text, now
        is_new = last is not None and now - last > PAUSE
        return [*await self._refused_calls(), *items] if is_new else items

    async def _late_items(
        self, connection: AcpConnection, session: AcpSession
    ) -> list[RawEvent] | None:
        """Items after the reply to the prompt, for ``LATE_UPDATES_TIMEOUT`` seconds at most."""
        now = asyncio.get_running_loop().time()
        if self._drain_until is None:
            self._drain_until = now + LATE_UPDATES_TIMEOUT
        items = await connection.late_items(session, self._drain_until)
        self._is_drained = items is None
        if items is None and asyncio.get_running_loop().time() >= self._drain_until:
            message = (
                f"the agent still sent updates {LATE_UPDATES_TIMEOUT:g}s after it ended its turn;"
                " the rest is left out"
            )
            return [warning("late_updates", message)]
        return items

    @property
    def service_url(self) -> str | None:
        launch = self._connection.program.launch if self._connection else None
        return None if launch is None else launch.service_url

    def emit(self, item: RawEvent) -> None:
        if self._connection is not None and self._session is not None:
            self._session.emit(item)
            self._connection.wake()

    def end_soon(self) -> None:
        connection, session, call = self._connection, self._session, self._call
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
        if connection is None or session is None or call is None:
            return
        if connection.is_settled(call):  # answered: only late updates are waited for
            session.is_abandoned = True
            connection.wake()
            return
        self._was_cancelled = True
        connection.cancel(session)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._prepared.run.grace, self._discard_connection)

    def _discard_connection(self) -> None:
        """The agent was asked to stop and did not: end its process."""
        if self._connection is not None and self._discarding is None:
            discard = self._source.discard(self._connection)
            self._discarding = asyncio.get_running_loop().create_task(discard)

    async def finish(self) -> list[RawEvent]:
        if self._meter is not None:
            await self._meter.wait_for_calls(self.emit)
        await self._end()
        connection, session = self._connection, self._session
        warnings = [] if connection is None else await connection.take_warnings()
        items: list[RawEvent] = []
        if session is not None:
            items, session.inbox = session.inbox, []
        return items + await self._refused_calls() + warnings

    async def _refused_calls(self) -> list[RawEvent]:
        read = self._prepared.acp.read_refused_calls
        if read is None or self._tail is None:
            return []
        return read(await in_thread(self._tail.read))

    async def close(self) -> None:
        """Items that come after the turn was closed are dropped."""
        await self._end()
        if self._session is not None:
            self._session.inbox.clear()

    async def _end(self) -> None:
        connection, session, call = self._connection, self._session, self._call
        if connection is not None and session is not None:
            is_over = call is None or session.is_abandoned or connection.is_settled(call)
            if call is not None and not is_over:
                connection.cancel(session)
                grace = self._prepared.run.grace
                if not await connection.wait_for_reply(call, grace):
                    await self._source.discard(connection)
            if self._was_cancelled and self._prepared.acp.commands_outlive_cancel:
                await self._source.discard(connection)
            await session.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._discarding is not None:
            await asyncio.wait([self._discarding])
        if self._meter is not None:
            self._meter.unsubscribe(self.emit)
        if connection is not None and connection.dead is not None:
            self._source.session = None

    def explain(self, normalizer: EventNormalizer, *, lingered: bool) -> CorralError | None:
        error = self._explain(normalizer)
        return error if self._meter is None else self._meter.cause_of(error)

    def _explain(self, normalizer: EventNormalizer) -> CorralError | None:
        connection, finish = self._connection, normalizer.finish
        if finish is None:
            dead = connection.dead if connection else None
            return dead or errors.StreamBroken("the turn ended without an answer")
        is_empty = finish.ok and not normalizer.answered
        if (is_empty or finish.kind == "cancelled") and normalizer.denied:
            # A turn that the caller cancelled is not explained: its error is known.
            return errors.PermissionRefused(
                f"the agent stopped because permission was denied: {normalizer.denied[-1].name}",
                hint="Allow it in the policy, or pass ask= to answer permission requests.",
            )
        if is_empty:
            return errors.EmptyAnswer(
                "the agent ended its turn without any answer",
                hint="The model wrote nothing, or was stopped by its safety settings: try again,"
                " rephrase the prompt, or use another model.",
            )
        if finish.ok:
            dead = connection.dead if connection else None
            return None if dead is None else unclean_exit(dead.exit_code, dead.signal)
        stopped = _STOP_ERRORS.get(finish.kind or "")
        if stopped is not None:
            return stopped(finish.message or "the turn was stopped")
        error = self._prepared.explain(
            Exit(0, None), self.stderr, finish, answered=normalizer.answered
        )
        if isinstance(error, errors.ModelNotFound) and self._session and self._session.models:
            error.hint = f"The agent lists: {', '.join(self._session.models)}."
        return error or errors.ProcessFailed(finish.message or "the agent reported an error")

    @property
    def stderr(self) -> str:
        return self._connection.program.stderr if self._connection is not None else ""

    @property
    def _meter(self) -> Meter | None:
        return self._connection.program.meter if self._connection is not None else None

    def add_facts(self, error: CorralError) -> None:
        if self._connection is not None:
            self._connection.program.add_facts(error)

    def _encode(self, name: str, otherwise: str) -> tuple[str, str]:
        path = Path(os.path.join(self._prepared.cwd, name))
        data = fs.read_bytes(path)
        return base64.b64encode(data).decode(), media_type_of(data, path.name) or otherwise

    def _attachment(self, name: str) -> Block:
        """The file with its content, or by its address where the agent takes no content."""
        path = Path(os.path.join(self._prepared.cwd, name)).resolve()
        data = fs.read_bytes(path)
        kind = media_type_of(data, path.name)
        agent = self._connection.agent if self._connection else None
        if agent is None or not agent.prompt_capabilities.embedded_context:
            return LinkBlock(path.as_uri(), path.name, kind, len(data))
        try:
            return ResourceBlock(Resource(path.as_uri(), text=data.decode(), mime_type=kind))
        except UnicodeDecodeError:
            blob = base64.b64encode(data).decode()
            return ResourceBlock(Resource(path.as_uri(), blob=blob, mime_type=kind))


PAGES = 100
"""Pages of a session list that are read: a list may never end."""

_LOAD_FAILURES = (InputRejected, InvalidRequest, ProcessFailed, ServerFailed, StreamBroken)
"""Errors that an agent has in answer to a conversation that it cannot load."""


async def list_sessions(connection: AcpConnection, cwd: str | None) -> list[AgentSession]:
    """The stored sessions of one folder or of all. Raises ``ConfigError`` if the agent does not
    list them."""
    agent = connection.agent
    if agent is None or not agent.offers("list"):
        raise ConfigError(f"{connection.prepared.agent.name} does not list its sessions")
    found: list[AgentSession] = []
    cursor: str | None = None
    for _ in range(PAGES):
        asked = {"cwd": cwd, "cursor": cursor}
        params = {name: value for name, value in asked.items() if value is not None}
        sent = connection.acp.call("session/list", None, params)
        settled = await connection.call(sent, connection.handshake_timeout)
        page, cursor = read_session_list(settled.result)
        found += page
        if cursor is None:
            break
    return found


async def load_session(
    connection: AcpConnection, session_id: str, prepared: PreparedRun, ask: Asker | None
) -> tuple[AcpSession, SessionInfo]:
    """A session of an earlier process, for the prompts of ``prepared``. Raises ``ConfigError`` if
    the agent cannot load sessions, and ``ResumeLost`` if it cannot load this one."""
    agent = connection.agent
    if agent is None or not connection.can_load:
        raise ConfigError(f"{connection.prepared.agent.name} cannot resume a session")
    session = connection.add_session(session_id, prepared, ask)
    servers = connection.reachable_servers(prepared.servers)
    sent = connection.acp.load_session(
        session_id, prepared.cwd, servers, replays=agent.load_session
    )
    try:
        settled = await connection.call(sent, connection.handshake_timeout)
    except BaseException as error:
        connection.drop_session(session)
        if connection.dead is None and isinstance(error, _LOAD_FAILURES):
            raise ResumeLost(
                f"the agent cannot load the conversation: {error.message}",
                hint="Start a new session.",
            ) from error
        raise
    # History may follow the reply that announces it.
    chosen, timeout = connection.prepared.run.quiet_period, connection.handshake_timeout
    quiet = connection.acp.quirks.quiet_period if chosen is None else chosen
    until = asyncio.get_running_loop().time() + timeout
    while await connection.wait_for_update(session, quiet, until):
        pass
    if asyncio.get_running_loop().time() >= until:
        connection.drop_session(session)
        raise StartupTimeout(
            f"the history of the session did not end within {timeout:g}s",
            hint=f"Raise {connection.handshake_option}, or start a new session.",
        )
    session.inbox.clear()
    return session, read_session(settled.result, session_id)


MOST_BYTES = 16 * 1024**2
"""Read from one file: the files are the agent's."""


class ConversationTail:
    """The end of the files, from what was there when this was made. Blocking."""

    def __init__(self, transport: AcpTransport, home: Path, session: str) -> None:
        self._transport, self._home, self._session = transport, home, session
        self._sizes: dict[str, int] = {}
        for file in self._files():
            with contextlib.suppress(OSError):
                self._sizes[file.name] = fs.status(file).st_size

    def read(self) -> bytes:
        """The complete lines since the last call. What cannot be read is left out."""
        lines = b""
        for file in self._files():
            start = self._sizes.get(file.name, 0)
            data = fs.read_from(file, start, MOST_BYTES)
            complete = data[: data.rfind(b"\n") + 1]
            self._sizes[file.name] = start + len(complete)
            lines += complete
        return lines

    def _files(self) -> list[Path]:
        return conversation_files(self._transport, self._home, self._session)
