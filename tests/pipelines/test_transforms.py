"""From a file to the graph that runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._pipelines import loader, templates, transforms
from corral._pipelines.dot_parser import parse
from corral._pipelines.graph import Graph, Node
from corral._pipelines.linter.engine import LintError
from corral._pipelines.linter.finding import Finding
from corral.errors import ConfigError
from corral.values import Json

CONTEXT: dict[str, Json] = {
    "name": "Ada",
    "n": 3,
    "yes": True,
    "none": None,
    "list": [1, "two"],
    "user.name": "flat",
    "user": {"name": "deep", "age": 36},
    "template": "{{name}} $goal",
}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("", ""),
        ("plain", "plain"),
        ("$goal", "Ship it"),
        ("do $goal.", "do Ship it."),
        ("${goal}", "Ship it"),
        ("$goals $goal_2", "$goals $goal_2"),
        ("$5 and $", "$5 and $"),
        ("{{name}} {{ name }} {{.name}} {{ .name }}", "Ada Ada Ada Ada"),
        ("{{n}} {{yes}} {{none}}", "3 true "),
        ("{{list}}", '[1,"two"]'),
        ("{{user.name}} {{user.age}}", "flat 36"),
        ("{{context.name}}", "Ada"),
        ("{{goal}}", "Ship it"),
        ("{{missing}} {{ user.email }}", "{{missing}} {{ user.email }}"),
        ("{{template}}", "{{name}} $goal"),
        ("{{}} {{ }} {name} {{a b}} {{name}", "{{}} {{ }} {name} {{a b}} {{name}"),
        ("{{{name}}}", "{Ada}"),
        ("{{#each x}}{{/each}}", "{{#each x}}{{/each}}"),
    ],
)
def test_placeholders_are_filled_once_and_unknown_ones_stay(text: str, filled: str) -> None:
    assert templates.fill(text, CONTEXT, "Ship it") == filled


def test_without_a_goal_the_placeholder_stays() -> None:
    assert templates.fill("$goal", {}) == "$goal"


def test_the_placeholders_of_a_text_are_listed() -> None:
    assert list(templates.placeholders("{{a}} $goal {{ .b.c }} {x}")) == ["a", "b.c"]


@given(st.text(max_size=60))
def test_a_text_without_known_keys_stays_unchanged(text: str) -> None:
    assert templates.fill(text, {}) == text


PIPELINE = """digraph G {
  goal="Build {{what}}"
  model_stylesheet="* { llm_model: gpt-5.2; } .deep { model: gemini:gemini-2.5-pro; }"
  start [shape=Mdiamond]
  plan [prompt="Plan: $goal, {{what}}, {{later}}", timeout="{{limit}}"]
  build [prompt="Do it", class=deep, llm_provider=openai]
  check [shape=parallelogram, tool_command="echo $goal {{what}}"]
  exit [shape=Msquare]
  start -> plan -> build -> check -> exit
}"""


def test_the_goal_the_values_and_the_stylesheet_are_applied() -> None:
    graph = loader.load(PIPELINE, values={"what": "a ship", "limit": "5m"})
    assert graph.goal == "Build a ship"
    plan, build, check = (graph.nodes[name].attrs for name in ("plan", "build", "check"))
    assert plan["prompt"] == "Plan: Build a ship, {{what}}, {{later}}"
    assert plan["timeout"] == "5m"
    assert plan["llm_model"] == "openai:gpt-5.2"
    assert build["model"] == "gemini:gemini-2.5-pro"
    assert check["tool_command"] == "echo $goal {{what}}"


def test_the_goal_of_the_caller_wins_and_is_not_filled() -> None:
    graph = loader.load(PIPELINE, values={"what": "x", "limit": "1s"}, goal="Win {{what}}")
    assert graph.goal == "Win {{what}}"
    assert str(graph.nodes["plan"].attrs["prompt"]).startswith("Plan: Win {{what}},")


def test_no_value_becomes_a_part_of_a_hook_or_a_policy() -> None:
    text = (
        'digraph { policy="{{x}}"; pass_env="{{x}}"; tool_hooks.pre="echo {{x}}"; other="{{x}}" }'
    )
    graph = transforms.apply(parse(text), values={"x": "all; touch evil"})
    assert graph.attrs == {
        "policy": "{{x}}",
        "pass_env": "{{x}}",
        "tool_hooks.pre": "echo {{x}}",
        "other": "all; touch evil",
    }


def test_transforms_do_not_change_the_original_graph() -> None:
    read = parse(PIPELINE)
    before = parse(PIPELINE)
    transforms.apply(read, values={"what": "x"}, goal="g", model="m:x")
    assert read == before


def test_a_setting_with_an_unfilled_placeholder_is_an_error() -> None:
    with pytest.raises(LintError, match="limit has no value"):
        loader.load(PIPELINE)


def test_the_given_model_is_for_nodes_that_name_neither_model_nor_agent() -> None:
    text = """digraph G { s [shape=Mdiamond] e [shape=Msquare] s -> a -> b -> c -> t -> e
      a [label=A] b [label=B, model="gemini:x"] c [label=C, agent="gemini-acp"]
      t [type=tool, tool_command="true"] }"""
    nodes = loader.load(text, model="gemini:gemini-2.5-flash").nodes
    assert {name: nodes[name].attrs.get("model") for name in "abct"} == {
        "a": "gemini:gemini-2.5-flash",
        "b": "gemini:x",
        "c": None,
        "t": None,
    }


def test_transforms_of_the_caller_come_last_and_in_order() -> None:
    def shout(graph: Graph) -> Graph:
        assert graph.goal == "Build x"
        return Graph(graph.name.upper(), graph.attrs, graph.nodes, graph.edges)

    def name(graph: Graph) -> Graph:
        return Graph(graph.name + "!", graph.attrs, graph.nodes, graph.edges)

    values: dict[str, Json] = {"what": "x", "limit": "1s"}
    assert loader.load(PIPELINE, values=values, transforms=[name, shout]).name == "G!"


def test_the_transformed_graph_is_linted() -> None:
    def lose_exit(graph: Graph) -> Graph:
        nodes = {name: node for name, node in graph.nodes.items() if name != "exit"}
        return Graph(graph.name, graph.attrs, nodes, graph.edges)

    with pytest.raises(LintError) as caught:
        loader.load(PIPELINE, values={"what": "x", "limit": "1s"}, transforms=[lose_exit])
    assert {f.rule for f in caught.value.findings if f.severity == "error"} == {
        "terminal_node",
        "edge_target_exists",
    }


def test_rules_of_the_caller_can_give_errors_and_warnings() -> None:
    def no_tools(graph: Graph) -> list[Finding]:
        return [
            Finding(
                rule="no_tools",
                severity="error",
                message=f"{node.id} is a tool",
                line=node.line,
                column=node.column,
                node=node.id,
            )
            for node in graph.of_kind("tool")
        ]

    def shy(graph: Graph) -> list[Finding]:
        return [Finding(rule="shy", severity="warning", message="hm") for _ in graph.nodes]

    values: dict[str, Json] = {"what": "x", "limit": "1s"}
    assert loader.load(PIPELINE, values=values, rules=[shy])
    with pytest.raises(LintError, match=r"7:3: error: check is a tool \[no_tools\]") as caught:
        loader.load(PIPELINE, values=values, rules=[no_tools])
    assert isinstance(caught.value, ConfigError)
    assert [f.node for f in caught.value.findings if f.rule == "no_tools"] == ["check"]


def test_a_file_is_read_by_path_and_by_name(tmp_path: Path) -> None:
    file = tmp_path / "p.dot"
    file.write_bytes(b"\xef\xbb\xbf" + PIPELINE.replace("\n", "\r\n").encode())
    values: dict[str, Json] = {"what": "x", "limit": "1s"}
    assert loader.load(file, values=values) == loader.load(PIPELINE, values=values)
    assert loader.load(str(file), values=values) == loader.load(PIPELINE, values=values)


def test_an_invalid_stylesheet_is_reported_by_the_linter() -> None:
    graph = parse('digraph G { model_stylesheet="* {"; a }')
    assert transforms.apply(graph).nodes["a"] == Node("a", {}, (), 1, 37)


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("start -> a -> exit", {"start": "start", "exit": "exit"}),
        ("Start -> a -> End", {"Start": "start", "End": "exit"}),
        ("start [shape=circle]; start -> a -> end", {"start": "start", "end": "exit"}),
        ("s [shape=Mdiamond]; s -> start -> exit", {"s": "start", "start": "codergen"}),
        ("e [type=exit]; start -> exit -> e", {"start": "start", "exit": "codergen", "e": "exit"}),
        ("start [type=tool]; start -> exit", {"start": "tool", "exit": "exit"}),
        ("start [prompt=x]; start -> exit", {"start": "codergen", "exit": "exit"}),
        ("start -> a -> start; a -> exit -> a", {"start": "codergen", "exit": "codergen"}),
        ("start -> exit; start -> end", {"exit": "codergen", "end": "codergen"}),
    ],
)
def test_nodes_called_start_and_exit_are_start_and_exit_if_there_are_no_others(
    body: str, kinds: dict[str, str]
) -> None:
    graph = transforms.apply(parse(f"digraph g {{ {body} }}"))
    assert {name: graph.nodes[name].kind for name in kinds} == kinds


def test_a_pipeline_without_shapes_runs() -> None:
    graph = loader.load('digraph g { start; a [prompt="x"]; start -> a -> end }')
    assert [node.id for node in graph.of_kind("start", "exit")] == ["start", "end"]
