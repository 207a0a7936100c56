"""Pipelines as text, DOT and SVG."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral._pipelines.dot_parser import parse
from corral._pipelines.graph import Edge, Graph, Node, Value
from corral._pipelines.render import arrange, as_dot, as_svg, as_text

SVG = "{http://www.w3.org/2000/svg}"
LOOP = """digraph review {
  goal="Ship it"
  start [shape=Mdiamond] plan [label="Make a plan"] ok [shape=hexagon, label="Good?"]
  done [shape=Msquare]
  start -> plan -> ok
  ok -> done [label="[A] Approve"]
  ok -> plan [label="[R] Revise"]
}"""
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.dot"))


def test_the_text_rendering_shows_nodes_edges_and_statuses() -> None:
    assert as_text(parse(LOOP), {"plan": "success"}) == (
        "review\n"
        "goal: Ship it\n"
        "\n"
        "● start\n"
        "  └─▶ plan\n"
        "▪ plan  Make a plan  [success]\n"
        "  └─▶ ok\n"
        "☻ ok  Good?  (wait.human)\n"
        "  ├─ [A] Approve ─▶ done\n"
        "  └─ [R] Revise ─▶ plan ↑\n"
        "◎ done\n"
    )


def test_the_text_rendering_has_no_control_characters() -> None:
    shown = as_text(parse('digraph G { "a\x1b[31m" -> b [label="x\x07\ny"] goal="\x1b]0;t" }'))
    assert all(c.isprintable() or c == "\n" for c in shown)


def same(graph: Graph) -> None:
    second = parse(as_dot(graph))
    assert second.name == graph.name
    assert second.attrs == graph.attrs
    assert list(second.nodes) == list(graph.nodes)
    for one, two in zip(graph.nodes.values(), second.nodes.values(), strict=True):
        expected = dict(one.attrs)
        if one.inherits_timeout and one.kind == "wait.human":
            del expected["timeout"]  # it has no effect there
        if one.classes:
            expected["class"] = ",".join(one.classes)
        assert two.attrs == expected
        assert {k: type(v) for k, v in two.attrs.items()} == {
            k: type(v) for k, v in expected.items()
        }
        assert two.classes == one.classes
    assert [(e.source, e.target, e.attrs) for e in second.edges] == [
        (e.source, e.target, e.attrs) for e in graph.edges
    ]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_survives_a_round_trip_through_dot(file: Path) -> None:
    same(parse(file.read_text("utf-8")))


def test_there_are_examples() -> None:
    assert EXAMPLES


texts = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12)
keys = st.from_regex(r"[a-z_]{1,6}(\.[a-z]{1,4})?", fullmatch=True).filter(
    lambda key: key != "class"
)
values: st.SearchStrategy[Value] = (
    texts | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(-1e30, 1e30)
)
attributes = st.dictionaries(keys, values, max_size=3)


@settings(max_examples=60, deadline=None)
@given(texts, st.dictionaries(texts, attributes, max_size=4), attributes, st.data())
def test_any_graph_survives_a_round_trip_through_dot(
    name: str, nodes: dict[str, dict[str, Value]], attrs: dict[str, Value], data: st.DataObject
) -> None:
    edges: list[Edge] = []
    if nodes:
        ends = st.sampled_from(sorted(nodes))
        drawn = data.draw(st.lists(st.tuples(ends, ends, attributes), max_size=4))
        edges = [Edge(*edge) for edge in drawn]
    graph = Graph(name, attrs, {key: Node(key, dict(value)) for key, value in nodes.items()}, edges)
    same(graph)
    ElementTree.fromstring(as_svg(graph))
    as_text(graph)


def test_backslashes_quotes_and_newlines_survive_a_round_trip() -> None:
    text = '\\ \\\\ \\n \\" " \n \t \\\n end\\'
    same(Graph(text, {"goal": text}, {text: Node(text, {"prompt": text, "a.b": 1.0})}))


def test_classes_of_subgraphs_stay_in_the_dot() -> None:
    same(parse('digraph G { subgraph { label="Loop A" a [class="x"] b } }'))


def test_the_svg_shows_every_node_edge_label_and_status_color() -> None:
    picture = ElementTree.fromstring(as_svg(parse(LOOP), {"plan": "fail", "start": "success"}))
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"start", "Make a plan", "Good?", "done", "[A] Approve", "[R] Revise"} == set(texts)
    assert sum(path.get("class") == "edge" for path in picture.iter(f"{SVG}path")) == 4
    fills = {
        group.get("id"): path.get("style")
        for group in picture.iter(f"{SVG}g")
        for path in group.iter(f"{SVG}path")
    }
    assert fills["plan"] == f"fill:{'#fbd7d5'}"
    assert fills["ok"] is None


def test_texts_in_the_svg_are_escaped() -> None:
    nasty = "</title><script>alert(1)</script>\"'&]]>\x00\x1b"
    graph = Graph(
        nasty, {}, {nasty: Node(nasty, {"label": nasty, "prompt": nasty})}, [Edge(nasty, nasty)]
    )
    graph.edges[0].attrs["label"] = nasty
    picture = ElementTree.fromstring(as_svg(graph))
    assert not list(picture.iter(f"{SVG}script"))


def test_nodes_are_below_their_predecessors_and_do_not_overlap() -> None:
    graph = parse(
        "digraph G { s [shape=Mdiamond] s -> {a b c d} -> e -> f; f -> a; e -> e; s -> f }"
    )
    widths = dict.fromkeys(graph.nodes, 100.0)
    drawn = arrange(graph, widths)
    position = drawn.positions
    assert position["s"].y < position["a"].y == position["b"].y < position["e"].y < position["f"].y
    for one in position:
        assert widths[one] / 2 <= position[one].x <= drawn.width - widths[one] / 2
        for two in position:
            if one < two and position[one].y == position[two].y:
                assert abs(position[one].x - position[two].x) >= 100
    for edge, path in zip(graph.edges, drawn.paths, strict=True):
        assert (path[0], path[-1]) == (position[edge.source], position[edge.target])


def test_the_same_graph_gives_the_same_drawing() -> None:
    assert as_svg(parse(LOOP)) == as_svg(parse(LOOP))


@pytest.mark.deep
def test_a_large_pipeline_can_be_drawn() -> None:
    chain = " -> ".join(f"n{i}" for i in range(2000))
    fan = " ".join(f"n0 -> m{i} -> n1999" for i in range(1000))
    graph = parse(f"digraph G {{ {chain}; {fan} n1999 -> n0 }}")
    assert len(list(ElementTree.fromstring(as_svg(graph)).iter(f"{SVG}g"))) == 3000
    assert as_text(graph).count("▶") == len(graph.edges)
