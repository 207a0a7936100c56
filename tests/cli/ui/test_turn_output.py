"""What a run writes to stdout."""

from __future__ import annotations

import msgspec
import pytest

from corral._cli.ui.turn_output import AnswerPrinter, Printer, RenderedAnswer
from corral._core.nesting import decode_json
from corral.events import FALLBACK, Event, HandOver, Init, Text, Thinking, Vendor
from corral.result import ResultBuilder


@pytest.mark.parametrize("printer", [AnswerPrinter(), RenderedAnswer(separated=False)])
def test_the_text_of_an_agent_that_continues_is_another_message(printer: Printer) -> None:
    data = HandOver(init=Init(), agent="gemini-cli", status="error")
    change = Vendor(FALLBACK, decode_json(msgspec.json.encode(data)))
    own = Vendor(FALLBACK, {"model": "an event of the agent"})
    written = [
        printer.text(event) for event in (Text("half"), own, Text(" of it"), change, Text("All"))
    ]
    text = "".join(map(str, [*written, printer.end()]))
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
