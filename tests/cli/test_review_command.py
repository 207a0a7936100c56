"""``corral review`` with scripted models: what is printed and written, exit codes, bad input."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_in_process import run_in_process
from support.real_agents import KEY
from support.repositories import git, repository

from corral._agents.copilot.launch import TOKENS
from corral._cli.review import CI_TOKENS, FORMATS, LEVELS
from corral._review.findings import SEVERITIES
from corral._review.formats import FORMATS as WRITERS
from corral._sessions.store import all_sessions
from corral.testing import ModelServer, Request, Turn, fail

__all__ = ["repository"]

FLASH, PRO = "gemini:gemini-2.5-flash", "gemini:gemini-2.5-pro"
Run = Callable[..., subprocess.CompletedProcess[str]]


def finding(severity: str = "high", title: str = "The file is never closed") -> dict[str, object]:
    return {
        "file": "file",
        "line": 1,
        "severity": severity,
        "title": title,
        "explanation": "Leaks.",
    }


def answer(*findings: dict[str, object]) -> Turn:
    text = json.dumps({"summary": "Changes a file.", "findings": findings})
    return Turn(text=text, usage={"input": 1_000, "output": 100})


@pytest.fixture
def project(repository: Path) -> Path:
    (repository / "file").write_text("two\n")
    return repository


@pytest.fixture
def run(
    project: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Run:
    """Run ``corral review`` there, with a script for the model."""
    numbers = iter(range(100))

    def run(
        words: str, script: Callable[[Request], Turn] | list[Turn] | None = None
    ) -> subprocess.CompletedProcess[str]:
        lane = model_server.lane(f"{tmp_path.name}-{next(numbers)}", script or [])
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", lane.url)
        monkeypatch.setenv("GEMINI_API_KEY", KEY)
        monkeypatch.chdir(project)
        done = run_in_process(f"review {words}", monkeypatch)
        done.args = lane
        return done

    return run


def test_the_review_is_printed_and_the_exit_code_is_by_severity(run: Run) -> None:
    words = "severity low, medium, high or critical (--fail-on low)"
    assert words in run(f"--agent {FLASH} --fail-on low", [answer(finding())]).stderr
    for words, code in ("--fail-on high", 13), ("--fail-on critical", 0), ("", 0):
        done = run(f"--agent {FLASH} {words}", [answer(finding())])
        assert done.returncode == code, done.stderr
        first, second, last = done.stdout.splitlines()
        assert (first, second) == ("file:1: high: The file is never closed", "    Leaks.")
        assert last.startswith(f"the work tree since main: 1 high in 1 file ({FLASH}, $0.")
        reason = "1 finding of severity high or critical (--fail-on high)"
        assert (reason in done.stderr) == (code == 13)


def test_formats_and_outputs_are_written_to_files(run: Run, tmp_path: Path) -> None:
    files = " ".join(f"--format {name}={tmp_path / name}" for name in FORMATS)
    done = run(f"--agent {FLASH} -q {files} --outputs {tmp_path / 'outputs'}", [answer(finding())])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert all("never closed" in (tmp_path / name).read_text() for name in FORMATS)
    [output] = json.loads((tmp_path / "outputs").read_text())["outputs"]
    assert output["review"]["findings"][0]["title"] == "The file is never closed"


def test_two_agents_say_the_same_once_and_sessions_are_named_by_the_change(run: Run) -> None:
    done = run(f"--agent {FLASH} --agent {PRO} --format markdown", lambda _: answer(finding()))
    assert done.stdout.count("Changes a file") == 1
    titles = [record.meta.title for record in all_sessions()]
    assert titles == ["the work tree since main"] * 2


def test_markdown_in_a_log_is_no_command(run: Run) -> None:
    text = {**finding(), "suggestion": "::add-mask::x\n##[group]y"}
    done = run(f"--agent {FLASH} --format markdown", [answer(text)])
    assert done.stdout.startswith("### Review\n")
    assert not [line for line in done.stdout.split("\n") if line.lstrip().startswith("::")]
    assert "##[" not in done.stdout


def test_an_empty_diff_is_a_success_that_spends_nothing(run: Run, project: Path) -> None:
    git(project, "checkout", "-q", "--", "file")
    outputs = project.parent / "outputs"
    done = run(f"--agent {FLASH} --fail-on low --outputs {outputs}")
    assert (done.returncode, done.stdout) == (0, "the work tree since main: nothing to review\n")
    assert done.args.requests == []
    assert json.loads(outputs.read_text())["outputs"] == []


def test_two_agents_share_a_budget_and_their_equal_findings_are_one(run: Run) -> None:
    def model(request: Request) -> Turn:
        is_pro = "pro" in request.model
        title = "A file is not closed" if is_pro else "The file is never closed"
        return answer(finding("critical" if is_pro else "low", title))

    done = run(f"--agent {FLASH},{PRO} --format json --max-cost 1", model)
    assert done.returncode == 0, done.stderr
    review = json.loads(done.stdout)
    [found] = review["findings"]
    assert (found["severity"], found["agents"]) == ("critical", [PRO, FLASH])
    assert review["cost_usd"] == pytest.approx(sum(each["cost_usd"] for each in review["runs"]))
    spent = run(f"--agent {FLASH},{PRO} --max-calls 1 --concurrency 1 --fail-on critical", model)
    assert len(spent.args.requests) == 1
    assert spent.returncode == 8
    assert "INCOMPLETE: 1 low" in spent.stdout


def test_an_agent_that_fails_leaves_the_findings_of_the_others(run: Run) -> None:
    def model(request: Request) -> Turn:
        if "pro" in request.model:
            return fail(401, "bad\n::error::key")
        return answer(finding())

    done = run(f"--agent {FLASH},{PRO}", model)
    assert done.returncode == 6
    assert "high: The file is never closed" in done.stdout
    assert f"{PRO}, part 1: " in done.stdout
    assert "\n::" not in done.stdout + done.stderr
    done = run(f"--agent {FLASH},{PRO} --fail-on high", model)
    assert done.returncode == 13


def test_an_answer_of_another_form_is_corrected_or_an_error(run: Run) -> None:
    done = run(f"--agent {FLASH}", [Turn(text="Looks good to me."), answer()])
    assert (done.returncode, len(done.args.requests)) == (0, 2)
    assert "no findings" in done.stdout
    done = run(f"--agent {FLASH}", [Turn(text="Looks good to me.", repeat="forever")])
    assert done.returncode == 9
    assert "INCOMPLETE" in done.stdout


def test_a_large_diff_is_divided_or_refused_before_anything_is_spent(
    run: Run, project: Path
) -> None:
    (project / "large.py").write_text("x = 'a long line of a generated file'\n" * 9_000)
    done = run(f"--agent {FLASH} --max-parts 2")
    assert done.returncode == 2
    assert "large.py" in done.stderr
    assert "--exclude PATTERN" in done.stderr
    assert done.args.requests == []
    divided = run(f"--agent {FLASH}", [answer()] * 9)
    assert divided.returncode == 0, divided.stderr
    assert len(divided.args.requests) > 2
    excluded = run(f"--agent {FLASH} --max-parts 1 --exclude '*.py'", [answer()])
    assert "not reviewed (excluded): large.py" in excluded.stdout


def test_a_binary_in_place_of_a_link_is_named(run: Run, project: Path) -> None:
    (project / "t").symlink_to("file")
    git(project, "add", "--all")
    git(project, "commit", "-q", "-m", "link")
    (project / "t").unlink()
    (project / "t").write_bytes(bytes(range(256)) * 20)
    done = run(f"HEAD --agent {FLASH}", [answer()])
    assert done.returncode == 0, done.stderr
    assert "not reviewed (binary): t\n" in done.stdout


def test_a_patch_is_reviewed_with_the_files_of_the_folder_or_without(
    run: Run, project: Path, tmp_path: Path
) -> None:
    patch = tmp_path / "change.diff"
    patch.write_bytes(git(project, "diff").encode() + b"\n")

    def model(request: Request) -> Turn:
        has_files = "files of the new version are in the current folder" in request.last_text
        return answer(finding(title="with files" if has_files else "without files"))

    assert "with files" in run(f"--patch {patch} --agent {FLASH}", model).stdout
    assert "without files" in run(f"--patch {patch} --agent {FLASH} --diff-only", model).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--agent nothing-like-this", "nothing-like-this"),
        (f"--agent {FLASH},{FLASH}", "different agents"),
        ("main...nothing", "there is no commit 'nothing'"),
        ("--patch nothing.diff", "nothing.diff cannot be read"),
        ("HEAD --patch x", "a range and --patch are both given"),
        ("--format pdf", "--format pdf: it must be NAME or NAME=FILE"),
        ("--format text --format json", "two formats are for stdout"),
        ("--format sarif=nothing/x.sarif", "cannot be written"),
        ("--outputs .", "cannot be written"),
        ("--max-cost 0", "--max-cost must be more than 0"),
        ("--approve all", "no such option"),
        ("--inherit project", "no such option"),
        ("--fail-on huge", "'huge'"),
    ],
)
def test_bad_input_is_an_error_before_anything_is_spent(run: Run, words: str, message: str) -> None:
    chosen = "" if words.startswith("--agent") else f" --agent {FLASH}"
    done = run(words + chosen)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr.casefold() or message in done.stderr
    assert done.args.requests == []


def test_the_tokens_of_the_ci_system_are_removed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(TOKENS) - {"COPILOT_GITHUB_TOKEN"} <= set(CI_TOKENS)
    for name in CI_TOKENS:
        monkeypatch.setenv(name, "ghs_0123456789abcdefghij")
    assert run(f"--agent {FLASH}", [answer()]).returncode == 0
    assert [name for name in CI_TOKENS if name in os.environ] == []


def test_the_configuration_of_the_folder_has_no_effect_and_the_users_has(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "corral.toml").write_text(
        'agent = "nothing"\n[defaults]\nmodel = "x"\nretries = 99\n'
    )
    done = run(f"--agent {FLASH}", [answer()])
    assert (done.returncode, done.stderr.count("retries")) == (0, 0), done.stderr
    user = Path(os.environ["HOME"]) / ".config" / "corral" / "corral.toml"
    user.parent.mkdir(parents=True)
    user.write_text('[defaults]\npolicy = "all"\ninherit = "user"\nretries = 99\n')
    done = run(f"--agent {FLASH}")
    assert "retries must be between 0 and 9" in done.stderr


def test_the_lists_of_the_command_are_those_of_the_review() -> None:
    assert tuple(WRITERS) == FORMATS
    assert SEVERITIES == LEVELS
