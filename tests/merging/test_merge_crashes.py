"""A merge queue whose process is killed: the next call continues, and no branch is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.merge_queues import GATE, add_branches, check_result, make_repository, repairing_agent
from support.repositories import git

from corral._merging.queue import QueueStore

pytestmark = pytest.mark.whole_program


def command(repo: Path, log: Path, *branches: str) -> list[str]:
    options = ["--into", "main", "--gate", GATE, "--agent", repairing_agent(log), "--yolo"]
    return [sys.executable, "-m", "corral", "merge", *branches, *options, "--cwd", str(repo)]


def run_and_kill(words: list[str], env: dict[str, str], lines: int, pause: float) -> bool:
    """Run the command and kill it after so many lines of progress and a pause. False: it has ended
    before."""
    with subprocess.Popen(
        words, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        assert process.stderr is not None
        output = b""
        while lines:
            line = process.stderr.readline()
            output += line
            lines -= b" work/" in line
            if not line:
                assert process.wait(60) == 0, output.decode()
                return False
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
    return True


def finish(words: list[str], env: dict[str, str], repo: Path, start: str, names: list[str]) -> None:
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    check_result(repo, start, names)
    queue = QueueStore.of(repo, "main").read()
    assert queue is not None
    assert {entry.branch: entry.state for entry in queue.entries} == dict.fromkeys(names, "merged")
    assert git(repo, "for-each-ref", "refs/corral") == ""


def test_a_killed_queue_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))
    repo, log = make_repository(tmp_path / "repo"), tmp_path / "log"
    names = add_branches(repo, clean=2, textual=1, semantic=1)
    start = git(repo, "rev-parse", "main")
    add = command(repo, log, "work/*")
    go_on = command(repo, log)
    env = {**os.environ}
    # While it checks, merges, asks, and when it goes on.
    for words, lines in ((add, 1), (go_on, 2), (go_on, 4), (go_on, 5), (go_on, 3)):
        if not run_and_kill(words, env, lines, 0.05):
            break
    queue = QueueStore.of(repo, "main").read()
    assert queue is not None
    words = go_on if queue.open else add
    finish(words, env, repo, start, names)


def test_a_checkout_that_was_moved_in_part_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the process was killed after it had written some files of the checkout."""
    from corral import merge_queue

    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))
    repo = make_repository(tmp_path / "repo")
    add_branches(repo, clean=2, textual=0, semantic=0)
    git(repo, "checkout", "-q", "main")
    (repo / "list").write_text("mine")
    report = merge_queue.run_sync(["work/*"], into="main", gates=[GATE], cwd=repo)
    assert report.pending
    git(repo, "checkout", "-q", "--", "list")
    store = QueueStore.of(repo, "main")
    store.change(lambda queue: setattr(queue, "updating", report.tip))
    (repo / "files").mkdir()
    (repo / "files" / "0").write_text("0\n")
    second = merge_queue.run_sync(into="main", cwd=repo)
    assert second.pending == ""
    assert git(repo, "status", "--porcelain") == ""
    assert git(repo, "rev-parse", "HEAD") == report.tip
    assert (repo / "files" / "1").exists()


def test_a_round_that_was_interrupted_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))
    repo, log = make_repository(tmp_path / "repo"), tmp_path / "log"
    names = add_branches(repo, clean=0, textual=1, semantic=0)
    start = git(repo, "rev-parse", "main")
    words = command(repo, log, "work/*")
    for _ in range(3):  # more often than the owner is asked
        assert run_and_kill(words, {**os.environ}, 2, 0)
    finish(command(repo, log), {**os.environ}, repo, start, names)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_branches_survive_fifty_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))
    repo, log = make_repository(tmp_path / "repo"), tmp_path / "log"
    names = add_branches(repo, clean=35, textual=10, semantic=5)
    start = git(repo, "rev-parse", "main")
    add, go_on = command(repo, log, "work/*"), command(repo, log)
    chance = random.Random(7)
    env, kills = {**os.environ}, 0
    while kills < 50:
        first = QueueStore.of(repo, "main").read() is None
        lines, pause = chance.randrange(7), chance.uniform(0, 1.2)
        if run_and_kill(add if first else go_on, env, lines, pause):
            kills += 1
        else:
            # All is merged: once more with another repository.
            finish(go_on, env, repo, start, names)
            shutil.rmtree(repo)
            shutil.rmtree(tmp_path / "home")
            make_repository(repo)
            names = add_branches(repo, clean=35, textual=10, semantic=5)
            start = git(repo, "rev-parse", "main")
    queue = QueueStore.of(repo, "main").read()
    finish(add if queue is None else go_on, env, repo, start, names)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_branches_with_conflicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))
    repo, log = make_repository(tmp_path / "repo"), tmp_path / "log"
    names = add_branches(repo, clean=35, textual=10, semantic=5)
    start = git(repo, "rev-parse", "main")
    finish(command(repo, log, "work/*"), {**os.environ}, repo, start, names)
    assert len(log.read_text().splitlines()) == 15
