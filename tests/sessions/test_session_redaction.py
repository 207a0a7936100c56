"""A secret that is split over several deltas is redacted everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import scripted_acp
from support.scripted_agent import scripted_options
from support.stream_checks import no_deadline

import corral
from corral._protocol.ndjson import RawEvent
from corral._sessions.redaction import EventRedactor
from corral._sessions.store import title_of
from corral._system import paths
from corral._system.environment import SecretRedactor
from corral.events import Text, Thinking, ToolOutput, ToolResult, ToolUse, UsageReport, to_json

KEY = "sk-test-0123456789abcdef"
ERASER = SecretRedactor({"KEY": KEY})
MARK = "[KEY redacted]"


def redacted(*items: RawEvent) -> list[RawEvent]:
    redactor = EventRedactor(ERASER)
    out = [each for item in items for each in redactor.take([item])]
    return [*out, *redactor.end()]


def text_of(items: list[RawEvent], *, parent: str | None = None) -> str:
    answer_text = (Text(item) if isinstance(item, str) else item for item in items)
    return "".join(
        item.delta for item in answer_text if isinstance(item, Text) and item.parent == parent
    )


def test_a_key_in_two_deltas_is_redacted() -> None:
    assert text_of(redacted("the key is sk-te", "st-0123456789abcdef.")) == f"the key is {MARK}."


def test_text_that_only_starts_like_a_key_is_shown_at_the_end() -> None:
    assert redacted("the key is sk-te") == ["the key is ", "sk-te"]


def test_a_secret_is_redacted_across_events_that_do_not_end_the_message() -> None:
    report = UsageReport(corral.Usage(input=1))
    items = redacted(Text(KEY[:9], message_id="m"), report, KEY[9:])
    assert text_of(items) == MARK
    assert report in items


def test_a_message_ends_before_the_tool_call_that_follows_it() -> None:
    use = ToolUse("1", "shell")
    assert redacted("let me see sk", use, "done") == ["let me see ", "sk", use, "done"]


def test_a_key_before_a_tool_call_of_the_same_batch_is_redacted() -> None:
    use, result = ToolUse("1", "shell"), ToolResult("1", "success")
    redactor = EventRedactor(ERASER)
    first = redactor.take(["it is ", KEY[:9], KEY[9:], use, "and ", "", KEY, result, "no ", "sk"])
    assert (text_of(first), use in first, result in first) == (
        f"it is {MARK}and {MARK}no ",
        True,
        True,
    )
    second = redactor.take(["-test", use, "plain", result])
    assert second == ["sk-test", use, "plain", result]


ITEMS = st.one_of(
    st.sampled_from([KEY, KEY[:9], KEY[9:], "s", "text", ""]),
    st.builds(ToolUse, st.just("1"), st.just("shell"), parent=st.sampled_from([None, "p"])),
    st.builds(ToolResult, st.just("1"), st.just("success"), parent=st.sampled_from([None, "p"])),
    st.sampled_from([ToolOutput("1", KEY[:9]), Thinking("s"), Text(KEY[:9], parent="p")]),
)


@no_deadline
@given(items=st.lists(ITEMS, max_size=8), size=st.integers(1, 8))
@example(items=["", ToolUse("1", "shell")], size=2)
def test_batches_of_any_size_are_redacted_alike(items: list[RawEvent], size: int) -> None:
    redactor = EventRedactor(ERASER)
    batches = [items[at : at + size] for at in range(0, len(items), size)]
    together = [each for batch in batches for each in redactor.take(batch)] + redactor.end()
    assert joined(together) == joined(redacted(*items))
    assert "" not in together


def joined(items: list[RawEvent]) -> list[RawEvent]:
    """The items with the pieces of the answer between two events as one."""
    out: list[RawEvent] = []
    for item in items:
        if isinstance(item, str) and out and isinstance(last := out[-1], str):
            out[-1] = last + item
        elif item:
            out.append(item)
    return out


def test_thinking_is_redacted_over_deltas_and_keeps_its_message_id() -> None:
    items = redacted(
        Thinking("a" + KEY[:5], message_id="m"), Thinking(KEY[5:] + "b", message_id="m")
    )
    assert "".join(item.delta for item in items if isinstance(item, Thinking)) == f"a{MARK}b"
    assert all(isinstance(item, Thinking) and item.message_id == "m" for item in items)


def test_the_output_of_two_tools_is_followed_apart() -> None:
    items = redacted(
        ToolUse("1", "shell"),
        ToolUse("2", "shell"),
        ToolOutput("1", "x" + KEY[:5]),
        ToolOutput("2", "y" + KEY[:7]),
        ToolOutput("1", KEY[5:]),
        ToolOutput("2", "z"),
        ToolOutput("2", "sk-"),
        ToolResult("2", "success"),
    )
    outputs = [item for item in items if isinstance(item, ToolOutput)]
    assert "".join(o.delta for o in outputs if o.call_id == "1") == f"x{MARK}"
    assert "".join(o.delta for o in outputs if o.call_id == "2") == f"y{KEY[:7]}zsk-"
    assert items.index(ToolOutput("2", "sk-")) < items.index(ToolResult("2", "success"))


def test_the_text_of_a_sub_agent_does_not_split_the_agents_text() -> None:
    items = redacted(KEY[:9], Text("beside", parent="p"), KEY[9:])
    assert text_of(items) == MARK
    assert text_of(items, parent="p") == "beside"


def test_a_title_is_redacted_before_it_is_cut() -> None:
    assert KEY[:-1] not in title_of("x" * (80 - len(KEY) + 1) + KEY, ERASER)
    assert title_of(" a \n b ", ERASER) == "a b"


@pytest.mark.parametrize("transport", ["stream", "acp"])
async def test_a_key_in_two_deltas_is_in_no_event_result_or_transcript(
    workspace: Path, transport: str
) -> None:
    head, tail = KEY[:9], KEY[9:]
    if transport == "acp":
        agent = scripted_acp.agent()
        orders = f"text said: {head}\ntext {tail}\nthought {head}\nthought {tail}"
        options = scripted_options(workspace, env={"SOME_API_KEY": KEY}, record=True)
        del options["program"]
    else:
        agent = "gemini-cli"
        orders = f"init\ntext said: {head}\ntext {tail}\nresult"
        options = scripted_options(workspace, env={"SOME_API_KEY": KEY}, record=True)
    async with corral.session(agent, **options) as session:
        events = [event async for event in session.prompt(orders)]
    result = corral.result_from_events(events)
    assert result.text == "said: [SOME_API_KEY redacted]"
    assert result.ok
    for kind in (Text, Thinking):
        answer_text = "".join(event.delta for event in events if isinstance(event, kind))
        assert KEY not in answer_text
    stored = b"".join(path.read_bytes() for path in paths.sessions().rglob("events.ndjson"))
    assert to_json(events[-1]) in stored
    answer = [line for line in stored.splitlines() if b'"name":"prompt"' not in line]
    assert answer
    assert not any(tail.encode() in line for line in answer)
