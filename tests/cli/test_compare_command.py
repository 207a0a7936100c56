"""``corral compare``: answers, tables, JSON, resuming, diffs and applying a patch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from support.comparisons import FLASH, PRO, WORKS, compare, use_scripted_agents
from support.pipeline_command import CORRAL, corral
from support.repositories import git, repository
from support.sandbox import needs_sandbox
from support.scripted_agent import GOOD

__all__ = ["repository"]

BOTH = ("--agent", f"{FLASH},{PRO}")
LIMIT = 120.0


@pytest.fixture(autouse=True)
def _scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_scripted_agents(tmp_path, monkeypatch)


def run(*words: str, cwd: Path, prompt: str = GOOD) -> subprocess.CompletedProcess[str]:
    return corral("compare", *words, "-", cwd=cwd, stdin=prompt)


def shown(words: str, cwd: Path) -> str:
    done = corral("compare", *words.split(), cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_answer_is_printed_and_a_table_compares_them(workspace: Path) -> None:
    done = run(*BOTH, "--no-durable", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert f"## {FLASH} (gemini-2.5-flash)\n\nhello\n" in done.stdout
    assert done.stdout.count("hello") == 2
    assert f"\nprompt/{FLASH} " in done.stderr
    assert "pass rate" not in done.stderr, "of one question without a verifier it says nothing"
    quiet = run("-a", FLASH, "-a", PRO, "--quiet", "--no-durable", cwd=workspace)
    assert (quiet.stderr, quiet.stdout.count("hello")) == ("", 2)


def test_the_agents_may_have_a_scripted_model(workspace: Path) -> None:
    (workspace / "fake.toml").write_text('[[turn]]\ntext = "Hi."\nrepeat = "forever"\n')
    models = "gemini:gemini-2.5-flash,openai:gpt-5"
    done = run("--agent", models, "--fake", "fake.toml", "--no-durable", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Hi.") == 2


@pytest.mark.deep
def test_a_killed_comparison_resumes_with_another_scripted_model(workspace: Path) -> None:
    script = workspace / "fake.toml"
    script.write_text('[[turn]]\nhang = true\nrepeat = "forever"\n')
    models = "gemini:gemini-2.5-flash,openai:gpt-5"
    words = ("Hi", "--agent", models, "--name", "night", "--fake", script.name)
    process = subprocess.Popen(
        [CORRAL, "compare", *words], cwd=workspace, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        while not [*Path(os.environ["CORRAL_HOME"]).glob("hosts/*/jobs/*/started.*")]:
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait(LIMIT)
    script.write_text('[[turn]]\ntext = "Hello."\nrepeat = "forever"\n')
    resumed = ("resume", "night", "--fake", script.name, "--json")
    done = corral("compare", *resumed, cwd=workspace, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    (task,) = json.loads(done.stdout)["tasks"]
    assert [attempt["verdict"] for attempt in task["attempts"]] == ["passed", "passed"]


@pytest.mark.deep
def test_json_has_every_attempt_with_its_verdict_model_and_version(repository: Path) -> None:
    words = (*BOTH, "--verify", "grep -q fixed file", "--approve", "all", "--json", "--repeat", "2")
    done = run(
        *words, "--work", "file", "--no-durable", "--name", "mine", cwd=repository, prompt=WORKS
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["id"], found["done"], found["total"]) == ("mine", 4, 4)
    (task,) = found["tasks"]
    assert [each["verdict"] for each in task["attempts"]] == ["failed", "passed"] * 2
    assert {each["agent_version"] for each in task["attempts"]} == {"0.61.0"}
    assert found["agents"][1]["rate"]["value"] == 1
    assert found["differences"][0]["value"] == -1
    text = corral("runs", "show", "mine", cwd=repository).stdout
    assert "pass rate (95 %)" in text
    assert f"{FLASH} − {PRO}: -100 points" in text
    assert "mine" in corral("runs", "list", cwd=repository).stdout


@pytest.mark.deep
def test_a_patch_is_shown_beside_the_others_and_applied(repository: Path) -> None:
    verify = "grep -q fixed file"
    compare(WORKS, [FLASH, PRO], repository, verify=verify, work=["file"], name="one")
    monitor = {"COLUMNS": "160"}
    text = corral("compare", "diff", "one", cwd=repository, env=monitor).stdout
    assert f"prompt/{FLASH} (failed)" in text.splitlines()[0]
    assert "(file: no change)" in text
    assert "│ +fixed" in text
    checked = shown(f"apply one {PRO} --check", repository)
    assert checked == f"prompt/{PRO} can be applied: file\n"
    (repository / "file").write_text("other\n")
    (repository / "mine").write_text("not committed\n")
    refused = corral("compare", "apply", "one", PRO, cwd=repository)
    assert refused.returncode == 2
    assert "do not fit your files" in refused.stderr
    assert (repository / "file").read_text() == "other\n"
    (repository / "file").write_text("one\n")
    assert shown(f"apply one {PRO}", repository) == f"prompt/{PRO} applied: file\n"
    assert (repository / "file").read_text() == "fixed\n"
    assert (repository / "mine").read_text() == "not committed\n"
    assert git(repository, "status", "--short").splitlines() == ["M file", "?? mine"]
    assert "have these changes already" in shown(f"apply one {PRO}", repository)
    nothing = corral("compare", "apply", "one", FLASH, cwd=repository)
    assert "has changed nothing" in nothing.stderr
    assert git(repository, "for-each-ref", "refs/corral")
    prune = ("runs", "prune", "--kind", "comparison", "--older-than")
    assert "0 deleted" in corral(*prune, "1h", cwd=repository).stdout
    assert "one\n1 deleted" in corral(*prune, "0s", cwd=repository).stdout
    assert not git(repository, "for-each-ref", "refs/corral")
    assert "no run is called" in corral("runs", "delete", "one", cwd=repository).stderr


@pytest.mark.deep
def test_a_killed_comparison_resumes_without_repeating_ended_attempts(
    repository: Path, tmp_path: Path
) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    for number in range(3):
        wait = f"sh until test {number} = 0 -o -e {gate}; do sleep 0.05; done"
        lines = ("init", f"sh echo {number} >> {log}", wait, "write out", "result")
        task = {"id": f"t{number}", "prompt": "\n".join(lines), "verify": "test -e out"}
        with (tmp_path / "tasks.jsonl").open("a") as file:
            file.write(json.dumps(task) + "\n")
    words = ["compare", str(tmp_path / "tasks.jsonl"), *BOTH, "--name", "night", "-n", "2"]
    process = subprocess.Popen(
        [CORRAL, *words, "--approve", "all"],
        cwd=repository,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    results = tmp_path / "corral-home" / "comparisons" / "night" / "results.jsonl"
    until = time.monotonic() + LIMIT
    while not (results.exists() and results.read_text().count("\n") >= 2):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = log.read_text().split()
    stopped = corral("runs", "show", "night", "--json", cwd=repository)
    assert json.loads(stopped.stdout)["run"]["kind"] == "comparison"
    gate.touch()
    done = corral("runs", "resume", "night", "--json", cwd=repository, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["done"], [each["rate"]["passed"] for each in found["agents"]]) == (6, [3, 3])
    assert sorted(log.read_text().split()) == ["0", "0", "1", "1", "2", "2"]
    assert before.count("0") == 2
    ids = [json.loads(line)["id"] for line in results.read_text().splitlines()]
    assert len(ids) == len(set(ids)) == 6
    ended = corral("runs", "show", "night", cwd=repository)
    assert "6 of 6 attempts have a verdict" in ended.stdout
    repeated = corral("runs", "resume", "night", "-q", cwd=repository, timeout=LIMIT)
    assert repeated.returncode == 0
    assert len(log.read_text().split()) == 6


def test_a_budget_must_be_positive(repository: Path) -> None:
    done = run(*BOTH, "--no-durable", "--max-cost", "0", cwd=repository)
    assert done.returncode == 2
    assert "--max-cost must be more than 0" in done.stderr


TASKS = {
    "broken.jsonl": '{"prompt": "x"}\n{"prompt": \n',
    "none.jsonl": '{"text": "x"}\n',
    "late.toml": "[[tasks]]\nprompt = 'x'\ntimeout = 'soon'\n",
    "cut.toml": "[[tasks]]\nprompt = \n",
    "short.csv": "prompt,verify\nx\n",
    "away.jsonl": '{"prompt": "x", "tests": "nowhere", "verify": "true"}\n',
}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--agent", "gemini-cli", "x"), 2, "compare needs two or more different agents"),
        (("--agent", "gemini-cli,Gemini-CLI", "x"), 2, "different agents, got gemini-cli and Gem"),
        (("--agent", "gemini-cli,gemni", "x"), 2, "no agent is called 'gemni'"),
        (("--agent", "gemini-cli,openai:gpt-5.5", "x"), 6, "no API key for OpenAI"),
        ((*BOTH, "--repeat", "0", "x"), 2, "--repeat must be at least 1"),
        ((*BOTH, "--verify", "no-such-program -x", "x"), 2, "'no-such-program' does not exist"),
        ((*BOTH, "--verify", "./check.sh", "x"), 2, "'./check.sh' does not exist"),
        ((*BOTH, "--tests", "nowhere", "x"), 2, "there are no tests at"),
        ((*BOTH, ""), 2, "the prompt is empty"),
        ((*BOTH, "missing.jsonl"), 2, "missing.jsonl: No such file"),
        ((*BOTH, "broken.jsonl"), 2, "broken.jsonl line 2 is not JSON"),
        ((*BOTH, "none.jsonl"), 2, "task '1' has no prompt"),
        ((*BOTH, "late.toml"), 2, "task '1': timeout"),
        ((*BOTH, "cut.toml"), 2, "(at line 2, column 10)"),
        ((*BOTH, "short.csv"), 2, "short.csv line 2 has 1 columns"),
        ((*BOTH, "away.jsonl"), 2, "nowhere"),
        ((*BOTH, "."), 2, ". is not a file of tasks"),
        ((*BOTH, "--name", "a/b", "x"), 2, "is not a valid name"),
        (("apply", "nothing", "x"), 2, "there is no comparison 'nothing'"),
    ],
)
def test_bad_input_is_an_error_before_anything_starts(
    words: tuple[str, ...], code: int, message: str, workspace: Path
) -> None:
    for name, text in TASKS.items():
        (workspace / name).write_text(text)
    is_command = words[0] == "apply"
    done = corral("compare", *words, *(() if is_command else ("--no-durable",)), cwd=workspace)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert not os.path.exists(workspace.parent / "corral-home" / "comparisons")


@needs_sandbox
@pytest.mark.deep
def test_held_out_scenarios_decide_and_no_agent_reads_them(
    repository: Path, tmp_path: Path
) -> None:
    held_out = tmp_path / "held-out"
    held_out.mkdir()
    (held_out / "CANARY.toml").write_text('class = "text"\ncommand = "grep -q fixed file"\n')
    script = f"{WORKS[:-6]}sh cat {held_out}/* > seen || true\nresult"
    words = ("--scenarios", str(held_out), "--approve", "all", "--json", "--no-durable")
    done = run(*BOTH, *words, cwd=repository, prompt=script)
    assert done.returncode == 0, done.stderr
    (task,) = json.loads(done.stdout)["tasks"]
    flash, pro = task["attempts"]
    assert (flash["verdict"], pro["verdict"]) == ("failed", "passed")
    assert "0 of 1 held-out scenarios are satisfied" in flash["reason"]
    assert "CANARY" not in done.stdout + done.stderr
    assert git(repository, "show", f"{pro['commit']}:seen") == ""
    done = run("-a", FLASH, "--scenarios", str(tmp_path / "none"), cwd=repository)
    assert done.returncode == 2
