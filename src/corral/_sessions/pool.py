"""A pool: persistent agent processes that serve many prompts, each in its own session.

::

    async with corral.pool(size=2) as pool:
        result = await pool.run("…", cwd="…")

Theory of operation
-------------------

A pool has up to ``size`` workers. A worker is one process (an ``AcpConnection``) and serves up to
``prompts_at_once`` prompts at the same time. Every prompt gets a new session of its own, so no
prompt sees the history of another. What is fixed when a process starts (agent, environment, and
for many agents model and policy) is an option of the pool. A prompt chooses ``PROMPT_OPTIONS``
and, if the agent can switch without a new process, a model and a narrower policy.

Callers: tasks of one event loop call ``Pool.run``; the pipeline's nodes do, too.

A prompt: check the options (before anything starts), wait for a slot, take the least busy usable
worker or start one, open a ``Session`` over a ``_PoolConnection``, give the worker back.

States of a worker:

- *new*: no process yet. The first prompt starts it; others that took the worker wait for that.
- *usable*: it may take another prompt.
- *retiring*: it takes no more prompts: it has served the most sessions that its agent supports,
  uses too much memory, failed to start, crashed, or had a turn that did not end. It ends when its
  last prompt is given back.
- *idle*: usable and serving no prompt. It ends after ``IDLE`` seconds.
- *ended*: its process and its folder are gone.

Guarantees: at most ``size * prompts_at_once`` prompts run at once; leaving the block ends every
process. Of a prompt only the transcript is stored (``record``), not the agent's conversation: it
cannot be resumed.

On a crash of a process, its own prompts fail with the reason; the next prompt starts a new worker.
A prompt that must be cancelled but shares its process with others is abandoned: the process ends
when the others are done. If this process crashes, the process registry lets another corral process
end the agents.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from msgspec.structs import replace

from corral._agents.registry import DEFAULT_AGENT
from corral._agents.report import compile_for
from corral._option_definitions import with_trait
from corral._sessions import enforcement, store
from corral._sessions.acp.connection import AcpConnection, AcpSession
from corral._sessions.permissions import Asker, answers_of
from corral._sessions.prepare import check_narrower, needs_new_process, prepare
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.session import Pooled, Session
from corral._sessions.store import SessionRecord
from corral._sessions.tools.mcp_client import ServerCheck
from corral._system import platform
from corral._system.environment import SecretRedactor
from corral._system.threads import short_traceback_async
from corral.errors import ConfigError
from corral.events import Event
from corral.options import fallback_agents
from corral.prompt import Prompt
from corral.result import Result

if TYPE_CHECKING:
    from corral._metering.budget import Budget
    from corral._sessions.tools.hooks import Before
    from corral.policy import Policy, Preset
    from corral.values import Effort, Output, OutputT

    class PoolKwargs(TypedDict, total=False):
        """The options of one prompt of a pool."""

        cwd: str | os.PathLike[str] | None
        model: str | None
        reasoning_effort: Effort | None
        policy: Policy | Preset | None
        system_prompt: str | None
        prompt_file: str | os.PathLike[str] | None
        images: Sequence[str | os.PathLike[str]]
        audio: Sequence[str | os.PathLike[str]]
        attachments: Sequence[str | os.PathLike[str]]
        timeout: float | str
        idle_timeout: float | str
        grace: float
        label: str | None
        thinking: bool
        track_files: bool


IDLE = 300.0
"""Seconds after which an idle process is ended."""
PROMPT_OPTIONS = with_trait("pool_prompt")
"""Options that a prompt may choose with every agent."""
SWITCHED = with_trait("prompt") - PROMPT_OPTIONS
"""Options that a prompt may choose if the agent can switch without another process. A policy must
be narrower than the pool's."""


class Pool:
    """Made by ``corral.pool``. Its prompts may run at once, from any task of one loop.

    ::

        async with corral.pool("gemini-acp", size=2) as pool:
            result = await pool.run("What does this project do?")
    """

    def __init__(
        self,
        agent: str,
        options: Mapping[str, object],
        *,
        size: int,
        prompts_at_once: int,
        idle: float = IDLE,
        ask: Asker | None = None,
        on_tool_call: Before | None = None,
        budget: Budget | None = None,
    ) -> None:
        if size < 1 or prompts_at_once < 1:
            raise ConfigError("a pool needs a size of at least 1")
        self._agent = agent
        self._options = dict(options)
        self._size = size
        self._at_once = prompts_at_once
        self._idle = idle
        self._ask = ask
        self._on_tool_call = on_tool_call
        self._budget = budget
        self._workers: list[_Worker] = []
        self._slots = asyncio.Semaphore(size * prompts_at_once)
        self._open = False
        self._prepared: PreparedRun | None = None
        self._ending: set[asyncio.Task[None]] = set()
        """Idle processes that are being ended."""
        self._server_check = ServerCheck()
        self.started: int = 0
        """Processes started so far."""

    @short_traceback_async
    async def __aenter__(self) -> Pool:
        prepared = self._prepare(self._options)
        if prepared.agent.transport.kind == "builtin":
            raise ConfigError(
                f"{prepared.agent.name} works in this process: there is no process for a pool",
                hint="Call corral.run for each prompt; budget= limits them together.",
            )
        if prepared.agent.transport.kind != "acp":
            raise ConfigError(
                f"{prepared.agent.name} starts a process for each prompt: no pool can use it",
                hint=f"Use an agent that speaks the ACP, such as {DEFAULT_AGENT}.",
            )
        if fallback_agents(prepared.run.on_limit):
            raise ConfigError(
                "a pool has one agent: on_limit cannot be a fallback",
                hint="Use fail or wait, or corral.run for each prompt.",
            )
        if prepared.proof.needs_probe:
            from corral._sessions.probing import probe

            await probe(prepared.agent, prepared.program)
            prepared = self._prepare(self._options)
        self._prepared = prepared
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.end() for worker in workers), *self._ending)

    @short_traceback_async
    async def run(
        self,
        prompt: str | Prompt[OutputT] | Prompt[None] | None = None,
        *,
        output: Output[OutputT] | None = None,
        repairs: int = 2,
        check: bool = False,
        on_event: Callable[[Event], None] | None = None,
        **options: Unpack[PoolKwargs],
    ) -> Result[OutputT]:
        """One prompt in a fresh session, to its end; ``output``, ``repairs``, ``check`` and
        ``on_event`` as in ``corral.run``. Corrections are requested in the same session."""
        if not self._open:
            raise RuntimeError("open the pool first: async with corral.pool(...) as pool")
        unknown = sorted(set(options) - PROMPT_OPTIONS - SWITCHED)
        if unknown:
            raise ConfigError(
                f"{unknown[0]} is fixed for the whole pool",
                hint=f"A prompt chooses: {', '.join(sorted(PROMPT_OPTIONS | SWITCHED))}.",
            )
        chosen = {**self._options, **options}
        if "policy" in options:
            for spelling in ("approval_mode", "allowed_tools"):
                chosen.pop(spelling, None)
        prepared = self._prepare(chosen)
        self._check_shareable(prepared)
        session = Session(self._agent, chosen, self._ask)
        async with self._slots:
            worker = self._take_worker(prepared)
            session.pooled = Pooled(prepared, _PoolConnection(worker), self._server_check)
            try:
                async with session:
                    return await session.run(
                        prompt, output=output, repairs=repairs, check=check, on_event=on_event
                    )
            finally:
                await self._give_back(worker)

    def _prepare(self, options: Mapping[str, object]) -> PreparedRun:
        asks = answers_of(self._ask)
        hook, given = self._on_tool_call, self._budget
        made = prepare(self._agent, options, has_asker=asks, on_tool_call=hook, budget=given)
        if self._prepared is None:
            return made
        # One budget for all prompts, and the waits of processes that they share.
        budget, waits = self._prepared.budget, self._prepared.limit_waits
        return replace(made, budget=budget, limit_waits=waits)

    def _check_shareable(self, prompt: PreparedRun) -> None:
        """Raises ``ConfigError`` where the pool's processes cannot serve this prompt."""
        pool = self._prepared
        if pool is None:
            return
        check_narrower(prompt.run.policy, pool)
        if needs_new_process(prompt, pool):
            raise ConfigError(
                f"model, reasoning_effort and policy of {pool.agent.name} are fixed when a process"
                " of the pool starts",
                hint="Make a pool for each, or give them to the prompts of a session.",
            )
        if prompt.sandbox is not None and not Path(prompt.cwd).is_relative_to(pool.cwd):
            raise ConfigError(
                f"the sandbox of this pool shows {pool.cwd} and not {prompt.cwd}",
                hint="Give the pool a cwd that contains the folders of all its prompts.",
            )

    def _take_worker(self, prepared: PreparedRun) -> _Worker:
        """The least busy process that may take one more, or a new one."""
        free = [w for w in self._workers if w.busy < self._at_once and w.is_usable]
        room = len([w for w in self._workers if w.is_usable]) < self._size
        if room and all(worker.busy for worker in free):
            # What a process is started for: the pool's own model and policy, not the prompt's.
            pool = self._prepared or prepared
            run = replace(prepared.run, model=pool.run.model, policy=pool.run.policy)
            # All prompts share the sandbox of their process.
            cwd = prepared.cwd if prepared.sandbox is None else pool.cwd
            compiled = prepared.compiled
            if run != prepared.run:
                compiled = compile_for(prepared.agent, run)
                if prepared.sandbox is not None:
                    compiled = enforcement.in_sandbox(
                        prepared.agent, run, compiled, prepared.sandbox
                    )
            worker = _Worker(
                replace(prepared, run=run, cwd=cwd, compiled=compiled),
                prepared.acp.sessions_per_process,
            )
            self._workers.append(worker)
            self.started += 1
        else:
            worker = min(free, key=lambda each: each.busy)
        worker.take()
        return worker

    async def _give_back(self, worker: _Worker) -> None:
        worker.give_back()
        if not worker.busy and not worker.is_usable:
            if worker in self._workers:
                self._workers.remove(worker)
            await worker.end()
        elif not worker.busy:
            worker.end_after(self._idle, self._retire)

    def _retire(self, worker: _Worker) -> None:
        if worker in self._workers and not worker.busy:
            self._workers.remove(worker)
            ending = asyncio.get_running_loop().create_task(worker.end())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


class _Worker:
    """One process of a pool, started when first used."""

    def __init__(self, prepared: PreparedRun, sessions: int) -> None:
        self.busy = 0
        self._prepared = prepared
        self._sessions = sessions
        self._served = 0
        self._record: SessionRecord = store.create(prepared.agent.name, prepared.cwd)
        self._connection: AcpConnection | None = None
        self._opening = asyncio.Lock()
        self._broken = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_usable(self) -> bool:
        """Whether it may serve another session."""
        dead = self._connection is not None and self._connection.dead is not None
        return not self._broken and not dead and self._served < self._sessions

    def take(self) -> None:
        self.busy += 1
        self._served += 1
        if self._timer is not None:
            self._timer.cancel()

    def give_back(self) -> None:
        self.busy -= 1
        process = self._connection.program.process if self._connection else None
        resident = platform.resident_memory(process.pid) if process else None
        if resident is not None and resident > self._prepared.acp.bytes_per_process:
            self.retire()  # some agents never free what a session took

    def retire(self) -> None:
        self._broken = True

    async def connection(self, prepared: PreparedRun) -> AcpConnection:
        """Raises where the agent could not be started for this prompt."""
        async with self._opening:
            if self._connection is not None:
                await self._check(prepared)
            else:
                self._prepared = prepared
                try:
                    redactor = SecretRedactor(prepared.environment.redacted)
                    self._connection = await AcpConnection.open(prepared, self._record, redactor)
                except BaseException:
                    self._broken = True
                    raise
            return self._connection

    async def _check(self, prepared: PreparedRun) -> None:
        """Check a prompt for a process that was started for another folder. Agents that obey or
        trust a folder do so per session."""
        first, run = self._prepared, prepared.run
        if (prepared.cwd, prepared.project_files) == (first.cwd, first.project_files):
            return
        await prepared.check_launch(self._record.folder)
        relative = [
            folder
            for folder in (*run.include_directories, *run.policy.writable)
            if not os.path.isabs(folder)
        ]
        if prepared.cwd != first.cwd and relative:
            raise ConfigError(
                f"a pool with several working directories needs absolute folders: {relative[0]}",
                hint="The agent's process has resolved it in its first working directory.",
            )

    def end_after(self, seconds: float, on_idle: Callable[[_Worker], None]) -> None:
        def fire() -> None:
            if not self.busy:
                on_idle(self)

        self._timer = asyncio.get_running_loop().call_later(seconds, fire)

    async def end(self) -> None:
        self._broken = True
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            await self._connection.close(self._prepared.run.grace)
        self._record.close(keep=False)


class _PoolConnection:
    """One prompt's share of a worker."""

    def __init__(self, worker: _Worker) -> None:
        self.session: AcpSession | None = None
        self._worker = worker
        self._connection: AcpConnection | None = None

    async def connection(self, prepared: PreparedRun) -> AcpConnection:
        self._connection = await self._worker.connection(prepared)
        return self._connection

    async def discard(self, connection: AcpConnection) -> None:
        """The process may still serve others: then it ends after the last of them."""
        self._worker.retire()
        if self._worker.busy <= 1:
            await connection.close(0.0)
        elif self.session is not None:
            self.session.is_abandoned = True
            connection.wake()

    async def close(self) -> None:
        if self._connection is not None and self.session is not None:
            self._connection.drop_session(self.session)
