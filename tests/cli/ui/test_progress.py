"""Progress at terminals of any kind, and without one."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from support.screens import CORRAL, LIMIT, Screen, screen

from corral._cli.ui.progress import TurnProgress, describe_call
from corral.events import Done, ToolUse
from corral.receipt import Evidence, Receipt, RunFacts
from corral.testing import Call, ModelServer, Turn, fail, hang, say

MODEL = ("--model", "gemini:gemini-2.5-flash")
COLOR = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")


def run(server: ModelServer, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CORRAL, "run", *MODEL, *words],
        cwd=cwd,
        env={**os.environ, **server.env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


def test_without_a_terminal_a_heartbeat_says_what_is_running(workspace: Path) -> None:
    script = [Turn(calls=[Call("shell", {"command": "sleep 600"})])]
    with ModelServer(script) as server:
        process = subprocess.Popen(
            [CORRAL, "run", *MODEL, "--approve", "all", "Go"],
            cwd=workspace,
            env={**os.environ, **server.env, "CORRAL_HEARTBEAT": "200ms"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        timer = threading.Timer(LIMIT, process.kill)
        timer.start()
        try:
            assert process.stderr is not None
            beats = (line for line in process.stderr if "sleep 600 · " in line)
            assert re.fullmatch(r"… .*sleep 600 · \d+ s · [\d,]+ tokens\n", next(beats, ""))
        finally:
            timer.cancel()
            process.terminate()
            stdout, _ = process.communicate(timeout=LIMIT)
    assert stdout == ""


def test_retries_are_printed_when_they_happen(workspace: Path) -> None:
    with ModelServer([fail(503, message="busy"), say("Done.")]) as server:
        done = run(server, workspace, "Go")
    assert done.stdout == "Done.\n"
    assert re.search(r"^! .*busy.*tried again in \d+ s$", done.stderr, re.MULTILINE), done.stderr


def test_a_retry_is_what_the_agent_does_now(workspace: Path) -> None:
    script = [Turn(status=429, message="slow down", retry_after=30), say("Done.")]
    with (
        ModelServer(script) as server,
        screen("run", *MODEL, "Go", cwd=workspace, env=server.env, term="xterm") as shown,
    ):
        shown.until_true(lambda: any("waiting: " in line for line in shown.lines[-1:]))
        assert "! " in shown.shown
        shown.interrupt()
        shown.end()


@pytest.mark.parametrize("no_color", ["", "1"])
def test_no_color_leaves_bold_text_and_removes_colors(workspace: Path, no_color: str) -> None:
    script = [Turn(calls=[Call("list_dir", {"path": "."})]), say("**bold** and `code`")]
    with ModelServer(script) as server:
        env = {**server.env, "NO_COLOR": no_color}
        with screen("run", *MODEL, "Go", cwd=workspace, env=env, term="xterm") as shown:
            assert shown.end() == 0
    assert bool(COLOR.search(shown.text)) is not bool(no_color)
    assert "\x1b[1mbold\x1b[0m" in shown.text


def _is_wrapped(frame: str, text: str) -> bool:
    return "away." in frame and text not in frame


@pytest.mark.parametrize("columns", [20, 37])
def test_a_narrow_terminal_and_one_that_becomes_narrower_keep_all_text(
    workspace: Path, columns: int
) -> None:
    text = "The quick brown fox jumps over the lazy dog and runs away."
    script = [
        Turn(calls=[Call("list_dir", {"path": "."}), Call("read_file", {"file_path": "x" * 60})]),
        hang(text),
    ]
    with (
        ModelServer(script) as server,
        screen(
            *("run", *MODEL, "Go"),
            cwd=workspace,
            env=server.env,
            size=(40, columns + 30),
            term="xterm",
        ) as shown,
    ):
        shown.until_shown("answering")
        shown.resize((40, columns))
        shown.until_true(lambda: _is_wrapped(shown.text.rpartition("\x1b[J")[2], text))
        shown.interrupt()
        shown.end()
    joined = " ".join(" ".join(shown.lines).split())
    assert text in joined
    assert joined.count("The quick") == 1
    assert joined.count("interrupted ·") == 1


def test_what_a_pipe_prints_on_the_same_terminal_is_not_erased(workspace: Path) -> None:
    """As in ``corral run … | tee FILE``."""
    script = [
        Turn(text=["One", " two."], calls=[Call("list_dir", {"path": "."})], chunk_delay=0.3),
        Turn(text=["Three", " and four."], chunk_delay=0.3),
    ]
    with ModelServer(script) as server:
        command = f"{shlex.join([CORRAL, 'run', *MODEL, 'Go'])} | tee out"
        env = {**os.environ, **server.env, "TERM": "xterm"}
        shown = Screen(["sh", "-c", command], workspace, env, (40, 80))
        try:
            assert shown.end() == 0
        finally:
            os.close(shown.primary)
    assert (workspace / "out").read_text() == "One two.\n\nThree and four.\n"
    assert "One two." in shown.shown
    assert "Three and four." in shown.shown


def test_the_end_repeats_no_verdict_of_the_last_round(capsys: pytest.CaptureFixture[str]) -> None:
    evidence = Evidence(kind="command", name="c", outcome="failed", output="1\n2\n")
    facts = RunFacts(run_id="s.1", agent="corral", status="success")
    receipt = Receipt(
        format=1, verdict="gaps", gaps=("g",), created=0, corral="", run=facts, evidence=(evidence,)
    )
    progress = TurnProgress(enabled=True)
    progress.verdict(receipt, round_number=2)
    done = Done(status="success", receipt=receipt)
    progress.summary(done)
    other = msgspec.structs.replace(receipt, gaps=("other",))
    progress.summary(msgspec.structs.replace(done, receipt=other))
    verdicts = [line for line in capsys.readouterr().err.splitlines() if "success" not in line]
    evidence_lines = ["  | 1", "  | 2"]
    assert verdicts == [
        *("round 2: gaps", "gap      g", *evidence_lines),
        *("gaps", "gap      other", *evidence_lines),
    ]


def test_a_turn_that_failed_before_it_did_anything_has_no_note_on_files(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = TurnProgress(enabled=True)
    progress.summary(Done(status="error", files_complete=False))
    assert "may be incomplete" not in capsys.readouterr().err
    progress.show(ToolUse("1", "shell", input={"command": "make"}))
    progress.summary(Done(status="error", files_complete=False))
    assert "may be incomplete: the folder is large" in capsys.readouterr().err


def test_log_lines_of_libraries_are_printed_above_the_live_area() -> None:
    code = (
        "import logging, sys, time; from corral._cli.ui import terminal\n"
        "from corral._cli.ui.live_progress import LiveArea\n"
        "from corral._cli.ui.spans import StyledText\n"
        "terminal.clean_stderr()\n"
        "area = LiveArea(terminal.live_stream(),\n"
        " lambda *_: [[StyledText('busy')]] * 3, color=True)\n"
        "with area:\n"
        "    for n in range(3):\n"
        "        logging.getLogger('x').warning('message %d', n)\n"
        "        sys.stderr.write('half '); time.sleep(0.3); sys.stderr.write('line\\n')\n"
        "        terminal.echo('on stdout')\n"
    )

    shown = Screen(
        [sys.executable, "-c", code], Path.cwd(), {**os.environ, "TERM": "xterm"}, (40, 80)
    )
    try:
        assert shown.end() == 0
    finally:
        os.close(shown.primary)
    expected = [f"message {n}|half line|on stdout" for n in range(3)]
    assert "|".join(shown.lines) == "|".join(expected)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (ToolUse("1", "read_file", title="Read a.py"), "Read a.py"),
        (ToolUse("1", "read_file", input={"file_path": "/w/a.py"}), "read_file a.py"),
        (ToolUse("1", "read_file", title="read_file", paths=("/w/b",)), "read_file b"),
        (ToolUse("1", "grep", input={"pattern": "x", "other": 1}), "grep x"),
        (ToolUse("1", "think"), "think"),
    ],
)
def test_a_call_without_a_title_is_described_by_its_arguments(call: ToolUse, expected: str) -> None:
    assert describe_call(call, "/w") == expected
