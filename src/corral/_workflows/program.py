"""The function of a workflow while it runs: a program that gets the ends of its steps, one after
another, and says what it does until it has to wait again.

Theory of operation
-------------------
The function runs in a ``SteppedLoop``: an event loop of its own, which runs only while
``advance`` is called. A call of a step makes a ``Step`` and waits for a future (``step_calls``).
``advance`` sets the futures of the steps that have ended and returns what the program did then:
which steps it started, which it does not wait for any more, and whether it has ended.

So what it does depends only on the ends that it gets, and on their order, which is recorded. A
replay gives it the recorded ends, and compares what it does with the record
(``first_difference``). What would make it depend on something else, such as a timer or a socket,
is refused by the loop. A clock or random number that it uses itself cannot be refused: if
that changes its path, the comparison finds it.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from corral._system.stepped_loop import Blocked, SteppedLoop
from corral._system.threads import in_own_thread
from corral._workflows.definition import Workflow, line_of_error, load_text
from corral._workflows.flow import Flow
from corral._workflows.program_turn import ProgramEnd, ProgramTurn, StepEnd, StoredProgram
from corral._workflows.step_calls import StepCalls
from corral._workflows.stored_values import to_json_value
from corral.errors import ConfigError, CorralError
from corral.values import Json

LIMIT = 60.0
"""Seconds that the program may take from one step to the next."""
END_LIMIT = 10.0
"""Seconds that it has to end when the run was cancelled."""


class Program:
    """The program of one run. ``args``: of the function, as JSON. ``writes``: whether an agent may
    write if its step does not say what it may do."""

    def __init__(
        self, workflow: Workflow[Any, Any], args: dict[str, Json], *, run_id: str, writes: bool
    ) -> None:
        self._workflow = workflow
        self._path = inspect.getfile(workflow.function)
        self._args = args
        self._calls = StepCalls(self._path, run_id=run_id, writes=writes)
        make_task = self._calls.make_task
        self._loop = SteppedLoop(self._main, refuse=_refused, task_factory=make_task)
        self._end: ProgramEnd | None = None
        self._is_closed = False

    async def advance(self, ends: Sequence[StepEnd]) -> ProgramTurn:
        """Tell the program these ends, and return what it does. If its code does not wait in time,
        it has failed."""
        try:
            await self._loop.advance(lambda: self._calls.deliver(ends), LIMIT)
        except Blocked as blocked:
            self._is_closed = True
            lines = [f"{os.path.basename(each.filename)}:{each.lineno}"
                     for each in blocked.stack if each.filename == self._path]  # fmt: skip
            where = lines[-1] if lines else os.path.basename(self._path)
            self._fail(
                f"{where}: the code of the workflow did not come to a step in {LIMIT:g} s;"
                " long work belongs into a step, such as flow.command"
            )
        return self._calls.take_turn(self._end)

    async def close(self) -> None:
        """The run is over: end what the program still does."""
        self._is_closed = self._calls.is_over = True
        await self._loop.close(END_LIMIT)

    # In the thread of the loop.

    async def _main(self) -> None:
        self._calls.begin()
        try:
            args = self._workflow.typed_args(self._args)
            work = self._workflow.function(Flow(self._calls), **args)
            code = getattr(work, "cr_code", None)
            line = f"{os.path.basename(self._path)}:{getattr(code, 'co_firstlineno', 0)}"
            self._return(await work, line)
        except asyncio.CancelledError:
            if self._is_closed:
                raise
            self._fail("the workflow cancelled itself")
        except BaseException as error:
            reason = self._reason(error)
            if isinstance(error, TypeError | AttributeError) and "'coroutine'" in str(error):
                reason = self._calls.find_not_awaited() or reason
            self._fail(reason)

    def _return(self, result: object, line: str) -> None:
        if missed := self._calls.find_not_awaited():
            self._fail(missed)
            return
        try:
            stored = to_json_value(result)
            self._workflow.typed_result(stored)
        except TypeError as error:
            self._fail(f"{line}: the result of {self._workflow.name} {error}")
        except ConfigError as error:
            self._fail(f"{line}: {error.message}")
        else:
            self._end = ProgramEnd(result=stored)
            self._calls.is_over = True

    def _fail(self, reason: str) -> None:
        self._end = ProgramEnd(ok=False, reason=reason)
        self._calls.is_over = True

    def _reason(self, error: BaseException) -> str:
        line = line_of_error(error, self._path)
        at = f"{line}: " if line else ""
        if isinstance(error, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", error)
            return f"{at}{'; '.join(self._reason(each) for each in group.exceptions)}"
        if isinstance(error, CorralError):
            return f"{at}{error.message}" + (f" ({error.hint})" if error.hint else "")
        return f"{at}{type(error).__name__}: {error}".removesuffix(": ")


def _refused(what: str) -> Exception:
    return ConfigError(
        f"the code between the steps of a workflow used {what}, which a replay cannot repeat",
        hint="Use a step: flow.sleep, flow.command, flow.run, or timeout= of a step.",
    )


async def load_program(stored: StoredProgram, run_id: str) -> Program:
    """The program of a stored run. Raises ``ConfigError`` if its file cannot be imported here."""
    workflow = await in_own_thread(partial(load_text, stored.path, stored.text, stored.name))
    return Program(workflow, stored.args, run_id=run_id, writes=stored.writes)
