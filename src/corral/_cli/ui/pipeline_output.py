"""Output of a pipeline run: events, progress, questions to a person, result, exit code."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from corral import events as agent_events
from corral._cli.command_types import enable_gc
from corral._cli.options import database_option, script_option
from corral._cli.ui.live_progress import COLORS, LiveProgress
from corral._cli.ui.progress import describe_call
from corral._cli.ui.signals import INTERRUPTED, signals
from corral._cli.ui.spans import Line, StyledText, shorten
from corral._cli.ui.terminal import answer_markdown, echo
from corral._cli.ui.turn_output import Stdout
from corral._core.spending import LIMITS, dollars
from corral._core.terminal_text import clean, counted, one_line
from corral._engine.follow_run import FollowOptions
from corral._engine.run_result import PipelineResult, result_to_json, text_of
from corral._pipelines import events as run_events
from corral._pipelines import node_kinds
from corral._pipelines.events import RunEvent, to_json
from corral._pipelines.execution.handlers import bearer_tokens
from corral._pipelines.execution.interviewers import (
    AutoApprove,
    Console,
    Interviewer,
)
from corral._pipelines.graph import Graph
from corral._pipelines.scheduler.commands import Answer, Question
from corral._system import clock, threads
from corral._system.environment import SecretRedactor, named_secrets
from corral._system.terminal import is_interactive, read_from_terminal
from corral.errors import StorageFailed

WAITING = 10
PARTS = {"pipeline": "node", "workflow": "step"}
"""How the parts of a run are called."""


Execute: TypeAlias = Callable[[FollowOptions], Awaitable[PipelineResult]]


class PipelinePrinter:
    """Prints one run. ``run_to_end`` executes it and returns the exit code."""

    def __init__(
        self,
        graph: Graph,
        *,
        as_json: bool,
        quiet: bool,
        auto_approve: bool,
        db: str | None,
        durable: bool,
        kind: Literal["pipeline", "workflow"],
    ) -> None:
        self._kind = kind
        self.progress: PipelineProgress = PipelineProgress(graph, enabled=not quiet and not as_json)
        self.as_json: bool = as_json
        self.quiet: bool = quiet
        self.name: str = ""
        self._auto_approve = auto_approve
        self._durable = durable
        self._db, self._db_option = db, database_option(db)
        self._resume_options = self._db_option + script_option()
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

    def run_to_end(self, execute: Execute) -> int:
        enable_gc()
        try:
            result = threads.run_event_loop(self._execute(execute))
        except (KeyboardInterrupt, asyncio.CancelledError):
            return self._interrupted()
        except BrokenPipeError:
            self._interrupted()
            raise
        except (StorageFailed, OSError) as error:
            if not self.name or not self._durable:
                raise
            from corral._cli.main import report_error

            code = report_error(error)
            echo(f"  then: {self._resume(self.name)}", err=True)
            return code
        return self._print_result(result)

    async def _execute(self, execute: Execute) -> PipelineResult:
        interviewer: Interviewer | None = AutoApprove() if self._auto_approve else None
        read_from_terminal()
        if interviewer is None and not self.as_json and is_interactive():
            self.progress.asks = True
            interviewer = _TerminalInterviewer(Console(), self.progress)
        follow = FollowOptions(
            db=self._db,
            interviewer=interviewer,
            on_event=self.event,
            on_start=self.started,
            # The scripted model ended with the command that served it.
            restarts_jobs=bool(script_option()),
        )
        task = asyncio.ensure_future(execute(follow))

        def end() -> None:
            self._is_cancelled = True
            task.cancel()

        with signals(end, self.progress.running_nodes), self.progress:
            return await (self._write_while(task) if self.as_json else task)

    async def _write_while(self, task: asyncio.Task[PipelineResult]) -> PipelineResult:
        """Write the events during the run. A slow reader delays the output, not the run."""

        async def write_lines(out: Stdout) -> None:
            while line := await self._lines.get():
                await out.write(line)

        with Stdout(lambda: self._is_cancelled) as out:
            writing = asyncio.ensure_future(write_lines(out))
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

    def _print_result(self, result: PipelineResult) -> int:
        done = not self.as_json and result.status == "success"
        if done and (text := text_of(result, is_workflow=self._kind == "workflow")):
            answer_markdown(self._redactor.clean_text(text).removesuffix("\n") + "\n")
        if result.status == "waiting":
            self._print_questions(result)
            return WAITING
        parts = [result.status, counted(len(result.completed), PARTS[self._kind])]
        if result.tokens:
            parts.append(f"{result.tokens:,} tokens")
        if result.cost_usd:
            parts.append(dollars(result.cost_usd))
        self.progress.print_line(" · ".join([*parts, f"run {result.run}"]))
        if result.branch:
            self.progress.print_line(f"branch {result.branch} · {format_files(result.files)}")
        for branch in result.branches:
            self.progress.print_line(f"not merged: branch {branch}")
        for warning in result.warnings:
            echo(f"corral: {warning}", err=True)
        if result.status != "success" and not self.as_json:
            echo(f"corral: {self._redactor.clean_text(result.reason) or result.status}", err=True)
            if self._durable:
                echo(f"  to continue: {self._resume(result.run)}{self._larger(result)}", err=True)
        return 0 if result.status == "success" else 1

    def _resume(self, run: str) -> str:
        """The command that continues a run."""
        return f"corral runs resume {run}{self._resume_options}"

    def _larger(self, result: PipelineResult) -> str:
        """The options that raise the limits, if the run has failed at one."""
        if not any(each.failure_class == "budget" for each in result.outcomes.values()):
            return ""
        from corral._engine import service

        state = threads.run_event_loop(service.read_budget(result.run, db=self._db))
        limits = {name: getattr(state, name, None) for name in LIMITS}
        known = ((name, limit) for name, limit in limits.items() if limit)
        return "".join(f" --{name.replace('_', '-')} {2 * limit:g}" for name, limit in known)

    def _print_questions(self, result: PipelineResult) -> None:
        for question in result.questions:
            gate = f" --request {question.node}" if len(result.questions) > 1 else ""
            text = " ".join(question.text.split())
            echo(f"corral: {question.node} is waiting for a person: {text}", err=True)
            line = f"corral runs answer {result.run}{gate}{self._db_option}"
            for choice in question.choices:
                echo(f"  {line} {choice.key}    # {choice.label}", err=True)
            if not question.choices:
                echo(f"  {line} '…'", err=True)
            if question.deadline is not None:
                until = clock.time_of_day(question.deadline)
                echo(f"  answer by {until}; {one_line(question.at_deadline)}", err=True)
        echo(f"  then: {self._resume(result.run)}", err=True)

    def _interrupted(self) -> int:
        if self.name and self._durable:
            echo(f"corral: interrupted; continue with: {self._resume(self.name)}", err=True)
        else:
            echo("corral: interrupted", err=True)
        return INTERRUPTED


class _TerminalInterviewer:
    """Asks the person at this terminal; the live view is paused meanwhile."""

    def __init__(self, console: Console, progress: PipelineProgress) -> None:
        self._console, self._progress = console, progress

    async def ask(self, question: Question) -> Answer:
        with self._progress.paused():
            return await self._console.ask(question)


def format_files(files: list[str]) -> str:
    """``3 files: a, b, c``"""
    names = ", ".join(files[:5]) + (" …" if len(files) > 5 else "")
    return f"{len(files)} file{'s' if len(files) != 1 else ''}: {names}"


MARKS = {"success": "✓", "partial_success": "◐", "skipped": "–", "fail": "✗", "cancelled": "–"}
_SILENT = {
    node_kinds.FAN_IN.name,
    *(name for name, kind in node_kinds.KINDS.items() if not kind.works),
}
"""Kinds that take no time of their own: a line for each would not help."""
_ACTIVE = "●?↻"
"""Marks of nodes that are not finished."""
LONGEST = 160


class NodeState:
    """The displayed state of one node."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.mark = "○"
        self.visits = 0
        self.started: float = 0.0
        self.duration: float = 0.0
        self.activity = ""


class PipelineProgress(LiveProgress):
    """``with progress:`` spans the run. ``asks``: a person at this terminal is asked, so the text
    of a question is printed with the question itself."""

    def __init__(
        self, graph: Graph, *, enabled: bool, asks: bool = False, live: bool | None = None
    ) -> None:
        super().__init__(enabled=enabled, live=live)
        self.asks = asks
        self._steps = {node.id: NodeState(node.kind) for node in graph.nodes.values()}
        self.done: int = 0

    def show(self, event: run_events.RunEvent) -> None:
        """Update the node of this event, and print the line that it is worth, if any."""
        if isinstance(
            event, run_events.StepStarted
        ):  # the steps of a workflow are not known before
            self._steps.setdefault(event.node or "", NodeState(event.kind))
        step = self._steps.get(event.node or "")
        match event:
            case run_events.StepCompleted():
                self._show_end(event.node, step, event.status, event.notes)
            case run_events.StepFailed():
                self._show_end(event.node, step, "fail", event.reason)
            case _:
                if step is not None:
                    _update(step, event)
                line = self._line(event, step)
                if line is not None:
                    self.print_line(line)

    def _line(self, event: run_events.RunEvent, step: NodeState | None) -> str | None:
        match event:
            case run_events.StepStarted() if event.kind not in _SILENT and not self._is_live:
                return f"● {event.node}{_nth(step)}"
            case run_events.PipelineCompleted() if event.reason:
                return f"! the run ended before the exit node: {_short(event.reason)}"
            case run_events.StepRetrying():
                why = f": {_short(event.reason)}" if event.reason else ""
                delay = f"retrying in {event.delay:.1f} s"
                return f"↻ {event.node}: attempt {event.attempt} failed{why}; {delay}"
            case run_events.InterviewStarted() if not self.asks:
                until = ""
                if event.timeout is not None and event.ts:
                    moment = clock.time_of_day(event.ts + event.timeout)
                    until = f" (answer by {moment}; {_short(event.at_deadline)})"
                return f"? {event.node}: {_short(event.question)}{until}"
            case run_events.InterviewCompleted():
                by = f" (by {event.by})" if event.by else ""
                return f"  {event.node}: {_short(event.answer)}{by}"
            case run_events.InterviewTimeout():
                return f"  {event.node}: no answer before the timeout"
            case agent_events.Error() if event.recoverable:
                return f"! {event.node}: {_short(event.message)}"
            case _:
                return None

    def _show_end(self, node: str | None, step: NodeState | None, status: str, note: str) -> None:
        mark = MARKS.get(status, "✓")
        took = ""
        if step is not None:
            step.mark, step.activity = mark, ""
            if step.started:  # else it started before this view was opened
                step.duration = time.monotonic() - step.started
                took = f" {step.duration:.1f} s"
            if step.kind in _SILENT and status == "success":
                return
        self.done += 1
        self.print_line(f"{mark} {node}{took}{': ' + _short(note, 300) if note else ''}")

    def running_nodes(self) -> str:
        """The names of the running nodes, comma-separated."""
        return ", ".join(name for name, step in self._steps.items() if step.mark in "●↻")

    def status(self, columns: int, rows: int) -> Sequence[Line]:
        """The nodes that are not finished, and how many are."""
        active = [(name, step) for name, step in self._steps.items() if step.mark in _ACTIVE]
        room = max(1, rows // 2 - 1)
        lines: list[Line] = []
        for name, step in active[:room]:
            took = int(time.monotonic() - step.started)
            text = f" {name}{_nth(step)}  {took} s  {step.activity}"
            lines.append(
                [StyledText(step.mark, COLORS[step.mark]), StyledText(clean(text).rstrip())]
            )
        more = f"{len(active) - room} more running · " if len(active) > room else ""
        lines.append([StyledText(f"  {more}{self.done} done · {self.elapsed} s", "dim")])
        return lines

    def heartbeat(self) -> str:
        running = self.running_nodes() or "waiting"
        return f"… {shorten(clean(running), LONGEST)} · {self.done} done · {self.elapsed} s"


def _update(step: NodeState, event: run_events.RunEvent) -> None:
    match event:
        case run_events.StepStarted():
            step.mark, step.visits, step.started = "●", step.visits + 1, time.monotonic()
            step.activity = ""
        case run_events.StepRetrying():
            step.mark, step.activity = "↻", f"retrying in {event.delay:.1f} s"
        case run_events.InterviewStarted():
            step.mark, step.activity = "?", "waiting for a person"
        case agent_events.ToolUse():
            step.activity = shorten(describe_call(event), 60)
        case agent_events.Error() if event.recoverable and event.retryable:
            step.activity = f"waiting: {_short(event.message)}"
        case agent_events.Text():
            step.activity = "answering"
        case agent_events.Thinking():
            step.activity = "thinking"
        case _:
            pass


def _nth(step: NodeState | None) -> str:
    return f" ({step.visits})" if step is not None and step.visits > 1 else ""


def _short(text: str, limit: int = LONGEST) -> str:
    return shorten(text, limit)
