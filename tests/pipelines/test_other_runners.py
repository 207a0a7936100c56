"""Pipelines written for other runners: their names, types, prompts and gates mean the same here."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scheduler_driver import FAIL, SchedulerDriver, run_scheduler

from corral._engine import memory_runner
from corral._pipelines import loader, transforms
from corral._pipelines.dot_parser import parse
from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.graph import Node
from corral._pipelines.linter import engine
from corral._pipelines.linter.engine import LintError
from corral._pipelines.scheduler.commands import Answer, Answered, AskHuman, Expired
from corral.errors import ConfigError
from corral.values import Json

ENDS = "start [shape=Mdiamond]; done [shape=Msquare];"


def node(attrs: str, graph: str = "") -> Node:
    """The node that runs, given its attributes as written."""
    body = f"digraph g {{ {graph} {ENDS} n [{attrs}]; start -> n -> done }}"
    return transforms.apply(parse(body)).nodes["n"]


@pytest.mark.parametrize(
    ("attrs", "kind"),
    [
        ("node_type=tool", "tool"),
        ('handler="wait.human"', "wait.human"),
        ("type=tool, handler=codergen", "tool"),
        ("shape=tab", "prompt"),
        ("type=exec", "tool"),
        ("type=map", "for_each"),
        ("type=nonsense, shape=diamond", "conditional"),
        ("type=nonsense, shape=component", "parallel"),
        ("shape=house", "wait.human"),
        ('shape=house, "stack.child_dotfile"=x', "stack.manager_loop"),
        ('shape=house, "manager.max_cycles"=3', "stack.manager_loop"),
        ('shape=house, type="stack.manager_loop"', "stack.manager_loop"),
    ],
)
def test_the_kind_of_a_node_comes_from_its_type_or_shape(attrs: str, kind: str) -> None:
    assert node(attrs).kind == kind


async def test_a_node_of_an_unknown_type_gets_the_kind_of_its_shape(workspace: Path) -> None:
    attrs = 'type=nonsense, shape=parallelogram, tool_command="echo hi"'
    assert (await outcome_of(attrs, workspace))["tool.output"] == "hi\n"


def test_a_house_is_a_manager_if_the_graph_names_the_child() -> None:
    assert node("shape=house", '"stack.child_dotfile"=x;').kind == "stack.manager_loop"


@pytest.mark.parametrize("name", ["script", "command", "cmd", "tool_command"])
def test_a_command_may_have_any_of_its_attribute_names(name: str) -> None:
    assert node(f"shape=parallelogram, {name}=ls").attrs["tool_command"] == "ls"


@pytest.mark.parametrize(
    ("attrs", "model"),
    [
        ('model="claude-sonnet-4-5"', "anthropic:claude-sonnet-4-5"),
        ('model="gpt-5.2"', "openai:gpt-5.2"),
        ("model=o3", "openai:o3"),
        ('model="codex-mini"', "openai:codex-mini"),
        ('model="gemini-2.5-pro"', "gemini:gemini-2.5-pro"),
        ('model="claude-sonnet-4-5", agent="claude-cli"', "claude-sonnet-4-5"),
        ('model="openai:gpt-5.2"', "openai:gpt-5.2"),
        ('model="my-own"', "my-own"),
    ],
)
def test_a_model_name_without_vendor_gets_its_vendor(attrs: str, model: str) -> None:
    assert node(attrs).attrs["model"] == model


def test_llm_model_gets_its_vendor_unless_the_graph_or_a_stylesheet_names_an_agent() -> None:
    assert node('llm_model="gpt-5.2"').attrs["llm_model"] == "openai:gpt-5.2"
    assert node('llm_model="gpt-5.2", llm_provider=openai').attrs["llm_model"] == "gpt-5.2"
    assert node('model="gpt-5.2"', "agent=codex;").attrs["model"] == "gpt-5.2"
    sheet = 'model_stylesheet="* { backend: codex; }";'
    assert node('model="gpt-5.2"', sheet).attrs["model"] == "gpt-5.2"


def test_a_prompt_is_read_from_a_file_beside_the_pipeline_else_in_the_workspace(
    tmp_path: Path,
) -> None:
    there, workspace = tmp_path / "flows", tmp_path / "work"
    for folder in (there, workspace):
        folder.mkdir()
    (there / "plan.md").write_text("Plan $goal.\n")
    (workspace / "plan.md").write_text("not this")
    (workspace / "build.md").write_text("Build it.")
    file = there / "p.dot"
    file.write_text(
        f'digraph g {{ goal="x"; {ENDS} a [prompt="@plan.md"]; b [prompt="@build.md"];'
        " start -> a -> b -> done }"
    )
    graph = loader.load(file, cwd=workspace)
    assert graph.nodes["a"].attrs["prompt"] == "Plan x.\n"
    assert graph.nodes["b"].attrs["prompt"] == "Build it."


def test_a_prompt_file_may_be_above_the_pipeline_inside_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "shared prompts").mkdir()
    (tmp_path / "plan.md").write_text("Plan.")
    (tmp_path / "shared prompts/build.md").write_text("Build.")
    file = tmp_path / "flows/p.dot"
    file.write_text(
        f'digraph g {{ {ENDS} a [prompt="@../plan.md"]; b [llm_prompt="@../plan.md"];'
        ' c [prompt_file="../shared prompts/build.md"]; start -> a -> b -> c -> done }'
    )
    graph = loader.load(file, cwd=tmp_path)
    prompts = [graph.nodes[name].attrs["prompt"] for name in "abc"]
    assert prompts == ["Plan.", "Plan.", "Build."]
    with pytest.raises(LintError, match=r"plan\.md of a is outside of the pipeline's folder"):
        loader.load(file, cwd=tmp_path / "flows")


def test_the_prompt_has_another_name_in_other_runners() -> None:
    assert node('llm_prompt="Write it."').attrs["prompt"] == "Write it."
    assert node('llm_prompt="not this", prompt="this"').attrs["prompt"] == "this"


def test_values_of_other_runners() -> None:
    assert node("error_policy=fail_fast").attrs["error_policy"] == "fail"
    assert node("error_policy=ignore").attrs["error_policy"] == "continue"
    assert node('shape=house, stack.child_workflow="c.fabro"').kind == "stack.manager_loop"
    assert node('shape=house, stack.child_workflow="c.fabro"').attrs["stack.child_dotfile"]
    parallel = f"p [shape=component, error_policy=fail_fast]; {ENDS} start -> p -> b -> done"
    with pytest.raises(LintError, match=r"parallel\.fail_count=0"):
        loader.load(f"digraph g {{ {parallel} }}")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gone.md", "does not exist"),
        ("../secret.md", "is outside"),
        ("link.md", "is outside"),
        ("folder", "does not exist"),
        ("/etc/hostname", "is outside"),
        ("binary.md", "is not UTF-8"),
    ],
)
def test_a_missing_or_outside_prompt_file_is_an_error(
    tmp_path: Path, name: str, reason: str
) -> None:
    place = tmp_path / "flows"
    (place / "folder").mkdir(parents=True)
    (tmp_path / "secret.md").write_text("secret")
    (place / "link.md").symlink_to(tmp_path / "secret.md")
    file = place / "p.dot"
    file.write_text(f'digraph g {{ {ENDS} a [prompt="@{name}"]; start -> a -> done }}')
    (place / "binary.md").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(LintError, match=rf"{reason}.*prompt_file"):
        loader.load(file, cwd=place)


def test_text_that_only_begins_with_an_at_sign_is_a_prompt() -> None:
    graph = loader.load(f'digraph g {{ {ENDS} a [prompt="@ada write it"]; start -> a -> done }}')
    assert graph.nodes["a"].attrs["prompt"] == "@ada write it"


async def outcome_of(attrs: str, workspace: Path, **values: Json) -> dict[str, Json]:
    """The context after a node with these attributes has run."""
    graph = loader.load(f"digraph g {{ {ENDS} n [{attrs}]; start -> n -> done }}", values=values)
    async with NodeResources() as resources:
        result = await memory_runner.MemoryRun(
            graph, resources=resources, workspace=workspace, values=values
        ).drive()
    if not result.ok:
        raise ConfigError(result.reason)
    return result.context


@pytest.mark.parametrize(
    ("attrs", "key", "value"),
    [
        ("type=env, key=k, from=PLANTED", "k", "here"),
        ("type=env, key=PLANTED", "PLANTED", "here"),
        ('type=env, key=k, from=NOT_SET, default="{{text}}!"', "k", "a, b ,c!"),
        ("type=env, key=k, from=NOT_SET, required=false", "k", ""),
        ("type=split, source=text, key=k", "k", ["a", "b", "c"]),
        ("type=split, source=text, key=k, trim=false", "k", ["a", " b ", "c"]),
        ('type=split, source=lines, sep="\\n", key=k', "k", ["x", "y"]),
        ("type=json_decode, source=json, key=k", "k", {"a": 1, "b": [2]}),
        ('type=json_decode, source=json, prefix="m_"', "m_b", [2]),
        ('type=json_pack, keys="text,lines", output=k', "k", '{"text":"a, b ,c","lines":"x\\ny"}'),
        ('type=regex, source=text, pattern="([a-c]) ,(c)", group=2, key=k', "k", "c"),
        ("type=regex, source=text, pattern=z, key=k, no_match=none", "k", "none"),
        ('type=string_transform, source=text, ops="upper,trim", key=k', "k", "A, B ,C"),
        ('type=assert, expr="text contains b && number >= 3"', "outcome", "success"),
        ("type=sleep, duration=1ms", "outcome", "success"),
        ('type=exec, cmd="echo hi; exit 3", stdout_key=k, fail_on_error=false', "k", "hi\n"),
        (
            'type=for_each, items=listed, item_key=name, cmd="printf %s {{.name}}", results_key=k',
            "k",
            [
                {"index": 0, "status": "success", "output": "x"},
                {"index": 1, "status": "success", "output": "y z"},
            ],
        ),
    ],
)
async def test_data_nodes(
    attrs: str, key: str, value: Json, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED", "here")
    context = await outcome_of(
        attrs,
        workspace,
        text="a, b ,c",
        lines="x\ny",
        json='{"a": 1, "b": [2]}',
        number=3,
        listed=["x", "y z"],
    )
    assert context[key] == value


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ("type=env, key=k, from=NOT_SET", "NOT_SET is not set"),
        ('type=assert, expr="number > 3", message="only {{number}}"', "only 3"),
        ("type=split, source=gone, key=k", "no 'gone' in the context"),
        ("type=json_decode, source=text, key=k", "no JSON"),
        ("type=regex, source=text, pattern=z, key=k", "does not match"),
        ('type=regex, source=text, pattern="(", key=k', "regex node n"),
        ("type=string_transform, source=text, ops=shout, key=k", "no op is called 'shout'"),
    ],
)
async def test_data_nodes_that_fail(attrs: str, reason: str, workspace: Path) -> None:
    with pytest.raises(ConfigError, match=reason):
        await outcome_of(attrs, workspace, text="a", number=3)


def test_a_gate_with_one_unlabelled_edge_asks_for_free_text() -> None:
    run = SchedulerDriver('s -> h -> a -> e; h [shape=hexagon, label="What?"]')
    [question] = [order.question for order in run.commands if isinstance(order, AskHuman)]
    assert (question.kind, question.choices) == ("text", ())
    run.answer("whatever I like")
    assert run.visit("a").context["human.gate.text"] == "whatever I like"


@pytest.mark.parametrize(
    ("edges", "kind"),
    [
        ("h -> e [label=Go]", "confirmation"),
        ('h -> e [label="[Y] Yes"]; h -> s2 [label=No]; s2 -> e', "yes_no"),
        ("h -> e [label=A]; h -> s2 [label=B]; s2 -> e", "choice"),
        ("h -> e [label=A]; h -> s2 [label=B]; s2 -> e; h [mode=freeform]", "text"),
    ],
)
def test_kinds_of_questions(edges: str, kind: str) -> None:
    run = SchedulerDriver(f"s -> h; h [shape=hexagon]; {edges}")
    [question] = [order.question for order in run.commands if isinstance(order, AskHuman)]
    assert question.kind == kind


def test_a_free_text_question_that_expires_takes_its_default() -> None:
    run = SchedulerDriver('s -> h -> e; h [shape=hexagon, "human.default_choice"="go on"]')
    run.waiting.clear()
    run.send(Expired(id="h.1"))
    assert run.context["human.gate.text"] == "go on"
    assert run.status == "success"


def test_the_counts_of_branches_are_in_the_context() -> None:
    body = "s -> p; p [shape=component]; f [shape=tripleoctagon]; p -> a -> f; p -> b -> f; f -> e"
    run = run_scheduler(body, {"a": FAIL})
    assert run.context["parallel.fail_count"] == 1
    assert run.context["parallel.success_count"] == 1


def test_an_answer_has_the_label_as_written() -> None:
    run = SchedulerDriver(
        's -> h; h [shape=hexagon]; h -> e [label="[G] Go"]; h -> s2 [label=Stop]; s2 -> e'
    )
    run.waiting.clear()
    run.send(Answered(id="h.1", answer=Answer(value="g")))
    assert run.context["human.gate.label"] == "[G] Go"


def test_unknown_types_are_a_warning_only() -> None:
    graph = transforms.apply(
        parse(f"digraph g {{ {ENDS} n [type=magic, prompt=x]; start -> n -> done }}")
    )
    [finding] = [f for f in engine.lint(graph) if f.rule == "type_known"]
    assert finding.severity == "warning"
    assert "runs as codergen" in finding.message
