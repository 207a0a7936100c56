"""A session with the built-in agent: what its turns share, and the backend of one turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from corral._builtin.history import NAME, History
from corral._builtin.loop import Loop, LoopLimits, LoopOutput, Mailbox, TurnTotals
from corral._builtin.prompt import system_prompt
from corral._builtin.session_tools import Subagents, ask_user_tool
from corral._builtin.tool_execution import Emit, ToolExecutor
from corral._builtin.tools import all_tools
from corral._builtin.tools.tool import BuiltinTool
from corral._builtin.tools.workspace import Workspace
from corral._inference.client import Client
from corral._inference.request import ToolDescription, spec_of
from corral._metering import prices
from corral._metering.budget_gate import BudgetGate, paused_event
from corral._models.registry import family_of, split_model
from corral._protocol.ndjson import RawEvent, TurnEnd
from corral._sessions import handover
from corral._sessions.backends.base import Backend, Fail
from corral._sessions.event_normalizer import EventNormalizer
from corral._sessions.handed_conversation import fit, messages
from corral._sessions.permissions import Asker, PermissionBroker
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.sinks import warning
from corral._sessions.store import SessionRecord
from corral._sessions.tools.tools import Tool, Tools
from corral._system.environment import SecretRedactor
from corral._system.media import prompt_message
from corral.errors import ConfigError, CorralError, Interrupted, ResumeLost, StorageFailed
from corral.events import Error, Init
from corral.messages import Message
from corral.model_types import Request, Response

if TYPE_CHECKING:
    from corral._sessions.tools.mcp_client import McpClient

FULL = 1000
"""Events in the queue at which reading from the model stops."""


class EventQueue:
    """Events that the reader has not taken yet."""

    def __init__(self) -> None:
        self._items: list[RawEvent] = []
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    def put(self, item: RawEvent) -> None:
        self._items.append(item)
        self._filled.set()

    async def wait_for_room(self) -> None:
        """Wait while the queue is full: a slow reader slows the agent, and memory stays bounded."""
        while len(self._items) > FULL:
            self._emptied.clear()
            await self._emptied.wait()

    def take(self) -> list[RawEvent]:
        items, self._items = self._items, []
        self._filled.clear()
        self._emptied.set()
        return items

    async def wait(self) -> None:
        await self._filled.wait()

    def wake(self) -> None:
        self._filled.set()


class BuiltinDriver:
    """See ``corral._sessions.backends.base``."""

    def __init__(
        self,
        prepared: PreparedRun,
        record: SessionRecord,
        _redactor: SecretRedactor,
        ask: Asker | None,
        tools: Sequence[Tool | Callable[..., Any]] | Tools,
    ) -> None:
        self.record = record
        self.events: EventQueue = EventQueue()
        self.mailbox: Mailbox = Mailbox()
        self.totals: TurnTotals = TurnTotals()
        self._ask = ask
        self._own = tools if isinstance(tools, Tools) else Tools(tools)
        self._secrets: dict[str, str] = {}
        self._clients: list[Client] = []
        self._servers: list[McpClient] = []
        self._server_tools = Tools(())
        self.fail: Fail = lambda _: None
        """Ends the current turn."""
        self.subagents: Subagents = Subagents(
            self._new_subagent_loop, self.events.put, self._interrupt
        )
        self._granted: set[tuple[str, str | None]] = set()
        self._history: History | None = None
        self._loop: Loop | None = None
        self._configure(prepared)

    def use(self, prepared: PreparedRun) -> None:
        """Use these options from now on: the session's, or those of one prompt. The history
        stays."""
        if prepared != self.prepared:
            self._configure(prepared)
            self._loop = None

    def _configure(self, prepared: PreparedRun) -> None:
        run = prepared.run
        model = run.model or ""
        provider, name = split_model(model)
        client = Client(environ=dict(prepared.environment.agent_values))
        self._clients.append(client)
        self.service_url: str = client.check(model)
        self._client = client
        self.prepared = prepared
        self.model = model
        self._secrets = {**self._secrets, **prepared.environment.redacted}
        self._redactor = SecretRedactor(self._secrets)
        self._family = family_of(provider.name, name)
        self._policy = run.policy
        if run.policy.mode == "native":
            # In ``native`` mode an agent's own defaults apply. Those of the built-in agent are:
            # read, and ask for the rest. The other fields of the policy still apply.
            self._policy = replace(run.policy, mode=None, read=run.policy.read or "allow")
        self._broker = PermissionBroker(
            self._policy,
            self._ask,
            timeout=run.answer_timeout,
            mode=run.permission_mode,
            hook=prepared.hook,
            session=(prepared, self.record),
        )
        events = self.events  # the sandbox must not hold this object
        sandbox = None
        if prepared.sandbox is not None:
            from corral._sessions.sandbox import command_sandbox  # most runs need none

            sandbox = command_sandbox(
                prepared, lambda notice: events.put(warning(notice.code, notice.message))
            )
        # Commands get the vendor's key only if ``pass_env`` names it.
        keys = set(prepared.agent.secret_env).difference(run.pass_env)
        self._workspace = Workspace(
            prepared.cwd,
            run.include_directories,
            run.policy.writable,
            env={name: value for name, value in run.env.items() if name not in keys},
            pass_env=run.pass_env,
            protects=not self._policy.is_unlimited,
            sandbox=sandbox,
        )
        self._workspace.editor = prepared.editor
        entry = prices.catalogue().lookup(model)
        budget = prepared.budget
        if budget is not None and budget.limits_cost and (entry is None or entry.prices is None):
            raise ConfigError(
                f"max_cost: the price of {model} is not known",
                hint="Add it to models.toml, or limit the tokens with max_total_tokens.",
            )
        gate = None
        if budget is not None:
            gate = BudgetGate(budget, lambda text: events.put(paused_event(text)))
        self._limits = LoopLimits(
            max_turns=run.max_turns,
            max_tool_rounds=run.max_tool_rounds,
            max_repeated_calls=run.max_repeated_calls,
            gate=gate,
            retries=run.retries,
            waits=prepared.limit_waits,
            window=entry.window if entry is not None else None,
        )
        names = self._policy.allow_tools
        if names is None:
            names = self._family.tools
        known = all_tools()
        selected = [known[name] for name in names if name in known]
        more = self.subagents.tools()
        if self._broker.can_ask:
            more.append(
                ask_user_tool(self._broker, self.events.put, self._interrupt, self._redactor)
            )
        self.executor: ToolExecutor = self._make_executor([*selected, *more])
        self._sub_executor = self._make_executor(selected)

    async def connect_servers(self) -> None:
        """Open the MCP servers of the run that are not open. Raises ``ToolFailed``."""
        if not self.prepared.servers and not self._servers:
            return
        from corral._sessions.tools.mcp_client import close_servers, open_servers, server_tools

        await close_servers(client for client in self._servers if not client.is_open)
        self._servers = [client for client in self._servers if client.is_open]
        known = [client.server for client in self._servers]
        missing = [server for server in self.prepared.servers if server not in known]
        self._servers += await open_servers(missing, self.prepared)
        used = [client for client in self._servers if client.server in self.prepared.servers]
        hidden = self._own.by_name  # which another policy applies to
        shown = {
            tool.name: tool
            for tool in server_tools(used)
            if self._is_shown(tool.name) and tool.name not in hidden
        }
        if shown.keys() != self._server_tools.by_name.keys():
            self._loop = None
        self._server_tools.by_name = shown

    @property
    def tool_names(self) -> tuple[str, ...]:
        own = filter(self._is_shown, self._own.by_name)
        return (*self.executor.tools, *own, *self._server_tools.by_name)

    @property
    def busy(self) -> bool:
        """Whether any tool runs, also for a sub-agent."""
        return self.executor.busy > 0 or self._sub_executor.busy > 0

    def _interrupt(self, error: Interrupted) -> None:
        self.fail(error)

    def clean(self, text: str) -> str:
        return self._redactor.clean_text(text)

    def turn(self, prompt: str, prepared: PreparedRun) -> BuiltinTurn:
        return BuiltinTurn(self, prompt, prepared)

    def steer(self, text: str) -> None:
        self.mailbox.steer(text)

    def follow_up(self, text: str) -> None:
        self.mailbox.follow_up(text)

    async def close(self) -> None:
        async with AsyncExitStack() as ending:
            ending.push_async_callback(self.subagents.end)
            for client in self._clients:
                ending.push_async_callback(client.close)
            for server in self._servers:
                ending.push_async_callback(server.close)

    def _is_shown(self, name: str) -> bool:
        """Whether the model sees the tool: a tool that is denied by name is not offered."""
        policy = self._policy
        listed = policy.allow_tools is None or name in policy.allow_tools
        return listed and name not in policy.deny_tools

    def _make_executor(self, tools: list[BuiltinTool[Any]]) -> ToolExecutor:
        shown = {tool.name: tool for tool in tools if self._is_shown(tool.name)}
        if duplicates := shown.keys() & self._own.by_name.keys():
            raise ConfigError(
                f"{min(duplicates)} is already the name of a built-in tool: rename yours"
            )
        return ToolExecutor(
            shown,
            self._own,
            self._server_tools,
            self._workspace,
            self._broker,
            self._redactor,
            granted=self._granted,
        )

    async def loop(self) -> Loop:
        """The conversation, opened when first needed."""
        if self._loop is None:
            run = self.prepared.run
            path = self.record.folder / NAME
            if run.keep:
                self.record.make_folders()
            if self._history is None:

                def clean(data: bytes) -> bytes:
                    return self._redactor.clean(data)  # another one if the options change

                history = History(path, keep=run.keep, clean=clean)
                if run.resume is not None and not history.was_stored:
                    raise ResumeLost(f"the history of session {self.record.meta.id} is missing")
                if self.record.handover is not None and not history.messages:
                    # The session continues the conversation of another agent.
                    room = handover.room(self.prepared.agent, self.model)
                    for message in messages(fit(self.record.handover, room)):
                        history.add(message)
                self._history = history
            self._loop = self._new_loop(self._history, self.executor, self.events.put, self.mailbox)
        return self._loop

    def _new_subagent_loop(self, emit: Emit, mailbox: Mailbox) -> Loop:
        return self._new_loop(History(), self._sub_executor, emit, mailbox)

    def _new_loop(
        self, history: History, executor: ToolExecutor, emit: Emit, mailbox: Mailbox
    ) -> Loop:
        run = self.prepared.run
        system = system_prompt(
            cwd=Path(self.prepared.cwd),
            model=self.model,
            family=self._family,
            policy=self._policy,
            base=run.replace_system_prompt,
            more=run.system_prompt,
        )
        own = (tool for name, tool in self._own.by_name.items() if self._is_shown(name))
        servers = self._server_tools.by_name.values()
        described: list[ToolDescription] = [*executor.tools.values(), *own, *servers]
        request = Request(
            model=self.model,
            messages=(Message.system(system),),
            tools=tuple(spec_of(tool) for tool in described),
            reasoning_effort=run.reasoning_effort,
        )
        return Loop(
            self._client,
            request,
            history,
            executor,
            LoopOutput(
                emit=emit,
                wait_for_room=self.events.wait_for_room,
                redactor=self._redactor,
                thinking=run.thinking,
            ),
            limits=self._limits,
            totals=self.totals,
            mailbox=mailbox,
        )

    def save_session(self) -> None:
        """Save the session before its first turn ends: if the process is killed, the messages so
        far are on disk and the session can be resumed."""
        meta = self.record.meta
        if not self.prepared.run.keep or meta.session_id is not None:
            return
        meta.session_id = meta.id
        meta.model = self.model
        try:
            self.record.save()
        except OSError as error:
            raise StorageFailed(
                f"the session cannot be saved in {self.record.folder}: {error.strerror}",
                hint="Free some space, or set CORRAL_HOME to a folder that can be written.",
            ) from error


class BuiltinTurn(Backend):
    """One prompt. See ``Backend`` for what each method promises."""

    def __init__(self, driver: BuiltinDriver, prompt: str, prepared: PreparedRun) -> None:
        self._driver = driver
        self._prepared = prepared
        self._prompt = prompt
        self._loop: Loop | None = None
        self._message: Message | None = None
        self._task: asyncio.Task[Response] | None = None
        self._failure: CorralError | None = None
        self._sent_init = False
        self._ended = 0
        """Sub-agents that were ended with the turn."""

    @property
    def session_id(self) -> str:
        return self._driver.record.meta.id

    @property
    def stays_open(self) -> bool:
        return True

    @property
    def started(self) -> bool:
        return self._task is not None

    async def prepare(self) -> None:
        driver = self._driver
        driver.events.take()
        driver.totals.reset()
        driver.use(self._prepared)
        await driver.connect_servers()
        self._loop = await driver.loop()
        prepared = driver.prepared
        self._message = await prompt_message(self._prompt, prepared.run, Path(prepared.cwd))

    async def begin(self, fail: Fail) -> None:
        if self._loop is None or self._message is None:
            raise RuntimeError("prepare first")
        self._driver.fail = fail
        self._driver.save_session()
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._loop.run(self._message))
        self._task.add_done_callback(lambda _: self._driver.events.wake())

    async def receive(self) -> list[RawEvent] | None:
        task, events = self._task, self._driver.events
        if task is None:
            return None
        if not self._sent_init:
            self._sent_init = True
            driver = self._driver
            return [Init(session_id=self.session_id, model=driver.model, tools=driver.tool_names)]
        if not task.done():  # a reader that comes late gets the rest at once
            try:
                async with asyncio.timeout(self._driver.prepared.run.idle_timeout / 2):
                    await events.wait()
            except TimeoutError:
                if self._driver.busy:
                    return []  # the tool that runs has its own deadline
                await events.wait()
        items = events.take()
        return items if items or not task.done() else None

    @property
    def service_url(self) -> str | None:
        return self._driver.service_url

    def emit(self, item: RawEvent) -> None:
        self._driver.events.put(item)

    def end_soon(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def finish(self) -> list[RawEvent]:
        driver, task = self._driver, self._task
        await self.close()
        items: list[RawEvent] = []
        if self._ended:
            message = f"sub-agents that still worked were ended with the turn: {self._ended}"
            items.append(Error("subagents_ended", message, recoverable=True, level="warning"))
        items = [*driver.events.take(), *items]
        totals = driver.totals
        ok = False
        reason: str | None = None
        if task is not None and not task.cancelled():
            error = task.exception()
            if isinstance(error, CorralError):
                self._failure = error
            elif error is not None:
                raise error
            else:
                ok, reason = True, task.result().finish_reason.raw
        items.append(
            TurnEnd(
                ok=ok,
                stop_reason=reason,
                usage=totals.usage,
                usage_by_model=totals.usage_by_model,
                cost=totals.cost,
                model=totals.model,
            )
        )
        return items

    async def close(self) -> None:
        task = self._task
        if task is None:
            return
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        # The exception is retrieved here, also if the turn is not read to the end.
        if task.cancelled() or task.exception() is not None:
            self._driver.mailbox.clear()  # messages for this turn are not for the next one
        self._ended += await self._driver.subagents.end()

    def explain(self, normalizer: EventNormalizer, *, lingered: bool) -> CorralError | None:
        if self._failure is not None:
            return self._failure
        if normalizer.finish is None or not normalizer.finish.ok:
            return Interrupted("the run was cancelled")
        return None

    def add_facts(self, error: CorralError) -> None:
        error.message = self._driver.clean(error.message)
