"""Prompts with sections: rendering, parameters, enabling sections, and error messages."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import PromptError
from corral.prompt import Prompt, Section, check_prompt


@dataclasses.dataclass
class Review:
    problems: list[str]


def read_ticket(number: int) -> str:
    """A ticket's text."""
    return str(number)


def search(words: str) -> str:
    """Tickets that hold the words."""
    return words


REVIEW = Prompt(
    "Review the {language} code here.",
    sections=[
        Section("Rules", "Be {style}.", sections=[Section("Names", "Short ones.")]),
        Section("Tickets", "Read them.", tools=[read_ticket, search], enabled=False),
        Section("Search", tools=[search]),
    ],
    parameters={"language": str, "style": Literal["strict", "kind"]},
    output=Review,
)
FILLED = REVIEW.with_(language="Python", style="strict")


def test_sections_become_headings_by_their_depth() -> None:
    assert FILLED.render() == (
        "Review the Python code here.\n\n"
        "## Rules\n\nBe strict.\n\n"
        "### Names\n\nShort ones.\n\n"
        "## Search"
    )
    assert str(FILLED) == FILLED.render()


def test_a_disabled_section_is_left_out_with_its_subsections_and_tools() -> None:
    assert FILLED.without("Rules", "Search").render() == "Review the Python code here."
    assert REVIEW.tools == (search,)
    assert REVIEW.without("Search").tools == ()


def test_a_nested_section_is_enabled_by_its_title() -> None:
    assert REVIEW.including("Tickets").tools == (read_ticket, search)
    off = FILLED.without("Names")
    assert "Short ones." not in off.render()
    assert off.including("Names") == FILLED


def test_a_prompt_is_immutable() -> None:
    sections = [Section("A", "a")]
    prompt = Prompt("{x}", sections=sections, parameters={"x": str})
    prompt.with_(x="1").without("A")
    sections.clear()
    assert prompt.values == {}
    assert prompt.with_(x="1").render() == "1\n\n## A\n\na"


def test_the_error_for_a_missing_value_shows_the_call_that_sets_it() -> None:
    with pytest.raises(PromptError, match=r"no value for 'language', 'style'") as caught:
        REVIEW.render()
    assert caught.value.hint == "Set it: prompt.with_(language=…, style=…)."


def test_only_enabled_sections_need_their_parameters() -> None:
    assert REVIEW.without("Rules").with_(language="Go").render().startswith("Review the Go code")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"langauge": "Go"}, "no parameter 'langauge': did you mean 'language'?"),
        ({"zzz": "Go"}, "no parameter 'zzz': known: language, style"),
        ({"language": 3}, "'language' must be str, got: int"),
        ({"style": "loud"}, r"'style' must be Literal\['strict', 'kind'\], got: str"),
        ({"language": None, "style": 1}, "'language' must be str.*; 'style' must be"),
    ],
)
def test_a_wrong_value_is_rejected_when_it_is_set(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(PromptError, match=expected):
        REVIEW.with_(**values)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (int, 3, True),
        (float, 3, "3"),
        (bool, True, 1),
        (Path, Path("a"), "a"),
        (list[str], ["a"], [1]),
        (int | None, None, "1"),
        (Review, Review([]), "x"),
    ],
    ids=str,
)
def test_a_parameter_has_any_type(kind: Any, good: object, bad: object) -> None:
    prompt = Prompt("{x}", parameters={"x": kind})
    prompt.with_(x=good).render()
    with pytest.raises(PromptError, match="'x' must be"):
        prompt.with_(x=bad)


def test_a_parameter_of_type_any_accepts_every_value() -> None:
    assert Prompt("{x}", parameters={"x": Any}).with_(x=None).render() == "None"


def test_a_type_that_cannot_be_checked_is_rejected() -> None:
    with pytest.raises(PromptError, match="cannot be the type of a parameter"):
        Prompt("{x}", parameters={"x": "str"}).with_(x="a")


def test_a_list_becomes_a_list() -> None:
    prompt = Prompt("Look at:\n{files}", parameters={"files": list[str]})
    assert prompt.with_(files=["a.py", "b.py"]).render() == "Look at:\n- a.py\n- b.py"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{langauge}", r"\{langauge\} in the text is not a parameter: did you mean 'language'"),
        ("{}", "'{}' in the text is not a parameter"),
        ("{a b}", "'{a b}' in the text is not a parameter"),
        ("a { b", "'{' in the text is not a parameter"),
        ("a } b", "'}' in the text is not a parameter"),
    ],
)
def test_an_unmatched_brace_is_an_error_when_the_prompt_is_created(
    text: str, expected: str
) -> None:
    with pytest.raises(PromptError, match=expected):
        Prompt(text, parameters={"language": str})


def test_the_section_with_the_unknown_parameter_is_named() -> None:
    with pytest.raises(PromptError, match=r"\{x\} in section 'Inner'"):
        Prompt("a", sections=[Section("Outer", sections=[Section("Inner", "{x}", enabled=False)])])


@pytest.mark.parametrize("title", ["", " ", "a\nb"])
def test_a_title_is_one_line(title: str) -> None:
    with pytest.raises(PromptError, match="title"):
        Section(title)


def test_two_sections_with_one_title_are_rejected() -> None:
    with pytest.raises(PromptError, match="two sections have the title 'A'"):
        Prompt("x", sections=[Section("A"), Section("B", sections=[Section("A")])])


def test_enabling_an_unknown_section_is_an_error() -> None:
    with pytest.raises(PromptError, match="no section 'Rulse': did you mean 'Rules'"):
        REVIEW.without("Rulse")


def test_headings_stop_at_the_sixth_level() -> None:
    deep = Section("9")
    for level in range(8, 1, -1):
        deep = Section(str(level), sections=[deep])
    assert Prompt("", sections=[deep]).render().splitlines()[-1] == "###### 9"


def test_a_title_may_name_a_parameter_and_stays_one_line() -> None:
    prompt = Prompt("", sections=[Section("About {x}")], parameters={"x": str})
    assert prompt.with_(x="a\n# b").without().render() == "## About a # b"


WORD = st.text(st.characters(exclude_categories=["Cs"]))


@given(WORD, WORD)
def test_doubled_braces_are_braces_and_values_are_inserted_unchanged(text: str, value: str) -> None:
    doubled = text.replace("{", "{{").replace("}", "}}")
    prompt = Prompt(f"<{doubled}|{{x}}>", parameters={"x": str})
    assert prompt.with_(x=value).render() == f"<{text}|{value}>"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        (" \n\t", "the prompt is empty"),
        ("a\0b", "the prompt contains a NUL character"),
        ("\ud800", "the prompt cannot be written as UTF-8"),
        ("üüü", "the prompt has 6 bytes, over the 5 that this agent accepts"),
        (b"bytes", "the prompt must be text, got: bytes"),
        (None, "the prompt must be text, got: NoneType"),
    ],
)
def test_a_prompt_that_cannot_be_sent_is_rejected(prompt: Any, message: str) -> None:
    with pytest.raises(PromptError) as raised:
        check_prompt(prompt, 5)
    assert raised.value.message.startswith(message)


def test_a_prompt_of_exactly_the_limit_passes() -> None:
    assert check_prompt("12345", 5) == "12345"
