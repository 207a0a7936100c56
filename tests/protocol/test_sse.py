"""Server-sent events from bytes, wherever the chunks are cut."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stream_checks import no_deadline

from corral._protocol.sse import SseDecoder
from corral.errors import StreamBroken


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted({place for place in places if 0 < place < len(data)}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def read(chunks: Iterable[bytes], limit: int = 1_000_000) -> list[bytes]:
    sse = SseDecoder(limit)
    return [event for chunk in chunks for event in sse.receive(chunk)]


def expected(stream: bytes) -> list[bytes]:
    """The algorithm of the standard, line by line; an event with empty data is left out here."""
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    *lines, _unfinished = text.split(b"\n")
    events: list[bytes] = []
    held: list[bytes] = []
    for line in lines:
        if not line:
            if any(held):
                events.append(b"\n".join(held))
            held = []
            continue
        field, _, value = line.partition(b":")
        if field == b"data":
            held.append(value.removeprefix(b" "))
    return events


WORDS = st.sampled_from(
    [
        b"data: one",
        b"data:two",
        b"data",
        b"data:",
        b"data:  spaced",
        b"event: x",
        b"event:x",
        b"id: 7",
        b"retry: 5",
        b": comment",
        b"dataset: no",
        b"data: \xf0\x9f\x8e\x89",
        b"\xef\xbb\xbf",
        b"\n",
        b"\n",
        b"\n\n",
        b"\r",
        b"\r\n",
        b"\r\n\r\n",
        b"",
    ]
)
STREAM = st.lists(WORDS, max_size=24).map(b"".join)


@no_deadline
@given(stream=STREAM, places=st.lists(st.integers(0, 200)))
def test_where_the_chunks_are_cut_changes_nothing(stream: bytes, places: list[int]) -> None:
    assert read(cut(stream, places)) == expected(stream)


def test_data_without_a_space_in_an_event_with_a_name_is_read() -> None:
    assert read([b"event: x\ndata:two\ndata: one\n\n"]) == [b"two\none"]


@no_deadline
@given(stream=STREAM)
def test_byte_by_byte_is_the_same_as_at_once(stream: bytes) -> None:
    assert read([bytes([byte]) for byte in stream]) == read([stream]) == expected(stream)


@pytest.mark.parametrize(
    "stream",
    [
        b"\xef\xbb\xbfdata: a\r\n\r\ndata: b\r\rdata: c\n\n",
        b"event: x\r\ndata: 1\r\ndata: 2\r\n\r\n:\r\n\r\ndata: 3\n\r\n",
        b"\r\n\ndata:a\r\n\n\r\rdata\r\ndata: b\n\r",
    ],
)
def test_every_pair_of_cuts_gives_the_same_events(stream: bytes) -> None:
    complete = expected(stream)
    assert len(complete) >= 2
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            chunks = [stream[:first], stream[first:second], stream[second:]]
            assert read(chunks) == complete, (first, second)


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data: a\r\n\r\n", [b"a"]),
        (b"data: a\r\r", [b"a"]),
        (b"data: a\n\r\n", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\ndata\ndata: b\n\n", [b"a\n\nb"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"event: ping\ndata: {}\n\n", [b"{}"]),
        (b"id: 1\nevent: ping\ndata: {}\nretry: 3\n\n", [b"{}"]),
        (b": keep-alive\n\n: and again\ndata: a\n\n", [b"a"]),
        (b"event: ping\n\n", []),
        (b"data:\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),
        (b"data: never ended", []),
        (b"data: never ended\n", []),
        (b"\n\n\n\ndata: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"]),
    ],
)
def test_what_the_standard_says(stream: bytes, events: list[bytes]) -> None:
    assert read([stream]) == events == expected(stream)


def test_an_incomplete_event_at_the_end_of_the_stream_is_pending() -> None:
    sse = SseDecoder()
    assert not sse.pending
    assert sse.receive(b"data: a\n\n") == [b"a"]
    assert not sse.pending
    assert sse.receive(b"data: b\n") == []
    assert sse.pending
    assert sse.receive(b"\n") == [b"b"]
    assert not sse.pending


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_event_over_the_limit_is_rejected(size: int) -> None:
    sse = SseDecoder(limit=100)
    with pytest.raises(StreamBroken, match="exceeds 100 bytes") as caught:
        for _ in range(1000):
            sse.receive(b"x" * size)
    assert not caught.value.retryable


@no_deadline
@given(places=st.lists(st.integers(0, 400)), end=st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_the_limit_does_not_depend_on_the_cuts(places: list[int], end: bytes) -> None:
    small, large = b"data: " + b"x" * 90 + end, b"data: " + b"x" * 120 + end
    assert read(cut(small * 3, places), 100) == [b"x" * 90] * 3
    for stream in (small + large, small + large + small):
        with pytest.raises(StreamBroken):
            read(cut(stream, places), 100)


def test_an_event_in_a_thousand_pieces_is_joined_once() -> None:
    sse = SseDecoder()
    held: list[int] = []
    for _ in range(1000):
        assert sse.receive(b"data: x") == []
        held.append(len(sse._buffer))  # pyright: ignore[reportPrivateUsage]
    # Pieces wait as they came: nothing is copied again and again while the event grows.
    assert held == list(range(1, 1001))
    assert len(sse.receive(b"\n\n")) == 1


@no_deadline
@given(chunks=st.lists(st.binary(max_size=40), max_size=20), limit=st.integers(1, 60))
def test_garbage_raises_nothing_but_stream_broken(chunks: list[bytes], limit: int) -> None:
    sse = SseDecoder(limit)
    try:
        for chunk in chunks:
            for event in sse.receive(chunk):
                assert event
    except StreamBroken:
        pass
