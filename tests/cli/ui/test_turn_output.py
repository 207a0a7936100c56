"""What a run writes to stdout."""

from __future__ import annotations

import pytest

from corral._cli.ui.turn_output import AnswerPrinter, LastMessage, Printer, RenderedAnswer
from corral.events import Done, Event, Init, Text, Thinking
from corral.result import ResultBuilder


@pytest.mark.parametrize("printer", [AnswerPrinter(), RenderedAnswer(separated=False)])
def test_the_text_of_an_agent_that_continues_is_another_message(printer: Printer) -> None:
    stream: list[Event] = [Text("half"), Text(" of it"), Done("error"), Init(), Text("All")]
    text = "".join(map(str, [*map(printer.text, stream), printer.end()]))
    assert text == "half of it\n\nAll\n"


@pytest.mark.parametrize("printer", [AnswerPrinter(), RenderedAnswer(separated=False)])
def test_the_messages_are_those_of_the_result(printer: Printer) -> None:
    events: list[Event] = [
        Text("I read", message_id="1"),
        Text(" it."),
        Text("I wrote it.", message_id="2"),
        Thinking("Is it done?"),
        Text("Done.", message_id="2"),
    ]
    builder = ResultBuilder()
    builder.add_all(events)
    text = "".join(map(str, [*map(printer.text, events), printer.end()]))
    assert text == "I read it.\n\nI wrote it.\n\nDone.\n"
    assert builder.answer().text == text.rstrip()


@pytest.mark.parametrize("printer", [AnswerPrinter(), RenderedAnswer(separated=False)])
def test_a_quiet_run_prints_the_last_message_at_its_end(
    printer: AnswerPrinter | RenderedAnswer,
) -> None:
    events: list[Event] = [
        Text("I read", message_id="1"),
        Text(" it."),
        Thinking("Is it done?"),
        Text("It is", message_id="2"),
        Text(" done.", message_id="2"),
        Text("A helper's", parent="call"),
        Done("success"),
    ]
    quiet, builder = LastMessage(printer), ResultBuilder()
    builder.add_all(events[:-1])
    assert "".join(map(quiet.text, events)) == ""
    assert quiet.end() == "It is done.\n"
    assert builder.answer().final_text == "It is done."
