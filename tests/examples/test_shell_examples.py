"""The shell and pipeline examples run with a scripted model."""

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
from support.pipeline_command import EXAMPLES, corral
from support.real_agents import KEY
from support.repositories import git
from support.sandbox import needs_sandbox

from corral import pipelines, workflows
from corral._sessions import store
from corral._workflows import definition
from corral.events import Done, Event, Init, Text, Vendor
from corral.testing import ModelServer, Request, Turn, call, say


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


@pytest.mark.deep
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


@pytest.mark.deep
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


@pytest.mark.deep
def test_many_files_are_migrated_and_become_one_pull_request(
    workspace: Path, model_server: ModelServer, tmp_path: Path
) -> None:
    refused: list[str] = []

    def migrate(request: Request) -> Turn:
        name = re.findall(r"Migrate (\w+\.txt)", "\n".join(request.texts))[0]
        if name == "b.txt" and not refused:
            refused.append(name)
            return Turn(status=400)
        if request.tool_results:
            return say("Migrated.")
        return call("write_file", file_path=name, content="new\n")

    git(workspace, "init", "-q", "-b", "main")
    for name in ("a.txt", "b.txt"):
        (workspace / name).write_text("old\n")
    (workspace / "migrate.md").write_text("Migrate {{path}}")
    git(workspace, "add", ".")
    git(workspace, "commit", "-q", "-m", "first")
    origin = tmp_path / "origin.git"
    git(workspace, "init", "-q", "--bare", str(origin))
    git(workspace, "remote", "add", "origin", str(origin))
    programs = tmp_path / "programs"
    programs.mkdir()
    asked = tmp_path / "gh.txt"
    (programs / "gh").write_text(f'#!/bin/sh\necho "$@" >> {asked}\ntest "$2" = create\n')
    (programs / "gh").chmod(0o755)
    lane = model_server.lane("migrate-files", migrate)
    path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    env = {"GOOGLE_GEMINI_BASE_URL": lane.url, "GEMINI_API_KEY": KEY, "PATH": os.pathsep.join(path)}
    for commits in ("2", "3"):  # what failed in the first night is repeated in the second
        done = subprocess.run(
            [
                *("sh", str(EXAMPLES / "migrate_files.sh"), "*.txt", "migrate.md", "grep . *.txt"),
                *("--model", "gemini:gemini-2.5-flash"),
            ],
            cwd=workspace,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=110,
        )
        assert done.returncode == 0, done.stderr
        assert git(origin, "rev-list", "--count", "migration") == commits
    assert git(origin, "show", "migration:a.txt") == git(origin, "show", "migration:b.txt") == "new"
    asks = ["pr view", "pr create --fill --title Migrate *.txt"]
    assert asked.read_text().splitlines() == asks * 2


def worker(request: Request) -> Turn:
    """A model that plans, then writes the file, then the review, each in its own conversation."""
    asked = "\n".join(request.texts)
    if "Make a short plan" in asked:
        return say("First the flag, then its test.")
    name = "flag.txt" if "Carry out" in asked else "REVIEW.md"
    if request.tool_results:
        return say(f"{name} is written.")
    return call("write_file", file_path=name, content=f"{name}\n")


@pytest.mark.deep
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
    refused = corral("runs", "answer", "last", "N", cwd=workspace)
    assert refused.returncode == 0, refused.stderr
    assert not (workspace / "flag.txt").exists()  # nothing works until it is resumed
    resumed = corral("runs", "resume", "last", cwd=workspace, env=env)
    assert resumed.returncode == 10, resumed.stderr
    assert (workspace / "flag.txt").exists()
    calls = len(lane.requests)
    corral("runs", "answer", "approve", "Y", cwd=workspace)  # the beginning of its id
    done = corral("runs", "resume", "last", cwd=workspace, env=env)
    assert done.returncode == 0, done.stderr
    assert len(lane.requests) == calls == 1 + 2 * 4  # a plan; twice a file and a review
    shown = json.loads(corral("runs", "show", "last", "--json", cwd=workspace).stdout)
    assert shown["run"]["state"] == "success"
    assert shown["content"]["completed"].count("implement") == 2


def test_the_same_work_in_python(
    workspace: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = model_server.lane("approve-later-python", worker)
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", lane.url)
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    file = EXAMPLES / "approve_later.py"
    result = workflows.run_sync(
        definition.load_text(str(file), file.read_text("utf-8")),
        args={"goal": "Add a flag", "agent": "gemini:gemini-2.5-flash"},
        policy="edits",
        cwd=workspace,
        durable=False,
        interviewer=pipelines.Queued(["no", "yes"]),
    )
    assert result.output == "REVIEW.md is written.", result.reason
    assert len(lane.requests) == 1 + 2 * 4


@needs_sandbox
@pytest.mark.deep
def test_converge_loops_until_the_scenarios_are_satisfied(workspace: Path, tmp_path: Path) -> None:
    held_out = tmp_path / "held-out"
    held_out.mkdir()
    for name in ("one", "two"):
        text = f'class = "files"\ncommand = "echo CANARY; test -f {name}"\n'
        (held_out / f"{name}.toml").write_text(text)
    script = [
        *(call("shell", command="touch one"), say("built")),
        *(call("shell", command="rm one"), say("worse")),
        *(call("shell", command="touch two"), say("fixed")),
    ]
    with ModelServer(script) as server:
        agent = ("--agent", "gemini:gemini-2.5-flash", "--approve", "all", "--goal", "Write it")
        words = ("pipeline", "run", str(EXAMPLES / "converge.dot"), *agent)
        env = {**server.env, "HELD_OUT": str(held_out)}
        done = corral(*words, cwd=workspace, env=env)
        prompts = [request.last_text for request in server.requests[::2]]
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in workspace.iterdir() if path.is_file()) == ["one", "two"]
    assert len(prompts) == 3
    assert "1 of 2 held-out scenarios are satisfied" in prompts[1]
    assert "0 of 2 held-out scenarios are satisfied" in prompts[2]
    assert "The files were put back to the best state" in prompts[2]
    assert "CANARY" not in "".join(prompts) + done.stdout + done.stderr
