"""Serves the Agent Client Protocol on the standard streams: an editor drives corral.

Theory of operation
-------------------
``AcpServer`` is the state machine of the protocol, without I/O. An ``AcpService`` is its process:
it reads the client, executes the commands of the machine, and runs each call as a task of one
group. Calls of different sessions run at the same time; reading never waits for them, so a
cancellation always arrives.

What a client may do is an ``Allowance``: the agent, the policy, the folders and the limits of the
one who started corral. A client can choose a mode that is narrower. All its sessions share one
budget.

The end: the client closes its side, the process gets a signal, or stdout is closed. Every prompt is
cancelled, every session is closed with all that its agent started; what has not ended after
``END_TIMEOUT`` is cancelled by force. Sessions are stored, and can be loaded by the next process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from corral._protocol.acp.frames import (
    AuthenticateParams,
    FileSystemCapabilities,
    ListSessionsParams,
    McpServerFrame,
    NewSessionParams,
    OpenSessionParams,
    PromptParams,
    SetConfigOptionParams,
    SetModeParams,
)
from corral._protocol.acp.server import (
    STEERING,
    AcpServer,
    CallCancelled,
    ClientCall,
    ClientProblem,
    RequestAnswered,
    ServerCommand,
)
from corral._protocol.jsonrpc import (
    AUTH_REQUIRED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    REQUEST_CANCELLED,
    RESOURCE_NOT_FOUND,
    Id,
    RpcError,
    SendBytes,
)
from corral._serving.acp.editor_client import ClientError
from corral._serving.acp.session import AUTHENTICATION, PromptFailed, ServedSession
from corral._serving.allowance import Allowance, RunRequest
from corral._sessions import store
from corral._sessions.credentials import check_model_key
from corral._sessions.permissions import PermissionAsker
from corral._sessions.session import Session
from corral._system import clock, config, fs
from corral._system.paths import is_inside
from corral._system.standard_streams import StandardStreams
from corral._system.threads import in_thread
from corral.errors import (
    CallerError,
    ConfigError,
    CorralError,
    ResumeLost,
)
from corral.options import OWN_SERVER
from corral.values import Json, JsonObject, McpServer, slug
from corral.version import __version__

if TYPE_CHECKING:
    from corral._agents.spec import AgentSpec
    from corral._metering.budget import Budget
    from corral._sessions.permissions import Asker

_log = logging.getLogger("corral.serving")

END_TIMEOUT = 20.0
"""Seconds that sessions get to end when the client has gone away."""
PAGE = 50
"""Sessions of one reply to ``session/list``."""


class AcpService:
    """One client on ``streams``."""

    def __init__(
        self,
        agent: str,
        allowance: Allowance,
        streams: StandardStreams,
        budget: Budget | None = None,
    ) -> None:
        self._agent = agent
        self._allowance = allowance
        self._streams = streams
        self._budget = budget
        spec = config.find_agent(agent)
        self._spec = spec
        self._server = AcpServer(
            capabilities(spec), version=__version__, steering="steering" in spec.capabilities
        )
        self._sessions: dict[str, ServedSession] = {}
        self._calls: dict[Id, tuple[ClientCall, asyncio.Task[None]]] = {}
        self._requests: dict[int, asyncio.Future[Json]] = {}
        self._group: asyncio.TaskGroup
        self._reading: asyncio.Task[None] | None = None

    @property
    def has_forms(self) -> bool:
        return self._server.client.elicitation.form is not None

    @property
    def files(self) -> FileSystemCapabilities:
        return self._server.client.fs

    async def serve(self) -> None:
        """Serve until the client has gone away, or ``stop`` is called."""
        async with asyncio.TaskGroup() as self._group:
            self._reading = self._group.create_task(self._read())
            await asyncio.wait([self._reading])
            await self._end()
        await self._streams.drain(1.0)

    def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        while chunk := await self._streams.read():
            self._carry_out(self._server.receive(chunk))

    async def _end(self) -> None:
        self._carry_out(self._server.end())
        tasks = [task for _, task in self._calls.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=END_TIMEOUT)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        closing = [each.session.__aexit__() for each in self._sessions.values()]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.warning("a session did not end well: %s", outcome)

    async def send(self, data: bytes) -> None:
        self._streams.write(data)
        await self._streams.drain()

    async def request(self, method: str, session_id: str, params: object) -> Json:
        id, sent = self._server.request(method, session_id, params)
        answered: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._requests[id] = answered
        self._carry_out([sent])
        try:
            result: Json = await answered
            return result
        finally:
            del self._requests[id]
            self._carry_out(self._server.withdraw(id))  # nothing if it was answered

    def _carry_out(self, commands: Sequence[ServerCommand]) -> None:
        for command in commands:
            match command:
                case SendBytes():
                    self._streams.write(command.data)
                case ClientCall():
                    task = self._group.create_task(self._answer(command))
                    self._calls[command.id] = command, task
                    task.add_done_callback(partial(self._answer_unbegun, command.id))
                case CallCancelled():
                    self._cancel(command.id)
                case RequestAnswered():
                    self._on_answer(command)
                case ClientProblem():
                    _log.warning("%s", command.text)

    def _on_answer(self, answer: RequestAnswered) -> None:
        waiting = self._requests.get(answer.id)
        if waiting is None or waiting.done():
            return
        if answer.error is None:
            waiting.set_result(answer.result)
        else:
            error = answer.error
            waiting.set_exception(ClientError(error.code, error.message[:200]))

    def _cancel(self, id: Id) -> None:
        """A prompt ends in its own way; any other call is cancelled."""
        call, task = self._calls[id]
        session = self._sessions.get(call.session_id or "")
        if call.method == "session/prompt" and session is not None:
            session.cancel()
        elif call.method != "session/close":
            task.cancel()

    def _answer_unbegun(self, id: Id, task: asyncio.Task[None]) -> None:
        """A call that was cancelled before its task began gets its reply here."""
        if id in self._calls and self._calls[id][1] is task:
            del self._calls[id]
            self._carry_out(self._server.reject(id, REQUEST_CANCELLED, "the call was cancelled"))

    async def _answer(self, call: ClientCall) -> None:
        """Run a call and send its reply."""
        id = call.id
        try:
            result, opens = await self._result(call)
            commands = self._server.reply(id, result, opens=opens)
        except asyncio.CancelledError:
            commands = self._server.reject(id, REQUEST_CANCELLED, "the call was cancelled")
        except Exception as error:
            problem = _problem(error)
            commands = self._server.reject(id, int(problem.code), problem.message, problem.data)
        finally:
            del self._calls[id]
        self._carry_out(commands)

    async def _result(self, call: ClientCall) -> tuple[Json, str | None]:
        """The result of a call, and the session that it has opened."""
        params = call.params
        session = self._sessions.get(call.session_id or "")
        match params:
            case PromptParams() if session is not None:
                if call.method == STEERING:
                    return session.steer(params), None
                return await session.prompt(params), None
            case OpenSessionParams():
                state = await self._load(params, replays=call.method == "session/load")
                return state, params.session_id
            case NewSessionParams():
                opened = await self._open(params)
                return {"sessionId": opened.id, **opened.state}, opened.id
            case ListSessionsParams():
                return await in_thread(self._list, params), None
            case SetModeParams() if session is not None:
                session.set_mode(params.mode_id)
                return {}, None
            case SetConfigOptionParams() if session is not None:
                session.set_option(params.config_id, params.value)
                return {"configOptions": session.options}, None
            case AuthenticateParams():
                raise ConfigError("there is no method to authenticate with", hint=KEYS)
            case _:
                await self._close(call.session_id or "")
                return {}, None

    async def _open(self, params: NewSessionParams, resume: str | None = None) -> ServedSession:
        """Open a session within the allowance. Raises ``CorralError``."""
        if not params.cwd.startswith("/"):
            raise ConfigError(f"cwd must be an absolute path, got: {params.cwd[:200]!r}")
        checked = self._allowance.check(RunRequest(prompt="-", cwd=params.cwd, session=resume))
        options: dict[str, object] = {**checked.options}
        servers = self._client_servers(params.mcp_servers)
        if servers:
            options["mcp_servers"] = [*checked.options.get("mcp_servers", ()), *servers]
        served = ServedSession(self)
        asker = served.ask if self.has_forms else PermissionAsker(served.ask)
        session = Session(
            self._agent, options, cast("Asker", asker), budget=self._budget, editor=served.files
        )
        await session.__aenter__()
        try:
            check_model_key(session.prepared.agent, session.prepared.run)
            served.open(session, params.cwd)
        except BaseException:
            await session.__aexit__()
            raise
        self._sessions[served.id] = served
        return served

    def _client_servers(self, frames: Sequence[McpServerFrame]) -> list[McpServer]:
        """The client's MCP servers. Raises ``NotPermitted`` for one that the policy denies."""
        servers = [_mcp_server(frame) for frame in frames]
        for server in servers:
            if self._allowance.policy.verdict("mcp", own=server.own) == "deny":
                asked = f"the MCP server {server.name!r} of the client"
                raise self._allowance.refusal("policy", asked, "the policy denies MCP servers")
        return servers

    async def _load(self, params: OpenSessionParams, *, replays: bool) -> JsonObject:
        """Open a stored session. Raises ``CorralError``."""
        served = self._sessions.get(params.session_id)
        if served is not None and self._server.is_prompting(params.session_id):
            raise ConfigError("the session is answering a prompt: wait for its end, or cancel it")
        if served is None:
            try:
                record = await in_thread(store.find, params.session_id)
            except ResumeLost as error:
                raise ResumeLost(
                    f"there is no stored session {params.session_id[:100]!r}",
                    hint="A session is stored at its first prompt. Open a new one.",
                ) from error
            meta = record.meta
            if meta.id != params.session_id or meta.agent != self._spec.name:
                raise ResumeLost(f"{self._spec.name} has no session {params.session_id[:100]!r}")
            if fs.real_path(params.cwd) != meta.cwd:
                raise ConfigError(f"the session works in another folder: {meta.cwd}")
            served = await self._open(params, resume=meta.id)
        if replays:
            record = await in_thread(store.find, params.session_id)
            await served.replay(await in_thread(lambda: list(record.events())))
        return served.state

    def _list(self, params: ListSessionsParams) -> JsonObject:
        """A page of the stored sessions of this agent in the folders of the allowance."""
        cwd = None if params.cwd is None else fs.real_path(params.cwd)
        metas = [
            record.meta
            for record in store.all_sessions()
            if record.meta.agent == self._spec.name
            and cwd in (None, record.meta.cwd)
            and any(is_inside(record.meta.cwd, folder) for folder in self._allowance.folders)
        ]
        ids = [meta.id for meta in metas]
        start = ids.index(params.cursor) + 1 if params.cursor in ids else 0
        page = metas[start : start + PAGE]
        listed: list[Json] = [
            {
                "sessionId": meta.id,
                "cwd": meta.cwd,
                "title": meta.title,
                "updatedAt": clock.iso_time(meta.updated),
            }
            for meta in page
        ]
        more: JsonObject = {"nextCursor": page[-1].id} if start + PAGE < len(metas) else {}
        return {"sessions": listed, **more}

    async def _close(self, session_id: str) -> None:
        """Close a session once its prompt has ended, which was cancelled."""
        prompts = [
            task
            for call, task in self._calls.values()
            if call.session_id == session_id and call.method == "session/prompt"
        ]
        if prompts:
            await asyncio.wait(prompts)
        served = self._sessions.pop(session_id, None)
        if served is not None:
            await served.session.__aexit__()


KEYS = "Set the key of the model's vendor in corral's environment: corral models list names it."


def capabilities(agent: AgentSpec) -> JsonObject:
    """What the agent offers to the client."""
    return {
        "loadSession": agent.resumes,
        "promptCapabilities": {
            "image": "images" in agent.supports,
            "audio": "audio" in agent.supports,
            "embeddedContext": True,
        },
        "mcpCapabilities": {"http": "mcp_servers" in agent.supports, "sse": False},
        "sessionCapabilities": {
            "list": {},
            "close": {},
            **({"resume": {}} if agent.resumes else {}),
        },
    }


def _mcp_server(frame: McpServerFrame) -> McpServer:
    """A server as corral starts it. Names have letters, digits and ``-`` only. If the client is
    corral itself, the functions of its caller are a server with a reserved name, which stays."""
    if frame.type not in ("", "stdio", "http"):
        raise ConfigError(f"MCP servers of type {frame.type[:50]!r} are not supported")
    name = slug(frame.name, limit=50, default="server")
    own = name.lower() == OWN_SERVER
    if frame.type == "http":
        headers = {each.name: each.value for each in frame.headers}
        return McpServer(name, url=frame.url, headers=headers, own=own)
    env = {each.name: each.value for each in frame.env}
    return McpServer(name, (frame.command, *frame.args), env=env, own=own)


def _problem(error: Exception) -> RpcError:
    """The error of a call: the text for a person, and its facts as data."""
    if isinstance(error, PromptFailed):
        found = error.done.error
        if found is None:
            return RpcError(INTERNAL_ERROR, f"the turn ended as {error.done.status}")
        code, message, hint, retryable = found.code, found.message, found.hint, found.retryable
        number = INTERNAL_ERROR
    elif isinstance(error, CorralError):
        code, message, hint, retryable = error.code, error.message, error.hint, error.retryable
        number = INVALID_PARAMS if isinstance(error, CallerError) else INTERNAL_ERROR
        if isinstance(error, ResumeLost):
            number = RESOURCE_NOT_FOUND
    elif isinstance(error, msgspec.ValidationError):
        return RpcError(INVALID_PARAMS, f"Invalid params: {error}")
    else:
        _log.error("a call failed", exc_info=error)
        return RpcError(INTERNAL_ERROR, f"{type(error).__name__}: {error}")
    if code in AUTHENTICATION:
        number = AUTH_REQUIRED
    text = f"{message}. {hint}" if hint else message
    return RpcError(number, text, {"code": code, "retryable": retryable})
