"""A batch that is killed at any moment continues; no result is lost, repeated or incomplete."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.batches import results_of
from support.durable_processes import ForkServer

COUNT = 7
SHARES = 48
"""More than the number of moments, so that each moment is used."""
SAMPLE = (2, 14, 29, 47)


def run(
    fork_server: ForkServer,
    folder: Path,
    at: int = 0,
    *,
    count: int = COUNT,
    in_order: bool = False,
    poison: str = "",
) -> bool:
    """Returns whether the batch ended; otherwise it was killed."""
    order = {"place": str(folder), "count": count, "at": at, "in_order": in_order}
    pid = fork_server.request(
        do="batch",
        batch={**order, "poisoned": poison},
        env={key: os.environ[key] for key in ("HOME", "CORRAL_HOME")},
        out=str(folder / "out"),
    )
    code = fork_server.wait(pid, 110)
    assert code in (0, -signal.SIGKILL), (folder / "out").read_text()
    return code == 0


def report(folder: Path) -> str:
    return (folder / "report").read_text()


def done(folder: Path) -> Counter[str]:
    """Task → how often it was started."""
    return Counter((folder / "log").read_text().split())


@pytest.fixture(scope="module")
def moments(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The number of moments of a batch that is not killed."""
    folder = tmp_path_factory.mktemp("not-killed")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "CORRAL_HOME"):
            patch.setenv(name, str(folder / name))
        assert run(fork_server, folder)
    found = int((folder / "moments").read_text())
    assert found <= SHARES, "some moments would not be used"
    return found


def killed(fork_server: ForkServer, workspace: Path, moment: int, in_order: bool) -> Path:
    """The folder of a batch that was killed at this moment, or at an earlier one: a batch has fewer
    moments if several results are written at once."""
    for at in range(moment, 0, -1):
        folder = workspace / str(at)
        folder.mkdir()
        if not run(fork_server, folder, at, in_order=in_order):
            return folder
    raise AssertionError("the batch was not killed")


def name_of(share: int) -> Any:
    mark = () if share in SAMPLE else (pytest.mark.deep,)
    return pytest.param(share, marks=mark, id=str(share))


@pytest.mark.parametrize("share", [name_of(each) for each in range(SHARES)])
def test_a_batch_killed_at_any_moment_is_continued(
    fork_server: ForkServer, workspace: Path, moments: int, share: int
) -> None:
    in_order = share % 2 == 1
    folder = killed(fork_server, workspace, 1 + share * (moments - 1) // (SHARES - 1), in_order)
    where = (folder / "moment").read_text()
    assert run(fork_server, folder, in_order=in_order), where
    assert report(folder) == f"{COUNT} 0 []", where
    found = results_of(folder / "r.jsonl")
    assert set(found) == {f"t{n}" for n in range(COUNT)}, where
    if in_order:
        assert list(found) == [f"t{n}" for n in range(COUNT)]
    # At most three tasks were running; tasks that had ended are not started again.
    second = {task: times - 1 for task, times in done(folder).items() if times > 1}
    assert sum(second.values()) <= 3, (where, second)


def test_a_batch_killed_many_times_is_finished(fork_server: ForkServer, workspace: Path) -> None:
    at = 12
    while not run(fork_server, workspace, at, count=12):
        at += 9
        assert at < 100, "it never ends"
    assert report(workspace) == "12 0 []"
    assert len(results_of(workspace / "r.jsonl")) == 12


def test_a_task_that_kills_its_process_fails_and_the_others_succeed(
    fork_server: ForkServer, workspace: Path
) -> None:
    kills = 0
    while not run(fork_server, workspace, poison="t2"):
        kills += 1
        assert kills < 8, "the task never fails"
    assert report(workspace) == "6 1 ['dead_letter']"
    found = results_of(workspace / "r.jsonl")
    assert [task for task, line in found.items() if line["status"] == "failed"] == ["t2"]
    assert "died 5 times" in found["t2"]["error"]["message"]
    assert done(workspace)["t2"] == 5
    assert len(found) == COUNT
