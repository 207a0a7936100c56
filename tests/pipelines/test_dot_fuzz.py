"""Any input gives a graph or a ``DotError``, in linear time."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from corral._pipelines import dot_parser, loader, render
from corral._pipelines.dot_parser import DotError
from corral._pipelines.graph import Graph, from_json, to_json

COMPLETE = r"""
digraph "P" { // comment
  graph [goal="do \"it\"", rankdir=LR]; node [shape=box, timeout=15m] edge [weight=1]
  start [shape=Mdiamond] /* c */ a [prompt="x\ny", model=gemini:gemini-2.5-flash; max_retries=3]
  subgraph cluster_1 { label = "Loop A" b:n -> c -> {d e} [condition="outcome=fail", weight=1.5] }
  # line
  start -> a -> b; e -> "quoted name" [label="[Y] Yes" + "!"]
}
"""
PIECES = ['"', "\\", "{", "}", "[", "]", "->", "-", "=", ";", ",", "//", "/*", "*/", "#", "\n",
          "\r", " ", "a", "digraph", "subgraph", "node", "graph", "strict", "<", "+", ":", ".",
          "1", "é", "\x00", "\ufeff", "true", "5m"]  # fmt: skip


def read(text: str) -> Graph | None:
    try:
        return dot_parser.parse(text)
    except DotError as error:
        wrong = error
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert 1 <= wrong.line <= len(lines)
    assert 1 <= wrong.column <= len(lines[wrong.line - 1]) + 1
    return None


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80))
@example("digraph{")
def test_any_text_is_a_graph_or_a_dot_error(text: str) -> None:
    read(text)
    read(f"digraph G {{ {text} }}")
    read(f"digraph G {{ a [{text}] }}")


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_any_sequence_of_tokens_is_a_graph_or_a_dot_error(pieces: list[str]) -> None:
    for glue in ("", " "):
        text = glue.join(pieces)
        read(text)
        graph = read(f"digraph G {{ {text} }}")
        if graph is not None:
            second = dot_parser.parse(render.as_dot(graph))
            assert list(second.nodes) == list(graph.nodes)
            assert from_json(to_json(graph)) == graph


@pytest.mark.deep
def test_a_mutated_pipeline_is_a_graph_or_a_dot_error() -> None:
    chance = random.Random(20261115)
    read_well = 0
    for _ in range(3000):
        text = COMPLETE
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(text))
            end = at + chance.choice((0, 0, 1, 1, 5, 40))
            text = text[:at] + chance.choice((*PIECES, "")) + text[end:]
        read_well += read(text) is not None
    assert 100 < read_well < 2900


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_a_file_of_any_bytes_is_a_graph_or_a_dot_error(data: bytes) -> None:
    with contextlib.suppress(DotError):
        dot_parser.parse(dot_parser.decode(b"digraph G {" + data + b"}", "x.dot"))


def test_a_file_of_random_bytes_is_a_dot_error(tmp_path: Path) -> None:
    file = tmp_path / "noise.dot"
    file.write_bytes(random.Random(1).randbytes(100_000))
    with pytest.raises(DotError):
        loader.read(file)


MANY = 100_000

NASTY = {
    "quotes": 'digraph G { a [x="' + '"' * MANY,
    "odd quotes": "digraph G { " + '"' * (2 * MANY + 1),
    "backslashes": 'digraph G { a [x="' + "\\" * MANY,
    "escaped quotes": 'digraph G { a [x="' + '\\"' * MANY,
    "open brackets": "digraph G { " + "a [" * MANY,
    "open blocks": "digraph G { a " + "[" * MANY,
    "equal signs": "digraph G { a [" + "x=" * MANY,
    "keys": "digraph G { a [" + "x " * MANY,
    "attributes never closed": "digraph G { a [" + "x=1 " * MANY,
    "blocks": "digraph G { a " + "[x=1]" * MANY,
    "arrows": "digraph G { a " + "-> " * MANY,
    "a chain": "digraph G { a" + " -> a" * MANY,
    "a chain never ended": "digraph G { a" + " -> a" * MANY + " ->",
    "dots": "digraph G { " + "a." * MANY,
    "ports": "digraph G { a" + ":n" * MANY + "}",
    "comments": "digraph G {" + "/* */" * MANY,
    "comment ends": "digraph G { /*" + "* /" * MANY,
    "line comments": "digraph G {" + "//\n" * MANY,
    "slashes": "digraph G {" + "/ " * MANY,
    "blanks": "digraph G {" + " \n" * MANY + "!",
    "semicolons": "digraph G {" + ";" * MANY,
    "statements with a comment each": "digraph G {" + "a [x=1] // c\n" * (MANY // 4) + "}",
    "one long line": "digraph G {" + "a -> b; " * (MANY // 2) + "}",
    "empty subgraphs": "digraph G {" + "{}" * (MANY // 4) + "}",
    "joined strings": 'digraph G { a [x="a"' + ' + "b"' * MANY + "] }",
    "a long number": "digraph G { a [x=" + "9" * MANY + "] }",
    "a long fraction": "digraph G { a [x=0." + "9" * MANY + "] }",
    "a long word": "digraph G { " + "a" * MANY + " }",
    "node defaults": "digraph G {" + "node [x=1]" * (MANY // 4) + "}",
    "a group of many": "digraph G { {" + " ".join(f"n{i}" for i in range(MANY // 4)) + "} -> b }",
    "groups one after the other": "digraph G {" + "{a b} -> c;" * (MANY // 10) + "}",
    "digraphs": "digraph " * MANY,
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY.keys())
def test_hostile_input_takes_linear_time(text: str) -> None:
    """Quadratic time would take many minutes here, and exceed the time limit of the test."""
    read(text)
