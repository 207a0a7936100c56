"""A merge queue: what is merged, what fails, who is asked, and what is never touched."""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.command_in_process import run_in_process
from support.merge_queues import (
    GATE,
    add_branch,
    add_branches,
    check_result,
    make_repository,
    repairing_agent,
)
from support.pipeline_command import corral as corral_command
from support.repositories import git

import corral
from corral import merge_queue, runs
from corral._merging.queue import QueueStore
from corral.errors import ConfigError, StorageFailed
from corral.merge_queue import MergeEntry, MergeReport

pytestmark = pytest.mark.whole_program


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo")


def merge(repo: Path, *branches: str, **more: Any) -> MergeReport:
    more = {"into": "main", "gates": [GATE], "cwd": repo, **more}
    return merge_queue.run_sync(branches, **more)


def states(report: MergeReport) -> dict[str, str]:
    return {entry.branch: entry.state for entry in report.entries}


def test_branches_are_merged_one_after_another_behind_the_gate(repo: Path, tmp_path: Path) -> None:
    names = add_branches(repo, clean=3, textual=2, semantic=2)
    start, log = git(repo, "rev-parse", "main"), tmp_path / "log"
    report = merge(repo, "work/*", agent=repairing_agent(log), policy="all")
    assert set(states(report).values()) == {"merged"}, report.entries
    check_result(repo, start, names)
    assert report.tip == git(repo, "rev-parse", "main")
    asked = [entry.branch for entry in report.entries if entry.rounds]
    assert asked == ["work/id-0", "work/id-1", "work/text-0", "work/text-1"]
    # The commit of a branch is by its author, with its message.
    assert git(repo, "log", "-1", "--format=%an %s", "main").startswith("t work of work/")
    assert git(repo, "for-each-ref", "refs/corral") == ""


def test_a_conflict_that_nobody_repairs_leaves_the_queue(repo: Path) -> None:
    names = add_branches(repo, clean=1, textual=1, semantic=1)
    tips = {name: git(repo, "rev-parse", name) for name in names}
    seen: list[str] = []

    def see(entry: MergeEntry) -> None:
        seen.append(entry.state)

    report = merge(repo, *names, on_entry=see)
    assert states(report) == {
        "work/clean-0": "merged",
        "work/id-0": "failed",
        "work/text-0": "failed",
    }
    by_name = {entry.branch: entry for entry in report.entries}
    assert by_name["work/text-0"].reason == (
        "conflict in list; no session made this branch (--agent names one that is asked)"
    )
    assert "the gate failed" in by_name["work/id-0"].reason
    assert "taken" in by_name["work/id-0"].output
    assert {name: git(repo, "rev-parse", name) for name in names} == tips
    assert seen[:4] == ["checking", "rebasing", "checking", "merged"]
    assert (report.ok, report.merged, report.failed) == (False, 1, 2)


@pytest.mark.parametrize(
    ("how", "reason"),
    [("nothing", "left conflict markers in list"), ("markers", "left conflict markers in list")],
)
def test_a_repair_that_leaves_markers_is_not_taken(
    repo: Path, tmp_path: Path, how: str, reason: str
) -> None:
    (name,) = add_branches(repo, clean=0, textual=1, semantic=0)
    before = git(repo, "rev-parse", name)
    agent = repairing_agent(tmp_path / "log", how)
    report = merge(repo, name, agent=agent, policy="all")
    assert reason in report.entries[0].reason
    assert git(repo, "rev-parse", name) == before
    _, _, kept = report.entries[0].reason.partition("; what it did is ")
    assert bool(kept) == (how == "markers")
    if kept:
        assert git(repo, "show", f"{kept}:more") == "more"


def test_a_branch_that_moves_while_it_is_repaired_stays_there(repo: Path, tmp_path: Path) -> None:
    """What the session did is kept."""
    (name,) = add_branches(repo, clean=0, textual=1, semantic=0)
    agent = repairing_agent(tmp_path / "log", "moves")
    report = merge(repo, name, agent=agent, policy="all", rounds=1)
    moved, _, kept = report.entries[0].reason.partition("; what its session did is ")
    assert moved.endswith("the branch was moved meanwhile")
    assert git(repo, "rev-parse", name) != git(repo, "rev-parse", kept)
    assert "text-0" in git(repo, "show", f"{kept}:list")


def test_the_session_that_made_a_branch_is_resumed_in_its_folder(
    repo: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    done = corral.batch_sync(
        [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}],
        "write list {{text}}",
        agent=repairing_agent(log),
        policy="all",
        cwd=repo,
        worktree=True,
        durable=False,
        name="nightly",
        results=tmp_path / "results",
        concurrency=1,
    )
    assert done.ok
    report = merge(repo, batch="nightly")
    assert report.ok, [entry.reason for entry in report.entries]
    assert (repo / "list").read_text() == "one\ntwo\n"
    prompts = [line.split(" ", 2) for line in log.read_text().splitlines()]
    assert [prompt for _, _, prompt in prompts[:2]] == ["write list one", "write list two"]
    # The same session, in the same folder.
    assert prompts[2][:2] == prompts[1][:2]
    assert "Your branch corral/nightly/b is to be merged into main" in prompts[2][2]
    assert not Path(prompts[1][1]).exists()


@pytest.mark.deep
def test_rounds_limit_how_often_a_session_is_asked(repo: Path, tmp_path: Path) -> None:
    (name,) = add_branches(repo, clean=0, textual=0, semantic=1)
    log = tmp_path / "log"
    gate = "! test -e ids/id-0"  # no repair helps
    report = merge(repo, name, agent=repairing_agent(log), policy="all", gates=[gate], rounds=1)
    assert "has not repaired it in 1 rounds" in report.entries[0].reason
    assert len(log.read_text().splitlines()) == 1
    report = merge(repo, name, agent=repairing_agent(log), gates=[gate], rounds=0)
    assert "its session is not asked" in report.entries[0].reason


def test_a_gate_that_hangs_has_failed(repo: Path) -> None:
    add_branch(repo, "slow", {"slow": "1"})
    gates = ["test ! -e slow || sleep 300"]
    report = merge(repo, "slow", gates=gates, gate_timeout=0.3)
    assert "did not end within 300ms" in report.entries[0].reason
    assert git(repo, "rev-parse", "main") != git(repo, "rev-parse", "slow")


def test_a_gate_that_fails_on_the_target_merges_nothing(repo: Path) -> None:
    add_branch(repo, "one", {"one": "1"})
    before = git(repo, "rev-parse", "main")
    with pytest.raises(ConfigError, match="the gate fails on main itself: `test -e no`"):
        merge(repo, "one", gates=["test -e no"])
    assert git(repo, "rev-parse", "main") == before
    assert "corral/" not in git(repo, "branch")
    assert merge(repo, gates=["true"]).merged == 1  # it stayed in the queue


def test_a_clean_checkout_of_the_target_is_moved_at_the_end(repo: Path) -> None:
    add_branch(repo, "one", {"one": "1", "list": "changed\n"})
    seen: list[tuple[str, str]] = []

    def look(entry: MergeEntry) -> None:
        assert git(repo, "status", "--porcelain") == ""
        assert not (repo / "one").exists()
        seen.append((entry.branch, entry.state))

    report = merge(repo, "one", on_entry=look)
    assert (report.pending, states(report)) == ("", {"one": "merged"})
    steps = [("one", state) for state in ("rebasing", "checking", "merged")]
    assert seen == [("main", "checking"), *steps]
    assert (repo / "one").read_text() == "1"
    assert git(repo, "status", "--porcelain", "--branch") == "## main"
    assert git(repo, "rev-parse", "HEAD") == report.tip
    assert git(repo, "for-each-ref", "--format=%(refname:short)").split() == ["main", "one"]


def test_a_checkout_with_changes_is_not_touched(repo: Path) -> None:
    add_branch(repo, "one", {"one": "1"})
    add_branch(repo, "two", {"two": "2"})
    (repo / "list").write_text("mine\n")
    before = git(repo, "rev-parse", "main")
    report = merge(repo, "one")
    assert "changes that are not committed: list. To move it: " in report.pending
    assert (repo / "list").read_text() == "mine\n"
    assert git(repo, "rev-parse", "main") == before
    # More is merged behind it, and what the message says works.
    report = merge(repo, "two")
    git(repo, "checkout", "-q", "list")
    command = shlex.split(report.pending.rpartition(": ")[2])
    assert command[:2] == ["git", "-C"]
    git(repo, *command[3:])
    assert (repo / "one").exists()
    assert (repo / "two").exists()


def test_a_merge_without_branches_says_that_nothing_is_queued(repo: Path) -> None:
    merge(repo, *add_branches(repo, clean=1, textual=0, semantic=0))
    done = corral_command("merge", "--into", "main", cwd=repo)
    assert (done.returncode, done.stdout) == (0, "nothing is queued for main\n")


@pytest.mark.deep
def test_new_files_in_the_checkout_stay_unless_they_are_in_the_way(repo: Path) -> None:
    add_branch(repo, "one", {"one": "1"})
    add_branch(repo, "two", {"folder/two": "2"})
    (repo / "tasks.jsonl").write_text("mine\n")
    assert merge(repo, "one").pending == ""
    assert git(repo, "status", "--porcelain") == "?? tasks.jsonl"
    (repo / "folder").write_text("in the way\n")
    report = merge(repo, "two")
    assert "not committed: folder. To move it: " in report.pending
    assert (repo / "folder").read_text() == "in the way\n"
    (repo / "folder").unlink()
    git(repo, "add", "tasks.jsonl")
    assert "not committed: tasks.jsonl. " in merge(repo, "two").pending
    assert git(repo, "status", "--porcelain") == "A  tasks.jsonl"


@pytest.mark.parametrize("lock", ["index.lock", "refs/heads/main.lock"])
@pytest.mark.deep_but_first
def test_a_checkout_that_another_program_locks_stays_as_it_is(repo: Path, lock: str) -> None:
    add_branch(repo, "one", {"one": "1", "list": "changed\n"})
    git(repo, "rm", "-q", "ids/main")
    git(repo, "commit", "-qm", "second")
    path = repo / ".git" / lock
    path.touch()
    report = merge(repo, "one", gates=["true"])
    assert (report.merged, "File exists. To move it" in report.pending) == (1, True)
    assert git(repo, "status", "--porcelain") == ""
    path.unlink()
    assert merge(repo).pending == ""
    assert git(repo, "status", "--porcelain") == ""
    assert (repo / "list").read_text() == "changed\n"


def test_a_branch_where_merged_commits_are_kept_is_not_taken_for_them(repo: Path) -> None:
    """``main`` is checked out, so what is merged is kept in ``corral/merge/main``."""
    add_branch(repo, "corral/merge/main", {"not-checked": "1"})
    add_branch(repo, "good", {"good": "1"})
    with pytest.raises(ConfigError, match="corral/merge/main has commits that this merge queue"):
        merge(repo, "good")
    git(repo, "checkout", "-q", "--detach")
    with pytest.raises(ConfigError, match="corral/merge/main has commits that this merge queue"):
        merge(repo)
    git(repo, "branch", "-m", "corral/merge/main", "mine")
    assert merge(repo).merged == 1
    assert git(repo, "ls-tree", "--name-only", "main", "not-checked", "good") == "good"


@pytest.mark.deep
def test_a_branch_is_removed_from_the_queue(repo: Path) -> None:
    for name in ("one", "two"):
        add_branch(repo, name, {name: "1"})
    (repo / "list").write_text("red\n")
    git(repo, "commit", "-qam", "red")
    with pytest.raises(ConfigError, match="the gate fails on main itself"):
        merge(repo, "one", "two", gates=["! grep red list"])
    with pytest.raises(ConfigError, match="'three' is not queued for main") as caught:
        merge_queue.remove(["one", "three"], into="main", cwd=repo)
    assert caught.value.hint == "Queued: one, two."
    (removed,) = merge_queue.remove(["two"], into="main", cwd=repo)
    assert (removed.state, removed.reason) == ("failed", "removed from the queue")
    report = merge(repo, gates=["true"])
    assert states(report) == {"one": "merged"}
    assert git(repo, "rev-parse", "--verify", "-q", "two")
    assert not (repo / "two").exists()


def test_the_commands_show_a_queue_and_remove_a_branch(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        add_branch(repo, name, {name: "1"})
    monkeypatch.chdir(repo)
    done = run_in_process("merge one two --into main --gate false", monkeypatch)
    assert (done.returncode, "the gate fails on main itself" in done.stderr) == (2, True)
    assert run_in_process("runs list", monkeypatch).stdout.splitlines()[1].split()[1:3] == [
        "merge",
        "interrupted",
    ]
    removed = run_in_process("merges remove last two", monkeypatch)
    assert removed.stdout == "two failed: removed from the queue\n"
    shown = run_in_process("runs show last", monkeypatch).stdout
    assert "✗" in shown
    assert shown.endswith("continue   corral merge --into main\n")
    refused = run_in_process("merges remove last two", monkeypatch)
    assert (refused.returncode, "'two' is not queued for main" in refused.stderr) == (2, True)


def test_what_another_process_merges_is_not_removed(repo: Path) -> None:
    """What waits there is."""
    for name in ("one", "two"):
        add_branch(repo, name, {name: "1"})
    seen: list[str] = []

    def remove(entry: MergeEntry) -> None:
        if entry.state == "checking" and entry.branch == "one" and not seen:
            with pytest.raises(ConfigError, match="another process is merging one") as caught:
                merge_queue.remove(["two", "one"], into="main", cwd=repo)
            seen.append(caught.value.message)
            merge_queue.remove(["two"], into="main", cwd=repo)

    report = merge(repo, "one", "two", on_entry=remove)
    assert seen
    assert states(report) == {"one": "merged", "two": "failed"}
    assert not (repo / "two").exists()


def test_the_target_may_move_meanwhile(repo: Path) -> None:
    names = add_branches(repo, clean=2, textual=0, semantic=0)
    moved: list[str] = []

    def move(entry: MergeEntry) -> None:
        if entry.state == "checking" and not moved:
            moved.append(add_branch(repo, "main", {"of-others": "1"}))

    report = merge(repo, *names, on_entry=move)
    assert report.merged == 2
    files = git(repo, "ls-tree", "-r", "--name-only", "main").splitlines()
    assert {"of-others", "files/0", "files/1"} <= {*files}
    assert git(repo, "merge-base", moved[0], "main") == moved[0]


@pytest.mark.deep
def test_a_checkout_that_moves_meanwhile_gets_all_work(repo: Path) -> None:
    add_branch(repo, "one", {"one": "1"})
    moved: list[str] = []

    def move(entry: MergeEntry) -> None:
        if entry.state == "merged" and not moved:
            (repo / "mine").write_text("mine")
            git(repo, "add", "mine")
            git(repo, "commit", "-qm", "mine")
            moved.append(git(repo, "rev-parse", "HEAD"))

    report = merge(repo, "one", on_entry=move)
    assert (report.pending, states(report)) == ("", {"one": "merged"})
    assert (repo / "one").exists()
    assert git(repo, "merge-base", moved[0], "main") == moved[0]
    assert git(repo, "status", "--porcelain") == ""


def test_what_is_on_the_target_already_changes_nothing(repo: Path) -> None:
    add_branch(repo, "one", {"one": "1"})
    merge(repo, "one")
    tip = git(repo, "rev-parse", "main")
    report = merge(repo, "one")
    assert report.entries[0].reason == "nothing to merge: its changes are there already"
    assert git(repo, "rev-parse", "main") == tip


def test_a_queue_in_which_all_is_merged_continues_with_nothing(repo: Path) -> None:
    add_branch(repo, "one", {"one": "1"})
    tip = merge(repo, "one").tip
    report = merge(repo, gates=[])
    assert (report.ok, report.entries, report.tip) == (True, [], tip)


def test_a_branch_that_is_deleted_meanwhile(repo: Path) -> None:
    names = add_branches(repo, clean=2, textual=0, semantic=0)
    commit = git(repo, "rev-parse", names[1])

    def delete(entry: MergeEntry) -> None:
        if entry.branch == names[0] and entry.state == "merged":
            git(repo, "branch", "-D", names[1])

    report = merge(repo, *names, on_entry=delete)
    assert report.entries[1].reason == f"the branch was deleted; it was at {commit}"


def test_a_branch_that_changes_while_its_gate_runs_is_not_merged_as_it_was(repo: Path) -> None:
    add_branch(repo, "deleted", {"deleted": "1"})
    add_branch(repo, "moved", {"moved": "1"})
    seen: list[str] = []

    def change(entry: MergeEntry) -> None:
        if entry.state == "checking" and entry.branch not in seen:
            seen.append(entry.branch)
            if entry.branch == "deleted":
                git(repo, "branch", "-D", "deleted")
            else:
                add_branch(repo, "moved", {"later": "2"}, start="moved")

    report = merge(repo, "deleted", "moved", on_entry=change)
    assert states(report) == {"deleted": "failed", "moved": "merged"}
    assert report.entries[0].reason.startswith("the branch was deleted; it was at ")
    files = git(repo, "ls-tree", "--name-only", "main").split()
    assert {"moved", "later"} <= {*files}
    assert "deleted" not in files


@pytest.mark.parametrize("is_checkout", [True, False])
@pytest.mark.deep_but_first
def test_a_gate_that_moves_the_target_ends_the_call_and_loses_nothing(
    repo: Path, is_checkout: bool
) -> None:
    add_branch(repo, "one", {"one": "1"})
    if not is_checkout:
        git(repo, "checkout", "-qb", "other")
    me = "git -c user.name=gate -c user.email=gate@localhost"
    move = f"{me} commit-tree -p main -m gate main^{{tree}}"
    gate = f"cd {shlex.quote(str(repo))} && git update-ref refs/heads/main $({move})"
    with pytest.raises(StorageFailed, match="main was moved 5 times while the gate ran"):
        merge(repo, "one", gates=[gate])
    assert "one" not in git(repo, "ls-tree", "--name-only", "main").split()
    assert states(merge(repo, gates=["true"])) == {"one": "merged"}


@pytest.mark.deep
def test_a_target_that_is_deleted_meanwhile_ends_the_call_and_loses_nothing(repo: Path) -> None:
    names = add_branches(repo, clean=2, textual=0, semantic=0)

    def delete(entry: MergeEntry) -> None:
        if entry.state == "merged":
            git(repo, "update-ref", "-d", "refs/heads/main")

    start = git(repo, "rev-parse", "main")
    with pytest.raises(ConfigError, match="the branch main was deleted"):
        merge(repo, *names, on_entry=delete)
    git(repo, "branch", "main", start)
    assert states(merge(repo)) == dict.fromkeys(names, "merged")


def test_a_gate_that_removes_its_folder_fails_only_its_branch(repo: Path) -> None:
    add_branch(repo, "bad", {"bad": "1"})
    add_branch(repo, "good", {"good": "1"})
    report = merge(repo, "bad", "good", gates=['test ! -e bad || rm -rf "$PWD"', "true"])
    assert states(report) == {"bad": "failed", "good": "merged"}
    assert "`true` was not run: a gate before it removed the folder" in report.entries[0].reason


@pytest.mark.deep
def test_a_work_tree_in_which_git_is_busy_is_not_touched(repo: Path) -> None:
    """The branch of an interrupted rebase is moved by git at the end of it."""
    git(repo, "commit", "-q", "--allow-empty", "-m", "second")
    add_branch(repo, "one", {"one": "1"})
    before = git(repo, "rev-parse", "main")
    git(repo, "-c", "sequence.editor=sed -i 1s/pick/edit/", "rebase", "-qi", "--root")
    report = merge(repo, "one")
    assert "is in the middle of a rebase or a merge" in report.pending
    assert git(repo, "rev-parse", "main") == before
    git(repo, "rebase", "--abort")
    assert merge(repo, gates=["true"]).pending == ""
    assert (repo / "one").exists()


@pytest.mark.deep
def test_linked_work_trees(repo: Path, tmp_path: Path) -> None:
    git(repo, "checkout", "-qb", "other")
    linked = tmp_path / "linked"
    git(repo, "worktree", "add", "-q", str(linked), "main")
    git(linked, "sparse-checkout", "set", "ids")
    add_branch(repo, "one", {"one": "1"})
    assert "is a sparse checkout" in merge(repo, "one").pending
    git(linked, "sparse-checkout", "disable")
    assert merge(repo).pending == ""
    assert (linked / "one").exists()
    # Its folder was removed: git would prune it, unless it is locked.
    git(repo, "worktree", "lock", str(linked))
    shutil.rmtree(linked)
    add_branch(repo, "two", {"two": "1"})
    assert "linked of this work tree is missing" in merge(repo, "two").pending
    git(repo, "worktree", "unlock", str(linked))
    assert merge(repo).pending == ""
    assert "two" in git(repo, "ls-tree", "--name-only", "main").split()


def test_a_branch_named_corral_is_in_the_way_of_a_checked_out_target(repo: Path) -> None:
    add_branch(repo, "one", {"one": "1"})
    git(repo, "branch", "corral")
    with pytest.raises(StorageFailed, match="has a branch named corral") as refused:
        merge(repo, "one")
    assert refused.value.hint == "Rename it: git branch -m corral NAME"
    git(repo, "checkout", "-q", "--detach")
    assert merge(repo).merged == 1


@pytest.mark.deep
def test_names_that_look_like_options(repo: Path) -> None:
    names = ["-x", "--upload-pack=touch evil", "$(id)", "ü-🎉"]
    names[1] = names[1].replace(" ", "-")
    for number, name in enumerate(names):
        add_branch(repo, name, {f"file-{number}": "1"})
    assert {*states(merge(repo, *names)).values()} == {"merged"}


@pytest.mark.deep
def test_a_branch_without_a_common_commit(repo: Path) -> None:
    tree = git(repo, "write-tree")
    git(repo, "branch", "alone", git(repo, "commit-tree", tree, "-m", "alone"))
    report = merge(repo, "alone")
    assert report.entries[0].reason == "it has no commit in common with the target"
    # In a shallow clone it may be missing.
    (repo / ".git" / "shallow").write_text(git(repo, "rev-parse", "main") + "\n")
    assert "known in this shallow clone" in merge(repo, "alone").entries[0].reason


@pytest.mark.parametrize(
    ("branches", "more", "message"),
    [
        (["none"], {}, "has no branch 'none'"),
        (["none/*"], {}, r"has no branch 'none/\*'"),
        ([], {"batch": "nightly"}, "the batch nightly has no branch"),
        (["one"], {"into": "none"}, "has no branch 'none'"),
        (["main"], {}, "main cannot be merged into itself"),
        (["one"], {"gates": []}, "no gate"),
        (["one"], {"gates": [" "]}, "a gate is empty"),
        (["one"], {"gates": "true"}, "gates must be a list of texts, got: 'true'"),
        ("one", {}, "branches must be a list of texts, got: 'one'"),
        (["one~0"], {}, "has no branch 'one~0'"),
        (["one"], {"into": None}, "into must be a text, got: None"),
        (["one"], {"gate_timeout": 0}, "the timeout of .* must be more than 0, got: 0"),
        (["one"], {"rounds": -1}, "rounds must be at least 0, got: -1"),
        (["one"], {"agent": "nobody"}, "no agent is called 'nobody'"),
        (["one"], {"polcy": "all"}, "unknown option 'polcy'"),
        ([], {}, "nothing is queued for main"),
        (["side"], {}, "side is checked out in .* with changes that are not committed"),
    ],
)
def test_bad_input_changes_nothing(
    repo: Path, branches: Sequence[str], more: dict[str, Any], message: str
) -> None:
    add_branch(repo, "one", {"one": "1"})
    git(repo, "checkout", "-qb", "side")
    (repo / "list").write_text("mine\n")
    before = git(repo, "for-each-ref")
    more = {"into": "main", "gates": [GATE], "cwd": repo, **more}
    with pytest.raises(ConfigError, match=message):
        merge_queue.run_sync(branches, **more)
    assert git(repo, "for-each-ref") == before
    store = QueueStore.of(repo, "main")
    assert store.read() is None


def test_no_repository_and_no_commit(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for _ in range(2):
        with pytest.raises(ConfigError, match="needs a git repository with a commit"):
            merge(empty, "one")
        if not (empty / ".git").exists():
            git(empty, "init", "-q")


def test_a_dry_run_says_what_would_conflict(repo: Path) -> None:
    names = add_branches(repo, clean=1, textual=1, semantic=0)
    before = git(repo, "for-each-ref")
    report = merge(repo, *names, gates=[], dry_run=True)
    assert states(report) == {"work/clean-0": "merged", "work/text-0": "failed"}
    assert git(repo, "for-each-ref") == before
    assert runs.list_sync(kind="merge") == []


@pytest.mark.deep
def test_branches_are_added_while_another_call_merges(repo: Path) -> None:
    names = add_branches(repo, clean=2, textual=0, semantic=0)
    elsewhere: list[MergeReport] = []

    async def scenario() -> MergeReport:
        async def add() -> None:
            elsewhere.append(await merge_queue.run([names[1]], into="main", cwd=repo))

        adding: list[asyncio.Task[None]] = []

        def on_entry(entry: MergeEntry) -> None:
            if entry.state == "checking" and not adding:
                adding.append(asyncio.ensure_future(add()))

        gates = [GATE, "sleep 0.5"]
        report = await merge_queue.run(
            [names[0]], into="main", gates=gates, cwd=repo, on_entry=on_entry
        )
        await adding[0]
        return report

    report = asyncio.run(scenario())
    assert elsewhere[0].elsewhere
    assert states(report) == dict.fromkeys(names, "merged")


@pytest.mark.deep
def test_merging_goes_on_while_an_owner_works(repo: Path, tmp_path: Path) -> None:
    names = add_branches(repo, clean=2, textual=1, semantic=0)
    order: list[str] = []

    def look(entry: MergeEntry) -> None:
        if entry.state in ("owner", "merged"):
            order.append(f"{entry.branch} {entry.state}")

    agent = repairing_agent(tmp_path / "log")
    report = merge(repo, names[2], *names[:2], agent=agent, policy="all", on_entry=look)
    assert report.ok
    assert order[0] == "work/text-0 owner"
    assert order[-1] == "work/text-0 merged"


@pytest.mark.parametrize("count", [1, 2])
def test_a_branch_of_snapshots_has_its_name_in_the_merged_commit(repo: Path, count: int) -> None:
    """Messages such as those of a run's worktree say nothing about the work."""
    for number in range(count):
        git(repo, "checkout", "-q", "--detach", "work/a" if number else "main")
        (repo / f"a{number}").write_text("a")
        git(repo, "add", "--all")
        git(repo, "commit", "-qm", f"corral: step.{number}")
        git(repo, "branch", "-f", "work/a", "HEAD")
    git(repo, "checkout", "-q", "--detach", "main")
    assert states(merge(repo, "work/a")) == {"work/a": "merged"}
    assert git(repo, "log", "-1", "--format=%B", "main") == "Merge the work of work/a"
