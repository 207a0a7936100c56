"""Receipts as Markdown, in exports and on the page."""

from __future__ import annotations

from pathlib import Path

import msgspec
from support.event_samples import session_events, write_events

from corral._core.receipt_text import receipt_markdown
from corral._export import document
from corral._runs import stored_run
from corral._view.items import ItemBuilder
from corral.events import Done
from corral.receipt import CleanTreeFacts, Evidence, LeftOut, Receipt, RunFacts

RECEIPT = Receipt(
    format=1,
    verdict="gaps",
    gaps=("pytest -q: the check did not pass: exited with 1",),
    created=0.0,
    corral="0.1.0",
    run=RunFacts(run_id="s.1", agent="codex-cli", status="success"),
    verify_from="after",
    clean=CleanTreeFacts(
        tree="a" * 40,
        restored=("tests/test_a.py",),
        left_out=(LeftOut("new|`name`\n<b>", "it judges"),),
    ),
    evidence=(
        Evidence(
            kind="command",
            name="pytest -q <script>alert(1)</script>",
            outcome="failed",
            reason="exited with 1",
            exit_code=1,
            seconds=2.04,
            output_hash="sha256:0123456789abcdef",
        ),
    ),
)


def test_a_receipt_is_a_verdict_its_gaps_and_a_row_for_each_check() -> None:
    assert receipt_markdown(RECEIPT).splitlines() == [
        "**gaps**",
        "",
        "- `pytest -q: the check did not pass: exited with 1`",
        "",
        "| check | outcome | seconds |",
        "|---|---|---|",
        "| `pytest -q <script>alert(1)</script>` | `failed: exited with 1` | 2.0 |",
        "",
        "- as before the run: `tests/test_a.py`",
        r"- left out: `new\|'name' <b>`",
        "",
        "Files that judge the work are as the agent left them.",
    ]


def test_the_rule_that_held_is_named() -> None:
    by_work = msgspec.structs.replace(RECEIPT, verify_from="before", scope="work", work=("src/**",))
    text = receipt_markdown(by_work)
    assert "\nScope `work: all but src/** is as before the run`\n" in text
    by_names = msgspec.structs.replace(RECEIPT, verify_from="before", scope="names")
    assert "Scope `names: files that judge by their names" in receipt_markdown(by_names)


def test_the_document_of_a_run_has_it(tmp_path: Path) -> None:
    events = [*session_events()[:-1], Done("success", receipt=RECEIPT)]
    pieces: list[str] = []
    document.write(stored_run.at(write_events(tmp_path / "log.ndjson", events)), pieces.append)
    assert receipt_markdown(RECEIPT) in "".join(pieces)


def test_the_page_has_it_as_safe_html() -> None:
    builder = ItemBuilder()
    builder.add(0, Done("success", receipt=RECEIPT))
    (item,) = builder.take_changed()
    assert item.html is not None
    assert "<strong>gaps</strong>" in item.html
    assert "<td><code>failed: exited with 1</code></td>" in item.html
    assert "<script" not in item.html
