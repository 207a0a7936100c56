"""The error of a text that is not a pipeline, with its place."""

from __future__ import annotations

from corral.errors import PipelineInvalid

_LINE_SHOWN = 100


class DotError(PipelineInvalid):
    """A text that is not a pipeline: the place, what was expected there, and what to do."""

    code = "dot"

    def __init__(
        self, message: str, *, text: str, position: int, source: str, hint: str | None = None
    ) -> None:
        self.line = text.count("\n", 0, position) + 1
        begin = text.rfind("\n", 0, position) + 1
        self.column = position - begin + 1
        self.source = source
        self.problem = message
        located = f"{source}:{self.line}:{self.column}: {message}"
        super().__init__(f"{located}\n{_excerpt(text, begin, position)}", hint=hint)


def _excerpt(text: str, begin: int, position: int) -> str:
    """The line with a caret below the place. A long line is cut to the part near the place."""
    end = text.find("\n", position)
    end = len(text) if end < 0 else end
    first = max(begin, position - _LINE_SHOWN // 2)
    last = min(end, first + _LINE_SHOWN)
    before = "".join("\t" if c == "\t" else " " for c in text[first:position])
    head, tail = "…" * (first > begin), "…" * (last < end)
    return f"    {head}{text[first:last]}{tail}\n    {' ' * len(head)}{before}^"
