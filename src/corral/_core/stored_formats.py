"""The formats of what corral stores, and the one check of a format that is read.

Each has its own number, apart from the version of the package: many versions share a format,
and only formats are compared. A field may be added with a default, which old and new corrals read.
Any other change of a format raises its number (docs/compatibility.md).
"""

from __future__ import annotations

from typing import Any

from corral.errors import FormatUnsupported
from corral.values import decode_as, int_or_none

JOURNAL = 2
"""Runs and batches in a database: the inputs, outputs and messages of ``engine.payloads``, the
order of the recorded calls, shared budgets. Format 1 was changed without another number."""
SESSION = 1
"""A session's folder: its metadata, and the events of its transcript."""
RECORDING = 1
"""The recorded conversation with a program."""
COMPARISON = 1
"""The plan of a comparison."""
REVIEW = 1
"""A review and its findings."""
MERGE_QUEUE = 1
"""The entries of a merge queue, and the sessions that made its branches."""

RECEIPT = 1
"""The receipt of a run: ``corral.receipt``."""


def journal_name() -> str:
    """The format of runs and batches as a database names it. It is no number alone: the corrals of
    format 1, which named theirs so, refuse a database with a higher number."""
    return f"format-{JOURNAL}"


def journal_format(name: str) -> int:
    """The format that a database names so; ours if another program wrote it."""
    number = name.removeprefix("format-")
    return int(number) if number.isdecimal() else JOURNAL


def unsupported(what: str, found: int, ours: int, more: str = "") -> FormatUnsupported:
    """The error for something in a format that this corral does not read or continue. ``more``: is
    added to what to do."""
    do = "update corral" if found > ours else "use the corral that wrote it"
    return FormatUnsupported(
        f"{what} is stored in format {found}, and this corral uses format {ours}: {do}{more}"
    )


def check(what: str, found: int, ours: int) -> None:
    """Raises ``FormatUnsupported`` if it is of a newer format, which cannot be known."""
    if found > ours:
        raise unsupported(what, found, ours)


def check_json(what: str, stored: bytes, field: str, ours: int) -> None:
    """``check`` of a JSON object whose field has the format, before anything else of it is read.
    One without the field was stored before formats had numbers. Raises ``MsgspecError`` if it is no
    object."""
    found = decode_as(stored, dict[str, Any]).get(field)
    check(what, int_or_none(found) or 0, ours)
