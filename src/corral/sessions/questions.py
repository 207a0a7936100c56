"""The questions of an agent whose stream goes both ways: put to the policy, or a person."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import TypeAlias

from corral.events import PermissionDecision, PermissionRequest
from corral.options import Run
from corral.policy import Action
from corral.sessions.broker import Answer, Asker, Broker, guard_of
from corral.wire.control import Ask, Control
from corral.wire.named_paths import named_paths
from corral.wire.stream import Item

Write: TypeAlias = Callable[[bytes], None]
Granted: TypeAlias = tuple[str, str | None]
"""A tool, and the command where it is one that runs commands."""


class Questions:
    """``write`` reaches the agent, and is held weakly: a question that waits for a person must
    not keep a dropped session's process alive. ``granted`` is what a person allowed for the
    whole session; it grows."""

    def __init__(
        self,
        control: Control,
        run: Run,
        cwd: str,
        ask: Asker | None,
        write: Write,
        *,
        granted: set[Granted],
    ) -> None:
        self._control = control
        guard = guard_of(run, cwd)
        self._broker = Broker(run.policy, ask, mode=run.permission_mode, guard=guard)
        self._agent = weakref.WeakMethod(write)
        self._open: dict[str, asyncio.Task[None]] = {}
        self._leaving: list[asyncio.Task[None]] = []
        self._granted = granted
        self.inbox: list[Item] = []
        """What was decided since it was last looked at."""

    @property
    def is_asking(self) -> bool:
        """Whether the agent waits for a person's answer."""
        return bool(self._open)

    def take(self, items: list[Item]) -> list[Item]:
        """The same items, with the answers that need nobody."""
        out: list[Item] = []
        for item in items:
            out.append(item)
            if isinstance(item, PermissionRequest):
                ask = self._control.asks.get(item.request_id)
                if ask is not None:
                    self._put(ask, item, out)
            elif isinstance(item, PermissionDecision):  # the agent took its question back
                question = self._open.pop(item.request_id, None)
                if question is not None:
                    question.cancel()
                    self._leaving.append(question)
        return out

    async def close(self) -> None:
        """No question outlives its turn."""
        questions = [*self._open.values(), *self._leaving]
        for question in self._open.values():
            question.cancel()
        self._open.clear()
        self._leaving.clear()
        if questions:
            await asyncio.wait(questions)

    def _put(self, ask: Ask, request: PermissionRequest, out: list[Item]) -> None:
        answer = self._at_once(ask)
        if answer is not None:
            self._decided(ask, answer, out)
            return
        task = asyncio.get_running_loop().create_task(self._wait(ask, request))
        self._open[ask.request_id] = task

    def _at_once(self, ask: Ask) -> Answer | None:
        answer = self._broker.at_once(_action(ask), _paths(ask))
        if answer is None and (ask.name, ask.command) in self._granted:
            return Answer("allow_session", "person", "asked before")
        return answer

    async def _wait(self, ask: Ask, request: PermissionRequest) -> None:
        answer = await self._broker.put(request)
        answer = self._broker.confirmed(answer, _action(ask), _paths(ask))
        if self._open.pop(ask.request_id, None) is not None:
            if answer.decision == "allow_session":
                self._granted.add((ask.name, ask.command))
            self._decided(ask, answer, self.inbox)

    def _decided(self, ask: Ask, answer: Answer, out: list[Item]) -> None:
        out.append(
            PermissionDecision(
                ask.request_id,
                answer.decision,
                answer.by,
                call_id=ask.call_id,
                rule=answer.rule,
            )
        )
        reply = self._control.answer(
            ask,
            allow=answer.decision.startswith("allow"),
            message=f"Not allowed ({answer.rule}). Do not try it in another way.",
            stop=answer.decision == "cancel",
        )
        write = self._agent()
        if write is not None:
            write(reply)


def _action(ask: Ask) -> Action:
    return Action(ask.name, ask.kind, ask.command, own=ask.own)


def _paths(ask: Ask) -> tuple[str, ...]:
    return (*ask.paths, *named_paths(ask.name, ask.kind, ask.input))
