"""The limit of a comment: nothing that the author of a change chooses hides the findings."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.review_checks import check_markdown

from corral._review import outputs
from corral._review.findings import Finding
from corral._review.formats import MAX_MARKDOWN, markdown
from corral._review.outputs import Allowed
from corral._review.result import Review, ReviewRun
from corral.errors import PermissionRefused


def finding(title: str, explanation: str = "Leaks.") -> Finding:
    return Finding(
        file="a.py", line=1, end_line=1, severity="high", title=title, explanation=explanation
    )


def review(*findings: Finding, left_out: int = 0, length: int = 1_480) -> Review:
    return Review(
        title="main...change",
        status="incomplete",
        findings=findings,
        left_out=tuple((f"{n}{'_' * length}", "binary") for n in range(left_out)),
        runs=(ReviewRun(agent="gemini", part=1, error="x" * 100_000),),
    )


@pytest.mark.parametrize(("number", "length"), [(20, 1_480), (20, 20_000), (2_000, 1_480)])
@pytest.mark.deep_but_first
def test_notes_do_not_take_the_room_of_findings(number: int, length: int) -> None:
    written = markdown(review(finding("open file"), left_out=number, length=length))
    check_markdown(written)
    assert "open file" in written
    assert "gemini, part 1" in written
    assert written.index("open file") < written.index("not reviewed")
    assert len(written) < MAX_MARKDOWN // 2
    assert ("more notes not shown" in written) == (number == 2_000)


@pytest.mark.deep
def test_a_long_finding_does_not_hide_the_next_one() -> None:
    written = markdown(review(finding("long", "#x" * 6_000), finding("open file"), left_out=2_000))
    check_markdown(written)
    assert "open file" in written
    assert "1 more finding not shown" in written


def test_a_comment_of_a_review_that_is_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = outputs.of_review(review(finding("open file")))
    assert len(outputs.check(found, Allowed(), tmp_path).comments) == 1
    monkeypatch.setattr(outputs, "MAX_MARKDOWN", 100)
    with pytest.raises(PermissionRefused, match="as Markdown, allowed: 100"):
        outputs.check(found, Allowed(), tmp_path)
