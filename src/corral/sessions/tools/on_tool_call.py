"""``on_tool_call``: a function of the caller that decides about each tool call of the agent.

Where it stands: the policy comes first, and a call that it denies is not shown to the function.
Then the function decides. Then the policy judges the call again, with its edited input, and asks a
person if it must. So the function can only deny, or edit within the policy.

What can go wrong, and what happens then:

- It raises: the call is denied, and the reason is the error.
- It returns anything but ``None``, ``Allow``, ``Deny`` or ``Edit``: the call is denied.
- It takes longer than ``TIMEOUT``: the call is denied. The agent is not idle meanwhile, but the
  run's own ``timeout`` goes on.
- The run is cancelled, or the agent takes its question back: an async function is cancelled. A
  function that is not async runs in a thread, which cannot be stopped; its answer is not used.
- Several calls at once: the function is called for one of them after the other.
- The agent cannot edit a call: it is denied.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TypeAlias

import msgspec

from corral.errors import ConfigError
from corral.sessions.tools.hooks import Allow, Before, Deny, Edit, ToolRequest
from corral.sessions.tools.tools import describe_error, maybe_await
from corral.system.threads import in_own_thread

TIMEOUT = 300.0
"""Seconds that one decision may take."""

Verdict: TypeAlias = Allow | Deny | Edit


class ToolCallHook:
    """The caller's function, for the calls of one prompt."""

    def __init__(
        self, function: Before, *, agent: str = "", cwd: str = "", timeout: float = TIMEOUT
    ) -> None:
        """Raises ``ConfigError`` if ``function`` cannot be called."""
        if not callable(function):
            raise ConfigError(
                f"on_tool_call must be a function, got: {type(function).__name__}",
                hint="It takes a corral.ToolRequest and returns None, Deny(…) or Edit(…).",
            )
        self._function = function
        self._agent = agent
        self._cwd = cwd
        self._timeout = timeout
        self._one_at_a_time = asyncio.Lock()

    async def decide(self, request: ToolRequest) -> Verdict:
        """What the function decides. Raises nothing but ``CancelledError``."""
        shown = msgspec.structs.replace(request, agent=self._agent, cwd=self._cwd)
        async with self._one_at_a_time:
            deadline = asyncio.timeout(self._timeout)
            try:
                async with deadline:
                    verdict = await self._call(shown)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                return Deny(f"on_tool_call failed: {describe_error(error)}")
            except (Exception, SystemExit) as error:
                if deadline.expired():
                    return Deny(f"on_tool_call did not decide in {self._timeout:g} s")
                return Deny(f"on_tool_call failed: {describe_error(error)}")
        return _checked(verdict)

    async def _call(self, request: ToolRequest) -> object:
        function = self._function
        inner = function if inspect.isroutine(function) else type(function).__call__
        if inspect.iscoroutinefunction(inner):
            return await maybe_await(function(request))
        return await maybe_await(await in_own_thread(lambda: function(request)))


def _checked(verdict: object) -> Verdict:
    match verdict:
        case None:
            return Allow()
        case Edit(arguments=arguments) if _is_json_object(arguments):
            return verdict
        case Edit():
            return Deny("on_tool_call returned an Edit whose arguments are not a JSON object")
        case Allow():
            return verdict
        case Deny(reason=reason):
            return Deny(str(reason))
        case _:
            shown = repr(verdict)[:100]
            return Deny(f"on_tool_call returned {shown}: it must be None, Allow, Deny or Edit")


def _is_json_object(arguments: object) -> bool:
    try:
        decoded: object = msgspec.json.decode(msgspec.json.encode(arguments))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return False
    return isinstance(decoded, dict)
