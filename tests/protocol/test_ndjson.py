"""All output of a program is decoded or reported: nothing is dropped, nothing raises."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stream_checks import no_deadline

from corral._agents.gemini.stream import InitFrame
from corral._protocol.ndjson import MAX_LOG_LENGTH, NdjsonStream, RawEvent, TurnEnd
from corral.events import Error, Log, Text, Unknown


class Say(msgspec.Struct, tag_field="type", tag="say"):
    text: str


class Two(msgspec.Struct, tag_field="type", tag="two"):
    pass


class Quiet(msgspec.Struct, tag_field="type", tag="quiet"):
    pass


def translate(frames: list[Any]) -> list[RawEvent]:
    found: list[RawEvent] = []
    for frame in frames:
        match frame:
            case Say():
                found.append(frame.text)
            case Two():
                found += [Text("1"), TurnEnd(ok=True)]
            case _:
                pass
    return found


def new_stream(**more: Any) -> NdjsonStream:
    return NdjsonStream(Say | Two | Quiet, translate, **more)


def items(data: bytes | str, **more: Any) -> list[RawEvent]:
    stream = new_stream(**more)
    raw = data.encode() if isinstance(data, str) else data
    return [*stream.receive(raw), *stream.end()]


def say(text: str) -> str:
    return json.dumps({"type": "say", "text": text}, ensure_ascii=False)


def test_a_frame_becomes_nothing_one_item_or_several() -> None:
    data = f'{say("a")}\n{{"type":"quiet"}}\n{{"type":"two"}}\n'
    assert items(data) == ["a", Text("1"), TurnEnd(ok=True)]


def test_a_last_line_without_its_newline_counts() -> None:
    assert items(say("a")) == ["a"]


@pytest.mark.parametrize("line", ["Memory is empty.", "0.61.0", "(node:1) Warning", "nullish", '"'])
def test_a_line_that_is_not_json_is_a_log_and_the_stream_continues(line: str) -> None:
    assert items(f"{line}\n{say('a')}\n") == [Log(line), "a"]


def test_a_long_line_that_is_not_json_is_bounded() -> None:
    (log,) = items("x" * 1_000_000 + "\n")
    assert log == Log("x" * MAX_LOG_LENGTH)


def test_blank_lines_are_ignored() -> None:
    assert items(f"\n\r\n \t\n\ufeff\n\x1b[0m\n{say('a')}\n") == ["a"]


@pytest.mark.parametrize("line", ['{"type":"say","te', "{x}", "[1,", '{"a":1}}', "{'a':1}"])
def test_invalid_json_is_a_recoverable_error(line: str) -> None:
    error, after = items(f"{line}\n{say('a')}\n")
    assert isinstance(error, Error)
    assert (error.code, error.recoverable, error.phase) == ("malformed_line", True, "stream")
    with pytest.raises(msgspec.DecodeError) as reported:
        msgspec.json.decode(line)
    assert str(reported.value) in error.message
    assert error.facts == {"sample": line}
    assert after == "a"


def test_the_sample_of_a_malformed_line_has_200_characters() -> None:
    (error,) = items('{"type":"say","text":"' + "ü" * 500 + "\n")
    assert isinstance(error, Error)
    assert error.facts["sample"] == '{"type":"say","text":"' + "ü" * 178
    assert error.message.endswith(": " + str(error.facts["sample"]))


@pytest.mark.parametrize(
    "glued",
    [
        "\x1b[2K\x1b[1G",
        "\x1b]0;a title\x07",
        "\x1b]8;;http://x\x1b\\",
        "\x1b[?25l\x1b[38;5;1m",
        "\ufeff",
        "  \t",
        "\x1bM",
    ],
)
def test_terminal_codes_before_a_frame_are_removed(glued: str) -> None:
    assert items(f"{glued}{say('a')}\n") == ["a"]


def test_terminal_codes_are_removed_from_a_log_line() -> None:
    assert items("\x1b[31mred\x1b[0m\n") == [Log("red")]


def test_carriage_returns_before_the_newline_are_ignored() -> None:
    assert items(f"{say('a')}\r\nlog\r\n") == ["a", Log("log")]


def test_an_unknown_frame_is_reported_unchanged() -> None:
    frames: list[Any] = [
        {"type": "invented", "x": [1, None, "ü"]},
        {"no": "type"},
        {"type": "say", "text": 5},
        [1, {"a": 2}],
        {},
    ]
    data = "".join(json.dumps(frame) + "\n" for frame in frames)
    assert items(data) == [Unknown(frame) for frame in frames]


def test_an_unknown_field_does_not_make_a_frame_unknown() -> None:
    assert items('{"type":"say","text":"a","later":{"b":[1]}}\n') == ["a"]


@pytest.mark.parametrize("half", ["\\ud83d", "\\uD83D", "\\udc00", "\\udfff"])
def test_a_lone_surrogate_is_replaced_and_the_frame_is_read(half: str) -> None:
    assert items(f'{{"type":"say","text":"a{half}b"}}\n') == ["a\ufffdb"]


def test_a_surrogate_pair_is_one_character() -> None:
    assert items('{"type":"say","text":"\\ud83c\\udf89"}\n') == ["🎉"]


def test_a_lone_surrogate_in_an_unknown_frame_is_replaced() -> None:
    assert items('{"type":"invented","x":"\\ud83d"}\n') == [
        Unknown({"type": "invented", "x": "\ufffd"})
    ]


@pytest.mark.parametrize(
    "line",
    [
        '{"x":NaN,"y":"\\ud83d"}',
        '{"x":1e999,"y":"\\ud83d"}',
        '{"x":"\\ud83d","y":' + "[" * 100_000,
        '{"x":"\\ud83d","y":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"x":"\\ud83d","y":' + "9" * 10_000 + "}",
        "[" * 200_000,
        "[" * 200_000 + "]" * 200_000,
        '{"type":"say","text":"a","deep":' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
    ids=["nan", "inf", "deep-open", "deep", "long-number", "brackets", "closed", "in-a-frame"],
)
def test_json_that_breaks_parsers_is_reported_and_the_stream_continues(line: str) -> None:
    first, after = items(f"{line}\n{say('a')}\n")
    assert isinstance(first, Error | Unknown)
    assert after == "a"


def test_invalid_utf_8_inside_a_frame_becomes_a_replacement() -> None:
    assert items(b'{"type":"say","text":"a\xff\xfeb"}\n') == ["a\ufffd\ufffdb"]


def test_invalid_utf_8_outside_json_is_a_log() -> None:
    assert items(b"\xff\xfe\n") == [Log("\ufffd\ufffd")]


def test_an_oversized_line_is_one_error_and_the_stream_continues() -> None:
    error, after = items(f"{say('x' * 500)}\n{say('a')}\n", limit=100)
    assert isinstance(error, Error)
    assert (error.code, error.recoverable, error.phase) == ("oversized_line", True, "stream")
    assert error.facts == {"sample": say("x" * 500)[:200], "size": len(say("x" * 500)) + 1}
    assert after == "a"


def test_a_line_separator_inside_a_string_does_not_split_the_line() -> None:
    assert items(say("a\u2028b\u2029c\x85d") + "\n") == ["a\u2028b\u2029c\x85d"]


def test_every_line_is_cleaned_before_anything_sees_it() -> None:
    def clean(data: bytes) -> bytes:
        return data.replace(b"s3cret", b"[gone]")

    data = f"{say('s3cret')}\ns3cret\n{{s3cret\n"
    stream = new_stream(clean=clean)
    found = stream.receive(data.encode())
    assert "s3cret" not in repr(found)
    assert b"s3cret" not in stream.lines.last_line
    assert found[0] == "[gone]"


def test_a_secret_cut_between_chunks_is_cleaned_too() -> None:
    def clean(data: bytes) -> bytes:
        return data.replace(b"s3cret", b"[gone]")

    stream = new_stream(clean=clean)
    assert stream.receive(b'{"type":"say","text":"s3c') == []
    assert stream.receive(b'ret"}\n') == ["[gone]"]


def test_the_last_line_is_stored_for_an_error() -> None:
    stream = new_stream()
    stream.receive(f"{say('a')}\n{say('b')}\nhalf".encode())
    assert stream.lines.last_line.strip() == say("b").encode()
    stream.end()
    assert stream.lines.last_line == b"half"


@pytest.mark.parametrize(
    "data",
    [
        '{"type":"two"} {"type":"two"}\n\n',
        '{"type":"two"}{"type":"two"}\n \n',
        '{"type":\n"say","text":"a"}\n{"type":"two"}\n{"type":"two"} {"type":"two"}\n',
        '\n{"type":"two"}{"type":"two"}\n',
    ],
)
def test_each_line_is_one_frame_whether_the_lines_come_together_or_not(data: str) -> None:
    stream = new_stream()
    apart = [item for char in data.encode() for item in stream.receive(bytes([char]))]
    assert items(data) == apart


LINES = st.one_of(
    st.text().map(say),
    st.text().filter(lambda text: "\n" not in text),
    st.sampled_from(
        ['{"type":"two"}', '{"type":"invented"}', "{", "[1]", "\x1b[0m{}", "", "{}{}", " "]
    ),
).map(lambda line: line.encode("utf-8", "replace"))
ANY = st.lists(LINES | st.binary(max_size=8)).map(b"\n".join)


@pytest.mark.deep
@no_deadline
@given(data=ANY, size=st.integers(1, 40))
def test_any_bytes_in_any_chunks_become_the_same_items(data: bytes, size: int) -> None:
    stream = new_stream()
    found: list[RawEvent] = []
    for start in range(0, len(data), size):
        found += stream.receive(data[start : start + size])
    assert [*found, *stream.end()] == items(data)


@pytest.mark.deep
@no_deadline
@given(texts=st.lists(st.text()))
def test_no_frame_is_lost(texts: list[str]) -> None:
    assert items("".join(say(text) + "\n" for text in texts)) == texts


def test_a_secret_in_an_oversized_line_is_redacted() -> None:
    stream = NdjsonStream(
        InitFrame, lambda frames: [], clean=lambda data: data.replace(b"secret", b"-"), limit=50
    )
    (item,) = stream.receive(b"secret " + b"x" * 100 + b"\n")
    assert isinstance(item, Error)
    assert item.code == "oversized_line"
    assert "secret" not in item.message
    assert "secret" not in str(item.facts)
