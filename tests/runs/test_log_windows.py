"""Windows of event logs: pages by bytes, the tail, the turns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.view_server import Transcript, tool_call

from corral import events
from corral._runs import log_windows
from corral._runs.log_windows import PAGE, LogFile, TurnIndex, read_tail
from corral._view.items import ItemBuilder, decode
from corral._view.log_pages import item_body, item_page, raw_page
from corral._view.session_logs import DETAIL_BUDGET, SessionLogs, read_end
from corral.values import Cost, Usage


@given(
    sizes=st.lists(st.integers(0, 3000), max_size=60),
    huge=st.integers(0, 3),
    tail=st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"x")),
)
def test_pages_have_every_complete_line_exactly_once(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], huge: int, tail: bytes
) -> None:
    lines = [b"%d:" % number + b"x" * size for number, size in enumerate(sizes)]
    lines[len(lines) // 2 : len(lines) // 2] = [
        b"y" * (3 * PAGE + number) for number in range(huge)
    ]
    path = tmp_path_factory.mktemp("log") / "events.ndjson"
    path.write_bytes(b"".join(line + b"\n" for line in lines) + tail)
    with LogFile(path) as log:
        found = [line for number in range(log.pages) for line in log.page(number)]
        for line in found:
            assert log.line_at(line.offset) == line
    assert [line.data for line in found] == lines


def test_a_line_without_end_is_not_read_and_a_long_one_only_in_part(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_bytes(b'{"a":1}\n' + b"z" * (log_windows.MAX_LINE + PAGE) + b'\n{"b":2}\n{"cut')
    with LogFile(path) as log:
        first, long = log.page(0)
        assert first.data == b'{"a":1}'
        assert long.is_cut
        assert len(long.data) <= log_windows.HEAD
        assert log.last_line() == log_windows.Line(log.size - len(b'{"b":2}\n{"cut'), b'{"b":2}')
    tail = read_tail(path, 0)
    assert tail.end == path.stat().st_size - len(b'{"b":2}\n{"cut')
    assert [line.data for line in read_tail(path, tail.end).lines] == [b'{"b":2}']


def test_the_tail_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_bytes(b"one\ntw")
    tail = read_tail(path, 0)
    assert [line.data for line in tail.lines] == [b"one"]
    assert read_tail(path, tail.end).lines == []
    with path.open("ab") as file:
        file.write(b"o\n")
    assert [line.data for line in read_tail(path, tail.end).lines] == [b"two"]
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="replaced"):
        read_tail(path, tail.end)


def _long_conversation(home: Path) -> Transcript:
    """Messages that begin on one page and end on others, and calls that end much later."""
    log = Transcript(home, "20260101-000000-aaaaaa")
    log.begin()
    for number in range(40):
        log.add(*(events.Text(f"word {number}/{each} ") for each in range(number * 17 % 400)))
        log.add(events.Text("sub-agent ", parent="outer"), events.Thinking("hm "))
        log.add(events.ToolUse(f"late-{number}", "shell"))
        log.add(*tool_call(number, "x" * (number * 331 % 5000)))
        if number % 3 == 0:
            log.add(events.ToolResult(f"late-{number // 2}", "success", output="late"))
    log.add(*(events.Text(f"end {each} ") for each in range(3000)))
    log.end()
    return log


@pytest.mark.deep
def test_pages_divide_a_conversation_as_one_reader_of_the_whole_log_does(tmp_path: Path) -> None:
    path = _long_conversation(tmp_path).path
    with LogFile(path) as log:
        assert log.pages > 8
        pages = [item_page(log, number) for number in range(log.pages)]
        reader = ItemBuilder()
        for line in log.lines(0, log.size):
            reader.add(line.offset, decode(line))
        reader.take_changed()
    paged = {item.key: item for page in pages for item in page.items}
    assert len(paged) == sum(len(page.items) for page in pages)
    for key, item in reader.items.items():
        item.children = paged[key].children  # counted by page
        item.continued = paged[key].continued  # not known where a group begins
    assert paged == reader.items
    texts = [item.html for item in paged.values() if item.kind == "text" and item.parent is None]
    found = " ".join("".join(text or "" for text in texts).split())
    assert all(f"end {each} " in found.replace("</p>", " ") for each in range(0, 3000, 97))


def test_the_last_page_and_a_page_after_the_end(tmp_path: Path) -> None:
    path = _long_conversation(tmp_path).path
    with LogFile(path) as log:
        last = item_page(log, -1)
        assert last.page == log.pages - 1
        assert last.items[-1].kind == "done"
        assert last.last_byte == log.size
        assert item_page(log, log.pages + 5).items == []


def test_a_complete_item_has_its_input_output_and_text(tmp_path: Path) -> None:
    log = Transcript(tmp_path, "20260101-000000-bbbbbb")
    log.begin("Do *this*")
    log.add(events.Text("one "), events.Text("two"), events.ToolUse("c", "shell", input={"a": 1}))
    log.add(events.ToolOutput("c", "first "), events.ToolOutput("c", "second"))
    log.add(events.ToolResult("c", "error", error="exit code 3"), events.Text("three"))
    with LogFile(log.path) as file:
        items = item_page(file, 0).items
        init, prompt, text, tool, after = items
        assert [item.kind for item in items] == ["init", "prompt", "text", "tool", "text"]
        assert item_body(file, text.key).text == "one two"
        body = item_body(file, tool.key)
        assert (body.output, body.error) == ("first second", "exit code 3")
        assert body.input is not None
        assert '"a": 1' in body.input
        assert tool.tool is not None
        assert (tool.tool.status, tool.tool.exit) == ("error", 3)
        assert item_body(file, prompt.key).html == "<p>Do <em>this</em></p>\n"
        assert item_body(file, after.key).text == "three"
        with pytest.raises(Exception, match="no event begins"):
            item_body(file, text.key + 1)
        assert init.text is not None


def test_lines_of_another_version_are_shown_as_what_they_are(tmp_path: Path) -> None:
    log = Transcript(tmp_path, "20260101-000000-cccccc")
    log.begin()
    with log.path.open("ab") as file:
        file.write(b'{"type":"hologram","seq":3}\nnot json\n{"type":"text","delta":5}\n')
    log.add(events.Text("fine"))
    with LogFile(log.path) as file:
        items = item_page(file, 0).items[2:]
        texts = [item.text or "" for item in items if item.kind == "vendor"]
        assert ["another version" in text for text in texts] == [True, False, True]
        assert "not an event" in texts[1]
        found = raw_page(file, 0, "HOLOGRAM")
    assert [each.line for each in found.events] == ['{"type":"hologram","seq":3}']


def test_the_turns_of_a_log_are_found_in_steps_and_when_it_grows(tmp_path: Path) -> None:
    log = Transcript(tmp_path, "20260101-000000-dddddd")
    for number in range(3):
        log.begin(f"prompt {number}")
        log.add(events.ToolResult("c", "success", output='\n{"type":"init"' + "x" * 700_000))
        log.end("success" if number else "timeout")
    index = TurnIndex()
    with LogFile(log.path) as file:
        assert not index.advance(file, 1).is_complete
        marks = index.advance(file, 10 * log_windows.SCAN)
        assert marks.is_complete
    assert len(marks.starts) == len(marks.ends) == 3
    sessions = SessionLogs()
    facts = sessions.facts(log.path, 1)
    assert not facts.is_complete
    assert facts.last is not None
    assert facts.last.info.number == 3  # the end of the log is known at once
    facts = sessions.facts(log.path, 10 * log_windows.SCAN)
    assert [turn.info.prompt for turn in facts.turns] == ["prompt 0", "prompt 1", "prompt 2"]
    assert [turn.info.status for turn in facts.turns] == ["timeout", "success", "success"]
    assert facts.usage.total == 360
    assert facts.is_finished
    log.begin("another")
    facts = sessions.facts(log.path, log_windows.SCAN)
    assert len(facts.turns) == 4
    assert not facts.is_finished


def test_the_model_calls_of_a_turn_that_runs_are_counted_as_they_come(tmp_path: Path) -> None:
    log = Transcript(tmp_path, "20260101-000000-abcdef")
    call = events.ModelCall("m", Usage(10, 2), Cost(0.25, "metered"))
    log.begin()
    log.add(call, call)
    log.end()
    log.begin("the second prompt")
    sessions = SessionLogs()
    assert sessions.facts(log.path, log_windows.SCAN).usage.total == 120
    for count in (1, 2):
        log.add(call, events.Text('{"type":"model_call"'))
        turn = sessions.facts(log.path, log_windows.SCAN).turns[-1]
        assert (turn.usage.total, turn.cost) == (12 * count, Cost(0.25 * count, "metered"))
    with log.path.open("ab") as file:
        file.write(b'{"type":"model_call","model":"m"')  # it is being written
    assert sessions.facts(log.path, log_windows.SCAN).turns[-1].usage.total == 24
    with log.path.open("ab") as file:
        file.write(b',"usage":{"input":1,"output":1}}\n')
    assert sessions.facts(log.path, log_windows.SCAN).turns[-1].usage.total == 26
    log.end()
    facts = sessions.facts(log.path, log_windows.SCAN)
    assert (facts.turns[-1].usage.total, facts.turns[-1].cost.usd) == (120, 0.5)
    end = read_end(log.path)
    assert (end.context, end.model) == (2, "m")


def test_a_log_of_two_gigabytes_is_opened_without_reading_it(tmp_path: Path) -> None:
    log = Transcript(tmp_path, "20260101-000000-ffffff")
    log.begin("the first prompt")
    os.truncate(log.path, 2 << 30)  # a line without end, which needs no space on the disk
    with log.path.open("ab") as end:
        end.write(b"\n")
    log.add(events.Text("the end"))
    log.end()
    facts = SessionLogs().facts(log.path, DETAIL_BUDGET)
    assert not facts.is_complete
    assert (facts.turns[0].info.prompt, facts.turns[-1].info.status) == (
        "the first prompt",
        "success",
    )
    with LogFile(log.path) as file:
        assert [item.kind for item in item_page(file, -1).items] == ["text", "done"]
        assert [item.kind for item in item_page(file, 0).items][:2] == ["init", "prompt"]
        assert item_page(file, file.pages // 2).items == []
        assert raw_page(file, -1, None).events


def test_a_long_log_without_its_first_event_has_its_last_turn(tmp_path: Path) -> None:
    log = Transcript(tmp_path, "20260101-000000-eeeeee")
    log.add(events.Log("x" * (2 * log_windows.SCAN)))
    log.end()
    facts = SessionLogs().facts(log.path, 1)
    assert [turn.info.status for turn in facts.turns] == ["success"]
