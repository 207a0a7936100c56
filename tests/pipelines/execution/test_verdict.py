"""How agents and models report the outcome of a node, and how it is applied."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.builtin_agent import MODELS, model_env
from support.installed_agents import installed
from support.nodes import ScriptedModel
from support.scheduler_driver import graph_of

from corral._agents import registry
from corral._engine import memory_runner
from corral._engine.payloads import PipelineOutput
from corral._pipelines import loader
from corral._pipelines.events import PipelineEvent
from corral._pipelines.execution import verdict
from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.execution.verdict import Wanted, find, instruction, read, wanted_of
from corral._pipelines.scheduler.outcome import Outcome
from corral._testing.conformance.scenarios import Stage
from corral.testing import Call, ModelServer, Request, Turn, call, say
from corral.values import JsonObject

pytest_plugins = ("support.node_fixtures",)

REVIEW = """
digraph g {
  start [shape=Mdiamond]; done [shape=Msquare]
  review [prompt="Review it"]; fix [type=set, key=fixed, value=true]
  start -> review
  review -> fix [condition="outcome=needs_work"]
  review -> done [label="[S] Ship"]
  review -> fix [label="Fix it"]
  fix -> done
}
"""


@pytest.mark.parametrize(
    ("body", "outcomes", "labels"),
    [
        ("s -> n -> e", None, None),
        ("s -> n -> d; d [shape=diamond]; d -> e; d -> x [condition=risky]; x -> e", None, None),
        ("s -> n -> e; n [goal_gate=true]", ["success", "fail"], []),
        ("s -> n; n -> a [label=Yes]; n -> b [label=No]; a -> e; b -> e", ["success", "fail"],
         ["Yes", "No"]),
        ('s -> n; n -> a [condition="outcome=done"]; a -> e', ["success", "fail", "done"], []),
        ('s -> n -> d; d [shape=diamond]; d -> a [condition="outcome=redo"]; d -> e [label=Else];'
         " a -> e", ["success", "fail", "redo"], ["Else"]),
        ('s -> n -> e; n -> a [condition="preferred_label=Fix || outcome=failed"]; a -> e',
         ["success", "fail"], ["Fix"]),
        ("s -> n -> e; n [goal_gate=true, verdict=off]", None, None),
        ("verdict=off; s -> n -> e; n [goal_gate=true]", None, None),
        ("verdict=off; s -> n -> e; n [goal_gate=true, verdict=on]", ["success", "fail"], []),
    ],
)  # fmt: skip
def test_which_nodes_must_report_and_what(
    body: str, outcomes: list[str] | None, labels: list[str] | None
) -> None:
    graph = graph_of(body)
    wanted = wanted_of(graph, graph.nodes["n"])
    if outcomes is None:
        assert wanted is None
    else:
        assert wanted == Wanted(tuple(outcomes), tuple(labels or ()))


@pytest.mark.parametrize(
    ("text", "outcome", "label"),
    [
        ('Fine.\n{"outcome": "done", "preferred_label": "Go"}', "done", "Go"),
        ('```json\n{"outcome": "failed"}\n```\n', "fail", ""),
        ('{"outcome": "first"} then {"outcome": "second"}', "second", ""),
        ('{"outcome": "x", "context_updates": {"outcome": "inner", "a": {"b": 1}}}', "x", ""),
        ('{"outcome": "x"} and a last {"note": 1}', "x", ""),
        ('{"preferred_label": "Go"}', "success", "Go"),
        ('{"outcome": "SUCCEEDED"}', "success", ""),
        ('{"outcome": "Needs_DoD"}', "Needs_DoD", ""),
        ('{"status": "fail"}', None, None),
        ("no report { at all }", None, None),
        ('{"outcome": "x"', None, None),
        ("{" * 5000, None, None),
        ('{"a":' * 2000 + "1" + "}" * 2000, None, None),
    ],
)
def test_the_last_object_of_an_answer(text: str, outcome: str | None, label: str | None) -> None:
    found = find(text)
    if outcome is None:
        assert found is None
    else:
        assert found is not None
        assert (found.outcome, found.preferred_label) == (outcome, label)


def test_a_report_sets_no_key_that_corral_itself_sets() -> None:
    updates: JsonObject = {"internal.thread.t": {}, "a": 1}
    verdict = read({"outcome": "success", "context_updates": updates}, "the answer")
    assert verdict.context_updates == {"a": 1}


def test_the_instruction_names_outcomes_labels_and_the_channel() -> None:
    wanted = Wanted(("success", "fail", "redo"), ("Ship it",))
    by_tool = instruction(wanted, "tool")
    assert "`report_outcome`" in by_tool
    assert '"success", "fail", "redo"' in by_tool
    assert '"Ship it"' in by_tool
    assert "/run/n/status.json" in instruction(wanted, "file", "/run/n/status.json")
    assert "JSON object" in instruction(wanted, "answer")


@pytest.mark.parametrize(
    ("reported", "status", "word", "failure_class"),
    [
        ("success", "success", "", ""),
        ("partial_success", "partial_success", "", ""),
        ("fail", "fail", "", "verdict"),
        ("retry", "retry", "", "verdict"),
        ("needs_work", "success", "needs_work", ""),
    ],
)
def test_what_a_reported_word_means(
    reported: str, status: str, word: str, failure_class: str
) -> None:
    made = verdict.apply_verdict(Outcome(), verdict.NodeVerdict(outcome=reported), "n", "tool")
    assert (made.status, made.verdict, made.failure_class) == (status, word, failure_class)
    assert bool(made.failure_reason) is bool(failure_class)


async def reviewed(
    resources: NodeResources, workspace: Path, dot: str = REVIEW, folder: Path | None = None
) -> tuple[PipelineOutput, list[PipelineEvent]]:
    received: list[Any] = []
    graph = loader.load(dot)
    async with resources:
        result = await memory_runner.MemoryRun(
            graph, resources=resources, workspace=workspace, folder=folder, on_event=received.append
        ).drive()
    return result, received


def reports(request: Request, **given: Any) -> Turn:
    """A model that reports by the tool, if there is one, and then ends its turn."""
    offered = [name for name in request.tools if name.endswith(verdict.TOOL)]
    if offered and not request.tool_results:
        return Turn(calls=[Call(offered[0], given)])
    return Turn(text="That is all.", usage={"input": 10, "output": 5})


@pytest.mark.parametrize("wire", ["gemini", "anthropic", "openai"])
@pytest.mark.parametrize("policy", [None, "reads"])
async def test_the_built_in_agent_reports_by_the_tool_with_every_vendor(
    wire: str, policy: Any, model_server: ModelServer, workspace: Path
) -> None:
    lane = model_server.lane(
        f"verdict-{wire}-{policy}", lambda request: reports(request, outcome="needs_work")
    )
    options: Any = {"env": model_env(lane, wire), "retries": 0}
    if policy:
        options["policy"] = policy
    result, _ = await reviewed(NodeResources(model=MODELS[wire], options=options), workspace)
    assert result.ok, result.reason
    assert result.context["fixed"] is True
    assert "report_outcome" in lane.requests[0].last_text
    assert '"needs_work"' in lane.requests[0].last_text


async def test_a_reported_label_chooses_the_edge(
    scripted_model: ScriptedModel, workspace: Path
) -> None:
    def answer(request: Request) -> Turn:
        return reports(request, outcome="success", preferred_label="fix it", notes="bad tests")

    result, _ = await reviewed(scripted_model.resources(answer), workspace)
    assert result.ok, result.reason
    assert result.context["fixed"] is True


async def test_a_reported_failure_fails_the_node_with_its_notes(
    scripted_model: ScriptedModel, workspace: Path
) -> None:
    def answer(request: Request) -> Turn:
        return reports(request, outcome="failed", notes="the tests do not pass")

    result, _ = await reviewed(scripted_model.resources(answer), workspace)
    assert (result.status, result.reason) == ("fail", "node 'review' failed: the tests do not pass")
    assert result.context["failure_class"] == "verdict"


async def test_a_label_that_no_edge_has_is_a_warning(
    scripted_model: ScriptedModel, workspace: Path, tmp_path: Path
) -> None:
    def answer(request: Request) -> Turn:
        return reports(request, outcome="success", preferred_label="Paint it")

    result, received = await reviewed(
        scripted_model.resources(answer), workspace, folder=tmp_path / "run"
    )
    assert result.ok
    assert any("'Paint it' is not one of" in str(event) for event in received)
    status = json.loads((tmp_path / "run" / "review" / "status.json").read_text())
    assert "'Paint it' is not one of" in status["notes"]


async def test_the_last_object_of_the_answer_is_a_report(
    scripted_model: ScriptedModel, workspace: Path
) -> None:
    resources = scripted_model.resources([say('Hm.\n{"outcome": "needs_work"}')])
    result, _ = await reviewed(resources, workspace)
    assert result.context["fixed"] is True


async def test_the_tool_wins_over_the_status_file_and_that_over_the_answer(
    scripted_model: ScriptedModel, workspace: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    path = str(folder / "review" / "status.json")
    shell = f'echo \'{{"outcome": "needs_work"}}\' > {path}'
    by_file = [call("shell", command=shell), say('{"outcome": "success"}')]
    resources = scripted_model.resources(by_file, policy="all")
    result, _ = await reviewed(resources, workspace, folder=folder)
    assert result.context["fixed"] is True
    by_tool = [
        call("shell", command=shell),
        call("report_outcome", outcome="success", preferred_label="Ship"),
        say("done"),
    ]
    resources = scripted_model.resources(by_tool, policy="all")
    result, _ = await reviewed(resources, workspace, folder=folder)
    assert result.ok
    assert "fixed" not in result.context


async def test_a_model_node_reports_in_its_answer(
    scripted_model: ScriptedModel, workspace: Path
) -> None:
    dot = REVIEW.replace('review [prompt="Review it"]', 'review [type=prompt, prompt="Review it"]')
    resources = scripted_model.resources([say('{"outcome": "needs_work"}')])
    result, _ = await reviewed(resources, workspace, dot)
    assert result.context["fixed"] is True
    assert "end your answer with one JSON object" in scripted_model.prompts[0]


async def test_a_node_that_decides_nothing_gets_no_instruction(
    scripted_model: ScriptedModel, workspace: Path
) -> None:
    dot = "digraph g { s [shape=Mdiamond]; e [shape=Msquare]; a [prompt=Go]; s -> a -> e }"
    result, _ = await reviewed(scripted_model.resources([say("done")]), workspace, dot)
    assert result.ok
    assert scripted_model.prompts == ["Go"]
    assert "report_outcome" not in scripted_model.lane.requests[0].tools


REAL = [
    pytest.param("gemini-acp", marks=pytest.mark.gemini_cli),
    pytest.param("gemini-cli", marks=pytest.mark.gemini_cli),
    pytest.param("claude-cli", marks=pytest.mark.claude),
]


@pytest.mark.deep
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", REAL)
async def test_a_real_agent_reports_by_the_tool(
    name: str, model_server: ModelServer, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = registry.find(name)
    for variable in list(os.environ):
        if variable in record.env_names:
            monkeypatch.delenv(variable)

    def answer(request: Request) -> Turn:
        return reports(request, outcome="needs_work")

    stage = Stage(name, record, model_server, workspace, options={}, scenario=f"verdict-{name}")
    scripted = stage.scripted(answer, program=installed(name), timeout=200)
    options: Any = {
        k: v for k, v in scripted.items() if k not in ("cwd", "timeout", "keep", "model")
    }
    resources = NodeResources(agent=name, model=scripted.get("model"), options=options)
    result, _ = await reviewed(resources, workspace)
    assert result.ok, result.reason
    assert result.context["fixed"] is True
