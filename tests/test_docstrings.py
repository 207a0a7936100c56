"""Every public name has a docstring and an example that compiles."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from support.public_modules import public_modules

from corral._docs.error_pages import error_page
from corral.errors import CorralError, classes_by_code
from corral.events import Event
from corral.model_types import StreamEvent

NEED_EXTRAS = ("corral.integrations.harbor", "corral.integrations.inspect_ai")
"""Modules that import other packages; their examples are in docs/integrations.md."""
MODULES = [name for name in public_modules() if name not in NEED_EXTRAS]
MODULES.append("corral._pipelines.events")  # public as ``pipelines.events``
WITHOUT_EXAMPLE = {
    "corral.agents": "AgentControls AgentSpec CommandHook Enforced Grants Launch LaunchContext"
    " MeterRoute Package Probe StreamTransport TurnEnding WireTools keyed_agent",
    "corral.models": "Wire",
    "corral._pipelines.events": "*",
}
"""Names without one: docs/adding-agents.md shows records of agents as complete files, and a wire
format is four functions. These lists may only become shorter."""
ROOT = Path(__file__).parents[1]


def public_names() -> list[tuple[str, str]]:
    """Each public class and function, in the first module that has it."""
    found: list[tuple[str, str]] = []
    seen = set[int]()
    for name in MODULES:
        module = import_module(name)
        listed: list[str] = getattr(module, "__all__", None) or [
            each
            for each, value in vars(module).items()
            if not each.startswith("_") and is_code(value) and value.__module__ == name
        ]
        for each in listed:
            if id(value := getattr(module, each)) not in seen or not is_code(value):
                found.append((name, each))
                seen.add(id(value))
    return found


def is_code(value: object) -> bool:
    return inspect.isfunction(value) or (inspect.isclass(value) and value.__module__ != "typing")


NAMES = public_names()


EVENTS = (*get_args(Event), *get_args(StreamEvent))


def words_of_samples() -> set[str]:
    """The words of the Python samples of the pages, and of the examples: tests run all of them."""
    pages = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    blocks = (re.findall(r"^```python\n(.*?)^```", each.read_text(), re.M | re.S) for each in pages)
    texts = [*chain.from_iterable(blocks)]
    texts += (each.read_text() for each in (ROOT / "examples").rglob("*.py"))
    return set(re.findall(r"\w+", "\n".join(texts)))


def documented(value: object) -> str:
    """The docstring of the object itself, not of its base class."""
    doc = vars(value).get("__doc__") if isinstance(value, type) else getattr(value, "__doc__", None)
    return doc if isinstance(doc, str) else ""


def examples(doc: str) -> list[str]:
    """The indented blocks after a line that ends with ``::``."""
    lines = inspect.cleandoc(doc).split("\n")
    found: list[str] = []
    for number, line in enumerate(lines):
        if not line.rstrip().endswith("::"):
            continue
        block: list[str] = []
        for after in lines[number + 1 :]:
            if after and not after.startswith("    "):
                break
            block.append(after)
        found.append(textwrap.dedent("\n".join(block)).strip())
    return [each for each in found if each]


def uses_of_public_modules(example: str) -> list[tuple[str, str]]:
    """``corral.run``, ``models.generate`` and so on in the code, as module and name."""
    modules = {"corral": "corral", "models": "corral.models", "pipelines": "corral.pipelines"}
    return [
        (modules[node.value.id], node.attr)
        for node in ast.walk(ast.parse(example))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in modules
    ]


def test_every_public_name_has_its_own_docstring() -> None:
    assert len(NAMES) > 200
    missing: list[str] = []
    for module, name in NAMES:
        value = getattr(import_module(module), name)
        is_documented = bool(documented(value).strip())
        if (is_code(value) or isinstance(value, ModuleType)) and not is_documented:
            missing.append(f"{module}.{name}")
    assert missing == []


def test_every_public_name_has_an_example() -> None:
    """In its docstring, in a sample of a page, or (of an error) on its page."""
    words = words_of_samples()
    missing: dict[str, list[str]] = {}
    for module, name in NAMES:
        value = getattr(import_module(module), name)
        is_error = inspect.isclass(value) and issubclass(value, CorralError)
        without = WITHOUT_EXAMPLE.get(module, "").split()
        if not is_code(value) or is_error or name in without or without == ["*"]:
            continue
        if not examples(documented(value)) and name not in words:
            missing.setdefault(module, []).append(name)
    assert missing == {}


def test_every_example_compiles_and_names_what_exists() -> None:
    for module, name in NAMES:
        value = getattr(import_module(module), name)
        for each in examples(documented(value)) if is_code(value) else ():
            compile(each, f"{module}.{name}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            for used, attribute in uses_of_public_modules(each):
                assert hasattr(import_module(used), attribute), f"{used}.{attribute}"
            if value in EVENTS:
                for attribute in re.findall(r"\bevent\.(\w+)", each):
                    assert hasattr(value, attribute), (name, attribute)


@pytest.mark.parametrize("code", sorted(classes_by_code()))
def test_the_page_of_an_error_has_an_example_that_compiles(code: str) -> None:
    found = classes_by_code()[code]
    samples = re.findall(r"```python\n(.*?)```", error_page(found), re.DOTALL)
    assert samples
    for each in samples:
        compile(each, code, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_lists_of_exceptions_have_only_public_names() -> None:
    for module, names in WITHOUT_EXAMPLE.items():
        for name in set(names.split()) - {"*"}:
            assert (module, name) in NAMES, name
