"""Permission requests: answered by the policy or by a person, or denied.

A request to read or write is also judged by its paths, after links are resolved and at the moment
of the answer:

- A write is denied without asking if it is outside the workspace and the writable folders, of a
  protected name (``corral.protected_paths``), or of files that the request does not name. No policy
  allows it.
- A read outside follows the policy for commands: whoever may run commands can read anything.
- An unlimited policy has no workspace. In ``native`` mode a person may allow what is outside.

A person is asked one question at a time, so that one answer cannot approve two things. The protocol
modules choose the agent's option for a decision.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Collection
from typing import TypeAlias, get_args

import msgspec

from corral.events import Decider, Decision, PermissionDecision, PermissionRequest
from corral.options import PermissionMode, RunOptions
from corral.policy import CAPABILITY_OF, Action, Policy, Ruling
from corral.protocol.named_paths import named_paths
from corral.protocol.ndjson import RawEvent
from corral.protocol.stream_json.client import StreamJsonClient, StreamPermissionRequest
from corral.system.path_guard import PathGuard

Asker: TypeAlias = Callable[[PermissionRequest], Awaitable[Decision] | Decision]
"""Answers permission requests: a person at a terminal, a web page, a callback."""

_VALID_DECISIONS: tuple[str, ...] = get_args(Decision)


class PermissionAnswer(msgspec.Struct, frozen=True):
    decision: Decision
    by: Decider
    rule: str


class PermissionBroker:
    def __init__(
        self,
        policy: Policy,
        ask: Asker | None = None,
        timeout: float = 300.0,
        mode: PermissionMode = "prompt",
        *,
        guard: PathGuard | None = None,
    ) -> None:
        """``timeout``: seconds a question may stay unanswered before it is denied. ``guard``
        judges the paths of requests; None where the caller does so itself."""
        self._guard = None if policy.is_unlimited else guard
        self._mode = mode
        self._policy = policy
        self._ask = ask
        self._timeout = timeout
        self._turn = asyncio.Lock()

    @property
    def is_unlimited(self) -> bool:
        """Whether the policy knows no workspace."""
        return self._policy.is_unlimited

    def policy_answer(
        self, action: Action, paths: Collection[str] | None = None
    ) -> PermissionAnswer | None:
        """The policy's answer; None if a person decides. ``paths`` are all paths that the
        request names; None for a request that is not about files."""
        ruling = self._policy.evaluate(action)
        if ruling.verdict != "deny" and paths is not None:
            ruling = self._path_ruling(action, paths) or ruling
        if ruling.verdict == "allow":
            return PermissionAnswer("allow_once", "policy", ruling.rule)
        if ruling.verdict == "ask" and self._mode != "prompt":
            answer_given: Decision = "allow_once" if self._mode == "auto" else "deny"
            return PermissionAnswer(
                answer_given, "policy", f"{ruling.rule}, permission_mode={self._mode}"
            )
        if ruling.verdict == "deny" or self._ask is None:
            suffix = "" if ruling.verdict == "deny" else ", and nobody to ask"
            return PermissionAnswer("deny", "policy", ruling.rule + suffix)
        return None

    def confirm(
        self, answer: PermissionAnswer, action: Action, paths: Collection[str]
    ) -> PermissionAnswer:
        """A person's answer, or a denial if the named paths have become denied meanwhile."""
        if not answer.decision.startswith("allow"):
            return answer
        ruling = self._path_ruling(action, paths)
        if ruling is not None and ruling.verdict == "deny":
            return PermissionAnswer("deny", "policy", ruling.rule)
        return answer

    def _path_ruling(self, action: Action, paths: Collection[str]) -> Ruling | None:
        """The ruling on the paths of a request; None if they allow it."""
        capability = CAPABILITY_OF[action.kind]
        if self._guard is None or capability not in ("read", "write"):
            return None
        refusal = self._guard.refusal(paths, "write" if capability == "write" else "read")
        if capability == "write" and not paths:
            refusal = "the request does not name the files it writes"
        if refusal is None:
            return None
        if self._policy.mode == "native" and self._mode == "prompt":
            return Ruling("ask", refusal)
        if capability == "read" and self._policy.allow_tools is None:
            shell = self._policy.verdict("shell")
            return None if shell == "allow" else Ruling(shell, f"{refusal}, shell={shell}")
        return Ruling("deny", refusal)

    async def ask_person(self, request: PermissionRequest) -> PermissionAnswer:
        """Ask, and wait for the answer. A question that fails, or takes too long, is denied."""
        if self._ask is None:
            return PermissionAnswer("deny", "policy", "nobody to ask")
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout):
                    answer_given = self._ask(request)
                    decision = (
                        await answer_given if isinstance(answer_given, Awaitable) else answer_given
                    )
            except TimeoutError:
                return PermissionAnswer("deny", "timeout", f"no answer in {self._timeout:g} s")
            except Exception as error:
                return PermissionAnswer("deny", "person", f"the question failed: {error}")
        if decision not in _VALID_DECISIONS:
            return PermissionAnswer("deny", "person", f"not an answer: {decision!r}")
        return PermissionAnswer(decision, "person", "asked")


def guard_of(run: RunOptions, cwd: str) -> PathGuard:
    """The folders of a session."""
    protects = not run.policy.is_unlimited
    return PathGuard(cwd, run.include_directories, run.policy.writable, protects=protects)


Write: TypeAlias = Callable[[bytes], None]
Granted: TypeAlias = tuple[str, str | None]
"""A tool, and the command where it is one that runs commands."""


class PermissionQuestions:
    """The permission requests of one turn. ``write`` sends to the agent; it is held weakly,
    because a pending question must not keep a dropped session's process alive. ``granted``
    collects what a person allowed for the session."""

    def __init__(
        self,
        control: StreamJsonClient,
        run: RunOptions,
        cwd: str,
        ask: Asker | None,
        write: Write,
        *,
        granted: set[Granted],
    ) -> None:
        self._control = control
        guard = guard_of(run, cwd)
        self._broker = PermissionBroker(run.policy, ask, mode=run.permission_mode, guard=guard)
        self._agent = weakref.WeakMethod(write)
        self._open: dict[str, asyncio.Task[None]] = {}
        self._cancelled: list[asyncio.Task[None]] = []
        self._granted = granted
        self.inbox: list[RawEvent] = []
        """What was decided since it was last looked at."""

    @property
    def is_asking(self) -> bool:
        """Whether the agent waits for a person's answer."""
        return bool(self._open)

    def take(self, items: list[RawEvent]) -> list[RawEvent]:
        """The same items, with the decisions that the policy makes itself."""
        out: list[RawEvent] = []
        for item in items:
            out.append(item)
            if isinstance(item, PermissionRequest):
                ask = self._control.open_requests.get(item.request_id)
                if ask is not None:
                    self._start_question(ask, item, out)
            elif isinstance(item, PermissionDecision):  # the agent took its question back
                question = self._open.pop(item.request_id, None)
                if question is not None:
                    question.cancel()
                    self._cancelled.append(question)
        return out

    async def close(self) -> None:
        """No question outlives its turn."""
        questions = [*self._open.values(), *self._cancelled]
        for question in self._open.values():
            question.cancel()
        self._open.clear()
        self._cancelled.clear()
        if questions:
            await asyncio.wait(questions)

    def _start_question(
        self, ask: StreamPermissionRequest, request: PermissionRequest, out: list[RawEvent]
    ) -> None:
        answer = self._policy_answer(ask)
        if answer is not None:
            self._send_decision(ask, answer, out)
            return
        task = asyncio.get_running_loop().create_task(self._ask_person(ask, request))
        self._open[ask.request_id] = task

    def _policy_answer(self, ask: StreamPermissionRequest) -> PermissionAnswer | None:
        answer = self._broker.policy_answer(_action(ask), _paths(ask))
        if answer is None and (ask.name, ask.command) in self._granted:
            return PermissionAnswer("allow_session", "person", "asked before")
        return answer

    async def _ask_person(self, ask: StreamPermissionRequest, request: PermissionRequest) -> None:
        answer = await self._broker.ask_person(request)
        answer = self._broker.confirm(answer, _action(ask), _paths(ask))
        if self._open.pop(ask.request_id, None) is not None:
            if answer.decision == "allow_session":
                self._granted.add((ask.name, ask.command))
            self._send_decision(ask, answer, self.inbox)

    def _send_decision(
        self, ask: StreamPermissionRequest, answer: PermissionAnswer, out: list[RawEvent]
    ) -> None:
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


def _action(ask: StreamPermissionRequest) -> Action:
    return Action(ask.name, ask.kind, ask.command, own=ask.own)


def _paths(ask: StreamPermissionRequest) -> tuple[str, ...]:
    return (*ask.paths, *named_paths(ask.name, ask.kind, ask.input))
