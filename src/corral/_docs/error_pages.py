"""A page for each class of errors, made of the class."""

from __future__ import annotations

import inspect
import re

from corral import events
from corral.errors import CorralError, classes_by_code

BAD_INPUT = 2
"""The exit code of a mistake in a command, a file or a call."""
BROAD = ("error", "remote", "interrupted")
"""Codes whose page says nothing about the case."""


def find_error(name: str) -> type[CorralError] | None:
    """The class with this name or code."""
    for code, found in classes_by_code().items():
        if name.lower() in (code, found.__name__.lower()):
            return found
    return None


def report(error: CorralError | events.Error) -> str:
    """An error for a terminal: what is wrong and, on the next line, what to do, with the command
    that shows its page. Bad input has no use for a page: its error says what to write."""
    found = find_error(error.code)
    hint = error.hint or ""
    if found is not None and found.cli_exit != BAD_INPUT and error.code not in BROAD:
        page = f"corral docs {error.code}"
        hint = f"{hint} (see: {page})" if hint else f"See: {page}"
    return f"corral: {error.message}\n  {hint}" if hint else f"corral: {error.message}"


def error_page(found: type[CorralError]) -> str:
    """Its page, as Markdown."""
    parents = (base for base in found.__mro__[1:] if issubclass(base, CorralError))
    rows = {
        "code": f"`{found.code}`",
        "exit code of `corral`": str(found.cli_exit),
        "status of the run": f"`{found.status}`",
        "phase": f"`{found.phase}`",
        "another attempt can succeed": "yes" if found.retryable else "no",
        "a kind of": ", ".join(f"`{base.__name__}`" for base in parents),
    }
    table = [f"| {name} | {value} |" for name, value in rows.items() if value]
    text = from_docstring(inspect.getdoc(found) or "")
    parts = [f"# {found.__name__}", text, "\n".join(["| | |", "|---|---|", *table])]
    if "```python" not in text:
        parts.append(f"```python\n{_sample(found)}\n```")
    return "\n\n".join(parts) + "\n"


def _sample(found: type[CorralError]) -> str:
    lines = (
        "import corral",
        "from corral import errors",
        "",
        "try:",
        '    corral.run_sync(prompt="Fix the typo", policy="edits", check=True)',
        f"except errors.{found.__name__} as error:",
        "    print(error.code, error.message, error.hint)",
    )
    return "\n".join(lines)


def first_line(found: type) -> str:
    """What a class means, in one sentence."""
    text = re.split(r"(?<=\.)\s|\n\n", inspect.getdoc(found) or "")[0]
    return " ".join(from_docstring(text).split())


def from_docstring(text: str) -> str:
    """Markdown of a docstring: code spans, and the indented samples after ``::``."""
    parts: list[str] = []
    is_code = False
    for paragraph in re.split(r"\n{2,}", inspect.cleandoc(text)):
        if is_code and paragraph.startswith(" "):
            parts.append(f"```python\n{inspect.cleandoc(paragraph)}\n```")
            continue
        is_code = paragraph.endswith("::")
        shown = re.sub(
            r"``([^`]+)``", r"`\1`", re.sub(r":?:$", ":" * (paragraph != "::"), paragraph)
        )
        parts += [shown] * bool(shown)
    # Blocks that only a blank line separates are one sample.
    return "\n\n".join(parts).replace("\n```\n\n```python\n", "\n\n")
