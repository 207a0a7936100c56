"""ATIF: what is written is valid by the format's own package, and complete."""

from __future__ import annotations

from typing import Any

import pytest
from atif import Trajectory
from support.event_samples import SESSION, pipeline_events, session_events
from support.recordings import RECORDINGS

from corral._export import atif
from corral._pipelines.events import RunEvent
from corral.events import Event, Init, Text, ToolUse, Vendor, from_json

FAMILIES = sorted(
    folder.name for folder in RECORDINGS.iterdir() if any(folder.glob("*.events.ndjson"))
)


def validated(events: list[Event] | list[RunEvent], name: str = "s") -> Trajectory:
    found = Trajectory.model_validate(atif.trajectory(events, session_id=name))
    _check_references(found)
    return found


def _check_references(trajectory: Trajectory) -> None:
    """Each reference names a trajectory inside this one. The package does not check that."""
    inner = {each.trajectory_id for each in trajectory.subagent_trajectories or ()}
    named = {
        reference.trajectory_id
        for step in trajectory.steps
        for result in (step.observation.results if step.observation else ())
        for reference in result.subagent_trajectory_ref or ()
    }
    assert named == inner
    for each in trajectory.subagent_trajectories or ():
        _check_references(each)


def texts(trajectory: Trajectory) -> list[tuple[str, str]]:
    return [(step.source, str(step.message)) for step in trajectory.steps]


def test_the_recordings_of_every_agent_are_there() -> None:
    assert {"claude", "codex", "copilot", "gemini", "opencode", "pi", "qwen"} <= {*FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_recordings_of_an_agent_are_valid(family: str) -> None:
    paths = sorted((RECORDINGS / family).glob("*.events.ndjson"))
    assert paths
    for path in paths:
        events = [from_json(line) for line in path.read_bytes().splitlines()]
        found = validated(events, path.name)
        calls = [event for event in events if isinstance(event, ToolUse)]
        written = [call.tool_call_id for step in found.steps for call in step.tool_calls or ()]
        assert len(written) == len(calls), path.name
        answer = "".join(event.delta for event in events if isinstance(event, Text))
        agent = "".join(str(step.message) for step in found.steps if step.source == "agent")
        assert agent == answer, path.name


def test_a_session_is_a_trajectory_with_its_sub_agents() -> None:
    found = validated(session_events(), SESSION)
    assert found.schema_version == "ATIF-v1.8"
    assert (found.session_id, found.agent.name, found.agent.version) == (
        SESSION, "codex-cli", "1.2.3"
    )  # fmt: skip
    prompt, look, task, denied, fixed, second, cancelled, *rest = found.steps
    parts: Any = prompt.message
    assert [part.type for part in parts] == ["text", "image"]
    assert parts[1].source.path == "shots/before.png"
    assert (look.message, look.reasoning_content) == ("Let me look.", "I should look first.")
    assert [call.arguments for call in look.tool_calls or ()] == [
        {"command": "ls -l"}, {"path": "x.py"}
    ]  # fmt: skip
    assert look.observation is not None
    assert [result.content for result in look.observation.results] == ["x.py\n", "import y\n"]
    assert look.metrics is not None
    assert (look.metrics.prompt_tokens, look.metrics.cost_usd) == (100, 0.01)
    assert look.extra is not None
    assert [each["content"] for each in look.extra["plan"]] == ["look", "fix"]
    assert task.observation is not None
    assert denied.observation is not None
    assert denied.observation.results[0].content == "the policy denies it"
    assert str(fixed.message).startswith("Fixed:")
    assert (second.source, second.message) == ("user", "And now?")
    assert cancelled.timestamp == "2023-11-14T22:15:03Z"
    assert [str(step.message) for step in rest] == [
        "the run was cancelled",
        "The turn ended: interrupted: the run was cancelled",
    ]
    (expert,) = found.subagent_trajectories or []
    assert texts(expert) == [("agent", "It is a comma."), ("agent", ""), ("agent", "So: a comma.")]
    (innermost,) = expert.subagent_trajectories or []
    assert texts(innermost) == [("agent", "Innermost.")]


def test_totals_are_those_of_all_turns() -> None:
    metrics = validated(session_events()).final_metrics
    assert metrics is not None
    assert (metrics.total_prompt_tokens, metrics.total_completion_tokens) == (340, 82)
    assert (metrics.total_cached_tokens, metrics.total_cost_usd) == (50, 0.04)


def test_the_usage_of_a_turn_belongs_to_its_last_step_if_no_step_has_its_own() -> None:
    turn = [each for each in session_events() if each.run_id.endswith(".2")]
    (step,) = [each for each in validated(turn).steps if each.source == "agent"]
    assert step.metrics is not None
    assert (step.metrics.prompt_tokens, step.llm_call_count) == (40, 1)


def test_a_pipeline_run_has_a_trajectory_for_each_agent() -> None:
    found = validated(pipeline_events())
    assert texts(found) == [
        ("user", "Ship it"),
        ("agent", "node test"),
        ("agent", "node build"),
        ("user", "Yes"),
        ("agent", "node ask"),
    ]
    assert [each.trajectory_id for each in found.subagent_trajectories or ()] == ["build"]
    assert found.extra is not None
    assert (found.agent.name, found.extra["status"]) == ("corral", "success")
    assert found.final_metrics is not None
    assert found.final_metrics.total_prompt_tokens == 300


@pytest.mark.parametrize("count", [0, 1, 8, 12, 16, 20])
def test_a_run_that_was_cut_off_is_valid(count: int) -> None:
    validated(session_events()[:count])


def test_ids_that_are_used_again_in_a_later_turn_stay_apart() -> None:
    turn: list[Event] = [
        Init(agent="codex-cli"),
        ToolUse("1", "task"),
        Text("inside", parent="1"),
    ]
    found = validated([*turn, *turn])
    assert [each.trajectory_id for each in found.subagent_trajectories or ()] == ["1", "1-2"]


def test_a_trajectory_is_written_in_small_pieces() -> None:
    sizes: list[int] = []
    events: list[Event] = [Init(), *(Text("x" * 1000, message_id=str(n)) for n in range(100))]
    atif.write(events, lambda piece: sizes.append(len(piece)), session_id="s")
    assert max(sizes) < 5_000


def test_events_without_prompts_get_the_steps_of_the_user() -> None:
    """As those of ``on_event``: only the transcript has the prompts."""
    events = [event for event in session_events() if not isinstance(event, Vendor)]
    turns = sum(isinstance(event, Init) for event in events)
    prompts = [f"prompt {number}" for number in range(turns)]
    written = atif.trajectory(events, session_id="s", prompts=prompts)
    found = Trajectory.model_validate(written)
    assert [text for source, text in texts(found) if source == "user"] == prompts
    assert texts(found)[0] == ("user", prompts[0])
