"""The Python samples of pages and docstrings, as ``make check-mypy`` gives them to mypy."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest
from support.samples import (
    BLOCKS,
    examples,
    free_names,
    import_for,
    is_code,
    is_python,
    module_file,
    page_file,
    public_names,
    write,
)

PAGE = """\
# Page

```python
from __future__ import annotations

result = await corral.run("gemini")
```

```sh
corral
```

```python
# Only a comment.
```
"""


def lines_of(text: str) -> dict[int, str]:
    return {number: line for number, line in enumerate(text.split("\n"), 1) if line.strip()}


def test_a_sample_of_a_page_keeps_its_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert lines_of(page_file(page)) == {
        3: "async def sample_1() -> None:",
        4: "    pass",
        6: '    result = await corral.run("gemini")',
    }


def test_an_example_of_a_docstring_has_its_imports_and_the_name_of_what_it_documents() -> None:
    lines = module_file("corral.events").split("\n")
    assert "from support.sample_names import event" in lines
    begin = lines.index("async def sample_Init_1() -> None:")
    assert lines[begin + 1] == '    if event.type == "init":'
    assert "async def sample_fork_sync_1() -> None:" in module_file("corral.runs")
    assert "async def sample_PipelineResult_value_1() -> None:" in module_file("corral.pipelines")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("event", "from support.sample_names import event"),
        ("json", "import json"),
        ("corral", "import corral"),
        ("testing", "from corral import testing"),
        ("ModelServer", "from corral.testing import ModelServer"),
        ("unknown_name", ""),
    ],
)
def test_a_name_that_an_example_does_not_define_is_imported(name: str, expected: str) -> None:
    assert import_for(name, "corral.live") == expected


def test_a_name_of_the_module_that_is_documented_comes_first() -> None:
    assert import_for("Message", "corral.testing") == "from corral.testing import Message"
    assert import_for("Message", "corral.models") == "from corral.models import Message"


def test_names_that_a_sample_defines_are_not_free() -> None:
    sample = """
import a.b
from c import d as e
async def f(g, *, h=None):
    try:
        i = [j for j in g]
    except ValueError as k:
        print(k, x)
"""
    assert free_names(sample) == {"x"}


def test_every_sample_and_example_is_checked(tmp_path: Path) -> None:
    write(tmp_path)
    texts = [path.read_text() for path in tmp_path.rglob("*.py")]
    for text in texts:
        ast.parse(text)
    pages = [b for b in BLOCKS if b.language == "python" and ast.parse(b.text).body]
    found = [
        text
        for module, name in public_names()
        if is_code(value := getattr(import_module(module), name))
        for text in filter(is_python, examples(value.__doc__ or ""))
    ]
    assert len(pages) > 60
    assert len(found) > 200
    written = "\n".join(texts).count("async def sample_")
    assert written >= len(pages) + len(found)
