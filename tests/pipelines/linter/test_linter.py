"""The rules of the linter: each finds its problem, and accepts valid pipelines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from corral._pipelines import transforms
from corral._pipelines.attribute_definitions import ALIASES, PROMPT_FILE, names_of
from corral._pipelines.dot_parser import parse
from corral._pipelines.execution import handlers
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.graph import Edge, Graph
from corral._pipelines.linter import engine
from corral._pipelines.linter.engine import RULES
from corral._pipelines.linter.finding import Finding

ENDS = "start [shape=Mdiamond] exit [shape=Msquare] "
LINE = ENDS + "a [label=A] start -> a -> exit "


def lint(body: str) -> list[Finding]:
    """As ``run`` lints it: with attributes under their own names and types resolved, and nothing
    else filled in."""
    graph = parse(f"digraph G {{\n{body}\n}}")
    return engine.lint(transforms.with_types(transforms.with_names(graph)))


def of(rule: str, body: str) -> list[Finding]:
    return [finding for finding in lint(body) if finding.rule == rule]


RED: list[tuple[str, str, str, object, str, str]] = [
    # rule, severity, pipeline, node or edge, part of the message, part of the fix
    (
        "allow_partial_has_retries",
        "warning",
        LINE + "a [allow_partial=true] graph [default_max_retries=3]",
        "a",
        "does not count for a failure",
        "max_retries=0",
    ),
    (
        "visits_of_branches",
        "warning",
        ENDS + "p [shape=component] t [max_visits=2] start -> p p -> a -> t p -> b -> t p -> c -> t"
        " p -> d -> j t -> j j -> exit",
        "t",
        "3 branches of p come to t, and max_visits=2",
        "max_visits=3",
    ),
    (
        "fan_out_has_fan_in",
        "warning",
        ENDS + "p [shape=component] q [shape=component] f [shape=tripleoctagon] start -> p"
        " p -> a -> f p -> q q -> b -> f q -> c -> f f -> exit",
        "p",
        "reach no fan-in: q",
        "needs its own",
    ),
    (
        "attribute_value",
        "error",
        LINE + 'a [type=string_transform, source=x, ops="trim, replace"]',
        "a",
        "no op is called 'replace'",
        "title",
    ),
    ("prompt_file", "error", LINE + 'a [prompt="@gone.md"]', "a", "gone.md", "workspace"),
    ("prompt_file", "error", LINE + 'b [prompt_file="gone.md"] a -> b -> exit', "b", "gone.md", ""),
    ("key_known", "warning", LINE + 'a [prompt="{{plann.output}}"]', "a", "plann.output", "--set"),
    (
        "key_known",
        "warning",
        LINE + 'plan [prompt=p] a [prompt="{{plann.output}}"] a -> plan -> exit',
        "a",
        "{{plann.output}} in prompt of a",
        "plan.output?",
    ),
    (
        "key_known",
        "warning",
        LINE + 'a -> exit [condition="outcom=success"]',
        ("a", "exit"),
        "nothing sets outcom: the edge a -> exit",
        "Did you mean outcome?",
    ),
    (
        "key_known",
        "warning",
        LINE + 'm [shape=house, dotfile=x, manager.stop_condition="stack.chld.status=failed"]'
        " a -> m -> exit",
        "m",
        "stack.chld.status: manager.stop_condition of m",
        "stack.child.status?",
    ),
    (
        "key_known",
        "warning",
        LINE + 'f [type=for_each, items="tool.outpt", prompt="{{item}}"] a -> f -> exit',
        "f",
        "nothing sets tool.outpt: items of f",
        "tool.output?",
    ),
    ("type_known", "warning", LINE + "a [shape=house]", "a", "human gate", "hexagon"),
    ("start_node", "error", "exit [shape=Msquare] a -> exit", None, "no start", "shape=Mdiamond"),
    ("start_node", "error", "Start -> a", "Start", "no start", "Start [shape=Mdiamond]"),
    ("start_node", "error", LINE + "two [type=start] two -> a", "two", "second start", "one"),
    ("terminal_node", "error", "start [shape=Mdiamond] start -> a", None, "no exit", "Msquare"),
    ("terminal_node", "error", "done -> a", "done", "no exit", "done [shape=Msquare]"),
    ("terminal_node", "error", LINE + "a -> z z [type=exit]", "z", "second exit", "exit"),
    ("reachability", "error", LINE + "lost -> exit", "lost", "cannot be reached", "edge to lost"),
    ("start_no_incoming", "error", LINE + "a -> start", ("a", "start"), "back to the start", ""),
    ("exit_no_outgoing", "error", LINE + "exit -> a", ("exit", "a"), "leaves the exit", ""),
    ("no_path_to_exit", "error", ENDS + "start -> a", "start", "no path leads", "edge to exit"),
    (
        "no_path_to_exit",
        "error",
        LINE + "a -> b -> c -> b",
        "b",
        "never ends",
        "leaves the loop",
    ),
    ("dead_end", "warning", LINE + "a -> b", "b", "no outgoing edge", "edge"),
    (
        "merge_has_branches",
        "error",
        LINE + "m [type=merge, into=main, gate=true] a -> m -> exit",
        "m",
        "no branches come to m",
        "merge=false",
    ),
    (
        "fan_out_has_fan_in",
        "warning",
        LINE + "a -> p p [shape=component] p -> b -> exit p -> c -> exit",
        "p",
        "reach no fan-in: b, c",
        "tripleoctagon",
    ),
    (
        "fan_out_has_fan_in",
        "warning",
        LINE + "a -> p p [shape=component] f [type=fan_in] g [type=fan_in] "
        "p -> b -> f -> exit p -> c -> g -> exit",
        "p",
        "no common fan-in: b reaches f; c reaches g",
        "tripleoctagon",
    ),
    (
        "condition_syntax",
        "error",
        LINE + 'a -> exit [condition="outcome >"]',
        ("a", "exit"),
        "expected a value",
        "",
    ),
    (
        "condition_syntax",
        "error",
        LINE + 'a [manager.stop_condition="=="]',
        "a",
        "stop_condition",
        "",
    ),
    (
        "condition_never_true",
        "warning",
        LINE + 'a -> exit [condition="outcome=succes"]',
        ("a", "exit"),
        "no outcome is called 'succes'",
        "Did you mean success?",
    ),
    (
        "condition_never_true",
        "warning",
        LINE + 'a -> exit [condition="x=1 && x=2"]',
        ("a", "exit"),
        "cannot be both",
        "||",
    ),
    (
        "condition_never_true",
        "warning",
        LINE + 'a [shape=diamond] a -> exit [label="outcome=faild"]',
        ("a", "exit"),
        "faild",
        "Did you mean fail?",
    ),
    (
        "stylesheet_syntax",
        "error",
        LINE + 'model_stylesheet="* { llm_model x }"',
        None,
        "line 1, column 15 of the stylesheet: expected :",
        "model: vendor:name",
    ),
    ("required_attributes", "error", LINE + "a [type=tool]", "a", "tool_command", "tool_command="),
    (
        "required_attributes",
        "error",
        LINE + "a [shape=house, manager.max_cycles=2]",
        "a",
        "stack.child_dotfile",
        "stack.child_dotfile",
    ),
    ("required_attributes", "error", LINE + "a [type=http]", "a", "needs url", "url="),
    ("required_attributes", "error", LINE + "a [type=for_each, items=x]", "a", "prompt", ""),
    ("required_attributes", "error", LINE + "a [type=include]", "a", "child_dotfile", ""),
    ("required_attributes", "error", LINE + "a [type=set]", "a", "needs key", "set.name="),
    ("attribute_value", "error", LINE + "a [on_crash=explode]", "a", "is invalid", "rerun"),
    (
        "attribute_value",
        "error",
        LINE + "a [shape=hexagon, human.default_choice=yes]",
        "a",
        "not one of its choices",
        "One of exit.",
    ),
    ("attribute_value", "error", LINE + 'a [max_retries="x"]', "a", "not a whole number", "=1"),
    ("attribute_value", "error", LINE + "a [max_retries=-1]", "a", "too small", "0 or more"),
    ("attribute_value", "error", LINE + "a [max_retries=1.5]", "a", "not a whole number", ""),
    ("attribute_value", "error", LINE + "a [max_retries=true]", "a", "not a whole number", ""),
    ("attribute_value", "error", LINE + "a [max_parallel=0]", "a", "too small", "1 or more"),
    ("attribute_value", "error", LINE + "a [timeout=banana]", "a", "not a duration", "15m"),
    ("attribute_value", "error", LINE + "a [timeout=0]", "a", "not a duration", "15m"),
    ("attribute_value", "error", LINE + "a [timeout=true]", "a", "not a duration", ""),
    ("attribute_value", "error", LINE + 'a [human.timeout="3 weeks"]', "a", "not a duration", ""),
    ("attribute_value", "error", LINE + "a [goal_gate=yes]", "a", "neither true nor false", "true"),
    ("attribute_value", "error", LINE + "a [auto_status=1]", "a", "neither true nor false", ""),
    ("attribute_value", "error", LINE + "a [join_policy=most]", "a", "is invalid", "first_success"),
    ("attribute_value", "error", LINE + "default_max_retries=many", None, "not a whole number", ""),
    ("attribute_value", "error", LINE + "max_visits=0", None, "too small", ""),
    (
        "attribute_value",
        "error",
        LINE + "a -> exit [weight=heavy]",
        ("a", "exit"),
        "not a number",
        "weight=1",
    ),
    (
        "attribute_value",
        "error",
        LINE + "a -> exit [loop_restart=no]",
        ("a", "exit"),
        "neither",
        "",
    ),
    (
        "attribute_value",
        "error",
        LINE + 'a [timeout="{{limit}}"]',
        "a",
        "limit has no value",
        "limit",
    ),
    ("attribute_value", "warning", LINE + "a [reasoning_effort=huge]", "a", "huge", "medium"),
    ("attribute_known", "warning", LINE + 'a [promt="x"]', "a", "promt", "Did you mean prompt?"),
    ("attribute_known", "warning", LINE + "a [max_retry=1]", "a", "max_retry", "max_retries"),
    ("attribute_known", "warning", LINE + "goall=x", None, "goall", "Did you mean goal?"),
    (
        "attribute_known",
        "warning",
        LINE + 'a -> exit [conditon="x"]',
        ("a", "exit"),
        "conditon",
        "Did you mean condition?",
    ),
    ("type_known", "warning", LINE + "a [type=codergn]", "a", "codergn", "Did you mean codergen?"),
    ("type_known", "warning", LINE + "a [type=my.step]", "a", "my.step", "--import MODULE"),
    ("type_known", "warning", LINE + "a [shape=hexagn]", "a", "hexagn", "Did you mean hexagon?"),
    ("fidelity_valid", "warning", LINE + "a [fidelity=ful]", "a", "ful", "Did you mean full?"),
    ("fidelity_valid", "warning", LINE + "default_fidelity=x", None, "default_fidelity", "full"),
    ("fidelity_valid", "warning", LINE + "a -> exit [fidelity=x]", ("a", "exit"), "'x'", "full"),
    ("retry_target_exists", "warning", LINE + "a [retry_target=aa]", "a", "aa", ""),
    ("retry_target_exists", "warning", LINE + "fallback_retry_target=x", None, "x", ""),
    (
        "goal_gate_has_retry",
        "warning",
        LINE + "a [goal_gate=true]",
        "a",
        "goal gate",
        "retry_target",
    ),
    ("prompt_on_llm_nodes", "warning", ENDS + "start -> a -> exit", "a", "no prompt", "prompt="),
    ("agent_known", "warning", LINE + 'a [agent="gemini-apc"]', "a", "gemini-apc", "gemini-acp"),
    ("policy_known", "error", LINE + 'a [policy="edit"]', "a", "'edit'", "Did you mean edits?"),
    (
        "policy_known",
        "error",
        LINE + 'a [policy="root"]',
        "a",
        "'root'",
        "Known: reads, edits, all.",
    ),
    ("model_known", "warning", LINE + 'a [model="gemni:x"]', "a", "gemni", "gemini"),
    (
        "model_known",
        "warning",
        LINE + 'a [model="gemini:gemini-2.5-flsh"]',
        "a",
        "may be new",
        "gemini:gemini-2.5-flash",
    ),
    (
        "model_known",
        "warning",
        LINE + "a [llm_provider=gemini, llm_model=gemini-99]",
        "a",
        "gemini:gemini-99",
        "",
    ),
    (
        "model_known",
        "warning",
        LINE + 'a [model="gemini-2.5-flash"]',
        "a",
        "unchanged",
        "gemini:gemini-2.5-flash",
    ),
]


@pytest.mark.parametrize("case", RED, ids=lambda case: f"{case[0]} {case[2][-30:]}")
def test_each_rule_finds_its_problem(case: tuple[str, str, str, object, str, str]) -> None:
    rule, severity, body, where, expected, remedy = case
    found = of(rule, body)
    assert found, lint(body)
    finding = found[0]
    assert finding.severity == severity
    assert (finding.node or finding.edge) == where
    assert expected in finding.message
    assert remedy in (finding.fix or "")
    assert (finding.line > 0) is (where is not None)


def test_an_edge_to_an_unknown_node_is_found_in_a_graph_built_by_a_program() -> None:
    graph = parse(f"digraph G {{ {LINE} }}")
    graph.edges.append(Edge("a", "ghost"))
    found = [finding for finding in engine.lint(graph) if finding.severity == "error"]
    assert [(f.rule, f.edge) for f in found] == [("edge_target_exists", ("a", "ghost"))]


GREEN = [
    LINE,
    LINE + "a [allow_partial=true, max_retries=0]",
    LINE + 'b [type=string_transform, source=k, ops="trim, lower, {{k}}"] c [type=set, key=k,'
    ' value="x"] a -> c -> b -> exit',
    ENDS + "p [shape=component] j [max_visits=1, label=J] start -> p -> {b c} -> j -> exit"
    " b [label=B] c [label=C]",
    'b [type=start] e [type=exit] a [prompt="x", shape=circle, type=codergen] b -> a -> e',
    LINE
    + 'a -> b [condition="outcome=fail && !x || context.y != z"] b [prompt="Set x, y."] b -> a',
    LINE + 'a [retry_target=b] b [prompt="only retried"] b -> exit',
    LINE + "retry_target=b b [prompt=x] b -> exit a [goal_gate=true]",
    LINE
    + "a -> p p [shape=component, join_policy=first_success, max_parallel=8]"
    + " j [shape=tripleoctagon] p -> {b c} -> j -> exit"
    + " b [label=B] c [label=C]",
    LINE + 'h [type=http, url="https://x", method=GET, headers="a: b"] a -> h -> exit',
    LINE + 'f [type=for_each, items="{{a.output}}", prompt="{{item.x}} {{index}}"] a -> f -> exit',
    LINE + 'f [type=for_each, items="tool.output", prompt="{{item}}"] a -> f -> exit',
    LINE + 'f [type=for_each, items="x,y", prompt="{{item}}"] a -> f -> exit',
    LINE + 'f [type=write_file, path=x, content="c", append=true] a -> f -> exit',
    LINE + 'i [type=include, dotfile="x.dot"] j [type=set, key=k, value=0] a -> i -> j -> exit',
    LINE + 'model_stylesheet="* { model: gemini:gemini-2.5-flash; } .hard { agent: gemini-acp }"',
    LINE + "a [max_retries=0, timeout=15m, goal_gate=false, weight=2]",
    LINE + 'a [max_retries="3", timeout="900s", auto_status="true"]',
    LINE + "a [timeout=900] max_visits=5 default_max_retry=2 default_fidelity=summary:low",
    LINE + 'a [color="#ff0000", fontname=x, xlabel=y, height=2, my_own=3, tooltip=t] rankdir=LR',
    LINE + 'a [agent="gemini-acp", model="whatever-it-takes"]',
    LINE + 'a [agent="gemini-acp"] model_stylesheet="* { model: gemini-2.5-flash; }"',
    LINE + "m [shape=house, dotfile=x, manager.poll_interval=0s] a -> m -> exit",
    LINE + 'a [agent="my-program --with arguments"]',
    LINE + 's [type=set, key=who, set.what=1] a [agent="{{who}}", model="{{what}}"] a -> s -> exit',
    LINE + 'a [model="gemini:gemini-2.5-flash", reasoning_effort=high]',
    LINE + "a [llm_provider=gemini, llm_model=gemini-2.5-flash]",
    LINE + "a [type=wait.human] b [type=set, set.k=B] a -> b -> exit",
    LINE + 't [shape=parallelogram, tool_command="make"] a -> t -> exit',
    LINE + 'm [shape=house] stack.child_dotfile="child.dot" a -> m -> exit',
    LINE + 'a -> a [condition="outcome=retry"]',
    LINE + 'm [type=merge, into=main, gate="make", branches="x,y"] a -> m -> exit',
]


@pytest.mark.parametrize("body", GREEN)
def test_a_valid_pipeline_has_no_findings(body: str) -> None:
    assert lint(body) == []


def test_every_rule_has_a_failing_example() -> None:
    names = {getattr(rule, "__name__", "") for rule in RULES}
    names.add("key_known")
    assert names == {case[0] for case in RED} | {"edge_target_exists"}


MISTYPED = [
    ("polcy=edits", "error", "policy"),
    ("max_cos=1", "error", "max_cost"),
    ("maxcost=1", "error", "max_cost"),
    ("timout=5m", "error", "timeout"),
    ("max_vists=3", "error", "max_visits"),
    ("max_total_token=9", "error", "max_total_tokens"),
    ("sandbx=require", "error", "sandbox"),
    ('output_shema="{}"', "warning", "output_schema"),
    ("retries=2", "warning", "max_retries"),
    ("timeout_s=30", "warning", "timeout"),
    ("max_agent_turns=30", "warning", "max_turns"),
    ("reasoning=high", "warning", "reasoning_effort"),
    ("default_max_retries=2", "warning", "graph [default_max_retries=…]"),
]


@pytest.mark.parametrize(("attribute", "severity", "near"), MISTYPED)
def test_an_attribute_that_is_nearly_a_known_one_is_reported(
    attribute: str, severity: str, near: str
) -> None:
    (finding,) = of("attribute_known", f"{LINE}a [{attribute}]")
    assert (finding.severity, finding.node) == (severity, "a")
    assert finding.fix is not None
    assert near in finding.fix


def test_a_mistyped_limit_of_the_graph_is_an_error() -> None:
    for attribute, near in (("max_cots=1", "max_cost"), ("on_bugdet=pause", "on_budget")):
        (finding,) = of("attribute_known", LINE + attribute)
        assert (finding.severity, finding.fix) == ("error", f"Did you mean {near}?")
    (finding,) = of("attribute_known", LINE + "timeout=5m")
    assert (finding.severity, finding.fix) == ("warning", "Write node [timeout=…].")


@pytest.mark.parametrize(
    ("attributes", "written", "type"),
    [
        ("tool_command=make", "tool_command", "tool"),
        ("script=make", "script", "tool"),
        ('url="http://localhost"', "url", "http"),
        ("shape=parallelogram, tool_command=make, prompt=Build", "prompt", "codergen"),
        ("shape=parallelogram, tool_command=make, llm_prompt=Build", "llm_prompt", "codergen"),
        ("shape=diamond, allowed_tools=Read", "allowed_tools", "codergen"),
    ],
)
def test_an_attribute_of_another_node_kind_is_reported(
    attributes: str, written: str, type: str
) -> None:
    (finding,) = of("attribute_known", f"{LINE}a [{attributes}] b [{attributes}] a -> b -> exit")
    assert finding.severity == "warning"
    assert finding.message.startswith(
        f"{written} of a, b has no effect there: nodes of type {type}"
    )
    assert finding.fix == f"Write type={type}, or remove it."


def test_a_default_for_nodes_of_some_kinds_is_not_reported() -> None:
    nodes = "node [max_parallel=2]; a; p [shape=component]; a -> p -> exit"
    assert of("attribute_known", f"{nodes} {LINE}") == []


def test_attributes_of_other_runners_are_not_reported() -> None:
    foreign = "complexity=medium, persona=x, agent_mode=y, loop_max=3, outputs=z, mcp_tool=t"
    assert lint(f"{LINE}a [{foreign}] target_module=x inputs=y") == []


@pytest.mark.parametrize(
    ("rule", "attrs"),
    [
        ("model_known", 'model="gemini:gemini-99"'),
        ("agent_known", "agent=gemni"),
        ("attribute_known", "retries=2"),
        ("type_known", "type=my.step"),
    ],
)
def test_an_unknown_name_is_reported_once_with_the_nodes_that_have_it(
    rule: str, attrs: str
) -> None:
    nodes = " ".join(f"n{i} [prompt=p, {attrs}]" for i in range(9))
    chain = " -> ".join(f"n{i}" for i in range(9))
    (finding,) = of(rule, f"{LINE} {nodes} a -> {chain} -> exit")
    assert "n0, n1, n2 and 6 more" in finding.message


def test_a_key_that_the_run_sets_is_known() -> None:
    graph = parse(f'digraph G {{ {LINE} a [prompt="Do {{{{feature}}}}"] }}')
    assert [finding.rule for finding in engine.lint(graph)] == ["key_known"]
    assert engine.lint(graph, values={"feature": "x"}) == []


def test_a_child_pipeline_may_set_any_key() -> None:
    child = "i [type=include, dotfile=x] a -> i -> b -> exit"
    assert lint(LINE + child + ' b [prompt="{{summary}}"]') == []
    (finding,) = lint(LINE + child + ' b [prompt="{{last_respons}}"]')
    assert finding.fix == "Did you mean last_response?"


READS = re.compile(
    r"""(?:\.(?:text|seconds|is_true|number|names)\(|attrs(?:\.get\(|\[))"([\w.]+)\""""
)


def test_every_attribute_that_the_source_reads_is_known() -> None:
    folder = Path(engine.__file__).parents[2]
    sources = [*folder.glob("_pipelines/**/*.py"), *folder.glob("_engine/**/*.py")]
    read = {name for path in sources for name in READS.findall(path.read_text("utf-8"))}
    assert len(read) > 60
    known = {*names_of("graph"), *names_of("node"), *names_of("edge"), *ALIASES, PROMPT_FILE}
    # Of nodes that only corral makes: attempts of a comparison and items of a batch.
    assert read - known == {"batch", "patch", "repository"}


@pytest.mark.parametrize(
    ("condition", "never"),
    [
        ("outcome=success", False),
        ("outcome=skipped || outcome=partial_success", False),
        ("outcome=failure", False),
        ("outcome=Success", True),
        ("context.outcome=sucess", True),
        ("outcome!=nope", False),
        ("outcome=nope || outcome=fail", False),
        ("outcome=nope || outcome=no", False),
        ("x=1 && x=1", False),
        ("x=1 && x!=1", True),
        ("x=1 && x!=2", False),
        ("x && !x", True),
        ("x && x=false", True),
        ('x && x=""', True),
        ("!x && x=yes", True),
        ("x && x=yes", False),
        ("x=1 && context.x=2", True),
        ("(x=1 || y=1) && (x=2 || y=2)", False),
        ("(x=1 || x=3) && x=2", True),
        ("!(x || !x)", True),
        ("", False),
        (" && ".join(f"(a{i}=1 || b{i}=1)" for i in range(30)), False),
    ],
)
def test_a_condition_that_can_never_be_true_is_found(condition: str, never: bool) -> None:
    text = condition.replace('"', '\\"')
    assert bool(of("condition_never_true", f'{LINE} a -> exit [condition="{text}"]')) is never


def test_findings_are_in_text_order_with_line_and_column() -> None:
    found = lint(ENDS + "\nstart -> b\n  b -> exit\n a [timeout=x]")
    assert [(f.line, f.column, f.rule) for f in found if f.line > 2] == [
        (3, 10, "prompt_on_llm_nodes"),
        (5, 2, "reachability"),
        (5, 2, "dead_end"),
        (5, 2, "attribute_value"),
        (5, 2, "prompt_on_llm_nodes"),
    ]
    assert str(found[-2]).startswith(
        "5:2: error: timeout of a: 'x' is not a duration [attribute_value]"
    )


async def _step(work: NodeContext) -> None: ...


def test_a_registered_type_is_known() -> None:
    body = LINE + "a [type=lint.own]"
    assert of("type_known", body)
    handlers.register("lint.own", _step)
    assert not of("type_known", body)


@pytest.mark.deep
def test_thousands_of_unknown_names_are_linted_quickly() -> None:
    count = 2000
    body = ENDS + " ".join(
        f'n{i} [promt{i}=x, type=kind{i}, retry_target=lost{i}, agent="agent-{i}", model="v{i}:m",'
        f' fidelity=f{i}] n{i} -> exit [condition="x{i}=1 && x{i}=2"] start -> n{i}'
        for i in range(count)
    )
    found = lint(body)
    assert sum(finding.rule == "retry_target_exists" for finding in found) == count
    assert sum(finding.rule == "type_known" for finding in found) == count
    assert sum(finding.rule == "condition_never_true" for finding in found) == count


@pytest.mark.deep
def test_a_long_chain_and_a_wide_fan_are_linted() -> None:
    chain = " -> ".join(f"n{i}" for i in range(20_000))
    graph = parse(f"digraph G {{ {ENDS} node [label=x] start -> {chain} -> exit }}")
    assert engine.lint(graph) == []
    forks = " ".join(f"start -> p{i} p{i} [shape=component] p{i} -> exit" for i in range(3000))
    graph = parse(f"digraph G {{ {ENDS} {forks} }}")
    assert len(engine.lint(graph)) == 3000


def test_a_lint_error_lists_the_errors_and_has_all_findings() -> None:
    findings = lint("a -> b")
    with pytest.raises(engine.LintError, match="the pipeline has 2 errors") as caught:
        engine.raise_on_errors(findings)
    assert caught.value.findings == tuple(findings)
    many = lint(LINE + " ".join(f"lost{i} -> exit" for i in range(100)))
    with pytest.raises(engine.LintError, match="and 80 more"):
        engine.raise_on_errors(many)
    engine.raise_on_errors(finding for finding in findings if finding.severity == "warning")


def test_an_empty_graph_has_neither_start_nor_exit() -> None:
    assert [finding.rule for finding in engine.lint(Graph("G"))] == ["start_node", "terminal_node"]


def test_branches_that_meet_at_a_plain_node_need_no_fan_in() -> None:
    text = LINE + "a -> p p [shape=component] p -> b -> d p -> c -> d d -> exit"
    assert of("fan_out_has_fan_in", text) == []
