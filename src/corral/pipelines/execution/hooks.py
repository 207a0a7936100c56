"""``tool_hooks.pre`` and ``tool_hooks.post``: a command around each tool call of an agent's node.

The command gets the call as JSON on its stdin: ``{"hook": "pre", "run_id", "node", "call_id",
"tool", "arguments"}``, after the call also ``"status"`` and ``"output"``. If the command before
a call does not exit with 0, the call is skipped and the agent gets the output of the command. The
same happens if it hangs or cannot be started: a check that does not work must not permit anything.
The command after a call cannot change anything.

The built-in agent asks before each of its calls. No other agent can be made to ask about every
call, so with them ``tool_hooks.pre`` is an error. For ``tool_hooks.post`` their events are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from corral.errors import ConfigError, CorralError
from corral.events import Error, Event, ToolResult, ToolUse
from corral.pipelines.execution.handlers import NodeContext
from corral.pipelines.execution.shell import last_bytes, node_env, run_command, shell_command
from corral.sessions.tools.hooks import Deny, Hook, HookAnswer, ToolRequest
from corral.sessions.tools.tools import Tools
from corral.system import config
from corral.values import Json, JsonObject

T = TypeVar("T")

TIMEOUT = 60.0
"""Seconds for one hook."""
MAX_OUTPUT = 64 * 1024
"""Bytes of a call's output that a hook gets."""


def hooks_of(work: NodeContext, agent: str) -> Hooks | None:
    """The hooks of the node, else of the graph. Raises ``ConfigError`` if the agent cannot have
    them."""
    pre, post = (
        str(work.node.attrs.get(key, work.graph.attrs.get(key, ""))).strip()
        for key in ("tool_hooks.pre", "tool_hooks.post")
    )
    if not pre and not post:
        return None
    spec = config.find_agent(agent)
    in_process = spec.transport.kind == "builtin"
    if pre and not in_process:
        raise ConfigError(
            f"{work.node.id}: tool_hooks.pre is not available with {spec.name}:"
            " it does not ask before each of its calls",
            hint="Use the built-in agent: agent=corral and a model, or model=vendor:name alone.",
        )
    return Hooks(work, pre, post, asks=in_process)


class Hooks:
    """The commands around the tool calls of one prompt."""

    def __init__(self, work: NodeContext, pre: str, post: str, *, asks: bool) -> None:
        self._work = work
        self._pre = pre
        self._post = post
        self._asks = asks
        hook = Hook(self._before if pre else None, self._after if post else None)
        self.tools = Tools([], agent_hooks=[hook]) if asks else None

    async def _before(self, call: ToolRequest) -> Deny | None:
        wrong = await self._run(self._pre, self._input("pre", call.id, call.name, call.arguments))
        return None if wrong is None else Deny(wrong)

    async def _after(self, call: ToolRequest, answer: HookAnswer) -> None:
        given = self._input("post", call.id, call.name, call.arguments)
        await self._run_post({**given, "status": answer.status, "output": answer.text})

    async def _run_post(self, given: JsonObject) -> None:
        output = given["output"]
        given["output"] = last_bytes(output, MAX_OUTPUT) if isinstance(output, str) else output
        wrong = await self._run(self._post, given)
        if wrong is not None:
            message = f"tool_hooks.post after {given['tool']}: {wrong}"
            self._work.emit(Error("tool_hook", message, recoverable=True, level="warning"))

    def _input(self, hook: str, call_id: str, tool: str, arguments: Json) -> JsonObject:
        return {
            "hook": hook,
            "run_id": self._work.run_id,
            "node": self._work.node.id,
            "call_id": call_id,
            "tool": tool,
            "arguments": arguments,
        }

    async def _run(self, text: str, given: JsonObject) -> str | None:
        """Run a hook. Returns what went wrong; None if it exited with 0."""
        work, resources = self._work, self._work.resources
        names = {"ATTRACTOR_HOOK": str(given["hook"]), "ATTRACTOR_TOOL_NAME": str(given["tool"])}
        try:
            command, values = shell_command(text, work.context)
            done = await run_command(
                command,
                cwd=work.workspace,
                env={**resources.command_env(work), **values, **node_env(work), **names},
                pass_env=resources.pass_env(work),
                timeout=TIMEOUT,
                stdin=msgspec.json.encode(given),
            )
        except CorralError as error:
            return error.message
        if done.ok:
            return None
        return done.redacted(resources.redactor).output_tail() or f"the hook {done.end(TIMEOUT)}"

    async def watch(
        self,
        emit: Callable[[Event], None],
        send: Callable[[Callable[[Event], None]], Awaitable[T]],
    ) -> T:
        """Call ``send`` with the function that gets the agent's events, and return its result. When
        this returns, the hook has run for every call that was reported."""
        if self._asks or not self._post:
            return await send(emit)
        calls: asyncio.Queue[JsonObject | None] = asyncio.Queue()
        used: dict[str, ToolUse] = {}

        def on_event(event: Event) -> None:
            emit(event)
            if isinstance(event, ToolUse):
                used[event.call_id] = event
            elif isinstance(event, ToolResult):
                use = used.pop(event.call_id, None)
                name = event.name or (use.name if use else "")
                given = self._input("post", event.call_id, name, use.input if use else None)
                given |= {"status": event.status, "output": event.output or event.error}
                calls.put_nowait(given)

        async def run_hooks() -> None:
            while (given := await calls.get()) is not None:
                await self._run_post(given)

        failure: CorralError | None = None
        result: list[T] = []
        async with asyncio.TaskGroup() as group:
            group.create_task(run_hooks())
            try:
                result.append(await send(on_event))
            except CorralError as error:
                failure = error  # the task group would wrap it
            calls.put_nowait(None)
        if failure is not None:
            raise failure
        return result[0]
