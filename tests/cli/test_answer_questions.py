"""``corral runs answer ID TEXT``: a question of an agent, answered from another terminal."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.live_runs import one_pending, wait_for
from support.pipeline_command import CORRAL, corral

from corral import live
from corral._publishing import control
from corral.testing import Call, ModelServer, Turn, say
from corral.values import Json

OPTIONS: Json = [{"label": "SQLite", "description": "one file"}, {"label": "Postgres"}]
ASK = Call("ask_user", {"question": "Which database?", "options": OPTIONS, "multiple": True})


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer([Turn(calls=[ASK]), say("Done.")]) as server:
        yield server


@pytest.fixture
def asking(
    workspace: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[subprocess.Popen[str]]:
    """A run without a terminal that waits for an answer."""
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    options = ("--model", "gemini:gemini-2.5-flash", "--remote-answers", "--timeout", "2m")
    with subprocess.Popen(
        [CORRAL, "run", *options, "Go"],
        cwd=workspace,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_question_is_listed_and_answered(
    workspace: Path, server: ModelServer, asking: subprocess.Popen[str]
) -> None:
    request = wait_for(one_pending)
    assert (request.kind, request.title) == ("question", "Which database?")
    assert [option.label for option in request.fields[0].options] == ["SQLite", "Postgres"]
    listed = corral("runs", "list", "--json", cwd=workspace).stdout
    assert json.loads(listed)[0]["state"] == "waiting"
    wrong = corral("runs", "answer", "last", "--allow", cwd=workspace)
    assert (wrong.returncode, "answered with a text" in wrong.stderr) == (2, True)
    empty = corral("runs", "answer", "last", "", cwd=workspace)
    assert (empty.returncode, "an answer is needed" in empty.stderr) == (2, True)
    assert asking.stderr is not None
    err = ""
    while "answer with" not in err:  # it is shown after a moment
        line = asking.stderr.readline()
        assert line, err
        err += line
    answered = corral("runs", "answer", request.run[:15], "2, 1", cwd=workspace)
    assert (answered.returncode, answered.stderr) == (0, "")
    out, rest = asking.communicate(timeout=60)
    assert (asking.returncode, out) == (0, "Done.\n")
    err += rest
    assert f'answer with: corral runs answer {request.run} "TEXT" (or --deny)' in err
    assert "1. SQLite" in err
    assert "asked    Which database? → Postgres, SQLite" in err
    assert "Postgres" in json.dumps([text for _, text in server.requests[-1].tool_results])


def test_a_question_is_declined(server: ModelServer, asking: subprocess.Popen[str]) -> None:
    request = wait_for(one_pending)
    control.answer(request.run, "deny", request_id=request.request_id, key=request.key)
    assert asking.communicate(timeout=60)[0] == "Done.\n"
    assert "did not answer" in json.dumps([text for _, text in server.requests[-1].tool_results])


def test_answers_by_key_are_checked(asking: subprocess.Popen[str]) -> None:
    request = wait_for(one_pending)
    with pytest.raises(live.LiveError, match="no field 'database'"):
        control.answer(request.run, answers={"database": "SQLite"})
    control.answer(request.run, answers={"answer": ["SQLite", "files"]})
    assert asking.communicate(timeout=60)[0] == "Done.\n"
