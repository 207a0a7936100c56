"""The steps that a program calls: their paths, their digests, and the ends that it waits for.

Paths. The id of a step is made of the scopes that it is in, its name, and a number if the name was
used there before. A sub-workflow is a scope, and so is each task of ``asyncio.gather``, a
``TaskGroup`` or ``create_task``: they are numbered when they are made, in the order of the program.
A step gets its id when it is called, not when it is awaited. So ids do not depend on which step
ends first.

Digests. Each scope knows the steps in it, before it and in its tasks that have ended that may have
written the workspace. They are a part of the digest of every step that reads the workspace: if a
step is repeated that may write there, those after it that read there are repeated, too.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import Any, TypeVar

from msgspec.structs import replace

from corral._workflows.program_turn import ProgramEnd, ProgramTurn, Step, StepEnd, digest_of
from corral.errors import ConfigError, StepError
from corral.values import slug

T = TypeVar("T")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ASYNCIO = os.path.dirname(os.path.abspath(asyncio.__file__))


class Scope:
    """A part of the program in which names are counted."""

    __slots__ = ("before", "last", "parent", "prefix", "worktrees", "written")

    def __init__(self, prefix: str, parent: Scope | None) -> None:
        self.prefix = prefix
        self.parent = parent
        self.worktrees: tuple[str, ...] = () if parent is None else parent.worktrees
        """The branches of ``flow.parallel`` with their own worktrees, the innermost last."""
        self.written: frozenset[str] = frozenset() if parent is None else parent.written
        """The digests of steps that have ended and may have written the workspace."""
        self.before: tuple[str, ...] = () if parent is None else parent.last
        """The steps that the first step of the scope follows."""
        self.last: tuple[str, ...] = self.before
        """The steps that the next step of the scope follows: the last one that has ended, or those
        of the tasks that were joined."""

    def join(self, inner: Scope) -> None:
        """A scope in this one is over."""
        self.written |= inner.written
        if inner.last != inner.before:
            kept = (id for id in self.last if id not in inner.before)
            self.last = tuple(dict.fromkeys((*kept, *inner.last)))

    def wrote(self, digests: frozenset[str]) -> None:
        self.written |= digests


_scope: ContextVar[Scope] = ContextVar("scope")


class StepCalls:
    """Those of one program. All methods are called in the loop of the program."""

    def __init__(self, path: str, *, run_id: str, writes: bool) -> None:
        """``path``: the file of the program."""
        self.run_id = run_id
        self.writes = writes
        """Whether an agent may write if its step does not say what it may do."""
        self.is_over: bool = False
        """Whether the program has ended: then it can call no step."""
        self._path = path
        self._counts: dict[str, int] = {}
        self._ids: set[str] = set()
        self._called: dict[str, tuple[str, Coroutine[Any, Any, Any]]] = {}
        """By their paths, the steps that were not awaited yet, and the sub-workflows."""
        self._waiting: dict[str, asyncio.Future[StepEnd]] = {}
        self._steps: list[Step] = []
        self._stopped: list[str] = []
        self._main: Scope | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # For the program.

    def begin(self) -> None:
        """The current task is the main one."""
        self._loop = asyncio.get_running_loop()
        self._main = Scope("", None)
        _scope.set(self._main)

    def deliver(self, ends: Sequence[StepEnd]) -> None:
        """Wake what waits for these ends."""
        for end in ends:
            future = self._waiting.pop(end.id, None)
            if future is not None and not future.done():
                future.set_result(end)

    def take_turn(self, end: ProgramEnd | None) -> ProgramTurn:
        """What was called, and what is not awaited any more, since the last call."""
        turn = ProgramTurn(steps=self._steps, stopped=self._stopped, end=end)
        self._steps, self._stopped = [], []
        return turn

    def make_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **options: Any
    ) -> asyncio.Task[T]:
        """A task has its own scope: its steps are numbered apart from those of other tasks."""
        parent = _scope.get(None)
        if parent is None:  # the main task
            return asyncio.Task(work, loop=loop, **options)
        scope = Scope(self.prefix_for(work), parent)
        token = _scope.set(scope)
        try:
            task = asyncio.Task(work, loop=loop, **options)
        finally:
            _scope.reset(token)
        task.add_done_callback(lambda _: parent.join(scope))
        return task

    # For ``Flow``.

    def check_inside(self, name: str) -> None:
        """Raises ``ConfigError`` if a step is not called by the program that it belongs to."""
        scope = _scope.get(None)
        if scope is None:
            raise ConfigError(
                f"the step {name!r} is outside of a run of its workflow",
                hint="Steps run only in a function with @corral.workflow, while"
                " corral.workflows.run runs it.",
            )
        while scope.parent is not None:
            scope = scope.parent
        if scope is not self._main:
            raise ConfigError(
                f"the step {name!r} is called on the flow of another run, {self.run_id}",
                hint="Use the flow that the function of this run got.",
            )
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigError(
                f"the step {name!r} is called in another event loop",
                hint="Call steps in the function of the workflow itself: threads and loops of its"
                " own cannot wait for them.",
            )

    def path_of(self, name: str) -> str:
        """The path of what has this name here, with a number if the name was used before."""
        base = f"{_scope.get().prefix}{name}"
        while True:
            number = self._counts[base] = self._counts.get(base, 0) + 1
            path = base if number == 1 else f"{base}-{number}"
            if path not in self._ids:
                self._ids.add(path)
                return path

    def prefix_for(self, work: object) -> str:
        """The prefix of the steps of an awaitable that runs as a task. A step, a sub-workflow and
        what is no coroutine need none: they have their paths already."""
        code = getattr(work, "cr_code", None)
        if code is None or code.co_filename.startswith(_PACKAGE):
            return _scope.get().prefix
        name = slug(getattr(work, "__name__", ""), limit=40, allowed="_", fill="_")
        return f"{self.path_of(name.strip('_') or 'task')}."

    async def in_task(
        self, work: Awaitable[T], prefix: str, slots: asyncio.Semaphore, branch: str = ""
    ) -> T:
        """The main coroutine of a task of ``flow.parallel``. ``branch``: the task has its own
        worktree, under this name."""
        scope = _scope.get()
        scope.prefix = prefix
        if branch:
            scope.worktrees = (*scope.worktrees, branch)
        async with slots:
            return await work

    def within(
        self, name: str, call: Callable[[], Coroutine[Any, Any, T]]
    ) -> Coroutine[Any, Any, T]:
        """Run a sub-workflow in its own scope, which gets its path now."""
        self.check_inside(name)
        path = self.path_of(name)
        work = _run_in(f"{path}.", call)
        return self.called(path, self.line(), f"the workflow {name!r}", work)

    def called(
        self, path: str, line: str, what: str, work: Coroutine[Any, Any, T]
    ) -> Coroutine[Any, Any, T]:
        """``work`` is a step or a sub-workflow that was called in this line."""
        self._called[path] = f"{line}: {what} did not run: write await before its call", work
        return work

    def find_not_awaited(self) -> str:
        """The first call that was never awaited, as an error; empty: there is none."""
        missed = [
            (error, work)
            for error, work in self._called.values()
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED
        ]
        for _, work in missed:
            work.close()  # no warning of Python beside the error
        return missed[0][0] if missed else ""

    async def step(self, step: Step, *, reads: bool, writes: bool) -> StepEnd:
        """Wait for the end of this step. ``reads``, ``writes``: whether it uses the workspace.
        Raises ``StepError``."""
        end = await self.end_of(step, reads=reads, writes=writes)
        if end.error:
            raise error_of(step, end)
        return end

    async def end_of(self, step: Step, *, reads: bool, writes: bool) -> StepEnd:
        """``step``, also if it has failed."""
        self._called.pop(step.id, None)
        self.check_inside(step.name)
        if self.is_over:
            raise asyncio.CancelledError
        scope = _scope.get()
        digest = digest_of(step.digest, sorted(scope.written)) if reads else step.digest
        if scope.worktrees and step.kind == "visit":
            step = replace(step, worktrees=scope.worktrees)
            digest = digest_of(digest, len(scope.worktrees))
        self._steps.append(replace(step, digest=digest, after=scope.last))
        future = self._waiting[step.id] = asyncio.get_running_loop().create_future()
        try:
            end: StepEnd = await future
        except asyncio.CancelledError:
            if self._waiting.pop(step.id, None) is not None:
                self._stopped.append(step.id)
            if writes:
                scope.wrote(frozenset((digest_of(digest, self.run_id),)))
            raise
        scope.last = (step.id,)
        if writes:
            # A run that continues this one does a step without a result again, and it may write
            # something else then: so what reads after it has other inputs in each run.
            written = digest_of(digest, self.run_id) if end.error else digest
            scope.wrote(frozenset((written,)))
        return end

    def line(self) -> str:
        """The line of the program that calls a step: in its own file, else outside of corral."""
        frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        first = ""
        while frame is not None:
            name = frame.f_code.co_filename
            if name == self._path:
                return f"{os.path.basename(name)}:{frame.f_lineno}"
            if not first and not name.startswith((_PACKAGE, _ASYNCIO)):
                first = f"{os.path.basename(name)}:{frame.f_lineno}"
            frame = frame.f_back
        return first


def error_of(step: Step, end: StepEnd) -> StepError:
    """The error of a step that has failed."""
    return StepError(
        f"the step {step.name!r} failed: {end.error}",
        step=step.name,
        failure_class=end.failure_class,
    )


async def _run_in(prefix: str, call: Callable[[], Awaitable[T]]) -> T:
    outer = _scope.get()
    inner = Scope(prefix, outer)
    token = _scope.set(inner)
    try:
        return await call()
    finally:
        _scope.reset(token)
        outer.join(inner)
