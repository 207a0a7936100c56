"""A merge queue whose process is killed: the next call continues, and no branch is lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.merge_queues import (
    GATE,
    add_branch,
    add_branches,
    check_result,
    make_repository,
    repairing_agent,
)
from support.repositories import git

from corral import merge_queue
from corral._merging.queue import MergeEntry, MergeQueue, QueueStore

KILLS = Path(__file__).parents[1] / "programs" / "merge_kills.py"
pytestmark = pytest.mark.whole_program


def command(repo: Path, log: Path, *branches: str) -> list[str]:
    options = [
        "--into",
        "main",
        "--gate",
        GATE,
        "--agent",
        repairing_agent(log),
        "--approve",
        "all",
    ]
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


@pytest.mark.deep
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


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Main is checked out, with a change that is not committed."""
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))
    repo = make_repository(tmp_path / "repo")
    (repo / "list").write_text("mine\n")
    return repo


def merge(repo: Path, *branches: str) -> merge_queue.MergeReport:
    return merge_queue.run_sync(branches, into="main", gates=["! test -e broken"], cwd=repo)


def commit_own(repo: Path) -> str:
    git(repo, "commit", "-qam", "mine")
    return git(repo, "rev-parse", "HEAD")


def test_a_branch_that_was_staged_when_the_process_was_killed_is_merged_again(repo: Path) -> None:
    """The user's commit makes the staged commits useless."""
    add_branch(repo, "work/a", {"a": "a"})
    assert merge(repo, "work/a").pending

    def as_killed(queue: MergeQueue) -> None:
        (entry,) = queue.entries
        entry.state, entry.staged, entry.unreported, entry.ended = "checking", False, False, None

    QueueStore.of(repo, "main").change(as_killed)
    assert merge(repo).merged == 1
    own = commit_own(repo)
    assert merge(repo).pending == ""
    assert git(repo, "show", "main:a") == "a"
    assert git(repo, "merge-base", own, "main") == own


@pytest.mark.deep
def test_a_branch_whose_change_was_in_a_staged_one_is_merged_again(repo: Path) -> None:
    """The one that was staged conflicts with the user's commit."""
    add_branch(repo, "work/a", {"a": "a", "list": "a\n"})
    add_branch(repo, "work/b", {"a": "a"})
    assert merge(repo, "work/a").pending
    report = merge(repo, "work/b")
    assert "nothing to merge" in report.entries[0].reason
    commit_own(repo)
    report = merge(repo)
    assert {entry.branch: entry.state for entry in report.entries} == {
        "work/a": "failed",
        "work/b": "merged",
    }
    assert git(repo, "show", "main:a") == "a"


def test_a_failure_that_was_stored_before_a_crash_is_reported(repo: Path) -> None:
    add_branch(repo, "work/a", {"broken": "x"})
    add_branch(repo, "work/b", {"b": "b"})

    def crash(entry: MergeEntry) -> None:
        if entry.state == "failed":
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        merge_queue.run_sync(
            ["work/a", "work/b"], into="main", gates=["! test -e broken"], cwd=repo, on_entry=crash
        )
    report = merge(repo)
    assert [(entry.branch, entry.state) for entry in report.entries] == [
        ("work/a", "failed"),
        ("work/b", "merged"),
    ]
    assert not report.ok
    assert merge(repo).entries == []


def test_a_commit_of_the_user_after_a_crash_in_the_checkout_stays(repo: Path) -> None:
    add_branch(repo, "work/a", {"a": "a"})
    tip = merge(repo, "work/a").tip
    QueueStore.of(repo, "main").change(lambda queue: setattr(queue, "updating", tip))
    own = commit_own(repo)
    assert merge(repo).pending == ""
    assert git(repo, "merge-base", own, "main") == own
    assert git(repo, "show", "main:a") == "a"


def interrupt_move(repo: Path) -> str:
    """As if the process was killed after it had written the files of the checkout. Returns the
    commit that it is moved to."""
    add_branch(repo, "work/a", {"a": "a", "b": "b"})
    tip = merge(repo, "work/a").tip
    git(repo, "checkout", "-q", "--", "list")
    QueueStore.of(repo, "main").change(lambda queue: setattr(queue, "updating", tip))
    for name in ("a", "b"):
        (repo / name).write_text(name)
    return tip


@pytest.mark.deep
def test_files_of_an_interrupted_move_are_not_in_the_way_after_a_commit_of_the_user(
    repo: Path,
) -> None:
    interrupt_move(repo)
    (repo / "list").write_text("more of mine\n")
    own = commit_own(repo)
    assert merge(repo).pending == ""
    assert git(repo, "merge-base", own, "main") == own
    assert git(repo, "show", "main:a") == "a"
    assert git(repo, "status", "--porcelain") == ""


@pytest.mark.deep
def test_what_the_user_writes_after_an_interrupted_move_stays(repo: Path) -> None:
    interrupt_move(repo)
    (repo / "a").write_text("mine")
    assert "a" in merge(repo).pending
    assert (repo / "a").read_text() == "mine"
    (repo / "a").unlink()
    assert merge(repo).pending == ""
    assert (repo / "a").read_text() == "a"


@pytest.mark.deep
def test_a_checkout_with_submodules_is_moved(repo: Path, tmp_path: Path) -> None:
    """One is on a branch, as git leaves it where it is added; one has another one inside."""
    inner, outer = make_repository(tmp_path / "inner"), make_repository(tmp_path / "outer")
    allow = ("-c", "protocol.file.allow=always")
    git(outer, *allow, "submodule", "--quiet", "add", str(inner), "inner")
    git(outer, "commit", "-qm", "inner")
    git(repo, "checkout", "-q", "--", "list")
    for source in (inner, outer):
        git(repo, *allow, "submodule", "--quiet", "add", str(source), source.name)
    git(repo, *allow, "submodule", "--quiet", "update", "--init", "--recursive")
    git(repo, "commit", "-qm", "submodules")
    add_branch(repo, "work/a", {"a": "a"})
    assert merge(repo, "work/a").pending == ""
    assert (repo / "a").read_text() == "a"
    assert git(repo, "status", "--porcelain") == ""
    (repo / "outer" / "inner" / "list").write_text("mine")
    add_branch(repo, "work/b", {"b": "b"})
    assert "outer" in merge(repo, "work/b").pending


def run_kills(folder: Path, first: int, count: int, timeout: float) -> None:
    words = [sys.executable, str(KILLS), str(folder), str(first), str(count)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
    *wrong, last = done.stdout.splitlines()
    assert (wrong, done.returncode) == ([], 0), done.stderr
    assert json.loads(last)["killed"] > count // 3


@pytest.mark.deep
def test_no_branch_is_lost_when_random_queues_are_killed(tmp_path: Path) -> None:
    run_kills(tmp_path / "kills", 19, 4, 300)


@pytest.mark.deep
@pytest.mark.timeout(7200)
def test_no_branch_of_three_hundred_random_queues_is_lost(tmp_path: Path) -> None:
    run_kills(tmp_path / "kills", 0, 300, 7000)


@pytest.mark.deep
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


@pytest.mark.deep
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


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_fifty_branches_with_conflicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))
    repo, log = make_repository(tmp_path / "repo"), tmp_path / "log"
    names = add_branches(repo, clean=35, textual=10, semantic=5)
    start = git(repo, "rev-parse", "main")
    finish(command(repo, log, "work/*"), {**os.environ}, repo, start, names)
    assert len(log.read_text().splitlines()) == 15


def test_a_branch_that_got_a_commit_after_a_kill_is_merged_with_it(repo: Path) -> None:
    add_branch(repo, "work/a", {"a": "a"})
    assert merge(repo, "work/a").pending

    def as_killed(queue: MergeQueue) -> None:
        (entry,) = queue.entries
        entry.state, entry.staged, entry.unreported, entry.ended = "checking", False, False, None

    QueueStore.of(repo, "main").change(as_killed)
    git(repo, "stash", "-q")
    git(repo, "checkout", "-q", "work/a")
    (repo / "more").write_text("more\n")
    git(repo, "add", "more")
    git(repo, "commit", "-qm", "more")
    git(repo, "checkout", "-q", "main")
    assert merge(repo, "work/a").merged
    assert git(repo, "show", "main:more") == "more"
