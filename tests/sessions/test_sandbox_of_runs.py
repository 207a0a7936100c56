"""Which runs get a sandbox, what is in it, and what the policy report says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.durable_processes import wait_until
from support.sandbox import needs_sandbox
from support.scripted_acp import agent
from support.scripted_agent import scripted_options

import corral
from corral import Policy
from corral._agents import registry
from corral._sessions import sandbox
from corral._sessions.prepare import (
    _finish_checks_left_behind,  # pyright: ignore[reportPrivateUsage]
    prepare,
)
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.sandbox import command_sandbox
from corral._system import paths
from corral._system.sandbox import repository_guard
from corral._system.sandbox.box import SandboxEndpoint, mounts
from corral._system.sandbox.repository_guard import GitNotice
from corral.errors import ConfigError, PolicyNotEnforceable, SandboxFailed
from corral.events import Error, Event
from corral.run_kwargs import RunKwargs

pytestmark = needs_sandbox

NO_NETWORK = Policy(read="allow", write="allow", shell="allow", network="deny")


def prepared(workspace: Path, agent: str = "gemini-acp", **options: object) -> PreparedRun:
    usual: dict[str, object] = {**scripted_options(workspace), "sandbox": "require"}
    return prepare(agent, {**usual, **options})


def levels(run: PreparedRun) -> dict[str, str]:
    return {row.capability: row.enforcer for row in run.compiled.report}


def test_the_report_says_what_the_operating_system_enforces(workspace: Path) -> None:
    run = prepared(workspace, policy=NO_NETWORK)
    assert levels(run)["read"] == levels(run)["write"] == "sandbox"
    assert levels(run)["shell"] == levels(run)["network"] == "sandbox"
    with pytest.raises(PolicyNotEnforceable, match="network=deny"):
        prepared(workspace, policy=NO_NETWORK, sandbox="off")


def test_a_denied_shell_stays_a_matter_of_the_agent(workspace: Path) -> None:
    run = prepared(workspace, policy=Policy.edits())
    assert levels(run)["shell"] == "native"
    assert levels(run)["write"] == "sandbox"


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
    assert levels(partial)["write"] == "sandbox"  # by Landlock, which covers writing only
    assert levels(partial)["network"] == "native"


def test_the_agents_own_sandbox_needs_an_agent_that_has_one(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="no sandbox of its own"):
        prepared(workspace, agent="corral", model="gemini:gemini-2.5-flash", sandbox="agent")


def test_corrals_own_state_is_hidden_even_in_the_workspace(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(workspace / ".corral"))
    run = prepared(workspace)
    box = command_sandbox(run)
    assert box is not None
    assert str(paths.home()) in box.box.hidden


def test_a_denied_write_makes_the_workspace_read_only(workspace: Path) -> None:
    run = prepared(workspace, policy=Policy.reads())
    found = command_sandbox(run)
    assert found is not None
    assert found.box.writable == ()
    assert str(workspace) in found.box.readable


def test_nothing_can_be_written_if_no_one_can_be_asked(workspace: Path) -> None:
    found = command_sandbox(prepared(workspace, policy=Policy()))
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
    found = command_sandbox(prepared(tree, policy=Policy.edits()))
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
    found = command_sandbox(prepared(workspace, policy=Policy.all()))
    assert found is not None
    assert not any("other" in path for path in (*found.box.readable, *found.box.writable))


def test_a_git_folder_that_is_a_link_shows_nothing(tmp_path: Path, workspace: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (workspace / ".git").symlink_to(secrets)
    found = command_sandbox(prepared(workspace, policy=Policy.edits()))
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
        ("http://127.0.0.1:8080/v1", SandboxEndpoint("127.0.0.1", 8080)),
        ("https://models.example/v1", SandboxEndpoint("models.example", 443)),
        ("http://[::1]:90/", SandboxEndpoint("::1", 90)),
    ],
)
def test_the_host_of_a_base_url_can_be_reached(text: str, expected: SandboxEndpoint) -> None:
    assert list(sandbox.urls(text)) == [expected]


def test_a_url_in_another_variable_is_no_endpoint() -> None:
    assert list(sandbox.urls("postgres://127.0.0.1:5432/x and http://x:999999")) == []


@pytest.mark.parametrize(
    ("program", "folders"),
    [
        ("/data/agents/x/node_modules/.bin/x", ["/data/agents/x/node_modules"]),
        ("/data/tool/bin/x", ["/data/tool"]),
        ("/data/tool/x", ["/data/tool"]),
        ("/data/bin/x", ["/data/bin"]),
        ("/data/x", ["/data/x"]),
        ("/home/another/.local/bin/x", ["/home/another/.local/bin"]),
        ("~/bin/x", ["~/bin"]),
        ("~/.cargo/bin/x", ["~/.cargo/bin"]),
        ("~/.config/agent.json", ["~/.config/agent.json"]),
        ("~/code/linked/bin/x", ["~/code/linked"]),
        ("~/x", ["~/x"]),
    ],
)
def test_the_folder_of_a_program_is_shown_and_nothing_beside_it(
    program: str, folders: list[str]
) -> None:
    expand = os.path.expanduser
    Path(expand("~/code/linked/.git")).mkdir(parents=True)
    for folder in ("~/bin", "~/.cargo/bin", "~/code/linked/bin"):
        Path(expand(folder)).mkdir(parents=True, exist_ok=True)
    found = sandbox.install_folders(expand(program), expand("~/projects/one"), named=True)
    assert [*found] == [expand(folder) for folder in folders]


SEARCHED = {
    # Packages and programs.
    "~/.local/bin": ["~/.local/bin", "~/.local/lib"],
    "~/.cargo/bin": ["~/.cargo/bin"],
    "~/scripts": ["~/scripts"],
    "~/.asdf/shims": ["~/.asdf/shims"],
    "~/.local/share/pnpm": ["~/.local/share/pnpm"],
    "~/.local/pipx/venvs/x/bin": ["~/.local/pipx/venvs/x"],
    "~/.local/share/uv/tools/x/bin": ["~/.local/share/uv/tools/x"],
    "~/.nvm/versions/node/v22/bin": ["~/.nvm/versions/node/v22"],
    "~/.volta/bin": ["~/.volta/bin"],
    "~/.local/share/mise/installs/go/1/bin": ["~/.local/share/mise/installs/go/1"],
    "~/project/.venv/bin": ["~/project/.venv"],
    # The packages of a folder, and nothing else of it.
    "~/node_modules/.bin": ["~/node_modules"],
    "~/code/other/node_modules/.bin": ["~/code/other/node_modules"],
    "~/.config/yarn/global/node_modules/.bin": ["~/.config/yarn/global/node_modules"],
    "~/code/other/bin": ["~/code/other/bin", "~/code/other/lib"],
    "~/projects/bin": ["~/projects/bin"],
    "~/.local/share/bin": ["~/.local/share/bin"],
    "~/.config/bin": ["~/.config/bin"],
    # Folders that contain everything.
    "~": [],
    "~/": [],
    "~/projects": [],
    "~/projects/..": [],
    "~/home-link": [],
    "~/.config": [],
    "~/.local": [],
    "~/.local/share": [],
    "~/Documents": [],
    "/": [],
    "/home": [],
    "/home/another": [],
    "/root": [],
    "/srv": [],
}


@pytest.mark.parametrize("folder", SEARCHED)
def test_of_a_folder_on_path_only_programs_are_shown(folder: str) -> None:
    expand = os.path.expanduser
    made = ("~/.local/lib", "~/code/other/lib", "~/code/other/.git", "~/projects/one")
    for name in (*made, *SEARCHED):
        if name.startswith("~/") and not name.endswith(("/..", "-link")):
            Path(expand(name)).mkdir(parents=True, exist_ok=True)
    Path(expand("~/home-link")).symlink_to(expand("~"))
    found = sandbox.install_folders(expand(folder), expand("~/projects/one"), named=False)
    assert [*found] == [expand(each) for each in SEARCHED[folder]]


@pytest.mark.parametrize("name", ["node_modules", "tools", "bin"])
@pytest.mark.parametrize("policy", [NO_NETWORK, Policy.reads()])
def test_a_link_in_the_workspace_that_is_on_path_shows_nothing(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, name: str, policy: Policy
) -> None:
    keys = Path.home() / "keys"
    (keys / ".bin").mkdir(parents=True)
    (workspace / name).symlink_to(keys)
    for folder in (workspace / name, workspace / name / ".bin"):
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    found = command_sandbox(prepared(workspace, policy=policy))
    assert found is not None
    assert str(keys) not in " ".join(mounts(found.box, os.path.expanduser("~")))


def test_a_folder_on_path_does_not_show_the_home(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path.home()
    (home / "node_modules/.bin").mkdir(parents=True)
    (home / "letter.txt").write_text("private")
    for folder in (home / "node_modules/.bin", home, home / ".config", workspace.parent):
        folder.mkdir(exist_ok=True)
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr(sys, "base_prefix", str(home))  # Python, installed with --prefix=$HOME
    found = command_sandbox(prepared(workspace))
    assert found is not None
    shown = [*map(Path, (*found.box.readable, *found.box.writable))]
    assert home / "node_modules" in shown
    hidden = (home / "letter.txt", home / ".config/x", workspace.parent / "x")
    assert [each for each in hidden if {each, *each.parents} & {*shown}] == []


PLANT = "sh git init -q new && git -C new config core.fsmonitor x"


@pytest.mark.parametrize("kind", ["stream", "acp"])
async def test_a_repository_that_would_start_programs_is_reported_in_the_turn(
    workspace: Path, kind: str
) -> None:
    options: RunKwargs = {"cwd": workspace, "strict": False}
    if kind == "stream":
        options = scripted_options(workspace)
    options |= {"sandbox": "require", "policy": NO_NETWORK}
    name = "gemini-cli" if kind == "stream" else agent()
    orders = f"init\n{PLANT}\ntext done\nresult" if kind == "stream" else f"{PLANT}\ntext done"
    events: list[Event] = []
    async with corral.session(name, **options) as session:
        await session.run(orders, on_event=events.append)
    (error,) = (event for event in events if isinstance(event, Error))
    assert error.code == "git_quarantined"
    assert f"in {workspace}/new: core.fsmonitor = x" in error.message
    assert not (workspace / "new/.git/config").exists()


async def test_what_an_agent_does_after_its_turn_is_a_warning_of_python(workspace: Path) -> None:
    options: RunKwargs = {
        "cwd": workspace,
        "sandbox": "require",
        "policy": NO_NETWORK,
        "strict": False,
    }
    later = "sh (until [ -e go ]; do sleep 0.01; done; git init -q late; echo x > late/.git/hooks/x"

    async def talk() -> None:
        async with corral.session(agent(), **options) as session:
            assert (await session.run(f"{later}; touch made) > log 2>&1 &\ntext done")).ok
            (workspace / "go").touch()
            wait_until((workspace / "made").exists, "the agent's background process")

    with pytest.warns(UserWarning, match=f"in {workspace}/late: hooks/x"):
        await talk()


async def test_a_killed_run_is_checked_when_the_next_one_is_prepared(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = GitNotice("git_quarantined", "something was renamed")
    paths.git_checks().mkdir(parents=True)
    monkeypatch.setattr(repository_guard, "finish_left_behind", lambda: [notice])
    _finish_checks_left_behind.cache_clear()
    with pytest.warns(UserWarning, match="after a run that was killed, something was renamed"):
        prepared(workspace)


def test_the_folders_of_the_user_are_guarded(tmp_path: Path, workspace: Path) -> None:
    (tmp_path / "more").mkdir()
    policy = Policy(read="allow", write="allow", shell="allow", writable=(str(tmp_path / "more"),))
    found = command_sandbox(prepared(workspace, policy=policy))
    assert found is not None
    assert found.box.guarded == (str(workspace), str(tmp_path / "more"))
    assert not found.box.can_change_git
    free = command_sandbox(prepared(workspace, policy=Policy.all()))
    assert free is not None
    assert free.box.can_change_git
    read_only = command_sandbox(prepared(workspace, policy=Policy.reads()))
    assert read_only is not None
    assert read_only.box.guarded == ()


def test_every_agent_that_calls_a_model_names_the_hosts_that_serve_it() -> None:
    agents = [agent for agent in registry.all_agents() if agent.secret_env and agent.programs]
    assert len(agents) > 8
    assert [agent.name for agent in agents if not agent.hosts] == []
