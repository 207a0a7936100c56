"""Which findings of an answer count, and which are equal."""

from __future__ import annotations

from corral._review.diff import parse
from corral._review.findings import (
    MAX_FINDINGS,
    MAX_TEXT,
    Finding,
    ReportedFinding,
    Severity,
    accept,
    count_by_severity,
    merge,
)

FILES = parse(
    b"diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -10,2 +10,3 @@\n x\n+y\n z\n"
    b'--- /dev/null\n+++ "b/odd\\nname.py"\n@@ -0,0 +1 @@\n+x\n'
)


def reported(file: str = "a.py", line: int = 11, **fields: object) -> ReportedFinding:
    given = {"severity": "low", "title": "t", "explanation": "e", **fields}
    return ReportedFinding(file=file, line=line, **given)  # type: ignore[arg-type]


def finding(title: str, agent: str, line: int = 11, severity: Severity = "low") -> Finding:
    return Finding(
        file="a.py",
        line=line,
        end_line=line,
        severity=severity,
        title=title,
        explanation=title * 2,
        agents=(agent,),
    )


def test_a_finding_about_another_file_is_dropped_and_counted() -> None:
    found, dropped = accept(
        [reported(), reported("../a.py"), reported("/etc/passwd"), reported("b.py")], FILES, "x"
    )
    assert [each.file for each in found] == ["a.py"]
    assert dropped == 3


def test_a_path_may_be_written_as_a_diff_writes_it() -> None:
    found, _ = accept([reported("./a.py"), reported("b/a.py")], FILES, "x")
    assert [each.file for each in found] == ["a.py", "a.py"]
    found, _ = accept([reported("odd\\nname.py", 1)], FILES, "x")
    assert [each.file for each in found] == ["odd\nname.py"]


def test_a_line_that_the_diff_does_not_show_is_marked() -> None:
    lines = [(11, None), (9, 10), (500, None), (0, None), (-3, 10**30), (12, 3)]
    found, dropped = accept([reported(line=a, end_line=b) for a, b in lines], FILES, "x")
    assert dropped == 0
    assert [each.in_diff for each in found] == [True, True, False, False, False, True]
    assert [each.lines for each in found] == ["11", "9-10", "500", "1", "1-10000000", "12"]


def test_long_texts_are_cut_and_too_many_findings_dropped() -> None:
    huge = reported(title="x" * 9_000, explanation="y" * 99_000, suggestion="z" * 99_000)
    found, dropped = accept([huge] * (MAX_FINDINGS + 5), FILES, "x")
    assert (len(found), dropped) == (MAX_FINDINGS, 5)
    assert len(found[0].title) == 200
    assert len(found[0].explanation) == len(found[0].suggestion) == MAX_TEXT


def test_equal_findings_of_two_agents_are_one_with_the_worse_severity() -> None:
    [one] = merge(
        [
            finding("SQL injection in the query", "a", 11, "medium"),
            finding("Query is open to SQL injection", "b", 12, "critical"),
        ]
    )
    assert one.agents == ("b", "a")
    assert one.severity == "critical"
    assert one.line == 12


def test_different_findings_stay_apart() -> None:
    found = merge(
        [
            finding("SQL injection in the query", "a"),
            finding("The file is never closed", "b"),
            finding("SQL injection in the query", "b", line=90),
            finding("SQL injection in the loop", "a"),  # the same agent means something else
        ]
    )
    assert len(found) == 4


def test_the_worst_findings_come_first() -> None:
    found = merge(
        [finding("one", "a", 1), finding("two", "a", 2, "high"), finding("three", "a", 3)]
    )
    assert [each.severity for each in found] == ["high", "low", "low"]
    assert count_by_severity(found) == {"high": 1, "low": 2}
