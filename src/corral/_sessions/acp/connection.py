"""One agent process that speaks the Agent Client Protocol, with any number of sessions.

Theory of operation
-------------------

``AcpClient`` (``corral._protocol.acp.client``) is the state machine of the protocol, without I/O. A
``AcpConnection`` is its process: it reads the agent's stdout, passes the bytes to the client, and
executes the commands that come back: write bytes, deliver items to a session, ask for permission,
serve a file, finish a call.

Callers: ``PrivateConnection`` (one per ``Session``) and the pool's workers open connections;
``AcpBackend`` sends the prompts of one turn. All calls come from one event loop.

There is no reader task. A task that waits for something (a reply, items of a session) calls
``_pump`` with a condition. The first waiter reads the process and executes the commands for all;
the others wait on futures. When the reader has what it waited for, or is cancelled, it wakes the
others and one of them reads on. So a session that is not read costs nothing, a slow reader slows
the agent, and cancelling any waiter leaves no task behind.

States:

- *opening*: the process runs; ``initialize`` and, if wanted, ``authenticate`` are under way, each
  bounded by ``handshake_timeout``. If one fails, the process is ended and the error is raised.
- *open*: sessions can be created, loaded and prompted, several at the same time. Each session has
  an inbox of items. Items of a session whose ``session/new`` is not answered yet are kept and
  delivered when it is; items without a session go to every session.
- *dead*: ``dead`` is the reason. The process ended, or was ended after it rejected the policy, or
  ``close`` was called. It never becomes open again.

Guarantees:

- A call gets its reply, its error, or the reason of ``dead``; it does not wait for ever.
- Permission requests are answered by the policy of the current prompt. A request that waits for
  a person holds the connection weakly and is cancelled with its session.
- Text that arrives after the turn it belongs to is never part of the next answer.
- After ``close`` the process and everything it started are gone.

On a crash of the agent, stdout ends: the exit is explained once (``agent.explain``), every pending
call fails with that error, and every waiter is woken. ``PrivateConnection`` starts a new process
for the next prompt and loads the conversation, if the agent can; the pool replaces its worker. If
this process crashes, the process registry lets another corral process end the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from corral._protocol.acp.client import (
    AcpClient,
    AcpPermissionRequest,
    AcpQuestion,
    CallFinished,
    Command,
    Emit,
    FileRequest,
    Offer,
    PermissionWithdrawn,
    SessionInfo,
    read_initialize,
    read_session,
)
from corral._protocol.acp.conversation import failed_turn_end
from corral._protocol.acp.frames import AgentCapabilities, Block
from corral._protocol.jsonrpc import SendBytes
from corral._protocol.ndjson import RawEvent, TurnEnd
from corral._sessions.backends.base import AgentProgram
from corral._sessions.prepare import needs_new_process
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.store import SessionRecord
from corral._system import mcp_relay, programs
from corral._system.environment import SecretRedactor
from corral._system.process.process import Exit
from corral._system.threads import NoThread
from corral.errors import (
    AuthenticationFailed,
    ConfigError,
    CorralError,
    PolicyNotLoaded,
    ProcessFailed,
    StartupTimeout,
    StreamBroken,
)
from corral.events import Log, Text, Thinking, Vendor
from corral.values import McpServer
from corral.version import __version__

if TYPE_CHECKING:
    from corral._sessions.acp.client_requests import ClientRequests
    from corral._sessions.permissions import Asker


PRINTED_LINES = 4
LATE_CHUNKS = 64
"""How often the output is read before a further prompt: an agent may write without a pause."""


class AcpSession:
    """One session of an agent. Its items wait in ``inbox``. ``carry_out`` executes the commands of
    the answers to its requests."""

    def __init__(
        self,
        session_id: str,
        acp: AcpClient,
        prepared: PreparedRun,
        ask: Asker | None,
        carry_out: Callable[[list[Command]], None],
    ):
        self.session_id = session_id
        self.inbox: list[RawEvent] = []
        self.models: tuple[str, ...] = ()
        """Those the agent lists, perhaps not all it has."""
        self.model: str | None = None
        """The one that answers now, where that is known."""
        self.first_model: str | None = None
        """The one that the agent chose when the session was opened."""
        self.was_prompted = False
        """It was prompted before. Until then, text is a greeting and part of the answer."""
        self.is_abandoned = False
        """Its turn does not end, and nothing waits for it any more."""
        self._acp = acp
        self._policy: tuple[PreparedRun, Asker | None, SessionRecord | None] = prepared, ask, None
        # A question that waits for a person must not keep a dropped session's process alive.
        self._connection = weakref.WeakMethod(carry_out)
        self._requests: ClientRequests | None = None

    @property
    def requests(self) -> ClientRequests:
        """Answers what the agent requests. Loaded when it is used: many agents request nothing."""
        if self._requests is None:
            from corral._sessions.acp.client_requests import ClientRequests

            self._requests = ClientRequests(
                self.session_id, self._acp, self._policy, self.emit, self._carry_out
            )
        return self._requests

    def use_policy(
        self, prepared: PreparedRun, ask: Asker | None, record: SessionRecord | None
    ) -> None:
        """From now on permission requests are answered by the policy of this run."""
        self._policy = prepared, ask, record
        if self._requests is not None:
            self._requests.use_policy(*self._policy)

    @property
    def is_asking(self) -> bool:
        """Whether the agent waits for a person's answer."""
        return self._requests is not None and self._requests.is_asking

    async def close(self) -> None:
        """No question outlives its session."""
        if self._requests is not None:
            await self._requests.close()

    def emit(self, item: RawEvent) -> None:
        """Add an item: the list is replaced when it is read."""
        self.inbox.append(item)

    def _carry_out(self, commands: list[Command]) -> None:
        carry_out = self._connection()
        if carry_out is not None:
            carry_out(commands)


class AcpConnection:
    """Made by ``open``. Call its methods only in the event loop in which it was opened."""

    def __init__(
        self, prepared: PreparedRun, record: SessionRecord, redactor: SecretRedactor
    ) -> None:
        self.prepared = prepared
        """What the process was started for."""
        servers = (server.name for server in prepared.servers)
        self.acp: AcpClient = AcpClient(prepared.acp.quirks, servers=servers, clean=redactor.clean)
        """The state of the protocol."""
        self.program: AgentProgram = AgentProgram(
            prepared, record, redactor, self._on_stderr_item, self._on_fatal_stderr
        )
        self._calls: dict[int, CallFinished | None] = {}
        self._sessions: dict[str, AcpSession] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._opening = 0
        self._early: dict[str, list[RawEvent]] = {}
        self._reading = False
        self._printed: deque[str] = deque(maxlen=PRINTED_LINES)
        """The last lines that are not of the protocol, redacted: often why the agent ended."""
        self.dead: CorralError | None = None
        """Why the connection is dead; None while it is open."""
        self.agent: AgentCapabilities | None = None
        self.agent_version: str | None = None
        """What the agent reported in the handshake."""
        self._auth_methods: tuple[str, ...] = ()
        """What a user could choose for a program of which corral has no record."""

    @classmethod
    async def open(
        cls, prepared: PreparedRun, record: SessionRecord, redactor: SecretRedactor
    ) -> AcpConnection:
        """Start the agent and initialize the connection. If that fails, the error is raised and
        nothing is left running."""
        self = cls(prepared, record, redactor)
        try:
            launch = await self.program.prepare()
            self.acp.session_meta = launch.session_meta
            run = self.program.prepared.run
            await self.program.start()
            editor, cwd = prepared.editor, prepared.cwd
            offer = Offer(
                run.allow_file_reads or (editor is not None and editor.reads(cwd)),
                run.allow_file_writes or (editor is not None and editor.writes(cwd)),
                questions=run.has_person,
            )
            settled = await self.call(
                self.acp.initialize(offer, version=__version__), self.handshake_timeout
            )
            reply = read_initialize(settled.result)
            self.agent, self.agent_version = reply.agent_capabilities, reply.version
            if run.auth_method is None and not prepared.agent.package.name:
                self._auth_methods = reply.auth_methods
            if reply.version is not None:
                programs.remember_version(prepared.agent, prepared.program, reply.version)
            if run.auth_method is not None:
                sent = self.acp.call("authenticate", None, {"methodId": run.auth_method})
                await self.call(sent, self.handshake_timeout)
        except BaseException as error:
            await self.close(0.0)
            if isinstance(error, CorralError) and self.program.process is not None:
                error.stderr, error.argv = self.program.stderr[-4000:], self.program.argv
            raise
        return self

    @property
    def handshake_timeout(self) -> float:
        """Seconds that one call of the handshake may take."""
        return min(self.prepared.run.startup_timeout, self.prepared.run.timeout)

    @property
    def handshake_option(self) -> str:
        """The option that sets this limit."""
        run = self.prepared.run
        return "timeout" if run.timeout < run.startup_timeout else "startup_timeout"

    @property
    def can_load(self) -> bool:
        """Whether a session of an earlier process can be loaded."""
        return self.agent is not None and (self.agent.load_session or self.agent.offers("resume"))

    async def new_session(
        self, prepared: PreparedRun, ask: Asker | None
    ) -> tuple[AcpSession, SessionInfo]:
        """A new session for the prompts of ``prepared``."""
        servers = self.reachable_servers(prepared.servers)
        sent = self.acp.new_session(prepared.cwd, servers)
        self._opening += 1
        try:
            settled = await self.call(sent, self.handshake_timeout)
        finally:
            self._opening -= 1
            early = self._early
            self._early = early if self._opening else {}
        info = read_session(settled.result)
        session = self.add_session(info.session_id, prepared, ask)
        session.inbox.extend(early.pop(info.session_id, ()))
        return session, info

    def add_session(self, session_id: str, prepared: PreparedRun, ask: Asker | None) -> AcpSession:
        """Deliver the items of a session, which the agent has or is about to open."""
        session = AcpSession(session_id, self.acp, prepared, ask, self._carry_out)
        self._sessions[session_id] = session
        return session

    def drop_session(self, session: AcpSession) -> None:
        """Deliver no more items of the session."""
        self._sessions.pop(session.session_id, None)
        self.acp.forget_session(session.session_id)

    def reachable_servers(self, servers: Sequence[McpServer]) -> Sequence[McpServer]:
        """The servers, as the agent can reach them: those at a URL through ``mcp_relay`` if it
        takes programs only."""
        if self.agent is None or self.agent.mcp_capabilities.http:
            return servers
        reachable: list[McpServer] = []
        for server in servers:
            if server.url:
                # The headers are not on the command line, which other users can see.
                env = {mcp_relay.HEADERS: msgspec.json.encode(server.headers).decode()}
                program = (sys.executable, "-I", "-S", mcp_relay.__file__, server.url)
                server = McpServer(server.name, program, env=env, own=server.own)  # noqa: PLW2901
            reachable.append(server)
        return reachable

    async def late_items(self, session: AcpSession, until: float) -> list[RawEvent] | None:
        """Items of the session that came after its turn ended; None when it is quiet. Waits
        no longer than ``until`` (loop time), and stops when the connection is lost."""
        chosen = self.prepared.run.quiet_period
        quiet = self.acp.quirks.late_updates if chosen is None else chosen
        while not session.inbox and await self.wait_for_update(session, quiet, until):
            pass
        items, session.inbox = session.inbox, []
        return items or None

    async def wait_for_update(self, session: AcpSession, quiet: float, until: float) -> bool:
        """Wait for an update of this session: False when none came for ``quiet`` seconds, or
        ``until`` has passed. Other sessions of the process do not count."""
        pause = min(quiet, until - asyncio.get_running_loop().time())
        if pause <= 0 or self.dead is not None or session.is_abandoned:
            return False
        before = self.acp.update_count(session.session_id)
        try:
            async with asyncio.timeout(pause):
                await self._pump(
                    lambda: (
                        session.is_abandoned or self.acp.update_count(session.session_id) != before
                    )
                )
        except TimeoutError:
            return False
        return self.acp.update_count(session.session_id) != before

    def prompt(self, session: AcpSession, blocks: Sequence[Block]) -> int:
        """Send a prompt. The id of the call; its end comes as a ``TurnEnd`` among the items."""
        id, data = self.acp.prompt(session.session_id, blocks)
        self._calls[id] = None
        self._write(data)
        return id

    def drop_late_text(self, session: AcpSession) -> None:
        """Read what the agent has written so far. Text of an earlier turn that comes only now
        is reported as ``late_text``: it is no part of the next answer."""
        process = self.program.process
        for _ in range(LATE_CHUNKS):
            chunk = process.read_now() if process is not None and self.dead is None else b""
            if not chunk:
                break
            self._carry_out(self.acp.receive(chunk))
        for number, item in enumerate(session.inbox):
            if isinstance(item, str | Text | Thinking):
                text = item if isinstance(item, str) else item.delta
                session.inbox[number] = Vendor("late_text", text)

    def cancel(self, session: AcpSession) -> None:
        self._carry_out(self.acp.cancel(session.session_id))

    def is_settled(self, id: int) -> bool:
        return self._calls.get(id, True) is not None or self.dead is not None

    async def items(self, session: AcpSession, until: int) -> list[RawEvent] | None:
        """New items of the session; None when the call ``until`` is settled and no item is left."""
        await self._pump(
            lambda: bool(session.inbox) or session.is_abandoned or self.is_settled(until)
        )
        if session.inbox:
            items, session.inbox = session.inbox, []
            return items
        self._calls.pop(until, None)
        return None

    async def wait_for_reply(self, id: int, timeout: float) -> bool:
        """Wait for one of our calls until the limit. Returns whether it has finished."""
        try:
            async with asyncio.timeout(timeout):
                await self._pump(lambda: self.is_settled(id))
        except TimeoutError:
            return False
        return True

    async def call(self, sent: tuple[int, bytes], timeout: float) -> CallFinished:
        """A call and its reply. Raises ``StartupTimeout``, why the agent died, or its error."""
        id, data = sent
        self._calls[id] = None
        self._write(data)
        if not await self.wait_for_reply(id, timeout):
            self._calls.pop(id, None)
            agent = self.prepared.agent
            other = f"run `corral agents doctor {agent.name}`"
            if agent.probe is None:
                other = "find out what it waits for: a sign-in, the network, or another program"
            late = f"{agent.title} did not answer {self.acp.method_of(id)} within {timeout:g} s"
            raise StartupTimeout(
                ": ".join((late, *self._printed)),
                hint=f"Raise {self.handshake_option}, or {other}.",
            )
        settled = self._calls.pop(id)
        if settled is None or settled.error is not None:
            if self.dead is not None:
                raise self.dead
            finish = TurnEnd(ok=False, kind="0", message="")
            if settled is not None and settled.error is not None:
                finish = failed_turn_end(settled.error)
            why = self.prepared.explain(Exit(0, None), self.program.stderr, finish)
            if isinstance(why, AuthenticationFailed) and self._auth_methods:
                methods = ", ".join(self._auth_methods)
                why.hint = f"{why.hint} The methods that it has for auth_method: {methods}."
            raise why or ProcessFailed(finish.message or "the call failed")
        return settled

    def wake(self) -> None:
        """Let every waiter check its condition again."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        if self.program.process is not None and self._reading:
            self.program.process.interrupt_read()

    async def close(self, grace: float) -> None:
        """End the process and all it started, with every session."""
        try:
            for session in list(self._sessions.values()):
                await session.close()
        finally:  # also if the task is cancelled again meanwhile
            try:
                if self.program.process is not None:
                    self.program.process.close_stdin()
                await self.program.end(grace)
            finally:
                self._fail_all(ProcessFailed("the connection was closed"))
                for notice in self.program.take_notices():  # no turn takes them any more
                    warnings.warn(notice.message, stacklevel=2)

    async def take_warnings(self) -> list[RawEvent]:
        """Warnings about what the agent has done since the last turn."""
        if self.program.process is not None and self.dead is None:
            with contextlib.suppress(NoThread):  # it is done when the process ends
                await self.program.process.check_repositories()
        return self.program.take_warnings()

    async def _pump(self, ready: Callable[[], bool]) -> None:
        process = self.program.process
        while not ready() and self.dead is None and process is not None:
            if self._reading:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.add(waiter)
                try:
                    await waiter
                finally:
                    self._waiting.discard(waiter)
                continue
            self._reading = True
            try:
                chunk = await process.read_interruptible()
            finally:
                self._reading = False
                self.wake()  # another may read, or find what this one read
            if chunk == b"":
                # The agent ended by itself: every pending call fails, now.
                ended = await process.end(self.prepared.run.grace)
                self._carry_out(self.acp.receive(b"\n"))  # its last line may have no newline
                written = "\n".join((self.program.stderr.rstrip(), *self._printed))
                error = self.prepared.explain(ended, written.lstrip())
                error = error or StreamBroken("the agent ended by itself")
                error.exit_code, error.signal = ended.code, ended.signal
                self._fail_all(error)
            elif chunk:
                self._carry_out(self.acp.receive(chunk))

    def _fail_all(self, error: CorralError) -> None:
        if self.dead is None:
            self.dead = error
            self._carry_out(self.acp.end(error.message))
        self.wake()

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case SendBytes():
                    self._write(command.data)
                case Emit():
                    self._deliver(command)
                case AcpPermissionRequest() | AcpQuestion() | PermissionWithdrawn():
                    self._pass_request(command)
                case FileRequest():
                    session = self._sessions.get(command.session_id or "")
                    if session is not None:
                        session.requests.serve(command)
                    else:
                        id, why = command.request_id, "no such session"
                        self._carry_out(self.acp.reject_file_request(id, why))
                case CallFinished():
                    if command.id in self._calls:
                        self._calls[command.id] = command
        self.wake()

    def _pass_request(
        self, command: AcpPermissionRequest | AcpQuestion | PermissionWithdrawn
    ) -> None:
        session = self._sessions.get(command.session_id)
        if session is None:
            # Nobody decides for a session that corral has not opened, but the agent waits.
            if isinstance(command, AcpQuestion):
                self._carry_out(self.acp.answer_question(command.request_id, None))
            elif isinstance(command, AcpPermissionRequest):
                option = command.option_for("deny")
                self._carry_out(self.acp.answer_permission(command.request_id, option))
            return
        if isinstance(command, AcpPermissionRequest):
            session.requests.handle_permission_request(command)
        elif isinstance(command, AcpQuestion):
            session.requests.handle_question(command)
        else:
            session.requests.handle_withdrawal(command)

    def _deliver(self, emit: Emit) -> None:
        """Items without a session are delivered to every open session."""
        if emit.session_id is None:
            self._printed += [item.text[:500] for item in emit.events if isinstance(item, Log)]
        for session in self._sessions.values():
            if emit.session_id in (None, session.session_id):
                session.inbox.extend(emit.events)
        if self._opening and emit.session_id is not None and emit.session_id not in self._sessions:
            # Its first items may be in the same chunk as the reply that names the session.
            self._early.setdefault(emit.session_id, []).extend(emit.events)

    def _write(self, data: bytes) -> None:
        if self.program.process is not None:
            self.program.process.write(data)

    def _on_stderr_item(self, item: RawEvent) -> None:
        self._deliver(Emit(None, [item]))
        self.wake()

    def _on_fatal_stderr(self, line: str) -> None:
        name = self.prepared.agent.name
        self._fail_all(PolicyNotLoaded(f"{name} did not take the policy: {line}"))


class ConnectionSource(Protocol):
    """Where a backend gets its connection from: a session's own, or a pool's."""

    session: AcpSession | None
    """The conversation to continue."""

    async def connection(self, prepared: PreparedRun) -> AcpConnection: ...

    async def discard(self, connection: AcpConnection) -> None:
        """End a connection that cannot be used any more."""
        ...

    async def close(self) -> None:
        """The session has ended."""
        ...


class PrivateConnection:
    """The connection of one session, opened when it is needed and again after a crash."""

    def __init__(self, prepared: PreparedRun, record: SessionRecord) -> None:
        self.session: AcpSession | None = None
        self._prepared = prepared
        """What the process was started for."""
        self._record = record
        self._open: AcpConnection | None = None

    async def connection(self, prepared: PreparedRun) -> AcpConnection:
        """A process that ``prepared`` can be prompted with: the one that runs, or a new one.
        Raises ``ConfigError`` where a new one would lose the conversation."""
        if self._open is not None and self._open.dead is not None:
            await self.discard(self._open)
        if self._open is not None and needs_new_process(prepared, self._prepared):
            has_conversation = self._record.meta.session_id is not None
            if has_conversation and not self._open.can_load:
                raise ConfigError(
                    f"{self._prepared.agent.name} cannot change its model, effort or policy for one"
                    " prompt: they are fixed when its process starts, and it cannot load the"
                    " conversation again",
                    hint="Start another session with the other model, effort or policy.",
                )
            await self.close()
        if self._open is None:
            self.session = None
            redactor = SecretRedactor(prepared.environment.redacted)
            self._open = await AcpConnection.open(prepared, self._record, redactor)
            self._prepared = prepared
        return self._open

    async def discard(self, connection: AcpConnection) -> None:
        if self._open is connection:
            self._open, self.session = None, None
        await connection.close(0.0)

    async def close(self) -> None:
        if self._open is not None:
            connection, self._open = self._open, None
            await connection.close(self._prepared.run.grace)
