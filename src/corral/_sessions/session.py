"""A session: one conversation with one agent, as a context manager.

::

    async with corral.session("gemini-cli", policy="edits") as session:
        async for event in session.prompt("Fix the failing test"):
            ...

The agent and everything it started are ended when the block is left, by an exception or a
cancellation too, and when an unfinished session is garbage-collected.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack
from weakref import WeakMethod, ref

from msgspec.structs import replace

from corral._agents.spec import AcpTransport, InProcess
from corral._core.display import count, short_traceback
from corral._sessions import store
from corral._sessions.backends.base import AgentDriver, Backend, DriverFactory, Steerable
from corral._sessions.backends.stream import StreamBackend
from corral._sessions.prepare import prepare
from corral._sessions.prepared_run import PreparedRun, resolve_prompt
from corral._sessions.store import SessionRecord
from corral._sessions.turn import Turn, TurnSetup
from corral._system.environment import redactor_of
from corral._system.threads import in_thread, short_traceback_async
from corral.errors import ConfigError, CorralError, ToolFailed
from corral.options import fallback_agents
from corral.policy import Policy, Preset
from corral.prompt import Prompt, check_prompt, output_type
from corral.result import Result
from corral.values import AgentSession

if TYPE_CHECKING:
    from corral._metering.budget import Budget
    from corral._sessions.acp.connection import ConnectionSource
    from corral._sessions.limit_waits import LimitMachine
    from corral._sessions.permissions import Asker, Granted
    from corral._sessions.prepared_run import Answers, EditorFiles
    from corral._sessions.run_verifier import RunVerifier
    from corral._sessions.structured_output import TypedAnswer
    from corral._sessions.tools.hooks import Before
    from corral._sessions.tools.mcp_client import ServerCheck
    from corral._sessions.tools.mcp_server import ToolServer
    from corral._sessions.tools.tools import GivenTools
    from corral.events import Event
    from corral.run_kwargs import PromptKwargs
    from corral.values import Effort, McpServer, Output, OutputT


class Pooled(NamedTuple):
    """What a pool gives to the session of one of its prompts."""

    prepared: PreparedRun
    connections: ConnectionSource
    server_check: ServerCheck


class Session:
    """One agent, one conversation. Use it from one task at a time.

    ::

        async with corral.session("gemini-cli", policy="edits") as session:
            first = await session.run("Fix the failing test")
            second = await session.run("What did you change?")
    """

    def __init__(
        self,
        agent: str,
        options: Mapping[str, object],
        ask: Asker | None = None,
        tools: GivenTools = (),
        *,
        on_tool_call: Before | None = None,
        budget: Budget | None = None,
        editor: EditorFiles | None = None,
    ) -> None:
        """``ask`` answers the agent's permission questions; without it they are denied.
        ``tools`` are Python functions that the agent may call. ``on_tool_call`` decides about
        each tool call of the agent. ``budget`` limits what its model calls may use. ``editor``
        reads and writes the files that it has."""
        for name, function in (("ask", ask), ("on_tool_call", on_tool_call)):
            if function is not None and not callable(function):
                got = type(function).__name__
                raise ConfigError(f"{name} must be a function, got: {got}")
        self._agent = agent
        self._options = options
        self._ask = ask
        self._tools = tools
        self._on_tool_call = on_tool_call
        self._given_budget = budget
        self._editor = editor
        self._server: ToolServer | None = None
        self._server_check: ServerCheck | None = None
        self._connection: ConnectionSource | None = None
        self._driver: AgentDriver | None = None
        self._prepared: PreparedRun | None = None
        self._effective_options = options
        """The options that the session was prepared with, with its tool server."""
        self._record: SessionRecord | None = None
        self._turn: Turn | None = None
        self._backend: Backend | None = None
        self._granted: set[Granted] = set()
        """What a person allowed for the session."""
        self.verifier: RunVerifier | None = None
        """Of the run that is under way, or of the last one."""
        self.source: SessionRecord | None = None
        """A session that this process has open and that this one continues, also if its agent is
        the same. Set before this one is opened."""
        self.is_part: bool = False
        """It is a part of a run that may continue in another agent. Set before it is opened."""
        self.pooled: Pooled | None = None
        """What a prompt of a pool shares with others. Set before it is opened."""

    def __repr__(self) -> str:
        if self._record is None:
            return f"<Session {self._agent} (not open)>"
        meta = self._record.meta
        return (
            f"<Session {self._agent} {meta.id} ({', '.join(count(meta.turns, 'turn')) or 'new'})>"
        )

    @property
    def id(self) -> str:
        """corral's id of the session, for ``resume``."""
        return self._require_open()[1].meta.id

    @property
    def prepared(self) -> PreparedRun:
        """The facts that were found before anything starts."""
        return self._require_open()[0]

    @property
    def options(self) -> Mapping[str, object]:
        """The options that the caller gave."""
        return self._options

    @property
    def record(self) -> SessionRecord:
        """How it is stored."""
        return self._require_open()[1]

    @property
    def continued_from(self) -> str | None:
        """corral's id of the session that this one continues: that of another agent, or the one
        that it was forked from."""
        return self._require_open()[1].meta.continued_from

    @property
    def sends_history(self) -> bool:
        """Whether the next prompt takes the conversation of another session to the agent."""
        record = self._require_open()[1]
        return record.handover is not None and record.meta.session_id is None

    @property
    def budget(self) -> Budget | None:
        """What its model calls may use and have used; None without a limit. ``add`` raises it,
        also while a turn is running."""
        return self._require_open()[0].budget

    @property
    def stderr(self) -> str:
        """The end of what the agent's program wrote to stderr in this turn; empty if the agent is
        not a program."""
        return "" if self._backend is None else self._backend.stderr

    @short_traceback_async
    async def __aenter__(self) -> Session:
        if self._prepared is not None:
            raise RuntimeError("the session is open already")
        if self.pooled is None:
            await self._set_up()
        else:
            self._prepared, self._connection, self._server_check = self.pooled
            self._record = store.create(self._prepared.agent.name, self._prepared.cwd)
            self._record.is_pooled = True
        return self

    async def _set_up(self) -> None:
        if not self.is_part and fallback_agents(str(self._options.get("on_limit"))):
            raise ConfigError(
                "a session has one agent: on_limit cannot be a fallback",
                hint="Give it to a run, or use wait. A session that met a limit is continued in"
                " another agent with resume=ID (--resume ID) and the agent's name.",
            )
        source = self.source
        if self._options.get("resume") is not None:
            from corral._sessions.handover import split_resume

            stored, self._options = split_resume(self._agent, self._options)
            source = source or stored
        prepared = self._prepare(self._options)
        if prepared.proof.needs_probe:
            from corral._sessions.probing import probe

            await probe(prepared.agent, prepared.program)
            prepared = self._prepare(self._options)
        if self._tools:  # errors were raised before a server is opened
            prepared = await self._with_tools(prepared)
        try:
            record: SessionRecord | None = None
            if source is not None:
                from corral._sessions.handover import begin

                is_here = self.source is not None
                has_cwd = self._options.get("cwd") is not None
                record = await in_thread(
                    partial(begin, prepared, source, is_here=is_here, has_cwd=has_cwd)
                )
            elif prepared.run.resume is not None:
                from corral._sessions.handover import find_resumed

                record = find_resumed(prepared)
            if record is not None and prepared.run.fork:
                record = store.fork(record, prepared.agent.path_bound_files)
        except BaseException:
            await self._stop_tool_server()
            raise
        self._prepared = prepared
        self._record = record or store.create(prepared.agent.name, prepared.cwd)

    def check(self) -> PreparedRun:
        """Every check of a session that is opened, without opening it. Raises ``CorralError``."""
        prepared = self._prepare(self._options)
        return self._prepare(self._tool_options(prepared)) if self._tools else prepared

    def successor(self, agent: str, options: Mapping[str, object]) -> Session:
        """A session with another agent, not open yet, that goes on with the run of this one: with
        the same functions, the rest of the budget, and the conversation if it is stored. What is
        verified is the work of both."""
        prepared, record = self._require_open()
        other = Session(
            agent,
            options,
            self._ask,
            self._tools,
            on_tool_call=self._on_tool_call,
            budget=prepared.budget,
            editor=self._editor,
        )
        other.is_part = True
        other.source = record if record.has_transcript else None
        other.verifier = self.verifier
        if self.verifier is not None:
            self.verifier.is_concluded = False
        return other

    async def end_agent(self) -> None:
        """End the agent and all that it was given. The session takes no further prompt."""
        turn, self._turn = self._turn, None
        driver, self._driver = self._driver, None
        connection, self._connection = self._connection, None
        # All of them are closed, also if the task is cancelled again meanwhile.
        async with AsyncExitStack() as ending:
            ending.push_async_callback(self._stop_tool_server)
            for part in (driver, connection, turn):
                if part is not None:
                    ending.push_async_callback(part.close)

    @property
    def _person(self) -> Answers:
        """What a person can be asked."""
        if self._ask is None:
            return "nothing"
        from corral._sessions.permissions import answers_of

        return answers_of(self._ask)

    def _prepare(self, options: Mapping[str, object]) -> PreparedRun:
        self._effective_options = options
        own = tool_names(self._tools)
        prepared = prepare(
            self._agent,
            options,
            has_asker=self._person,
            own_tools=own,
            on_tool_call=self._on_tool_call,
            budget=self._given_budget,
        )
        return replace(prepared, editor=self._editor)

    async def _with_tools(self, prepared: PreparedRun) -> PreparedRun:
        """The same with the caller's functions as one more tool server. An agent that runs in this
        process calls them without a server."""
        options = self._tool_options(prepared)
        if isinstance(prepared.agent.transport, InProcess):
            return self._prepare(options)
        from corral._sessions.tools.mcp_server import ToolServer

        self._server = await ToolServer(self._tools).__aenter__()
        try:
            return self._prepare(self._tool_options(prepared, self._server.mcp_server))
        except BaseException:
            await self._stop_tool_server()
            raise

    def _tool_options(
        self, prepared: PreparedRun, server: McpServer | None = None
    ) -> dict[str, object]:
        from corral._sessions.tools.mcp_server import with_own_tools

        return with_own_tools(self._options, self._tools, prepared, server)

    async def _stop_tool_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.__aexit__()

    def _answers(self) -> int:
        if self._server is not None:
            return self._server.tools.answers
        return 0 if isinstance(self._tools, Sequence) else self._tools.answers

    def _tools_error(self) -> CorralError | None:
        """The error if the agent never connected to the tool server."""
        if self._server is None or self._server.connected.is_set():
            return None
        return ToolFailed(
            f"{self._agent} did not list the tools that it was given",
            hint="See the agent's log; a policy that denies MCP also hides the tools.",
        )

    async def __aexit__(
        self, _type: object = None, failure: BaseException | None = None, _: object = None
    ) -> None:
        try:
            async with AsyncExitStack() as ending:
                if self._record is not None and self._record.link is not None:
                    ending.push_async_callback(self._record.link.finish)
                ending.push_async_callback(self.end_agent)
        finally:
            if self._record is not None and self._prepared is not None:
                has_turns = self._record.meta.turns > 0 or self._prepared.agent.open_turns
                run = self._prepared.run
                is_stored = run.record or not self._record.is_pooled
                keep = run.keep and has_turns and is_stored
                if run.record and not keep:
                    keep = self._record.save_unfinished(failure)
                self._record.close(keep=keep or run.resume is not None)
            self._prepared = self._record = None

    @short_traceback
    def prompt(  # noqa: PLR0913
        self,
        prompt: str | Prompt[OutputT] | Prompt[None] | None = None,
        *,
        output: Output[OutputT] | None = None,
        timeout: float | str | None = None,
        idle_timeout: float | str | None = None,
        model: str | None = None,
        reasoning_effort: Effort | None = None,
        policy: Policy | Preset | None = None,
        images: Sequence[str | os.PathLike[str]] | None = None,
        audio: Sequence[str | os.PathLike[str]] | None = None,
        attachments: Sequence[str | os.PathLike[str]] | None = None,
    ) -> Turn[OutputT]:
        """The next turn. It starts when its events are first read; an earlier turn that was not
        read to its end is ended then.

        With ``output``, a type or a JSON Schema, the last event has the value; a value that does
        not fit ends the turn as ``schema_not_met``. ``run`` also asks for corrections.

        The other options apply to this prompt only; for the others the session's apply. ``policy``
        may only be narrower than the session's. Raises ``ConfigError`` for a wider one, and, here
        or when the turn starts, if the agent does not support the option for one prompt."""
        options: PromptKwargs = {
            "timeout": timeout,
            "idle_timeout": idle_timeout,
            "model": model,
            "reasoning_effort": reasoning_effort,
            "policy": policy,
            "images": images,
            "audio": audio,
            "attachments": attachments,
        }
        wanted = output_type(prompt, output)
        full_text = self.full_prompt(prompt)
        if wanted is None:
            return self.turn(full_text, options)
        from corral._sessions.structured_output import TypedAnswer

        typed = TypedAnswer(wanted, repairs=0)
        asked = typed.first_prompt(full_text, native=self.takes_schema(typed))
        return self.turn(asked, options, typed)

    def turn(
        self,
        text: str,
        options: PromptKwargs,
        typed: TypedAnswer | None = None,
        *,
        is_last: bool = True,
    ) -> Turn:
        """The next turn with exactly this text. ``typed`` is the value that its answer must
        contain. ``is_last``: the run ends with it, and is verified then; otherwise ``verify``
        ends the run."""
        session, record = self._require_open()
        given: dict[str, object] = {**options}
        if typed is not None and self.takes_schema(typed):
            given["output_schema"] = typed.schema.json
        prepared = session
        if chosen := {key: value for key, value in given.items() if value is not None}:
            from corral._sessions.prepare import for_prompt

            prepared = for_prompt(
                session,
                self._agent,
                self._effective_options,
                chosen,
                has_asker=self._person,
                on_tool_call=self._on_tool_call,
            )
        sent = self._with_handover(text, prepared, record)
        check_prompt(sent, prepared.agent.prompt_limit)
        if prepared.budget is not None:
            prepared.budget.check()
        if prepared.checks and (self.verifier is None or self.verifier.is_concluded):
            from corral._sessions.run_verifier import RunVerifier

            self.verifier = RunVerifier(prepared, record, text)
        setup = TurnSetup(
            typed=typed,
            steer=WeakMethod(self.steer) if self._is_in_process() else None,
            limits=self._limits(prepared),
            verifier=self.verifier if prepared.checks else None,
            is_last=is_last,
        )
        if self._tools:
            setup = replace(setup, fail=self._tools_error, answers=self._answers)
        if prepared.servers and not self._is_in_process():
            from corral._sessions.tools.mcp_client import ServerCheck

            self._server_check = self._server_check or ServerCheck()
            setup = replace(setup, check=partial(self._server_check.run, prepared, record.folder))
        self._turn = Turn(
            prepared,
            record,
            text,
            self._backend_for(prepared, text),
            redactor=redactor_of(prepared.environment),
            before=self._turn,
            setup=setup,
        )
        return self._turn

    async def verify(self, result: Result) -> Result:
        """The result of a run of several turns, with its receipt if it is to be verified."""
        prepared, record = self._require_open()
        if self.verifier is None or self.verifier.is_concluded:
            return result
        from corral._sessions.run_verifier import with_judging

        receipt = await self.verifier.conclude(prepared, record, result)
        return replace(with_judging(result, [receipt]), receipt=receipt)

    def _limits(self, prepared: PreparedRun) -> LimitMachine | None:
        """What a turn does at a rate limit; None if it fails."""
        if prepared.limit_waits is None:
            return None
        from corral._sessions.limit_waits import LimitMachine

        weak = ref(self)  # a turn must not keep its session: one that is dropped ends its agent

        def restart(prepared: PreparedRun, text: str) -> Backend | None:
            session = weak()
            return None if session is None else session._backend_for(prepared, text)

        return LimitMachine(prepared, prepared.limit_waits, restart)

    def _backend_for(self, prepared: PreparedRun, text: str) -> Backend:
        """What sends this text to the agent."""
        _, record = self._require_open()
        text = self._with_handover(text, prepared, record)
        backend: Backend
        if isinstance(prepared.agent.transport, InProcess):
            backend = self._get_driver().turn(text, prepared)
        elif isinstance(prepared.agent.transport, AcpTransport):
            from corral._sessions.backends.acp import AcpBackend

            backend = AcpBackend(prepared, record, text, self._connections(), self._ask)
        else:
            backend = StreamBackend(
                prepared,
                record,
                text,
                redactor_of(prepared.environment),
                self._ask,
                granted=self._granted,
            )
        self._backend = backend
        return backend

    def _with_handover(self, text: str, prepared: PreparedRun, record: SessionRecord) -> str:
        """The prompt, after the conversation that the session continues if the agent has stored
        nothing of it yet."""
        transport = prepared.agent.transport
        takes_messages = isinstance(transport, InProcess) and transport.takes_messages
        if record.handover is None or not self.sends_history or takes_messages:
            return text
        from corral._sessions.handover import first_prompt

        return first_prompt(record.handover, text, prepared)

    def takes_schema(self, typed: TypedAnswer) -> bool:
        """Whether the agent is given the schema in its own way. One that has tools of the caller
        is not: it submits the value with a tool, or writes it."""
        supports = self._require_open()[0].agent.native_schema
        return supports is not None and not self._tools and supports(typed.schema.json)

    def full_prompt(self, prompt: str | Prompt[Any] | None) -> str:
        """The text that a prompt would send: the content of the prompt file if one is set."""
        prepared, record = self._require_open()
        if prompt is None and prepared.agent.open_turns:
            prompt = store.open_prompt(record)
        return resolve_prompt(prepared, prompt)

    def steer(self, text: str) -> None:
        """Send a text to the agent while it works; it gets it after its current round of tools.
        Raises ``ConfigError`` if the agent cannot be steered."""
        self._steerable().steer(text)

    def follow_up(self, text: str) -> None:
        """Send a text that the agent gets after its answer, in the same turn."""
        self._steerable().follow_up(text)

    def _steerable(self) -> Steerable:
        driver = self._get_driver() if self._is_in_process() else None
        if not isinstance(driver, Steerable):
            raise ConfigError(
                f"{self._agent} cannot be steered while it works",
                hint="Give it another prompt once it has answered.",
            )
        return driver

    def _is_in_process(self) -> bool:
        return isinstance(self._require_open()[0].agent.transport, InProcess)

    def _get_driver(self) -> AgentDriver:
        if self._driver is None:
            prepared, record = self._require_open()
            transport, redactor = prepared.agent.transport, redactor_of(prepared.environment)
            if not isinstance(transport, InProcess):
                raise TypeError(f"{prepared.agent.name} does not run in this process")
            # The driver is in a higher layer: the agent's spec names it.
            module, _, name = transport.driver.partition(":")
            make: DriverFactory = getattr(import_module(module), name)
            self._driver = make(prepared, record, redactor, self._ask, self._tools)
        return self._driver

    @short_traceback_async
    async def run(
        self,
        prompt: str | Prompt[OutputT] | Prompt[None] | None = None,
        *,
        output: Output[OutputT] | None = None,
        repairs: int = 2,
        check: bool = False,
        on_event: Callable[[Event], None] | None = None,
        **options: Unpack[PromptKwargs],
    ) -> Result[OutputT]:
        """The next turn, to its end; ``output``, ``repairs``, ``check`` and ``on_event`` as in
        ``corral.run``, the other options as in ``prompt``."""
        wanted = output_type(prompt, output)
        if wanted is None:
            result: Result = await self.prompt(prompt, **options).collect(on_event)
        else:
            from corral._sessions.structured_output import TypedAnswer, run_typed

            typed = TypedAnswer(wanted, repairs=repairs)
            result = await run_typed(
                lambda text: self.turn(text, options, typed).collect(on_event),
                self.full_prompt(prompt),
                typed,
                native=self.takes_schema(typed),
            )
        return result.raise_for_status() if check else result

    async def list_sessions(self, cwd: str | Path | None = None) -> list[AgentSession]:
        """The conversations that the agent itself has stored, of one folder or of all. Starts the
        agent if it does not run yet. Raises ``ConfigError`` if the agent does not support it."""
        prepared, _ = self._require_open()
        if not isinstance(prepared.agent.transport, AcpTransport):
            raise ConfigError(
                f"{prepared.agent.name} does not list its sessions",
                hint="corral's own are listed by `corral runs list`.",
            )
        from corral._sessions.backends.acp import list_sessions

        connection = await self._connections().connection(prepared)
        return await list_sessions(connection, None if cwd is None else _absolute(prepared, cwd))

    def _connections(self) -> ConnectionSource:
        if self._connection is None:
            from corral._sessions.acp.connection import PrivateConnection

            self._connection = PrivateConnection(*self._require_open())
        return self._connection

    def _require_open(self) -> tuple[PreparedRun, SessionRecord]:
        if self._prepared is None or self._record is None:
            raise RuntimeError("open the session first: async with corral.session(...) as s")
        return self._prepared, self._record


def tool_names(tools: GivenTools | None) -> tuple[str, ...]:
    """The names of the caller's own functions. Raises ``ConfigError`` for two of one name."""
    if not tools:
        return ()
    from corral._sessions.tools.tools import Tools

    return tuple((tools if isinstance(tools, Tools) else Tools(tools)).by_name)


def _absolute(prepared: PreparedRun, folder: str | Path) -> str:
    return os.path.normpath(os.path.join(prepared.cwd, folder))
