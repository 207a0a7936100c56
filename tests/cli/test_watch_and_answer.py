"""``corral runs watch`` and ``replay``, and ``corral runs answer``: a run seen from another
terminal, and played again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.live_runs import one_pending, one_run, wait_for
from support.pipeline_command import CORRAL, GATE, corral, put
from support.scripted_acp import agent

from corral import live


@contextmanager
def started(*words: str, cwd: Path) -> Generator[subprocess.Popen[str]]:
    """A process of ``corral`` without a terminal, which is killed at the end."""
    with subprocess.Popen(
        [CORRAL, *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_line(process: subprocess.Popen[str], part: str) -> None:
    """Read its stderr up to a line with this text."""
    assert process.stderr is not None
    assert any(part in line for line in iter(process.stderr.readline, ""))


@pytest.fixture
def asking(workspace: Path) -> Iterator[subprocess.Popen[str]]:
    """A run without a terminal that waits for a permission."""
    orders = f"text before\nask execute make it\nuntil {workspace}/go\ntext after"
    options = ("--agent", agent(), "--remote-answers", "--timeout", "2m")
    with started("run", *options, orders, cwd=workspace) as process:
        yield process


@pytest.mark.deep
def test_a_run_is_listed_watched_answered_and_replayed(
    workspace: Path, asking: subprocess.Popen[str]
) -> None:
    request = wait_for(one_pending)
    listed = corral("runs", "list", cwd=workspace)
    assert "waiting" in listed.stdout
    (run,) = json.loads(corral("runs", "list", "--json", cwd=workspace).stdout)
    assert (run["state"], run["needs"]) == ("waiting", 1)
    text = corral("runs", "answer", request.run, "yes", cwd=workspace)
    assert (text.returncode, "waits for a permission" in text.stderr) == (2, True)
    with started("runs", "watch", "last", cwd=workspace) as watching:
        wait_for_line(watching, "> ask execute make it")
        answered = corral("runs", "answer", request.run[:15], "--allow", cwd=workspace)
        assert (answered.returncode, answered.stderr) == (0, "")
        second = corral("runs", "answer", "last", "--deny", cwd=workspace)
        assert second.returncode == 2
        (workspace / "go").touch()
        out, err = watching.communicate(timeout=60)
    assert watching.returncode == 0, err
    assert out == "before\n\n[b-once]after\n"
    assert "✓ make it" in err
    assert asking.communicate(timeout=60)[0] == out
    played = corral("runs", "replay", "--speed", "max", cwd=workspace)
    assert (played.returncode, played.stdout) == (0, out)
    lines = corral(
        "runs", "replay", request.run, "--speed", "1000x", "--json", cwd=workspace
    ).stdout
    assert json.loads(lines.splitlines()[-1])["type"] == "done"


@pytest.mark.deep
def test_how_to_answer_is_printed_and_a_killed_run_ends_the_watching(
    workspace: Path, asking: subprocess.Popen[str]
) -> None:
    run = wait_for(one_run)
    with started("runs", "watch", run.id, cwd=workspace) as watching:
        line = f"  answer with: corral runs answer {run.id} --allow (or --deny)"
        wait_for_line(watching, line)
        wait_for_line(asking, line)
        asking.kill()
        asking.wait(60)
        rest = watching.communicate(timeout=60)[1]
    assert watching.returncode == 1
    assert "has ended, and its turn has not" in rest
    listed = corral("runs", "list", cwd=workspace).stdout
    assert "interrupted" in listed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("runs", "watch", "last"), "there is no run yet"),
        (("runs", "watch", "abc"), "abc is not running"),
        (("runs", "replay", "abc"), "no run is called 'abc'"),
        (("runs", "replay", "--speed", "0"), "'0' is not a positive number, or max"),
        (("runs", "replay", "--speed", "fast"), "'fast' is not a positive number, or max"),
        (("runs", "answer"), "give the id of a run"),
        (("runs", "answer", "abc", "--allow"), "no run is called 'abc'"),
        (("runs", "answer", "a", "b", "c"), "Quote a text that has spaces"),
        (("runs", "answer", "a", "b", "--allow"), "only one of a decision, a text"),
        (("runs", "answer", "--token", "x", "--allow"), "not a token of corral"),
        (("runs", "answer", "--token", "x"), "the answer is missing"),
    ],
)
def test_wrong_words_are_an_error(workspace: Path, words: tuple[str, ...], message: str) -> None:
    done = corral(*words, cwd=workspace)
    assert done.returncode in (2, 4)
    assert message in done.stderr


@pytest.mark.deep
def test_a_pipeline_is_replayed_from_its_run_and_from_its_folder(workspace: Path) -> None:
    put(workspace, GATE)
    words = ("pipeline", "run", "p.dot", "--auto-approve", "--run-dir", "here", "--json")
    run = json.loads(corral(*words, cwd=workspace).stdout.splitlines()[-1])["run"]
    for name in (run, "here"):
        played = corral("runs", "replay", name, "--speed", "max", cwd=workspace)
        assert played.returncode == 0, played.stderr
        assert "✓ ship" in played.stderr


@pytest.mark.deep
def test_a_running_pipeline_is_watched_to_its_end(workspace: Path) -> None:
    graph = GATE.replace('"echo shipped"', f'"while ! test -e {workspace}/go; do sleep 0.05; done"')
    put(workspace, graph)
    with started("pipeline", "run", "p.dot", "--auto-approve", cwd=workspace) as running:
        run = wait_for(lambda: next((r for r in live.runs() if r.kind == "pipeline"), None))
        with started("runs", "watch", run.id, cwd=workspace) as watching:
            wait_for_line(watching, "● ship")
            answered = corral("runs", "answer", run.id, "--allow", cwd=workspace)
            assert f"nothing waits for an answer in the pipeline {run.id}" in answered.stderr
            (workspace / "go").touch()
            err = watching.communicate(timeout=60)[1]
        assert (watching.returncode, running.wait(60)) == (0, 0)
    assert "✓ ship" in err
