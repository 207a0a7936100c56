"""Output of a pipeline run: events, progress, questions to a person, result, exit code."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import msgspec

from corral.cli.garbage import enable_gc
from corral.cli.options import database_option
from corral.cli.ui.pipeline_progress import Progress
from corral.cli.ui.signals import signals
from corral.cli.ui.stdout import Stdout
from corral.cli.ui.terminal import answer_markdown, echo
from corral.core.terminal_text import one_line
from corral.engine.api import PipelineResult, result_to_json
from corral.errors import StorageFailed
from corral.pipelines.events import RunEvent, to_json
from corral.pipelines.execution.handlers import bearer_tokens
from corral.pipelines.execution.interviewers import (
    AutoApprove,
    Console,
    Interviewer,
    local_time,
)
from corral.pipelines.graph import Graph
from corral.pipelines.scheduler.commands import Answer, Question
from corral.system import threads
from corral.system.environment import SecretRedactor, named_secrets
from corral.system.terminal import is_interactive

Execute: TypeAlias = Callable[[Interviewer | None], Awaitable[PipelineResult]]
"""Executes the run with this interviewer."""

WAITING = 10
INTERRUPTED = 130


class RunOutput:
    """Prints one run. ``run_to_end`` executes it and returns the exit code."""

    def __init__(
        self,
        graph: Graph,
        *,
        as_json: bool,
        quiet: bool,
        db: str | None = None,
        durable: bool = True,
    ) -> None:
        self.progress = Progress(graph, enabled=not quiet and not as_json)
        self.as_json, self.quiet = as_json, quiet
        self.name = ""
        self._durable = durable
        self._db = database_option(db)
        self._redactor = SecretRedactor(
            {**named_secrets(os.environ), **bearer_tokens(graph, os.environ)}
        )
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._is_cancelled = False

    def started(self, name: str, folder: Path) -> None:
        self.name = name
        shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        self.progress.print_line(f"run {name} · {shown}")

    def event(self, event: RunEvent) -> None:
        if self.as_json:
            self._queue_line(to_json(event))
        self.progress.show(event)

    def run_to_end(self, execute: Execute, *, auto: bool) -> int:
        enable_gc()
        try:
            result = threads.run_event_loop(self._execute(execute, auto=auto))
        except (KeyboardInterrupt, asyncio.CancelledError):
            return self._interrupted()
        except BrokenPipeError:
            self._interrupted()
            raise
        except StorageFailed as error:
            if not self.name or not self._durable:
                raise
            echo(f"corral: {error}", err=True)
            echo(f"  then: corral pipeline resume {self.name}{self._db}", err=True)
            return error.cli_exit
        return self._print_result(result)

    async def _execute(self, execute: Execute, *, auto: bool) -> PipelineResult:
        task = asyncio.ensure_future(execute(self._interviewer(auto=auto)))

        def end() -> None:
            self._is_cancelled = True
            task.cancel()

        with signals(end, self.progress.running_nodes), self.progress:
            return await (self._write_while(task) if self.as_json else task)

    async def _write_while(self, task: asyncio.Task[PipelineResult]) -> PipelineResult:
        """Write the events during the run. A slow reader delays the output, not the run."""
        with Stdout(lambda: self._is_cancelled) as out:
            writing = asyncio.ensure_future(self._write_lines(out))
            try:
                await asyncio.wait({task, writing}, return_when=asyncio.FIRST_COMPLETED)
                if writing.done():  # the reader closed the pipe
                    task.cancel()
                    await asyncio.wait({task})
                    await writing
                result = await task
                self._queue_line(msgspec.json.encode({"type": "result", **result_to_json(result)}))
                self._lines.put_nowait(b"")
                await writing
                return result
            finally:
                for each in (task, writing):
                    each.cancel()
                await asyncio.wait({writing, task})

    def _queue_line(self, line: bytes) -> None:
        self._lines.put_nowait(self._redactor.clean(line) + b"\n")

    async def _write_lines(self, out: Stdout) -> None:
        """Raises ``OSError``."""
        while line := await self._lines.get():
            await out.write(line)

    def _interviewer(self, *, auto: bool) -> Interviewer | None:
        if auto:
            return AutoApprove()
        if not is_interactive() or self.as_json:
            return None
        self.progress.asks = True
        return _TerminalInterviewer(Console(), self.progress)

    def _print_result(self, result: PipelineResult) -> int:
        if not self.as_json and result.status == "success" and (text := result.text):
            answer_markdown(self._redactor.clean_text(text).removesuffix("\n") + "\n")
        if result.status == "waiting":
            self._print_questions(result)
            return WAITING
        parts = [result.status, f"{len(result.completed)} nodes"]
        if result.tokens:
            parts.append(f"{result.tokens:,} tokens")
        if result.cost_usd:
            parts.append(f"${result.cost_usd:.4f}")
        self.progress.print_line(" · ".join([*parts, f"run {result.run}"]))
        if result.branch:
            self.progress.print_line(f"branch {result.branch} · {format_files(result.files)}")
        for warning in result.warnings:
            _print_err(f"corral: {warning}")
        if result.status != "success" and not self.as_json:
            _print_err(f"corral: {self._redactor.clean_text(result.reason) or result.status}")
        return 0 if result.status == "success" else 1

    def _print_questions(self, result: PipelineResult) -> None:
        for question in result.questions:
            gate = f" --gate {question.node}" if len(result.questions) > 1 else ""
            text = " ".join(question.text.split())
            _print_err(f"corral: {question.node} is waiting for a person: {text}")
            line = f"corral pipeline answer {result.run}{gate}{self._db}"
            for choice in question.choices:
                _print_err(f"  {line} {choice.key}    # {choice.label}")
            if not question.choices:
                _print_err(f"  {line} --text '…'")
            if question.deadline is not None:
                until = local_time(question.deadline)
                _print_err(f"  answer by {until}; {one_line(question.at_deadline)}")
        echo(f"  then: corral pipeline resume {result.run}{self._db}", err=True)

    def _interrupted(self) -> int:
        if self.name and self._durable:
            line = f"corral pipeline resume {self.name}{self._db}"
            echo(f"corral: interrupted; continue with: {line}", err=True)
        else:
            echo("corral: interrupted", err=True)
        return INTERRUPTED


class _TerminalInterviewer:
    """Asks the person at this terminal; the live view is paused meanwhile."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console, self._progress = console, progress

    async def ask(self, question: Question) -> Answer:
        with self._progress.paused():
            return await self._console.ask(question)


def _print_err(line: str) -> None:
    echo(line, err=True)


def format_files(files: list[str]) -> str:
    """``3 files: a, b, c``"""
    names = ", ".join(files[:5]) + (" …" if len(files) > 5 else "")
    return f"{len(files)} file{'s' if len(files) != 1 else ''}: {names}"
