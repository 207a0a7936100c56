"""What is hidden cannot be read in the run, whatever else of the machine it shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.sandbox import needs_sandbox
from support.scripted_agent import scripted_options

from corral import Policy
from corral._sessions.prepare import prepare
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.sandbox import command_sandbox
from corral._system.process.command import run_command
from corral._system.process.process import ProcessSpec
from corral.errors import ConfigError

pytestmark = needs_sandbox


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    folder = tmp_path / "tools" / "secret"
    folder.mkdir(parents=True)
    (folder / "canary.txt").write_text("canary")
    return folder


def prepared(workspace: Path, **options: object) -> PreparedRun:
    usual: dict[str, object] = {**scripted_options(workspace), "policy": "all"}
    return prepare("gemini-cli", {**usual, **options})


async def read_inside(run: PreparedRun, path: Path) -> str:
    argv = ["/bin/sh", "-c", f"cat {path}; ls -d {path.parent}/*; true"]
    env = {"PATH": os.environ["PATH"]}
    spec = ProcessSpec(argv, cwd=run.cwd, env=env, sandbox=command_sandbox(run))
    done = await run_command(spec, 30.0)
    return done.stdout.decode()


async def test_a_hidden_part_of_a_shown_folder_is_empty(
    workspace: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = secret.parent / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    shown = prepared(workspace, sandbox="require")
    assert "canary" in await read_inside(shown, secret / "canary.txt")
    hiding = prepared(workspace, hidden=[secret])
    assert (hiding.sandbox is not None, hiding.sandbox_reason) == (True, "it hides folders")
    assert "canary" not in await read_inside(hiding, secret / "canary.txt")


async def test_a_link_in_the_workspace_leads_to_nothing(workspace: Path, secret: Path) -> None:
    (workspace / "link").symlink_to(secret)
    run = prepared(workspace, hidden=[secret])
    assert "canary" not in await read_inside(run, workspace / "link" / "canary.txt")


@pytest.mark.parametrize("mode", ["off", "agent"])
def test_a_run_without_the_sandbox_is_refused(workspace: Path, secret: Path, mode: str) -> None:
    with pytest.raises(ConfigError, match=f"hidden folders need corral's sandbox.*{mode}"):
        prepared(workspace, hidden=[secret], sandbox=mode)


def test_a_person_cannot_be_kept_from_reading(workspace: Path, secret: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be started in one"):
        prepare("manual", {"cwd": workspace, "hidden": [secret]})


def test_what_the_agent_may_read_is_not_hidden(
    workspace: Path, secret: Path, tmp_path: Path
) -> None:
    (workspace / "inside").mkdir()
    (tmp_path / "link").symlink_to(workspace)
    with pytest.raises(ConfigError, match="does not exist"):
        prepared(workspace, hidden=[tmp_path / "none"])
    with pytest.raises(ConfigError, match="does not exist"):
        prepared(workspace, hidden=[" "])
    for inside in ("inside", workspace / "inside", tmp_path / "link" / "inside", workspace):
        with pytest.raises(ConfigError, match="in the workspace, which the agent may read"):
            prepared(workspace, hidden=[inside])
    with pytest.raises(ConfigError, match="contains the workspace"):
        prepared(workspace, hidden=[workspace.parent])
    with pytest.raises(ConfigError, match="in a folder of include_directories"):
        prepared(workspace, hidden=[secret], include_directories=[secret.parent])
    policy = Policy(write="allow", writable=(str(secret.parent),))
    with pytest.raises(ConfigError, match="in a writable folder of the policy"):
        prepared(workspace, hidden=[secret], policy=policy)
