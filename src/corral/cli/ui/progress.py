"""Progress of an agent run on stderr: one line per tool call; on a terminal also a status line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from corral.agents.registry import DEFAULT_AGENT
from corral.cli.ui.terminal import console, echo_err
from corral.events import Done, Error, Event, Init, Log, Text, ToolResult, ToolUse, UsageReport
from corral.terminal_text import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status
    from rich.text import Text as RichText

    from corral.sessions.prepare import PreparedRun

_MARKS = {"success": "✓", "error": "✗", "denied": "⊘", "cancelled": "–"}


class Progress:
    """Does nothing unless enabled. ``with progress:`` spans the run."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._live = enabled and sys.stderr.isatty()
        self._status: Status | None = None
        self._console: Console | None = None
        self._titles: dict[str, str] = {}
        self._activity = "starting"
        self._started = time.monotonic()
        self._tokens: int | None = None
        self._spinning = False

    def begin(self, prepared: PreparedRun, *, asks: bool) -> None:
        """Print what is denied because nobody can be asked. ``asks``: a person can be asked."""
        # If the agent is a person, they may be typing here: no status line.
        self._live = self._live and "person" not in prepared.agent.capabilities
        denied = prepared.denied_without_asking(asks=asks)
        self.show_denied(prepared.agent.name, denied, agent_asks=prepared.agent.asks)

    def show_denied(self, agent: str, denied: Sequence[str], *, agent_asks: bool) -> None:
        """Print which capabilities are denied because nobody can be asked. ``agent_asks``: the
        agent has a channel for questions."""
        if not denied or not self._enabled:
            return
        why = "there is no terminal to ask on"
        if not agent_asks:
            why = f"{agent} has no channel for questions"
            why += f" ({DEFAULT_AGENT} can ask)" if agent != DEFAULT_AGENT else ""
        allow = "use --approve edits or all to allow more."
        self._print(f"{why}: {', '.join(denied)} denied; {allow}")

    def waiting(self) -> None:
        """Another prompt of the same session is running."""
        if self._enabled:
            self._print("waiting for another prompt of this session")

    def __enter__(self) -> Progress:
        if self._live:
            self._console = console()
            self._status = self._console.status(_LiveText(self._text))
            self._spin(on=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spin(on=False)
        self._status = None

    def show(self, event: Event, notes: tuple[str, ...] = ()) -> None:
        if not self._enabled:
            return
        match event:
            case Init():
                self._print(" · ".join([*_describe_start(event), *notes]))
                self._activity = "thinking"
            case ToolUse():
                self._spin(on=True)
                self._titles[event.call_id] = event.title or event.name
                self._activity = event.title or event.name
            case ToolResult():
                title = self._titles.pop(event.call_id, event.name or "tool")
                self._print(_describe_result(event, title))
                self._activity = "thinking"
            case Text():
                # The answer may be on the same terminal, with an unfinished line.
                self._spin(on=not sys.stdout.isatty())
                self._activity = "answering"
            case UsageReport():
                self._tokens = event.usage.total
            case Error() if event.recoverable:
                self._print(f"! {event.message}")
            case Log():
                self._print(f"  {_short(event.text, 200)}")
            case _:
                pass

    def summary(self, done: Done) -> None:
        if not self._enabled:
            if done.error is not None:
                self._print(_format_error(done.error))
            return
        for file in done.files:
            added = f" +{file.lines_added}" if file.lines_added is not None else ""
            removed = f" -{file.lines_removed}" if file.lines_removed is not None else ""
            self._print(f"{file.kind:8} {file.path}{added}{removed}")
        if not done.files_complete:
            self._print("the list of files may be incomplete")
        for call in done.denied:
            why = f": {call.reason}" if call.reason else ""
            self._print(f"denied   {_short(call.title or call.name)}{why}")
        self._print(" · ".join(_describe_end(done)))
        if done.error is not None:
            self._print(_format_error(done.error))

    def error(self, error: Error) -> None:
        """Print the error of the run."""
        self._print(_format_error(error))

    def pause(self) -> None:
        """Stop the status line until the next tool call."""
        self._spin(on=False)

    def _text(self) -> str:
        elapsed = int(time.monotonic() - self._started)
        tokens = f" · {self._tokens:,} tokens" if self._tokens else ""
        return f"{clean(_short(self._activity, 70))} · {elapsed} s{tokens}"

    def _spin(self, *, on: bool) -> None:
        if self._status is None or on == self._spinning:
            return
        self._spinning = on
        if on:
            self._status.start()
        else:
            self._status.stop()

    def _print(self, text: str) -> None:
        if self._status is not None and self._console is not None:
            self._console.print(clean(text))
        else:
            echo_err(text)


class _LiveText:
    """Calls ``text`` at each frame, so that the elapsed time is current."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text

    def __rich__(self) -> RichText:
        from rich.text import Text as RichText

        return RichText(self._text(), style="dim")


def _describe_start(event: Init) -> list[str]:
    version = f" {event.agent_version}" if event.agent_version else ""
    parts = [f"{event.agent}{version}"]
    if event.model:
        parts.append(event.model)
    elif "person" not in event.capabilities:
        parts.append("default model")
    return parts


def _describe_result(event: ToolResult, title: str) -> str:
    why = f": {event.error}" if event.error and event.status != "success" else ""
    return f"{_MARKS[event.status]} {_short(title)}{_short(why, 160)}"


def _describe_end(done: Done) -> list[str]:
    """The status, the time, and what was used."""
    parts = [done.status, f"{done.duration_ms / 1000:.1f} s"]
    if done.usage.total is not None:
        parts.append(f"{done.usage.input or 0:,} tokens in, {done.usage.output or 0:,} out")
    if done.cost.usd is not None:
        parts.append(f"${done.cost.usd:.4f} ({done.cost.source})")
    if done.resume_token:
        parts.append(f"resume with --resume {done.resume_token}")
    return parts


def _format_error(error: Error) -> str:
    hint = f"\n  {error.hint}" if error.hint else ""
    return f"corral: {error.message}{hint}"


def _short(text: str, limit: int = 100) -> str:
    line = " ".join(text.split()) if text.strip() == text else " " + " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
