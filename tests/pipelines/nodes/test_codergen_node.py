"""Nodes that run an agent: the built-in agent, with a scripted model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.nodes import KEY, MODEL, NodeHarness, ScriptedModel, processes_in

from corral._pipelines.execution import attempt as works
from corral._pipelines.execution.handlers import NodeResources
from corral._system import paths
from corral.events import Event, ToolOutput, ToolResult
from corral.testing import Request, Turn, call, fail, hang, say
from corral.values import Json

pytest_plugins = ("support.node_fixtures",)


async def test_an_answer_is_complete_in_the_file_and_short_in_the_context(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    async with scripted_model.resources([say("word " * 100)]) as resources:
        outcome = await harness.attempt(
            resources=resources,
            attrs={"prompt": "Plan $goal for {{who}}", "output_key": "plan"},
            context={"who": "us", "graph.goal": "the feast"},
        )
    assert outcome.status == "success", outcome
    assert outcome.context_updates["last_response"] == ("word " * 100)[:200]
    assert outcome.context_updates["plan"] == "word " * 100
    assert outcome.context_updates["last_stage"] == "step"
    assert outcome.tokens
    assert outcome.cost_usd
    assert harness.read("response.md") == "word " * 100
    assert harness.read("prompt.md").endswith("Plan the feast for us")
    assert scripted_model.prompts == [harness.read("prompt.md")]
    assert json.loads(harness.read("events.ndjson").splitlines()[-1])["type"] == "done"


async def test_without_a_prompt_the_label_is_sent(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    async with scripted_model.resources([say("done")]) as resources:
        await harness.attempt(resources=resources, attrs={"label": "Write the tests"})
    assert scripted_model.prompts == ["Write the tests"]


@pytest.mark.parametrize(
    "named",
    [
        {"model": MODEL},
        {"llm_model": "gemini-2.5-flash", "llm_provider": "gemini"},
        {"agent": "corral", "model": MODEL},
        {"agent": MODEL},
    ],
)
async def test_a_model_with_its_vendor_runs_on_the_built_in_agent(
    harness: NodeHarness, scripted_model: ScriptedModel, named: dict[str, Any]
) -> None:
    async with scripted_model.resources([say("done")], named=None) as resources:
        outcome = await harness.attempt(resources=resources, attrs={"prompt": "Go", **named})
    assert outcome.status == "success", outcome
    assert scripted_model.lane.requests[0].model == "gemini-2.5-flash"


@pytest.mark.parametrize(
    ("turn", "retryable"),
    [
        (fail(503, times="forever"), True),
        (fail(429, times="forever"), True),
        (fail(400, "bad", times="forever"), False),
        (fail(401, times="forever"), False),
        (fail(403, times="forever"), False),
    ],
)
async def test_a_failed_run_fails_the_node_with_its_retryable_flag(
    harness: NodeHarness, scripted_model: ScriptedModel, turn: Turn, retryable: bool
) -> None:
    async with scripted_model.resources([turn]) as resources:
        outcome = await harness.attempt(resources=resources, attrs={"prompt": "Go"})
    assert outcome.status == "fail"
    assert outcome.failure_reason
    assert outcome.retryable is retryable


async def test_a_node_ends_at_its_timeout_with_the_partial_answer(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    async with scripted_model.resources([hang("half an answer")]) as resources:
        outcome = await harness.attempt(
            resources=resources, attrs={"prompt": "Go", "timeout": "1s"}
        )
    assert "timed out after 1s" in outcome.failure_reason
    assert harness.read("response.md") == "half an answer"


async def test_a_cancelled_node_leaves_no_process(
    harness: NodeHarness, scripted_model: ScriptedModel, workspace: Path
) -> None:
    started = asyncio.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, ToolOutput):
            started.set()

    script = [call("shell", command="echo started; sleep 300")]
    async with scripted_model.resources(script) as resources:
        work = harness.context(
            resources=resources, attrs={"prompt": "Go", "policy": "all"}, emit=on_event
        )
        task = asyncio.create_task(works.attempt(work))
        async with asyncio.timeout(30):
            await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert processes_in(workspace) == []


async def test_a_node_has_its_own_policy_and_reports_denied_tools(
    harness: NodeHarness, scripted_model: ScriptedModel, workspace: Path
) -> None:
    write = call("write_file", file_path="a.txt", content="x")
    for attrs, status, written in (
        ({}, "success", False),
        ({"policy": "edits"}, "success", True),
    ):
        async with scripted_model.resources([write, say("done")]) as resources:
            outcome = await harness.attempt(resources=resources, attrs={"prompt": "Go", **attrs})
        assert outcome.status == status
        assert (workspace / "a.txt").exists() is written
        assert ("denied by the policy: write_file" in outcome.notes) is not written


async def test_only_allowed_tools_can_be_used(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    async with scripted_model.resources([say("done")], policy="all") as resources:
        await harness.attempt(
            resources=resources, attrs={"prompt": "Go", "allowed_tools": "read_file, glob"}
        )
    assert {"read_file", "glob"} <= {*scripted_model.lane.requests[0].tools}
    assert "shell" not in scripted_model.lane.requests[0].tools


@pytest.mark.parametrize(
    ("attrs", "expected"),
    [
        ({"policy": "anything"}, "policy must be one of reads, edits, all"),
        ({"sandbox": "yes"}, "sandbox must be one of needed, off, auto, require, agent"),
        ({"reasoning_effort": "immense"}, "reasoning_effort must be one of"),
        ({"max_turns": "many"}, "max_turns must be a number"),
        ({"output_schema": "no-such.json"}, "cannot be read"),
        ({"output_schema": "{nonsense"}, "is not JSON"),
        ({"agent": "gemini-aqp"}, "Did you mean"),
        ({"model": "nobody:thing"}, "unknown model vendor 'nobody'"),
        ({"session_mode": "x"}, "corral has no option 'session_mode'"),
    ],
)
async def test_invalid_attributes_fail_before_the_agent_is_called(
    harness: NodeHarness, scripted_model: ScriptedModel, attrs: dict[str, Any], expected: str
) -> None:
    async with scripted_model.resources([say("done")]) as resources:
        outcome = await harness.attempt(resources=resources, attrs={"prompt": "Go", **attrs})
    assert expected in outcome.failure_reason
    assert outcome.retryable is False
    assert scripted_model.lane.requests == []


async def test_options_reach_the_agent(harness: NodeHarness, scripted_model: ScriptedModel) -> None:
    async with scripted_model.resources([say("done")]) as resources:
        attrs = {"prompt": "Go", "system_prompt": "Speak like a pirate.", "max_turns": 3}
        outcome = await harness.attempt(resources=resources, attrs=attrs)
    assert outcome.status == "success"
    assert "Speak like a pirate." in scripted_model.lane.requests[0].system


SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["title"],
}


@pytest.mark.parametrize("in_a_file", [True, False])
async def test_typed_output_is_in_the_context(
    harness: NodeHarness, scripted_model: ScriptedModel, workspace: Path, in_a_file: bool
) -> None:
    (workspace / "schema.json").write_text(json.dumps(SCHEMA))
    schema = "schema.json" if in_a_file else json.dumps(SCHEMA)
    script = [say('{"n": 1}'), say('```json\n{"title": "It", "n": 2}\n```')]
    async with scripted_model.resources(script) as resources:
        outcome = await harness.attempt(
            "plan", resources=resources, attrs={"prompt": "Go", "output_schema": schema}
        )
    assert outcome.context_updates["plan.output"] == {"title": "It", "n": 2}


async def test_output_that_never_matches_the_schema_fails_the_node(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    async with scripted_model.resources(lambda _: say("no")) as resources:
        attrs = {"prompt": "Go", "output_schema": json.dumps(SCHEMA)}
        outcome = await harness.attempt(resources=resources, attrs=attrs)
    assert outcome.status == "fail"
    assert "step.output" not in outcome.context_updates


async def test_the_agent_continues_until_the_command_succeeds(
    harness: NodeHarness, scripted_model: ScriptedModel, workspace: Path
) -> None:
    def answer(request: Request) -> Turn:
        if "not done" in request.last_text and not request.tool_results:
            return call("write_file", file_path="done.txt", content="ready")
        return say("I think so")

    async with scripted_model.resources(answer) as resources:
        outcome = await harness.attempt(
            resources=resources,
            attrs={"prompt": "Go", "policy": "edits", "until": 'test "$(cat {{file}})" = ready'},
            context={"file": "done.txt"},
        )
    assert outcome.status == "success", outcome
    assert (workspace / "done.txt").read_text() == "ready"


async def test_exhausted_rounds_fail_the_node(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    async with scripted_model.resources(lambda _: say("done")) as resources:
        attrs = {"prompt": "Go", "until": "false", "rounds": 2}
        outcome = await harness.attempt(resources=resources, attrs=attrs)
    assert "not done after 2 further rounds" in outcome.failure_reason
    assert len(scripted_model.lane.requests) == 3


async def test_a_node_whose_work_is_not_verified_has_failed(
    harness: NodeHarness, scripted_model: ScriptedModel, workspace: Path
) -> None:
    attrs = {"prompt": "Go", "policy": "edits", "verify": 'grep -q ready "{{file}}"'}
    context: dict[str, Json] = {"file": "done.txt"}
    async with scripted_model.resources(lambda _: say("It is done")) as resources:
        outcome = await harness.attempt(resources=resources, attrs=attrs, context=context)
    assert outcome.status == "fail"
    assert outcome.retryable
    assert "not verified: grep -q ready" in outcome.failure_reason
    assert "exited with 2" in outcome.failure_reason
    script = [call("write_file", file_path="done.txt", content="ready"), say("It is done")]
    async with scripted_model.resources(script) as resources:
        outcome = await harness.attempt(resources=resources, attrs=attrs, context=context)
    assert outcome.status == "success", outcome
    assert outcome.context_updates["step.verdict"] == "verified"


async def test_a_node_says_what_its_agent_may_change_and_puts_back_the_rest(
    harness: NodeHarness, scripted_model: ScriptedModel, workspace: Path
) -> None:
    (workspace / "test_a.py").write_text("before")
    attrs: dict[str, Any] = {
        **{"prompt": "Go", "policy": "edits", "verify": "true", "work": "*.txt"}
    }
    calls = [
        call("write_file", file_path="done.txt", content="ready"),
        call("write_file", file_path="test_a.py", content="after"),
        say("It is done"),
    ]
    async with scripted_model.resources(calls) as resources:
        outcome = await harness.attempt(resources=resources, attrs=attrs)
    assert "test_a.py was changed; the check ran with the version" in outcome.failure_reason
    (workspace / "test_a.py").write_text("before")
    (workspace / "done.txt").unlink()
    async with scripted_model.resources(calls) as resources:
        outcome = await harness.attempt(resources=resources, attrs={**attrs, "put_back": True})
    assert outcome.context_updates["step.verdict"] == "verified", outcome
    assert (workspace / "test_a.py").read_text() == "before"
    assert (workspace / "done.txt").read_text() == "ready"


async def test_an_agent_may_write_its_own_status(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    status = json.dumps({"outcome": "fail", "failure_reason": "the tests are red"})
    folder = harness.run_folder / "step"
    script = [
        call("write_file", file_path=str(folder / "status.json"), content=status),
        say("I have failed"),
    ]
    async with scripted_model.resources(script, policy="edits") as resources:
        outcome = await harness.attempt(
            resources=resources, attrs={"prompt": "Write $ATTRACTOR_STAGE_DIR/status.json"}
        )
    assert (outcome.status, outcome.failure_reason) == ("fail", "the tests are red")
    assert outcome.context_updates["last_response"] == "I have failed"


async def test_commands_of_an_agent_get_the_node_variables(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    script = [
        call("shell", command='echo \'{"outcome":"retry"}\' > "$ATTRACTOR_STAGE_DIR/status.json"'),
        say("again"),
    ]
    async with scripted_model.resources(script, policy="all") as resources:
        outcome = await harness.attempt(resources=resources, attrs={"prompt": "Go"})
    assert outcome.status == "retry"


async def test_a_key_is_written_to_no_file(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    script = [call("shell", command=f"echo {KEY}; env"), say(f"The key is {KEY}")]
    async with scripted_model.resources(script, policy="all") as resources:
        outcome = await harness.attempt(resources=resources, attrs={"prompt": f"Guess {KEY}"})
    assert outcome.status == "success"
    assert KEY not in str(outcome)
    assert KEY.encode() not in harness.written_bytes()


async def test_an_unknown_effort_of_an_agent_is_left_out_with_a_note(
    harness: NodeHarness,
) -> None:
    async with NodeResources(agent="gemini-acp", options={"program": "/nonexistent"}) as resources:
        outcome = await harness.attempt(
            resources=resources, attrs={"prompt": "Go", "reasoning_effort": "high"}
        )
    assert "reasoning_effort" not in outcome.failure_reason
    assert outcome.retryable is False  # the program does not exist


async def test_a_node_stores_no_session_without_a_thread(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    async with scripted_model.resources([say("done")]) as resources:
        await harness.attempt(resources=resources, attrs={"prompt": "Go"})
    assert not paths.sessions().exists() or list(paths.sessions().iterdir()) == []


# Threads.


async def test_a_thread_resumes_its_session(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    async with scripted_model.resources([say("one"), say("two")]) as resources:
        full = {"fidelity": "full", "thread": "t"}
        first = await harness.attempt("a", resources=resources, attrs={"prompt": "First"}, **full)
        session = first.context_updates["internal.thread.t"]
        assert isinstance(session, dict)
        context: dict[str, Json] = {"internal.thread.t": session, "x": 1}
        second = await harness.attempt(
            "b",
            resources=resources,
            attrs={"prompt": "Second"},
            context=context,
            previous="a",
            **full,
        )
    assert second.status == "success", second
    history = [text for m in scripted_model.lane.requests[1].history for text in m.texts]
    assert history == ["First", "one", "Second"]
    assert harness.read("prompt.md", "b") == "Second"


async def test_a_thread_whose_session_is_lost_gets_a_summary(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    session: Json = {"agent": MODEL, "resume_token": "no-such-session"}
    async with scripted_model.resources([say("fine")]) as resources:
        outcome = await harness.attempt(
            resources=resources,
            attrs={"prompt": "Go on"},
            context={"internal.thread.t": session, "found": "a bug"},
            fidelity="full",
            thread="t",
        )
    assert outcome.status == "success", outcome
    assert "is lost" in outcome.notes
    assert "found: a bug" in scripted_model.prompts[0]
    assert outcome.context_updates["internal.thread.t"] != session


async def test_the_session_of_another_agent_is_not_resumed(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    session: Json = {"agent": "gemini-acp", "resume_token": "x"}
    async with scripted_model.resources([say("fine")]) as resources:
        outcome = await harness.attempt(
            resources=resources,
            attrs={"prompt": "Go"},
            context={"internal.thread.t": session},
            fidelity="full",
            thread="t",
        )
    assert outcome.status == "success"
    assert outcome.notes == ""


# Hooks.


async def test_a_hook_before_a_call_sees_it_and_may_skip_it(
    harness: NodeHarness, scripted_model: ScriptedModel, workspace: Path
) -> None:
    pre = (
        "cat >> seen.ndjson; echo >> seen.ndjson;"
        ' if [ "$ATTRACTOR_TOOL_NAME" = shell ]; then echo "no shells today" >&2; exit 1; fi'
    )
    script = [
        call("write_file", file_path="a.txt", content="x"),
        call("shell", command="touch evil"),
        say("done"),
    ]
    async with scripted_model.resources(script, policy="all") as resources:
        outcome = await harness.attempt(
            resources=resources, attrs={"prompt": "Go"}, graph={"tool_hooks.pre": pre}
        )
    assert outcome.status == "success", outcome
    seen = [json.loads(line) for line in (workspace / "seen.ndjson").read_text().splitlines()]
    assert [(each["hook"], each["tool"], each["node"]) for each in seen] == [
        ("pre", "write_file", "step"),
        ("pre", "shell", "step"),
    ]
    assert seen[1]["arguments"] == {"command": "touch evil"}
    assert (workspace / "a.txt").exists()
    assert not (workspace / "evil").exists()
    results = [event for event in harness.events if isinstance(event, ToolResult)]
    assert [result.status for result in results] == ["success", "denied"]
    assert results[1].error == "denied: no shells today"


async def test_a_hook_after_a_call_gets_its_result(
    harness: NodeHarness, scripted_model: ScriptedModel, workspace: Path
) -> None:
    script = [call("shell", command="echo hello"), say("done")]
    async with scripted_model.resources(script, policy="all") as resources:
        await harness.attempt(
            resources=resources,
            attrs={"prompt": "Go", "tool_hooks.post": "cat > seen.json; exit 3"},
        )
    seen = json.loads((workspace / "seen.json").read_text())
    assert (seen["hook"], seen["tool"], seen["status"]) == ("post", "shell", "success")
    assert "hello" in seen["output"]
    assert '"code":"tool_hook"' in harness.read("events.ndjson")


async def test_a_hook_that_cannot_run_skips_the_call(
    harness: NodeHarness, scripted_model: ScriptedModel, workspace: Path
) -> None:
    script = [call("shell", command="touch evil"), say("done")]
    async with scripted_model.resources(script, policy="all") as resources:
        await harness.attempt(
            resources=resources, attrs={"prompt": "Go", "tool_hooks.pre": "no-such-program-at-all"}
        )
    assert not (workspace / "evil").exists()


async def test_hooks_run_for_typed_output_too(
    harness: NodeHarness, scripted_model: ScriptedModel, workspace: Path
) -> None:
    script = [
        call("shell", command="touch evil"),
        call("submit_result", title="It"),
        say("done"),
    ]
    async with scripted_model.resources(script, policy="all") as resources:
        attrs = {
            "prompt": "Go",
            "output_schema": json.dumps(SCHEMA),
            "tool_hooks.pre": 'test "$ATTRACTOR_TOOL_NAME" != shell',
        }
        outcome = await harness.attempt(resources=resources, attrs=attrs)
    assert outcome.context_updates["step.output"] == {"title": "It"}
    assert not (workspace / "evil").exists()


async def test_an_agent_that_does_not_ask_cannot_have_a_hook_before_its_calls(
    harness: NodeHarness,
) -> None:
    async with NodeResources(agent="gemini-acp") as resources:
        outcome = await harness.attempt(
            resources=resources, attrs={"prompt": "Go", "tool_hooks.pre": "true"}
        )
    assert "tool_hooks.pre is not available with gemini-acp" in outcome.failure_reason
    assert outcome.retryable is False
