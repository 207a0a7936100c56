"""Hooks around tool calls, and ready-made ones.

A ready-made hook counts for one run: create a new one for the next run. Hooks of this module
decide without waiting, so parallel calls cannot race past each other.

``on_tool_call`` (``ToolCallHook``) is a function of the caller that decides about each tool call of
the agent. Where it stands: the policy comes first, and a call that it denies is not shown to the
function. Then the function decides. Then the policy judges the call again, with its edited input,
and asks a person if it must. So the function can only deny, or edit within the policy.

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
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeAlias, TypeVar, cast

import msgspec

from corral._core.terminal_text import counted
from corral._system import fs
from corral._system.threads import in_own_thread
from corral.errors import ConfigError
from corral.events import ToolKind, ToolStatus
from corral.messages import Image
from corral.values import JsonObject

T = TypeVar("T")


class ToolRequest(msgspec.Struct, frozen=True):
    """One tool call that is about to be made, as a hook sees it.

    ``name`` and ``arguments`` are the agent's own. Some agents ask about a call without its
    arguments: then ``arguments`` has what is known, and ``command`` and ``paths`` have the rest.
    """

    id: str
    name: str
    arguments: JsonObject
    kind: ToolKind = "mcp"
    """What the tool does, whatever the agent calls it: ``execute``, ``edit``, ``read`` …"""
    command: str | None = None
    """The command line, of a tool that runs commands."""
    paths: tuple[str, ...] = ()
    """The paths that the call names, as the agent writes them."""
    title: str | None = None
    agent: str = ""
    cwd: str = ""
    """The working directory of the session."""


class HookAnswer(msgspec.Struct, frozen=True):
    """What the agent gets back.

    ::

        def shorten(call: corral.ToolRequest, answer: corral.HookAnswer) -> corral.HookAnswer:
            return corral.HookAnswer(answer.text[:1000], answer.status)


        tools = corral.Tools([weather], hooks=[corral.Hook(after=shorten)])
    """

    text: str
    """The text of the result, or why there is none."""
    status: ToolStatus = "success"
    images: tuple[Image, ...] = ()
    """Pictures, with their bytes and types."""

    @property
    def ok(self) -> bool:
        return self.status == "success"


class Allow(msgspec.Struct, frozen=True):
    """The hook has no objection. The policy still applies.

    ::

        def decide(request: corral.ToolRequest) -> corral.Allow | corral.Deny:
            return corral.Allow() if request.kind == "read" else corral.Deny("only reading")

        corral.run_sync("gemini-cli", "Look around", on_tool_call=decide)
    """


class Deny(msgspec.Struct, frozen=True):
    """The hook denies the call. The agent gets the reason.

    ::

        corral.Deny("the tests must not be changed")
    """

    reason: str


class Edit(msgspec.Struct, frozen=True):
    """The hook wants the call with these arguments, all of them. They are checked again.

    ::

        def limit(request: corral.ToolRequest) -> corral.Edit:
            return corral.Edit({**request.arguments, "limit": 100})
    """

    arguments: JsonObject


HookVerdict: TypeAlias = Allow | Deny | Edit | None
"""``None`` means ``Allow()``."""
Before: TypeAlias = Callable[[ToolRequest], HookVerdict | Awaitable[HookVerdict]]
After: TypeAlias = Callable[
    [ToolRequest, HookAnswer], HookAnswer | Awaitable[HookAnswer | None] | None
]


class Hook(msgspec.Struct, frozen=True):
    """``before`` allows, denies or edits a call; ``after`` may replace its answer.

    ``after`` gets every answer except those to wrong arguments and unknown tools. A hook that
    raises stops the call: a check that fails must not allow it.

    ::

        def log(request: corral.ToolRequest) -> None:
            print(request.name, request.arguments)

        tools = corral.Tools([weather], hooks=[corral.Hook(before=log)])
    """

    before: Before | None = None
    after: After | None = None


def read_before_write(
    reads: Mapping[str, str], writes: Mapping[str, str], *, root: str | os.PathLike[str] = "."
) -> Hook:
    """A file must be read before it is overwritten.

    ``reads`` and ``writes`` say which argument of which tool names the file:
    ``read_before_write({"read_file": "path"}, {"write_file": "path"})``. A file that
    does not exist may be written. A file that was read or written successfully is known.

    ::

        hook = corral.read_before_write({"read_file": "path"}, {"write_file": "path"})
    """
    known: set[str] = set()

    def path_of(call: ToolRequest, names: Mapping[str, str]) -> str | None:
        path = call.arguments.get(names[call.name]) if call.name in names else None
        return fs.real_path(os.path.join(root, path)) if isinstance(path, str) else None

    def before(call: ToolRequest) -> HookVerdict:
        path = path_of(call, writes)
        if path is None or path in known or not fs.exists(path):
            return None
        return Deny(f"{path} exists and was not read yet: read it first ({', '.join(reads)})")

    def after(call: ToolRequest, answer: HookAnswer) -> None:
        path = path_of(call, reads) or path_of(call, writes)
        if answer.ok and path is not None:
            known.add(path)

    return Hook(before, after)


def required_order(*names: str) -> Hook:
    """Each of these tools may be called only after all named before it have succeeded. Other tools
    are not restricted.

    ::

        hook = corral.required_order("plan", "review", "publish")
    """
    done: set[str] = set()

    def before(call: ToolRequest) -> HookVerdict:
        if call.name not in names:
            return None
        missing = [name for name in names[: names.index(call.name)] if name not in done]
        return Deny(f"{call.name} comes after {', '.join(missing)}") if missing else None

    def after(call: ToolRequest, answer: HookAnswer) -> None:
        if answer.ok:
            done.add(call.name)

    return Hook(before, after)


def call_budget(total: int | None = None, **each: int) -> Hook:
    """At most ``total`` calls, and at most the given number for each named tool. Failed calls
    count, but not those that a hook before this one denied.

    ::

        tools = corral.Tools([weather], hooks=[corral.call_budget(20, weather=5)])
    """
    for name, most in {"total": total, **each}.items():
        if most is not None and most < 0:
            raise ConfigError(f"a budget cannot be negative: {name}={most}")
    made: Counter[str] = Counter()

    def before(call: ToolRequest) -> HookVerdict:
        if total is not None and made.total() >= total:
            return Deny(f"all {total} tool calls of this run are made: finish without")
        most = each.get(call.name)
        if most is not None and made[call.name] >= most:
            times = counted(most, "time")
            return Deny(f"{call.name} may be called {times}, and was: go on without it")
        made[call.name] += 1
        return None

    return Hook(before)


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
            try:
                verdict = await call_function(partial(self._function, shown), self._timeout)
            except CallFailed as failure:
                late = f"did not decide in {self._timeout:g} s"
                return Deny(f"on_tool_call {late if failure.is_late else failure}")
        return _checked(verdict)


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


class CallFailed(Exception):
    """A function of the caller did not return. The text says why, after the function's name."""

    def __init__(self, why: str, *, is_late: bool = False) -> None:
        super().__init__(why)
        self.is_late = is_late


async def call_function(call: Callable[[], object], timeout: float | None) -> object:
    """What a function of the caller returns, awaited if it is async; one that is not runs in
    its own thread. Raises ``CallFailed``, and ``CancelledError`` if this task is cancelled."""
    deadline = asyncio.timeout(timeout)
    try:
        async with deadline:
            is_async = inspect.iscoroutinefunction(inner_function(call))
            returned = call() if is_async else await in_own_thread(call)
            return await returned if inspect.isawaitable(returned) else returned
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise CallFailed(f"failed: {describe_error(error)}") from error
    except (Exception, SystemExit) as error:
        is_late = deadline.expired()
        raise CallFailed(f"failed: {describe_error(error)}", is_late=is_late) from error


def inner_function(function: Callable[..., object]) -> Callable[..., object]:
    """The function with the parameter names: inside partials, or of a callable object."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


async def maybe_await(value: T | Awaitable[T]) -> T:
    """The value; if it is awaitable, its result."""
    return await cast("Awaitable[T]", value) if isinstance(value, Awaitable) else value


def describe_error(error: BaseException) -> str:
    """The error's type and text."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
