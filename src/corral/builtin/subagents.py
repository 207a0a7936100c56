"""Sub-agents: the agent starts them. They have their own history and share the workspace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from corral.builtin.loop import Loop, Mailbox
from corral.builtin.tool_execution import Emit, current_call
from corral.builtin.tools.tool import (
    Arguments,
    BuiltinTool,
    Outcome,
    Output,
    ToolDefinition,
    define_tool,
    outcome,
)
from corral.builtin.tools.truncate import READ
from corral.builtin.tools.workspace import ToolError, Workspace
from corral.errors import CorralError, Interrupted
from corral.events import Text
from corral.messages import Message
from corral.protocol.ndjson import RawEvent, TurnEnd

MAX_SUBAGENTS = 8
"""Sub-agents at the same time: each is a conversation that costs money."""
LONGEST_WAIT = 600_000
SPAWN = (
    "Starts another agent on a task beside you, in the same workspace, and returns its id at"
    " once. Ask for its answer with wait."
)
SEND = "Sends a message to an agent that you started; one that has answered continues with it."
WAIT = "Waits until agents that you started have answered, and returns their answers."

Make = Callable[[Emit, Mailbox], Loop]
Call = Annotated[str, Meta(description="The agent's id, as spawn_agent returned it.")]


class Spawn(Arguments, frozen=True, kw_only=True):
    task: Annotated[
        str,
        Meta(
            description="Everything it needs to know: it does not see this conversation.",
            min_length=1,
        ),
    ]


class Send(Arguments, frozen=True, kw_only=True):
    agent: Call
    text: Annotated[str, Meta(min_length=1)]


class Wait(Arguments, frozen=True, kw_only=True):
    agents: Annotated[tuple[str, ...], Meta(description="Ids of the agents. Default: all.")] = ()
    timeout_ms: Annotated[int, Meta(ge=1, le=LONGEST_WAIT)] = 300_000


class Close(Arguments, frozen=True, kw_only=True):
    agent: Call


class _Sub:
    """One sub-agent."""

    def __init__(
        self, id: str, loop: Loop, mailbox: Mailbox, interrupt: Callable[[Interrupted], None]
    ) -> None:
        self.id = id
        self._interrupt = interrupt
        self.loop = loop
        self.mailbox = mailbox
        self.task: asyncio.Task[str] | None = None

    @property
    def runs(self) -> bool:
        return self.task is not None and not self.task.done()

    def start(self, text: str) -> None:
        self.task = asyncio.get_running_loop().create_task(self._run(text))

    async def _run(self, text: str) -> str:
        try:
            return (await self.loop.run(Message.user(text))).text
        except Interrupted as error:
            self._interrupt(error)
            return "was ended"
        except CorralError as error:
            return f"failed: {error.message}"

    def answer_text(self) -> str:
        if self.task is None or not self.task.done():
            return "still works"
        return "was closed" if self.task.cancelled() else self.task.result()


class Subagents:
    """The sub-agents of a session. Those that still run when a turn ends are ended."""

    def __init__(self, make: Make, emit: Emit, interrupt: Callable[[Interrupted], None]) -> None:
        """``interrupt`` is called if a person ends the run from a permission request of a
        sub-agent."""
        self._make = make
        self._emit = emit
        self._interrupt = interrupt
        self._started = 0
        self._subs: dict[str, _Sub] = {}

    def tools(self) -> list[BuiltinTool]:
        return [
            _tool(Spawn, self._spawn, "spawn_agent", "Start task", SPAWN),
            _tool(Send, self._send, "send_input", "Message agent", SEND),
            _tool(Wait, self._wait, "wait", "Wait agents", WAIT),
            _tool(
                Close, self._close, "close_agent", "End agent", "Ends an agent that you started."
            ),
        ]

    async def end(self) -> int:
        """End the sub-agents that run. Return how many there were."""
        running = [sub.task for sub in self._subs.values() if sub.task and not sub.task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        return len(running)

    async def _spawn(self, _: Workspace, args: Spawn, __: Output) -> Outcome:
        if sum(sub.runs for sub in self._subs.values()) >= MAX_SUBAGENTS:
            raise ToolError(
                f"{MAX_SUBAGENTS} agents are running already: wait for one, or close it"
            )
        self._started += 1  # the id of a closed agent is not used again
        id = f"agent-{self._started}"
        mailbox = Mailbox()
        loop = self._make(self._under(current_call.get(), id), mailbox)
        sub = _Sub(id, loop, mailbox, self._interrupt)
        self._subs[id] = sub
        sub.start(args.task)
        return outcome(f"{id} works on the task", READ)

    async def _send(self, _: Workspace, args: Send, __: Output) -> Outcome:
        sub = self._found(args.agent)
        if sub.runs:
            sub.mailbox.steer(args.text)
            return outcome(f"{sub.id} gets the message after its current tool calls", READ)
        sub.start(args.text)
        return outcome(f"{sub.id} continues", READ)

    async def _wait(self, _: Workspace, args: Wait, __: Output) -> Outcome:
        named = [self._found(id) for id in args.agents]
        subs = named or [sub for sub in self._subs.values() if sub.task is not None]
        tasks = [sub.task for sub in subs if sub.task is not None]
        if not tasks:
            raise ToolError("no agent was started")
        await asyncio.wait(tasks, timeout=args.timeout_ms / 1000)
        return outcome("\n\n".join(f"{sub.id}: {sub.answer_text()}" for sub in subs), READ)

    async def _close(self, _: Workspace, args: Close, __: Output) -> Outcome:
        sub = self._found(args.agent)
        if sub.task is not None and not sub.task.done():
            sub.task.cancel()
            await asyncio.wait([sub.task])
        del self._subs[sub.id]
        return outcome(f"{sub.id} is closed", READ)

    def _found(self, id: str) -> _Sub:
        if id not in self._subs:
            raise ToolError(
                f"there is no agent {id!r}; there are: {', '.join(self._subs) or 'none'}"
            )
        return self._subs[id]

    def _under(self, parent: str, id: str) -> Emit:
        """Emits the events of a sub-agent with its parent, and with call ids of its own."""

        def emit(item: RawEvent) -> None:
            if isinstance(item, TurnEnd):
                return
            event = Text(item) if isinstance(item, str) else item
            changes: dict[str, str] = {"parent": parent}
            for name in ("call_id", "request_id"):
                value = getattr(event, name, None)
                if value:
                    changes[name] = f"{id}/{value}"
            self._emit(replace(event, **changes))

        return emit


def _tool(
    arguments: type[Arguments],
    run: Callable[..., Awaitable[Outcome]],
    name: str,
    title: str,
    description: str,
) -> BuiltinTool:
    return define_tool(
        ToolDefinition(
            arguments=arguments,
            run=run,
            name=name,
            kind="think",
            description=description,
            limits=READ,
            title=title,
        )
    )
