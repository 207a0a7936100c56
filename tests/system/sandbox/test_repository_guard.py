"""Repositories that a program in the sandbox makes or changes: git starts nothing there."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from support.durable_processes import wait_until
from support.hostile_git import Traps, git, make_repository
from support.sandbox import needs_sandbox

from corral._system import paths
from corral._system.process.process import Process, ProcessSpec
from corral._system.sandbox import repositories, repository_guard, sandbox
from corral._system.sandbox.box import Box, interpreter_folders
from corral._system.sandbox.repository_guard import GitNotice, RepositoryGuard
from corral._system.sandbox.sandbox import Sandbox, Support, find_support

BUBBLEWRAP = find_support()
LANDLOCK = Support(method="landlock")


@pytest.fixture
def traps(tmp_path: Path) -> Traps:
    return Traps(tmp_path / "traps")


@pytest.fixture
def project(workspace: Path, tmp_path: Path, traps: Traps) -> Path:
    """A repository with a submodule, a work tree, an embedded repository and a bare one; and a git
    folder full of traps, which is called ``kit``."""
    part = make_repository(tmp_path / "part")
    make_repository(workspace)
    git(workspace, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(part), "lib")
    git(workspace, "worktree", "add", "-q", "tree")
    make_repository(workspace / "deep/embedded")
    git(workspace, "clone", "-q", "--bare", str(part), "bare")
    git(workspace, "commit", "-q", "-m", "parts")
    kit = make_repository(tmp_path / "hostile") / ".git"
    traps.plant(kit)
    kit.rename(workspace / "kit")
    (workspace / "kit/HEAD").rename(workspace / "kit/head.txt")  # it is no repository
    return workspace


def usual_box(workspace: Path, **more: object) -> Box:
    box = Box(
        cwd=str(workspace),
        writable=(str(workspace),),
        readable=interpreter_folders(),
        guarded=(str(workspace),),
    )
    return msgspec.structs.replace(box, **more)


async def run(
    workspace: Path, script: str, support: Support = BUBBLEWRAP, **more: object
) -> list[GitNotice]:
    notices: list[GitNotice] = []
    box = usual_box(workspace, **more)
    sandbox = Sandbox(support=support, box=box, report=notices.append)
    spec = ProcessSpec(["sh", "-c", script], workspace, dict(os.environ), sandbox=sandbox)
    process = await Process.start(spec)
    async with asyncio.timeout(60):
        while await process.read():
            pass
    await process.end(0.1)
    return notices


def use_git(folders: Iterable[Path]) -> None:
    """What a user, a prompt and an editor do in a folder."""
    for folder in folders:
        for words in (["status"], ["diff"], ["log", "-1"], ["add", "--all"], ["commit", "-m", "x"]):
            name = ("-c", "user.name=t", "-c", "user.email=t@localhost")
            subprocess.run(["git", *name, *words], cwd=folder, capture_output=True, check=False)


REPLACE = """
replace() {  # a git folder by the one with traps, in every way
  cp kit/config $1/config; rm -rf $1; mv $1 $1.old; cp -r kit $1; mv -T kit-copy $1
  ln -sfn kit $1; echo 'gitdir: ../kit' > $1
}
cp -r kit kit-copy; mv kit/head.txt kit/HEAD
for name in .git lib/.git tree/.git deep/embedded/.git; do
  replace $name
  mv $(dirname $name) moved && mkdir $(dirname $name) && cp -r kit $name
done
mv deep deeper && mkdir -p deep/embedded && cp -r kit deep/embedded/.git
cp kit/config .git/modules/lib/config; cp kit/config bare/config; cp kit/hooks/* bare/hooks/
"""


@needs_sandbox
async def test_every_repository_in_the_workspace_can_only_be_read(
    project: Path, traps: Traps
) -> None:
    await run(project, REPLACE)
    parts = (project, project / "lib", project / "tree", project / "deep/embedded")
    assert [os.path.islink(part / ".git") for part in parts] == [False] * 4
    use_git((*parts, project / "bare"))
    assert traps.ran == []
    assert git(project, "status", "--short", "lib") == ""


PLANT = """
mv kit/head.txt kit/HEAD
mkdir -p a b c d e/x f g h i j
cp -r kit a/.git
cp -r kit other; ln -s ../other b/.git
cp -r kit third; echo "gitdir: ../third" > c/.git
git init -q d; cp -r kit fourth; echo ../../fourth > d/.git/commondir
git config -f kit/config core.worktree ..; cp -r kit/. e/x
git init -q f; cp kit/config f/settings; ln -sf ../settings f/.git/config
git init -q g; rm -rf g/.git/hooks; cp -r kit/hooks g/scripts; ln -s ../scripts g/.git/hooks
git init -q h; cp kit/config.worktree h/.git/; git -C h config extensions.worktreeConfig true
git init -q i; cp kit/hooks/* i/.git/hooks; chmod 111 i/.git i/.git/hooks
git init -q j; cp kit/config j/.git/config; chmod 500 j/.git
"""
PLANTED = ("a", "b", "c", "d", "e/x", "f", "g", "h", "i", "j", "kit")


@needs_sandbox
@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.deep_but_first
async def test_git_starts_nothing_in_a_repository_that_was_made(
    project: Path, traps: Traps, is_guarded: bool
) -> None:
    """Without the guard, each of them starts something."""
    folders = (str(project),) if is_guarded else ()
    notices = await run(project, PLANT, guarded=folders)
    assert {notice.code for notice in notices} == ({"git_quarantined"} if is_guarded else set())
    started: list[str] = []
    for name in PLANTED:
        use_git([project / name])
        started += [name] * bool(traps.ran)
        traps.forget()
    assert started == ([] if is_guarded else [*PLANTED])


@needs_sandbox
@pytest.mark.deep
async def test_an_ordinary_repository_stays_as_it_is(project: Path) -> None:
    script = """
    git init -q new; git clone -q . copy; git clone -q --bare . copy.git
    git -C copy config user.name Somebody; git -C copy checkout -qb 'fix#1'
    """
    assert await run(project, script) == []
    assert "Somebody" in (project / "copy/.git/config").read_text()
    assert [*project.rglob("*.quarantined-*")] == []


@needs_sandbox
async def test_settings_and_hooks_are_renamed_and_the_rest_is_kept(
    workspace: Path, traps: Traps
) -> None:
    evil = traps.program("evil")
    script = f"""
    git init -q new; git -C new config core.fsmonitor {evil}
    echo x > new/.git/hooks/pre-commit; echo x > new/file; git -C new add file
    """
    (notice,) = await run(workspace, script)
    assert notice.code == "git_quarantined"
    for words in (f"in {workspace}/new: ", f"core.fsmonitor = {evil}", "hooks/pre-commit"):
        assert words in notice.message
    (settings,) = (workspace / "new/.git").glob("config.quarantined-*")
    assert evil in settings.read_text()
    assert str(settings) in notice.message
    assert git(workspace / "new", "status", "--short") == "A  file"


@needs_sandbox
@pytest.mark.deep
async def test_the_folder_of_hooks_can_only_be_read(project: Path, traps: Traps) -> None:
    (project / ".husky").mkdir()
    (project / ".husky/pre-commit").write_text("#!/bin/sh\n")
    git(project, "config", "core.hooksPath", ".husky")
    git(project / "deep/embedded", "config", "core.hooksPath", "made-later")
    script = """
    cp kit/hooks/* .husky/; mv .husky old && cp -r kit/hooks .husky
    cp -r kit/hooks deep/embedded/made-later
    """
    (notice,) = await run(project, script)
    assert "deep/embedded: made-later/applypatch-msg" in notice.message
    use_git([project, project / "deep/embedded"])
    assert traps.ran == []


@needs_sandbox
async def test_with_an_unlimited_policy_it_is_reported(workspace: Path, traps: Traps) -> None:
    make_repository(workspace)
    git(workspace, "config", "alias.mine", "status")
    script = f"git config user.name x; git config core.fsmonitor {traps.program('evil')}"
    (notice,) = await run(workspace, script, can_change_git=True)
    assert notice.code == "git_changed"
    assert "core.fsmonitor" in notice.message
    assert "alias.mine" not in notice.message
    assert "evil" in git(workspace, "config", "core.fsmonitor")
    assert await run(workspace, "git config user.name y", can_change_git=True) == []


@needs_sandbox
async def test_a_running_program_is_checked_and_again_when_it_has_ended(
    workspace: Path, traps: Traps
) -> None:
    notices: list[GitNotice] = []
    sandbox = Sandbox(support=BUBBLEWRAP, box=usual_box(workspace), report=notices.append)
    evil = traps.program("evil")
    script = f"""
    make() {{
        git init -q $1; git -C $1 config core.fsmonitor {evil}
        mkdir -p $1/.git/hooks; echo {evil} > $1/.git/hooks/pre-commit; echo made
    }}
    make one; read line; make two; read line
    """
    spec = ProcessSpec(
        ["sh", "-c", script], workspace, dict(os.environ), keep_stdin_open=True, sandbox=sandbox
    )
    process = await Process.start(spec)
    assert await process.read() == b"made\n"
    await process.check_repositories()
    assert [f"{workspace}/one:" in each.message for each in notices] == [True]
    await process.check_repositories()
    assert len(notices) == 1
    process.write(b"go on\n")
    assert await process.read() == b"made\n"
    await process.end(0.1)
    assert [f"{workspace}/two:" in each.message for each in notices] == [False, True]
    assert not paths.git_checks().exists()


KILLED = """
import asyncio, os, sys
from pathlib import Path
from corral._system.process.process import Process, ProcessSpec
from corral._system.sandbox.box import Box, interpreter_folders
from corral._system.sandbox.sandbox import Sandbox, find_support
workspace, script = sys.argv[1:]
box = Box(cwd=workspace, writable=(workspace,), readable=interpreter_folders(),
          guarded=(workspace,))
async def main():
    sandbox = Sandbox(support=find_support(), box=box)
    spec = ProcessSpec(["sh", "-c", script], workspace, dict(os.environ), sandbox=sandbox)
    process = await Process.start(spec)
    print(process.pid, flush=True)
    await process.read()
asyncio.run(main())
"""


def test_a_hook_is_renamed_once_by_the_guards_of_several_programs(workspace: Path) -> None:
    """An agent and its MCP servers have a guard each. The name protects hooks only."""
    guards = [RepositoryGuard.begin(usual_box(workspace), has_mounts=False) for _ in range(3)]
    git(workspace, "init", "-q", ".")
    (workspace / ".git/hooks/pre-commit").write_text("x")
    (workspace / ".git/remotes").mkdir()
    (workspace / ".git/remotes/x.quarantined-1").write_text("URL: x")
    found = [[notice.message for notice in guard.finish()] for guard in guards]
    assert "hooks/pre-commit" in found[0][0]
    assert [*(workspace / ".git/hooks").glob("pre-commit.quarantined-*.quarantined-*")] == []
    assert "remotes/x.quarantined-1" in found[0][0]
    assert not (workspace / ".git/remotes/x.quarantined-1").exists()


@needs_sandbox
def test_what_a_killed_corral_left_is_checked_by_the_next_one(
    workspace: Path, traps: Traps
) -> None:
    script = f"git init -q new; git -C new config core.fsmonitor {traps.program('evil')}"
    command = [sys.executable, "-c", KILLED, str(workspace), f"{script}; touch made; sleep 100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as corral:
        assert corral.stdout is not None
        program = int(corral.stdout.readline())
        wait_until((workspace / "made").exists, "the program to make a repository")
        assert repository_guard.finish_left_behind() == []  # its owner lives
        corral.send_signal(signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{program}"), "the end of the sandbox")
    (notice,) = repository_guard.finish_left_behind()
    assert notice.code == "git_quarantined"
    git(workspace / "new", "status")
    assert traps.ran == []
    assert repository_guard.finish_left_behind() == []
    assert not paths.git_checks().exists()


@pytest.mark.skipif(sandbox.landlock_version() < 3, reason="this kernel has no Landlock")
async def test_landlock_cannot_forbid_it_but_settings_are_put_back(
    project: Path, traps: Traps
) -> None:
    before = (project / ".git/config").read_text()
    script = f"""
    git config core.fsmonitor {traps.program("evil")}; cp kit/hooks/* .git/hooks/
    rm lib/.git; cp -r kit lib/.git; mv lib/.git/head.txt lib/.git/HEAD
    """
    notices = await run(project, script, LANDLOCK)
    assert {notice.code for notice in notices} == {"git_quarantined"}
    assert (project / ".git/config").read_text() == before
    use_git([project, project / "lib"])
    assert traps.ran == []


@needs_sandbox
async def test_what_cannot_be_looked_at_is_reported(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "many").mkdir()
    monkeypatch.setattr(repositories, "MOST_ENTRIES", 20)
    (notice,) = await run(workspace, "for i in $(seq 30); do touch many/$i; done")
    assert notice.code == "git_unchecked"
    assert "there are too many files" in notice.message
    monkeypatch.setattr(repositories, "MOST_ENTRIES", 1000)
    deep = "import os\nfor _ in range(60):\n    os.mkdir('x' * 100)\n    os.chdir('x' * 100)\n"
    (workspace / "deep.py").write_text(deep)
    (notice,) = await run(workspace, f"{sys.executable} deep.py")
    assert "cannot read" in notice.message


@needs_sandbox
async def test_the_highest_repositories_are_mounted_and_the_others_checked(
    workspace: Path, traps: Traps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_guard, "MOST_MOUNTS", 1)
    for name in ("high", "low/er"):
        make_repository(workspace / name)
    before = (workspace / "low/er/.git/config").read_text()
    evil = traps.program("evil")
    script = f"for name in high low/er; do git -C $name config core.fsmonitor {evil}; done"
    (notice,) = await run(workspace, script)
    assert f"in {workspace}/low/er: " in notice.message
    assert (workspace / "low/er/.git/config").read_text() == before


async def test_a_link_that_appears_meanwhile_is_not_followed(
    workspace: Path, tmp_path: Path, traps: Traps
) -> None:
    """The program still runs when the check renames files."""
    mine = make_repository(tmp_path / "mine")
    git(mine, "config", "alias.x", "!true")
    (workspace / "new").mkdir()
    guard = RepositoryGuard.begin(usual_box(workspace), has_mounts=False)
    make_repository(workspace / "new/one")
    git(workspace / "new/one", "config", "core.fsmonitor", traps.program("evil"))
    usual = repositories.find_dangers

    def swap(part: repositories.GitPart, old: bytes | None, folders: Iterable[str]) -> list[str]:
        found = usual(part, old, folders)
        if found:
            (workspace / "new/one").rename(workspace / "old")
            (workspace / "new/one").symlink_to(mine)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repositories, "find_dangers", swap)
        (notice,) = guard.check()
    assert "Do not use git there: not renamed" in notice.message
    assert git(mine, "config", "alias.x") == "!true"
    (last,) = guard.finish()
    assert f"in {workspace}/old: " in last.message
