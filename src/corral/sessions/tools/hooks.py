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
from corral.events import ToolStatus
from corral.values import JsonObject


class Call(msgspec.Struct, frozen=True):
    """One call, as a hook sees it."""

    id: str
    name: str
    arguments: JsonObject


class HookAnswer(msgspec.Struct, frozen=True):
    """What the agent gets back."""

    text: str
    status: ToolStatus = "success"

    @property
    def ok(self) -> bool:
        return self.status == "success"


class Deny(msgspec.Struct, frozen=True):
    """The hook denies the call. The agent gets the reason."""

    reason: str


class Change(msgspec.Struct, frozen=True):
    """The hook allows the call with other arguments, which are checked again."""

    arguments: JsonObject


HookVerdict: TypeAlias = Deny | Change | None
Before: TypeAlias = Callable[[Call], HookVerdict | Awaitable[HookVerdict]]
After: TypeAlias = Callable[[Call, HookAnswer], HookAnswer | Awaitable[HookAnswer | None] | None]


class Hook(msgspec.Struct, frozen=True):
    """``before`` allows (None), denies or changes a call; ``after`` may replace its answer.

    ``after`` gets every answer except those to wrong arguments and unknown tools. A hook that
    raises stops the call: a check that fails must not allow it.
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
    """
    known: set[str] = set()

    def path_of(call: Call, names: Mapping[str, str]) -> str | None:
        path = call.arguments.get(names[call.name]) if call.name in names else None
        return os.path.realpath(os.path.join(root, path)) if isinstance(path, str) else None

    def before(call: Call) -> HookVerdict:
        path = path_of(call, writes)
        if path is None or path in known or not os.path.exists(path):
            return None
        return Deny(f"{path} exists and was not read yet: read it first ({', '.join(reads)})")

    def after(call: Call, answer: HookAnswer) -> None:
        path = path_of(call, reads) or path_of(call, writes)
        if answer.ok and path is not None:
            known.add(path)

    return Hook(before, after)


def required_order(*names: str) -> Hook:
    """Each of these tools may be called only after all named before it have succeeded. Other tools
    are not restricted."""
    done: set[str] = set()

    def before(call: Call) -> HookVerdict:
        if call.name not in names:
            return None
        missing = [name for name in names[: names.index(call.name)] if name not in done]
        return Deny(f"{call.name} comes after {', '.join(missing)}") if missing else None

    def after(call: Call, answer: HookAnswer) -> None:
        if answer.ok:
            done.add(call.name)

    return Hook(before, after)


def call_budget(total: int | None = None, **each: int) -> Hook:
    """At most ``total`` calls, and at most the given number for each named tool. Failed calls
    count."""
    for name, most in {"total": total, **each}.items():
        if most is not None and most < 0:
            raise ConfigError(f"a budget cannot be negative: {name}={most}")
    made: Counter[str] = Counter()

    def before(call: Call) -> HookVerdict:
        if total is not None and made.total() >= total:
            return Deny(f"all {total} tool calls of this run are made: finish without")
        most = each.get(call.name)
        if most is not None and made[call.name] >= most:
            return Deny(f"{call.name} may be called {most} times, and was: go on without it")
        made[call.name] += 1
        return None

    return Hook(before)
