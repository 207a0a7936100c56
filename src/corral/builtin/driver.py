"""A session with our own agent: what its turns share, and one turn's way through it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from corral import errors
from corral.builtin import tools as shelf
from corral.builtin.calls import Emit, Hands
from corral.builtin.history import NAME, History
from corral.builtin.loop import Limits, Loop, Mailbox, Tally
from corral.builtin.prompt import system_prompt
from corral.builtin.subagents import Subagents
from corral.builtin.tools.tool import BuiltinTool
from corral.builtin.tools.workspace import Workspace
from corral.errors import ConfigError, CorralError
from corral.events import Error, Init
from corral.generation import Request, Response
from corral.inference.client import Client
from corral.inference.toolbox import Described, spec_of
from corral.io import prices
from corral.io.environment import Eraser
from corral.io.media import loaded
from corral.messages import Audio, Document, Image, Message, Part, Text
from corral.models.families import family_of
from corral.models.registry import split
from corral.policy import Policy
from corral.sessions.backend import Fail
from corral.sessions.broker import Asker, Broker
from corral.sessions.guard import Guard
from corral.sessions.prepare import Prepared
from corral.sessions.store import Kept
from corral.sessions.tools import Tool, Tools
from corral.wire.stream import Finish, Item

FULL = 1000
"""Items that may wait for a reader before the model is read no further."""


class Outbox:
    """What happened, until somebody takes it."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    def put(self, item: Item) -> None:
        self._items.append(item)
        self._filled.set()

    async def room(self) -> None:
        """Wait while it is full: a slow reader slows the agent, and memory stays flat."""
        while len(self._items) > FULL:
            self._emptied.clear()
            await self._emptied.wait()

    def take(self) -> list[Item]:
        items, self._items = self._items, []
        self._filled.clear()
        self._emptied.set()
        return items

    async def wait(self) -> None:
        await self._filled.wait()

    def wake(self) -> None:
        self._filled.set()


class Driver:
    """See ``sessions.backend.Driver``."""

    def __init__(
        self,
        prepared: Prepared,
        kept: Kept,
        eraser: Eraser,
        ask: Asker | None,
        tools: Sequence[Tool | Callable[..., Any]] | Tools,
    ) -> None:
        run = prepared.run
        model = run.model or ""
        provider, name = split(model)
        self.prepared = prepared
        self.kept = kept
        self.model = model
        self.outbox = Outbox()
        self.mailbox = Mailbox()
        self.tally = Tally()
        self._eraser = eraser
        self._client = Client(environ=dict(prepared.environment.family))
        self._client.check(model)
        self._family = family_of(provider.name, name)
        # The vendor's own defaults, for an agent that has none: read, and ask for the rest.
        self._policy = Policy() if run.policy.mode == "native" else run.policy
        self._broker = Broker(self._policy, ask, mode=run.permission_mode)
        self._own = tools if isinstance(tools, Tools) else Tools(tools)
        self._workspace = Workspace(
            prepared.cwd,
            run.include_directories,
            run.policy.writable,
            env=run.env,
            pass_env=run.pass_env,
        )
        entry = prices.catalogue().lookup(model)
        self._limits = Limits(
            max_turns=run.max_turns,
            max_tool_rounds=run.max_tool_rounds,
            retries=run.retries - 1,
            window=entry.window if entry is not None else None,
        )
        self.subagents = Subagents(self._sub_loop, self.outbox.put)
        chosen = {tool.name: tool for tool in self._chosen()}
        self.hands = self._hands({**chosen, **{t.name: t for t in self.subagents.tools()}})
        self._sub_hands = self._hands(chosen)
        self._loop: Loop | None = None

    @property
    def tool_names(self) -> tuple[str, ...]:
        return (*self.hands.tools, *self._own.by_name)

    def clean(self, text: str) -> str:
        return self._eraser.clean_text(text)

    def turn(self, prompt: str) -> Turn:
        return Turn(self, prompt)

    def steer(self, text: str) -> None:
        self.mailbox.steer(text)

    def follow_up(self, text: str) -> None:
        self.mailbox.follow_up(text)

    async def close(self) -> None:
        await self.subagents.end()
        await self._client.close()

    def _chosen(self) -> list[BuiltinTool]:
        """What this family of models knows best; a tool that is denied whatever it is given is
        not even shown."""
        policy = self._policy
        names = policy.allow_tools if policy.allow_tools is not None else self._family.tools
        found = (shelf.by_name(name) for name in names if name not in policy.deny_tools)
        return [tool for tool in found if tool is not None]

    def _hands(self, tools: dict[str, BuiltinTool]) -> Hands:
        denied = self._policy.deny_tools
        shown = {name: tool for name, tool in tools.items() if name not in denied}
        if twice := shown.keys() & self._own.by_name.keys():
            raise ConfigError(f"{min(twice)} is a tool of the agent's own: rename yours")
        return Hands(shown, self._own, self._workspace, self._broker, self._eraser)

    async def loop(self) -> Loop:
        """The conversation, opened when first needed."""
        if self._loop is None:
            run = self.prepared.run
            if run.keep:
                self.kept.make()
            history = History(self.kept.folder / NAME if run.keep else None)
            self._loop = self._new_loop(history, self.hands, self.outbox.put, self.mailbox)
        return self._loop

    def _sub_loop(self, emit: Emit, mailbox: Mailbox) -> Loop:
        return self._new_loop(History(), self._sub_hands, emit, mailbox)

    def _new_loop(self, history: History, hands: Hands, emit: Emit, mailbox: Mailbox) -> Loop:
        run = self.prepared.run
        system = system_prompt(
            cwd=Path(self.prepared.cwd),
            model=self.model,
            family=self._family,
            policy=self._policy,
            base=run.replace_system_prompt,
            more=run.system_prompt,
        )
        described: list[Described] = [*hands.tools.values(), *self._own.by_name.values()]
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
            hands,
            emit,
            room=self.outbox.room,
            eraser=self._eraser,
            limits=self._limits,
            tally=self.tally,
            mailbox=mailbox,
            thinking=run.thinking,
        )

    async def message(self, prompt: str) -> Message:
        """The prompt with what goes along, read now: the agent may change the files."""
        run, cwd = self.prepared.run, Path(self.prepared.cwd)
        parts: list[Part] = [Text(prompt)]
        parts += [Image(str(cwd / path)) for path in run.images]
        parts += [Audio(str(cwd / path)) for path in run.audio]
        for path in run.attachments:
            parts.append(_attached(cwd / path))
        return (await loaded([Message("user", tuple(parts))]))[0]


def _attached(path: Path) -> Part:
    """Text as text, which every model takes; anything else as a document."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        return Document(str(path))
    except OSError as error:
        raise ConfigError(f"a file for the prompt cannot be read: {path}: {error}") from error
    return Text(f'<file path="{path.name}">\n{text}\n</file>')


class Turn:
    """One prompt. See ``Backend`` for what each method promises."""

    def __init__(self, driver: Driver, prompt: str) -> None:
        self._driver = driver
        self._prompt = prompt
        self._loop: Loop | None = None
        self._message: Message | None = None
        self._task: asyncio.Task[Response] | None = None
        self._failure: CorralError | None = None
        self._greeted = False
        self.notes: tuple[str, ...] = ()

    @property
    def session_id(self) -> str:
        return self._driver.kept.meta.id

    @property
    def started(self) -> bool:
        return self._task is not None

    async def prepare(self) -> None:
        driver = self._driver
        driver.outbox.take()
        driver.tally.reset()
        self._loop = await driver.loop()
        self._message = await driver.message(self._prompt)

    async def begin(self, fail: Fail) -> None:
        if self._loop is None or self._message is None:
            raise RuntimeError("prepare first")
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._loop.run(self._message))
        self._task.add_done_callback(lambda _: self._driver.outbox.wake())

    async def receive(self) -> list[Item] | None:
        task, outbox = self._task, self._driver.outbox
        if task is None:
            return None
        if not self._greeted:
            self._greeted = True
            driver = self._driver
            return [Init(session_id=self.session_id, model=driver.model, tools=driver.tool_names)]
        try:
            async with asyncio.timeout(self._driver.prepared.run.idle_timeout / 2):
                await outbox.wait()
        except TimeoutError:
            if self._driver.hands.busy:
                return []  # a tool at work has a deadline of its own
            await outbox.wait()
        items = outbox.take()
        return items if items or not task.done() else None

    def end_soon(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def finish(self) -> list[Item]:
        driver, task = self._driver, self._task
        await self.close()
        items: list[Item] = []
        ended = await driver.subagents.end()
        if ended:
            said = f"{ended} sub-agents were still at work and were ended"
            items.append(Error("subagents_ended", said, recoverable=True, level="warning"))
        items = [*driver.outbox.take(), *items]
        tally = driver.tally
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
            Finish(ok=ok, stop_reason=reason, usage=tally.usage, cost=tally.cost, model=tally.model)
        )
        return items

    async def close(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    def explain(self, guard: Guard, *, lingered: bool) -> CorralError | None:
        if self._failure is not None:
            return self._failure
        if guard.finish is None or not guard.finish.ok:
            return errors.Interrupted("the run was cancelled")
        return None

    def add_facts(self, error: CorralError) -> None:
        error.message = self._driver.clean(error.message)
