"""The run directory: the files that people, agents and tools read.

::

    manifest.json       name, goal, run_id, start_time
    graph.json          the graph of a run in memory; a database has that of a durable run
    checkpoint.json     timestamp, current_node, completed_nodes, node_outcomes, node_retries,
                        context, logs: the state of the run; replaced atomically
    events.ndjson       the events of the run; events of an agent are in its node's directory.
                        Those of a try that ``resume`` continued are in events.<n>.ndjson
    visits/<visit>/     one directory for each visit (``build.2``), which never moves:
                        prompt.md, response.md, status.json, events.ndjson …
    <node>              a link to the node's latest visit
    artifacts/
    rounds/<n>/         everything but the manifest, graph and events, of a round that
                        ``loop_restart`` ended

In an id that is not a valid file name, characters are escaped with ``%``. A write that fails
raises ``StorageFailed``; it does not end the run, and may be tried again. Only the owner may read a
directory that is created here, because it has prompts and answers.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgspec

from corral._pipelines import events
from corral._pipelines.events import PipelineEvent, RunEvent
from corral._pipelines.execution import verdict
from corral._pipelines.execution.verdict import NodeVerdict
from corral._pipelines.graph import Graph
from corral._pipelines.graph import to_json as graph_to_json
from corral._pipelines.scheduler.commands import Checkpoint
from corral._pipelines.scheduler.outcome import Outcome
from corral._pipelines.scheduler.state import TRUNK, State
from corral._system import fs, paths
from corral.errors import StorageFailed
from corral.values import Json, decode_as

MANIFEST, CHECKPOINT, EVENTS = "manifest.json", "checkpoint.json", "events.ndjson"
GRAPH = "graph.json"
VISITS, ARTIFACTS, ROUNDS = "visits", "artifacts", "rounds"
_RESERVED = frozenset((MANIFEST, GRAPH, CHECKPOINT, EVENTS, VISITS, ARTIFACTS, ROUNDS))
_STAYS = (MANIFEST, GRAPH, ROUNDS)
LONGEST = 150
"""Bytes of a file name. An id may be longer."""
MAX_INDENTED = 256 * 1024
"""Bytes of a file that is indented for people. Larger ones are not."""
STATUS = "status.json"
ATTEMPT_FILES = (STATUS, "prompt.md", "response.md", "tool_output.txt", "error.txt")
"""Files of one attempt, which are removed before the next."""
MAX_STATUS = 1024 * 1024
"""Bytes of a ``status.json`` that an agent or a command wrote."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.~#-]{0,100}\Z").match
"""Matches ids that are file names as they are."""
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class _Tries(msgspec.Struct):
    """What a manifest says about the tries of its run."""

    tries: int = 1


def file_name(id: str) -> str:
    """The file name of a node or visit: the id itself, if that is a valid name."""
    if _PLAIN_NAME(id) and id not in _RESERVED:
        return id
    name = "".join(
        letter if letter.isalnum() or letter in "_-. ~#" else _escaped(letter) for letter in id
    )
    if name in _RESERVED or name.startswith((".", " ")) or not name:
        name = _escaped(name[:1] or "%") + name[1:]
    if len(name.encode()) > LONGEST:
        digest = blake2b(id.encode(), digest_size=8).hexdigest()
        name = name.encode()[: LONGEST - 17].decode(errors="ignore") + f"~{digest}"
    return name


def _escaped(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode())


class RunDir:
    """Every method raises ``StorageFailed`` if the disk cannot be written."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)
        self._visits = self.path / VISITS
        self._events: int | None = None
        self._outcomes: dict[str, tuple[Outcome, msgspec.Raw]] = {}

    @property
    def artifacts(self) -> Path:
        return self.path / ARTIFACTS

    def create(
        self, graph: Graph, run_id: str, workspace: str = "", tries: int = 1, **facts: Json
    ) -> None:
        """Create the directory and its manifest, or give it to a later try of the run: the events
        of the try before are moved away. The manifest of this try is not changed. ``workspace``:
        where the run works, or the repository of its worktree. ``facts``: what lists show
        besides."""
        with self._storing():
            self.path.mkdir(parents=True, mode=0o700, exist_ok=True)
            self.artifacts.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):
                before = decode_as(fs.read_bytes(self.path / MANIFEST), _Tries)
                if before.tries >= tries:
                    return
                with suppress(FileNotFoundError):
                    earlier = f"events.{before.tries}.ndjson"
                    fs.move_into_place(self.path / EVENTS, self.path / earlier)
            manifest: dict[str, Json] = {
                "name": graph.name,
                "goal": graph.goal,
                "run_id": run_id,
                "tries": tries,
                "start_time": _now(),
                "nodes": len(graph.nodes),
                "workspace": workspace,
                "started": time.time(),
                **facts,
            }
            paths.write_private(self.path / MANIFEST, _indented(msgspec.json.encode(manifest)))

    def write_graph(self, graph: Graph) -> None:
        """Store the graph, for those who look at the run later."""
        with self._storing():
            paths.write_private(self.path / GRAPH, graph_to_json(graph))

    def visit_dir(self, visit: str) -> Path:
        """The directory of this visit, which need not exist."""
        return self._visits / file_name(visit)

    def make_visit_dir(self, visit: str, node: str) -> Path:
        """Create the directory of this visit, and point the node's link to it, unless the link
        points to a later visit. May be called twice."""
        name = file_name(visit)
        directory = self._visits / name
        with self._storing():
            os.makedirs(directory, exist_ok=True)
            try:
                self._link(node, f"{VISITS}/{name}", directory)
            except OSError as error:
                if error.errno not in _NO_LINKS:  # the file system has no links
                    raise
        return directory

    def _link(self, node: str, target: str, directory: Path) -> None:
        """Point the node's link to this visit, unless it points to a later one."""
        link = f"{self.path}{os.sep}{file_name(node)}"
        with suppress(FileExistsError):
            os.symlink(target, link)
            return
        with suppress(OSError):
            present = os.readlink(link)
            if present == target or _visit_number(present) > _visit_number(target):
                return
        draft = f"{directory}{os.sep}.link.{os.getpid()}"
        with suppress(FileExistsError):
            os.symlink(target, draft)
        fs.move_into_place(draft, link)

    def write_status(self, done: Checkpoint) -> None:
        """Write ``status.json`` of a node that the scheduler ran itself. In a round that is over
        it exists already."""
        if done.outcome is None or os.path.exists(f"{self.path}/{ROUNDS}/{done.round}"):
            return
        directory = self.make_visit_dir(done.visit, done.node)
        with self._storing():
            write_status(directory, done.outcome)

    def encode(self, state: State) -> bytes:
        """The content of ``checkpoint.json``, for ``save``."""
        known: dict[str, msgspec.Raw] = {}
        for node, outcome in state.outcomes.items():
            cached = self._outcomes.get(node)
            if cached is None or cached[0] is not outcome:
                fields = {"status": outcome.status, **msgspec.to_builtins(outcome)}
                self._outcomes[node] = cached = (outcome, msgspec.Raw(msgspec.json.encode(fields)))
            known[node] = cached[1]
        return msgspec.json.encode(
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
                "cost_usd": state.cost_usd,
                "tokens": state.tokens,
            }
        )

    def save(self, data: bytes) -> None:
        """Replace ``checkpoint.json`` atomically."""
        path, data = self.path / CHECKPOINT, _indented(data)
        with self._storing():
            try:
                fs.write_atomically(path, data)
            except FileNotFoundError:
                paths.write_private(path, data)

    def append_events(self, new_events: Iterable[RunEvent]) -> None:
        """Append to ``events.ndjson``."""
        data = memoryview(b"".join(events.to_json(event) + b"\n" for event in new_events))
        with self._storing():
            if self._events is None:
                self.path.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._events = os.open(self.path / EVENTS, flags, 0o600)
            while data:
                data = data[os.write(self._events, data) :]

    def restart(self, round: int) -> None:
        """Start this round: move the files of the last round to ``rounds/``. May be called
        twice."""
        with self._storing():
            rounds = self.path / ROUNDS
            over, draft = rounds / str(round - 1), rounds / f".{round - 1}"
            if over.exists():
                return
            draft.mkdir(parents=True, exist_ok=True)
            for name in sorted(os.listdir(self.path)):
                if name not in _STAYS and not name.startswith("events."):
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
                hint="Free some space, or choose another folder.",
            ) from error


def _visit_number(target: str) -> int:
    """The number of the visit that a link points to."""
    tail = target.rpartition(".")[2]
    return int(tail) if tail.isdecimal() else 0


def _indented(data: bytes) -> bytes:
    return msgspec.json.format(data, indent=2) if len(data) <= MAX_INDENTED else data


def _now() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"


WRITE_AFTER = 0.1
"""Seconds after which a change is written. All changes until then are written together."""
SHARE = 10
"""If a write takes long, the next one starts only after this many times as long."""


class _EncodedCheckpoint(NamedTuple):
    data: bytes
    nodes: int
    """Number of nodes that it has."""
    cost: float
    """Seconds that it took to encode."""


class CheckpointWriter:
    """Writes the run directory while a run goes on, in a thread of the running event loop.

    Each change is on the disk after ``WRITE_AFTER`` seconds, unless the last write took longer than
    a tenth of that: then after ``SHARE`` times as long. ``flush`` and ``close`` write everything at
    once. After a crash the files may lack what happened in the last moments.

    A directory that cannot be written does not end the run, because its nodes may have cost money.
    A write that failed is tried again with the next node; ``failed`` is the last error.

    ``on_saved`` is called, in the loop, with each node whose end is in ``checkpoint.json``.

    The loop adds to ``_events`` and ``_statuses`` and encodes the state, which only it may read.
    The holder of ``_lock`` takes these and writes them: the thread, or ``flush`` in the loop. A
    checkpoint that was not written yet is replaced by a newer one."""

    def __init__(self, folder: RunDir, on_saved: Callable[[str], None] | None = None) -> None:
        self.folder = folder
        self.failed: StorageFailed | None = None
        self._on_saved = on_saved
        self._lock = threading.Lock()
        self._events: deque[PipelineEvent] = deque()
        self._statuses: deque[Checkpoint] = deque()
        self._checkpoint: deque[_EncodedCheckpoint] = deque(maxlen=1)
        self._nodes: deque[str] = deque()
        """Nodes that have ended and are not in ``checkpoint.json``."""
        self._ended = self._saved = self._reported = 0
        """Number of nodes that have ended, that are in ``checkpoint.json``, and that were reported
        to be there."""
        self._timer: asyncio.TimerHandle | None = None
        self._pause = WRITE_AFTER
        self._round: State | None = None
        """The state at the last checkpoint of the round. A scheduler that restarts makes new lists
        and does not change these, so that the last checkpoint of the old round is complete."""

    # What is to be written.

    def add_event(self, event: PipelineEvent) -> None:
        self._events.append(event)
        self._schedule()

    def node_ended(self, done: Checkpoint, state: State) -> None:
        """A node has ended: write the checkpoint, and the status if the scheduler ran it itself."""
        if done.outcome is not None:
            self._statuses.append(done)
        if self._round is None or self._round.round == state.round:
            self._round = msgspec.structs.replace(state, lanes={TRUNK: state.trunk})
            self._nodes.append(done.node)
            self._ended += 1
        # Otherwise the directory of this round does not exist yet.
        self._schedule()

    # Writing.

    def _schedule(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._pause, self._write_in_thread, loop)

    def _write_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._nodes:
            self._encode(self._round)

        def written(future: asyncio.Future[None]) -> None:
            self._timer = None
            if not future.cancelled() and future.exception() is None:
                self._report()
                if self.failed is None and (self._nodes or self._events):
                    self._schedule()

        try:
            loop.run_in_executor(None, self._write).add_done_callback(written)
        except RuntimeError:  # the threads of the loop have ended, and so does the run
            self._timer = None

    def _encode(self, state: State | None) -> None:
        if state is not None:
            started = time.monotonic()
            data = self.folder.encode(state)
            cost = time.monotonic() - started
            self._checkpoint.append(_EncodedCheckpoint(data, self._ended, cost))

    def _write(self) -> None:
        """Write what is there. In any thread."""
        with self._lock:
            started, cost = time.monotonic(), 0.0
            try:
                while self._statuses:
                    self.folder.write_status(self._statuses[0])
                    self._statuses.popleft()
                if self._checkpoint:
                    checkpoint = self._checkpoint.pop()
                    cost = checkpoint.cost
                    self.folder.save(checkpoint.data)
                    self._saved = checkpoint.nodes
                batch = [self._events.popleft() for _ in range(len(self._events))]
                try:
                    if batch:
                        self.folder.append_events(batch)
                except StorageFailed:
                    self._events.extendleft(reversed(batch))
                    raise
                self.failed = None
            except StorageFailed as error:
                self.failed = error
            self._pause = max(WRITE_AFTER, SHARE * (cost + time.monotonic() - started))

    def _report(self) -> None:
        """Report the nodes that are saved now."""
        while self._reported < self._saved:
            self._reported += 1
            node = self._nodes.popleft()
            if self._on_saved is not None:
                self._on_saved(node)

    def flush(self, state: State) -> None:
        """Write everything now. Blocking."""
        self._encode(state)
        self._write()
        self._report()

    def restart(self, round: int) -> None:
        """Save the last state of the old round, and start this one."""
        old, self._round = self._round, None
        if old is not None:
            self.flush(old)
        try:
            self.folder.restart(round)
        except StorageFailed as error:
            self.failed = error

    def close(self, state: State) -> None:
        """Write the final checkpoint."""
        self.flush(state)
        self.stop()

    def stop(self) -> None:
        """Write what is there, without a further checkpoint, and close the files."""
        if self._timer is not None:
            self._timer.cancel()
        if self._events or self._statuses:
            self._write()
        self.folder.close()


# The directory of a node.


def clear_node_dir(folder: Path) -> None:
    """Create the directory of a node, or remove the files of an earlier attempt. Raises
    ``OSError``."""
    try:
        existing = os.listdir(folder)
    except FileNotFoundError:
        folder.mkdir(parents=True)
        return
    for name in existing:
        if name in ATTEMPT_FILES:
            os.unlink(f"{folder}{os.sep}{name}")
        elif fs.is_draft(name):  # its writer was killed
            with suppress(OSError):
                os.unlink(f"{folder}{os.sep}{name}")


def write_status(folder: Path, outcome: Outcome) -> None:
    """Write ``status.json``. Raises ``OSError``."""
    status: dict[str, Json] = {
        "outcome": outcome.verdict or outcome.status,
        "preferred_label": outcome.preferred_label,
        "suggested_next_ids": [*outcome.suggested_next_ids],
        "context_updates": outcome.context_updates,
        "notes": outcome.notes,
    }
    if outcome.failure_reason:
        status["failure_reason"] = outcome.failure_reason
    if outcome.cost_usd is not None:
        status["cost_usd"] = outcome.cost_usd
    if outcome.tokens is not None:
        status["tokens"] = outcome.tokens
    data = _indented(msgspec.json.encode(status))
    fs.write_atomically(f"{folder}{os.sep}{STATUS}", data, mode=0o666)


def read_status(folder: Path) -> NodeVerdict | None:
    """The status that the node's agent or command wrote; None if it wrote none. Raises
    ``ValueError`` if the file is not a status."""
    try:
        fd = os.open(
            f"{folder}{os.sep}{STATUS}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(f"status.json cannot be read: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        try:
            raw = file.read(MAX_STATUS + 1)
        except OSError as error:
            raise ValueError(f"status.json cannot be read: {error.strerror}") from error
    if len(raw) > MAX_STATUS:
        raise ValueError(f"status.json has over {MAX_STATUS:,} bytes")
    try:
        status: Json = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"status.json is not JSON: {error}") from error
    if not isinstance(status, dict):
        raise ValueError("status.json is not an object")
    if "outcome" not in status and "status" not in status:
        raise ValueError("status.json has no outcome")
    return verdict.read(status, "status.json")


class AgentEventLog:
    """Writes ``events.ndjson`` of a node. The first event creates the file. If the disk is full,
    events are lost but the run continues."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd: int | None = None
        self._is_full = False

    def add(self, line: bytes) -> None:
        if self._is_full:
            return
        try:
            if self._fd is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._fd = os.open(self._folder / EVENTS, flags, 0o666)
            os.write(self._fd, line + b"\n")
        except OSError:
            self._is_full = True

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
