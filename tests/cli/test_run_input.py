"""``corral run``: a prompt together with what is piped to stdin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from corral.cli import options
from corral.errors import PromptError

CODE = """
import sys
from corral.cli.options import read_prompt_and_stdin
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
