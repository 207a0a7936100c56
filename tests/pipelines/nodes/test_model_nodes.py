"""Nodes that call a model without tools: ``prompt``, ``parallel.fan_in`` and ``for_each``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.nodes import MODEL, NodeHarness, ScriptedModel

from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.execution.run_dir import RunDir
from corral.testing import Request, Turn, fail, hang, say
from corral.values import Json, as_object

pytest_plugins = ("support.node_fixtures",)


# prompt


async def test_a_prompt_is_one_call_without_tools(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    async with scripted_model.resources([say("forty-two")]) as resources:
        outcome = await harness.attempt(
            "ask",
            resources=resources,
            attrs={"type": "prompt", "prompt": "What is {{x}}?", "system_prompt": "Be brief."},
            context={"x": "6 × 7"},
        )
    assert outcome.status == "success", outcome
    assert outcome.context_updates["ask.output"] == "forty-two"
    assert outcome.context_updates["last_response"] == "forty-two"
    assert outcome.tokens
    (request,) = scripted_model.lane.requests
    assert (request.last_text, request.tools) == ("What is 6 × 7?", ())
    assert "Be brief." in request.system
    assert harness.read("response.md", "ask") == "forty-two"


async def test_a_prompt_with_a_schema_gives_a_value(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with scripted_model.resources([say('{"n": "x"}'), say('{"n": 42}')]) as resources:
        attrs = {"type": "prompt", "prompt": "?", "output_schema": json.dumps(schema)}
        outcome = await harness.attempt(resources=resources, attrs=attrs)
    assert outcome.context_updates["step.output"] == {"n": 42}


@pytest.mark.parametrize(
    ("turn", "timeout", "retryable"),
    [
        (fail(503, times="forever"), "1m", True),
        (fail(401, times="forever"), "1m", False),
        (hang(), "500ms", True),
    ],
)
async def test_a_call_that_fails_fails_the_node(
    harness: NodeHarness,
    scripted_model: ScriptedModel,
    turn: Turn,
    timeout: str,
    retryable: bool,
) -> None:
    async with scripted_model.resources([turn]) as resources:
        outcome = await harness.attempt(
            resources=resources, attrs={"type": "prompt", "prompt": "?", "timeout": timeout}
        )
    assert outcome.status == "fail"
    assert outcome.failure_reason
    assert outcome.retryable is retryable


async def test_a_prompt_node_without_a_model_fails(harness: NodeHarness) -> None:
    outcome = await harness.attempt(attrs={"type": "prompt", "prompt": "?"})
    assert "names no model" in outcome.failure_reason
    assert outcome.retryable is False


async def test_a_simulated_prompt_calls_no_model(harness: NodeHarness) -> None:
    async with NodeResources(simulate=True) as resources:
        outcome = await harness.attempt(
            "ask", resources=resources, attrs={"type": "prompt", "prompt": "?"}
        )
    assert outcome.context_updates["ask.output"] == "[Simulated] Response for stage: ask"


# fan_in

BRANCHES: list[Json] = [
    {"id": "a", "status": "success", "last_response": "the answer of a"},
    {"id": "b", "status": "partial_success", "last_response": "the answer of b"},
    {"id": "c", "status": "fail", "last_response": "the answer of c"},
]


@pytest.mark.parametrize("named", [{}, {"agent": "corral"}])
async def test_a_model_or_an_agent_picks_the_best_branch(
    harness: NodeHarness, scripted_model: ScriptedModel, named: dict[str, Any]
) -> None:
    answer = '```json\n{"best_id": "b", "reason": "it is shorter"}\n```'
    async with scripted_model.resources([say(answer)]) as resources:
        outcome = await harness.attempt(
            "join",
            resources=resources,
            attrs={"type": "fan_in", "prompt": "Which is best?", **named},
            context={"parallel.results": BRANCHES},
        )
    assert outcome.status == "success", outcome
    assert outcome.context_updates == {
        "parallel.fan_in.best_id": "b",
        "parallel.fan_in.best_outcome": "partial_success",
    }
    assert outcome.notes == "it is shorter"
    assert "the answer of a" in scripted_model.prompts[0]
    assert "the answer of c" not in scripted_model.prompts[0]


async def test_a_fan_in_prompt_contains_the_answer_of_each_branch(harness: NodeHarness) -> None:
    """Even if two branches ended in the same node, and whatever its name is."""
    branches: list[Json] = []
    for number in (1, 2):
        visit = f"write/it.{number}"
        place = RunDir(harness.run_folder).make_visit_dir(visit, "write/it")
        (place / "response.md").write_text(f"the complete answer {number}")
        branches.append(
            {"id": f"b{number}", "status": "success", "last_visit": visit, "last_response": "the"}
        )
    async with NodeResources(simulate=True) as resources:
        await harness.attempt(
            "join",
            resources=resources,
            attrs={"type": "fan_in", "prompt": "Which?"},
            context={"parallel.results": branches},
        )
    asked = harness.read("prompt.md", "join")
    assert "the complete answer 1" in asked
    assert "the complete answer 2" in asked


async def test_a_fan_in_model_cannot_pick_an_unknown_branch(
    harness: NodeHarness, scripted_model: ScriptedModel
) -> None:
    async with scripted_model.resources(lambda _: say('{"best_id": "c"}')) as resources:
        outcome = await harness.attempt(
            resources=resources,
            attrs={"type": "fan_in", "prompt": "Which?"},
            context={"parallel.results": BRANCHES},
        )
    assert outcome.status == "fail"


async def test_a_fan_in_without_branches_fails(harness: NodeHarness) -> None:
    outcome = await harness.attempt(
        attrs={"type": "fan_in", "prompt": "Which?"}, context={"parallel.results": BRANCHES[2:]}
    )
    assert outcome.failure_reason == "there is no branch to rank: none succeeded"


# for_each


async def test_commands_run_for_each_item_and_come_back_in_order(harness: NodeHarness) -> None:
    outcome = await harness.attempt(
        "each",
        attrs={
            "type": "for_each",
            "items": "{{files}}",
            "tool_command": 'sleep 0.$((9 - 4)); printf "%s:%s" {{index}} "{{item.name}}"',
            "max_parallel": 8,
        },
        context={"files": [{"name": f"$(evil) {n}"} for n in range(8)]},
    )
    assert outcome.status == "success", outcome
    results = outcome.context_updates["each.results"]
    assert isinstance(results, list)
    assert results == [
        {"index": n, "status": "success", "output": f"{n}:$(evil) {n}"} for n in range(8)
    ]
    assert harness.read("items/3/tool_output.txt", "each") == "3:$(evil) 3"
    assert json.loads(harness.read("results.json", "each")) == results


async def test_some_failures_are_a_partial_success_and_all_a_failure(
    harness: NodeHarness,
) -> None:
    attrs = {"type": "for_each", "items": "1, 2, 3", "tool_command": "test {{item}} -lt {{most}}"}
    some = await harness.attempt(attrs=attrs, context={"most": 3})
    assert some.status == "partial_success"
    assert "1 of 3 items failed" in some.notes
    assert some.context_updates["step.failed"] == 1
    every = await harness.attempt(attrs=attrs, context={"most": 0})
    assert every.status == "fail"
    assert "3 of 3 items failed" in every.failure_reason
    assert every.retryable is None


@pytest.mark.parametrize("items", ["tool.output", "{{tool.output}}", "context.tool.output"])
@pytest.mark.parametrize("output", ['["a", "b"]\n', "a, b\n", ["a", "b"]])
async def test_items_name_a_key_with_a_list_or_its_text(
    harness: NodeHarness, items: str, output: Json
) -> None:
    outcome = await harness.attempt(
        attrs={"type": "for_each", "items": items, "tool_command": "printf %s {{item}}"},
        context={"tool.output": output},
    )
    results = outcome.context_updates["step.results"]
    assert isinstance(results, list)
    assert [as_object(each)["output"] for each in results] == ["a", "b"]


async def test_no_items_are_a_success(harness: NodeHarness) -> None:
    outcome = await harness.attempt(
        attrs={"type": "for_each", "items": "[]", "tool_command": "false"}
    )
    assert outcome.status == "success"
    assert outcome.context_updates["step.results"] == []


@pytest.mark.parametrize(
    ("attrs", "expected"),
    [
        ({"items": "[1"}, "is not JSON"),
        ({"items": '{"a": 1}'}, "must be a list"),
        ({"items": "{{n}}"}, "must be a list"),
        ({"items": "n"}, "must be a list"),
        ({"items": "1,2,3", "max_items": 2}, "over 2"),
        ({"items": "1,2", "max_parallel": 0}, "max_parallel must be at least 1"),
        ({}, "has no items"),
        ({"items": "1", "tool_command": ""}, "neither prompt nor tool_command"),
    ],
)
async def test_invalid_items_are_an_error(
    harness: NodeHarness, attrs: dict[str, Any], expected: str
) -> None:
    outcome = await harness.attempt(
        attrs={"type": "for_each", "tool_command": "true", **attrs}, context={"n": 3}
    )
    assert expected in outcome.failure_reason
    assert outcome.retryable is False


async def test_at_most_max_parallel_items_run_at_once(
    harness: NodeHarness, workspace: Path
) -> None:
    (workspace / "now").mkdir()
    command = "touch now/{{item}}; ls now | wc -l >> counts; sleep 0.2; rm now/{{item}}"
    outcome = await harness.attempt(
        attrs={
            "type": "for_each",
            "items": "a,b,c,d,e,f",
            "tool_command": command,
            "max_parallel": 2,
        }
    )
    assert outcome.status == "success", outcome
    counts = [int(line) for line in (workspace / "counts").read_text().split()]
    assert len(counts) == 6
    assert max(counts) <= 2


@pytest.mark.parametrize("named", [{"model": MODEL}, {"agent": "corral"}])
async def test_a_model_or_an_agent_answers_for_each_item(
    harness: NodeHarness, scripted_model: ScriptedModel, named: dict[str, Any]
) -> None:
    def answer(request: Request) -> Turn:
        return say(f"<{request.last_text.splitlines()[-1]}>")

    async with scripted_model.resources(answer) as resources:
        outcome = await harness.attempt(
            "each",
            resources=resources,
            attrs={"type": "for_each", "items": "a,b,c", "prompt": "Say {{item}}", **named},
        )
    assert outcome.status == "success", outcome
    results = outcome.context_updates["each.results"]
    assert isinstance(results, list)
    assert [each["output"] for each in results if isinstance(each, dict)] == [
        f"<Say {item}>" for item in "abc"
    ]
    assert outcome.tokens


async def test_an_item_that_times_out_fails_alone(harness: NodeHarness, workspace: Path) -> None:
    outcome = await harness.attempt(
        attrs={
            "type": "for_each",
            "items": "0,300",
            "tool_command": "sleep {{item}}",
            "item_timeout": "1s",
        }
    )
    assert outcome.status == "partial_success"
    results = outcome.context_updates["step.results"]
    assert isinstance(results, list)
    assert [each["status"] for each in results if isinstance(each, dict)] == ["success", "fail"]


async def test_long_answers_are_complete_in_the_file_and_short_in_the_context(
    harness: NodeHarness,
) -> None:
    outcome = await harness.attempt(
        attrs={
            "type": "for_each",
            "items": ",".join(map(str, range(40))),
            "tool_command": "head -c 40000 /dev/zero | tr '\\0' x",
            "max_parallel": 8,
        }
    )
    assert outcome.status == "success", outcome
    assert len(json.dumps(outcome.context_updates)) < 700_000
    assert len(harness.read("results.json")) > 40 * 32_000
