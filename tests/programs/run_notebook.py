"""Runs the cells of a notebook as a kernel does: in one running loop, with ``await`` in cells. The
value of the last expression of a cell is shown by its HTML, if it has any."""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import json
import sys
from pathlib import Path


async def run_cell(source: str, names: dict[str, object]) -> None:
    tree = ast.parse(source)
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        tree.body[-1] = ast.copy_location(
            ast.Assign([ast.Name("_", ast.Store())], last.value, lineno=last.lineno), last
        )
        ast.fix_missing_locations(tree)
    names["_"] = None
    code = compile(tree, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = eval(code, names)
    if inspect.isawaitable(running):
        await running
    shown = names["_"]
    if shown is not None:
        html = getattr(shown, "_repr_html_", None)
        print("\nOUT", html() if html else repr(shown))


async def main(path: str) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in json.loads(Path(path).read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            await run_cell("".join(cell["source"]), names)


setattr(builtins, "__IPYTHON__", True)  # noqa: B010
asyncio.run(main(sys.argv[1]))
