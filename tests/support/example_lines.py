"""Lines of code of the examples, and of the versions of peers."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from pathlib import Path

COUNTS = re.compile(r"Lines of code: (\d+); with ([\w-]+): (\d+) \((peers/[\w.]+)\)")


def source_of(path: Path) -> str:
    text = path.read_text("utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n".join("".join(each["source"]) for each in cells if each["cell_type"] == "code")


def code_lines(path: Path) -> int:
    """Lines with code: no blank lines, comments and docstrings. An import is one line, however a
    formatter breaks it."""
    source = source_of(path)
    if path.suffix in (".sh", ".dot"):
        lines = (line.strip() for line in source.splitlines())
        return sum(bool(line) and not line.startswith(("#", "//")) for line in lines)
    tree = compile(
        source,
        str(path),
        "exec",
        flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
    )
    docstrings = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = {
        line
        for token in tokens
        if token.type not in (*skipped, tokenize.ENDMARKER)
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(found - docstrings - _further_lines_of_imports(tree))


def _further_lines_of_imports(tree: ast.AST) -> set[int]:
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno + 1, (node.end_lineno or node.lineno) + 1)
    }
