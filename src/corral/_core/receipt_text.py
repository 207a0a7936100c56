"""A receipt as Markdown, for the page, exports and the summaries of jobs."""

from __future__ import annotations

from corral._core.terminal_text import plain
from corral.receipt import Evidence, Receipt

MOST_NAMES = 20
"""Files that are named."""
LONGEST_CELL = 200


def receipt_markdown(receipt: Receipt) -> str:
    """The verdict, what is missing, and the evidence. Nothing in it is obeyed as Markdown or
    HTML."""
    lines = [f"**{receipt.verdict}**", ""]
    lines += [f"- {_cell(gap)}" for gap in receipt.gaps]
    if receipt.evidence:
        lines += ["", "| check | outcome | seconds |", "|---|---|---|"]
        lines += [_row(each) for each in receipt.evidence]
    clean = receipt.clean
    if clean is not None:
        facts = {
            "as before the run": clean.restored,
            "left out": tuple(each.path for each in clean.left_out),
            "provided": clean.provided,
        }
        lines += ["", *(f"- {what}: {_names(names)}" for what, names in facts.items() if names)]
        lines += ["", _scope(receipt)]
    return "\n".join(lines).strip() + "\n"


def scope_text(receipt: Receipt) -> str:
    """Which rule says what was as before the run, in a few words."""
    if receipt.scope == "work":
        return f"work: all but {', '.join(receipt.work)} is as before the run"
    if receipt.scope == "names":
        return "names: files that judge by their names are as before the run"
    return "Files that judge the work are as the agent left them."


def _scope(receipt: Receipt) -> str:
    return f"Scope {_cell(scope_text(receipt))}" if receipt.scope else scope_text(receipt)


def _row(evidence: Evidence) -> str:
    outcome = evidence.outcome + (f": {evidence.reason}" if evidence.reason else "")
    return f"| {_cell(evidence.name)} | {_cell(outcome)} | {evidence.seconds:.1f} |"


def _names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(map(_cell, names[:MOST_NAMES])) + more


def _cell(text: str) -> str:
    flat = " ".join(plain(text).split())[:LONGEST_CELL]
    return "`" + flat.replace("`", "'").replace("|", "\\|") + "`" if flat else ""
