"""Keeps a run's folder up to date while it runs, and the run going where the disk will not."""

from __future__ import annotations

import time

import msgspec

from corral.errors import StorageFailed
from corral.pipelines.events import PipelineEvent
from corral.pipelines.folder import RunFolder
from corral.pipelines.orders import Checkpoint
from corral.pipelines.state import TRUNK, State


class Keeper:
    """What is done is done, and paid for: a folder that takes no more does not end a run. What
    could not be written is tried again with the next node; ``failed`` says what is missing."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.failed: StorageFailed | None = None
        self._is_behind = False
        self._next = 0.0
        self._unwritten: list[PipelineEvent] = []
        self._round: State | None = None
        """Where the round stood when it was last looked at. A plan that restarts makes new lists
        and leaves these as they were, so that the old round's folder gets its last word."""

    def ended(self, done: Checkpoint) -> None:
        """A node has; what the plan did itself is written down."""
        try:
            self.folder.put_status(done)
        except StorageFailed as error:
            self.failed = error

    def save(self, state: State) -> bool:
        """A checkpoint, unless the last one took longer to write than this node to run: with
        thousands of nodes that do nothing not each has one. Whether it was written."""
        if self._round is not None and self._round.round != state.round:
            return False  # the folder of this round is not there yet
        self._round = msgspec.structs.replace(state, lanes={TRUNK: state.trunk})
        self._is_behind = True
        return time.monotonic() >= self._next and self.save_now(state)

    def save_now(self, state: State) -> bool:
        if not self._is_behind:
            return False
        begun = time.monotonic()
        try:
            self.folder.save(state)
            self.flush()
        except StorageFailed as error:
            self.failed = error
            return False
        finally:
            ended = time.monotonic()
            self._next = ended + (ended - begun)  # at most half of a run's time
        self.failed = None
        self._is_behind = False
        return True

    @property
    def is_behind(self) -> bool:
        return self._is_behind

    @property
    def due(self) -> float:
        """Seconds until a checkpoint may be written."""
        return max(0.0, self._next - time.monotonic())

    def tell(self, event: PipelineEvent) -> None:
        self._unwritten.append(event)
        if len(self._unwritten) >= 100:
            try:
                self.flush()
            except StorageFailed as error:
                self.failed = error

    def flush(self) -> None:
        """Raises ``StorageFailed``."""
        if self._unwritten:
            self.folder.record(self._unwritten)
            self._unwritten = []

    def restart(self, round: int) -> None:
        """A fresh folder; what there is goes aside."""
        old, self._round = self._round, None
        try:
            if old is not None:
                self.folder.save(old)
            self.folder.restart(round)
        except StorageFailed as error:
            self.failed = error

    def close(self, state: State) -> None:
        """The last word on the run."""
        self._is_behind = True
        self.save_now(state)
        self.folder.close()
