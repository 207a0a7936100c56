"""Progress of an agent run on stderr: one line per tool call; at a terminal also a status line."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from corral._agents import registry
from corral._cli.ui import terminal
from corral._cli.ui.live_progress import MARKS, LiveProgress, spinner
from corral._cli.ui.spans import Line, StyledText, shorten
from corral._core.receipt_text import scope_text
from corral._core.spending import dollars
from corral._core.terminal_text import clean
from corral.events import (
    AgentQuestion,
    Done,
    Error,
    Event,
    Init,
    Log,
    PermissionDecision,
    PermissionRequest,
    QuestionAnswer,
    Text,
    ToolResult,
    ToolUse,
    UsageReport,
)
from corral.values import is_object

if TYPE_CHECKING:
    from corral._sessions.prepared_run import PreparedRun
    from corral.receipt import Receipt

_TELLING = ("command", "file_path", "path", "pattern", "query", "url", "prompt", "description")
"""Arguments that say what a call without a title does, the best first."""
LONGEST_TITLE = 100
LAST_LINES = 10
"""Of the output of a check that failed."""
_UNANSWERED = ("declined", "no_person", "timeout")
SLOW_CALL = 1_000
"""Milliseconds from which the duration of a tool call is printed."""


WAITS_FOR_A_PERSON = 0.5
"""Seconds after which a permission request was not decided by the policy."""


class TurnProgress(LiveProgress):
    """Progress of one turn. ``tail`` renders the text that is not finished yet, for the live area.
    ``begins``: print which agent and model work."""

    def __init__(self, *, enabled: bool, begins: bool = True) -> None:
        super().__init__(enabled=enabled)
        self.tail: Callable[[int], Sequence[Line]] | None = None
        self._begins = begins
        self._titles: dict[str, str] = {}
        self._called = False
        """Whether the agent has made a tool call."""
        self._cwd = ""
        self._activity = "starting"
        self._tokens: int | None = None
        self._repeated = ""
        """The last warning, to print it once."""
        self._beginning = ""
        """The last line that says which agent and model work."""
        self._judged: Receipt | None = None
        """Of the last round."""
        self._hides_status = False
        self.answer_with: str = ""
        """The command that answers permission requests, if no one is asked here."""
        self._waiting: asyncio.TimerHandle | None = None

    def begin(self, prepared: PreparedRun, *, asks: bool) -> None:
        """Print what is denied because no one can be asked. ``asks``: a person can be asked."""
        # If the agent is a person, they may be typing here: no status line, no heartbeat.
        if "person" in prepared.agent.capabilities:
            self._is_live = self._beats = False
        denied = prepared.denied_without_asking(asks=asks)
        self.show_denied(prepared.agent.name, denied, agent_asks=prepared.agent.asks)

    def show_denied(self, agent: str, denied: Sequence[str], *, agent_asks: bool) -> None:
        """Print which capabilities are denied because no one can be asked. ``agent_asks``: the
        agent has a channel for questions."""
        if not denied:
            return
        why = "there is no terminal to ask on"
        if not agent_asks:
            why = f"{agent} has no channel for questions"
            twin = registry.twin_that_asks(agent)
            why += f" ({twin.name if twin else registry.DEFAULT_AGENT} can ask)"
        allow = "use --approve edits or all to allow more."
        self.print_line(f"{why}: {', '.join(denied)} denied; {allow}")

    def waiting(self) -> None:
        """Another prompt of the same session is running."""
        self.print_line("waiting for another prompt of this session")

    @property
    def _shows_area(self) -> bool:
        return self._is_live or (self.tail is not None and terminal.is_live(sys.stdout))

    def status(self, columns: int, rows: int) -> Sequence[Line]:
        lines = list(self.tail(columns)) if self.tail is not None else []
        if self._is_live and not self._hides_status:
            lines.append(
                [StyledText(f"{spinner()} ", "cyan"), StyledText(self._state(columns - 2), "dim")]
            )
        return lines

    def heartbeat(self) -> str:
        return f"… {self._state(LONGEST_TITLE)}"

    def _state(self, room: int) -> str:
        tokens = f" · {self._tokens:,} tokens" if self._tokens else ""
        end = f" · {self.elapsed} s{tokens}"
        return shorten(clean(self._activity), max(10, room - len(end) - 1)) + end

    def before_output(self) -> None:
        """Something is about to be written to stdout. If it is a pipe, what reads it may print on
        this terminal, at any time: from now on there is no status line that could erase it."""
        if self._hides_status:
            return
        mode = os.fstat(sys.stdout.fileno()).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            self._hides_status = True
            if self._area is not None:
                self._area.refresh()

    def show(self, event: Event, notes: tuple[str, ...] = ()) -> None:
        match event:
            case Init():
                self._show_start(event, notes)
            case ToolUse():
                self._called = True
                self._activity = self._titles[event.call_id] = describe_call(event, self._cwd)
            case ToolResult():
                self._show_result(event)
            case Text():
                self._activity = "answering"
            case UsageReport():
                self._tokens = event.usage.total
            case Error() if event.recoverable:
                if event.retryable:  # a retry or a wait is also what the agent does now
                    self._activity = f"waiting: {event.message}"
                if event.message != self._repeated:
                    self.print_line(f"! {event.message}")
                self._repeated = event.message
            case Log():
                self.print_line(f"  {shorten(event.text, 200)}")
            case PermissionRequest() | PermissionDecision() | AgentQuestion() | QuestionAnswer():
                self._show_request(event)
            case _:
                pass

    def _show_start(self, init: Init, notes: tuple[str, ...]) -> None:
        """The agent begins."""
        self._cwd = init.cwd or ""
        self._activity = "thinking"
        if self._begins:
            version = f" {init.agent_version}" if init.agent_version else ""
            parts = [f"{init.agent}{version}"]
            if init.model:
                parts.append(init.model)
            elif "person" not in init.capabilities:
                parts.append("default model")
            if init.continued_from and not init.resumed:
                parts.append(f"continues {init.continued_from}")
            if init.sandbox:
                parts.append(f"in a sandbox ({init.sandbox_reason})")
            line = " · ".join([*parts, *notes])
            if line != self._beginning:  # the rounds of one run begin alike
                self.print_line(line)
            self._beginning = line

    def _show_request(
        self, event: PermissionRequest | PermissionDecision | AgentQuestion | QuestionAnswer
    ) -> None:
        """Say how to answer a request, unless the policy has decided at once."""
        if isinstance(event, QuestionAnswer) and event.outcome in _UNANSWERED:
            self.print_line(f"! a question was not answered: {event.reason}")
        if not self.answer_with:
            return
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting, self._activity = None, "thinking"
        if isinstance(event, PermissionDecision | QuestionAnswer):
            return
        # The request, the options of a question, and the command that answers.
        command = self.answer_with
        if isinstance(event, PermissionRequest):
            title, choices = event.title or "a tool call", list[str]()
        else:
            from corral._core.question_replies import text_of

            title, command = text_of(event), f'{command.removesuffix("--allow")}"TEXT"'
            options = event.fields[0].options if len(event.fields) == 1 else ()
            choices = [f"  {number}. {each.label}" for number, each in enumerate(options, 1)]
        answer = f"  answer with: {command} (or --deny)"
        lines = [f"? {shorten(title, LONGEST_TITLE)}", *choices, answer]
        waits = "permission" if isinstance(event, PermissionRequest) else "an answer"

        def show() -> None:
            self._activity = f"waiting for {waits}: {lines[0].removeprefix('? ')}"
            for line in lines:
                self.print_line(line)

        self._waiting = asyncio.get_running_loop().call_later(WAITS_FOR_A_PERSON, show)

    def _show_result(self, event: ToolResult) -> None:
        title = self._titles.pop(event.call_id, event.name or "tool")
        why = f": {shorten(event.error, 160)}" if event.error and event.status != "success" else ""
        slow = (event.duration_ms or 0) >= SLOW_CALL
        took = f" · {(event.duration_ms or 0) / 1000:.1f} s" if slow and not why else ""
        mark = MARKS[event.status]
        indent = "  " if event.parent is not None else ""
        columns = terminal.size(sys.stderr)[0] - 1 if self._is_live else LONGEST_TITLE
        room = max(20, min(LONGEST_TITLE, columns)) - len(indent) - 2 - len(took)
        self.print_line(f"{indent}{mark} {shorten(title, room)}{took}{why}")
        others = list(self._titles.values())
        self._activity = others[-1] if others else "thinking"

    def summary(self, done: Done, *, resume: bool = True) -> None:
        """Print the files, the denied calls, the end and the error of a turn. ``resume``: also how
        to continue it."""
        for file in done.files:
            added = f" +{file.lines_added}" if file.lines_added is not None else ""
            removed = f" -{file.lines_removed}" if file.lines_removed is not None else ""
            path = file.path.removeprefix(f"{self._cwd}{os.sep}") if self._cwd else file.path
            self.print_line(f"{file.kind:8} {path}{added}{removed}")
        if not done.files_complete and (self._called or done.status == "success"):
            why = "the folder is large, or another run works in it"
            self.print_line(f"the list of files may be incomplete: {why}")
        for call in done.denied:
            why = f": {call.reason}" if call.reason else ""
            self.print_line(f"denied   {shorten(call.title or call.name, LONGEST_TITLE)}{why}")
        for asked in done.questions:
            answer = asked.answer or f"({asked.outcome.replace('_', ' ')})"
            self.print_line(f"asked    {shorten(asked.text, LONGEST_TITLE)} → {answer}")
        parts = [done.status, f"{done.duration_ms / 1000:.1f} s"]
        if done.usage.total is not None:
            parts.append(f"{done.usage.input or 0:,} tokens in, {done.usage.output or 0:,} out")
        if done.cost.usd is not None:
            parts.append(f"{dollars(done.cost.usd)} ({done.cost.source})")
        self.print_line(" · ".join(parts))
        judged = self._judged
        if done.receipt is not None and (
            judged is None
            or (judged.verdict, judged.gaps) != (done.receipt.verdict, done.receipt.gaps)
        ):
            self.verdict(done.receipt)
        if done.resume_token and resume:
            self.print_line(f"resume with --resume {done.resume_token}")
        if done.error is not None:
            self.error(done.error)

    def verdict(self, receipt: Receipt, round_number: int | None = None) -> None:
        """Print the verdict, what is missing, and the end of what failed checks wrote."""
        prefix = ""
        if round_number is not None:
            prefix, self._judged = f"round {round_number}: ", receipt
        self.print_line(f"{prefix}{receipt.verdict}")
        if receipt.clean is not None:
            self.print_line(f"scope    {scope_text(receipt)}")
        for gap in receipt.gaps:
            self.print_line(f"gap      {gap}")
        for evidence in receipt.evidence:
            if not evidence.passed:
                for line in evidence.output.rstrip().splitlines()[-LAST_LINES:]:
                    self.print_line(f"  | {line}")

    def error(self, error: Error) -> None:
        """Print the error of the run, even if progress is not enabled."""
        from corral._docs.error_pages import report

        self.print_always(report(error))


def describe_call(call: ToolUse, cwd: str = "") -> str:
    """What a tool call does, in one line: its title, or its name and most telling argument."""
    title = call.title or ""
    if not title or title == call.name:
        given = call.input if is_object(call.input) else {}
        found = [call.paths[0]] if call.paths else []
        found += [text for name in _TELLING if isinstance(text := given.get(name), str) and text]
        title = " ".join([call.name, *found[:1]])
    return title.replace(f"{cwd}{os.sep}", "") if cwd else title
