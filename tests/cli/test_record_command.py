"""``corral fake record``, ``corral fake play``, and a run with either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.scripted_agent import GOOD, PROGRAM

from corral._system.cassette import format

CORRAL = str(Path(sys.executable).with_name("corral"))
KEY = "scripted-key-0123456789"


def corral(*words: str, cwd: Path, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CORRAL, *words],
        cwd=cwd,
        input=stdin,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def other(tmp_path: Path) -> Path:
    folder = tmp_path / "other"
    folder.mkdir()
    return folder


def test_a_program_is_recorded_and_replayed(workspace: Path) -> None:
    orders = "init\ntext hello\nstderr oh\nexit 3"
    words = ("--flag", "-o", "value")
    then = corral(
        "fake", "record", "-o", "t.ndjson", "--", str(PROGRAM), *words, cwd=workspace, stdin=orders
    )
    assert (then.returncode, then.stderr) == (3, "oh\n")
    now = corral("fake", "play", "t.ndjson", "--", *words, cwd=workspace, stdin=orders)
    assert (now.returncode, now.stdout, now.stderr) == (3, then.stdout, "oh\n")
    other = corral("fake", "play", "t.ndjson", "--", *words, cwd=workspace, stdin="init")
    assert other.returncode == 90
    assert other.stderr.startswith(
        "corral fake play: this request is not the one recorded in t.ndjson\n--- recorded"
    )


def test_the_recording_starts_with_a_header(workspace: Path) -> None:
    program = str(PROGRAM)
    corral(
        "fake",
        "record",
        "-o",
        "t",
        "--agent",
        "gemini-cli",
        "--",
        program,
        KEY,
        cwd=workspace,
        A_KEY=KEY,
    )
    first = json.loads((workspace / "t").read_text().splitlines()[0])
    assert first["cassette"] == 1
    assert first["argv"] == [program, "[A_KEY redacted]"]
    assert first["agent"] == "gemini-cli"
    assert first["places"]["cwd"] == str(workspace)
    assert (workspace / "t").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ("fake", "record", "-o", "t", "--", "/no/such/program"),
            12,
            "/no/such/program was not found",
        ),
        (("fake", "record", "--", "true"), 2, "missing option '-o'"),
        (("fake", "record", "-o", "t"), 2, "missing argument"),
        (("fake", "play", "no-such-file"), 90, "the recording cannot be read: no-such-file"),
        (("run", "--replay", "no-such-file", "x"), 2, "the recording cannot be read"),
    ],
)
def test_invalid_arguments_are_an_error(
    workspace: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    done = corral(*words, cwd=workspace)
    assert done.returncode == code
    assert message in done.stderr


@pytest.mark.deep
def test_a_run_is_recorded_and_replayed_without_program_and_key(
    workspace: Path, other: Path, tmp_path: Path
) -> None:
    recording_file = str(tmp_path / "tape.ndjson")
    program = ("--agent", "gemini-cli", "--program", str(PROGRAM))
    then = corral(
        "run",
        *program,
        "--record-to",
        recording_file,
        "-",
        cwd=workspace,
        stdin=GOOD,
        GEMINI_API_KEY=KEY,
    )
    assert (then.returncode, then.stdout) == (0, "hello\n"), then.stderr
    assert KEY not in Path(recording_file).read_text()
    assert format.read(recording_file)[0].head.version == "0.61.0"
    now = corral("run", "--replay", recording_file, "-", cwd=other, stdin=GOOD, PATH="/nowhere")
    assert (now.returncode, now.stdout) == (0, "hello\n"), now.stderr
    changed = corral(
        "run", "--replay", recording_file, "-", cwd=other, stdin="init\ntext bye\nresult"
    )
    assert changed.returncode == 1
    assert "-text hello\n+text bye" in changed.stderr
