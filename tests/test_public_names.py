"""The public face: an exact list, each name there and explained."""

from __future__ import annotations

import ast
import inspect
import tomllib
import typing
from pathlib import Path

import pytest

import corral

NAMES = [
    "AgentSession",
    "Batch",
    "BatchReport",
    "BatchResult",
    "CorralError",
    "Cost",
    "DeniedCall",
    "Event",
    "FileChanged",
    "Hook",
    "McpServer",
    "Policy",
    "Pool",
    "Prompt",
    "Result",
    "RunKwargs",
    "Section",
    "Session",
    "Tool",
    "Tools",
    "Turn",
    "Usage",
    "__version__",
    "batch",
    "batch_sync",
    "call_budget",
    "command_succeeds",
    "errors",
    "events",
    "files_exist",
    "from_json",
    "is_installed",
    "merge",
    "models",
    "pipelines",
    "pool",
    "providers",
    "read_before_write",
    "required_order",
    "result_from_events",
    "run",
    "run_sync",
    "session",
    "to_json",
]


def test_the_public_names_are_these() -> None:
    assert corral.__all__ == NAMES
    assert dir(corral) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(corral, name)
    if name in ("__version__", "Event"):
        assert value
        return
    assert (inspect.getdoc(value) or "").strip()


def test_the_two_ways_to_run_take_the_same() -> None:
    assert inspect.signature(corral.run_sync) == inspect.signature(corral.run)
    assert inspect.iscoroutinefunction(corral.run)
    assert not inspect.iscoroutinefunction(corral.run_sync)


def test_the_union_of_events_is_whole() -> None:
    for kind in typing.get_args(corral.Event):
        assert getattr(corral.events, kind.__name__) is kind


def test_what_type_checkers_see_is_what_is_loaded() -> None:
    tree = ast.parse(Path(corral.__file__).read_text("utf-8"))
    seen: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.If):
            for line in node.body:
                assert isinstance(line, ast.ImportFrom)
                assert line.module
                seen |= {alias.name: line.module for alias in line.names}
    homes: dict[str, str] = vars(corral)["_HOME"]
    assert seen == homes
    assert set(seen) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_very_thing_of_its_home(name: str) -> None:
    from importlib import import_module

    home: str = vars(corral)["_HOME"][name]
    whole = import_module(f"corral.{name}") if home == "corral" else None
    assert getattr(corral, name) is (whole or getattr(import_module(home), name))


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'corral' has no attribute 'nothing'"):
        _ = corral.nothing  # pyright: ignore


def test_the_version_is_the_packages() -> None:
    project = Path(__file__).parents[1] / "pyproject.toml"
    assert corral.__version__ == tomllib.loads(project.read_text("utf-8"))["project"]["version"]
