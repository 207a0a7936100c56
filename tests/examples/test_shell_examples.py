"""The shell and pipeline examples run with a scripted model; the table of examples is right."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.batches import CountingModel
from support.example_lines import COUNTS, code_lines
from support.pipeline_command import EXAMPLES, corral
from support.real_agents import KEY

from corral._sessions import store
from corral.events import Done, Event, Init, Text, Vendor
from corral.testing import ModelServer, Request, Turn, call, say

ROW = re.compile(
    r"\| [^|]+ \| \[[^]]+\]\(([^)]+)\)[^|]* \| (\d+) \| \[[^]]+\]\(([^)]+)\) \| (\d+) \|"
)
TABLE = ROW.findall((EXAMPLES / "README.md").read_text("utf-8"))


@pytest.mark.parametrize(("ours", "lines", "peer", "peer_lines"), TABLE)
def test_the_table_has_the_lines_of_the_example_and_of_the_peer(
    ours: str, lines: str, peer: str, peer_lines: str
) -> None:
    counted = code_lines(EXAMPLES / ours), code_lines(EXAMPLES / peer)
    assert counted == (int(lines), int(peer_lines))
    assert counted[0] < counted[1]


def test_every_example_with_a_peer_is_in_the_table() -> None:
    files = (path for path in EXAMPLES.iterdir() if path.is_file() and path.name != "README.md")
    compared = {path.name for path in files if COUNTS.search(path.read_text("utf-8"))}
    assert compared <= {ours for ours, *_ in TABLE}


def start(script: str, argument: str, cwd: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """A script of the examples, in its own process group, as in a terminal."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        ["sh", str(EXAMPLES / script), argument],
        cwd=cwd,
        env={**os.environ, **env, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def count_lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_twenty_files_become_lines_after_an_interruption(
    workspace: Path, model_server: ModelServer
) -> None:
    model = CountingModel(model_server, "files-to-jsonl")
    model.special = lambda task, _request: Turn(
        text=json.dumps({"summary": f"did {task}", "is_test": False}), delay=0.2
    )
    for number in range(1, 21):
        (workspace / f"part{number:02}.txt").write_text(f"task {number}\n")
    output = workspace / "summaries.jsonl"
    first = start("files_to_jsonl.sh", "*.txt", workspace, model.env)
    deadline = time.monotonic() + 120
    while count_lines(output) < 2 and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGINT)
    printed = first.communicate(timeout=60)[0].decode()
    assert "corral: interrupted with" in printed
    assert 2 <= count_lines(output) < 20
    second = start("files_to_jsonl.sh", "*.txt", workspace, model.env)
    printed = second.communicate(timeout=120)[0].decode()
    assert second.returncode == 0, printed
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert {each["id"]: each["output"]["summary"] for each in found} == {
        f"part{number:02}.txt": f"did {number}" for number in range(1, 21)
    }
    assert model.counts == {str(number): 1 for number in range(1, 21)}


def test_a_session_is_found_read_and_written_to_a_document(workspace: Path) -> None:
    for prompt in ("Fix the parser", "Write a poem"):
        record = store.create("an-agent", str(workspace))
        events: list[Event] = [Init(run_id=f"{record.meta.id}.1"), Vendor("prompt", prompt)]
        events += [Text(delta=f"Done: {prompt}"), Done(status="success")]
        record.append_events(events)
        record.meta.title, record.meta.updated = prompt, time.time()
        record.save()
        record.close(keep=True)
    shown = start("find_session.sh", "the PARSER", workspace, {})
    printed = shown.communicate(timeout=60)[0].decode()
    assert shown.returncode == 0, printed
    assert "> Fix the parser" in printed
    document = (workspace / "session.md").read_text()
    assert document.startswith("# Fix the parser")
    assert "Done: Fix the parser" in document


def worker(request: Request) -> Turn:
    """A model that plans, then writes the file, then the review, each in its own conversation."""
    asked = "\n".join(request.texts)
    if "Make a short plan" in asked:
        return say("First the flag, then its test.")
    name = "flag.txt" if "Carry out the plan" in asked else "REVIEW.md"
    if request.tool_results:
        return say(f"{name} is written.")
    return call("write_file", file_path=name, content=f"{name}\n")


def test_a_run_waits_for_a_decision_without_a_process_and_continues_later(
    workspace: Path, model_server: ModelServer
) -> None:
    lane = model_server.lane("approve-later", worker)
    env = {"GOOGLE_GEMINI_BASE_URL": lane.url, "GEMINI_API_KEY": KEY}
    file, goal = str(EXAMPLES / "approve_later.dot"), ("--goal", "Add a flag")
    options = ("--approve", "edits", "--model", "gemini:gemini-2.5-flash")
    waiting = corral("pipeline", "run", file, *options, *goal, cwd=workspace, env=env)
    assert waiting.returncode == 10, waiting.stderr
    for name in ("flag.txt", "REVIEW.md"):
        assert (workspace / name).read_text() == f"{name}\n"
    (workspace / "flag.txt").unlink()
    refused = corral("pipeline", "answer", "last", "N", cwd=workspace)
    assert refused.returncode == 0, refused.stderr
    assert not (workspace / "flag.txt").exists()  # nothing works until it is resumed
    resumed = corral("pipeline", "resume", "last", cwd=workspace, env=env)
    assert resumed.returncode == 10, resumed.stderr
    assert (workspace / "flag.txt").exists()
    calls = len(lane.requests)
    corral("pipeline", "answer", "approve", "Y", cwd=workspace)  # the beginning of its id
    done = corral("pipeline", "resume", "last", cwd=workspace, env=env)
    assert done.returncode == 0, done.stderr
    assert len(lane.requests) == calls == 1 + 2 * 4  # a plan; twice a file and a review
    shown = json.loads(corral("pipeline", "show", "last", "--json", cwd=workspace).stdout)
    assert shown["status"] == "success"
    assert shown["completed"].count("implement") == 2
