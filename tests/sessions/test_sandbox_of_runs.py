"""Which runs get a sandbox, what is in it, and what the policy report says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.sandbox import needs_sandbox
from support.scripted_agent import scripted_options

from corral import Policy
from corral.agents import registry
from corral.errors import ConfigError, PolicyNotEnforceable, SandboxFailed
from corral.sessions import sandbox
from corral.sessions.prepare import prepare
from corral.sessions.prepared_run import PreparedRun
from corral.system import paths
from corral.system.sandbox.box import Endpoint, mounts

pytestmark = needs_sandbox

NO_NETWORK = Policy(read="allow", write="allow", shell="allow", network="deny")


def prepared(workspace: Path, agent: str = "gemini-acp", **options: object) -> PreparedRun:
    usual: dict[str, object] = {**scripted_options(workspace), "sandbox": "require"}
    return prepare(agent, {**usual, **options})


def levels(run: PreparedRun) -> dict[str, str]:
    return {row.capability: row.enforcement for row in run.compiled.report}


def test_the_report_says_what_the_operating_system_enforces(workspace: Path) -> None:
    run = prepared(workspace, policy=NO_NETWORK)
    assert levels(run)["read"] == levels(run)["write"] == "sandboxed"
    assert levels(run)["shell"] == levels(run)["network"] == "sandboxed"
    assert run.run.in_sandbox
    with pytest.raises(PolicyNotEnforceable, match="network=deny"):
        prepared(workspace, policy=NO_NETWORK, sandbox="off")


def test_a_denied_shell_stays_a_matter_of_the_agent(workspace: Path) -> None:
    run = prepared(workspace, policy=Policy.edits())
    assert levels(run)["shell"] == "native"
    assert levels(run)["write"] == "sandboxed"


@pytest.mark.parametrize("folder", ["/", "~", "/home/.."])
def test_a_workspace_that_contains_the_home_is_refused(workspace: Path, folder: str) -> None:
    with pytest.raises(ConfigError, match="could not hide keys"):
        prepared(workspace, cwd=os.path.expanduser(folder))


def test_a_machine_without_a_sandbox_is_an_error_before_the_start(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "tools" / "bwrap"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    with pytest.raises(SandboxFailed, match="No permissions"):
        prepared(workspace)
    partial = prepared(workspace, sandbox="auto", policy=Policy.edits())
    assert levels(partial)["write"] == "sandboxed"  # by Landlock, which covers writing only
    assert levels(partial)["network"] == "native"
    assert not partial.run.in_sandbox


def test_the_agents_own_sandbox_needs_an_agent_that_has_one(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="no sandbox of its own"):
        prepared(workspace, agent="corral", model="gemini:gemini-2.5-flash", sandbox="agent")


def test_corrals_own_state_is_hidden_even_in_the_workspace(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(workspace / ".corral"))
    run = prepared(workspace)
    box = run.command_sandbox()
    assert box is not None
    assert str(paths.home()) in box.box.hidden


def test_a_denied_write_makes_the_workspace_read_only(workspace: Path) -> None:
    run = prepared(workspace, policy=Policy.read_only())
    found = run.command_sandbox()
    assert found is not None
    assert found.box.writable == ()
    assert str(workspace) in found.box.readable


def test_nothing_can_be_written_if_no_one_can_be_asked(workspace: Path) -> None:
    found = prepared(workspace, policy=Policy()).command_sandbox()
    assert found is not None
    assert found.box.writable == ()


def git(*arguments: str) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", *identity, *arguments], check=True)


def make_repository(folder: Path) -> Path:
    git("init", "-q", str(folder))
    git("-C", str(folder), "commit", "-q", "--allow-empty", "-m", "first")
    return folder


def test_the_repository_of_a_work_tree_is_shown(tmp_path: Path) -> None:
    repository, tree = make_repository(tmp_path / "repository"), tmp_path / "tree"
    git("-C", str(repository), "worktree", "add", "-q", str(tree))
    found = prepared(tree, policy=Policy.edits()).command_sandbox()
    assert found is not None
    assert str(repository / ".git") in found.box.readable
    assert str(repository / ".git") not in found.box.writable


def test_the_repository_of_a_submodule_is_shown(tmp_path: Path) -> None:
    part, complete = make_repository(tmp_path / "part"), make_repository(tmp_path / "whole")
    allow = ("-c", "protocol.file.allow=always")
    git("-C", str(complete), *allow, "submodule", "add", "-q", str(part), "sub")
    assert [*sandbox.git_folders(str(complete / "sub"))] == [str(complete / ".git/modules/sub")]


@pytest.mark.parametrize("name", [".git", ".git/worktrees/tree", ".git/modules/sub"])
def test_a_file_that_names_the_repository_of_another_project_shows_nothing(
    tmp_path: Path, workspace: Path, name: str
) -> None:
    other = make_repository(tmp_path / "other")
    git("-C", str(other), "worktree", "add", "-q", str(tmp_path / "tree"))
    (workspace / ".git").write_text(f"gitdir: {other / name}\n")
    assert [*sandbox.git_folders(str(workspace))] == []
    found = prepared(workspace, policy=Policy.full()).command_sandbox()
    assert found is not None
    assert not any("other" in path for path in (*found.box.readable, *found.box.writable))


def test_a_git_folder_that_is_a_link_shows_nothing(tmp_path: Path, workspace: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (workspace / ".git").symlink_to(secrets)
    found = prepared(workspace, policy=Policy.edits()).command_sandbox()
    assert found is not None
    assert str(secrets) not in mounts(found.box, os.path.expanduser("~"))


def test_a_writable_folder_that_is_a_link_out_of_the_workspace_is_refused(
    tmp_path: Path, workspace: Path
) -> None:
    (tmp_path / "keys").mkdir()
    (workspace / "build").symlink_to(tmp_path / "keys")
    with pytest.raises(ConfigError, match="a link that leads out of the workspace"):
        prepared(workspace, policy=Policy(write="allow", writable=("build",)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://127.0.0.1:8080/v1", Endpoint("127.0.0.1", 8080)),
        ("https://models.example/v1", Endpoint("models.example", 443)),
        ("http://[::1]:90/", Endpoint("::1", 90)),
    ],
)
def test_the_host_of_a_base_url_can_be_reached(text: str, expected: Endpoint) -> None:
    assert list(sandbox.urls(text)) == [expected]


def test_a_url_in_another_variable_is_no_endpoint() -> None:
    assert list(sandbox.urls("postgres://127.0.0.1:5432/x and http://x:999999")) == []


@pytest.mark.parametrize(
    ("program", "folders"),
    [
        ("/data/agents/x/node_modules/.bin/x", ["/data/agents/x"]),
        ("/data/tool/bin/x", ["/data/tool"]),
        ("/data/tool/x", ["/data/tool"]),
        ("/data/bin/x", ["/data/bin"]),
        ("/home/another/.local/bin/x", ["/home/another/.local/bin"]),
        ("~/bin/x", ["~/bin"]),
        ("~/.cargo/bin/x", ["~/.cargo/bin"]),
        ("~/.local/bin", ["~/.local/bin", "~/.local/lib"]),
        ("~/project/.venv/bin", ["~/project/.venv"]),
        ("~/x", ["~/x"]),
        ("~", []),
        ("/", []),
    ],
)
def test_the_folder_of_a_program_is_shown_and_nothing_beside_it(
    program: str, folders: list[str]
) -> None:
    expand = os.path.expanduser
    for folder in ("~/.local/bin", "~/.local/lib", "~/project/.venv/bin"):
        Path(expand(folder)).mkdir(parents=True)
    found = sandbox.install_folders(expand(program))
    assert [*found] == [expand(folder) for folder in folders]


def test_every_agent_that_calls_a_model_names_the_hosts_that_serve_it() -> None:
    agents = [agent for agent in registry.all_agents() if agent.secret_env and agent.programs]
    assert len(agents) > 8
    assert [agent.name for agent in agents if not agent.hosts] == []
