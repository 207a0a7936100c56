"""A merge queue: its entries, and their store.

Theory of operation
-------------------
There is one queue for each target branch of a repository: a folder ``merges/<id>`` in corral's home
with ``queue.json``. It is read, changed and replaced as one file, under the lock ``gate``, so that
branches can be added while another process merges. One process at a time merges (the lock
``worker``, which the kernel releases when the process dies).

States of an entry::

    queued -> rebasing -> checking -> merged
                 |            |
                 +-> owner <--+      the session that made the branch resolves the conflict, or
                 |     |             repairs what the gate found; then it is the next
                 +-> failed          with a reason; the branch stays as it is

What is stored says what was intended, and git what has happened. After a crash every entry that is
not at its end is queued again, unless its ``result`` is on the target: then it is merged. So each
step may be done twice. An entry that is merged stays ``staged`` until git shows its result on the
target itself; if it is neither there nor on the branch for a target that is checked out, because
the target or that branch was changed by others, the entry is queued again.

An entry that has ended is ``unreported`` until a call returns a report with it. So a failure that
was stored before a crash is reported by the next call.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Generator
from hashlib import blake2b
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import msgspec

from corral._core import stored_formats
from corral._system import clock, fs, paths
from corral.errors import ConfigError, StorageFailed
from corral.values import decode_as, slug

T = TypeVar("T")
EntryState: TypeAlias = Literal["queued", "rebasing", "checking", "owner", "merged", "failed"]
EndState: TypeAlias = Literal["merged", "failed"]
OPEN: tuple[EntryState, ...] = ("queued", "rebasing", "checking", "owner")
"""States of entries that have not ended."""
LOOKS, LOOK = 5, 0.02
MAX_OUTPUT = 4_000
"""Characters of an output that an entry keeps."""


class MergeEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A branch in a merge queue.

    ::

        report = merge_queue.run_sync(["feature"], into="main", gates=["make test"])
        for entry in report.entries:
            print(entry.branch, entry.state, entry.reason)
    """

    number: int
    """Counts up from 1 in its queue."""
    branch: str
    commit: str
    """The branch when it was queued, or as its owner left it."""
    state: EntryState = "queued"
    reason: str = ""
    """Why it failed, or waits for its owner."""
    output: str = ""
    """The end of the gate's output, if the gate failed."""
    files: tuple[str, ...] = ()
    """The files in conflict."""
    owner: str = ""
    """The agent whose session resolves conflicts; empty: none does."""
    rounds: int = 0
    """How often the owner has answered. What a crash interrupted does not count."""
    base: str = ""
    """The commit of the target that this commit of the branch was tried on; empty: on none."""
    result: str = ""
    """The commit that the target gets, or has got."""
    cost_usd: float = 0.0
    """What its owner has spent here."""
    queued: float = 0.0
    ended: float | None = None
    """Times in seconds since the epoch."""
    staged: bool = False
    """Whether it was merged, and was not seen on the target itself yet: that is checked out."""
    unreported: bool = False
    """Whether it has ended, and no call has reported that."""
    turn: int = 0
    """Its place: the lowest is next."""
    order: str = ""
    """The attempt of a run that wants it merged, if one does: after a crash it finds its entry."""

    @property
    def is_open(self) -> bool:
        return self.state in OPEN


class MergeQueue(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The queue of one target branch.

    ::

        queue = corral.runs.show_sync("main-1f3a9c").content
        print(queue.into, [(entry.branch, entry.state) for entry in queue.entries])
    """

    format: int = stored_formats.MERGE_QUEUE
    id: str
    repository: str
    into: str
    gates: list[str] = []
    """Commands that must succeed."""
    rounds: int = 2
    """How often the owner of a branch is asked."""
    timeout: float = 1800.0
    """Seconds for each gate command."""
    sandbox: str = ""
    """``auto`` or ``require``: the gate runs in a sandbox."""
    pass_env: list[str] = []
    entries: list[MergeEntry] = []
    green: str = ""
    """The commit on which the gate succeeded last."""
    updating: str = ""
    """The commit that a checkout of the target is being moved to."""
    pending: str = ""
    """What the user must do to get the merged branches into a checkout that has changes."""
    turns: int = 0

    @property
    def open(self) -> list[MergeEntry]:
        """The entries that have not ended, in the order in which they are taken."""
        return sorted((each for each in self.entries if each.is_open), key=lambda each: each.turn)

    def next(self, without: Collection[int] = ()) -> MergeEntry | None:
        """The first that is queued, ``without`` these numbers."""
        found = (each for each in self.open if each.state == "queued")
        return next((each for each in found if each.number not in without), None)

    def find(self, number: int) -> MergeEntry:
        return next(each for each in self.entries if each.number == number)

    def add(self, branch: str, commit: str, owner: str) -> MergeEntry:
        """Add a branch at the end. One that is in the queue already gets this commit; it keeps its
        place."""
        for entry in self.open:
            if entry.branch == branch:
                if entry.state == "queued":
                    entry.commit, entry.owner = commit, owner or entry.owner
                    entry.base = ""
                return entry
        number = len(self.entries) + 1
        entry = MergeEntry(
            number=number, branch=branch, commit=commit, owner=owner, queued=clock.now()
        )
        self.entries.append(entry)
        self.put_last(entry)
        return entry

    def put_last(self, entry: MergeEntry) -> None:
        self.turns += 1
        entry.turn, entry.state = self.turns, "queued"

    def put_first(self, entry: MergeEntry) -> None:
        """Before others change the target again."""
        entry.turn = min((each.turn for each in self.open), default=0) - 1
        entry.state = "queued"


def end(entry: MergeEntry, state: EndState, reason: str = "") -> MergeEntry:
    entry.state, entry.reason, entry.ended = state, reason, clock.now()
    entry.staged, entry.unreported = state == "merged", True
    return entry


class QueueStore:
    """The store of one queue. All calls block and raise ``StorageFailed``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, repository: Path, into: str) -> QueueStore:
        """The store of the queue for this branch, which need not exist."""
        key = f"{os.path.realpath(repository)}\0{into}".encode("utf-8", "surrogateescape")
        name = slug(f"{repository.name}-{into}", limit=40)
        return cls(queues_folder() / f"{name}-{blake2b(key, digest_size=5).hexdigest()}")

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def path(self) -> Path:
        return self.folder / "queue.json"

    @property
    def changed(self) -> float:
        """When it was changed last, in seconds since the epoch; 0 if there is no such queue."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return 0.0

    def read(self) -> MergeQueue | None:
        """None if there is no such queue. Raises ``FormatUnsupported``."""
        try:
            data = fs.read_bytes(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageFailed(f"{self.path} cannot be read: {error.strerror}") from error
        try:
            what = f"the merge queue {self.id}"
            stored_formats.check_json(what, data, "format", stored_formats.MERGE_QUEUE)
            return decode_as(data, MergeQueue)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise StorageFailed(f"{self.path} is damaged: {error}") from error

    def write(self, queue: MergeQueue) -> None:
        try:
            paths.make_dir(self.folder)
            data = msgspec.json.format(msgspec.json.encode(queue))
            fs.write_atomically(self.path, data, sync=True)
        except OSError as error:
            raise StorageFailed(f"{self.path} cannot be written: {error.strerror}") from error

    def change(self, action: Callable[[MergeQueue], T]) -> T:
        """Change the stored queue. Raises ``ConfigError`` if there is none."""
        with self.locked():
            queue = self.read()
            if queue is None:
                raise ConfigError(f"the merge queue {self.id} was removed")
            changed = action(queue)
            self.write(queue)
        return changed

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        paths.make_dir(self.folder)
        with fs.exclusive_lock(self.folder / "gate"):
            yield

    @contextlib.contextmanager
    def working(self) -> Generator[bool]:
        """Within the block this process is the one that merges; False: another one is."""
        paths.make_dir(self.folder)
        with contextlib.ExitStack() as stack:
            is_ours = False
            for _ in range(LOOKS):
                with contextlib.suppress(BlockingIOError):
                    stack.callback(os.close, fs.lock_file(self.folder / "worker"))
                    is_ours = True
                    break
                time.sleep(LOOK)  # ``is_working`` takes the lock for a moment
            yield is_ours

    @property
    def is_working(self) -> bool:
        """Whether a process merges now."""
        return fs.is_locked(self.folder / "worker")


def queues_folder() -> Path:
    return paths.home() / "merges"


def all_queues() -> list[QueueStore]:
    """The stores of all queues, the one that changed last first."""
    stores = [QueueStore(path.parent) for path in queues_folder().glob("*/queue.json")]
    changed = [(each.changed, each) for each in stores]
    changed.sort(key=lambda pair: -pair[0])
    return [store for at, store in changed if at]
