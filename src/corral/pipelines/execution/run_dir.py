"""The run folder: what people and tools read of a run.

::

    manifest.json       name, goal, run_id, start_time
    checkpoint.json     timestamp, current_node, completed_nodes, node_outcomes, node_retries,
                        context, logs: where the run stands, always whole
    events.ndjson       what happened in the run; an agent's own events are with its node
    visits/<visit>/     one folder for each visit (``build.2``), which never moves:
                        prompt.md, response.md, status.json, events.ndjson …
    <node>              a link to the node's latest visit
    artifacts/
    rounds/<n>/         all of it but the manifest and the events, of a round that
                        ``loop_restart`` ended

Ids that are no good names of files are written with ``%``. Nothing here loses a run: what
cannot be written is ``StorageFailed``, and may be tried again. A folder that is made here is
its owner's alone: prompts and answers are nobody else's.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral.errors import StorageFailed
from corral.pipelines import events
from corral.pipelines.events import PipelineEvent, RunEvent
from corral.pipelines.execution import node_dir
from corral.pipelines.graph import Graph
from corral.pipelines.scheduler.commands import Checkpoint
from corral.pipelines.scheduler.outcome import Outcome
from corral.pipelines.scheduler.state import TRUNK, State
from corral.system import fs, paths
from corral.values import Json

MANIFEST, CHECKPOINT, EVENTS = "manifest.json", "checkpoint.json", "events.ndjson"
VISITS, ARTIFACTS, ROUNDS = "visits", "artifacts", "rounds"
_TAKEN = frozenset((MANIFEST, CHECKPOINT, EVENTS, VISITS, ARTIFACTS, ROUNDS))
_STAYS = (MANIFEST, EVENTS, ROUNDS)
LONGEST = 150
"""Bytes of a file's name; an id may be longer."""
PRETTY = 256 * 1024
"""Bytes. What is larger nobody reads by eye."""
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def file_name(id: str) -> str:
    """A name for the file of this node or visit: itself, wherever that is possible."""
    kept = "".join(
        letter if letter.isalnum() or letter in "_-. ~#" else _escaped(letter) for letter in id
    )
    if kept in _TAKEN or kept.startswith((".", " ")) or not kept:
        kept = _escaped(kept[:1] or "%") + kept[1:]
    if len(kept.encode()) > LONGEST:
        digest = blake2b(id.encode(), digest_size=8).hexdigest()
        kept = kept.encode()[: LONGEST - 17].decode(errors="ignore") + f"~{digest}"
    return kept


def _escaped(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode())


class RunDir:
    """Everything raises ``StorageFailed`` where the disk will not."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._events: int | None = None
        self._outcomes: dict[str, tuple[Outcome, msgspec.Raw]] = {}

    @property
    def artifacts(self) -> Path:
        return self.path / ARTIFACTS

    def create(self, graph: Graph, run_id: str, **more: Json) -> None:
        """The folder and its manifest. One that is there already keeps its start."""
        with self._storing():
            self.path.mkdir(parents=True, mode=0o700, exist_ok=True)
            self.artifacts.mkdir(exist_ok=True)
            if (self.path / MANIFEST).exists():
                return
            manifest: dict[str, Json] = {
                "name": graph.name,
                "goal": graph.goal,
                "run_id": run_id,
                "start_time": _now(),
                "nodes": len(graph.nodes),
                **more,
            }
            paths.write_private(self.path / MANIFEST, _pretty(msgspec.json.encode(manifest)))

    def visit_dir(self, visit: str) -> Path:
        """Where the files of this visit are, or would be."""
        return self.path / VISITS / file_name(visit)

    def make_visit_dir(self, visit: str, node: str) -> Path:
        """The folder of this visit, made; the node's link shows to it, unless a later visit is
        there already. As good twice as once."""
        with self._storing():
            place = self.visit_dir(visit)
            place.mkdir(parents=True, exist_ok=True)
            link, target = self.path / file_name(node), f"{VISITS}/{place.name}"
            with suppress(OSError):
                if _number(os.readlink(link)) > _number(target):
                    return place
            draft = self.path / f".{os.getpid()}.{place.name}"
            try:
                with suppress(FileNotFoundError):
                    draft.unlink()
                draft.symlink_to(target)
                fs.move_into_place(draft, link)
            except OSError as error:
                if error.errno not in _NO_LINKS:  # a file system that has no links
                    raise
            return place

    def write_status(self, done: Checkpoint) -> None:
        """``status.json`` of a node that the plan did itself. Of a round that is over it is there
        already."""
        if done.outcome is None or (self.path / ROUNDS / str(done.round)).exists():
            return
        place = self.make_visit_dir(done.visit, done.node)
        data = _pretty(msgspec.json.encode(node_dir.status_json(done.outcome)))
        with self._storing():
            fs.write_atomically(place / node_dir.STATUS, data, mode=0o666)

    def save(self, state: State) -> None:
        """``checkpoint.json``, replaced as a whole."""
        known: dict[str, msgspec.Raw] = {}
        for node, outcome in state.outcomes.items():
            cached = self._outcomes.get(node)
            if cached is None or cached[0] is not outcome:
                self._outcomes[node] = cached = (outcome, _outcome(outcome))
            known[node] = cached[1]
        data = msgspec.json.encode(
            {
                "timestamp": _now(),
                "run_id": state.run_id,
                "status": state.finish.status if state.finish is not None else "running",
                "reason": state.finish.reason if state.finish is not None else "",
                "current_node": state.current_node,
                "completed_nodes": state.completed,
                "node_outcomes": known,
                "node_retries": state.retries,
                "context": state.context,
                "logs": state.logs,
            }
        )
        with self._storing():
            paths.write_private(self.path / CHECKPOINT, _pretty(data))

    def append_events(self, happened: Iterable[RunEvent]) -> None:
        """Append to ``events.ndjson``."""
        data = memoryview(b"".join(events.to_json(event) + b"\n" for event in happened))
        with self._storing():
            if self._events is None:
                self.path.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._events = os.open(self.path / EVENTS, flags, 0o600)
            while data:
                data = data[os.write(self._events, data) :]

    def restart(self, round: int) -> None:
        """This round begins with a fresh folder; what there is goes to ``rounds/``. As good
        twice as once."""
        with self._storing():
            rounds = self.path / ROUNDS
            over, draft = rounds / str(round - 1), rounds / f".{round - 1}"
            if over.exists():
                return
            draft.mkdir(parents=True, exist_ok=True)
            for name in sorted(os.listdir(self.path)):
                if name not in _STAYS:
                    fs.move_into_place(self.path / name, draft / name)
            fs.move_into_place(draft, over)
            self.artifacts.mkdir(exist_ok=True)
            self._outcomes.clear()

    def close(self) -> None:
        if self._events is not None:
            os.close(self._events)
            self._events = None

    @contextmanager
    def _storing(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise StorageFailed(
                f"cannot write the run folder {self.path}: {error.strerror or error}",
                hint="Free some space, or choose a folder that can be written.",
            ) from error


def _outcome(outcome: Outcome) -> msgspec.Raw:
    told = {"status": outcome.status, **msgspec.to_builtins(outcome)}
    return msgspec.Raw(msgspec.json.encode(told))


def _number(target: str) -> int:
    """Of the visit that a link shows to."""
    tail = target.rpartition(".")[2]
    return int(tail) if tail.isdecimal() else 0


def _pretty(data: bytes) -> bytes:
    return msgspec.json.format(data, indent=2) if len(data) <= PRETTY else data


def _now() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"


class CheckpointWriter:
    """What is done is done, and paid for: a folder that takes no more does not end a run. What
    could not be written is tried again with the next node; ``failed`` says what is missing."""

    def __init__(self, folder: RunDir) -> None:
        self.folder = folder
        self.failed: StorageFailed | None = None
        self._is_behind = False
        self._next = 0.0
        self._unwritten: list[PipelineEvent] = []
        self._round: State | None = None
        """Where the round stood when it was last looked at. A plan that restarts makes new lists
        and leaves these as they were, so that the old round's folder gets its last word."""

    def node_ended(self, done: Checkpoint) -> None:
        """A node has; what the plan did itself is written down."""
        try:
            self.folder.write_status(done)
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

    def add_event(self, event: PipelineEvent) -> None:
        self._unwritten.append(event)
        if len(self._unwritten) >= 100:
            try:
                self.flush()
            except StorageFailed as error:
                self.failed = error

    def flush(self) -> None:
        """Raises ``StorageFailed``."""
        if self._unwritten:
            self.folder.append_events(self._unwritten)
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
