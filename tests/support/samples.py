"""The samples of the documentation: the fenced blocks of its pages, and the examples of docstrings.

``python -m support.samples FOLDER`` writes the Python samples for mypy (``make check-mypy``). A
sample is the body of a function: it has its own names, and may ``await``. Each page becomes a file
in which the samples have the lines of the page. Each public module becomes a file in which a
function has the name of what is documented. What an example of a docstring does not define is a
name of ``support.sample_names``, a module, or a public name of corral.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from support import sample_names
from support.public_modules import public_modules

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
SKILL = (*sorted((ROOT / "src/corral/.agents").rglob("*.md")),)
"""The pages of the skill."""
NEED_EXTRAS = ("corral.integrations.harbor", "corral.integrations.inspect_ai")
"""Public modules that import packages which are not installed here."""


class Block(NamedTuple):
    """A fenced block of a page."""

    path: Path
    number: int
    language: str
    text: str
    line: int
    """Of its first line in the file, from 1."""

    @property
    def page(self) -> str:
        return self.path.stem

    @property
    def file(self) -> str | None:
        """The file that the block is, if its first line names one."""
        found = re.match(r"(?:#|//) ([\w-]+\.\w+)\n", self.text)
        return found[1] if found else None

    @property
    def name(self) -> str:
        return f"{self.page}-{self.number}"


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for number, match in enumerate(found, 1):
        yield Block(page, number, match[1], match[2], text.count("\n", 0, match.start(2)) + 1)


BLOCKS = tuple(block for page in (*PAGES, *SKILL) for block in blocks_of(page))


def examples(docstring: str) -> list[str]:
    """The indented blocks after a line that ends with ``::``."""
    lines = inspect.cleandoc(docstring).split("\n")
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


def is_code(value: object) -> bool:
    return inspect.isfunction(value) or (inspect.isclass(value) and value.__module__ != "typing")


@cache
def public_names() -> list[tuple[str, str]]:
    """Each public class and function, in the first module that has it."""
    names = [name for name in public_modules() if name not in NEED_EXTRAS]
    found: list[tuple[str, str]] = []
    seen = set[int]()
    for name in (*names, "corral._pipelines.events"):  # public as ``pipelines.events``
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


# The files for the type checker.


def is_python(text: str) -> bool:
    """Whether an example compiles: some are commands."""
    try:
        compile(text, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        return False
    return True


def free_names(sample: str) -> set[str]:
    """The names that a sample uses and does not define."""
    defined, used = set[str](), set[str]()
    for node in ast.walk(ast.parse(sample)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                defined.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                defined.add(node.name)
            case ast.Import() | ast.ImportFrom():
                defined |= {each.asname or each.name.partition(".")[0] for each in node.names}
            case _:
                pass
    return used - defined - set(dir(builtins))


def import_for(name: str, module: str) -> str:
    """The statement that defines a free name of an example of a module; empty if there is none."""
    defined_here = getattr(vars(sample_names).get(name), "__module__", "") == sample_names.__name__
    if defined_here or name in sample_names.__annotations__:
        return f"from support.sample_names import {name}"
    if name in ("corral", "msgspec", *sys.stdlib_module_names):
        return f"import {name}"
    if f"corral.{name}" in public_modules():
        return f"from corral import {name}"
    if hasattr(import_module(module), name):
        return f"from {module} import {name}"
    found = [module for module, other in public_names() if other == name]
    return f"from {found[0]} import {name}" if found else ""


def function(name: str, text: str) -> list[str]:
    """A sample as a function: its lines, and one before them."""
    text = re.sub(r"^from __future__ .*", "pass", text, flags=re.MULTILINE)
    return [f"async def sample_{name}() -> None:", *textwrap.indent(text, "    ").split("\n")]


def page_file(page: Path) -> str:
    """The Python samples of a page."""
    lines = page.read_text().split("\n")
    shown = [""] * len(lines)
    for block in blocks_of(page):
        if block.language == "python" and ast.parse(block.text).body:
            code = function(str(block.number), block.text.rstrip())
            shown[block.line - 2 : block.line - 2 + len(code)] = code
    return "\n".join(shown)


def docstrings(module: str) -> Iterator[tuple[str, str]]:
    """The docstrings of a public module, of its classes and functions, and of their methods."""
    yield "module", import_module(module).__doc__ or ""
    for name in (name for other, name in public_names() if other == module):
        value = getattr(import_module(module), name)
        if is_code(value):
            yield name, value.__doc__ or ""
        for member, method in vars(value).items() if isinstance(value, type) else ():
            if not member.startswith("_") and isinstance(method.__doc__, str):
                yield f"{name}_{member}", method.__doc__


def module_file(module: str) -> str:
    """The Python examples of the docstrings of a public module."""
    lines, free = list[str](), set[str]()
    for name, docstring in docstrings(module):
        for number, example in enumerate(filter(is_python, examples(docstring)), 1):
            lines += function(f"{name}_{number}", example)
            free |= free_names(example)
    imports = sorted({import_for(name, module) for name in free} - {""})
    return "\n".join([*imports, *lines])


def write(folder: Path) -> None:
    """Write a file for each page and each public module with samples."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = (*PAGES, *SKILL)
    texts = {str(page.relative_to(ROOT).with_suffix("")): page_file(page) for page in pages}
    modules = {module for module, _ in public_names()}
    texts |= {f"docstrings/{module}": module_file(module) for module in modules}
    for name, text in texts.items():
        if "async def sample_" in text:
            target = folder / "samples" / f"{re.sub(r'[^A-Za-z0-9_/]', '_', name)}.py"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(f"{text}\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
