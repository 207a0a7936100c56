"""The progress of a comparison on stderr, and patches side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from corral._cli.ui.batch_progress import BatchProgress
from corral._cli.ui.terminal import answer_markdown, echo_err
from corral._core.terminal_text import clean
from corral._engine.batch.results import BatchReport, BatchResult

if TYPE_CHECKING:
    from corral._comparison.plan import ComparisonPlan


_MARKS = {"passed": "✓", "failed": "✗", "missing": "?"}


class CompareProgress(BatchProgress):
    """``with progress:`` spans the comparison. Answers to a prompt without a verifier are printed
    when they are complete: they are what a person wants to compare."""

    def __init__(self, *, enabled: bool, answers: bool) -> None:
        """``answers``: whether answers may be printed."""
        super().__init__(enabled=enabled)
        self._answers = answers
        self.prints_answers: bool = False

    def begin(self, plan: ComparisonPlan) -> None:
        self.prints_answers = (
            self._answers
            and plan.total <= len(plan.agents)
            and not any(task.verifier.is_given for task in plan.tasks)
        )
        if self._enabled:
            for note in plan.notes:
                echo_err(f"corral: {note}")
            for each in plan.skipped:
                echo_err(f"corral: skipped {each.task}: {each.reason}")
            echo_err(f"corral: {plan.name}: {plan.total} attempts")

    def show(self, result: BatchResult, report: BatchReport) -> None:
        super().show(result, report)
        record = result.attempt
        if record is None:
            return
        if self.prints_answers:
            shown = result.text.rstrip() or f"({record.status or record.verdict})"
            model = f" ({result.model})" if result.model else ""
            answer_markdown(f"## {record.agent}{model}\n\n{shown}\n\n")
        elif record.verdict != "missing":  # a missing one is an error of the batch, shown already
            reason = f": {record.reason}" if record.reason else ""
            self.print_line(f"{_MARKS[record.verdict]} {result.id}{reason}")


NARROWEST = 38
"""Characters of a column; with less room the texts come one after another."""
GAP = " │ "


def side_by_side(columns: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """``columns``: titles and patches. Each file of the patches begins on the same line in every
    column, so that the same file is beside itself."""
    room = (width - len(GAP) * (len(columns) - 1)) // max(1, len(columns))
    if room < NARROWEST:
        for title, text in columns:
            yield from (f"=== {title}", *(text.splitlines() or ["(no changes)"]), "")
        return

    def wrap(line: str) -> list[str]:
        line = clean(line).expandtabs(4)
        return [line[at : at + room] for at in range(0, len(line), room)] or [""]

    parts = [_by_file(text) for _, text in columns]
    names = list(dict.fromkeys(name for each in parts for name in each))
    yield _line([title for title, _ in columns], room)
    yield GAP.replace(" ", "─").replace("│", "┼").join("─" * room for _ in columns)
    if not names:
        yield _line(["(no changes)" for _ in columns], room)
    for name in names:
        cells = [each.get(name, [f"({name}: no change)"]) for each in parts]
        wrapped = [[piece for line in cell for piece in wrap(line)] for cell in cells]
        for row in zip_longest(*wrapped, fillvalue=""):
            yield _line(row, room)


def _line(cells: Sequence[str], room: int) -> str:
    return GAP.join(clean(cell)[:room].ljust(room) for cell in cells).rstrip()


def _by_file(patch: str) -> dict[str, list[str]]:
    """The lines of a patch by file."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in patch.splitlines():
        if line.startswith("diff --git "):
            current = found.setdefault(line.rpartition(" b/")[2], [])
        current.append(line)
    return found
