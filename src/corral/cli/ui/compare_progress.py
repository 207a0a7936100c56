"""Progress of a comparison on stderr: at a terminal one status line per agent."""

from __future__ import annotations

from collections.abc import Sequence

from corral.cli.ui.live_progress import LiveProgress, spinner
from corral.cli.ui.progress import describe_call
from corral.cli.ui.spans import Line, Span, shorten
from corral.events import Done, Error, Event, Text, Thinking, ToolUse
from corral.terminal_text import clean

LONGEST = 80


class Progress(LiveProgress):
    """``with progress:`` spans the comparison."""

    def __init__(self, agents: Sequence[str], *, enabled: bool) -> None:
        super().__init__(enabled=enabled)
        self._activities = dict.fromkeys(agents, "starting")
        """Of the agents that are not finished."""

    def show(self, agent: str, event: Event) -> None:
        """Update the agent of this event. A retry or a wait of an agent is also printed."""
        match event:
            case Done():
                self._activities.pop(agent, None)
            case ToolUse():
                self._activities[agent] = describe_call(event)
            case Text() | Thinking():
                self._activities[agent] = "answering" if isinstance(event, Text) else "thinking"
            case Error() if event.recoverable:
                self.print_line(f"! {agent}: {event.message}")
            case _:
                pass

    def status(self, columns: int, rows: int) -> Sequence[Line]:
        mark = Span(f"{spinner()} ", "cyan")
        running = list(self._activities.items())[: max(1, rows // 2)]
        return [
            [mark, Span(clean(f"{agent}  {self.elapsed} s  "), ""), Span(_short(activity), "dim")]
            for agent, activity in running
        ]

    def heartbeat(self) -> str:
        running = (f"{agent}: {_short(activity)}" for agent, activity in self._activities.items())
        return f"… {clean(' · '.join(running))} · {self.elapsed} s"


def _short(activity: str) -> str:
    return shorten(clean(activity), LONGEST)
