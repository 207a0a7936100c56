"""Shows a turn to other processes, and sends its messages (``notify``).

A turn becomes visible when it takes longer than ``PUBLISH_AFTER``, or at once when others are
asked. Most code for that is in ``corral.live``, which is loaded only then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakMethod

from corral.events import Done
from corral.sessions.prepared_run import PreparedRun
from corral.sessions.store import SessionRecord
from corral.sessions.turn_record import TurnRecorder
from corral.values import PUBLISH_AFTER, weak_callback

if TYPE_CHECKING:
    from corral.sessions.session_link import SessionLink


class TurnPublisher:
    """``start`` when the turn starts, ``stop`` when it has ended."""

    def __init__(
        self,
        prepared: PreparedRun,
        record: SessionRecord,
        recorder: TurnRecorder,
        cancel: Callable[[], None],
        steer: WeakMethod[Callable[[str], None]] | None,
    ) -> None:
        """``cancel`` is a method of the turn; it is held weakly."""
        self._prepared = prepared
        self._record = record
        self._recorder = recorder
        self._cancel = weak_callback(cancel)
        self._steer = steer
        self._timer: asyncio.TimerHandle | None = None
        self._is_started = False

    def start(self) -> None:
        link = self._record.link
        self._record.publish = WeakMethod(self.publish)
        delay = 0.0 if link is not None and link.entry is not None else PUBLISH_AFTER
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay, weak_callback(self._publish_now))
        self._is_started = True

    def publish(self) -> SessionLink:
        """Make the turn visible now."""
        from corral.sessions.live_turn import publish_turn

        self._recorder.save_title()
        return publish_turn(
            self._prepared,
            self._record,
            self._recorder.title,
            self._cancel,
            self._steer,
            self._recorder.has_transcript,
        )

    def _publish_now(self) -> None:
        self._timer = None
        with contextlib.suppress(OSError, ImportError):
            self.publish()  # without a free descriptor it stays invisible

    def show_limit(self, until: float | None) -> None:
        """Show that the turn waits for a rate limit until then, or (None) that it goes on."""
        link = self._record.link if until is None else self.publish()
        if link is not None:
            link.show_limit(until)

    def stop(self) -> None:
        """The turn has ended. May be called more than once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_started:
            self._is_started = False
            if self._record.link is not None:
                self._record.link.turn_ended()

    def notify_question(self, text: str) -> None:
        """The agent is a person: tell somebody that it is asked."""
        from corral.sessions.live_turn import notify_question

        notify_question(self._prepared, self._record, self._recorder.title, text)

    def notify_end(self, done: Done) -> None:
        from corral.sessions.live_turn import notify_end

        notify_end(self._prepared, self._record, self._recorder.title, done)

    def take_problems(self) -> list[str]:
        """Messages that could not be sent so far, and why."""
        link = self._record.link
        if link is None:
            return []
        problems, link.problems = link.problems, ()
        return [*problems]
