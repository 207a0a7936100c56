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
    "other": "# Other\n\nNothing that debudgets.\n",
    "rates": "# Rates\n\nRates, to a rate: rate-limit.\n",
    "long": f"# Long\n\nA rate, a rate, a rate.{' A text.' * 1000}\n",
}
LIBRARY = [Page(name, text) for name, text in TEXTS.items()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("budget", ["All about the budget", "Costs", "Pauses"]),
        ("BUDGET pause", ["All about the budget", "Pauses", "Costs without pause"]),
        ("pause budget", ["All about the budget", "Pauses", "Costs without pause"]),
        ("budget budgets", ["All about the budget", "Costs", "Pauses"]),
        ("nothing budget", ["All about the budget without nothing", "Other without budget",
                            "Costs without nothing", "Pauses without nothing"]),
        ("how to pause", ["Pauses", "All about the budget"]),
        ("to", ["Rates"]),
        ("limits", ["Rates"]),
        ("rate", ["Rates", "Long"]),
        ("rate text", ["Rates without text", "Long"]),
        ("udget", []),
        ("missing", []),
        ("", []),
    ],
)  # fmt: skip
def test_a_search_finds_sections_best_first(words: str, expected: list[str]) -> None:
    """A rare word counts more than a frequent one, and a heading more than a text."""
    found = pages.search(words.split(), LIBRARY)
    assert [
        match.heading + "".join(f" without {word}" for word in match.missing) for match in found
    ] == expected


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("how to resume a session", "sessions"),
        ("rate limits", "limits"),
        ("network hosts", "policy"),
        ("typed answer dataclass", "cookbook/typed-extraction"),
        ("what a run costs", "costs"),
        ("install xyzzyx", "cookbook/installation"),
    ],
)
def test_the_first_section_answers_a_question(words: str, page: str) -> None:
    assert pages.search(words.split(), pages.all_pages())[0].page.name == page


def test_a_match_shows_its_first_line_with_the_most_words() -> None:
    text = "# Costs\n\nIt can end.\n\n```sh\n# can pause\n```\nA can that can pause.\n"
    [found] = pages.search(["can", "pause"], [Page("costs", text)])
    assert found.line == "# can pause"


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
