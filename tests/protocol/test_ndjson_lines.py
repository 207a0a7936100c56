"""Chunks of bytes become complete lines, wherever the chunks are cut."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stream_checks import no_deadline

from corral._protocol.ndjson import HEAD_SIZE, MAX_LINE_SIZE, Lines, Oversized, is_one_per_line


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted({place for place in places if 0 < place < len(data)}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def read(chunks: Iterable[bytes], limit: int = MAX_LINE_SIZE) -> list[bytes | Oversized]:
    """Every line on its own, however they were grouped."""
    lines = Lines(limit)
    blocks = [block for chunk in chunks for block in lines.feed(chunk)] + lines.end()
    assert lines.end() == []
    found: list[bytes | Oversized] = []
    for block in blocks:
        if isinstance(block, Oversized):
            found.append(block)
        else:
            found += [line + b"\n" for line in block.split(b"\n")[:-1]]
            if not block.endswith(b"\n"):
                found.append(block.rpartition(b"\n")[2])
    return found


def expected(data: bytes, limit: int) -> list[bytes | Oversized]:
    lines = data.split(b"\n")
    complete = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    bare = [line.removesuffix(b"\n") for line in complete]
    return [
        Oversized(len(line), text[:HEAD_SIZE]) if len(text) > limit else line
        for line, text in zip(complete, bare, strict=True)
    ]


DATA = st.lists(st.sampled_from([b"a", b"\n", b"bc", b"\r", b"\xf0\x9f\x8e\x89", b"\n\n"])).map(
    b"".join
)


@no_deadline
@given(data=DATA, places=st.lists(st.integers(0, 60)))
def test_where_the_chunks_are_cut_changes_nothing(data: bytes, places: list[int]) -> None:
    assert read(cut(data, places)) == expected(data, MAX_LINE_SIZE)


@no_deadline
@given(data=DATA, places=st.lists(st.integers(0, 60)), limit=st.integers(1, 6))
def test_a_line_over_the_limit_is_dropped_and_the_stream_continues(
    data: bytes, places: list[int], limit: int
) -> None:
    assert read(cut(data, places), limit) == expected(data, limit)


def test_one_byte_at_a_time_is_the_same_as_all_at_once() -> None:
    data = '{"a":"ü🎉"}\n\n{"b":1}\nlast'.encode()
    assert read(data[i : i + 1] for i in range(len(data))) == read([data])


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\r", "\x1e"])
def test_only_a_newline_splits(separator: str) -> None:
    data = f"a{separator}b\n".encode()
    assert read([data]) == [data]


def test_a_line_of_exactly_the_limit_passes() -> None:
    assert read([b"12345\n123456\n12345"], 5) == [b"12345\n", Oversized(7, b"123456"), b"12345"]


def test_only_a_sample_of_an_oversized_line_is_stored() -> None:
    lines = Lines(1000)
    assert lines.feed(b"head") == []
    for _ in range(100):
        assert lines.feed(b"x" * 1000) == []
        held = sum(len(value) for value in _bytes_held(lines))
        assert held <= HEAD_SIZE + 1004
    (dropped,) = lines.feed(b"\n")
    assert dropped == Oversized(100_005, b"head" + b"x" * (HEAD_SIZE - 4))
    assert lines.feed(b"next\n") == [b"next\n"]


def _bytes_held(lines: Lines) -> list[bytes]:
    held: list[bytes] = []
    for value in vars(lines).values():
        held += value if isinstance(value, list) else [value] if isinstance(value, bytes) else []
    return held


def test_lines_that_arrive_together_are_returned_together() -> None:
    assert Lines().feed(b"a\nb\nc") == [b"a\nb\n"]


class Counted(bytes):
    """Counts how many bytes are looked through for a newline."""

    scanned = 0

    def find(self, sub: Any, start: Any = None, end: Any = None, /) -> int:
        found = super().find(sub, start, end)
        Counted.scanned += len(self) if found < 0 else found + 1
        return found

    def rfind(self, sub: Any, start: Any = None, end: Any = None, /) -> int:
        found = super().rfind(sub, start, end)
        Counted.scanned += len(self) - max(found, 0)
        return found


@pytest.mark.parametrize("chunk", [1, 100, 8192])
def test_every_byte_is_read_a_bounded_number_of_times(chunk: int) -> None:
    """A long line in small chunks is where a reader that rescans goes quadratic."""
    Counted.scanned = 0
    total = 200 * chunk
    lines = Lines()
    for _ in range(200):
        assert lines.feed(Counted(b"x" * chunk)) == []
    (block,) = lines.feed(Counted(b"\n"))
    assert isinstance(block, bytes)
    assert len(block) == total + 1
    assert Counted.scanned <= 2 * (total + 1)


def test_64_mib_pass_and_one_more_byte_does_not() -> None:
    mib = b"x" * (1024 * 1024)
    lines = Lines()
    for _ in range(64):
        lines.feed(mib)
    (complete,) = lines.feed(b"\n")
    assert isinstance(complete, bytes)
    assert len(complete) == MAX_LINE_SIZE + 1
    for _ in range(64):
        lines.feed(mib)
    (dropped,) = lines.feed(b"x\n")
    assert isinstance(dropped, Oversized)
    assert dropped.size == MAX_LINE_SIZE + 2


def objects_in(block: bytes) -> int:
    """Counts them as the readers do, which know no line."""
    try:
        return len(msgspec.json.Decoder(dict[str, object]).decode_lines(block))
    except msgspec.DecodeError:
        return 0


def is_object(line: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except msgspec.DecodeError:
        return False


@pytest.mark.parametrize(
    "lines", [[b'{"a":1}'], [b'{"a":1}'] * 3, [b'{"a":1}', b'{"b":{}}', b"{}"]]
)
def test_objects_with_one_line_each_are_recognized(lines: list[bytes]) -> None:
    assert is_one_per_line(b"".join(line + b"\n" for line in lines), len(lines))


PARTS = [b'{"a":1}', b'{"a":{}}', b"{}", b"{} {}", b"{}{}", b'{"a":', b"1}", b'{"a":{}', b"}", b" "]


@no_deadline
@given(lines=st.lists(st.sampled_from(PARTS), max_size=6))
def test_objects_that_share_a_line_or_have_several_are_never_taken_for_one_each(
    lines: list[bytes],
) -> None:
    block = b"".join(line + b"\n" for line in lines)
    count = objects_in(block)
    if count and is_one_per_line(block, count):
        assert all(map(is_object, lines))
