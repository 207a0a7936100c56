"""Every verb for every kind of run, by command and in Python."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import workflow_files
from support.command_in_process import run_in_process
from support.merge_queues import add_branch, make_repository
from support.scripted_agent import PROGRAM

import corral
from corral import merge_queue, pipelines, review, runs
from corral._cli.runs import COMMANDS
from corral._cli.runs.go_on import PRINTED
from corral._runs.kinds import KINDS
from corral._runs.run_record import Run
from corral.errors import ConfigError, CorralError

pytestmark = [pytest.mark.whole_program, pytest.mark.deep]

AGENT = """#!/bin/sh
cat > /dev/null
test "$1" = --version && exec {python} {program} --version
test -f {fixed} || {{ printf 'init\nresult error\nexit 173\n' | {python} {program}; exit $?; }}
printf 'init\\ntext {{"summary": "", "findings": []}}\\nresult\\n' | {python} {program}
"""
GRAPH = """digraph work {{
    start [shape=Mdiamond]
    first [shape=parallelogram, tool_command="echo first >> {log}"]
    second [shape=parallelogram, tool_command="test -f {fixed}"]
    done [shape=Msquare]
    start -> first -> second -> done
}}"""
WORKFLOW = """
@corral.workflow
async def work(flow: Flow) -> str:
    await flow.command("echo first >> {log}", name="first")
    await flow.command("test -f {fixed}", name="second", check=True)
    return "done"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in which a run of any kind fails until the file ``fixed`` exists beside it."""
    program = tmp_path / "gemini"
    words = {"python": sys.executable, "program": PROGRAM, "fixed": tmp_path / "fixed"}
    program.write_text(AGENT.format(**words))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GEMINI_API_KEY", "scripted-key-0123456789")
    repository = make_repository(tmp_path / "project")
    monkeypatch.chdir(repository)
    return repository


def session(place: Path) -> None:
    fixed = place.parent / "fixed"
    fixed.touch()
    first = corral.run_sync("gemini-cli", "work", cwd=place)
    fixed.unlink()
    runs.resume_sync(first.resume_token or "", "more")


def pipeline(place: Path) -> None:
    text = GRAPH.format(log=place.parent / "log", fixed=place.parent / "fixed")
    pipelines.run_sync(text, cwd=place)


def workflow(place: Path) -> None:
    text = WORKFLOW.format(log=place.parent / "log", fixed=place.parent / "fixed")
    workflow_files.run(place, text, durable=True)


def batch(place: Path) -> None:
    corral.batch_sync(["a", "b"], "{{task}}", agent="gemini-cli", name="night", attempts=1)


def comparison(place: Path) -> None:
    corral.compare_sync("work", ["gemini-cli"], name="night", attempts=1)


def reviewed(place: Path) -> None:
    (place / "list").write_text("one\n")
    review.run_sync("HEAD", agents=["gemini-cli"])


def merge(place: Path) -> None:
    add_branch(place, "change", {"ids/change": "change\n"})
    gate = f"! test -f ids/change || test -f {place.parent / 'fixed'}"
    merge_queue.run_sync(["change"], into="main", gates=[gate], rounds=0)


STARTED: dict[str, Callable[[Path], None]] = {
    "session": session,
    "pipeline": pipeline,
    "workflow": workflow,
    "batch": batch,
    "comparison": comparison,
    "review": reviewed,
    "merge": merge,
}
FORKED = {
    "pipeline": "fork last --from second",
    "workflow": "fork last",
}
REFUSED = {
    "answer last --allow": "nothing waits for an answer|is not waiting|is not running",
    "cancel last": "has already ended",
    "steer last faster": "is not running",
    "budget last +1.00": "has no budget|there is no budget",
}


def listed(kind: str) -> list[Run]:
    return [run for run in runs.list_sync() if run.kind == kind]


def only(kind: str) -> Run:
    (run,) = listed(kind)
    return run


def test_each_kind_registers_what_the_verbs_do() -> None:
    assert PRINTED.keys() == KINDS.keys() == STARTED.keys()
    for verb in ("answer", "cancel", "steer", "budget", "resume", "fork"):
        assert verb in COMMANDS
        assert callable(getattr(runs, f"{verb}_sync"))


@pytest.mark.parametrize("kind", STARTED)
def test_the_verbs_mean_the_same_for_every_kind(
    kind: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    STARTED[kind](place)
    failed = only(kind)
    assert failed.state == "failed", failed
    # What means nothing for a run that has ended is refused in one way.
    for words, reason in REFUSED.items():
        done = run_in_process(f"runs {words}", monkeypatch)
        assert done.returncode != 0, (words, done.stdout)
        assert any(each in done.stderr for each in reason.split("|")), (words, done.stderr)
        assert "Traceback" not in done.stderr
    with pytest.raises(CorralError):
        runs.answer_sync(failed.id, decision="allow_once")
    with pytest.raises(ConfigError, match="has already ended"):
        runs.cancel_sync(failed.id)
    assert runs.budget_sync(failed.id) is None
    # It goes on under its id, once by each way: while it still fails, and when it does not.
    runs.resume_sync("last")
    assert only(kind).state == "failed"
    (place.parent / "fixed").touch()
    done = run_in_process("runs resume last", monkeypatch)
    assert done.returncode == 0, done.stderr
    finished = only(kind)
    assert (finished.id, finished.state) == (failed.id, "success"), finished
    log = place.parent / "log"
    assert not log.exists() or log.read_text() == "first\n"
    done = run_in_process("runs resume last", monkeypatch)
    assert done.returncode == 0
    assert "there is nothing left to do" in done.stderr
    # A fork is another run, where a kind has places.
    forked = run_in_process(f"runs {FORKED.get(kind, 'fork last work')}", monkeypatch)
    assert (forked.returncode == 0) is (kind in FORKED), forked.stderr
    refused = (f"a {kind} cannot be forked", "gemini-cli has no option 'fork'")
    assert kind in FORKED or any(reason in forked.stderr for reason in refused)
    assert len(listed(kind)) == 1 + (kind in FORKED)


async def test_of_two_that_resume_a_run_one_is_refused(place: Path) -> None:
    await asyncio.to_thread(pipeline, place)
    (place.parent / "fixed").touch()
    name = (await runs.list(kind="pipeline"))[0].id
    ends = await asyncio.gather(*(runs.resume(name) for _ in range(2)), return_exceptions=True)
    (refused,) = [each for each in ends if isinstance(each, ConfigError)]
    assert refused.message == f"another process has just resumed {name}"
