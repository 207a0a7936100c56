"""The table of results: faults × surfaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from chaos.case import Case, Verdict

Results = list[tuple[Case, Verdict]]


def as_markdown(results: Results, faults: Iterable[str], surfaces: Iterable[str]) -> str:
    """A cell is the number of runs, followed by what was wrong with some of them."""
    names = [*surfaces]
    lines = [f"| fault | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for fault in faults:
        cells = [
            _cell([v for case, v in results if (case.fault, case.surface) == (fault, name)])
            for name in names
        ]
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(verdicts: list[Verdict]) -> str:
    if not verdicts:
        return "–"
    wrong = Counter(
        name
        for each in verdicts
        for name, is_wrong in (
            ("not ended", not each.ended),
            ("false status", not each.true_status),
            ("left something", not each.nothing_left),
        )
        if is_wrong
    )
    return ", ".join([str(len(verdicts)), *(f"**{n} {what}**" for what, n in wrong.items())])


def summary(results: Results) -> str:
    verdicts = [verdict for _, verdict in results]
    boxed = sum(case.is_boxed for case, _ in results)
    gemini = sum(case.uses_gemini for case, _ in results)
    return (
        f"{len(results)} faulted runs, {boxed} of them in the sandbox and {gemini} with the real"
        f" Gemini CLI: {sum(v.ended for v in verdicts)} ended within their deadline,"
        f" {sum(v.true_status for v in verdicts)} had a true status,"
        f" {sum(v.nothing_left for v in verdicts)} left nothing behind."
        f" {sum(v.succeeded for v in verdicts)} succeeded in spite of the fault."
    )
