"""The function of a workflow while it runs: a program that gets the ends of its steps, one after
another, and says what it does until it has to wait again.

Theory of operation
-------------------
The function runs in a ``SteppedLoop``: an event loop of its own, which runs only while
``advance`` is called. A call of a step makes a ``Step`` and waits for a future. ``advance`` sets
the futures of the steps that have ended and returns what the program did then: which steps it
started, which it does not wait for any more, and whether it has ended.

So what it does depends only on the ends that it gets, and on their order, which is recorded. A
replay gives it the recorded ends, and compares what it does with the record
(``first_difference``). What would make it depend on something else, such as a timer or a socket,
is refused by the loop. A clock or random number that it uses itself cannot be refused: if
that changes its path, the comparison finds it.

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
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from msgspec.structs import replace

from corral._system.stepped_loop import Blocked, SteppedLoop
from corral._system.threads import in_own_thread
from corral._workflows.definition import Workflow, line_of_error, load_text, to_json_value
from corral._workflows.program_turn import (
    ProgramEnd,
    ProgramTurn,
    Step,
    StepEnd,
    StoredProgram,
    digest_of,
)
from corral.errors import ConfigError, CorralError, StepError
from corral.values import Json, slug

if TYPE_CHECKING:
    pass

T = TypeVar("T")

LIMIT = 60.0
"""Seconds that the program may take from one step to the next."""
END_LIMIT = 10.0
"""Seconds that it has to end when the run was cancelled."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ASYNCIO = os.path.dirname(os.path.abspath(asyncio.__file__))


class Scope:
    """A part of the program in which names are counted."""

    __slots__ = ("parent", "prefix", "worktrees", "written")

    def __init__(self, prefix: str, parent: Scope | None) -> None:
        self.prefix = prefix
        self.parent = parent
        self.worktrees: tuple[str, ...] = () if parent is None else parent.worktrees
        """The branches of ``flow.parallel`` with their own worktrees, the innermost last."""
        self.written: frozenset[str] = frozenset() if parent is None else parent.written
        """The digests of steps that have ended and may have written the workspace."""

    def wrote(self, digests: frozenset[str]) -> None:
        self.written |= digests


_scope: ContextVar[Scope] = ContextVar("scope")


class RunningProgram(Protocol):
    """A program as the engine sees it."""

    async def advance(self, ends: Sequence[StepEnd], /) -> ProgramTurn:
        """Tell the program these ends, and return what it does."""
        ...

    async def close(self) -> None:
        """The run is over: end what the program still does."""
        ...


class Program:
    """The program of one run. ``args``: of the function, as JSON."""

    def __init__(
        self, workflow: Workflow[Any, Any], args: dict[str, Json], *, run_id: str, writes: bool
    ) -> None:
        self.workflow = workflow
        self.run_id = run_id
        self.writes = writes
        """Whether an agent may write if its step does not say what it may do."""
        self.path: str = inspect.getfile(workflow.function)
        self._args = args
        self._loop = SteppedLoop(self._main, refuse=_refused, task_factory=self._make_task)
        self._counts: dict[str, int] = {}
        self._ids: set[str] = set()
        self._waiting: dict[str, asyncio.Future[StepEnd]] = {}
        self._steps: list[Step] = []
        self._stopped: list[str] = []
        self._after: tuple[str, ...] = ()
        self._end: ProgramEnd | None = None
        self._is_closed = False

    async def advance(self, ends: Sequence[StepEnd]) -> ProgramTurn:
        """Tell the program these ends, and return what it does. If its code does not wait in time,
        it has failed."""
        try:
            await self._loop.advance(lambda: self._deliver(ends), LIMIT)
        except Blocked as blocked:
            self._is_closed = True
            lines = [f"{os.path.basename(each.filename)}:{each.lineno}"
                     for each in blocked.stack if each.filename == self.path]  # fmt: skip
            where = lines[-1] if lines else os.path.basename(self.path)
            reason = (
                f"{where}: the code of the workflow did not come to a step in {LIMIT:g} s;"
                " long work belongs into a step, such as flow.command"
            )
            self._end = ProgramEnd(ok=False, reason=reason)
        turn = ProgramTurn(steps=self._steps, stopped=self._stopped, end=self._end)
        self._steps, self._stopped = [], []
        return turn

    async def close(self) -> None:
        """The run is over: end what the program still does."""
        self._is_closed = True
        await self._loop.close(END_LIMIT)

    # In the thread of the loop.

    async def _main(self) -> None:
        from corral._workflows.flow import Flow

        _scope.set(Scope("", None))
        try:
            args = self.workflow.typed_args(self._args)
            work = self.workflow.function(Flow(self), **args)
            code = getattr(work, "cr_code", None)
            line = f"{os.path.basename(self.path)}:{getattr(code, 'co_firstlineno', 0)}"
            self._end = self._ended(await work, line)
        except asyncio.CancelledError:
            if self._is_closed:
                raise
            self._end = ProgramEnd(ok=False, reason="the workflow cancelled itself")
        except BaseException as error:
            self._end = ProgramEnd(ok=False, reason=self._reason(error))

    def _ended(self, result: object, line: str) -> ProgramEnd:
        try:
            return ProgramEnd(result=to_json_value(result))
        except TypeError as error:
            return ProgramEnd(
                ok=False, reason=f"{line}: the result of {self.workflow.name} {error}"
            )

    def _reason(self, error: BaseException) -> str:
        line = line_of_error(error, self.path)
        at = f"{line}: " if line else ""
        if isinstance(error, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", error)
            return f"{at}{'; '.join(self._reason(each) for each in group.exceptions)}"
        if isinstance(error, CorralError):
            return f"{at}{error.message}" + (f" ({error.hint})" if error.hint else "")
        return f"{at}{type(error).__name__}: {error}".removesuffix(": ")

    def _deliver(self, ends: Sequence[StepEnd]) -> None:
        self._after = tuple(end.id for end in ends)
        for end in ends:
            future = self._waiting.pop(end.id, None)
            if future is not None and not future.done():
                future.set_result(end)

    def _make_task(
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
        task.add_done_callback(lambda _: parent.wrote(scope.written))
        return task

    # For ``Flow``.

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

    async def step(self, step: Step, *, reads: bool, writes: bool) -> StepEnd:
        """Wait for the end of this step. ``reads``, ``writes``: whether it uses the workspace.
        Raises ``StepError``."""
        end = await self.end_of(step, reads=reads, writes=writes)
        if end.error:
            raise error_of(step, end)
        return end

    async def end_of(self, step: Step, *, reads: bool, writes: bool) -> StepEnd:
        """``step``, also if it has failed."""
        if self._is_closed or self._end is not None:
            raise asyncio.CancelledError
        scope = _scope.get()
        digest = digest_of(step.digest, sorted(scope.written)) if reads else step.digest
        if scope.worktrees and step.kind == "visit":
            step = replace(step, worktrees=scope.worktrees)
            digest = digest_of(digest, len(scope.worktrees))
        self._steps.append(replace(step, digest=digest, after=self._after))
        future = self._waiting[step.id] = asyncio.get_running_loop().create_future()
        try:
            end: StepEnd = await future
        except asyncio.CancelledError:
            if self._waiting.pop(step.id, None) is not None:
                self._stopped.append(step.id)
            raise
        if writes:
            scope.wrote(frozenset((digest,)))
        return end

    def line(self) -> str:
        """The line of the program that calls a step: in its own file, else outside of corral."""
        frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        first = ""
        while frame is not None:
            name = frame.f_code.co_filename
            if name == self.path:
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


def check_inside(name: str) -> None:
    """Raises ``ConfigError`` if a step is called outside of the run of its workflow."""
    if _scope.get(None) is None:
        raise ConfigError(
            f"the step {name!r} is outside of a run of its workflow",
            hint="Steps run only in a function with @corral.workflow, while"
            " corral.workflows.run runs it.",
        )


def _refused(what: str) -> Exception:
    return ConfigError(
        f"the code between the steps of a workflow used {what}, which a replay cannot repeat",
        hint="Use a step: flow.sleep, flow.command, flow.run, or timeout= of a step.",
    )


async def within(path: str, call: Callable[[], Awaitable[T]]) -> T:
    """Run a sub-workflow in its own scope."""
    outer = _scope.get()
    inner = Scope(f"{path}.", outer)
    token = _scope.set(inner)
    try:
        return await call()
    finally:
        _scope.reset(token)
        outer.wrote(inner.written)


async def load_program(stored: StoredProgram, run_id: str) -> Program:
    """The program of a stored run. Raises ``ConfigError`` if its file cannot be imported here."""
    workflow = await in_own_thread(partial(load_text, stored.path, stored.text, stored.name))
    return Program(workflow, stored.args, run_id=run_id, writes=stored.writes)
