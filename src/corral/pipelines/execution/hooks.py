"""``tool_hooks.pre`` and ``tool_hooks.post``: a command around each tool call of an agent's node.

The command gets the call as JSON on its stdin: ``{"hook": "pre", "run_id", "node", "call_id",
"tool", "arguments"}``, after the call also ``"status"`` and ``"output"``. One before the call
that does not exit with 0 skips the call, and what it said is told to the agent; so does one
that hangs or cannot be started: what guards must not fail open. One after it only looks on.

Our own agent asks before each of its calls. No other can be made to ask about every call, so
there ``tool_hooks.pre`` is an error; ``tool_hooks.post`` is run from what it reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from corral.errors import ConfigError, CorralError
from corral.events import Error, Event, ToolResult, ToolUse
from corral.pipelines.execution.handlers import NodeContext
from corral.pipelines.execution.resources import NodeResources
from corral.pipelines.execution.shell import command_of, run_command, shortened, stage_env
from corral.sessions.tools.hooks import Call, Deny, Hook, HookAnswer
from corral.sessions.tools.tools import Tools
from corral.system import config
from corral.values import Json

T = TypeVar("T")

TIMEOUT = 60.0
"""Seconds for one hook."""
SHOWN = 64 * 1024
"""Bytes of a call's output that a hook is given."""


def hooks_of(work: NodeContext, resources: NodeResources, agent: str) -> Hooks | None:
    """The node's own, else the graph's. Raises ``ConfigError`` where the agent cannot have
    them."""
    pre, post = (
        str(work.node.attrs.get(key, work.graph.attrs.get(key, ""))).strip()
        for key in ("tool_hooks.pre", "tool_hooks.post")
    )
    if not pre and not post:
        return None
    record = config.find_agent(agent)
    in_process = record.transport.kind == "builtin"
    if pre and not in_process:
        raise ConfigError(
            f"{work.node.id}: tool_hooks.pre is not available with {record.name}:"
            " it does not ask before each of its calls",
            hint="Use the built-in agent: agent=corral and a model, or model=vendor:name alone.",
        )
    return Hooks(work, resources, pre, post, asks=in_process)


class Hooks:
    """The commands around the calls of one prompt."""

    def __init__(
        self, work: NodeContext, resources: NodeResources, pre: str, post: str, *, asks: bool
    ) -> None:
        self._work = work
        self._resources = resources
        self._pre = pre
        self._post = post
        self._asks = asks
        hook = Hook(self._before if pre else None, self._after if post else None)
        self.tools = Tools([], agent_hooks=[hook]) if asks else None

    async def _before(self, call: Call) -> Deny | None:
        told = self._told("pre", call.id, call.name, call.arguments)
        try:
            wrong = await self._ran(self._pre, told)
        except CorralError as error:
            wrong = error.message
        return None if wrong is None else Deny(wrong)

    async def _after(self, call: Call, answer: HookAnswer) -> None:
        told = self._told("post", call.id, call.name, call.arguments)
        await self._looked_on({**told, "status": answer.status, "output": answer.text})

    async def _looked_on(self, told: dict[str, Json]) -> None:
        said = told["output"]
        told["output"] = shortened(said, SHOWN) if isinstance(said, str) else said
        try:
            wrong = await self._ran(self._post, told)
        except CorralError as error:
            wrong = error.message
        if wrong is not None:
            said = f"tool_hooks.post after {told['tool']}: {wrong}"
            self._work.emit(Error("tool_hook", said, recoverable=True, level="warning"))

    def _told(self, hook: str, call_id: str, tool: str, arguments: Json) -> dict[str, Json]:
        return {
            "hook": hook,
            "run_id": self._work.run_id,
            "node": self._work.node.id,
            "call_id": call_id,
            "tool": tool,
            "arguments": arguments,
        }

    async def _ran(self, text: str, told: dict[str, Json]) -> str | None:
        """What went wrong; None where it exited with 0."""
        command, holes = command_of(text, self._work.context)
        names = {"ATTRACTOR_HOOK": str(told["hook"]), "ATTRACTOR_TOOL_NAME": str(told["tool"])}
        ran = await run_command(
            command,
            cwd=self._work.workspace,
            env={
                **self._resources.command_env(self._work),
                **holes,
                **stage_env(self._work),
                **names,
            },
            pass_env=self._resources.pass_env(self._work),
            timeout=TIMEOUT,
            stdin=msgspec.json.encode(told),
        )
        if ran.ok:
            return None
        ran = ran.redacted(self._resources.redactor)
        said = ran.stderr.strip() or ran.stdout.decode("utf-8", "replace").strip()
        how = f"exited with {ran.code}" if ran.code is not None else "was killed"
        how = f"did not end within {TIMEOUT:g}s" if ran.late else how
        return said[-2_000:] or f"the hook {how}"

    async def watched(
        self,
        emit: Callable[[Event], None],
        sent: Callable[[Callable[[Event], None]], Awaitable[T]],
    ) -> T:
        """What ``sent`` returns, which is given where to send the agent's events. When this
        returns, every call that was reported had its hook."""
        if self._asks or not self._post:
            return await sent(emit)
        calls: asyncio.Queue[dict[str, Json] | None] = asyncio.Queue()
        used: dict[str, ToolUse] = {}

        def hear(event: Event) -> None:
            emit(event)
            if isinstance(event, ToolUse):
                used[event.call_id] = event
            elif isinstance(event, ToolResult):
                use = used.pop(event.call_id, None)
                name = event.name or (use.name if use else "")
                told = self._told("post", event.call_id, name, use.input if use else None)
                told |= {"status": event.status, "output": event.output or event.error}
                calls.put_nowait(told)

        async def work_off() -> None:
            while (told := await calls.get()) is not None:
                await self._looked_on(told)

        failure: CorralError | None = None
        result: list[T] = []
        async with asyncio.TaskGroup() as group:
            group.create_task(work_off())
            try:
                result.append(await sent(hear))
            except CorralError as error:
                failure = error  # a group would wrap it
            calls.put_nowait(None)
        if failure is not None:
            raise failure
        return result[0]
