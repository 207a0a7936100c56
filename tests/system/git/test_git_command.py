"""Nothing that a repository or an agent put into a git folder runs when corral calls git, and
nothing changes what git answers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.hostile_git import Traps, git, make_repository
from support.sandbox import needs_sandbox

from corral._system.git import (
    changes,
    command,
    dangerous_settings,
    scan,
    source_repository,
)
from corral._system.git import (
    repository as repositories,
)
from corral._system.git.worktree import SharedWorktree, TaskWorktree, repository_root
from corral._system.sandbox.sandbox import find_support


@pytest.fixture
def traps(tmp_path: Path) -> Traps:
    return Traps(tmp_path / "traps")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


def test_the_traps_work(repository: Path, traps: Traps) -> None:
    traps.plant(repository / ".git")
    (repository / "file").write_text("two\n")
    for words in (("status",), ("diff",), ("add", "file"), ("checkout", "-q", "-f", "HEAD~0")):
        subprocess.run(["git", *words], cwd=repository, capture_output=True, timeout=60)
    assert {"clean", "smudge", "diff-driver"} <= set(traps.ran)
    assert any("fsmonitor" in name for name in traps.ran)
    assert any(name.startswith("hook") for name in traps.ran)


def test_the_trap_of_an_embedded_repository_works(repository: Path, traps: Traps) -> None:
    (repository / "sub").mkdir()
    (repository / "sub" / "work").write_text("w\n")
    traps.embed(repository / "sub")
    for _ in range(2):
        subprocess.run(["git", "add", "--all"], cwd=repository, capture_output=True, timeout=60)
    assert traps.ran


def sabotage(place: Path, traps: Traps) -> None:
    """What an agent with a shell does to the folder it works in."""
    (place / "file").write_text("two\n")
    (place / "sub" / "deep").mkdir(parents=True)
    (place / "sub" / "work").write_text("work\n")
    traps.embed(place / "sub")
    (place / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\nfile filter=slow\n")
    (place / ".gitmodules").write_text(
        f'[submodule "sub"]\n\tpath = sub\n\turl = ext::{traps.program("submodule")}\n'
        f"\tupdate = !{traps.program('submodule-update')}\n"
    )


WORK = {".gitattributes", ".gitmodules", "file", "sub/work"}


async def test_a_worktree_of_a_hostile_repository_runs_nothing(
    repository: Path, traps: Traps, tmp_path: Path
) -> None:
    traps.plant(repository / ".git")
    root, commit = repository_root(repository)
    tree = await TaskWorktree.make(root, commit, tmp_path / "tree")
    assert (tree.place / "file").read_text() == "one\n"
    sabotage(tree.place, traps)
    first = await tree.commit_to("corral/b/t", "ours")
    (tree.place / "sub" / "work").write_text("more\n")
    second = await tree.commit_to("corral/b/t", "ours")
    await tree.remove()
    assert traps.ran == []
    assert first is not None
    assert second is not None
    assert set(second.files) == WORK
    assert "+more" in second.patch
    (repository / ".git" / "config").write_text("[core]\n\tbare = false\n")
    assert git(repository, "show", "corral/b/t:sub/work") == "more"


async def test_a_replaced_git_folder_of_a_worktree_runs_nothing(
    repository: Path, traps: Traps, tmp_path: Path
) -> None:
    tree = await TaskWorktree.make(*repository_root(repository), tmp_path / "tree")
    (tree.place / ".git").unlink()
    git(tree.place, "init", "-q")
    traps.plant(tree.place / ".git")
    sabotage(tree.place, traps)
    change = await tree.commit_to("corral/b/t", "ours")
    assert traps.ran == []
    assert change is not None
    assert set(change.files) == WORK


@pytest.mark.parametrize("is_bare", [False, True], ids=["a folder", "a bare repository"])
def test_snapshots_merges_and_clones_of_a_hostile_repository_run_nothing(
    repository: Path, traps: Traps, tmp_path: Path, is_bare: bool
) -> None:
    named = repository
    if is_bare:
        named = tmp_path / "bare.git"
        git(tmp_path, "clone", "-q", "--bare", str(repository), str(named))
    traps.plant(named if is_bare else named / ".git")
    assert source_repository.is_remote(str(named)) is is_bare
    found = source_repository.copy_of(str(named)) if is_bare else source_repository.own(named)
    base = source_repository.find(found, None)
    assert found.advance("corral/r", base, None)
    one = SharedWorktree.make(found.root, base, base, tmp_path / "one")
    two = SharedWorktree.make(found.root, base, base, tmp_path / "two")
    if is_bare:  # our copy can be reached through the worktree
        traps.plant(found.root)
    sabotage(one.place, traps)
    one = one.take_snapshot("a").take_snapshot("b")
    (two.place / "dir" / "inner").write_text("of two\n")
    two = two.take_snapshot("c")
    assert found.advance("corral/r", one.at, base)
    joined = two.merge(one.at, "both")
    assert (joined.place / "sub" / "work").read_text() == "work\n"
    assert (joined.place / "dir" / "inner").read_text() == "of two\n"
    assert found.advance("corral/r", joined.at, one.at)
    assert found.tip("corral/r") == joined.at
    back = joined.reset_to(base)
    assert (back.place / "file").read_text() == "one\n"
    assert not (back.place / "sub").exists()
    for tree in (one, back):
        tree.remove()
    assert traps.ran == []


def test_reading_a_hostile_folder_runs_nothing(repository: Path, traps: Traps) -> None:
    before = changes.take_snapshot(repository)
    traps.plant(repository / ".git")
    sabotage(repository, traps)
    os.utime(repository / "dir" / "inner")
    found = changes.compare(before, changes.take_snapshot_after(before))
    changes.take_snapshot(repository)
    source_repository.has_changes(repository)
    assert {os.path.relpath(each.path, repository) for each in found} == WORK
    assert traps.ran == []


def _link(repository: Path, elsewhere: Path) -> None:
    (repository / ".git").rename(elsewhere)
    (repository / ".git").symlink_to(elsewhere)


def _pointer(repository: Path, elsewhere: Path) -> None:
    (repository / ".git").rename(elsewhere)
    (repository / ".git").write_text(f"gitdir: {elsewhere}\n")


def _common(repository: Path, elsewhere: Path) -> None:
    (repository / ".git").rename(elsewhere)
    (repository / ".git").mkdir()
    (repository / ".git" / "HEAD").write_text((elsewhere / "HEAD").read_text())
    (repository / ".git" / "index").write_bytes((elsewhere / "index").read_bytes())
    (repository / ".git" / "commondir").write_text(f"{elsewhere}\n")


@pytest.mark.parametrize("lead", [_link, _pointer, _common])
async def test_a_git_folder_elsewhere_is_found_and_not_obeyed(
    repository: Path, traps: Traps, tmp_path: Path, lead: Callable[[Path, Path], None]
) -> None:
    lead(repository, tmp_path / "elsewhere")
    traps.plant(tmp_path / "elsewhere")
    root, commit = repository_root(repository)
    assert root == repository
    tree = await TaskWorktree.make(root, commit, tmp_path / "tree")
    (tree.place / "new").write_text("new\n")
    change = await tree.commit_to("corral/b/t", "ours")
    assert change is not None
    assert change.files == ("new",)
    assert traps.ran == []


async def test_a_program_called_git_in_the_workspace_is_not_run(
    repository: Path, traps: Traps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "git").write_text(Path(traps.program("git")).read_text())
    (repository / "git").chmod(0o755)
    monkeypatch.chdir(repository)
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    tree = await TaskWorktree.make(*repository_root(Path()), tmp_path / "tree")
    await tree.commit_to("corral/b/t", "ours")
    assert traps.ran == []


def test_a_remote_helper_is_refused(traps: Traps, tmp_path: Path) -> None:
    for url in (f"ext::{traps.program('ext')}", "ext://x/y", "fd::3", "foo://host/path"):
        with pytest.raises(Exception, match=r"no repository|is not allowed"):
            source_repository.is_remote(url)
    place = make_repository(tmp_path / "other")
    with pytest.raises(Exception, match="not allowed"):
        source_repository.copy_of(f"ext::{traps.program('ext')}")
    assert place.exists()
    assert traps.ran == []


def test_dangerous_settings_are_named(repository: Path, traps: Traps) -> None:
    assert dangerous_settings.find(repository) == []
    traps.plant(repository / ".git")
    found = dangerous_settings.find(repository / "dir")
    names = {each.name for each in found}
    assert {
        *("core.fsmonitor", "core.hookspath", "core.sshcommand", "core.pager", "core.editor"),
        *("filter.evil.clean", "filter.evil.smudge", "filter.slow.process", "diff.external"),
        *("diff.evil.textconv", "merge.evil.driver", "gpg.program", "credential.helper"),
        *("include.path", "alias.add", "remote.origin.url", "remote.origin.uploadpack", "hook"),
    } <= names
    assert traps.ran == []
    (repository / ".git" / "config").unlink()
    os.mkfifo(repository / ".git" / "config")
    assert str(repository / ".git" / "config") in {
        each.name for each in dangerous_settings.find(repository)
    }


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ('[filter "x"]\n clean = touch owned', ["filter.x.clean"]),
        ("[core]\n fsmonitor = touch owned", ["core.fsmonitor"]),
        ("[include]\n path = other", ["include.path"]),
        ("[core]\n sshCommand = touch owned", []),
        ("[alias]\n s = !touch owned", []),
        ("[core]\n fsmonitor = false", []),
    ],
)
def test_settings_that_start_a_program_when_git_only_reads(
    tmp_path: Path, setting: str, found: list[str]
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with (tmp_path / ".git" / "config").open("a") as file:
        file.write(f"{setting}\n")
    assert [each.name for each in dangerous_settings.starts_programs(tmp_path)] == found


def test_an_object_that_was_replaced_is_read_as_it_was(repository: Path) -> None:
    """``refs/replace`` gives any object the content of another one. An agent may write there."""
    file = git(repository, "rev-parse", "HEAD:file")
    git(repository, "replace", file, git(repository, "rev-parse", "HEAD:dir/inner"))
    assert git(repository, "cat-file", "blob", file) == "inner"
    assert repositories.blobs(repository, [file], 99) == {file: b"one\n"}


def test_a_missing_object_is_not_fetched(repository: Path, traps: Traps) -> None:
    """The settings name a program that git would start for that."""
    text = f"""
[core]
    repositoryformatversion = 1
[extensions]
    partialClone = there
[remote "there"]
    promisor = true
    url = {repository}
    uploadpack = {traps.program("uploadpack", copies=False)}
"""
    (repository / ".git" / "config").write_text(text)
    words = ("cat-file", "-e", "1" * 40)
    for name, is_obeyed in (("UNUSED", True), ("GIT_NO_LAZY_FETCH", False)):
        traps.forget()
        env = {**os.environ, name: "1"}
        subprocess.run(["git", *words], cwd=repository, env=env, capture_output=True, timeout=60)
        if bool(traps.ran) is not is_obeyed:
            pytest.skip("this git does not know the variable")
    answer = command.call(repository / ".git", *words, access=command.REMOTE)
    assert answer.code != 0
    assert traps.ran == []


def test_a_name_with_a_star_is_one_file(repository: Path) -> None:
    old = git(repository, "rev-parse", "HEAD")
    for name in ("d*", "f*", "fast"):
        (repository / name).write_text("new\n")
    git(repository, "add", "--all")
    git(repository, "commit", "-q", "-m", "second")
    new = git(repository, "rev-parse", "HEAD")
    found = repositories.diff(repository, old, new, 10_000, as_text="f*").decode()
    assert [line for line in found.splitlines() if line.startswith("+++")] == ["+++ b/f*"]
    layout = scan.find_repository(repository)
    assert layout is not None
    assert repositories.index_names(layout, b"d*") == {b"d*"}


CONFIGURED = """
import sys
from pathlib import Path
from corral._system.git import command
git_dir, home = map(Path, sys.argv[1:])
for words in (("config", "--get-all", "user.name"), ("check-attr", "filter", "--", "file")):
    print(command.call(git_dir, *words, env={"HOME": str(home)}).text.strip(), end=",")
"""


@needs_sandbox
def test_git_reads_no_settings_of_the_system_and_of_the_user(
    repository: Path, tmp_path: Path
) -> None:
    """Also where its home is named. Here ``/etc`` is another one."""
    system, home = tmp_path / "etc", tmp_path / "home"
    for folder, name in ((system, "gitconfig"), (home, ".gitconfig")):
        folder.mkdir()
        (folder / name).write_text(f"[user]\n name = of {name}\n")
    (system / "gitattributes").write_text("* filter=of-the-system\n")
    machine = [find_support().program, "--dev-bind", "/", "/", "--bind", str(system), "/etc"]
    git_dir = repository / ".git"
    env = {**os.environ, "HOME": str(home)}

    def lines(*words: str) -> list[str]:
        done = subprocess.run(
            [*machine, *words], cwd=git_dir, env=env, capture_output=True, text=True, timeout=60
        )
        return done.stdout.splitlines()

    plain = ("git", f"--git-dir={git_dir}")
    assert lines(*plain, "config", "--get-all", "user.name") == ["of gitconfig", "of .gitconfig"]
    attribute = lines(*plain, "check-attr", "filter", "--", "file")
    assert attribute == ["file: filter: of-the-system"]
    program = [sys.executable, "-c", CONFIGURED, str(git_dir), str(home)]
    assert lines(*program) == [",file: filter: unspecified,"]
