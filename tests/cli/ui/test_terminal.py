"""Output at a terminal: a pseudo-terminal whose bytes are all checked."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.screens import CORRAL, screen

from corral._cli.ui.questions import BAR, Pages, lines_of
from corral._cli.ui.spans import StyledText, plain
from corral.events import PermissionRequest
from corral.testing import Call, ModelServer, Turn, say

MODEL = ("--model", "gemini:gemini-2.5-flash")
ATTACK = (
    "\x1b]52;c;cm0=\x07\x1b]0;owned\x07\x1b[2J\x1b[H\x9b31m\x1b[1A\x1b[2K\rfake\b\u202eevil\u2066"
    "\u2028\x7f[link=http://evil.example]x[/link]"
)
OURS = re.compile(r"\x1b\[\?25[hl]|\x1b\[[0-9;]*m|\x1b\[[0-9]*[AJ]|\r|\n")
"""What corral writes for its live area: styles, up, erase to the end of the screen."""


def control_characters(text: str) -> list[str]:
    """Control characters, except those of corral's own status lines."""
    rest = OURS.sub("", text)
    return [char for char in rest if not char.isprintable() and char != "\t"]


def test_a_question_shows_the_complete_command_and_no_control_sequence(workspace: Path) -> None:
    """The command is longer than a title and has many control sequences."""
    command = f"touch shown; : '{ATTACK}' {'x' * 300}; touch AT_THE_END"
    script = [Turn(calls=[Call("shell", {"command": command})]), say(f"Done {ATTACK}.")]
    with (
        ModelServer(script) as server,
        screen("run", *MODEL, "Go", cwd=workspace, env=server.env) as shown,
    ):
        shown.until("allow once (y)")
        asked = shown.text
        assert "AT_THE_END" in asked.replace(f"\r\n{BAR}", "")
        assert r"\x1b]52;c;cm0=\x07" in asked
        assert r"\u202eevil\u2066\u2028\x7f" in asked
        assert not (workspace / "shown").exists()
        shown.type("y\n")
        assert shown.end() == 0
    assert (workspace / "AT_THE_END").exists()
    assert control_characters(shown.text) == []


@pytest.mark.parametrize("term", ["dumb", "xterm-256color"])
def test_input_typed_before_a_question_does_not_answer_it(workspace: Path, term: str) -> None:
    script = [Turn(calls=[Call("shell", {"command": f"touch x # {ATTACK}"})]), say("No.")]
    with (
        ModelServer(script) as server,
        screen("run", *MODEL, "Go", cwd=workspace, env=server.env, term=term) as shown,
    ):
        shown.type("y\ny\n")
        shown.until("allow once (y)")
        shown.type("n\n")
        shown.end()
    assert not (workspace / "x").exists()
    assert control_characters(shown.text) == []
    assert "\x1b]" not in shown.text


def test_the_status_line_stops_while_a_chat_asks(workspace: Path) -> None:
    """A status line that is redrawn would erase lines of the question."""
    script = [Turn(calls=[Call("shell", {"command": "touch x"})]), say("Done.")]
    with (
        ModelServer(script) as server,
        screen("chat", *MODEL, cwd=workspace, env=server.env, term="xterm-256color") as shown,
    ):
        shown.until("> ")
        shown.type("go\n")
        shown.until("allow once (y)")
        shown.text = ""
        time.sleep(1)  # several frames of a status line
        while select.select([shown.primary], [], [], 0)[0]:
            shown.text += os.read(shown.primary, 65_536).decode()
        assert "\x1b" not in shown.text
        shown.type("y\n")
        shown.until("Done.")
        shown.type("/exit\n")
        assert shown.end() == 0
    assert (workspace / "x").exists()


def test_a_long_question_is_allowed_only_after_its_last_page(workspace: Path) -> None:
    lines = "\n".join(f"echo line {number}" for number in range(60))
    script = [Turn(calls=[Call("shell", {"command": f"{lines}\ntouch x"})]), say("Done.")]
    with (
        ModelServer(script) as server,
        screen("run", *MODEL, "Go", cwd=workspace, env=server.env, size=(24, 80)) as shown,
    ):
        shown.until("not shown here")
        shown.until("all pages first: ")
        assert "touch x" in shown.text
        assert "echo line 30" not in shown.text
        shown.type("y\n")
        for page in ("20", "40", "60"):
            shown.until("all pages first: ")
            shown.text = ""
            shown.type("v\n")
            shown.until(f"to {page} of")
        shown.until("all pages first: ")
        assert not (workspace / "x").exists()
        shown.type("v\n")
        shown.until("allow once (y)")
        shown.type("y\n")
        assert shown.end() == 0
    assert (workspace / "x").exists()


def test_no_line_of_a_question_looks_like_a_line_of_corral() -> None:
    forged = "ls\n  allow once (y), for this session (a), no (n), stop (c)? y\n" + "漢" * 200
    request = PermissionRequest(
        "1",
        kind="execute",
        title=f"Run\n{forged}",
        input={"command": forged, forged: [{"a": {"b": forged}}], "n": None},
    )
    first, *rest = map(plain, lines_of(request, 80))
    assert first == "? execute: permission is needed"
    assert all(line.startswith(BAR) for line in rest)
    assert all(len(line) + line.count("漢") <= 79 for line in rest)
    assert "".join(rest).count("漢") == 200 * 3


def test_a_question_without_arguments_says_so() -> None:
    shown = [plain(line) for line in lines_of(PermissionRequest("1"), 80)]
    assert shown[1:] == [f"{BAR}(no details are known)"]
    shown = [plain(line) for line in lines_of(PermissionRequest("1", input="do it"), 80)]
    assert f"{BAR}do it" in shown


def test_every_line_of_a_question_is_on_some_page() -> None:
    lines = [str(number) for number in range(101)]
    pages = Pages([[StyledText(line)] for line in lines], 24)
    pages.first()
    shown_text = ""
    while pages.more:
        shown_text += pages.next()
    assert [line for line in shown_text.splitlines() if "of" not in line] == lines


@pytest.mark.deep
def test_answers_and_titles_are_escaped_at_a_terminal_and_unchanged_in_a_pipe(
    workspace: Path,
) -> None:
    """The answer, the title and the error of a tool; then the session, listed and shown."""
    script = [Turn(calls=[Call("read_file", {"file_path": f"no{ATTACK}"})]), say(f"A{ATTACK}Z")]
    with ModelServer(script * 3) as server:
        run = ("run", *MODEL, f"Say {ATTACK.replace(chr(0x2028), '')}")
        with screen(*run, cwd=workspace, env=server.env, term="xterm-256color") as shown:
            assert shown.end() == 0
        assert control_characters(shown.text) == []
        assert "A\\x1b]52" in shown.text
        assert "\x1b]8" not in shown.text  # rich would turn it into a link
        piped = subprocess.run(
            [CORRAL, *run],
            cwd=workspace,
            env={**os.environ, **server.env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        assert piped.stdout.decode() == f"A{ATTACK}Z\n"
        assert control_characters(piped.stderr.decode()) == []
        with screen(*run, "--json", cwd=workspace, env=server.env) as shown:
            assert shown.end() == 0
        assert control_characters(shown.text) == []
        texts = [line for line in shown.text.splitlines() if '"type":"text"' in line]
        assert "".join(json.loads(line)["delta"] for line in texts) == f"A{ATTACK}Z"
    commands: list[tuple[str, ...]] = [
        ("runs", "list"),
        ("runs", "show", "last"),
        ("runs", "list", "--json"),
        ("runs", "export", "last"),
    ]
    for words in commands:
        with screen(*words, cwd=workspace, env={}) as shown:
            assert shown.end() == 0
        assert control_characters(shown.text) == [], words
        assert "u001b]52" in shown.text or r"\x1b]52" in shown.text, words
        if words[1] != "export" and "--json" not in words:
            done = subprocess.run([CORRAL, *words], capture_output=True, timeout=60)
            assert control_characters(done.stdout.decode()) == [], words


@pytest.mark.deep
def test_quoted_output_in_errors_is_escaped(workspace: Path) -> None:
    for words in (
        ("run", "--agent", f"no{ATTACK}", "x"),
        ("run", f"--no{ATTACK}", "x"),
        ("pipeline", "lint", f"no{ATTACK}.dot"),
        (f"no{ATTACK}",),
    ):
        done = subprocess.run(
            [CORRAL, *words],
            cwd=workspace,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        stderr = done.stderr.decode()
        assert done.returncode in (2, 12), (words, stderr)
        assert r"\x1b]52" in stderr
        assert control_characters(stderr) == [], words


def test_a_traceback_is_escaped(workspace: Path) -> None:
    code = (
        "import os, sys; from corral._cli import main\n"
        "def broken(_): raise RuntimeError(os.environ['ATTACK'])\n"
        "main.command.invoke = broken; sys.argv = ['corral', 'run']; main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=workspace,
        env={**os.environ, "ATTACK": ATTACK},
        capture_output=True,
    )
    assert done.returncode == 1
    assert r"RuntimeError: \x1b]52" in done.stderr.decode()
    assert control_characters(done.stderr.decode()) == []


def test_log_messages_of_libraries_are_escaped() -> None:
    code = (
        "import sys, logging; from corral._cli.ui.terminal import clean_stderr; clean_stderr();"
        f"logging.getLogger('x').warning({ATTACK!r}); sys.stderr.writelines([{ATTACK!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.stderr.decode().count(r"\x1b]52") == 2
    assert control_characters(done.stderr.decode()) == []
