"""Reviews on disk: ``CORRAL_HOME/reviews/ID/review.json``, which is written when a review starts
and when it ends. Its process holds the lock meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

import msgspec

from corral._core import stored_formats
from corral._review.findings import Finding
from corral._review.result import Review, ReviewRun
from corral._system import clock, fs, paths
from corral._system.clock import random_hex
from corral._system.environment import is_scripted
from corral._system.git.scan import project_of
from corral.errors import ConfigError, CorralError, StorageFailed
from corral.values import Json, as_text, decode_as

FILE, LOCK = "review.json", "lock"


class PartReview(msgspec.Struct, frozen=True):
    """How one run ended."""

    run: ReviewRun
    summary: str = ""
    findings: tuple[Finding, ...] = ()
    dropped: int = 0


class ReviewCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked for: the arguments of ``corral.review.run``."""

    change: str | None = None
    patch: bytes | None = None
    agents: tuple[str, ...] = ()
    about: str = ""
    instructions: str = ""
    exclude: tuple[str, ...] = ()
    diff_only: bool = False
    max_parts: int = 8
    concurrency: int = 4
    options: dict[str, Json] = {}


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
    tries: int = 1
    call: ReviewCall = ReviewCall()
    digest: str = ""
    """Of the diff."""
    parts: list[PartReview] = []
    """The runs that have ended with an answer."""


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
def recorded(
    title: str, folder: str, digest: str, call: ReviewCall, earlier: StoredReview | None
) -> Generator[StoredReview]:
    """Stores a review that runs in the block, and how it ended. A home that cannot be written costs
    the record, never the review. ``again``: it is a further try of this one. Raises
    ``ConfigError`` if another process works on that."""
    label = as_text(call.options.get("label"))
    stored = StoredReview(
        id=f"review-{clock.timestamp()}-{random_hex(2)}" if earlier is None else earlier.id,
        title=title,
        project=project_of(folder),
        started=clock.now() if earlier is None else earlier.started,
        label=label,
        scripted=is_scripted({}),
        tries=1 if earlier is None else earlier.tries + 1,
        call=call,
        digest=digest,
        parts=[] if earlier is None else earlier.parts,
    )
    if earlier is not None and is_running(earlier.id):
        raise ConfigError(f"another process works on the review {earlier.id}")
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
