"""``corral run --verify`` and ``corral verify``, run as programs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.goldens import check_golden
from support.pipeline_command import corral
from support.sandbox import needs_sandbox
from support.scripted_agent import PROGRAM
from support.verified_runs import FIX, PLAIN, UNITTEST, git, make_project, orders

from corral._cli.verify import receipt_schema
from corral.receipt import receipt_hash

AGENT = ("--agent", "gemini-cli", "--program", str(PROGRAM), "--sandbox", "off", "--no-strict")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "scripted-key-0123456789")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    make_project(tmp_path / "project")
    return tmp_path / "project"


def run(project: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    given = ("run", *AGENT, "--approve", "edits", *words, "-")
    return corral(*given, cwd=project, stdin=orders(script))


def verify(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Without a sandbox, which takes longer."""
    return corral("verify", *words, "--sandbox", "off", cwd=project)


def edited(receipt: Path, *, rehashed: bool, **changes: Any) -> Path:
    fields = json.loads(receipt.read_text()) | changes
    if rehashed:
        fields["hash"] = receipt_hash(fields)
    file = receipt.with_name("edited.json")
    file.write_text(json.dumps(fields))
    return file


@pytest.fixture
def receipt(project: Path) -> Path:
    """Of an honest run whose check is a command."""
    file = project.parent / "receipt.json"
    done = run(project, FIX, "--verify", PLAIN, "--receipt", str(file), "--require", "verified")
    assert done.returncode == 0, done.stderr
    return file


def test_the_end_of_a_run_has_the_verdict_and_decides_the_exit_code(project: Path) -> None:
    done = run(project, "", "--verify", UNITTEST, "--require", "verified")
    assert done.returncode == 14
    assert "gap      " in done.stderr
    assert "exited with 1" in done.stderr
    assert "the verdict is gaps, and verified is required" in done.stderr
    assert "\n  | FAILED (failures=1)\n" in done.stderr
    shown = corral("runs", "show", "last", cwd=project).stdout
    assert f"\n  gaps\n  gap      {UNITTEST}: the check did not pass" in shown
    assert run(project, "", "--verify", UNITTEST).returncode == 0
    assert run(project, "", "--verify", UNITTEST, "--require", "gaps").returncode == 0
    done = run(project, FIX, "--verify", UNITTEST, "--require", "verified", "--result")
    assert done.returncode == 0
    assert json.loads(done.stdout)["receipt"]["verdict"] == "verified"


@pytest.mark.deep
def test_the_summary_has_the_verdict_and_the_evidence(project: Path, receipt: Path) -> None:
    summary = project.parent / "summary.md"
    summary.write_text("before\n")
    assert verify(project, str(receipt), "--summary", str(summary)).returncode == 0
    (project / "README.md").write_text("Another one.\n")
    assert verify(project, str(receipt), "--summary", str(summary)).returncode == 15
    text = summary.read_text()
    assert text.startswith("before\n### Verification: same; the receipt says verified\n")
    assert "### Verification: stale; the receipt says verified\n" in text
    assert text.count("| `passed` | 0 |") == 2


@pytest.mark.parametrize(
    ("words", "expected_text"),
    [
        (["--require", "verified"], "--require needs --verify"),
        (["--put-back"], "--put-back needs --verify"),
        (["--work", "src/**"], "--work needs --verify"),
        (["--judge-file", "x"], "--judge-file needs --verify"),
        (["--receipt", "r.json"], "--receipt needs --verify"),
        (["--verify", " "], "a check is an empty command"),
        (["--verify", "true", "--receipt", "no/such/folder/r.json"], "no such folder"),
        (["--summary", "s.md"], "--summary needs --verify"),
        (["--verify", "true", "--summary", "no/such/s.md"], "the summary cannot be written to"),
        (["--verify", "true", "--verify-timeout", "0"], "--verify-timeout must be more than 0"),
    ],
)
def test_bad_input_is_one_error_before_anything_starts(
    project: Path, words: list[str], expected_text: str
) -> None:
    done = run(project, "touch started", *words)
    assert done.returncode == 2
    assert expected_text in done.stderr
    assert not (project / "started").exists()


@pytest.mark.deep
def test_checks_of_the_configuration_are_checks(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f"[defaults]\nverify = {json.dumps([PLAIN])}\n")
    monkeypatch.setenv("CORRAL_CONFIG", str(file))
    assert run(project, "", "--require", "verified").returncode == 14
    assert run(project, FIX, "--require", "verified", "--put-back").returncode == 0


@pytest.mark.deep
def test_a_receipt_is_repeated_and_says_the_same_here_and_elsewhere(
    project: Path, receipt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = verify(project, str(receipt))
    assert (done.returncode, done.stdout.split(";")[0]) == (0, "same"), done.stdout + done.stderr
    assert verify(project, "last").returncode == 0
    git(project, "commit", "-qam", "fix")
    elsewhere = tmp_path / "elsewhere"
    git(tmp_path, "clone", "-q", str(project), str(elsewhere))
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "other home"))
    demands = ("--verify", PLAIN, "--require", "verified")
    done = verify(elsewhere, str(receipt), *demands)
    assert done.returncode == 16, "the work would begin where it ends"
    done = verify(elsewhere, str(receipt), *demands, "--before", "HEAD~1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  scope: names: files that judge by their names" in done.stdout
    assert verify(elsewhere, str(receipt), "--before", "nowhere").returncode == 2
    done = verify(elsewhere, str(receipt), "--verify", "make -s lint")
    assert done.returncode == 16
    assert "it has no check 'make -s lint'" in done.stdout


@pytest.mark.deep
def test_a_receipt_that_names_its_own_file_as_the_stored_one_is_a_claim(
    project: Path, receipt: Path
) -> None:
    """The number of a run is no path."""
    fields = json.loads(receipt.read_text())
    session = fields["run"]["run_id"].rpartition(".")[0]
    lie = {"verify_from": "after", "scope": None}
    for number in (str(receipt.with_name("edited")), "1/../1", "١"):
        run = {**fields["run"], "run_id": f"{session}.{number}"}
        file = edited(receipt, rehashed=True, run=run, **lie)
        done = verify(project, str(file), "--verify", PLAIN, "--require", "verified")
        assert done.returncode == 16, done.stdout
        assert "as the agent left them" in done.stdout


@pytest.mark.deep
def test_no_line_of_a_receipt_is_a_command_of_a_ci_system(project: Path, receipt: Path) -> None:
    text = "x\n::add-mask::a\n ##[command]b\x1b[2J"
    checks = [{"kind": "command", "argv": ["sh", "-c", f": {text}"], "command": text}]
    evidence = [{"kind": "command", "name": text, "outcome": "passed", "reason": text}]
    for more in ({"checks": checks}, {"judge_files": [text]}, {"inside": text}, {"gaps": [text]}):
        fields: dict[str, Any] = {"evidence": evidence, **more}
        done = verify(project, str(edited(receipt, rehashed=True, **fields)), "--verify", text)
        lines = (done.stdout + done.stderr).splitlines()
        assert len(lines) > 1
        for line in lines:
            assert not line.lstrip().startswith("::"), line
            assert "##[" not in line
            assert "\x1b" not in line


@pytest.mark.deep
def test_a_receipt_in_the_workspace_does_not_make_itself_stale(project: Path) -> None:
    for script in (FIX, "echo '# more' >> calc.py"):  # the second run replaces the receipt
        run(project, script, "--verify", PLAIN, "--receipt", "receipt.json")
        done = verify(project, "receipt.json")
        assert (done.returncode, done.stdout.split(";")[0]) == (0, "same"), done.stdout
    (project / "copy.json").write_bytes((project / "receipt.json").read_bytes())
    assert "files changed since: copy.json\n" in verify(project, "receipt.json").stdout


@pytest.mark.deep
def test_a_later_edit_makes_it_stale(project: Path, receipt: Path) -> None:
    (project / "README.md").write_text("Another one.\n")
    (project / "new").touch()
    done = verify(project, str(receipt))
    assert done.returncode == 15
    assert "files changed since: README.md, new" in done.stdout
    answer = json.loads(verify(project, str(receipt), "--json").stdout)
    assert (answer["answer"], answer["verdict"]) == ("stale", "verified")


@pytest.mark.deep
def test_an_edited_receipt_is_seen_with_and_without_its_hash(project: Path) -> None:
    file = project.parent / "receipt.json"
    run(project, "echo '# x' >> calc.py", "--verify", PLAIN, "--receipt", str(file))
    assert json.loads(file.read_text())["verdict"] == "gaps"
    lie: dict[str, Any] = {"verdict": "verified", "gaps": []}
    done = verify(project, str(edited(file, rehashed=False, **lie)))
    assert (done.returncode, done.stdout.split(";")[0]) == (17, "edited")
    assert verify(project, str(edited(file, rehashed=True, **lie))).returncode == 16
    evidence = [{"kind": "command", "name": PLAIN, "outcome": "passed", "exit_code": 0}]
    done = verify(project, str(edited(file, rehashed=True, evidence=evidence, **lie)))
    assert done.returncode == 16
    assert "failed now (exited with 1), and passed then" in done.stdout
    done = verify(project, str(edited(file, rehashed=True, evidence=[], **lie)))
    assert done.returncode == 16
    shown = json.loads(file.read_text())["checks"]
    shown[0]["argv"] = ["sh", "-c", "true"]
    done = verify(project, str(edited(file, rehashed=True, evidence=evidence, checks=shown, **lie)))
    assert done.returncode == 16, done.stdout


@pytest.mark.deep
def test_a_receipt_of_another_repository_is_named(
    project: Path, receipt: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "more").touch()  # its commit never has the id of the project's
    make_project(tmp_path / "other")
    done = verify(tmp_path / "other", str(receipt))
    assert done.returncode == 17
    assert "is not here" in done.stdout
    (tmp_path / "plain").mkdir()
    done = verify(tmp_path / "plain", str(receipt))
    assert done.returncode == 17
    assert "is in no git repository" in done.stdout


@pytest.mark.deep
def test_what_was_not_committed_before_the_run_is_needed_again(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has put back a test that was not committed: its content is in the session alone."""
    test = project / "tests" / "test_calc.py"
    test.write_text(test.read_text() + "# mine\n")
    file = tmp_path / "receipt.json"
    run(project, f"rm tests/test_calc.py\n{FIX}", "--verify", UNITTEST, "--receipt", str(file))
    assert verify(project, str(file)).returncode == 0
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "other home"))
    done = verify(project, str(file))
    assert done.returncode == 16
    assert "not committed before the run: tests/test_calc.py (--uncommitted" in done.stdout
    done = verify(project, str(file), "--uncommitted")
    assert done.returncode == 1
    assert "the files from before the run are not here" in done.stderr


def test_a_receipt_that_does_not_exist(project: Path) -> None:
    assert "there is no receipt" in verify(project, "none.json").stderr
    assert "which receipt?" in verify(project).stderr
    assert verify(project, "20200101-000000-aaaaaa").returncode == 4


@pytest.mark.deep
def test_without_a_sandbox_the_error_names_the_option(
    project: Path, receipt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "tools" / "bwrap"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    done = corral("verify", str(receipt), cwd=project)
    assert "If its checks are yours: --sandbox off" in done.stderr


@needs_sandbox
def test_the_commands_of_a_receipt_run_in_the_sandbox(project: Path, receipt: Path) -> None:
    """It may be a stranger's."""
    outside = project.parent / "stolen"
    command = f"touch {outside}; {PLAIN}"
    checks = [{"kind": "command", "argv": ["sh", "-c", command], "command": "pytest -q"}]
    evidence = [{"kind": "command", "name": command, "outcome": "passed", "exit_code": 0}]
    file = edited(receipt, rehashed=True, checks=checks, evidence=evidence)
    done = corral("verify", str(file), cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert command in done.stdout
    assert not outside.exists()


@needs_sandbox
def test_the_commands_of_a_receipt_get_no_secret(
    project: Path, receipt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "hunter2-hunter2-hunter2")
    monkeypatch.setenv("MODE", "fast")
    command = f'echo "[$API_TOKEN]"; test "$MODE" = fast && {PLAIN}'
    checks = [{"kind": "command", "argv": ["sh", "-c", command], "command": command,
               "variables": ["API_TOKEN", "MODE"]}]  # fmt: skip
    evidence = [{"kind": "command", "name": command, "outcome": "passed", "exit_code": 0}]
    file = edited(receipt, rehashed=True, checks=checks, evidence=evidence)
    done = corral("verify", str(file), "--json", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["evidence"][0]["output"] == "[]"


@pytest.mark.deep
def test_a_receipt_becomes_a_note_and_a_record_of_agent_trace(
    project: Path, receipt: Path, tmp_path: Path
) -> None:
    done = verify(project, str(receipt), "--git-note")
    assert done.returncode == 2
    assert "Commit the work first" in done.stderr
    git(project, "commit", "-qam", "fix")
    trace = tmp_path / "trace.json"
    done = verify(project, str(receipt), "--git-note", "--agent-trace", str(trace))
    assert done.returncode == 0, done.stderr
    note = git(project, "notes", "--ref=corral-receipts", "show")
    assert json.loads(note) == json.loads(receipt.read_text())
    record = json.loads(trace.read_text())
    assert record["vcs"] == {"type": "git", "revision": git(project, "rev-parse", "HEAD")}
    (file,) = record["files"]
    assert file["path"] == "calc.py"
    (conversation,) = file["conversations"]
    assert conversation["contributor"]["type"] == "ai"
    assert conversation["ranges"] == [{"start_line": 2, "end_line": 2}]
    assert record["metadata"]["corral"]["verdict"] == "verified"


@pytest.mark.deep
def test_the_published_schema_is_that_of_receipts(project: Path, receipt: Path) -> None:
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

    text = msgspec.json.format(msgspec.json.encode(receipt_schema())).decode() + "\n"
    check_golden(Path(__file__).parents[2] / "docs" / "receipt.schema.json", text)
    printed = json.loads(corral("verify", "--schema", cwd=project).stdout)
    validator: Any = Draft202012Validator(printed)
    validator.validate(json.loads(receipt.read_text()))
