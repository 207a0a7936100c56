"""A text that is not a pipeline is rejected, with the place and a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral._pipelines import loader
from corral._pipelines.dot_parser import DotError, parse
from corral.errors import ConfigError, PipelineInvalid

WRONG = [
    # text, line, column, part of the message, part of the hint
    ("", 1, 1, "expected `digraph`", "digraph name"),
    ("  \n // only this\n", 3, 1, "expected `digraph`", ""),
    ("digraf G {}", 1, 1, "expected `digraph`", ""),
    ("graph G { a -- b }", 1, 1, "an undirected graph", "digraph"),
    ("strict digraph G {}", 1, 1, "strict graphs are not supported", "strict"),
    ("STRICT graph G {}", 1, 1, "strict graphs are not supported", "strict"),
    ("digraph G", 1, 10, "expected { after digraph G", ""),
    ("digraph 1 {}", 1, 9, "expected a name or {", '"1"'),
    ("digraph my-graph {}", 1, 11, "expected { after digraph my", ""),
    ("digraph G {", 1, 12, "expected }: the { of line 1 is not closed", ""),
    ("digraph G {\n a\n", 3, 1, "expected }: the { of line 1 is not closed", ""),
    ("digraph G {\n subgraph {\n a }", 3, 5, "expected }: the { of line 1 is not closed", ""),
    ("digraph G {} digraph H {}", 1, 14, "text after the end of the digraph", "one digraph"),
    ("digraph G {}}", 1, 13, "text after the end of the digraph", ""),
    ("digraph G {\n a -- b\n}", 2, 4, "an undirected edge", "->"),
    ("digraph G {\n  a [label=<b>]\n}", 2, 12, "HTML values are not supported", 'label="'),
    ("digraph G { label=<b>; }", 1, 19, "HTML values are not supported", ""),
    ("digraph G { a -> }", 1, 18, "expected a node", ""),
    ("digraph G { a -> ; }", 1, 18, "expected a node", ""),
    ("digraph G { -> a }", 1, 13, "expected a node", ""),
    ("digraph G { a -> -> b }", 1, 18, "expected a node", ""),
    ("digraph G { my-node -> b }", 1, 15, "expected -> or [ or ;", '"my-node"'),
    ("digraph G { 1 -> 2 }", 1, 13, "expected a node", '"1"'),
    ("digraph G { prüfen -> b }", 1, 13, "a letter that needs quotes", '"prüfen"'),
    ("digraph G { a.b -> c }", 1, 17, "expected = after a.b", '"a.b"'),
    ("digraph G { a -> node }", 1, 18, "not the keyword node", '"node"'),
    ("digraph G { node -> a }", 1, 18, "expected [ after node", '"node"'),
    ("digraph G { edge }", 1, 18, "expected [ after edge", ""),
    ("digraph G { digraph H {} }", 1, 13, "digraph inside a digraph", "subgraph"),
    ("digraph G { subgraph 1 {} }", 1, 22, "expected a name or { after subgraph", ""),
    ("digraph G { subgraph s a }", 1, 24, "expected { after subgraph", ""),
    ("digraph G { a: -> b }", 1, 16, "expected a port", ""),
    ("digraph G { a [x] }", 1, 17, "expected = after x", 'x="value"'),
    ("digraph G { a [x=] }", 1, 18, "expected a value after x =", ""),
    ("digraph G { a [x=, y=1] }", 1, 18, "expected a value after x =", ""),
    ("digraph G { a [=1] }", 1, 16, "expected the name of an attribute", ""),
    ("digraph G { a [,] }", 1, 16, "expected the name of an attribute", ""),
    ("digraph G { a [x=1 }", 1, 20, "expected the name of an attribute, or ]", ""),
    ("digraph G { a [x=1", 1, 19, "expected ]: the [ of line 1 is not closed", ""),
    ("digraph G { a [x=1.2.3] }", 1, 18, "1.2.3 is not a value", '"1.2.3"'),
    ("digraph G { a [x=5banana] }", 1, 18, "5banana is not a value", "quotes"),
    ("digraph G { a [x=1e5] }", 1, 18, "1e5 is not a value", ""),
    ("digraph G { a [x=-y] }", 1, 18, "-y is not a value", ""),
    ("digraph G { a [x=" + "9" * 30 + "] }", 1, 18, "is not a value", "64 bits"),
    ("digraph G { a [x=9223372036854775808] }", 1, 18, "is not a value", "64 bits"),
    ("digraph G { a [model=a/b] }", 1, 22, "this value needs quotes", '"a/b"'),
    ("digraph G { a [x=größe] }", 1, 18, "this value needs quotes", '"größe"'),
    ("digraph G { a [color=#ff0000]\n}", 2, 1, "expected a value after color =", "# begins"),
    ('digraph G { a [x="y" + z] }', 1, 24, "expected a string after +", ""),
    ('digraph G {\n a [x="never closed]\n}\n', 2, 7, "this string is not closed", '\\"'),
    ('digraph G { a [x="\\"] }', 1, 18, "this string is not closed", ""),
    ("digraph G {\n /* never closed\n}", 2, 2, "this comment is not closed", "*/"),
    ("digraph G { a ] }", 1, 15, "expected a node", ""),
    ("digraph G { a\n = }", 2, 4, "expected a value after a =", ""),
    ("digraph G { ! }", 1, 13, "expected a node", ""),
    ("digraph G { \x00 }", 1, 13, "expected a node", ""),
    ("digraph G { {a b} [x=1] }", 1, 19, "expected a node", ""),
    ('digraph G {\r\n  a [x=1]\r\n  b [y="1" z]\r\n}', 3, 13, "expected = after z", ""),
    ("digraph G {\n\ta -> [", 2, 7, "expected a node", ""),
]


@pytest.mark.parametrize(("text", "line", "column", "expected", "hint"), WRONG)
def test_an_error_has_the_place_the_problem_and_a_hint(
    text: str, line: int, column: int, expected: str, hint: str
) -> None:
    with pytest.raises(DotError) as caught:
        parse(text, "p.dot")
    error = caught.value
    assert expected in error.problem
    assert (error.line, error.column) == (line, column)
    assert str(error).startswith(f"p.dot:{line}:{column}: {error.problem}")
    assert hint in (error.hint or "")


def test_the_line_is_shown_with_a_caret_below_the_place() -> None:
    with pytest.raises(DotError) as caught:
        parse("digraph G {\n\ta [x=]\n}")
    assert caught.value.message.splitlines()[1:] == ["    \ta [x=]", "    \t     ^"]


def test_only_the_part_of_a_long_line_near_the_error_is_shown() -> None:
    with pytest.raises(DotError) as caught:
        parse("digraph G { " + "a; " * 100_000 + "!" + " b;" * 100_000 + "}")
    _, shown, caret = caught.value.message.splitlines()
    assert len(shown) < 120
    assert shown[caret.index("^")] == "!"


def test_the_depth_of_subgraphs_is_limited() -> None:
    deep = "digraph G {" + "subgraph {" * 64 + "a" + "}" * 65
    assert list(parse(deep).nodes) == ["a"]
    for opening in ("{", "subgraph s {", "a -> {"):
        with pytest.raises(DotError, match="more than 64 deep"):
            parse("digraph G {" + opening * 100_000)


def test_too_many_edges_from_groups_are_rejected() -> None:
    group = "{" + " ".join(f"n{i}" for i in range(1000)) + "}"
    with pytest.raises(DotError, match="more than 100000 edges at once"):
        parse(f"digraph G {{ {group} -> {group} }}")


def test_it_is_a_config_error_and_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "wrong.dot"
    file.write_text("digraph G {", encoding="utf-8")
    with pytest.raises(PipelineInvalid) as caught:
        loader.read(file)
    assert isinstance(caught.value, ConfigError)
    assert caught.value.message.startswith(f"{file}:1:12:")


def test_a_file_that_is_not_utf8_is_rejected_with_the_place(tmp_path: Path) -> None:
    file = tmp_path / "latin.dot"
    file.write_bytes('digraph G {\n a [label="ü"] }'.encode("latin-1"))
    with pytest.raises(DotError, match="0xfc is not UTF-8") as caught:
        loader.read(file)
    assert (caught.value.line, caught.value.column) == (2, 12)


@pytest.mark.parametrize("name", ["missing.dot", "", ".", "a\x00b"])
def test_a_file_that_cannot_be_read_is_a_config_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the pipeline"):
        loader.read(str(tmp_path / name) if name == "missing.dot" else name)
