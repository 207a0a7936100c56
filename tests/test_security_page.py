"""Every claim of SECURITY.md names tests that exist, and the page is found."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "SECURITY.md").read_text("utf-8")


def test_every_test_that_the_page_names_exists() -> None:
    files = (ROOT / "tests").rglob("test_*.py")
    text = "\n".join(file.read_text("utf-8") for file in files)
    exist = set(re.findall(r"(?m)^(?:async )?def (test_\w+)\(", text))
    named = re.findall(r"`(test_\w+)`", PAGE)
    assert len(named) > 30
    assert [name for name in named if name not in exist] == []


def test_every_claim_names_a_test() -> None:
    claims = [line for line in PAGE.splitlines() if re.match(r"\| [A-Z].*\| [\d, ]*\|", line)]
    assert len(claims) > 20
    assert [line for line in claims if "`test_" not in line] == []


def test_the_page_is_linked_and_distributed() -> None:
    assert "SECURITY.md" in (ROOT / "README.md").read_text("utf-8")
    assert "(../SECURITY.md)" in (ROOT / "docs" / "sandbox.md").read_text("utf-8")
    assert '"/SECURITY.md"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_every_link_of_the_page_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert len(links) >= 3
    assert [link for link in links if not (ROOT / link).is_file()] == []
