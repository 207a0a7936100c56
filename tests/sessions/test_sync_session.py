"""Sessions for code that is not async."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.scripted_agent import GOOD, child_pids, scripted_options

import corral
from corral import errors


def test_prompts_of_one_session(workspace: Path) -> None:
    before = threading.active_count()
    with corral.session_sync("gemini-cli", **scripted_options(workspace)) as session:
        assert repr(session) == f"<Session gemini-cli {session.id} (new)>"
        assert session.run(GOOD).text == "hello"
        kinds = [event.type for event in session.prompt(GOOD)]
        assert (kinds[0], kinds[-1]) == ("init", "done")
        assert session.run("init\ntext 3\nresult", output=int).output == 3
    assert threading.active_count() == before
    assert child_pids() == []


def test_a_turn_that_is_left_is_ended_with_the_session(workspace: Path) -> None:
    with corral.session_sync("gemini-cli", **scripted_options(workspace)) as session:
        for event in session.prompt("init\ntext x\nhang"):
            if event.type == "text":
                break
        assert session.run(GOOD).ok
    assert child_pids() == []


def test_errors_are_raised_where_they_belong(workspace: Path) -> None:
    with pytest.raises(errors.UnknownAgent), corral.session_sync("gemni"):
        pass
    session = corral.session_sync("gemini-cli", **scripted_options(workspace))
    with pytest.raises(RuntimeError, match="open the session first: with corral"):
        session.run(GOOD)
    with pytest.raises(ZeroDivisionError), session:
        raise ZeroDivisionError
    with session:
        with pytest.raises(errors.StreamBroken) as caught:
            session.run("init\ntext half", check=True)
        assert {str(entry.path) for entry in caught.traceback} == {__file__}
        with pytest.raises(RuntimeError, match="open already"), session:
            pass
    assert child_pids() == []


async def test_inside_a_loop_there_is_a_warning(workspace: Path) -> None:
    opened = corral.session_sync("gemini-cli", **scripted_options(workspace))
    with pytest.warns(RuntimeWarning, match="session_sync stops") as warned, opened as session:
        assert session.run(GOOD).text == "hello"
    assert [each.filename for each in warned] == [__file__]


def test_an_interruption_ends_the_agent(workspace: Path) -> None:
    program = (
        "import corral, sys\n"
        "from support.scripted_agent import scripted_options, child_pids\n"
        "from pathlib import Path\n"
        "try:\n"
        f"    with corral.session_sync('gemini-cli', **scripted_options(Path({str(workspace)!r}),\n"
        "            keep=False)) as session:\n"
        "        for event in session.prompt('init\\ntext x\\nhang'):\n"
        "            print(event.type)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130 if not child_pids() else 1)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    while process.stdout.readline() != "text\n":
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    process.stdout.close()
