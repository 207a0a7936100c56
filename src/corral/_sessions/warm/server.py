"""The background process of a named session: it keeps one agent warm and serves prompts.

Theory of operation
-------------------
Who starts it: ``client.open_connection``, at the first prompt of a named session, through
``system.process.daemon``. It lives as long as it is used: it ends after an idle limit, on a
``stop`` request, on SIGTERM, and if its session cannot be opened.

States: listening -> open -> ending.

* listening: it has a socket and no session. The first prompt opens one with the options of that
  request; if ``session.json`` names a stored session, that is resumed with the options stored
  there, except those that the request gives.
* open: prompts run one after another. A request may give options of one prompt (a time limit, a
  model, a narrower policy); any other option must equal the session's, and the configuration files
  must say what they said when it was opened, or the request is rejected.
* ending: the socket is removed first, then the running prompt is cancelled and the agent ended. A
  request that arrives meanwhile is not accepted, and its caller starts another process.

Guarantees
* At most one process per named session: it holds ``lock`` from its start to its end.
* ``session.json`` is written as soon as the session has an id, so a process that is killed loses at
  most the running prompt.
* A caller that disappears cancels its prompt. The next prompt goes on in the same conversation.

Crashes
* The process is killed: its caller sees the end of the connection and reports it. Agents that are
  left are ended by the next ``corral`` that reaps (``corral._system.process.tree``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec

from corral._sessions import store
from corral._sessions.goals import Goal, run_goal
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.session import Session
from corral._sessions.turn import Turn
from corral._sessions.warm.client import (
    MAX_LINE,
    Accepted,
    Cancel,
    Control,
    End,
    Waiting,
    WarmAnswer,
    WarmQuestion,
    WarmRequest,
)
from corral._sessions.warm.names import StoredName, WarmFiles
from corral._system import config, fs, logs, paths
from corral.errors import ConfigError, CorralError, Interrupted, ResumeLost
from corral.events import AgentQuestion, PermissionRequest, to_json
from corral.policy import Policy
from corral.result import Result
from corral.run_kwargs import PromptKwargs
from corral.values import Json, convert_to, decode_as, decoder_for, is_object, text_or_none

Given: TypeAlias = str | dict[str, Json] | None
"""A decision, or the answer to a question."""
_incoming: msgspec.json.Decoder[WarmAnswer | Cancel] = decoder_for(WarmAnswer | Cancel)


def main(folder: str, idle: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the caller
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.suppress(ConfigError):  # a log that cannot be written stops nothing
        logs.follow_environment()
    os.umask(0o077)
    asyncio.run(_WarmServer(WarmFiles(Path(folder)), float(idle)).serve())


class _Caller:
    """One caller: writes its messages and reads its answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._answers: dict[int, asyncio.Future[Given]] = {}
        self._turn: Turn | None = None
        self._is_cancelled = False
        self.is_gone = False

    async def request(self) -> WarmRequest | None:
        """None: the connection was closed without one."""
        line = await self._reader.readline()
        return decode_as(line, WarmRequest) if line else None

    def send(self, message: Control) -> None:
        if not self.is_gone:
            self._writer.write(msgspec.json.encode(message) + b"\n")

    async def send_events(self, turn: Turn) -> None:
        """Write the events of a turn until it ends. A caller that reads slowly slows the agent."""
        self._turn = turn
        if self._is_cancelled:  # also between two turns of one prompt
            turn.cancel()
        while batch := await turn.next_batch():
            if self.is_gone:
                continue  # cancelled: the rest is read so that the turn ends properly
            self._writer.write(b"".join(to_json(event) + b"\n" for event in batch))
            try:
                await self._writer.drain()
            except ConnectionError:
                self._lose()

    async def ask(self, request: PermissionRequest | AgentQuestion) -> Given:
        if self.is_gone:
            return "cancel"
        number = len(self._answers) + 1
        answer: asyncio.Future[Given] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self.send(WarmQuestion(number=number, request=request))
        return await answer

    async def listen(self) -> None:
        """Read answers and cancellations until the caller closes the connection."""
        with contextlib.suppress(ConnectionError, ValueError):  # ValueError: a line over the limit
            while line := await self._reader.readline():
                message = _incoming.decode(line)
                if isinstance(message, Cancel):
                    self.cancel()
                elif message.number in self._answers:
                    self._decide(self._answers[message.number], message.given)
        self._lose()

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._turn is not None:
            self._turn.cancel()
        for answer in self._answers.values():
            self._decide(answer, "cancel")

    def _lose(self) -> None:
        self.is_gone = True
        self.cancel()

    @staticmethod
    def _decide(answer: asyncio.Future[Given], given: Given) -> None:
        if not answer.done():
            answer.set_result(given)

    async def close(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()
        self._writer.close()


class _WarmServer:
    def __init__(self, files: WarmFiles, idle: float) -> None:
        self._files = files
        self._idle = idle
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        """The session is closed: callers that asked for the end may go."""
        self._changed = asyncio.Event()
        """A caller came or left."""
        self._callers: set[_Caller] = set()
        self._busy = asyncio.Lock()
        """Held by the request whose prompt runs."""
        self._session: Session | None = None
        self._stored: StoredName | None = None
        self._configuration: _Configuration | None = None
        """With which the session was opened."""
        self._current: _Caller | None = None

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stopping.set)
        async with asyncio.TaskGroup() as group:

            def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                group.create_task(self._serve_caller(_Caller(reader, writer)))

            server = await asyncio.start_unix_server(
                connected, path=self._files.socket, limit=MAX_LINE
            )
            try:
                await self._until_stopped_or_idle()
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._files.socket)
                server.close()
                self._stopping.set()
                for caller in self._callers:
                    caller.cancel()
                async with self._busy:
                    if self._session is not None:
                        await self._session.__aexit__()
                self._ended.set()

    async def _until_stopped_or_idle(self) -> None:
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                self._changed.clear()
                changed = asyncio.ensure_future(self._changed.wait())
                limit = None if self._callers else self._idle
                done, _ = await asyncio.wait(
                    (stopping, changed), timeout=limit, return_when=asyncio.FIRST_COMPLETED
                )
                changed.cancel()
                if not done and not self._callers:
                    return
        finally:
            stopping.cancel()

    async def _serve_caller(self, caller: _Caller) -> None:
        self._callers.add(caller)
        self._changed.set()
        try:
            request = await caller.request()
            if request is not None and request.action == "stop":
                self._stopping.set()
                await self._ended.wait()
            elif request is not None:
                listening = asyncio.create_task(caller.listen())
                try:
                    await self._serve_prompt(caller, request)
                finally:
                    listening.cancel()
        except CorralError as error:
            caller.send(End(error=error.event()))
        except ConnectionError:
            pass
        except (ValueError, msgspec.MsgspecError) as error:  # another version of corral
            message = ConfigError(f"the session's process cannot read the request: {error}")
            caller.send(End(error=message.event()))
        finally:
            self._callers.discard(caller)
            self._changed.set()
            await caller.close()

    async def _serve_prompt(self, caller: _Caller, request: WarmRequest) -> None:
        if self._busy.locked():
            caller.send(Waiting())
        async with self._busy:
            if caller.is_gone or self._stopping.is_set():
                return  # not accepted: the caller, if it is still there, starts another process
            self._current = caller
            try:
                session, prompt_options = await self._open(request)
                prepared = session.prepared
                goal = _goal(request, prepared)
                can_ask = request.interactive and prepared.agent.asks
                accepted = [
                    Accepted(
                        session=session.id,
                        agent=prepared.agent.name,
                        agent_asks=prepared.agent.asks,
                        denied_without_asking=prepared.denied_without_asking(asks=can_ask),
                    )
                ]
                failed = False

                async def send(turn: Turn) -> Result:
                    """Send the events of a turn: of several, if the answer does not fit."""
                    nonlocal failed
                    if accepted:
                        caller.send(accepted.pop())
                    if request.wants_result:
                        turn.keep_text()
                    await caller.send_events(turn)
                    failed = turn.failed
                    return await turn.collect()

                options = cast("PromptKwargs", _keywords(prompt_options))
                result = await run_goal(goal, session, request.text, send, options)
                self._save_name(session)
                wanted = result if request.wants_result else None
                caller.send(End(failed=failed, result=wanted))
            except Interrupted as error:
                caller.send(End(error=error.event(), failed=True))
            finally:
                self._current = None

    async def _open(self, request: WarmRequest) -> tuple[Session, dict[str, Json]]:
        """The session, and the options of this prompt. Opens the session at the first request; if
        that fails, the process ends."""
        if self._session is not None and self._stored is not None:
            if _Configuration.now(self._session, request) != self._configuration:
                raise _other("configuration", self._stored.name)
            return self._session, _check_options(self._stored, request)
        try:
            before = self._files.stored()
            agent = request.agent or config.default_agent(
                text_or_none(request.options.get("model"))
            )
            if before is not None:
                if store.open_folder(paths.sessions() / before.session) is None:
                    # A new conversation must not start silently.
                    raise ResumeLost(
                        f"the stored session of {before.name!r} is gone: {before.session}",
                        hint=f"Start a new one: corral sessions stop --forget {before.name}",
                    )
                _check_agent(before, request)
                agent = before.agent
            options = {**(before.options if before is not None else {}), **request.options}
            stored = StoredName(
                name=request.name,
                cwd=str(options["cwd"]),
                agent=agent,
                session="",
                options=options,
                interactive=request.interactive,
                pid=os.getpid(),
            )
            keywords = _keywords(options)
            if before is not None and before.session:
                keywords["resume"] = before.session
            session = Session(agent, keywords, self._ask if request.interactive else None)
            await session.__aenter__()
            self._configuration = _Configuration.now(session, request)
        except BaseException:
            self._stopping.set()
            raise
        self._session, self._stored = session, stored
        self._save_name(session)
        return session, {}

    def _save_name(self, session: Session) -> None:
        """Store which session the name has. Another agent may have continued it in a new one."""
        if self._stored is not None and self._stored.session != session.id:
            self._stored.session = session.id
            fs.write_atomically(self._files.meta, msgspec.json.encode(self._stored))

    async def _ask(self, request: PermissionRequest | AgentQuestion) -> Given:
        return await self._current.ask(request) if self._current is not None else "deny"


def _goal(request: WarmRequest, prepared: PreparedRun) -> Goal:
    """What the turns of a prompt must reach. Raises ``CallerError``."""
    goal = Goal(output=request.schema)
    if request.until_verified:
        from corral._verification.verified import verified

        limit = prepared.run.max_total_tokens
        goal = msgspec.structs.replace(
            goal, until=verified(), rounds=request.rounds, max_total_tokens=limit
        )
    goal.check()
    return goal


def _check_agent(stored: StoredName, request: WarmRequest) -> None:
    if request.agent is not None and request.agent != stored.agent:
        raise ConfigError(
            f"session {stored.name!r} of this folder is of {stored.agent}, not of {request.agent}",
            hint="Choose another name, or start anew: corral sessions stop --forget NAME",
        )


def _keywords(options: Mapping[str, Json]) -> dict[str, Any]:
    """The options as a session takes them: a policy came as JSON."""
    policy = options.get("policy")
    return {**options, "policy": convert_to(policy, Policy)} if is_object(policy) else {**options}


def _check_options(stored: StoredName, request: WarmRequest) -> dict[str, Json]:
    """The options of one prompt. Raises ``ConfigError`` if another option differs from the
    session's."""
    _check_agent(stored, request)
    differing = {
        name: value for name, value in request.options.items() if stored.options.get(name) != value
    }
    fixed = sorted(differing.keys() - PromptKwargs.__annotations__.keys())
    if fixed:
        raise _other(fixed[0], stored.name)
    return differing


def _other(what: str, name: str) -> ConfigError:
    return ConfigError(
        f"session {name!r} was started with another {what}",
        hint=f"End it first: corral sessions stop {name}. It keeps the conversation.",
    )


class _Configuration(NamedTuple):
    """What configuration files say for the session's agent. They apply when a session is opened: a
    prompt that is sent after they were changed must not run with what they said before."""

    file: str | None
    options: dict[str, object]
    pass_env: tuple[str, ...]

    @classmethod
    def now(cls, session: Session, request: WarmRequest) -> _Configuration:
        """Raises ``ConfigError`` for a file that cannot be read."""
        options = config.load(session.prepared.agent.name)
        return cls(request.config, options, config.passed_env())
