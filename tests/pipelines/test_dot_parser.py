"""The graph that a text describes."""

from __future__ import annotations

import pytest

from corral._pipelines.dot_parser import parse
from corral._pipelines.graph import Edge, Graph, Value


def of(body: str) -> Graph:
    return parse(f"digraph G {{ {body} }}")


def pairs(graph: Graph) -> list[tuple[str, str]]:
    return [(edge.source, edge.target) for edge in graph.edges]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('"text"', "text"),
        ('""', ""),
        (r'"say \"hi\""', 'say "hi"'),
        (r'"a\nb\tc\\d"', "a\nb\tc\\d"),
        (r'"\\n"', r"\n"),
        (r'"\d+ \w \l"', r"\d+ \w \l"),
        ('"two\nlines"', "two\nlines"),
        ('"joined \\\nline"', "joined line"),
        ('"a" + "b" + "c"', "abc"),
        ('"// no # comment /* here */"', "// no # comment /* here */"),
        ('"; ] } -> ["', "; ] } -> ["),
        ('"héllo 漢字 🐎"', "héllo 漢字 🐎"),
        ("3", 3),
        ("-3", -3),
        ("0", 0),
        ("1.5", 1.5),
        ("-.5", -0.5),
        ("2.", 2.0),
        ("true", True),
        ("false", False),
        ("True", "True"),
        ('"true"', "true"),
        ('"3"', "3"),
        ("500ms", "500ms"),
        ("30s", "30s"),
        ("15m", "15m"),
        ("1h30m", "1h30m"),
        ("2h", "2h"),
        ("1d", "1d"),
        ("1.5h", "1.5h"),
        ("LR", "LR"),
        ("gpt-5.2", "gpt-5.2"),
        ("gemini:gemini-2.5-flash", "gemini:gemini-2.5-flash"),
        ("summary:high", "summary:high"),
        ("_x", "_x"),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_a_value_keeps_the_type_it_was_written_with(written: str, expected: Value) -> None:
    for body in (
        f"a [k={written}]",
        f"a [k = {written} ,];",
        f"k={written} a",
        f"b->a[k={written}]",
    ):
        graph = of(body)
        attrs = graph.edges[0].attrs if graph.edges else graph.nodes["a"].attrs or graph.attrs
        assert attrs == {"k": expected}
        assert type(attrs["k"]) is type(expected)


@pytest.mark.parametrize(
    "block",
    [
        "[a=1, b=2]",
        "[a=1; b=2]",
        "[a=1 b=2]",
        "[a=1\n b=2]",
        "[a=1,b=2,]",
        "[a=1;b=2;]",
        "[ a = 1 , b = 2 ]",
        "[a=1][b=2]",
        "[a=1] [b=2]",
        "[a=1 // one\n b=2 # two\n]",
        "[a=1 /* ] */ , b=2]",
        "[\n\ta=1\n\tb=2\n]",
        "/* before */ [a=1, b=2]",
        '["a"=1, b=2]',
        "[a=0, a=1, b=2]",
    ],
)
def test_attributes_are_separated_by_anything(block: str) -> None:
    assert of(f"n {block}").nodes["n"].attrs == {"a": 1, "b": 2}
    assert of(f"n {block};").nodes["n"].attrs == {"a": 1, "b": 2}
    assert of(f"n -> m {block}").edges[0].attrs == {"a": 1, "b": 2}


def test_keys_may_have_dots() -> None:
    graph = of('m [manager.max_cycles=3, human.default_choice="yes"] tool_hooks.pre="x"')
    assert graph.nodes["m"].attrs == {"manager.max_cycles": 3, "human.default_choice": "yes"}
    assert graph.attrs == {"tool_hooks.pre": "x"}


@pytest.mark.parametrize(
    "text",
    [
        "digraph G{a;b;a->b}",
        "digraph G { a b a -> b }",
        "digraph G\n{\na\nb\na\n->\nb\n}\n",
        "\ufeffdigraph G { a; b; a -> b; };".replace("};", "}"),
        "// c\n# d\n/* e\n{ */ digraph /* f */ G { a // g\n b # h }\n a -> /* i */ b }\n// end",
        "DiGraph G { a; b; a -> b }",
        "digraph G { a;; b; ; a -> b;; }",
        "digraph G {\r\n  a;\r\n  b\r\n  a -> b // c\r\n}\r\n",
        "digraph G {\ra\rb\ra -> b\r}",
        'digraph "G" { "a"; "b"; "a" -> "b" }',
        "digraph G { a; b; a:n -> b:port:sw }",
        "digraph G { a; b; a:1 -> b:'p' }".replace("'", '"'),
        "digraph G { a; b; { a -> b } }",
        "digraph G { a; subgraph { b }; a -> b }",
        "digraph G { a; subgraph cluster_1 { b } a -> b }",
        "digraph G { a; b; a -> { b } }",
        "digraph G { a\u00a0; b; a -> b }",
    ],
)
def test_different_spellings_give_the_same_graph(text: str) -> None:
    graph = parse(text)
    assert graph.name == "G"
    assert list(graph.nodes) == ["a", "b"]
    assert pairs(graph) == [("a", "b")]
    assert graph.attrs == {}


def test_a_graph_may_be_empty_and_without_a_name() -> None:
    assert parse("digraph {}") == Graph("pipeline")


def test_names_in_quotes_may_be_anything() -> None:
    graph = of(r'"my node" -> "node"; "a\"b" [x=1]; "" -> "->"; "prüfen"')
    assert list(graph.nodes) == ["my node", "node", 'a"b', "", "->", "prüfen"]
    assert pairs(graph) == [("my node", "node"), ("", "->")]
    assert graph.nodes['a"b'].attrs == {"x": 1}


def test_a_quoted_name_is_the_same_node_as_the_bare_one() -> None:
    graph = of('a [x=1]; "a" [y=2]; "a" -> b')
    assert graph.nodes["a"].attrs == {"x": 1, "y": 2}
    assert len(graph.nodes) == 2


def test_chained_edges_expand_pairwise_and_each_has_its_own_attributes() -> None:
    graph = of("a -> b -> c [weight=2]")
    assert pairs(graph) == [("a", "b"), ("b", "c")]
    assert [edge.attrs for edge in graph.edges] == [{"weight": 2}, {"weight": 2}]
    assert graph.edges[0].attrs is not graph.edges[1].attrs


def test_the_ends_of_an_edge_may_be_groups() -> None:
    graph = of("{a b} -> c -> {d; e} [x=1]")
    assert pairs(graph) == [("a", "c"), ("b", "c"), ("c", "d"), ("c", "e")]
    assert all(edge.attrs == {"x": 1} for edge in graph.edges)


def test_two_edges_between_the_same_nodes_are_two() -> None:
    graph = of("a -> b [x=1]; a -> b [x=2]; a -> a")
    assert [edge.attrs for edge in graph.edges] == [{"x": 1}, {"x": 2}, {}]


def test_a_node_that_appears_only_in_an_edge_exists_with_the_defaults_in_scope() -> None:
    graph = of("a -> b; node [shape=hexagon]; b -> c")
    assert graph.nodes["a"].attrs == {}
    assert graph.nodes["b"].attrs == {}
    assert graph.nodes["c"].attrs == {"shape": "hexagon"}


def test_defaults_reach_later_declarations_and_explicit_attributes_win() -> None:
    graph = of("a [x=0] node [x=1, y=1] b; c [x=2]; node [x=3] d; a [z=9]")
    assert graph.nodes["a"].attrs == {"x": 0, "z": 9}
    assert graph.nodes["b"].attrs == {"x": 1, "y": 1}
    assert graph.nodes["c"].attrs == {"x": 2, "y": 1}
    assert graph.nodes["d"].attrs == {"x": 3, "y": 1}


def test_a_node_of_an_edge_gets_the_defaults_of_its_later_declaration() -> None:
    graph = of("a -> b; node [x=1]; b [y=2]; a")
    assert graph.nodes["b"].attrs == {"x": 1, "y": 2}
    assert graph.nodes["a"].attrs == {"x": 1}


def test_explicit_wins_also_over_defaults_that_came_with_an_edge() -> None:
    graph = of("node [shape=box]; a -> b; b [shape=diamond]; b")
    assert graph.nodes["b"].attrs == {"shape": "diamond"}


def test_defaults_from_an_edge_win_over_later_defaults() -> None:
    graph = of("subgraph { node [x=1] a -> b } node [x=2, y=2] b [z=3]")
    assert graph.nodes["b"].attrs == {"x": 1, "y": 2, "z": 3}


def test_naming_a_declared_node_in_a_subgraph_changes_only_its_class() -> None:
    graph = of('a [x=1]; subgraph { label="Group"; node [x=2, y=2]; a; a -> b }')
    assert graph.nodes["a"].attrs == {"x": 1}
    assert graph.nodes["a"].classes == ("group",)
    assert graph.nodes["b"].attrs == {"x": 2, "y": 2}


def test_defaults_end_with_their_scope() -> None:
    graph = of(
        "node [x=1] edge [w=1] subgraph s { node [x=2, y=2] edge [w=2] b; b -> c } d; c -> d"
    )
    assert graph.nodes["b"].attrs == {"x": 2, "y": 2}
    assert graph.nodes["d"].attrs == {"x": 1}
    assert [edge.attrs for edge in graph.edges] == [{"w": 2}, {"w": 1}]


def test_edge_defaults_and_explicit_attributes() -> None:
    graph = of("edge [weight=1, label=x] a -> b [label=y]; a -> c -> d")
    assert [edge.attrs for edge in graph.edges] == [
        {"weight": 1, "label": "y"},
        {"weight": 1, "label": "x"},
        {"weight": 1, "label": "x"},
    ]


def test_defaults_are_never_shared_between_nodes() -> None:
    graph = of("node [x=1] a -> b; a [x=2]")
    assert graph.nodes["b"].attrs == {"x": 1}


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ('"Loop A"', "loop-a"),
        ("Review", "review"),
        ('"  Two  blanks "', "two-blanks"),
        ('"It\'s (50%) done!"', "its-50-done"),
        ('"Prüfung"', "prüfung"),
        ('"a_b-c"', "a_b-c"),
    ],
)
def test_a_subgraphs_label_is_a_class_of_its_nodes(label: str, name: str) -> None:
    graph = of(f"subgraph cluster_x {{ a; label={label}; b -> c }} d")
    assert {n.id: n.classes for n in graph.nodes.values()} == {
        "a": (name,),
        "b": (name,),
        "c": (name,),
        "d": (),
    }
    assert of(f"subgraph {{ graph [label={label}] a }}").nodes["a"].classes == (name,)


def test_classes_of_nested_subgraphs_and_of_the_node_itself_add_up() -> None:
    graph = of(
        'subgraph { label=Outer subgraph { label=Inner a [class="own, two"] } b [class=outer] }'
    )
    assert graph.nodes["a"].classes == ("own", "two", "inner", "outer")
    assert graph.nodes["b"].classes == ("outer",)


def test_a_subgraphs_attributes_are_not_the_graphs() -> None:
    graph = of('label=Whole; subgraph { label=Part; rank=same; goal="no"; a } graph [goal="yes"]')
    assert graph.attrs == {"label": "Whole", "goal": "yes"}


def test_nodes_and_edges_know_their_place() -> None:
    graph = parse('digraph G {\n  a [x="two\nlines"]; b\n\n  c -> a\n    -> d\n}')
    assert [(n.id, n.line, n.column) for n in graph.nodes.values()] == [
        ("a", 2, 3),
        ("b", 3, 10),
        ("c", 5, 3),
        ("d", 6, 8),
    ]
    assert [(e.line, e.column) for e in graph.edges] == [(5, 3), (5, 8)]


def test_nodes_that_an_edge_creates_have_its_place() -> None:
    graph = parse("digraph G {\n  a -> b;\n  c\n   -> d;\n}")
    assert [(n.line, n.column) for n in graph.nodes.values()] == [(2, 3), (2, 8), (3, 3), (4, 7)]


def test_the_place_of_a_node_is_its_declaration() -> None:
    graph = parse("digraph G {\n a -> b\n b [x=1]\n b [y=1]\n}")
    assert (graph.nodes["b"].line, graph.nodes["b"].column) == (3, 2)


def test_edges_without_attributes_share_nothing() -> None:
    graph = of("a -> b; b -> c")
    assert graph.edges == [Edge("a", "b", {}, 1, 13), Edge("b", "c", {}, 1, 21)]
    assert graph.edges[0].attrs is not graph.edges[1].attrs


def test_keywords_are_names_when_quoted() -> None:
    assert list(of('"graph" -> "Edge"; nodes; edge_1; subgraphs').nodes) == [
        "graph", "Edge", "nodes", "edge_1", "subgraphs",
    ]  # fmt: skip


@pytest.mark.deep
def test_a_hundred_thousand_nodes_are_read() -> None:
    count = 100_000
    body = "\n".join(
        f'n{i} [label="Node {i}", prompt="Do {i}"]\nn{i} -> n{i + 1}' for i in range(count)
    )
    graph = of(body)
    assert len(graph.nodes) == count + 1
    assert len(graph.edges) == count
    assert graph.nodes["n99999"].attrs == {"label": "Node 99999", "prompt": "Do 99999"}


def test_a_long_text_in_an_attribute_is_read() -> None:
    text = "all work and no play " * 100_000
    assert of(f'a [prompt="{text}"]').nodes["a"].attrs["prompt"] == text
