"""The model and agent that a node gets from the stylesheet."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral._pipelines import stylesheet
from corral._pipelines.graph import Node, Value
from corral._pipelines.stylesheet import StylesheetError
from corral.errors import ConfigError

NODE = Node("review", {"shape": "hexagon"}, ("code", "hard"))


def gives(text: str, node: Node = NODE) -> dict[str, Value]:
    return stylesheet.parse(text).properties_of(node)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("* { llm_model: all; }", "all"),
        ("* { llm_model: all }", "all"),
        ("*{llm_model:all}", "all"),
        ("hexagon { llm_model: shape; } * { llm_model: all; }", "shape"),
        (".code { llm_model: class; } hexagon { llm_model: shape; }", "class"),
        ("#review { llm_model: id; } .code { llm_model: class; }", "id"),
        (".code { llm_model: one; } .hard { llm_model: two; }", "two"),
        (".hard { llm_model: two; } .code { llm_model: one; }", "one"),
        ("* { llm_model: first; } * { llm_model: second; }", "second"),
        ("* { llm_model: a; llm_model: b; }", "b"),
        ("box { llm_model: no } .other { llm_model: no } #x { llm_model: no }", None),
        ("#a, .hard, box { llm_model: either }", "either"),
        ('* { llm_model: "gpt 5"; }', "gpt 5"),
        ("* { llm_model: 'gpt 5'; }", "gpt 5"),
        ("* { llm-model: dashes; }", "dashes"),
        ("/* c { } */ * { /* d */ llm_model: /* e */ x; }", "x"),
        ("\n*\n{\nllm_model\n:\nx\n;\n}\n", "x"),
        ('#"review" { llm_model: quoted }', "quoted"),
        ("", None),
        ("* {}", None),
    ],
)
def test_the_more_specific_selector_wins_then_the_later(text: str, model: str | None) -> None:
    assert gives(text).get("llm_model") == model


def test_every_property_is_set() -> None:
    text = "* { llm_model: m; llm_provider: p; agent: claude; reasoning_effort: high; }"
    assert gives(text) == {
        "llm_model": "m", "llm_provider": "p", "agent": "claude", "reasoning_effort": "high",
    }  # fmt: skip
    assert gives("* { model: gemini:gemini-2.5-flash; }") == {"model": "gemini:gemini-2.5-flash"}


def test_attributes_of_the_node_win_under_any_name_of_the_model() -> None:
    text = "#n { model: gemini:x; llm_provider: openai; agent: a }"
    assert gives(text, Node("n", {"agent": "mine"})) == {
        "model": "gemini:x",
        "llm_provider": "openai",
    }
    assert gives(text, Node("n", {"model": "m"})) == {"agent": "a"}
    assert gives(text, Node("n", {"llm_model": "m"})) == {"llm_provider": "openai", "agent": "a"}


def test_only_the_model_name_with_the_highest_precedence_counts() -> None:
    weak = "* { llm_model: a; llm_provider: p; } .hard { model: q:b; }"
    assert gives(weak) == {"model": "q:b"}
    assert gives("* { model: q:b; } .hard { llm_model: a; }") == {"llm_model": "a"}


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("llm_model: x", 9, "expected {"),
        ("* llm_model: x", 2, "expected {"),
        ("* { llm_model x }", 14, "expected : after"),
        ("* { llm_model: }", 15, "expected a value"),
        ("* { llm_model: ; }", 15, "expected a value"),
        ("* { llm_model: x", 16, "expected ; or }"),
        ("* { llm_model: x; ", 2, "not closed"),
        ("* { : x }", 4, "expected a property"),
        ("@media { }", 0, "expected a selector"),
        ("* { } }", 6, "expected a selector"),
        (". { }", 0, "expected a selector"),
        ("*, { }", 3, "expected a selector"),
        ('* { llm_model: "x" y }', 19, "expected ; or }"),
        ("/* never closed", 0, "expected a selector"),
    ],
)
def test_an_invalid_stylesheet_is_rejected_with_the_place(
    text: str, position: int, expected: str
) -> None:
    with pytest.raises(StylesheetError, match=expected) as caught:
        stylesheet.parse(text)
    assert caught.value.position == position
    assert isinstance(caught.value, ConfigError)


def test_an_unknown_property_is_listed_and_has_no_effect() -> None:
    sheet = stylesheet.parse("* { llm_modle: x; agent: pi } #n { temperature: 1; llm_modle: y }")
    assert sheet.unknown() == ["llm_modle", "temperature"]
    assert gives("* { llm_modle: x; agent: pi }") == {"agent": "pi"}


def test_other_names_of_a_property() -> None:
    assert gives("* { provider: openai; llm_model: m; backend: codex; max-tokens: 9 }") == {
        "llm_provider": "openai",
        "llm_model": "m",
        "agent": "codex",
        "max_tokens": "9",
    }


pieces = st.sampled_from(["*", ".a", "#b", "box", "{", "}", ":", ";", "llm_model", "agent", '"',
                          "'", "x", "/*", "*/", "\n", ","])  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, max_size=20).map(" ".join) | st.text(max_size=30))
def test_any_text_is_a_stylesheet_or_a_stylesheet_error(text: str) -> None:
    place = 0
    try:
        gives(text)
    except StylesheetError as error:
        place = error.position
    assert 0 <= place <= len(text)


def test_many_rules_for_many_nodes_are_applied_quickly() -> None:
    sheet = stylesheet.parse(" ".join(f"#n{i} {{ llm_model: m{i}; }}" for i in range(20_000)))
    for i in range(20_000):
        assert sheet.properties_of(Node(f"n{i}")) == {"llm_model": f"m{i}"}
