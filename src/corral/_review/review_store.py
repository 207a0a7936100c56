"""Reviews on disk: ``CORRAL_HOME/reviews/ID/review.json``, which is written when a review starts
and when it ends. Its process holds the lock meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

import msgspec

from corral._core import stored_formats
from corral._review.result import Review
from corral._system import clock, fs, paths
from corral._system.clock import random_hex
from corral._system.environment import is_scripted
from corral._system.git.scan import project_of
from corral.errors import CorralError, StorageFailed
from corral.values import decode_as

FILE, LOCK = "review.json", "lock"


class StoredReview(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A review and what came of it."""

    format: int = stored_formats.REVIEW
    id: str
    title: str
    project: str
    started: float
    ended: float | None = None
    label: str = ""
    scripted: bool = False
    reason: str = ""
    code: str = ""
    """Of the error that ended it."""
    is_cancelled: bool = False
    review: Review | None = None
    """None while it has no result."""


def folder_of(id: str) -> Path:
    return paths.home() / "reviews" / id


def all_reviews() -> list[StoredReview]:
    """All that can be read, in no order."""
    try:
        names = fs.list_names(paths.home() / "reviews")
    except OSError:
        return []
    found: list[StoredReview] = []
    for name in names:
        with contextlib.suppress(OSError, msgspec.MsgspecError, CorralError):
            found.append(read(name))
    return found


def read(id: str) -> StoredReview:
    """Raises ``OSError``, ``msgspec.MsgspecError``, and ``FormatUnsupported``."""
    data = fs.read_bytes(folder_of(id) / FILE)
    stored_formats.check_json(f"the review {id}", data, "format", stored_formats.REVIEW)
    return decode_as(data, StoredReview)


def is_running(id: str) -> bool:
    return fs.is_locked(folder_of(id) / LOCK)


@contextlib.contextmanager
def recorded(title: str, folder: str, label: str) -> Generator[StoredReview]:
    """Stores a review that runs in the block, and how it ended. A home that cannot be written costs
    the record, never the review."""
    stored = StoredReview(
        id=f"review-{clock.timestamp()}-{random_hex(2)}",
        title=title,
        project=project_of(folder),
        started=clock.now(),
        label=label,
        scripted=is_scripted({}),
    )
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, StorageFailed):
            paths.make_dir(folder_of(stored.id))
            held.enter_context(fs.exclusive_lock(folder_of(stored.id) / LOCK))
            _write(stored)
        try:
            yield stored
        except BaseException as error:
            stored.is_cancelled = not isinstance(error, Exception)
            if isinstance(error, CorralError):
                stored.reason, stored.code = error.message, error.code
            raise
        finally:
            stored.ended = clock.now()
            with contextlib.suppress(OSError, StorageFailed):
                _write(stored)


def _write(stored: StoredReview) -> None:
    paths.write_private(folder_of(stored.id) / FILE, msgspec.json.encode(stored))
