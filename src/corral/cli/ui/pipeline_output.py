"""A run of a pipeline on its way to stdout and stderr, the people asked, and its exit code."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import msgspec

from corral.cli.database_option import option
from corral.cli.ui.pipeline_progress import Progress
from corral.cli.ui.questions import somebody_is_there
from corral.cli.ui.signals import signals
from corral.cli.ui.stdout import Out
from corral.cli.ui.terminal import answer, echo
from corral.durable.result import PipelineResult, plain
from corral.errors import StorageFailed
from corral.pipelines.events import RunEvent, to_json
from corral.pipelines.execution.interviewers import AutoApprove, Console, Interviewer
from corral.pipelines.execution.resources import bearers
from corral.pipelines.graph import Graph
from corral.pipelines.scheduler.commands import Answer, Question
from corral.system.environment import SecretRedactor, named_secrets

Whole: TypeAlias = Callable[[Interviewer | None], Awaitable[PipelineResult]]
"""The run, given whom to ask."""

WAITING = 10
INTERRUPTED = 130


class Shown:
    """A run on its way to stdout and stderr, and its exit code."""

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
        self._db = option(db)
        self._eraser = SecretRedactor({**named_secrets(os.environ), **bearers(graph, os.environ)})
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._is_left = False

    def began(self, name: str, folder: Path) -> None:
        self.name = name
        self.progress.say(f"run {name} · {folder}")

    def event(self, event: RunEvent) -> None:
        if self.as_json:
            self._say(to_json(event))
        self.progress.show(event)

    def through(self, whole: Whole, *, auto: bool) -> int:
        gc.enable()  # all is loaded, and from here on it may take long
        try:
            result = asyncio.run(self._through(whole, auto=auto))
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
        return self._told(result)

    async def _through(self, whole: Whole, *, auto: bool) -> PipelineResult:
        task = asyncio.ensure_future(whole(self._people(auto=auto)))

        def end() -> None:
            self._is_left = True
            task.cancel()

        with signals(end, self.progress.at_work), self.progress:
            return await (self._written(task) if self.as_json else task)

    async def _written(self, task: asyncio.Task[PipelineResult]) -> PipelineResult:
        """A reader who stops reading holds up what is written, never the run."""
        with Out(lambda: self._is_left) as out:
            writing = asyncio.ensure_future(self._write(out))
            try:
                await asyncio.wait({task, writing}, return_when=asyncio.FIRST_COMPLETED)
                if writing.done():  # nobody will read any more
                    task.cancel()
                    await asyncio.wait({task})
                    await writing
                result = await task
                self._say(msgspec.json.encode({"type": "result", **plain(result)}))
                self._lines.put_nowait(b"")
                await writing
                return result
            finally:
                for each in (task, writing):
                    each.cancel()
                await asyncio.wait({writing, task})

    def _say(self, line: bytes) -> None:
        self._lines.put_nowait(self._eraser.clean(line) + b"\n")

    async def _write(self, out: Out) -> None:
        """Raises ``OSError``."""
        while line := await self._lines.get():
            await out.write(line)

    def _people(self, *, auto: bool) -> Interviewer | None:
        if auto:
            return AutoApprove()
        if not somebody_is_there() or self.as_json:
            return None
        return _Here(Console(), self.progress)

    def _told(self, result: PipelineResult) -> int:
        if not self.as_json and result.status == "success" and (text := result.text):
            answer(self._eraser.clean_text(text).removesuffix("\n") + "\n")
        if result.status == "waiting":
            self._asks(result)
            return WAITING
        parts = [result.status, f"{len(result.completed)} nodes"]
        if result.tokens:
            parts.append(f"{result.tokens:,} tokens")
        if result.cost_usd:
            parts.append(f"${result.cost_usd:.4f}")
        self.progress.say(" · ".join([*parts, f"run {result.run}"]))
        if result.branch:
            self.progress.say(f"branch {result.branch} · {changed(result.files)}")
        for warning in result.warnings:
            _tell(f"corral: {warning}")
        if result.status != "success" and not self.as_json:
            _tell(f"corral: {self._eraser.clean_text(result.reason) or result.status}")
        return 0 if result.status == "success" else 1

    def _asks(self, result: PipelineResult) -> None:
        for question in result.questions:
            gate = f" --gate {question.node}" if len(result.questions) > 1 else ""
            text = " ".join(question.text.split())
            _tell(f"corral: {question.node} waits for a person: {text}")
            line = f"corral pipeline answer {result.run}{gate}{self._db}"
            for choice in question.choices:
                _tell(f"  {line} {choice.key}    # {choice.label}")
            if not question.choices:
                _tell(f"  {line} --text '…'")
        echo(f"  then: corral pipeline resume {result.run}{self._db}", err=True)

    def _interrupted(self) -> int:
        if self.name and self._durable:
            line = f"corral pipeline resume {self.name}{self._db}"
            echo(f"corral: interrupted; go on with: {line}", err=True)
        else:
            echo("corral: interrupted", err=True)
        return INTERRUPTED


class _Here:
    """Somebody at this terminal. Nothing moves while they are asked."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console, self._progress = console, progress

    async def ask(self, question: Question) -> Answer:
        with self._progress.paused():
            return await self._console.ask(question)


def _tell(line: str) -> None:
    echo(line, err=True)


def changed(files: list[str]) -> str:
    """``3 files: a, b, c``"""
    names = ", ".join(files[:5]) + (" …" if len(files) > 5 else "")
    return f"{len(files)} file{'s' if len(files) != 1 else ''}: {names}"
