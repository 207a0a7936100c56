"""Searches the memory of a running process."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
ENTRY = 8
"""Bytes of an entry of ``pagemap``."""
BLOCK = 64 * 1024
"""Pages that are looked at together."""
PART = 256
"""Pages of which none exists, most of the time."""
PRESENT = 0b11 << 62
"""A page is in memory, or swapped out."""


def memory_has(pid: int, needle: bytes) -> bool:
    """Whether ``needle`` is in the writable memory of a process. Some programs reserve gigabytes
    and use little of it, so only the pages that exist are read."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        return False  # it has ended
    try:
        pages = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY)
        try:
            return any(
                needle in _read(memory, start, end)
                for first, last in _writable(lines)
                for start, end in _existing(pages, first, last)
            )
        finally:
            os.close(pages)
    finally:
        os.close(memory)


def _writable(lines: list[str]) -> Iterator[tuple[int, int]]:
    for line in lines:
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
        if found is not None:
            yield int(found[1], 16), int(found[2], 16)


def _existing(pages: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Runs of pages that exist. A needle across two blocks is found only if both are read at once,
    so runs that touch are joined."""
    run: tuple[int, int] | None = None
    for first in range(start // PAGE, end // PAGE, BLOCK):
        count = min(BLOCK, end // PAGE - first)
        try:
            data = os.pread(pages, count * ENTRY, first * ENTRY)
        except OSError:
            break
        for begin, stop in _runs(data, first):
            if run is not None and run[1] == begin:
                run = run[0], stop
                continue
            if run is not None:
                yield run
            run = begin, stop
    if run is not None:
        yield run


def _runs(data: bytes, first: int) -> Iterator[tuple[int, int]]:
    """In entries of ``pagemap``, of which the first is that of the page ``first``."""
    for offset in range(0, len(data), PART * ENTRY):
        part = data[offset : offset + PART * ENTRY]
        if not part.strip(b"\0"):
            continue
        numbers = enumerate(array("Q", part), first + offset // ENTRY)
        for exists, group in groupby(numbers, lambda each: bool(each[1] & PRESENT)):
            if exists:
                found = [number for number, _ in group]
                yield found[0] * PAGE, (found[-1] + 1) * PAGE


def _read(memory: int, start: int, end: int) -> bytes:
    pieces: list[bytes] = []
    while start < end:
        try:
            data = os.pread(memory, end - start, start)
        except OSError:
            break  # it was freed meanwhile
        if not data:
            break
        pieces.append(data)
        start += len(data)
    return b"".join(pieces)
