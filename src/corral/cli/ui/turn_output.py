"""Print one turn of an agent: the answer or the events on stdout, progress on stderr."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Protocol

from corral.cli.exit_codes import exit_code
from corral.cli.ui.progress import Progress
from corral.cli.ui.signals import signals
from corral.cli.ui.stdout import Printer, Stdout
from corral.events import Done, Event
from corral.system.terminal import is_interactive

if TYPE_CHECKING:
    import os

    from corral.cli.ui.questions import TerminalAsker


class ShownTurn(Protocol):
    """A turn that is printed: of an agent, of a named session, or of a transcript."""

    @property
    def failed(self) -> bool: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    def cancel(self) -> None: ...

    def __aiter__(self) -> AsyncIterator[Event]: ...


def terminal_asker(progress: Progress, cwd: str | os.PathLike[str] | None) -> TerminalAsker | None:
    """Asks the person at the terminal; None if there is none."""
    if not is_interactive():
        return None
    from corral.cli.ui.questions import TerminalAsker

    return TerminalAsker(progress.paused, cwd)


async def print_turn(turn: ShownTurn, printer: Printer, progress: Progress) -> Done | None:
    """Print the events of a turn to its end; return the last. Ctrl-C ends the turn."""
    last: Done | None = None
    progress.tail = printer.tail
    with signals(turn.cancel), progress, Stdout(lambda: turn.failed) as out:
        async for event in turn:
            if text := printer.text(event):
                progress.before_output()
                await out.write(text)
            progress.show(event, turn.notes)
            if isinstance(event, Done):
                last = event
        await out.write(printer.end())
    return last


def report_end(done: Done | None, progress: Progress) -> int:
    """Print how a turn ended; returns the exit code. ``done``: its last event."""
    if done is None:
        return 1
    progress.summary(done)
    return exit_code(done)
