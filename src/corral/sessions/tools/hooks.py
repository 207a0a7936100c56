"""Hooks around tool calls, and ready-made ones.

A ready-made hook counts for one run: create a new one for the next run. Hooks of this module
decide without waiting, so parallel calls cannot race past each other.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import msgspec

from corral.errors import ConfigError
from corral.events import ToolKind, ToolStatus
from corral.values import JsonObject


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
    """What the agent gets back."""

    text: str
    status: ToolStatus = "success"

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
        return os.path.realpath(os.path.join(root, path)) if isinstance(path, str) else None

    def before(call: ToolRequest) -> HookVerdict:
        path = path_of(call, writes)
        if path is None or path in known or not os.path.exists(path):
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
    count.

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
            return Deny(f"{call.name} may be called {most} times, and was: go on without it")
        made[call.name] += 1
        return None

    return Hook(before)
