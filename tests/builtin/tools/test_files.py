"""The ``.git`` folder can be read but not written: a hook there would be a command."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builtin_tools import call_error, call_ok

from corral._builtin.tools.workspace import Workspace

HOOK = ".git/hooks/pre-commit"


@pytest.mark.parametrize("path", [HOOK, "sub/.git/config", "link/hooks/pre-commit"])
async def test_no_file_tool_writes_into_git(workspace: Path, path: str) -> None:
    (workspace / ".git" / "hooks").mkdir(parents=True)
    (workspace / "sub" / ".git").mkdir(parents=True)
    (workspace / "link").symlink_to(".git")
    here = Workspace(workspace)
    output = await call_error(here, "write_file", file_path=path, content="#!/bin/sh\n")
    assert "belongs to git" in output
    patch = f"*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch"
    assert "belongs to git" in await call_error(here, "apply_patch", patch=patch)
    assert not (workspace / path).exists()


async def test_files_of_git_can_be_read(workspace: Path) -> None:
    (workspace / ".git").mkdir()
    (workspace / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    assert "main" in await call_ok(Workspace(workspace), "read_file", file_path=".git/HEAD")


async def test_a_name_that_only_starts_like_git_is_an_ordinary_file(workspace: Path) -> None:
    await call_ok(Workspace(workspace), "write_file", file_path=".gitignore", content="x\n")
    assert (workspace / ".gitignore").read_text() == "x\n"


@pytest.mark.parametrize(
    "path",
    [".claude/settings.json", "sub/.vscode/tasks.json", "corral.toml", ".GIT/config", "way/x"],
)
async def test_no_protected_name_is_written_unless_the_policy_is_unlimited(
    workspace: Path, path: str
) -> None:
    (workspace / "way").symlink_to(".claude")
    here = Workspace(workspace, protects=True)
    output = await call_error(here, "write_file", file_path=path, content="{}")
    assert "is protected" in output
    assert not (workspace / path).exists()
    await call_ok(Workspace(workspace), "write_file", file_path=path, content="{}")
    assert (workspace / path).exists()
