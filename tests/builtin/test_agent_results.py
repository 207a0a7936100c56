"""The result of a run of the built-in agent: files, tokens, cost, model, text."""

from __future__ import annotations

import pytest
from support.builtin_agent import BuiltinAgent, events_of, warning_codes

from corral._builtin.loop import TurnTotals
from corral.events import FileChange, UsageReport
from corral.messages import Message
from corral.model_types import FinishReason, Response
from corral.result import result_from_events
from corral.testing import Call, Turn, call, say
from corral.values import Cost

pytest_plugins = ("support.builtin_agent_fixture",)

PATCH = """*** Begin Patch
*** Add File: added.txt
+new
*** Update File: changed.txt
@@
-one
+two
*** Delete File: gone.txt
*** Update File: old.txt
*** Move to: moved.txt
@@
-here
+there
*** End Patch
"""


async def test_files_are_reported_by_the_patch_and_by_the_disk(ours: BuiltinAgent) -> None:
    for name, text in {"changed.txt": "one\n", "gone.txt": "x\n", "old.txt": "here\n"}.items():
        (ours.workspace / name).write_text(text)
    script = [call("apply_patch", patch=PATCH), call("shell", command="echo x > script"), say("ok")]
    events = await ours.events(script, wire="openai", policy="all")
    result = result_from_events(events)
    kinds = {f.path.rpartition("/")[2]: (f.kind, f.by_tool) for f in result.files}
    assert kinds.pop("script") == ("created", False)
    assert kinds.pop("moved.txt")[0] in ("moved", "created")
    assert kinds == {
        "added.txt": ("created", True),
        "changed.txt": ("modified", True),
        "gone.txt": ("deleted", True),
        "old.txt": ("deleted", True),
    }
    assert result.files_complete
    changes = {(c.path.rpartition("/")[2], c.kind) for c in events_of(events, FileChange)}
    assert ("moved.txt", "moved") in changes
    assert ("old.txt", "deleted") in changes
    assert all(change.call_id for change in events_of(events, FileChange))
    assert (ours.workspace / "moved.txt").read_text() == "there\n"


async def test_a_failed_change_is_not_reported(ours: BuiltinAgent) -> None:
    wrong = call("edit_file", file_path="a.txt", old_string="x", new_string="y")
    events = await ours.events([wrong, say("ok")], policy="edits")
    assert result_from_events(events).files == ()
    assert not events_of(events, FileChange)


async def test_usage_and_cost_are_sums_over_the_answers(ours: BuiltinAgent) -> None:
    script = [
        Turn(calls=[Call("list_dir")], usage={"input": 1000, "output": 100}),
        Turn(text="ok", usage={"input": 2000, "output": 200}),
    ]
    events = await ours.events(script)
    result = result_from_events(events)
    assert (result.usage.input, result.usage.output) == (3000, 300)
    assert (result.usage.coverage, result.cost.source) == ("complete", "metered")
    assert list(result.usage_by_model.values()) == [result.usage]
    assert list(result.usage_by_model) == [result.model]
    assert result.cost.usd == pytest.approx((3000 * 0.30 + 300 * 2.50) / 1e6)
    sizes = [(event.usage.input, event.context_size) for event in events_of(events, UsageReport)]
    assert sizes == [(1000, 1100), (3000, 2200)]


async def test_each_prompt_has_its_own_usage(ours: BuiltinAgent) -> None:
    script = [
        say("a", usage={"input": 10, "output": 1}),
        say("b", usage={"input": 20, "output": 2}),
    ]
    async with ours.session(script) as session:
        first, second = await session.run("one"), await session.run("two")
    assert (first.usage.input, second.usage.input) == (10, 20)
    assert [usage.input for usage in second.usage_by_model.values()] == [20]


async def test_unreported_usage_is_unknown(ours: BuiltinAgent) -> None:
    result = await ours.run([Turn(text="ok", usage=False)])
    assert (result.usage.input, result.usage.output) == (None, None)
    assert (result.cost.usd, result.cost.source) == (None, "unknown")


async def test_the_cost_is_unknown_if_one_answer_has_none(ours: BuiltinAgent) -> None:
    script = [
        Turn(calls=[Call("list_dir")], usage={"input": 1000, "output": 100}),
        Turn(text="ok", usage=False),
    ]
    result = await ours.run(script)
    assert result.cost == Cost()
    assert result.usage.input == 1000


@pytest.mark.parametrize(
    ("asked", "answered", "reported"),
    [
        ("gemini-2.5-flash", "gemini-2.5-flash", "gemini-2.5-flash"),
        ("gemini-2.5-flash", "gemini-2.5-flash-001", "gemini-2.5-flash"),
        ("claude-sonnet-4-5", "claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("gpt-4o", "gpt-4o-2024-08-06", "gpt-4o"),
        ("mistral-large-latest", "mistral-large-2411", "mistral-large-latest"),
        ("gpt-4o", "gpt-4o-mini", "gpt-4o-mini"),
        ("gpt-4o", "gpt-4o-mini-2024-07-18", "gpt-4o-mini-2024-07-18"),
        ("gemini-2.5-flash", "gemini-2.5-flash-lite", "gemini-2.5-flash-lite"),
        ("gpt-4", "gpt-4.1", "gpt-4.1"),
        ("gpt-5", "", "gpt-5"),
    ],
)
def test_the_model_that_was_used_is_reported(asked: str, answered: str, reported: str) -> None:
    tally = TurnTotals()
    response = Response(
        id="",
        model=answered,
        provider="vendor",
        message=Message.assistant("ok"),
        finish_reason=FinishReason("stop"),
    )
    tally.add(response, f"vendor:{asked}")
    assert tally.model == f"vendor:{reported}"


async def test_the_result_has_all_text_and_the_last_answer(ours: BuiltinAgent) -> None:
    script = [
        Turn(text="First.", calls=[Call("list_dir")]),
        Turn(text=["Se", "cond."], calls=[Call("list_dir")]),
        say("Third."),
    ]
    result = await ours.run(script)
    assert (result.text, result.final_text) == ("First.\n\nSecond.\n\nThird.", "Third.")


async def test_consecutive_answers_are_separated(ours: BuiltinAgent) -> None:
    async with ours.session([say("One."), say("Two.")]) as session:
        turn = session.prompt("go")
        session.follow_up("and?")
        result = await turn.collect()
    assert (result.text, result.final_text) == ("One.\n\nTwo.", "Two.")


async def test_the_text_of_a_sub_agent_is_not_the_answer(ours: BuiltinAgent) -> None:
    script = [
        Turn(calls=[Call("spawn_agent", {"task": "under"})], match="do it"),
        Turn(text="Mine alone.", match="under"),
        Turn(calls=[Call("wait", {})], match="do it"),
        Turn(text="The answer.", match="do it"),
    ]
    result = await ours.run(script)
    assert result.text == result.final_text == "The answer."


async def test_an_ordinary_run_has_no_warnings(ours: BuiltinAgent) -> None:
    events = await ours.events([say("ok")])
    assert warning_codes(events) == []
    result = result_from_events(events)
    assert result.agent == "corral"
    assert result.model == "gemini:gemini-2.5-flash"
    assert result.resume_token == result.session_id
    assert result.agent_version
