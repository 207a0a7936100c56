"""``corral run``: a prompt together with what is piped to stdin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from corral._cli import options
from corral.errors import PromptError

CODE = """
import sys
from corral._cli.options import read_prompt_and_stdin
given = sys.argv[1:]
print(repr(read_prompt_and_stdin(*(each or None for each in given))))
"""


def read(prompt: str, file: str = "", *, stdin: str | int) -> str | None:
    """What is sent, in a process whose stdin is this text in a pipe, or this descriptor."""
    given = None if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [sys.executable, "-c", CODE, prompt, file],
        input=stdin if isinstance(stdin, str) else None,
        stdin=given,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    text = done.stdout.strip()
    return None if text == "None" else eval(text)


def test_a_prompt_and_a_pipe_are_both_sent() -> None:
    assert read("Review this", stdin="+1\n") == "Review this\n\n<stdin>\n+1\n</stdin>"
    assert read("Review this", stdin="+1") == "Review this\n\n<stdin>\n+1\n</stdin>"


def test_a_prompt_file_and_a_pipe_are_both_sent(tmp_path: Path) -> None:
    file = tmp_path / "prompt.md"
    file.write_text("Review this")
    assert read("", str(file), stdin="+1\n") == "Review this\n\n<stdin>\n+1\n</stdin>"


def test_an_empty_pipe_adds_nothing() -> None:
    assert read("Go", stdin="") == "Go"
    assert read("Go", stdin=subprocess.DEVNULL) == "Go"


def test_a_file_as_stdin_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("data\n")
    with file.open() as opened:
        assert read("Go", stdin=opened.fileno()) == "Go\n\n<stdin>\ndata\n</stdin>"


def test_stdin_alone_is_the_prompt() -> None:
    assert read("", stdin="Go\n") == "Go\n"
    assert read("-", stdin="Go\n") == "Go\n"


def test_a_pipe_that_stays_open_and_silent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(options, "STDIN_SECONDS", 0.05)
    try:
        with open(reading) as stream:
            monkeypatch.setattr("sys.stdin", stream)
            with pytest.raises(PromptError, match="sent nothing for"):
                options.read_prompt_and_stdin("Go", None)
    finally:
        os.close(writing)


@pytest.mark.parametrize(
    "prompt", ["Review this diff", "Explain the following log", "What is in stdin?"]
)
def test_a_prompt_that_speaks_of_stdin_does_not_run_without_it(
    prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with open(reading) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        with pytest.raises(PromptError, match="stdin is empty") as error:
            options.read_prompt_and_stdin(prompt, None)
    assert error.value.hint == "Add </dev/null to run without it."
    assert read(prompt, stdin=subprocess.DEVNULL) == prompt


AT_TERMINAL = "import pty, sys; sys.exit(pty.spawn(['sh', '-c', sys.argv[1]]) >> 8)"
ASKED = """
import sys
from corral._cli.options import read_prompt_and_stdin
from corral._system.terminal import is_interactive
print(repr(read_prompt_and_stdin("Go", None)), is_interactive(), sys.stdin.readline())
"""


def at_terminal(command: str, typed: str, tmp_path: Path) -> str:
    """What this shell command writes to the terminal that it is started in."""
    code = tmp_path / "code.py"
    code.write_text(ASKED)
    words = [sys.executable, "-c", AT_TERMINAL, command.format(f"{sys.executable} {code}")]
    done = subprocess.run(words, input=typed, capture_output=True, text=True, timeout=100)
    return done.stdout


def test_a_person_at_the_terminal_can_be_asked_although_stdin_is_a_pipe(tmp_path: Path) -> None:
    shown = at_terminal("echo data | {}", "yes\n", tmp_path)
    assert r"'Go\n\n<stdin>\ndata\n</stdin>' True yes" in shown


def test_an_empty_pipe_at_a_terminal_is_a_mistake(tmp_path: Path) -> None:
    assert "stdin is empty" in at_terminal("true | {}", "", tmp_path)
