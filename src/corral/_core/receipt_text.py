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
        lines += ["", "| check | outcome | exit code | seconds | stdout |", "|---|---|---|---|---|"]
        lines += [_row(each) for each in receipt.evidence]
    clean = receipt.clean
    if clean is not None:
        facts = {
            "as before the run": clean.restored,
            "left out": tuple(each.path for each in clean.left_out),
            "provided": clean.provided,
        }
        lines += ["", *(f"- {what}: {_names(names)}" for what, names in facts.items() if names)]
    if receipt.verify_from == "after":
        lines += ["", "Files that judge the work are as the agent left them."]
    return "\n".join(lines).strip() + "\n"


def _row(evidence: Evidence) -> str:
    outcome = evidence.outcome + (f": {evidence.reason}" if evidence.reason else "")
    code = "" if evidence.exit_code is None else str(evidence.exit_code)
    digest = evidence.output_hash.removeprefix("sha256:")[:12]
    cells = (_cell(evidence.name), _cell(outcome), code, f"{evidence.seconds:.1f}", digest)
    return f"| {' | '.join(cells)} |"


def _names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(map(_cell, names[:MOST_NAMES])) + more


def _cell(text: str) -> str:
    flat = " ".join(plain(text).split())[:LONGEST_CELL]
    return "`" + flat.replace("`", "'").replace("|", "\\|") + "`" if flat else ""
