"""The pages of the documentation, how they are searched, and those of errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral import errors, events
from corral._docs import pages
from corral._docs.error_pages import error_page, find_error, first_line, from_docstring, report
from corral._docs.pages import Page

ROOT = Path(__file__).parents[2]


def test_a_checkout_shows_the_pages_that_people_edit() -> None:
    found = {page.name: page for page in pages.all_pages()}
    assert found["policy"].text == (ROOT / "docs" / "policy.md").read_text()
    assert found["index"].text == (ROOT / "README.md").read_text()
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} < found.keys()


def test_a_wheel_shows_the_pages_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "policy.md").write_text("# Rules\n\nText.\n")
    monkeypatch.setattr(pages, "PACKAGE", tmp_path)
    assert [(page.name, page.title) for page in pages.all_pages()] == [("policy", "Rules")]


TEXTS = {
    "costs": "# Costs\n\nA budget.\n\n## Pauses\n\nA budget can pause.\n",
    "budget": "# All about the budget\n\nbudget budget\n\n```sh\n# pause a budget\n```\n",
    "other": "# Other\n\nNothing.\n",
}
LIBRARY = [Page(name, text) for name, text in TEXTS.items()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("budget", [("budget", "All about the budget"), ("costs", "Costs"), ("costs", "Pauses")]),
        ("BUDGET pause", [("budget", "All about the budget"), ("costs", "Pauses")]),
        ("nothing", [("other", "Other")]),
        ("nothing budget", []),
        ("", []),
    ],
)
def test_a_search_finds_sections_with_all_words_best_first(
    words: str, expected: list[tuple[str, str]]
) -> None:
    found = pages.search(words.split(), LIBRARY)
    assert [(match.page.name, match.heading) for match in found] == expected


def test_a_match_shows_its_first_line_with_a_word() -> None:
    [found] = pages.search(["can", "pause"], [LIBRARY[0]])
    assert found.line == "A budget can pause."


@pytest.mark.parametrize("code", sorted(errors.classes_by_code()))
def test_every_error_has_a_page(code: str) -> None:
    found = errors.classes_by_code()[code]
    assert find_error(code) is found is find_error(found.__name__)
    text = error_page(found)
    assert text.startswith(f"# {found.__name__}\n\n{first_line(found)[:20]}")
    assert f"| code | `{code}` |" in text
    assert f"| {found.cli_exit} |" in text
    assert "``" not in text.replace("```", "")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.RateLimited("429", hint="Wait."), "429\n  Wait. (see: corral docs rate_limit)"),
        (errors.RateLimited("429"), "429\n  See: corral docs rate_limit"),
        (errors.RateLimited("429").event(), "429\n  See: corral docs rate_limit"),
        (errors.ConfigError("no", hint="Write yes."), "no\n  Write yes."),
        (errors.RemoteError("odd"), "odd"),
        (events.Error(code="of_a_later_version", message="odd", hint="?"), "odd\n  ?"),
    ],
)
def test_an_error_of_a_run_names_its_page(
    error: errors.CorralError | events.Error, expected: str
) -> None:
    assert report(error) == f"corral: {expected}"


def test_samples_of_docstrings_are_blocks_of_code() -> None:
    text = "First ``x``.\n\n::\n\n    a = 1\n\n    b = 2\n\nThen::\n\n    c\n\nEnd."
    assert from_docstring(text) == (
        "First `x`.\n\n```python\na = 1\n\nb = 2\n```\n\nThen:\n\n```python\nc\n```\n\nEnd."
    )
