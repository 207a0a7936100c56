"""The public API: an exact list of names, each importable and documented."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import runpy
import sys
import typing
from pathlib import Path

import pytest
from support.public_modules import public_modules

import corral
from corral.errors import ProcessFailed

NAMES = [
    "AgentSession",
    "Allow",
    "AskedQuestion",
    "Batch",
    "BatchKwargs",
    "BatchReport",
    "BatchResult",
    "Budget",
    "CompareKwargs",
    "Comparison",
    "ComparisonSummary",
    "CorralError",
    "Cost",
    "DeniedCall",
    "Deny",
    "Edit",
    "Event",
    "FileChanged",
    "Hook",
    "HookAnswer",
    "McpServer",
    "Policy",
    "Pool",
    "Prompt",
    "Result",
    "RunKwargs",
    "Schema",
    "Section",
    "Session",
    "SyncSession",
    "Tool",
    "ToolRequest",
    "Tools",
    "Turn",
    "Usage",
    "__version__",
    "batch",
    "batch_sync",
    "call_budget",
    "command_succeeds",
    "compare",
    "compare_sync",
    "errors",
    "events",
    "file_tasks",
    "files_exist",
    "from_json",
    "is_installed",
    "live",
    "merge",
    "merge_queue",
    "models",
    "pipelines",
    "pool",
    "providers",
    "read_before_write",
    "required_order",
    "result_from_events",
    "review",
    "run",
    "run_sync",
    "runs",
    "scenarios",
    "schema_of",
    "serve",
    "session",
    "session_sync",
    "to_json",
    "verified",
    "workflow",
    "workflows",
]
HOMES: dict[str, str] = {
    name: home for home, names in vars(corral)["_HOMES"].items() for name in names.split()
}


def test_the_public_names_are_these() -> None:
    assert corral.__all__ == NAMES
    assert dir(corral) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    value = getattr(corral, name)
    if name in ("__version__", "Event"):
        assert value
        return
    assert (inspect.getdoc(value) or "").strip()


def test_the_page_on_compatibility_names_the_public_modules() -> None:
    page = (Path(__file__).parents[1] / "docs" / "compatibility.md").read_text("utf-8")
    [row] = [line for line in page.splitlines() if line.startswith("| Python names |")]
    named = re.findall(r"`(corral[\w.]*)`", row)
    assert [name for name in named if "._" not in name] == public_modules()


def test_run_and_run_sync_have_the_same_parameters() -> None:
    assert inspect.signature(corral.run_sync) == inspect.signature(corral.run)
    assert inspect.iscoroutinefunction(corral.run)
    assert not inspect.iscoroutinefunction(corral.run_sync)


def test_the_union_of_events_is_complete() -> None:
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
                assert all(alias.asname == alias.name for alias in line.names)
                seen |= {alias.name: line.module for alias in line.names}
    assert seen == {name: home.removesuffix(".") for name, home in HOMES.items()}
    assert set(seen) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_the_object_of_its_module(name: str) -> None:
    from importlib import import_module

    home = HOMES[name]
    complete = import_module(f"{home}{name}") if home.endswith(".") else None
    assert getattr(corral, name) is (complete or getattr(import_module(home), name))


def test_a_traceback_names_an_error_as_users_import_it() -> None:
    for module in (corral.errors, corral.live, corral.models, corral.pipelines, corral.providers):
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            if isinstance(value, type) and issubclass(value, BaseException):
                home = value.__module__
                assert home in ("builtins", "corral.errors", module.__name__), value
                if home == module.__name__:
                    assert pickle.loads(pickle.dumps(value)) is value


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'corral' has no attribute 'nothing'"):
        _ = corral.nothing  # pyright: ignore


def test_a_name_whose_module_cannot_be_loaded_without_descriptors_is_an_error_of_corral(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_descriptor.py").write_text("raise OSError(24, 'Too many open files')")
    (tmp_path / "other_defect.py").write_text("raise OSError(2, 'No such file')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for module in ("no_descriptor", "other_defect"):
        monkeypatch.setitem(vars(corral)["_HOMES"], module, module)
    with pytest.raises(ProcessFailed, match="ulimit -n"):
        _ = corral.no_descriptor  # pyright: ignore
    with pytest.raises(FileNotFoundError):
        _ = corral.other_defect  # pyright: ignore


def test_the_version_of_a_checkout_is_no_release() -> None:
    tool = Path(__file__).parents[1] / "tools" / "build_version.py"
    assert corral.__version__ == f"{runpy.run_path(str(tool))['RELEASE']}.dev0"
