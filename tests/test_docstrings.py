"""Every public name has a docstring and an example that compiles."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from itertools import chain
from types import ModuleType

import pytest
from support.samples import ROOT, examples, is_code, is_python, public_names

from corral._docs.error_pages import error_page, first_line, from_docstring, report
from corral.errors import CorralError, classes_by_code

NAMES = public_names()
INTEGRATIONS = ("CorralAgent", "SandboxEnvironment", "corral_agent")


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
        if not is_code(value) or is_error:
            continue
        if not examples(documented(value)) and name not in words:
            missing.setdefault(module, []).append(name)
    assert missing == {}


def test_every_example_compiles() -> None:
    """``make check`` checks its types (``support.samples``)."""
    for module, name in NAMES:
        value = getattr(import_module(module), name)
        found = examples(documented(value)) if is_code(value) else []
        assert [text for text in found if not is_python(text)] == [], f"{module}.{name}"


@pytest.mark.parametrize("code", sorted(classes_by_code()))
def test_the_page_of_an_error_has_an_example_that_compiles(code: str) -> None:
    found = classes_by_code()[code]
    samples = re.findall(r"```python\n(.*?)```", error_page(found), re.DOTALL)
    assert samples
    for each in samples:
        compile(each, code, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_page_that_the_command_line_names_says_more_than_what_happened() -> None:
    """``corral: …`` ends with ``see: corral docs CODE``: the page says what to do."""
    named = [found for found in set(classes_by_code().values()) if "docs" in report(found("x"))]
    short = [found.__name__ for found in named if first_line(found) == text_of(found)]
    assert len(named) > 30
    assert short == []


def text_of(found: type) -> str:
    return " ".join(from_docstring(found.__doc__ or "").split())


def test_what_needs_other_packages_has_an_example_too() -> None:
    """Those for harbor are commands of it. The modules cannot be imported here."""
    found: dict[str, bool] = {}
    for path in (ROOT / "src" / "corral" / "integrations").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in INTEGRATIONS:
                texts = examples(ast.get_docstring(node) or "")
                found[node.name] = bool(texts) and all(
                    is_python(text) or text.startswith("harbor run ") for text in texts
                )
    assert found == dict.fromkeys(INTEGRATIONS, True)
