"""Nodes of every kind in one pipeline, written as DOT, run in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.nodes import MODEL, ScriptedModel

from corral._engine import memory_runner
from corral._pipelines import loader
from corral._pipelines.execution.interviewers import Queued, Recording
from corral.testing import Request, Turn, call, say

pytest_plugins = ("support.node_fixtures",)

PIPELINE = """
digraph everything {
  goal = "Greet the cats"
  node [model="MODEL"]
  start [shape=Mdiamond]
  done [shape=Msquare]
  names [prompt="Name the cats for: $goal", output_schema="{\\"type\\": \\"object\\"}"]
  each [type=for_each, items="{{names.output.cats}}", tool_command="printf 'hi %s' {{item}}"]
  count [type=json_extract, source="each.results", path="[1].output", key=second]
  keep [type=write_file, path="out/second.txt", content="{{second}}"]
  check [shape=parallelogram, tool_command="cat out/second.txt; test {{second}} = 'hi $(Tom)'"]
  sort [type=switch, key="second"]
  fork [shape=component]
  one [prompt="Say one"]
  two [type=prompt, prompt="Say two"]
  join [shape=tripleoctagon, prompt="Which is best?"]
  gate [shape=hexagon, label="Ship {{parallel.fan_in.best_id}}?"]
  fix [type=set, key=fixed, value=true]
  start -> names -> each -> count -> keep -> check
  check -> sort [condition="outcome=success"]
  check -> done [condition="outcome=fail"]
  sort -> done [label="hi Kit"]
  sort -> fork [label="default"]
  fork -> one -> join
  fork -> two -> join
  join -> gate
  gate -> done [label="[Y] Yes"]
  gate -> fix [label="[F] Fix"]
  fix -> gate
}
""".replace("MODEL", MODEL)


async def test_nodes_of_every_kind_pass_values_to_the_next(
    scripted_model: ScriptedModel, workspace: Path, tmp_path: Path
) -> None:
    def answer(request: Request) -> Turn:
        text = request.last_text
        if "Name the cats for: Greet the cats" in text:
            return say('{"cats": ["Kit", "$(Tom)"]}')
        if "Which is best?" in text:
            return say('{"best_id": "two", "reason": "shorter"}')
        return say("one" if "Say one" in text else "two")

    graph = loader.load(PIPELINE)
    interviewer = Recording(Queued(["f", "y"]))
    async with scripted_model.resources(answer, named=None) as resources, asyncio.timeout(60):
        result = await memory_runner.MemoryRun(
            graph,
            resources=resources,
            interviewer=interviewer,
            folder=tmp_path / "run",
            workspace=workspace,
        ).drive()
    assert result.ok, (result.reason, result.outcomes)
    assert result.context["second"] == "hi $(Tom)"
    assert (workspace / "out/second.txt").read_text() == "hi $(Tom)"
    assert result.context["parallel.fan_in.best_id"] == "two"
    assert result.context["two.output"] == "two"
    assert result.context["fixed"] is True
    assert [question.text for question, _ in interviewer.asked] == ["Ship two?"] * 2
    assert (tmp_path / "run/each/items/1/tool_output.txt").read_text() == "hi $(Tom)"
    assert (tmp_path / "run/names/response.md").read_text() == '{"cats": ["Kit", "$(Tom)"]}'
    assert result.tokens


async def test_a_switch_with_conditions_sees_the_failure_of_the_node_before(
    scripted_model: ScriptedModel, workspace: Path
) -> None:
    graph = loader.load("""
    digraph g {
      start [shape=Mdiamond]; done [shape=Msquare]
      try [shape=parallelogram, tool_command="exit 1"]
      which [type=switch]
      repair [type=set, key=repaired, value=true]
      start -> try -> which
      which -> repair [label="outcome == \\"fail\\""]
      which -> done
      repair -> done
    }
    """)
    async with scripted_model.resources([]) as resources:
        result = await memory_runner.MemoryRun(
            graph, resources=resources, workspace=workspace
        ).drive()
    assert result.ok, result.reason
    assert result.context["repaired"] is True


async def test_nodes_of_a_thread_with_full_fidelity_share_one_session(
    scripted_model: ScriptedModel, workspace: Path
) -> None:
    graph = loader.load(
        """
    digraph g {
      node [fidelity=full, thread_id=t, model="MODEL"]
      start [shape=Mdiamond]; done [shape=Msquare]
      a [prompt="First"]; b [prompt="Second"]
      start -> a -> b -> done
    }
    """.replace("MODEL", MODEL)
    )
    script = [call("list_dir", path="."), say("one"), say("two")]
    async with scripted_model.resources(script, named=None) as resources:
        result = await memory_runner.MemoryRun(
            graph, resources=resources, workspace=workspace
        ).drive()
    assert result.ok, result.reason
    texts = [text for m in scripted_model.lane.requests[-1].history for text in m.texts]
    assert [text for text in texts if text in ("First", "one", "Second")] == [
        "First",
        "one",
        "Second",
    ]
