"""Only the forms of server-sent events that vendors send are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._protocol.sse import KEEP_ALIVE, SentEvent, StrictEvents, UnknownForm


def read(stream: bytes, size: int = 0) -> list[SentEvent]:
    reader = StrictEvents()
    size = size or len(stream) or 1
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    return [event for piece in pieces for event in reader.receive(piece)] + reader.end()


@pytest.mark.parametrize("size", [0, 1, 2, 7])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_events_are_read_with_their_names_however_they_are_cut(line_end: bytes, size: int) -> None:
    stream = b'event: a.b_c\ndata: {"x": 1}\n\ndata:[DONE]\nid: 7\nretry: 10\n\n'
    expected = [SentEvent("a.b_c", b'{"x": 1}'), SentEvent("", b"[DONE]")]
    assert read(stream.replace(b"\n", line_end), size) == expected


def test_comments_and_blank_lines_only_keep_the_connection_alive() -> None:
    assert read(b": hello\n\n\nid: 1\n\n") == [KEEP_ALIVE] * 3
    assert read(b": hello\ndata: 1\n: more\n\n") == [SentEvent("", b"1")]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n"])
def test_the_last_event_may_have_no_blank_line(end: bytes) -> None:
    assert read(b"data: 1" + end) == [SentEvent("", b"1")]


@pytest.mark.parametrize(
    "stream",
    [
        b" data: 1\n\n",
        b"\tdata: 1\n\n",
        b"data : 1\n\n",
        b"data\n\n",
        b"data:\n\n",
        b"data:  1\n\n",
        b"data:\t1\n\n",
        b"Data: 1\n\n",
        b"DATA: 1\n\n",
        b"\xef\xbb\xbfdata: 1\n\n",
        b"\xe2\x80\xa8data: 1\n\n",
        b"data: 1\r\rdata: 2\n\n",
        b"data: 1\r\n\rdata: 2\n\n",
        b": comment\rdata: 2\n\n",
        b"data: 1\ndata: 2\n\n",
        b"event: a\nevent: b\ndata: 1\n\n",
        b"event: a\n\n",
        b"event: a b\ndata: 1\n\n",
        b"event:\ndata: 1\n\n",
        b"data: 1\x00\n\n",
        b"id: \x00\ndata: 1\n\n",
        b"retry: x\ndata: 1\n\n",
        b"other: 1\n\n",
        b'{"x": 1}\n\n',
        b"dat",
    ],
)
def test_every_other_form_is_an_error(stream: bytes) -> None:
    with pytest.raises(UnknownForm):
        read(stream)
    with pytest.raises(UnknownForm):
        read(stream, 1)


def test_a_line_has_a_limit() -> None:
    reader = StrictEvents(limit=100)
    with pytest.raises(UnknownForm, match="more than 100 bytes"):
        reader.receive(b"data: " + b"x" * 100)


@given(st.binary(max_size=200), st.integers(1, 20))
def test_any_bytes_are_read_or_refused_and_the_cuts_do_not_matter(stream: bytes, size: int) -> None:
    results: list[list[SentEvent] | None] = []
    for each in (0, size):
        try:
            results.append(read(stream, each))
        except UnknownForm:
            results.append(None)
    assert results[0] == results[1]
