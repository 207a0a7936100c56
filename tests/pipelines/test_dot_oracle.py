"""pydot reads the same graph, as far as its language and ours are the same."""

from __future__ import annotations

import warnings
from typing import Any

import pydot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral._pipelines import dot_parser
from corral._pipelines.graph import Graph, Value

Plain = tuple[dict[str, dict[str, str]], list[tuple[str, str, dict[str, str]]]]

TEXTS = [
    "digraph G { a; b; a -> b; }",
    'digraph G { a [label="x", shape=box]; b [label="y z"]; a -> b [weight=2]; }',
    "digraph G { a -> b -> c -> a [color=red]; }",
    'digraph G {\n  // c\n  a [x="1"] /* d */\n  b\n  a -> b [label="[Y] Yes"]\n}',
    'digraph "My graph" { "a b" -> "c-d" [label="-> ; ] }"]; }',
    "digraph G { a [x=1, y=2]; b [x=1 y=2]; }",
    'digraph G { a [x="\\"quoted\\"", y="tab"]; }',
    'digraph G { a [label="ünï 漢"]; "ä" -> a }',
    "digraph G { a -> b; a -> b; a -> a }",
    "digraph G { a [x=-1.5]; b [y=.5]; }",
]


def ours(graph: Graph) -> Plain:
    def texts(attrs: dict[str, Value]) -> dict[str, str]:
        return {key: shown(value) for key, value in attrs.items()}

    nodes = {node.id: texts(node.attrs) for node in graph.nodes.values()}
    return nodes, [(edge.source, edge.target, texts(edge.attrs)) for edge in graph.edges]


def shown(value: Value) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def theirs(text: str) -> Plain:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graphs: Any = pydot.graph_from_dot_data(text)
    assert graphs is not None, text
    graph = graphs[0]
    nodes: dict[str, dict[str, str]] = {}
    for node in graph.get_nodes():
        nodes.setdefault(bare(node.get_name()), {}).update(plain(node.get_attributes()))
    edges = [
        (bare(edge.get_source()), bare(edge.get_destination()), plain(edge.get_attributes()))
        for edge in graph.get_edges()
    ]
    for source, target, _ in edges:
        nodes.setdefault(source, {})
        nodes.setdefault(target, {})
    return nodes, edges


def plain(attrs: dict[str, Any]) -> dict[str, str]:
    return {bare(key): shown_by_pydot(str(value)) for key, value in attrs.items()}


def shown_by_pydot(value: str) -> str:
    return bare(value) if value[:1] == '"' else number(value)


def bare(text: str) -> str:
    return dot_parser.unescaped(text[1:-1]) if text[:1] == '"' else text


def number(text: str) -> str:
    try:
        return f"{float(text):g}" if "." in text else text
    except ValueError:
        return text


def same(text: str) -> None:
    our_nodes, our_edges = ours(dot_parser.parse(text))
    their_nodes, their_edges = theirs(text)
    assert our_nodes == their_nodes
    assert sorted(our_edges, key=repr) == sorted(their_edges, key=repr)


@pytest.mark.parametrize("text", TEXTS)
def test_pydot_reads_the_same(text: str) -> None:
    same(text)


identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True).filter(
    lambda name: name.lower() not in dot_parser.KEYWORDS
)
strings = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters='"\\')
    | st.sampled_from(" ->;[]{}=,"),
    max_size=12,
).map(lambda text: f'"{text}"')
names = identifiers | strings.filter(lambda text: len(text) > 2)
words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)
values = strings | words | st.integers(-999, 999).map(str) | st.sampled_from(["1.5", "-0.25"])
separators = st.sampled_from([", ", " ", ",\n  "])
"""Semicolons are separators for Graphviz and corral; pydot does not accept them."""


@st.composite
def blocks(draw: st.DrawFn) -> str:
    # If a name is written twice, pydot takes the first value, Graphviz the last.
    attributes = draw(st.dictionaries(identifiers, values, max_size=4))
    if not attributes:
        return ""
    inside = draw(separators).join(f"{key}={value}" for key, value in attributes.items())
    return f" [{inside}]"


@st.composite
def statements(draw: st.DrawFn) -> str:
    chain = draw(st.lists(names, min_size=1, max_size=4))
    end = draw(st.sampled_from([";", "\n", " ;\n", "; // note\n", ";\n/* ] } */"]))
    return draw(st.sampled_from([" -> ", "->", "\n  -> "])).join(chain) + draw(blocks()) + end


@pytest.mark.deep
@settings(max_examples=80, deadline=None)
@given(st.lists(statements(), max_size=8))
def test_pydot_reads_the_same_from_any_generated_graph(parts: list[str]) -> None:
    same("digraph G {\n" + "".join(parts) + "}\n")
