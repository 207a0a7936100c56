"""A further prompt to a named session takes a short way that behaves like the complete program."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pipeline_command import corral

from corral.cli import warm_prompt
from corral.events import Decision
from corral.sessions.warm.client import Request, WarmTurn
from corral.sessions.warm.names import WarmFiles

PROGRAM = Path(__file__).parents[1] / "programs" / "scripted_acp.py"
AGENT = shlex.join([sys.executable, "-S", "-E", str(PROGRAM), "--acp", "--loads"])
SHORT = (
    "import atexit, sys; from corral.cli.entry import main;"
    "atexit.register(lambda: print('click' in sys.modules, file=sys.stderr)); main()"
)
"""The command line, which says at its end whether the complete program was loaded."""


@pytest.fixture
def session(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace with a warm session, in a home whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="corral-", dir="/tmp") as home:
        monkeypatch.setenv("CORRAL_HOME", home)
        first = corral(*words("text first"), "--agent", AGENT, cwd=workspace)
        assert first.returncode == 0, first.stderr
        yield workspace
        corral("sessions", "stop", "--all", cwd=workspace)


def words(prompt: str) -> tuple[str, ...]:
    return ("run", "--session", "fix", "--quiet", prompt)


def start(
    *arguments: str, cwd: Path, stdin: int | None = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SHORT, *arguments],
        cwd=cwd,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "prompt",
    [
        "text hello",
        "text one\ntool c read x\ntool-done c\ntext two",
        "tool c read x\ntext \ntext ends with a line\\n",
    ],
)
def test_the_answer_is_that_of_the_complete_program(session: Path, prompt: str) -> None:
    complete = corral(*words(prompt), cwd=session)
    short = start(*words(prompt), cwd=session)
    out, err = short.communicate(timeout=60)
    assert (out, short.returncode) == (complete.stdout, complete.returncode)
    assert err == "False\n"  # nothing but the standard library was loaded


def test_what_is_not_a_success_is_reported_as_by_the_complete_program(session: Path) -> None:
    prompt = "exit 3"
    complete = corral(*words(prompt), cwd=session)
    short = start(*words(prompt), cwd=session)
    _, err = short.communicate(timeout=60)
    assert short.returncode == complete.returncode != 0
    assert err.removesuffix("True\n").split(":")[0] == complete.stderr.split(":")[0]


def test_a_permission_request_is_denied_although_the_session_was_started_by_a_person(
    session: Path,
) -> None:
    corral("sessions", "stop", "--forget", "fix", cwd=session)

    async def allow(_: object) -> Decision:
        return "allow_once"

    async def open_session() -> None:
        request = Request(
            name="fix", agent=AGENT, text="text hi", options={"cwd": str(session)}, interactive=True
        )
        async for _ in WarmTurn(WarmFiles.of("fix", str(session)), request, ask=allow):
            pass

    asyncio.run(open_session())
    short = start(*words("ask execute make it"), cwd=session)
    out, err = short.communicate(timeout=60)
    assert (out, err) == ("[c-no]\n", "False\n")


def test_the_complete_program_does_what_the_short_way_cannot(session: Path) -> None:
    piped = start(*words("text hi"), cwd=session, stdin=subprocess.PIPE)
    assert piped.communicate("more", timeout=60)[0] == "hi\n"
    assert corral("sessions", "stop", "fix", cwd=session).returncode == 0
    cold = start(*words("text again"), cwd=session)
    out, err = cold.communicate(timeout=60)
    assert (out, err.endswith("True\n")) == ("again\n", True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--session", "a", "go"],
        ["--session", "a", "-q"],
        ["--session", "a", "-q", "go", "on"],
        ["--session", "a", "-q", "-"],
        ["--session", "a", "-q", " "],
        ["--session", "a", "-q", "--model", "m", "go"],
        ["--session", "-q", "go"],
        ["-q", "go"],
        ["-q", "go", "--session"],
    ],
)
def test_other_arguments_are_left_to_the_complete_program(arguments: list[str]) -> None:
    assert warm_prompt.parse(arguments) is None


def test_the_arguments_are_understood_in_any_order() -> None:
    found = warm_prompt.parse(["-C", "there", "go", "-q", "--session", "a"])
    assert found == {"cwd": "there", "prompt": "go", "session": "a"}


def test_an_interrupted_prompt_is_cancelled_and_the_session_goes_on(session: Path) -> None:
    short = start(*words("touch began\nhang"), cwd=session)
    _wait_for(session / "began")
    short.send_signal(signal.SIGINT)
    short.communicate(timeout=60)
    assert short.returncode == 130
    second = start(*words("text still here"), cwd=session)
    assert second.communicate(timeout=60)[0] == "still here\n"


def test_a_process_that_ends_meanwhile_is_reported(session: Path) -> None:
    short = start(*words("touch began\nhang"), cwd=session)
    _wait_for(session / "began")
    stored = WarmFiles.of("fix", os.path.realpath(session)).stored()
    assert stored is not None
    os.kill(stored.pid, signal.SIGKILL)
    _, err = short.communicate(timeout=60)
    assert short.returncode == 1
    assert "the background process of the session ended unexpectedly" in err


def test_a_reader_that_has_gone_ends_the_command(session: Path) -> None:
    short = start(*words("touch began\nuntil go\ntext hello"), cwd=session)
    _wait_for(session / "began")
    assert short.stdout is not None
    assert short.stderr is not None
    short.stdout.close()
    (session / "go").touch()
    with short.stderr:
        assert short.wait(60) == 141


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert file.exists()
