"""What a reviewer finds: the schema of its answer, which findings count, and which are equal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import msgspec

from corral._review.diff import ChangedFile

Severity = Literal["low", "medium", "high", "critical"]
SEVERITIES: tuple[Severity, ...] = ("low", "medium", "high", "critical")

MAX_FINDINGS = 100
"""Of one answer. Further ones are dropped and counted."""
MAX_TITLE, MAX_TEXT = 200, 4_000
"""Characters. Longer texts are cut, so that no answer floods the report."""
LAST_LINE = 10_000_000
NEAR = 2
"""Lines between two findings that may be the same."""
_WORD = re.compile(r"[^\W_]{3,}")
_COMMON_WORDS = frozenset(("the", "and", "for", "not", "are", "can", "may", "with", "from", "this"))

_About = msgspec.Meta


class ReportedFinding(msgspec.Struct, frozen=True):
    """A finding as an agent reports it."""

    file: Annotated[str, _About(description="The path, exactly as the diff names it.")]
    line: Annotated[int, _About(description="The first line concerned, as numbered in the diff.")]
    severity: Annotated[
        Severity,
        _About(
            description="critical: data loss or a hole that anybody can use; high: wrong results,"
            " crashes, holes; medium: wrong in rare cases; low: the rest."
        ),
    ]
    title: Annotated[str, _About(description="The defect in one sentence.")]
    explanation: Annotated[str, _About(description="Why it is one: the inputs and what happens.")]
    end_line: Annotated[int | None, _About(description="The last line, if there are several.")] = (
        None
    )
    suggestion: Annotated[str, _About(description="The lines as they should be, or nothing.")] = ""


class ReviewAnswer(msgspec.Struct, frozen=True):
    """What an agent answers."""

    summary: Annotated[str, _About(description="What the change does, in one to three sentences.")]
    findings: list[ReportedFinding]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A defect that one or more agents reported."""

    file: str
    line: int
    """Of the new file; of a deleted one, the old."""
    end_line: int
    severity: Severity
    title: str
    explanation: str
    suggestion: str = ""
    agents: tuple[str, ...] = ()
    """Who reported it."""
    in_diff: bool = True
    """The diff shows one of the lines."""

    @property
    def lines(self) -> str:
        """``12``, or ``12-14``."""
        return f"{self.line}" + (f"-{self.end_line}" if self.end_line != self.line else "")


def accept(
    reported: Sequence[ReportedFinding], files: Sequence[ChangedFile], agent: str
) -> tuple[list[Finding], int]:
    """The findings about files of the diff, and how many others were dropped."""
    by_path = {file.name: file for file in files}
    found: list[Finding] = []
    for each in reported[:MAX_FINDINGS]:
        path = each.file.removeprefix("./")
        file = by_path.get(path) or by_path.get(path.removeprefix("b/"))
        if file is None:
            continue
        line = min(max(1, each.line), LAST_LINE)
        end_line = min(max(line, each.end_line or line), LAST_LINE)
        found.append(
            Finding(
                file=file.path,
                line=line,
                end_line=end_line,
                severity=each.severity,
                title=_cut(" ".join(each.title.split()), MAX_TITLE) or "(without a title)",
                explanation=_cut(each.explanation.strip(), MAX_TEXT),
                suggestion=_cut(each.suggestion.strip("\n"), MAX_TEXT),
                agents=(agent,),
                in_diff=each.line > 0 and file.shows(line, end_line),
            )
        )
    return found, len(reported) - len(found)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def merge(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings, each once: the worst first, then by file and line. Those of two agents are the
    same if they are about nearly the same lines of a file and share words of their titles; the
    worse severity and the longer explanation stay."""
    merged: list[Finding] = []
    for each in sorted(findings, key=_order):
        same = next((n for n, other in enumerate(merged) if _is_same(other, each)), None)
        if same is None:
            merged.append(each)
        else:
            merged[same] = _join(merged[same], each)
    return tuple(merged)


def _order(finding: Finding) -> tuple[int, str, int, str]:
    rank = SEVERITIES.index(finding.severity)
    return (-rank, finding.file, finding.line, finding.title)


def _is_same(one: Finding, other: Finding) -> bool:
    is_near = one.line <= other.end_line + NEAR and other.line <= one.end_line + NEAR
    if one.file != other.file or not is_near:
        return False
    if {*one.agents} & {*other.agents}:  # one agent means two different things
        return (one.line, one.title) == (other.line, other.title)
    first, second = _words(one.title), _words(other.title)
    if not first or not second:
        return one.title == other.title
    return len(first & second) * 3 >= min(len(first), len(second))


def _words(title: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(title)} - _COMMON_WORDS


def _join(worse: Finding, other: Finding) -> Finding:
    return msgspec.structs.replace(
        worse,
        explanation=max(worse.explanation, other.explanation, key=len),
        suggestion=worse.suggestion or other.suggestion,
        agents=tuple(dict.fromkeys((*worse.agents, *other.agents))),
        in_diff=worse.in_diff or other.in_diff,
    )


def count_by_severity(findings: Iterable[Finding]) -> dict[Severity, int]:
    """The worst first; severities without a finding are left out."""
    listed = [each.severity for each in findings]
    return {name: listed.count(name) for name in reversed(SEVERITIES) if name in listed}
