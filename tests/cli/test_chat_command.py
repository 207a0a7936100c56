"""``corral chat`` and ``corral run`` on a vendor's model, run as programs."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.testing import Call, ModelServer, Turn, fail, hang, say

CORRAL = str(Path(sys.executable).with_name("corral"))
MODEL = ("--model", "gemini:gemini-2.5-flash")


class ChatSetup:
    """A folder, and a scripted model that the command line finds."""

    def __init__(self, cwd: Path, server: ModelServer) -> None:
        self.cwd = cwd
        self.server = server
        self.env = {**os.environ, **server.env}

    def corral(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CORRAL, *words],
            cwd=self.cwd,
            input=stdin,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def heard(self, number: int) -> list[str]:
        """The messages that the model has received."""
        return self.server.requests[number].texts


@pytest.fixture
def chat(request: pytest.FixtureRequest, workspace: Path) -> Iterator[ChatSetup]:
    with ModelServer(request.param) as server:
        yield ChatSetup(workspace, server)


def playing(*turns: Turn) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("chat", [list(turns)], indirect=True, ids=["script"])


@playing(say("Hello."), say("You said hi."))
def test_each_line_is_a_prompt_of_one_conversation(chat: ChatSetup) -> None:
    done = chat.corral("chat", *MODEL, stdin="hi\nwhat did I say?\n")
    assert (done.returncode, done.stdout) == (0, "Hello.\nYou said hi.\n")
    assert chat.heard(1) == ["hi", "Hello.", "what did I say?"]
    assert "continue with: corral chat --resume 2" in done.stderr


@playing(say("Hello."), say("You said hi."))
def test_a_conversation_is_resumed_with_its_own_agent_and_model(chat: ChatSetup) -> None:
    chat.corral("chat", *MODEL, stdin="hi\n")
    done = chat.corral("chat", "--resume", "last", "--quiet", stdin="what did I say?\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said hi.\n", "")
    assert chat.heard(1) == ["hi", "Hello.", "what did I say?"]


@playing(Turn(text="Hello.", usage={"input": 12, "output": 3}))
def test_a_line_that_starts_with_a_slash_is_a_command(chat: ChatSetup) -> None:
    done = chat.corral("chat", *MODEL, stdin="/help\n\n  \nhi\n/usage\n/exit\nnever sent\n")
    assert "12 tokens in, 3 out" in done.stderr
    assert "/exit" in done.stderr
    assert len(chat.server.requests) == 1


@playing(say("One."))
def test_a_backslash_at_the_end_joins_lines(chat: ChatSetup) -> None:
    chat.corral("chat", *MODEL, stdin="one\\\ntwo\n")
    assert chat.heard(0) == ["one\ntwo"]


@playing(say("Hello."), fail(401))
def test_a_failed_answer_is_reported_and_sets_the_exit_code(chat: ChatSetup) -> None:
    done = chat.corral("chat", *MODEL, stdin="hi\nagain\n")
    assert done.returncode == 6
    assert done.stdout == "Hello.\n"
    assert "rejected the key" in done.stderr


@playing(Turn(calls=[Call("shell", {"command": "touch x"})]), say("I may not."))
def test_the_policy_applies_to_a_chat(chat: ChatSetup) -> None:
    done = chat.corral("chat", *MODEL, stdin="make x\n")
    assert done.stdout == "I may not.\n"
    assert "denied" in done.stderr
    assert not (chat.cwd / "x").exists()


def test_an_unknown_vendor_is_an_error_before_anything_is_read(workspace: Path) -> None:
    done = subprocess.run(
        [CORRAL, "chat", "--model", "gemni:x"],
        cwd=workspace,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "Did you mean 'gemini'" in done.stderr


@playing(hang("Once upon"), say("Hello."))
def test_ctrl_c_stops_an_answer_and_not_the_chat(chat: ChatSetup) -> None:
    """At a terminal, as a person would."""
    primary, secondary = pty.openpty()
    process = subprocess.Popen(
        [CORRAL, "chat", *MODEL, "--quiet"],
        cwd=chat.cwd,
        env={**chat.env, "TERM": "dumb"},
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        start_new_session=True,
    )
    os.close(secondary)
    screen = ""

    def until(text: str) -> None:
        nonlocal screen
        ends = time.monotonic() + 40
        while text not in screen:
            assert time.monotonic() < ends, screen
            screen += os.read(primary, 4096).decode()
        screen = screen.partition(text)[2]

    try:
        until("> ")
        os.write(primary, b"tell me a story\n")
        until("Once upon")
        process.send_signal(signal.SIGINT)
        until("cancelled")
        until("> ")
        os.write(primary, b"hi\n")
        until("Hello.")
        until("> ")
        os.write(primary, b"\x04")
        assert process.wait(20) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(primary)


@playing(say("It is small."))
def test_run_uses_the_built_in_agent_for_a_vendors_model(chat: ChatSetup) -> None:
    done = chat.corral("run", *MODEL, "--json", "What is it?")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert (events[0]["type"], events[0]["agent"]) == ("init", "corral")
    assert (events[-1]["status"], events[-1]["model"]) == ("success", MODEL[1])
    assert chat.server.requests[0].model == "gemini-2.5-flash"


@playing(say("Hm."))
def test_the_effort_reaches_the_model(chat: ChatSetup) -> None:
    assert chat.corral("run", *MODEL, "--effort", "low", "Think").returncode == 0
    config = chat.server.requests[0].body["generationConfig"]
    assert config == {"thinkingConfig": {"thinkingBudget": 1024, "includeThoughts": True}}


@playing()
def test_a_missing_key_is_an_error_that_names_the_variable(chat: ChatSetup) -> None:
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        chat.env.pop(name, None)
    done = chat.corral("run", *MODEL, "hi")
    assert done.returncode == 6
    assert "GEMINI_API_KEY" in done.stderr
    assert chat.server.requests == []


@playing()
def test_a_dry_run_of_the_built_in_agent_sends_nothing(chat: ChatSetup) -> None:
    done = chat.corral("run", *MODEL, "--dry-run", "--approve", "edits", "hi")
    assert done.returncode == 0
    assert "gemini:gemini-2.5-flash" in done.stdout
    assert chat.server.requests == []
