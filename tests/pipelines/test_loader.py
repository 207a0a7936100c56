"""Child pipelines: their paths, and the checks before a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral._pipelines import loader
from corral._pipelines.dot_parser import parse
from corral.errors import ConfigError

CHILD = "digraph child { start [shape=Mdiamond] done [shape=Msquare] start -> done }"


def parent(file: str, graph: str = "", kind: str = "include") -> str:
    return f"""digraph parent {{
        {graph}
        start [shape=Mdiamond]
        sub [type="{kind}"{f', dotfile="{file}"' if file else ""}]
        done [shape=Msquare]
        start -> sub -> done
    }}"""


def test_a_child_in_the_folder_of_its_parent_gets_an_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "child.dot").write_text(CHILD)
    graph = loader.with_absolute_children(parse(parent("child.dot")), tmp_path)
    assert [file for _, file in loader.children(graph)] == [str(tmp_path / "child.dot")]
    loader.check(graph, Path("/nowhere"))


def test_a_managers_child_may_be_named_by_the_graph(tmp_path: Path) -> None:
    (tmp_path / "child.dot").write_text(CHILD)
    text = parent("", 'stack.child_dotfile = "child.dot"', "stack.manager_loop")
    graph = loader.with_absolute_children(parse(text), tmp_path)
    assert [file for _, file in loader.children(graph)] == [str(tmp_path / "child.dot")]


def test_a_child_elsewhere_is_searched_in_the_workspace(tmp_path: Path) -> None:
    graph = loader.with_absolute_children(parse(parent("child.dot")), tmp_path)
    assert [file for _, file in loader.children(graph)] == ["child.dot"]
    with pytest.raises(ConfigError, match=r"'sub': cannot read the pipeline .*child\.dot"):
        loader.check(graph, tmp_path)


def test_a_child_with_errors_is_rejected_with_the_name_of_its_node(tmp_path: Path) -> None:
    (tmp_path / "child.dot").write_text("digraph child { start [shape=Mdiamond] }")
    with pytest.raises(ConfigError, match=r"node 'sub': the pipeline has"):
        loader.check(parse(parent("child.dot")), tmp_path)


def test_a_pipeline_that_includes_itself_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "p.dot").write_text(parent("p.dot"))
    with pytest.raises(ConfigError, match="includes itself"):
        loader.check(parse(parent("p.dot")), tmp_path)


def test_a_child_name_with_a_placeholder_is_not_checked(tmp_path: Path) -> None:
    loader.check(parse(parent("{{which}}.dot")), tmp_path)
