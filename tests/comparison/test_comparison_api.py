"""``corral.compare`` with scripted agents: worktrees, hidden tests, verdicts, missing attempts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.comparisons import FLASH, PRO, WORKS, by_task, compare, use_scripted_agents
from support.pipeline_command import EXAMPLES
from support.repositories import git, repository
from support.sandbox import needs_sandbox

from corral._comparison import store
from corral._comparison.plan import judging_options, load_plan
from corral._comparison.summary import summary
from corral.errors import ConfigError
from corral.run_kwargs import RunKwargs

__all__ = ["repository"]

pytestmark = pytest.mark.whole_program


@pytest.fixture(autouse=True)
def _scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_scripted_agents(tmp_path, monkeypatch)


def test_each_attempt_has_its_own_worktree_and_a_verdict(repository: Path) -> None:
    (repository / "new").write_text("not committed\n")
    check = "grep -q fixed file && ! test -e new"
    found = compare(WORKS, [FLASH, PRO], repository, verify=check, work=["file"], repeat=2)
    assert [(row.agent, row.repeat, row.verdict) for row in found.attempts] == [
        (FLASH, 1, "failed"),
        (PRO, 1, "passed"),
        (FLASH, 2, "failed"),
        (PRO, 2, "passed"),
    ]
    flash, pro = found.agents
    assert (flash.rate.passed, pro.rate.passed, pro.rate.attempts) == (0, 2, 2)
    assert (pro.versions, pro.tokens) == (("0.61.0",), 60)
    assert found.differences[0].value == -1
    assert found.is_complete
    assert (repository / "file").read_text() == "one\n"
    assert not git(repository, "branch", "--list", "corral*")
    row = found.attempts[1]
    assert git(repository, "show", f"{row.commit}:file") == "fixed"
    assert (Path(row.folder) / "changes.patch").read_text().count("+fixed") == 1
    assert not [*(store.root().parent / "worktrees").glob("*/*")]
    assert row.session
    notes = " ".join(found.notes)
    assert "uncommitted changes are not part" in notes
    assert f"{PRO} was asked for gemini-2.5-pro and used gemini-2.5-flash" in notes
    assert summary("last") == found


LOOKS = """init
sh find {root} -name secret-check.sh -path '*worktrees*' > found; true
sh ls -aR . > list
sh (setsid sh -c "while sleep 0.02; do ls hidden/secret-check.sh && touch {seen}; done" &) 2>&1
text done
result"""


@pytest.mark.deep
def test_the_tests_do_not_exist_while_the_agent_or_its_processes_run(
    repository: Path, tmp_path: Path
) -> None:
    hidden, seen = repository / "hidden", tmp_path / "seen"
    hidden.mkdir()
    (hidden / "secret-check.sh").write_text("sleep 0.3; test -e list && ! test -s found\n")
    script, check = LOOKS.format(seen=seen, root=tmp_path), "sh hidden/secret-check.sh"
    found = compare(script, [FLASH], repository, verify=check, tests="hidden")
    (row,) = found.attempts
    assert (row.verdict, row.exit_code) == ("passed", 0)
    assert "secret" not in git(repository, "show", f"{row.commit}:list")
    assert not seen.exists()
    assert "hidden" not in " ".join(row.files)


@needs_sandbox
def test_an_agent_in_the_sandbox_and_its_verifier_do_not_see_other_folders(
    repository: Path, tmp_path: Path
) -> None:
    tests = tmp_path / "checks"
    tests.mkdir()
    (tests / "test.sh").write_text(f"test -e list && ! test -s list && ! ls {tests}\n")
    script = f"init\nsh ls {tests} > list || true\nresult"
    found = compare(script, [FLASH], repository, tests=tests, sandbox="require")
    (row,) = found.attempts
    assert (row.verdict, row.sandbox) == ("passed", "bubblewrap")


def test_tests_that_agents_could_read_are_refused(repository: Path) -> None:
    (repository / "hidden").mkdir()
    (repository / "hidden" / "test.sh").write_text("true\n")
    git(repository, "add", "--all")
    git(repository, "commit", "-q", "-m", "tests")
    with pytest.raises(ConfigError, match="hidden are in the files that the agents get"):
        compare(WORKS, [FLASH], repository, tests="hidden")


NO_NETWORK = json.dumps(
    {
        "type": "result",
        "status": "error",
        "error": {"type": "Error", "message": "[API Error: fetch failed]"},
    }
)
CASES = {
    # id: (script, verifier, verdict, a part of the reason or the code)
    "passes": ("init\nwrite file\nresult", "grep -q written file", "passed", ""),
    "answer": ("init\ntext 42\nresult", 'grep -q 42 "$CORRAL_ANSWER"', "passed", ""),
    "fails": ("init\nresult", "exit 3", "failed", "exited with 3"),
    "crashes": ("init\nwrite file\nexit 7", "grep -q written file", "passed", ""),
    "turns": ("init\nexit 53", "false", "failed", "exited with 1; the agent:"),
    "too-late": ("init\nwrite file\nhang", "grep -q written file", "passed", ""),
    "never-ends": ("init\nresult", "sleep 60", "failed", "did not end within 2s"),
    "no-program": ("init\nresult", "exec /no/such/program", "missing", "127"),
    "killed": ("init\ndie 9", "true", "missing", "killed_by_signal"),
    "no-network": (
        f"init\nraw {NO_NETWORK}\nexit 1",
        "true",
        "missing",
        "network",
    ),
}


@pytest.mark.deep
def test_the_patch_of_an_attempt_has_what_was_checked(repository: Path) -> None:
    script = "init\nwrite file\nwrite test_file.py\nresult"
    (repository / "test_file.py").write_text("before\n")
    git(repository, "add", "--all")
    git(repository, "commit", "-qm", "test")
    (row,) = compare(script, [FLASH], repository, verify="true").attempts
    assert row.verdict == "failed"
    assert "test_file.py was changed; the check ran with the version" in row.reason
    (row,) = compare(script, [FLASH], repository, verify="true", put_back=True).attempts
    assert row.verdict == "passed", row.reason
    assert git(repository, "diff", "--name-only", "HEAD", row.commit) == "file"


@pytest.mark.deep
def test_what_counts_as_failed_and_what_as_missing(repository: Path) -> None:
    tasks = [
        {
            "id": name,
            "prompt": script,
            "verify": check,
            "timeout": 2 if name == "too-late" else None,
            "verify_timeout": 2 if name == "never-ends" else None,
        }
        for name, (script, check, *_) in CASES.items()
    ]
    found = compare(tasks, [FLASH], repository, attempts=1, idle_timeout=60, work=["file"])
    rows = by_task(found)
    assert {name: row.verdict for name, row in rows.items()} == {
        name: case[2] for name, case in CASES.items()
    }
    for name, case in CASES.items():
        assert case[3] in f"{rows[name].reason} {rows[name].code}", rows[name]
    (agent,) = found.agents
    assert (agent.rate.attempts, agent.missing) == (7, 3)
    assert sum(row.count for row in found.missing) == 3
    assert not found.is_complete


def test_a_link_that_an_agent_made_does_not_lead_the_tests_out(
    repository: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    tests = tmp_path / "checks"
    tests.mkdir()
    (tests / "test.sh").write_text("exit 0\n")
    script = f"init\nsh ln -s {outside} checks\nresult"
    (row,) = compare(script, [FLASH], repository, tests=tests).attempts
    assert (row.verdict, row.exit_code) == ("failed", 0)
    assert "made a link that leads out of the folder: checks" in row.reason
    assert [*outside.iterdir()] == []


def test_the_verifying_script_runs_as_it_was_whatever_the_agent_made_of_it(
    repository: Path,
) -> None:
    (repository / "check.sh").write_text("#!/bin/sh\nexit 1\n")
    (repository / "check.sh").chmod(0o755)
    git(repository, "add", "--all")
    git(repository, "commit", "-q", "-m", "check")
    script = "init\nsh echo 'exit 0' > check.sh\nresult"
    (row,) = compare(script, [FLASH], repository, verify="./check.sh").attempts
    assert (row.verdict, row.files) == ("failed", ("check.sh",))


def test_a_folder_without_a_repository_is_copied(workspace: Path) -> None:
    (workspace / "file").write_text("one\n")
    script = "init\nsh cat file > copy\nresult"
    (row,) = compare(script, [FLASH], workspace, verify="grep -q one copy").attempts
    assert (row.verdict, row.files) == ("passed", ("copy",))
    assert sorted(path.name for path in workspace.iterdir()) == ["file"]


def test_uncommitted_changes_are_included_on_request(repository: Path) -> None:
    (repository / "new").write_text("here\n")
    found = compare(
        "init\nresult", [FLASH], repository, verify="test -e new", include_uncommitted=True
    )
    assert (found.attempts[0].verdict, found.notes[:0]) == ("passed", ())
    assert not any("uncommitted" in note for note in found.notes)


def test_agents_that_only_read_work_in_the_folder_itself(workspace: Path) -> None:
    (row,) = compare("init\ntext hello\nresult", [FLASH], workspace, policy="reads").attempts
    assert (row.verdict, row.text, row.commit) == ("passed", "hello", "")


@pytest.mark.deep
def test_missing_attempts_are_repeated_on_request_and_others_never(repository: Path) -> None:
    flag = repository.parent / "online"
    script = f"init\nsh echo run >> {flag}.log\nsh test -e {flag} || kill -9 $PPID\nwrite f\nresult"
    tasks = [{"id": "a", "prompt": script}, {"id": "b", "prompt": "init\nresult"}]
    first = compare(tasks, [FLASH], repository, name="again", attempts=1)
    assert [row.verdict for row in first.attempts] == ["missing", "passed"]
    flag.touch()
    same = compare(tasks, [FLASH], repository, name="again", attempts=1)
    assert same == first
    second = compare(tasks, [FLASH], repository, name="again", attempts=1, retry_missing=True)
    assert [row.verdict for row in second.attempts] == ["passed", "passed"]
    assert Path(f"{flag}.log").read_text() == "run\n" * 2
    with pytest.raises(ConfigError, match="is another comparison"):
        compare(tasks, [FLASH, PRO], repository, name="again")


@needs_sandbox
@pytest.mark.deep
def test_the_example_makes_a_list_of_tasks_of_exercises(tmp_path: Path, workspace: Path) -> None:
    exercise, script = tmp_path / "exercises" / "two-fer", EXAMPLES / "exercism_tasks.py"
    for path, text in {
        ".docs/instructions.md": "init\nsh ls -A > seen\nsh echo 'X = 2' > two_fer.py\nresult",
        ".meta/config.json": json.dumps(
            {"files": {"solution": ["two_fer.py"], "test": ["two_fer_test.py"]}}
        ),
        ".meta/example.py": "X = 2\n",
        "two_fer.py": "X = 1\n",
        "two_fer_test.py": "import two_fer\n\n\ndef test_x():\n    assert two_fer.X == 2\n",
    }.items():
        (exercise / path).parent.mkdir(parents=True, exist_ok=True)
        (exercise / path).write_text(text)
    check = "python3 -c 'import two_fer_test; two_fer_test.test_x()'"
    words = [sys.executable, str(script), str(exercise.parent), str(tmp_path / "tasks"), check]
    subprocess.run(words, check=True)
    (row,) = compare(tmp_path / "tasks" / "tasks.jsonl", [FLASH], workspace).attempts
    assert (row.task, row.verdict) == ("two-fer", "passed"), row.reason
    listed = (Path(row.folder) / "changes.patch").read_text()
    assert "+two_fer.py" in listed
    assert "_test.py" not in listed
    assert ".meta" not in listed


def task_file(folder: Path, **fields: object) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text(json.dumps({"id": "one", "prompt": "init\nresult", **fields}))
    return path


@needs_sandbox
def test_commands_of_a_task_file_run_in_the_sandbox_unless_the_tasks_are_trusted(
    repository: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    hook = repository / ".git" / "hooks" / "post-checkout"
    tasks = task_file(
        tmp_path,
        verify=f"touch seen {outside}/x; echo x > {hook}; echo y >> $(git rev-parse --git-dir)/x;"
        f" test -e seen && ! test -e {outside}",
    )
    (row,) = compare(tasks, [FLASH], repository).attempts
    assert (row.verdict, row.sandbox) == ("passed", ""), row
    assert [*outside.iterdir()] == []
    assert not hook.exists()
    (row,) = compare(tasks, [FLASH], repository, trust_tasks=True).attempts
    assert row.verdict == "failed"
    assert [path.name for path in outside.iterdir()] == ["x"]


def test_a_task_of_a_machine_without_a_sandbox_is_skipped_with_the_reason(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bin" / "bwrap"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")
    tasks = task_file(tmp_path, verify="true")
    with pytest.raises(ConfigError, match=r"its commands need a sandbox.*--trust-tasks"):
        compare(tasks, [FLASH], repository)


def test_the_script_of_a_task_is_copied_only_if_it_is_in_the_files_of_the_task(
    repository: Path, tmp_path: Path
) -> None:
    """``..`` in the command names a file beside the worktree, which stays as it is."""
    for folder in (repository.parent, repository.parent.parent):
        (folder / "check.sh").write_text("exit 0\n")
        (folder / "check.sh").chmod(0o755)
    tasks = [
        {"id": "near", "prompt": "init\nresult", "verify": "../check.sh"},
        {"id": "far", "prompt": "init\nresult", "verify": "../../check.sh"},
    ]
    found = compare(tasks, [FLASH], repository)
    assert {row.verdict for row in found.attempts} == {"missing"}
    assert not [*store.root().parent.rglob("check.sh")]


@needs_sandbox
@pytest.mark.deep
def test_a_task_gets_no_more_time_than_the_caller_allows(repository: Path, tmp_path: Path) -> None:
    tasks = task_file(tmp_path, verify="true", timeout="2h", verify_timeout=1e9)
    found = compare(tasks, [FLASH], repository, policy="edits", name="narrow")
    (task,) = load_plan("narrow").tasks
    assert (task.timeout, task.verifier.timeout) == (3600, 600)
    assert sum("one" in note and "ask for more time" in note for note in found.notes) == 2
    compare(tasks, [FLASH], repository, policy="edits", name="wide", trust_tasks=True)
    (task,) = load_plan("wide").tasks
    assert (task.timeout, task.verifier.timeout) == (7200, 1e9)


def test_special_files_of_a_task_do_not_block_the_comparison(
    repository: Path, tmp_path: Path
) -> None:
    tests, files = tmp_path / "checks", tmp_path / "files"
    for folder in (tests, files):
        folder.mkdir()
        (folder / "file").write_text("")
        os.mkfifo(folder / "fifo")
    with pytest.raises(ConfigError, match="fifo"):
        compare(task_file(tmp_path, tests="checks", verify="true"), [FLASH], repository)
    tasks = [{"id": "one", "prompt": "init\nresult", "folder": str(files), "verify": "ls file"}]
    (row,) = compare(tasks, [FLASH], repository).attempts
    assert row.verdict == "passed"


def test_tests_are_not_copied_through_a_working_directory_that_became_a_link(
    repository: Path, tmp_path: Path
) -> None:
    outside, tests, inside = tmp_path / "outside", tmp_path / "checks", repository / "sub"
    for folder in (outside, tests, inside):
        folder.mkdir()
    (inside / "file").write_text("x")
    (tests / "test.sh").write_text("exit 0\n")
    git(repository, "add", "--all")
    git(repository, "commit", "-q", "-m", "sub")
    script = f"init\nsh cd .. && mv sub was && ln -s {outside} sub\nresult"
    (row,) = compare(script, [FLASH], inside, tests=tests).attempts
    assert (row.verdict, [*outside.iterdir()]) == ("failed", [])
    assert "by a link" in row.reason


def test_files_that_judge_are_those_from_before_the_attempt(repository: Path) -> None:
    (repository / "test_it.sh").write_text("grep -q fixed file\n")
    (repository / "tests").mkdir()
    (repository / "tests" / "check.sh").write_text("grep -q fixed file\n")
    git(repository, "add", "--all")
    git(repository, "commit", "-q", "-m", "tests")
    lies = "init\nsh echo true > tests/check.sh\nresult"
    check = "sh -e ./tests/check.sh"
    (row,) = compare(lies, [FLASH], repository, verify=f"true && {check}").attempts
    assert (row.verdict, row.files) == ("failed", ("tests/check.sh",))
    trusting = {"verify": f"true && {check}", "verify_from": "after"}
    (row,) = compare(lies, [FLASH], repository, **trusting).attempts
    assert row.verdict == "passed"
    with pytest.raises(ConfigError, match="verify_from must be before or after"):
        compare(lies, [FLASH], repository, verify="true", verify_from="later")


@pytest.mark.deep
def test_a_verifier_has_what_the_agent_installed_and_no_other_ignored_file(
    repository: Path,
) -> None:
    (repository / ".gitignore").write_text("node_modules/\nbuild/\n")
    git(repository, "add", "--all")
    git(repository, "commit", "-q", "-m", "ignored")
    script = "init\nsh mkdir node_modules build && touch node_modules/a build/a file2\nresult"
    check = "test -e node_modules/a && test -e file2 && ! test -e build && ! test -e .git"
    (row,) = compare(script, [FLASH], repository, verify=check).attempts
    assert row.verdict == "passed"
    given = {"verify": "test -e build/a", "verify_with": ["build/"]}
    (row,) = compare(script, [FLASH], repository, **given).attempts
    assert row.verdict == "passed"


@pytest.mark.deep
def test_a_runner_that_exits_before_its_tests_has_failed(repository: Path) -> None:
    test = "import unittest, file2\nclass T(unittest.TestCase):\n    def test(self): pass\n"
    (repository / "test_it.py").write_text(test)
    git(repository, "add", "--all")
    git(repository, "commit", "-q", "-m", "test")
    script = "init\nsh echo 'import os; os._exit(0)' > file2.py\nresult"
    (row,) = compare(script, [FLASH], repository, verify="python3 -m unittest").attempts
    assert (row.verdict, row.exit_code) == ("failed", 0)
    assert "reported no test that passed" in row.reason


def test_each_of_several_commands_must_pass() -> None:
    run: RunKwargs = {"verify": ["true # first", "false"], "verify_timeout": "1m", "timeout": 5}
    judging = judging_options(run)
    assert run == {"timeout": 5}
    assert judging["verify_timeout"] == 60
    assert subprocess.run(["sh", "-c", judging["verify"]], check=False).returncode == 1
    assert judging_options({"verify": ["true"]}) == {"verify": "true"}
    with pytest.raises(ConfigError, match="with commands only"):
        judging_options({"verify": [lambda _: True]})
