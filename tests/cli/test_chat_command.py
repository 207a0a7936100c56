"""``corral chat`` and ``corral run`` on a vendor's model, run as programs."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.screens import CORRAL, Screen, screen

from corral.testing import Call, ModelServer, Turn, fail, hang, say

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

    def screen(
        self, *words: str, term: str = "xterm", model: tuple[str, ...] = MODEL
    ) -> AbstractContextManager[Screen]:
        """The chat at a terminal."""
        return screen("chat", *model, *words, cwd=self.cwd, env=self.env, term=term)

    def received(self, number: int) -> list[str]:
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
    assert chat.received(1) == ["hi", "Hello.", "what did I say?"]
    assert "continue with: corral chat --resume 2" in done.stderr


def test_a_chat_with_a_scripted_model_needs_no_key(workspace: Path) -> None:
    (workspace / "my fake.toml").write_text('[[turn]]\ntext = "Hi."\nrepeat = "forever"\n')
    words = (CORRAL, "chat", "--fake", "my fake.toml", *MODEL)
    done = subprocess.run(
        words, cwd=workspace, input="a\nb\n", capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "Hi.\nHi.\n")
    assert re.search(r"corral chat --resume \S+ --fake 'my fake.toml'\n", done.stderr)


@playing(say("Hello."), say("You said hi."))
def test_a_conversation_is_resumed_with_its_own_agent_and_model(chat: ChatSetup) -> None:
    chat.corral("chat", *MODEL, stdin="hi\n")
    done = chat.corral("chat", "--resume", "last", "--quiet", stdin="what did I say?\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said hi.\n", "")
    assert chat.received(1) == ["hi", "Hello.", "what did I say?"]


@playing(Turn(text="Hello.", usage={"input": 12, "output": 3}))
def test_a_slash_and_a_word_is_a_command(chat: ChatSetup) -> None:
    done = chat.corral("chat", *MODEL, stdin="/help\n\n  \nhi\n/usage\n/exit\nnever sent\n")
    assert "12 tokens in, 3 out" in done.stderr
    assert "/exit" in done.stderr
    assert len(chat.server.requests) == 1


@playing(say("One."))
def test_a_backslash_at_the_end_joins_lines(chat: ChatSetup) -> None:
    chat.corral("chat", *MODEL, stdin="one\\\ntwo\n")
    assert chat.received(0) == ["one\ntwo"]


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
    with chat.screen("--quiet", term="dumb") as shown:
        shown.until("> ")
        shown.type("tell me a story\n")
        shown.until("Once upon")
        shown.interrupt()
        shown.until("cancelled")
        shown.until_true(lambda: shown.lines[-1:] == [">"])
        shown.type("hi\n")
        shown.until("Hello.")
        shown.until_true(lambda: shown.lines[-1:] == [">"])
        shown.type("\x04")
        assert shown.end() == 0


@playing(say("Hello."))
def test_an_unknown_command_is_refused_with_a_suggestion(chat: ChatSetup) -> None:
    done = chat.corral("chat", *MODEL, stdin="/usgae\n/x y\n//etc/hosts?\n/etc/hosts?\n/undo now\n")
    assert done.returncode == 2
    assert "no command is called /usgae" in done.stderr
    assert "Did you mean /usage?" in done.stderr
    assert "no command is called /x" in done.stderr
    assert "/undo takes no argument" in done.stderr
    assert chat.received(0) == ["/etc/hosts?"]
    assert chat.received(1)[-1] == "/etc/hosts?"


@playing(say("One."), say("Two."), say("Three."))
def test_the_model_and_the_policy_change_within_one_conversation(chat: ChatSetup) -> None:
    lines = ("a", "/model", "/model gemini:gemini-2.5-pro", "b", "/policy", "/policy all", "c")
    done = chat.corral("chat", *MODEL, stdin="".join(f"{line}\n" for line in lines))
    assert done.stdout == "One.\nTwo.\nThree.\n", done.stderr
    assert "corral · gemini:gemini-2.5-flash" in done.stderr
    assert "now: corral · gemini:gemini-2.5-pro\n" in done.stderr
    assert [request.model for request in chat.server.requests] == [
        "gemini-2.5-flash",
        "gemini-2.5-pro",
        "gemini-2.5-pro",
    ]
    assert chat.received(2) == ["a", "One.", "b", "Two.", "c"]
    before, _, after = done.stderr.rpartition("capability")
    assert re.search(r"^shell +deny ", before, re.MULTILINE)
    assert re.search(r"^shell +allow ", after, re.MULTILINE)


@playing(say("One."))
def test_a_wrong_model_agent_or_policy_changes_nothing(chat: ChatSetup) -> None:
    wrong = "/model gemni:x\n/agent nobody-here\n/policy everything\n"
    done = chat.corral("chat", *MODEL, stdin=f"{wrong}a\n")
    assert (done.returncode, done.stdout) == (0, "One.\n"), done.stderr
    for part in ("Did you mean 'gemini'", "nobody-here", "no policy is called 'everything'"):
        assert part in done.stderr


@playing(say("Blue."), say("You like blue."))
@pytest.mark.deep
def test_another_agent_gets_the_conversation_so_far(chat: ChatSetup) -> None:
    program = Path(__file__).parents[1] / "programs" / "scripted_acp.py"
    agent = f"{sys.executable} {program} --acp"
    lines = f"my color?\n/agent {agent}\ntext I see it\nhistory\n/model {MODEL[1]}\nmy color?\n"
    done = chat.corral("chat", *MODEL, stdin=lines)
    assert "the conversation so far is sent with the next prompt" in done.stderr, done.stderr
    assert done.stdout.startswith("Blue.\nI see it\n")
    assert "<conversation_so_far>" in done.stdout
    assert "### corral wrote\\n| Blue.\\n" in done.stdout
    # It goes back to the first agent with what was said meanwhile.
    assert done.stdout.endswith("You like blue.\n")
    assert "I see it" in chat.received(1)
    shown = chat.corral("runs", "show", "last").stdout
    assert re.search(r"^continues +\S+ · \S.* · after 2 turns$", shown, re.MULTILINE)
    assert re.search(r"^continues +\S+ · corral · after 1 turn$", shown, re.MULTILINE)
    assert "<conversation_so_far>" not in shown


@playing(
    Turn(text="Hello.", usage={"input": 1_000, "output": 30}),
    Turn(text="Again.", usage={"input": 2_000, "output": 20}),
)
def test_usage_adds_up_the_tokens_and_the_cost(chat: ChatSetup) -> None:
    done = chat.corral("chat", *MODEL, stdin="a\nb\n/usage\n")
    assert "2 prompts · 3,000 tokens in, 50 out · $0.0010" in done.stderr


def _write(name: str, content: str) -> Turn:
    return Turn(calls=[Call("write_file", {"file_path": name, "content": content})])


@playing(_write("a", "one\n"), say("Done."), _write("a", "two\n"), say("Done."))
def test_diff_and_undo_work_on_what_each_prompt_changed(chat: ChatSetup) -> None:
    (chat.cwd / "a").write_text("zero\n")
    done = chat.corral(
        "chat", *MODEL, "--approve", "edits", stdin="x\n/diff\ny\n/diff all\n/undo\n/diff\n"
    )
    assert done.stderr.count("-zero\n+one") == 2, done.stderr
    assert done.stderr.count("-zero\n+two") == 1
    assert "restored a" in done.stderr
    assert (chat.cwd / "a").read_text() == "one\n"
    done = chat.corral("chat", "--resume", "last", stdin="/undo\n/undo\n")
    assert (chat.cwd / "a").read_text() == "zero\n", done.stderr
    assert "no file was changed" in done.stderr


@playing(say("**Hello.**"))
def test_save_writes_the_conversation_and_replaces_no_file(chat: ChatSetup) -> None:
    done = chat.corral("chat", *MODEL, stdin="/save\nhi\n/save out.md\n/save out.md\n/save\n")
    assert "nothing to save" in done.stderr
    text = (chat.cwd / "out.md").read_text()
    assert "hi" in text
    assert "**Hello.**" in text
    assert "out.md exists" in done.stderr
    assert len(list(chat.cwd.glob("chat-*.md"))) == 1


@playing(say("Two lines."), say("Again."))
@pytest.mark.deep
def test_pasted_lines_are_one_prompt_and_go_into_a_private_history(chat: ChatSetup) -> None:
    with chat.screen() as shown:
        shown.until_true(lambda: shown.lines[-1:] == [">"])
        shown.type("\x1b[200~one \\n\ntwo\x1b[201~\n")
        shown.until_shown("Two lines.")
        shown.until_true(lambda: shown.lines[-1:] == [">"])
        shown.type("\x04")
        assert shown.end() == 0
    assert chat.received(0) == ["one \\n\ntwo"]
    history = Path(os.environ["CORRAL_HOME"], "chat_history")
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with chat.screen() as shown:  # the arrow key brings the prompt back
        shown.until_true(lambda: shown.lines[-1:] == [">"])
        shown.type("\x1b[A\n")
        shown.until_shown("Again.")
        shown.until_true(lambda: shown.lines[-1:] == [">"])
        shown.type("/ex\t\n")
        assert shown.end() == 0
    assert chat.received(1) == ["one \\n\ntwo"]


@playing(say("First answer."), say("Second answer."))
def test_a_resumed_chat_shows_where_it_was(chat: ChatSetup) -> None:
    chat.corral("chat", *MODEL, stdin="first\nsecond\n")
    with chat.screen("--resume", "last", model=()) as shown:
        shown.until_true(lambda: shown.lines[-1:] == [">"])
        assert "continuing after 2 prompts" in shown.shown
        assert "> second\nSecond answer.\n" in shown.shown
        assert "first" not in shown.shown
        shown.type("\x04")
        assert shown.end() == 0


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
    for words in (("run", *MODEL, "hi"), ("chat", *MODEL)):  # a chat asks for no prompt before
        done = chat.corral(*words)
        assert done.returncode == 6, words
        assert "GEMINI_API_KEY" in done.stderr
    assert chat.server.requests == []


@playing()
def test_a_dry_run_of_the_built_in_agent_sends_nothing(chat: ChatSetup) -> None:
    done = chat.corral("run", *MODEL, "--dry-run", "--approve", "edits", "hi")
    assert done.returncode == 0
    assert "gemini:gemini-2.5-flash" in done.stdout
    assert chat.server.requests == []
