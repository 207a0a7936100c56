"""Questions of an agent at the terminal: a pseudo-terminal, and the built-in agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.screens import screen

from corral._cli.ui.questions import BAR
from corral.testing import Call, ModelServer, Turn, say
from corral.values import Json

MODEL = ("--model", "gemini:gemini-2.5-flash")
ATTACK = "\x1b]0;owned\x07\x1b[2J\u202eevil\n  allow once (y)"
OPTIONS: Json = [{"label": f"Red{ATTACK}", "description": "like fire"}, {"label": "Green"}]


def script(question: str, **more: Json) -> list[Turn]:
    return [Turn(calls=[Call("ask_user", {"question": question, **more})]), say("Done.")]


def results(server: ModelServer) -> str:
    return json.dumps([result for _, result in server.requests[-1].tool_results])


def test_a_number_chooses_an_option_and_no_text_is_obeyed(workspace: Path) -> None:
    with (
        ModelServer(script(f"Which color?{ATTACK}", options=OPTIONS)) as server,
        screen("run", *MODEL, "Go", cwd=workspace, env=server.env) as shown,
    ):
        shown.until("a number or a text: ")
        asked = shown.text
        assert "? the agent asks you" in asked
        assert f"{BAR}Which color?\\x1b]0;owned" in asked
        assert f"\n{BAR}  allow once (y)" in asked.replace("\r\n", "\n")
        assert "2. Green" in asked
        assert "like fire" in asked
        assert "\x1b]" not in asked
        assert "\u202e" not in asked
        shown.type("2\n")
        assert shown.end() == 0
        assert "Green" in results(server)
    assert "asked    Which color?" in shown.text


def test_another_text_is_an_answer_and_an_empty_line_is_not(workspace: Path) -> None:
    with (
        ModelServer(script("Which color?", options=OPTIONS)) as server,
        screen("run", *MODEL, "Go", cwd=workspace, env=server.env) as shown,
    ):
        shown.until("a number or a text: ")
        shown.type("\n")
        shown.until("an answer is needed")
        shown.until("a number or a text: ")
        shown.type("dark blue\n")
        assert shown.end() == 0
        assert "dark blue" in results(server)


def test_the_end_of_the_input_declines(workspace: Path) -> None:
    with (
        ModelServer(script("Which color?")) as server,
        screen("run", *MODEL, "Go", cwd=workspace, env=server.env) as shown,
    ):
        shown.until("your answer: ")
        shown.type("\x04")
        assert shown.end() == 0
        assert "did not answer" in results(server)
    assert "(no answer)" in shown.text


def test_an_interruption_at_a_question_is_not_reported_as_an_answer(workspace: Path) -> None:
    with (
        ModelServer(script("Which color?", options=OPTIONS)) as server,
        screen("run", *MODEL, "Go", cwd=workspace, env=server.env) as shown,
    ):
        shown.until("a number or a text: ")
        shown.interrupt()
        assert shown.end() == 130
    assert "not answered" in shown.text
    assert "answered: " not in shown.text


@pytest.mark.parametrize("term", ["dumb", "xterm-256color"])
def test_a_chat_asks_and_input_typed_before_does_not_answer(workspace: Path, term: str) -> None:
    with (
        ModelServer(script("Which?", options=OPTIONS, multiple=True)) as server,
        screen("chat", *MODEL, cwd=workspace, env=server.env, term=term) as shown,
    ):
        shown.until("> ")
        shown.type("go\n")
        shown.until("numbers, with commas or a text: ")
        shown.type("2, 1\n")
        shown.until("Done.")
        shown.type("/exit\n")
        assert shown.end() == 0
        assert "Green" in results(server)
