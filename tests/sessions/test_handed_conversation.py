"""A conversation in its neutral form: read from events, and shortened to the room of a target."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from corral._sessions.handed_conversation import (
    FIRST_PROMPT,
    MAX_READ,
    MAX_TEXT,
    HandedCall,
    HandedConversation,
    HandedFile,
    HandedStep,
    HandedTurn,
    fit,
    from_json,
    read,
    shorten,
)
from corral.events import (
    Done,
    Error,
    Event,
    FileChange,
    Init,
    Plan,
    PlanEntry,
    Text,
    ToolResult,
    ToolUse,
    Vendor,
)
from corral.values import FileChanged

ABOUT = ("s-1", "gemini-cli", "/work")
PATCH = """\
--- a/a.py
+++ b/a.py
@@ -1,2 +1,3 @@
 same
-old
+new
+more
"""


def turn(prompt: str, *middle: Event, status: str = "success") -> list[Event]:
    ending = Done(status="success") if status == "success" else Done(
        status="error", error=Error("rate_limited", "the quota is used up")
    )  # fmt: skip
    return [Init(agent="gemini-cli"), Vendor("prompt", prompt), *middle, ending]


def called(number: int, output: str = "ok") -> list[Event]:
    call = f"c{number}"
    return [
        Text(delta=f"step {number}"),
        ToolUse(call_id=call, name="run", input={"command": f"make {number}"}),
        ToolResult(call_id=call, status="success", output=output),
    ]


def characters(conversation: HandedConversation) -> int:
    return len(msgspec.json.encode(conversation))


def test_it_has_prompts_texts_calls_files_the_plan_and_the_end() -> None:
    events = [
        *turn(
            "Fix it",
            *called(1),
            ToolUse(call_id="sub", name="task"),
            Text(delta="a sub-agent's words", parent="sub"),
            ToolResult(call_id="sub", status="error", error="gave up"),
            Plan(entries=(PlanEntry("look", "completed"), PlanEntry("fix", "in_progress"))),
            FileChange(path="/work/a.py", kind="created", lines_added=3),
            Text(delta="Done."),
        ),
        *turn("Again", Text(delta="hm"), status="error"),
    ]
    found = read(events, about=ABOUT, diff=lambda n: PATCH if n == 1 else "")
    first, second = found.turns
    assert (first.prompt, first.status) == ("Fix it", "success")
    assert [step.text for step in first.steps] == ["step 1", "", "Done."]
    calls = [call for step in first.steps for call in step.calls]
    assert calls == [
        HandedCall("run", "success", {"command": "make 1"}, "ok"),
        HandedCall("task", "error", error="gave up"),
    ]
    assert found.files == (HandedFile("/work/a.py", "created", 2, 1),)
    assert [entry.status for entry in found.plan] == ["completed", "in_progress"]
    assert (second.status, second.error) == ("error", "the quota is used up")


def test_a_turn_that_did_not_end_has_the_steps_so_far() -> None:
    events = turn("Fix it", *called(1), ToolUse(call_id="open", name="run"))[:-1]
    (found,) = read(events, about=ABOUT).turns
    assert found.status == "unfinished"
    assert [call.status for step in found.steps for call in step.calls] == ["success", "unfinished"]


def test_a_conversation_that_was_continued_before_keeps_its_beginning() -> None:
    before = read(turn("First", Text(delta="one")), about=("s-0", "claude-cli", "/work"))
    ending = Done(status="success", files=(FileChanged("/work/b.py", "modified"),))
    events: list[Event] = [Init(agent="gemini-cli"), Vendor("prompt", "Second"), ending]
    found = read(events, about=ABOUT, before=before)
    assert [each.prompt for each in found.turns] == ["First", "Second"]
    assert (found.session, found.agent) == ("s-1", "gemini-cli")
    assert [file.path for file in found.files] == ["/work/b.py"]


def test_long_texts_are_shortened_in_the_middle() -> None:
    assert shorten("abc", 3) == "abc"
    short = shorten("a" * 500 + "z" * 500, 90)
    assert short.startswith("a" * 60)
    assert short.endswith("z" * 30)
    assert "910 characters left out" in short
    events = turn("p", *called(1, "x" * 100_000))
    (call,) = read(events, about=ABOUT).turns[0].steps[0].calls
    assert MAX_TEXT < len(call.output) < MAX_TEXT + 100


def test_ten_thousand_events_with_long_outputs_stay_bounded() -> None:
    """The newest steps are complete, the oldest shortened."""
    many = [event for n in range(3_400) for event in called(n, f"{n} " + "x" * 5_000)]
    found = read(turn("The task", *many), about=ABOUT)
    steps = found.turns[0].steps
    assert len(steps) == 3_400
    assert characters(found) < MAX_READ * 2
    assert len(steps[-1].calls[0].output) > 5_000
    assert len(steps[0].calls[0].output) < 500

    short = fit(found, 50_000)
    assert characters(short) < 60_000
    (only,) = short.turns
    assert only.prompt == "The task"
    assert only.steps[-1] == steps[-1]
    assert only.left_out == 3_400 - len(only.steps) > 0


def test_the_first_prompt_stays_and_the_turns_left_out_are_counted() -> None:
    events: list[Event] = [
        event for n in range(100) for event in turn(f"prompt {n} " + "y" * 3_000)
    ]
    found = fit(read(events, about=ABOUT), 20_000)
    assert found.turns[0].prompt.startswith("prompt 0 ")
    assert len(found.turns[0].prompt) <= FIRST_PROMPT + 100
    assert found.turns[-1].prompt.startswith("prompt 99 ")
    assert found.left_out == 100 - len(found.turns) > 0


def test_a_conversation_with_room_is_complete() -> None:
    found = read(turn("p", *called(1), *called(2)), about=ABOUT)
    assert fit(found, 100_000) == found
    assert fit(HandedConversation("s", "a", "/"), 10) == HandedConversation("s", "a", "/")


TEXTS = st.text(max_size=30).map(lambda text: text * 10)
STEPS = st.builds(
    HandedStep,
    TEXTS,
    st.lists(st.builds(HandedCall, TEXTS, st.just("success"), TEXTS), max_size=2).map(tuple),
)
TURNS = st.builds(HandedTurn, st.just("agent"), TEXTS, steps=st.lists(STEPS, max_size=5).map(tuple))


@settings(max_examples=40)
@given(st.lists(TURNS, min_size=1, max_size=6), st.integers(400, 5_000))
def test_whatever_the_room_is_it_fits_and_nothing_is_left_out_silently(
    turns: list[HandedTurn], room: int
) -> None:
    found = fit(HandedConversation("s", "a", "/", turns=tuple(turns)), room)
    assert len(found.turns) + found.left_out == len(turns)
    kept = [turns[0], *turns[len(turns) - len(found.turns) + 1 :]]
    for short, complete in zip(found.turns, kept, strict=True):
        assert len(short.steps) + short.left_out == len(complete.steps)
    texts = [each.prompt for each in found.turns]
    texts += [step.text for each in found.turns for step in each.steps]
    assert sum(map(len, texts)) <= room + FIRST_PROMPT
    assert from_json(msgspec.json.encode(found)) == found
