"""``on_limit="fallback:AGENT"``: a run that meets a limit continues in another agent."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from secrets import token_hex
from typing import Literal

import pytest
from support.builtin_agent import BuiltinAgent, model_env, run_command
from support.model_scripts import sent_json
from support.scripted_acp import agent
from support.scripted_agent import child_pids, scripted_options
from support.stream_checks import check_streams

import corral
from corral import errors, pipelines
from corral._agents import registry
from corral._sessions import store
from corral._sessions.fallback import WORK_CONTINUES, options_for
from corral.events import Done, Event, Init
from corral.result import Result
from corral.run_kwargs import RunKwargs
from corral.testing import Call, Lane, Turn, fail, say

pytest_plugins = ["support.builtin_agent_fixture"]

API_ERROR = {"error": {"code": 429, "message": "Too many requests. Please retry in 37s"}}
LIMITED = "raw " + json.dumps(
    {
        "type": "result",
        "status": "error",
        "error": {"message": json.dumps(API_ERROR)},
        "stats": {"total_tokens": 30, "input_tokens": 20, "output_tokens": 10},
    }
)
OTHER = "gemini:gemini-2.5-pro"
FIRST_MODEL = "gemini:gemini-2.5-flash"


def both(ours: BuiltinAgent, script: list[Turn], **options: object) -> RunKwargs:
    """Options with which ``gemini-cli`` is the scripted program, and the built-in agent is next."""
    own = ours.options(script)
    given: RunKwargs = {"on_limit": f"fallback:{OTHER}", **options}  # type: ignore[typeddict-item]
    found = scripted_options(ours.workspace, **given)
    found["env"] = {**found.get("env", {}), **own.get("env", {}), **own_key("GEMINI")}
    return found


def own_key(*vendors: str) -> dict[str, str]:
    """A key of one test: limits are shared by all runs of a process with the same key."""
    return dict.fromkeys((f"{name}_API_KEY" for name in vendors), f"key-{token_hex(16)}")


async def run_parts(
    prompt: str, options: RunKwargs, agents: int = 2
) -> tuple[Result[None], list[list[Event]]]:
    """The result, and the events of each agent."""
    seen: list[Event] = []
    result = await corral.run("gemini-cli", prompt, on_event=seen.append, **options)
    parts = check_streams(seen)
    assert len(parts) == agents
    return result, parts


def limit_first_model(ours: BuiltinAgent, patch: pytest.MonkeyPatch, *script: Turn) -> Lane:
    """Set the keys of two models in the environment; the first one has a limit after its first
    answer. Returns the lane of the second."""
    half = Turn(text="half of it", calls=[Call("list_directory", {"path": "."})])
    first = ours.add_lane([half, fail(429, "slow down", retry_after=600, times="forever")])
    second = ours.add_lane(list(script))
    env = {**model_env(first, "gemini"), **model_env(second, "openai")}
    env.update(own_key("GEMINI", "OPENAI"))
    for name, value in env.items():
        patch.setenv(name, value)
    return second


FIRST = "init\nuse write_file a.txt\nwrite a.txt\nused write_file\ntext half of it\n" + LIMITED


async def test_the_next_agent_gets_the_interrupted_turn_and_the_same_prompt(
    ours: BuiltinAgent, workspace: Path
) -> None:
    script = [
        Turn(calls=[Call("read_file", {"file_path": "a.txt"})], usage={"input": 10, "output": 2}),
        Turn(text="All of it.", usage={"input": 20, "output": 3}),
    ]
    result, (one, two) = await run_parts(FIRST, both(ours, script, policy="edits"))
    assert (result.status, result.agent, result.final_text) == ("success", "corral", "All of it.")
    assert result.text == "half of it\n\nAll of it."
    assert [Path(file.path).name for file in result.files] == ["a.txt"]
    assert (result.usage.input, result.usage.output) == (20 + 30, 10 + 5)
    assert (one[0].agent, two[0].agent) == ("gemini-cli", "corral")
    assert isinstance(end := one[-1], Done)
    assert (end.error and end.error.code, end.usage.input) == ("rate_limit", 20)

    sent = sent_json(ours.requests[:1])
    assert "half of it" in sent
    assert "did not end normally" in sent
    assert ours.requests[0].texts[-1] == f"{FIRST}\n\n{WORK_CONTINUES}"
    assert "written" in sent_json(ours.requests[1:])
    second = store.find(result.resume_token or "").meta
    first = store.find(second.continued_from or "").meta
    assert (first.agent, first.status, second.agent) == ("gemini-cli", "error", "corral")
    assert isinstance(begin := two[0], Init)
    assert result.continued_from == begin.continued_from == first.id


async def test_the_events_of_all_agents_give_the_result(ours: BuiltinAgent) -> None:
    result, parts = await run_parts(FIRST, both(ours, [say("One.")]))
    assert corral.result_from_events([event for part in parts for event in part]) == result


async def test_what_was_verified_is_the_work_of_all_agents(
    ours: BuiltinAgent, workspace: Path
) -> None:
    checks = [corral.files_exist("a.txt")]
    options = both(ours, [say("Done.")], policy="edits", verify=checks, keep=False)
    result = await corral.run("gemini-cli", FIRST, **options)
    assert result.verdict == "verified"
    assert result.receipt is not None
    assert [file.path for file in result.receipt.changed] == ["a.txt"]


async def test_the_first_agent_has_ended_when_the_next_one_begins(
    ours: BuiltinAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process would stay for a further prompt."""
    lane = ours.add_lane([say("Done.")])
    for name, value in {**model_env(lane, "openai"), **own_key("OPENAI")}.items():
        monkeypatch.setenv(name, value)
    program = ours.workspace / "agent.sh"
    version = registry.find("gemini-acp").package.tested
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo {version} && exit\nexec {agent()} "$@"\n'
    )
    program.chmod(0o755)
    running: list[int] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Init):
            running.append(len(child_pids()))

    result = await corral.run(
        "gemini-acp",
        f"error 429 {json.dumps(API_ERROR)}",
        on_event=on_event,
        on_limit="fallback:openai:gpt-5",
        program=str(program),
        probe="trust",
        strict=False,
        env=own_key("GEMINI"),
        cwd=ours.workspace,
    )
    assert (result.status, result.agent) == ("success", "corral"), result.error
    assert running == [1, 0]


@pytest.mark.parametrize(("probe", "passed_on"), [("trust", None), ("require", "require")])
async def test_trust_is_for_the_program_of_the_first_agent_only(
    workspace: Path, probe: Literal["trust", "require"], passed_on: str | None
) -> None:
    env = own_key("GEMINI")
    async with corral.session(FIRST_MODEL, cwd=workspace, probe=probe, env=env) as session:
        assert options_for("gemini-cli", (), session).get("probe") == passed_on


async def test_a_session_has_one_agent(ours: BuiltinAgent) -> None:
    with pytest.raises(errors.ConfigError, match="a session has one agent") as caught:
        async with corral.session("gemini-cli", **both(ours, [])):
            pass
    assert "resume=ID" in (caught.value.hint or "")


async def test_a_session_that_is_not_stored_falls_back_too(ours: BuiltinAgent) -> None:
    options = both(ours, [say("Done.")], keep=False)
    result = await corral.run("gemini-cli", FIRST, **options)
    assert (result.final_text, result.resume_token) == ("Done.", None)
    assert "half of it" in sent_json(ours.requests)
    assert store.all_sessions() == []


@pytest.mark.deep
async def test_a_node_of_a_pipeline_continues_in_another_agent(
    ours: BuiltinAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = limit_first_model(ours, monkeypatch, say("All of it."))
    graph = (
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> a -> exit;"
        ' a [prompt="Do it", on_limit="fallback:openai:gpt-5"] }'
    )
    result = await pipelines.run(graph, model=FIRST_MODEL, cwd=ours.workspace)
    assert result.status == "success", result
    assert len(lane.requests) == 1
    assert "half of it" in sent_json(lane.requests)
    assert store.all_sessions() == []


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
@pytest.mark.deep_but_first
async def test_a_task_of_a_batch_continues_in_another_agent(
    durable: bool, ours: BuiltinAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = limit_first_model(ours, monkeypatch, say("All of it."))
    file = ours.workspace / "results.jsonl"
    done = await corral.batch(
        [{"id": "t"}],
        "Do {{id}}",
        model=FIRST_MODEL,
        cwd=ours.workspace,
        results=file,
        durable=durable,
        on_limit="fallback:openai:gpt-5",
    )
    assert done.ok, done
    assert len(lane.requests) == 1
    assert "All of it." in file.read_text()


async def test_a_typed_answer_comes_from_the_next_agent(ours: BuiltinAgent) -> None:
    options = both(ours, [say('```json\n{"n": 4}\n```')])
    result = await corral.run("gemini-cli", FIRST, output=dict[str, int], **options)
    assert result.output == {"n": 4}


async def test_three_agents_fail_with_the_earliest_reset(ours: BuiltinAgent) -> None:
    options = both(ours, [], on_limit=f"fallback:{OTHER},openai:gpt-5", policy="edits")
    lanes = [
        ours.add_lane([fail(429, "slow", retry_after=seconds, times="forever")])
        for seconds in (600, 5_000)
    ]
    env = {**model_env(lanes[0], "gemini"), **model_env(lanes[1], "openai")}
    options["env"] = {**env, **own_key("GEMINI", "OPENAI")}
    first = FIRST.replace("retry in 37s", "retry in 9000s")
    result, parts = await run_parts(first, options, agents=3)
    assert result.error is not None
    assert result.error.message.startswith("gemini-cli: Too many requests")
    assert result.error.message.count("gemini-cli: ") == 1
    assert result.error.message.count("corral: ") == 2
    assert "All agents are limited" in (result.error.hint or "")
    with pytest.raises(errors.RateLimited) as caught:
        result.raise_for_status()
    started = parts[0][0].ts
    assert started + 600 <= (caught.value.resets_at or 0) < started + 5_000
    assert [isinstance(part[0], Init) and part[0].model for part in parts[1:]] == [
        OTHER,
        "openai:gpt-5",
    ]


async def test_an_agent_that_cannot_be_started_ends_the_run_with_the_limit(
    ours: BuiltinAgent, workspace: Path
) -> None:
    """Its program is there when the run begins, and gone at the limit."""
    program = workspace / "other.py"
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o755)
    prompt = FIRST.replace("init\n", f"init\nsh rm {program}\n", 1)
    options = both(ours, [], on_limit=f"fallback:{program}", policy="all")
    result, _ = await run_parts(prompt, options, agents=1)
    assert result.error is not None
    assert result.error.code == "rate_limit"
    assert "cannot continue" in result.error.message


async def test_another_error_does_not_change_the_agent(ours: BuiltinAgent) -> None:
    failed = 'raw {"type": "result", "status": "error", "error": {"message": "boom"}}'
    result = await corral.run("gemini-cli", f"init\n{failed}", **both(ours, []))
    assert (result.status, result.agent) == ("error", "gemini-cli")
    assert ours.requests == []


@pytest.mark.parametrize(
    ("fallback", "kind", "says"),
    [
        ("nobody-here", errors.UnknownAgent, "nobody-here"),
        ("claude-cli", errors.NotInstalled, "on_limit: the fallback claude-cli"),
        ("openai:gpt-5", errors.MissingKey, "on_limit: the fallback openai:gpt-5"),
    ],
)
async def test_a_fallback_is_checked_before_anything_is_spent(
    fallback: str, kind: type[errors.CorralError], says: str, ours: BuiltinAgent, workspace: Path
) -> None:
    options = both(ours, [], on_limit=f"fallback:{fallback}")
    with pytest.raises(kind, match=says):
        await corral.run("gemini-cli", "write ran.txt\n" + FIRST, **options)
    assert not (workspace / "ran.txt").exists()


@pytest.mark.whole_program
@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
async def test_the_command_line_prints_the_events_of_both_agents(
    as_json: bool, ours: BuiltinAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = ours.add_lane([say("All of it.")])
    for name, value in model_env(lane, "openai").items():
        monkeypatch.setenv(name, value)
    half = Turn(text="half of it", calls=[Call("list_directory", {"path": "."})])
    limited = [half, fail(429, "slow down", retry_after=600)]
    flags = ["--on-limit", "fallback:openai:gpt-5", *(["--json"] if as_json else [])]
    code, out, reported = await run_command(ours, limited, *flags)
    assert code == 0, reported
    assert len(lane.requests) == 1
    if as_json:
        events = [*map(corral.from_json, out.encode().splitlines())]
        assert len(check_streams(events)) == 2
        assert corral.result_from_events(events).final_text == "All of it."
    else:
        assert out == "half of it\n\nAll of it.\n"
        assert "! corral: Gemini: slow down" in reported
        assert "openai:gpt-5 · continues " in reported


async def test_a_budget_is_shared_by_both_agents(ours: BuiltinAgent) -> None:
    """The first agent is not counted on the wire: what it reports counts."""
    options = both(ours, [say("One.")], max_total_tokens=25, strict=False)
    result, _ = await run_parts(FIRST, options, agents=1)
    assert (result.status, result.agent) == ("error", "gemini-cli")
    assert result.error is not None
    assert result.error.message.startswith("Too many requests")
    assert "cannot continue: the budget is spent: 30 of max_total" in result.error.message
    assert ours.requests == []
