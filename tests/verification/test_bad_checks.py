"""Checks and machines that misbehave: a clear reason, nothing left, and never ``verified``."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from support.scripted_agent import child_pids, scripted_options
from support.verified_runs import FIX, PLAIN, git, make_project, orders, verified_run

import corral
from corral._system.git import folder_store
from corral._system.git.folder_store import StoreLimits
from corral.errors import ConfigError
from corral.events import Done, Event
from corral.result import Result


@pytest.fixture
def project(tmp_path: Path) -> Path:
    make_project(tmp_path / "project")
    return tmp_path / "project"


def assert_gap(result: Result, text: str) -> None:
    assert result.ok, result.error
    assert result.verdict == "gaps"
    assert any(text in gap for gap in result.gaps), result.gaps
    assert child_pids() == []


@pytest.mark.parametrize(
    "command",
    ["sleep 300", "sleep 300 & wait", "trap '' TERM; while :; do sleep 300; done"],
    ids=["hangs", "in the background", "ignores TERM"],
)
async def test_a_check_that_hangs_is_ended_with_all_that_it_started(
    project: Path, command: str
) -> None:
    result = await verified_run(project, FIX, verify=command, verify_timeout=1)
    assert_gap(result, "did not end within 1s")


async def test_a_function_that_hangs_is_not_waited_for(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral._verification.verification.GRACE", 0.1)

    async def check(_: Result) -> None:
        await asyncio.sleep(300)

    assert_gap(await verified_run(project, FIX, verify=check, verify_timeout=1), "did not end")


@pytest.mark.deep
async def test_of_a_gigabyte_of_output_the_hash_and_the_end_are_kept(project: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    command = f"head -c 1000000000 /dev/zero; echo the end; {PLAIN}"
    result = await verified_run(project, FIX, verify=command)
    assert result.verdict == "verified"
    assert result.receipt is not None
    (evidence,) = result.receipt.evidence
    assert evidence.output_bytes == 1_000_000_008
    assert evidence.output.endswith("the end")
    assert len(evidence.output) <= 4_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def raises(_: Result) -> None:
    raise ZeroDivisionError("division by zero")


def refuses(result: Result) -> None:
    assert result.text == "", "there is an answer"


def exits(_: Result) -> None:
    raise SystemExit(0)


def returns_a_number(_result: Result[Any]) -> Any:
    return 3


def agrees(_result: Result[Any]) -> bool:
    return True


@pytest.mark.parametrize(
    ("check", "expected_text"),
    [
        (raises, "could not be made: ZeroDivisionError: division by zero"),
        (refuses, "did not pass: AssertionError: there is an answer"),
        (exits, "could not be made"),
        (returns_a_number, "returned a int"),
        (corral.command_succeeds(["no-such-program-anywhere"]), "could not be made"),
        ("kill -9 $$", "was killed by signal 9"),
        ("exit 3", "exited with 3"),
    ],
    ids=["raises", "asserts", "exits", "odd value", "not installed", "killed", "fails"],
)
async def test_a_check_that_fails_in_any_way_is_a_gap(
    project: Path, check: object, expected_text: str
) -> None:
    assert_gap(await verified_run(project, FIX, verify=check), expected_text)


@pytest.mark.parametrize(
    "verify", [3, [None], int, [""], ["a\0b"], corral.Result], ids=["number", "none", "type",
               "empty", "NUL", "class"]
)  # fmt: skip
async def test_what_is_no_check_is_refused_before_anything_starts(
    project: Path, verify: object
) -> None:
    with pytest.raises(ConfigError):
        await verified_run(project, "touch started", verify=verify)
    assert not (project / "started").exists()


async def test_without_git_nothing_starts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match="git"):
        await verified_run(project, "touch started", verify=PLAIN)


async def test_a_folder_that_is_too_large_is_a_gap(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_store, "LIMITS", StoreLimits(files=2))
    result = await verified_run(project, FIX, verify=[PLAIN, agrees])
    assert_gap(result, "the files before the run could not be stored")
    assert result.receipt is not None
    assert [each.outcome for each in result.receipt.evidence] == ["missing", "passed"]


async def test_a_repository_that_the_run_removes_is_a_gap(project: Path) -> None:
    result = await verified_run(project, f"{FIX}\nrm -rf .git", verify=PLAIN)
    assert_gap(result, "could not be")


@pytest.mark.filterwarnings("ignore")
async def test_a_home_that_cannot_be_written(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_HOME", "/dev/null/home")
    honest = await verified_run(project, FIX, verify=PLAIN)
    assert honest.verdict == "verified", honest.gaps
    git(project, "checkout", "-q", ".")
    assert_gap(await verified_run(project, "touch x", verify=PLAIN), "exited with 1")


async def test_a_run_that_is_cancelled_while_it_is_verified_is_interrupted(
    project: Path, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    events: list[Event] = []
    options = scripted_options(project, verify=f"touch {started}; sleep 300")
    async with corral.session("gemini-cli", **options) as session:
        turn = session.prompt(orders(FIX))

        async def cancel() -> None:
            while not started.exists():
                await asyncio.sleep(0.02)
            turn.cancel()

        task = asyncio.create_task(cancel())
        async for event in turn:
            events.append(event)
        await task
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.status, done.receipt) == ("interrupted", None)
    assert [event.seq for event in events] == [*range(1, len(events) + 1)]
    assert child_pids() == []


async def test_nothing_of_a_run_is_kept_if_it_is_not_to_be_kept(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("CORRAL_HOME", str(home))
    result = await verified_run(project, FIX, verify=PLAIN, keep=False)
    assert result.verdict == "verified"
    assert [*(home / "sessions").iterdir()] == []
    assert [*(home / "checks").iterdir()] == []
    assert os.listdir(project / ".git" / "objects" / "info") == []
