"""Markdown as it is rendered for a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._cli.ui import spans
from corral._cli.ui.markdown import MarkdownStream
from corral._cli.ui.spans import Line, StyledText, ansi, plain, width


def render(text: str, columns: int = 40, size: int = 1_000_000) -> list[str]:
    """The lines of a text that arrives in pieces."""
    stream = MarkdownStream()
    lines: list[Line] = []
    for at in range(0, len(text), size):
        lines += stream.add(text[at : at + size], columns)
    return [plain(line) for line in [*lines, *stream.end(columns)]]


def styled(text: str) -> list[tuple[str, str]]:
    stream = MarkdownStream()
    (line,) = [*stream.add(text, 80), *stream.end(80)]
    return [(span.text, span.style) for span in line if span.text]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("# Title #", [("Title", "bold underline")]),
        ("### Part", [("Part", "bold")]),
        ("a **b** c", [("a ", ""), ("b", "bold"), (" c", "")]),
        ("*a* and _b_", [("a", "italic"), (" and ", ""), ("b", "italic")]),
        ("**a *b* c**", [("a ", "bold"), ("b", "bold italic"), (" c", "bold")]),
        ("`a**b**`", [("a**b**", "cyan")]),
        ("`` a`b ``", [("a`b", "cyan")]),
        ("snake_case_name and 2 * 3 * 4", [("snake_case_name and 2 * 3 * 4", "")]),
        (r"\*not\*", [("*", ""), ("not", ""), ("*", "")]),
        ("[x](http://y)", [("x", "underline"), (" (http://y)", "dim")]),
        ("<http://y>", [("http://y", "underline")]),
        ("~~old~~", [("old", "strike")]),
        ("**open", [("**open", "")]),
    ],
)
def test_emphasis_code_and_links(source: str, expected: list[tuple[str, str]]) -> None:
    assert styled(source) == expected


def test_items_are_wrapped_below_their_text() -> None:
    assert render("- one two three four five six seven eight\n  - [x] done", 20) == [
        "• one two three",
        "  four five six",
        "  seven eight",
        "  • ☑ done",
    ]


def test_code_is_not_changed_wherever_it_is() -> None:
    text = "1. do\n   ```sh\n   a  **b**\n\n     c\n   ```\n2. done\n~~~\n```\n~~~\nend"
    assert render(text, 30) == [
        "1. do",
        "       a  **b**",
        "",
        "         c",
        "2. done",
        "    ```",
        "end",
    ]


def test_a_table_fits_the_terminal() -> None:
    text = "| a | b |\n|:--|--:|\n| 1 | a long text that does not fit |\n| \\| | 漢字 |\nend\n"
    lines = render(text, 24)
    assert lines == [
        "a │ b",
        "──┼────────────────────",
        "1 │ a long text that",
        "  │ does not fit",
        "| │ 漢字",
        "end",
    ]
    assert all(width([StyledText(line)]) <= 24 for line in lines)


def test_rows_that_are_no_table_stay_as_they_are() -> None:
    assert render("| a |\n| b |\n\n|x\n") == ["| a |", "| b |", "", "|x"]


@given(st.text(alphabet="ab *_`~#->|[]()1.\n漢\\", max_size=200), st.integers(1, 9))
def test_the_size_of_the_pieces_changes_nothing_and_lines_fit(text: str, size: int) -> None:
    complete = render(text, 30)
    assert render(text, 30, size) == complete
    stream = MarkdownStream()
    for char in text:
        stream.add(char, 30)
        stream.tail(30)


@given(st.text(alphabet="abc xyz,.漢é", max_size=300), st.integers(12, 90))
def test_plain_text_loses_no_word_and_no_line_is_too_wide(text: str, columns: int) -> None:
    lines = render(text, columns)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(spans.text_width(line) < columns for line in lines)


def test_hostile_markup_is_rendered_in_time() -> None:
    """Each of these takes quadratic time or worse in a careless renderer."""
    for piece in ("**a ", "`", "[", "[a](", "_a ", "~~a", "| a ", "> ", "*a"):
        render(piece * 20_000)
        render((piece * 400 + "\n") * 5)


def test_a_line_without_an_end_is_printed_in_parts() -> None:
    stream, lines = MarkdownStream(), list[Line]()
    for _ in range(3_000):
        lines += stream.add("0123456789", 80)
    assert len(lines) > 100
    assert sum(len(plain(line)) for line in stream.tail(80)) <= 10_000
    lines += stream.end(80)
    assert "".join(map(plain, lines)) == "0123456789" * 3_000


def test_without_color_there_are_no_color_codes() -> None:
    line = [StyledText("a", "bold green"), StyledText("b", "red"), StyledText("c")]
    assert ansi(line, color=False) == "\x1b[1ma\x1b[0mbc"
    assert ansi(line, color=True) == "\x1b[1;32ma\x1b[0m\x1b[31mb\x1b[0mc"
