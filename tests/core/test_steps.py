"""What a model did at once: the steps of an agent."""

from __future__ import annotations

from support.event_samples import session_events

from corral._core.steps import ModelStep, StepTracker
from corral.events import Event, Init, Text, Thinking, ToolOutput, ToolResult, ToolUse


def steps_of(events: list[Event], limit: int = 1_000_000) -> list[ModelStep]:
    tracker = StepTracker(limit)
    found = [step for event in events for step in tracker.add(event)]
    return [*found, *tracker.end()]


def calls(step: ModelStep) -> list[str]:
    return [f"{call.use.call_id} {call.status}" for call in step.calls]


def test_what_is_written_after_a_result_is_the_next_step() -> None:
    found = [(s.turn, s.parent, str(s.text), calls(s)) for s in steps_of(session_events())]
    assert found == [
        (1, None, "Let me look.", ["a success", "b success"]),
        (1, "t", "It is a comma.", ["t1 error"]),
        (1, "t2", "Innermost.", []),
        (1, "t", "", ["t2 success"]),
        (1, "t", "So: a comma.", []),
        (1, None, "", ["t success"]),
        (1, None, "", ["d denied"]),
        (1, None, "Fixed: <script>alert(1)</script> and `<b>`", []),
        (2, None, "", ["a cancelled"]),
    ]


def test_a_step_has_its_own_share_of_the_cumulative_usage() -> None:
    main = [step for step in steps_of(session_events()) if step.parent is None and step.turn == 1]
    assert [step.usage.input for step in main] == [100, 150, None, 50]
    assert [round(step.cost_usd or 0, 4) for step in main] == [0.01, 0.02, 0, 0.01]


def test_a_message_with_another_id_is_another_step() -> None:
    events: list[Event] = [
        Init(),
        Thinking("hm", message_id="thought"),
        Text("one ", message_id="1"),
        Text("message", message_id="1"),
        Text("another", message_id="2"),
    ]
    assert [str(step.text) for step in steps_of(events)] == ["one message", "another"]


def test_a_late_result_reaches_the_step_of_its_call() -> None:
    events: list[Event] = [
        Init(),
        ToolUse("slow", "shell"),
        ToolUse("fast", "shell"),
        ToolResult("fast", "success"),
        Text("meanwhile"),
        ToolResult("slow", "success", output="late"),
        Text("end"),
    ]
    tracker = StepTracker()
    ended = [[str(step.text) for step in tracker.add(event)] for event in events]
    assert ended == [[], [], [], [], [], [], [""]]  # with the next text, and not before its result
    assert [str(step.text) for step in tracker.end()] == ["meanwhileend"]


def test_only_the_beginning_of_a_long_text_is_kept() -> None:
    events: list[Event] = [
        Init(),
        *(Text("x" * 10) for _ in range(100)),
        ToolUse("a", "shell"),
        *(ToolOutput("a", "y" * 10) for _ in range(100)),
    ]
    (step,) = steps_of(events, limit=25)
    assert (str(step.text), step.text.cut) == ("x" * 25, 975)
    assert (str(step.calls[0].output), step.calls[0].output.cut) == ("y" * 25, 975)


def test_ended_steps_are_not_held() -> None:
    tracker = StepTracker()
    tracker.add(Init())
    for number in range(500):
        ended = tracker.add(ToolUse(str(number), "shell"))
        assert [step.calls[0].use.call_id for step in ended] == [str(number - 1)][: number or 0]
        tracker.add(ToolResult(str(number), "success"))
    assert len(tracker.end()) == 1
