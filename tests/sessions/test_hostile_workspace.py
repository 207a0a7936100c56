"""Runs and batches in a folder whose git files are traps, and in one with odd names."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.hostile_git import Traps, git, make_repository
from support.scripted_agent import scripted_options
from support.stream_checks import check_stream

import corral
from corral.values import path_from_printable


@pytest.fixture
def traps(tmp_path: Path) -> Traps:
    return Traps(tmp_path / "traps")


@pytest.fixture
def embedded(traps: Traps, tmp_path: Path) -> Path:
    folder = tmp_path / "embedded"
    folder.mkdir()
    (folder / "work").write_text("work\n")
    traps.embed(folder)
    return folder


def sabotage(embedded: Path, hostile: Path) -> str:
    """Orders for the scripted agent: an embedded repository, a hostile ``.git`` and a name that
    is not UTF-8."""
    copy = f"cp -r {shlex.quote(str(embedded))} sub"
    replace = f"rm -rf .git; cp -r {shlex.quote(str(hostile))} .git"
    odd = "echo x > \"$(printf 'caf\\351')\"; echo '* filter=evil' > .gitattributes"
    return f"init\nsh {copy}; {odd}; {replace}\ntext the answer\nresult"


@pytest.fixture
def hostile(traps: Traps, tmp_path: Path) -> Path:
    """A git folder full of traps."""
    folder = make_repository(tmp_path / "hostile")
    traps.plant(folder / ".git")
    return folder / ".git"


async def test_turns_in_a_folder_that_the_agent_sabotages(
    workspace: Path, traps: Traps, embedded: Path, hostile: Path
) -> None:
    make_repository(workspace)
    orders = sabotage(embedded, hostile)
    async with corral.session("gemini-cli", **scripted_options(workspace)) as session:
        events = [event async for event in session.prompt(orders)]
        check_stream(events)
        result = corral.result_from_events(events)
        repeated = "init\nsh echo more >> sub/work; touch file\ntext more\nresult"
        second = corral.result_from_events([event async for event in session.prompt(repeated)])
    assert (result.status, result.text) == ("success", "the answer")
    paths = {os.path.relpath(path_from_printable(each.path), workspace) for each in result.files}
    assert paths == {".gitattributes", "sub/work", "caf\udce9"}
    assert [os.path.relpath(each.path, workspace) for each in second.files] == ["sub/work"]
    assert traps.ran == []


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.deep_but_first
async def test_batches_with_worktrees_keep_embedded_repositories_and_odd_names(
    workspace: Path, traps: Traps, embedded: Path, hostile: Path, durable: bool
) -> None:
    make_repository(workspace)
    traps.plant(workspace / ".git")
    options: dict[str, Any] = {**scripted_options(workspace)}
    tasks = [
        {"id": "good", "orders": sabotage(embedded, hostile)},
        {"id": "bad", "orders": "init\nsh mkdir .GIT; echo x > .GIT/x\ntext done\nresult"},
    ]
    batch: Callable[..., corral.Batch] = corral.batch
    report = await batch(
        *(tasks, "{{orders}}"),
        agent="gemini-cli",
        name="b",
        worktree=True,
        patch=True,
        durable=durable,
        attempts=2,
        **options,
    )
    results = {each.id: each for each in report.results}
    assert results["good"].ok, results["good"]
    assert set(results["good"].files) == {".gitattributes", "sub/work", r'"caf\351"'}
    assert '"b/caf\\351"' in results["good"].patch
    failure = results["bad"].error
    assert failure is not None
    assert ".GIT/x" in failure.message
    left = failure.message.rpartition(" ")[2]
    assert (Path(left) / ".GIT" / "x").read_text() == "x\n"
    assert traps.ran == []
    (workspace / ".git" / "config").write_text("[core]\n\tbare = false\n")
    assert git(workspace, "show", "corral/b/good:sub/work") == "work"
