"""``corral run --session``: the agent stays warm between calls."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import scripted_acp
from support.pipeline_command import corral

from corral._sessions import store
from corral._sessions.warm.client import WarmRequest, WarmTurn
from corral._sessions.warm.names import WarmFiles
from corral.events import Decision
from corral.testing import ModelServer, say

AGENT = scripted_acp.agent("--loads")


@pytest.fixture
def session(workspace: Path) -> Iterator[Path]:
    """A workspace in which the named sessions are stopped at the end."""
    yield workspace
    corral("sessions", "stop", "--all", cwd=workspace)


def run(text: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return corral("run", "--session", "fix", "--agent", AGENT, *words, text, cwd=cwd)


def test_two_calls_share_one_agent_process_and_one_session(session: Path) -> None:
    first = run("pid", cwd=session)
    assert first.returncode == 0, first.stderr
    second = corral("run", "--session", "fix", "pid", cwd=session)  # the agent is known
    assert second.stdout == first.stdout
    listed = json.loads(corral("runs", "list", "--json", cwd=session).stdout)
    assert [each["tries"] for each in listed] == [2]
    assert "name       fix\n" in corral("runs", "show", "last", cwd=session).stdout


@pytest.mark.deep
def test_stop_ends_the_process_and_keeps_the_conversation(session: Path) -> None:
    first = run("pid", cwd=session).stdout
    assert "stopped" in corral("sessions", "stop", "fix", cwd=session).stdout
    repeated = run("pid", cwd=session)
    assert repeated.returncode == 0, repeated.stderr
    assert repeated.stdout != first
    listed = json.loads(corral("runs", "list", "--json", cwd=session).stdout)
    assert [each["tries"] for each in listed] == [2]


@pytest.mark.deep
def test_a_name_whose_session_is_gone_is_an_error_that_says_what_to_do(session: Path) -> None:
    assert run("text hi", cwd=session).returncode == 0
    corral("sessions", "stop", "fix", cwd=session)
    store.find("last").close(keep=False)
    gone = run("text hi", cwd=session)
    assert gone.returncode == 4
    assert "corral sessions stop --forget fix" in gone.stderr
    assert corral("sessions", "stop", "--forget", "fix", cwd=session).returncode == 0
    assert run("text hi", cwd=session).stdout == "hi\n"


@pytest.mark.deep
def test_what_is_denied_because_no_one_can_be_asked_is_printed(session: Path) -> None:
    done = run("text hi", cwd=session)
    assert "there is no terminal to ask on: write, shell" in done.stderr


@pytest.mark.deep
def test_events_are_printed_as_by_other_runs(session: Path) -> None:
    lines = run("text hi", "--json", cwd=session).stdout.splitlines()
    kinds = [json.loads(line)["type"] for line in lines]
    assert kinds[0] == "init"
    assert kinds[-1] == "done"


@pytest.mark.deep
def test_a_changed_configuration_is_not_ignored(session: Path, tmp_path: Path) -> None:
    """A policy that was made stricter must hold for the next prompt."""
    config = tmp_path / "strict.toml"
    assert run("text hi", cwd=session).returncode == 0
    config.write_text('[defaults]\npolicy = "reads"\n')
    words = ("run", "--session", "fix", "text hi")
    refused = corral("--config", str(config), *words, cwd=session)
    assert refused.returncode == 2
    assert "session 'fix' was started with another configuration" in refused.stderr
    corral("sessions", "stop", "fix", cwd=session)
    assert corral("--config", str(config), *words, cwd=session).stdout == "hi\n"
    assert "another configuration" in corral(*words, cwd=session).stderr
    config.write_text("[defaults]\ntimeout = 90\n")
    assert "another configuration" in corral("--config", str(config), *words, cwd=session).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--resume", "last"), "--session and --resume are both given"),
        (("--no-keep",), "--session and --no-keep are both given"),
        (("--dry-run",), "--session and --dry-run are both given"),
        (("--agent", "nothing-like-it"), "no agent is called"),
    ],
)
def test_what_does_not_fit_is_an_error(session: Path, words: tuple[str, ...], message: str) -> None:
    done = corral("run", "--session", "fix", *words, "go", cwd=session)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.deep
def test_the_exit_code_is_that_of_the_run(session: Path) -> None:
    late = run("hang", "--timeout", "1", cwd=session)
    assert late.returncode == 3, late.stderr


def test_an_idle_limit_without_a_session_is_an_error(workspace: Path) -> None:
    done = corral("run", "--session-idle", "5m", "go", cwd=workspace)
    assert done.returncode == 2
    assert "--session-idle is for --session" in done.stderr


SCHEMA = json.dumps(
    {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
)


@pytest.mark.deep
def test_the_answer_of_a_named_session_fits_a_schema(session: Path) -> None:
    first = run('text {"count": 3}', "--schema", SCHEMA, cwd=session)
    assert (first.returncode, first.stdout) == (0, '{"count": 3}\n'), first.stderr
    warm = run('text {"count": 4}', "--result", "--schema", SCHEMA, cwd=session)
    result = json.loads(warm.stdout)
    assert (result["status"], result["output"]) == ("success", {"count": 4}), warm.stderr
    failed = run('text {"count": 4}', "--schema", SCHEMA, "--fail-on", "count=4", cwd=session)
    assert (failed.returncode, failed.stdout) == (13, '{"count": 4}\n')
    events = run('text {"count": 5}', "--json", "--schema", SCHEMA, cwd=session)
    assert json.loads(events.stdout.splitlines()[-1])["output"] == {"count": 5}
    plain = run("text hi", "--result", cwd=session)
    assert json.loads(plain.stdout)["text"] == "hi"
    listed = json.loads(corral("runs", "list", "--json", cwd=session).stdout)
    assert [each["tries"] for each in listed] == [5]


@pytest.mark.deep
def test_a_named_session_is_asked_to_correct_an_answer_that_does_not_fit(session: Path) -> None:
    wrong = run('text {"count": "x"}', "--schema", SCHEMA, cwd=session)
    assert wrong.stdout == ""
    assert wrong.returncode != 0  # the scripted program cannot answer the request to correct it
    listed = json.loads(corral("runs", "list", "--json", cwd=session).stdout)
    assert [each["tries"] for each in listed] == [2]
    invalid = run("text hi", "--schema", '{"type": "strange"}', cwd=session)
    assert invalid.returncode == 2
    assert "the schema cannot be used" in invalid.stderr


def start(prompt: str, cwd: Path) -> subprocess.Popen[str]:
    """A further prompt, in a process that a test signals or kills."""
    assert run("text first", cwd=cwd).returncode == 0
    return subprocess.Popen(
        [sys.executable, "-m", "corral", "run", "--session", "fix", "--quiet", prompt],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_each_message_of_the_answer_starts_on_a_new_line(session: Path) -> None:
    prompt = "text one\ntool c read x\ntool-done c\ntext two\ntext  and more"
    assert run(prompt, "--quiet", cwd=session).stdout == "two and more\n"


@pytest.mark.deep
def test_a_permission_request_is_denied_although_the_session_was_started_by_a_person(
    session: Path,
) -> None:
    async def allow(_: object) -> Decision:
        return "allow_once"

    async def open_session() -> None:
        request = WarmRequest(
            name="fix", agent=AGENT, text="text hi", options={"cwd": str(session)}, interactive=True
        )
        async for _ in WarmTurn(WarmFiles.of("fix", str(session)), request, ask=allow):
            pass

    asyncio.run(open_session())
    assert run("ask execute make it", "--quiet", cwd=session).stdout == "[c-no]\n"


@pytest.mark.deep
def test_an_interrupted_prompt_is_cancelled_and_the_session_goes_on(session: Path) -> None:
    interrupted = start("touch began\nhang", session)
    _wait_for(session / "began")
    interrupted.send_signal(signal.SIGINT)
    interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130
    assert run("text still here", cwd=session).stdout == "still here\n"


@pytest.mark.deep
def test_a_process_that_ends_meanwhile_is_reported(session: Path) -> None:
    prompt = start("touch began\nhang", session)
    _wait_for(session / "began")
    stored = WarmFiles.of("fix", os.path.realpath(session)).stored()
    assert stored is not None
    os.kill(stored.pid, signal.SIGKILL)
    _, err = prompt.communicate(timeout=60)
    assert prompt.returncode == 1
    assert "the background process of the session ended unexpectedly" in err


@pytest.mark.deep
def test_a_reader_that_has_gone_ends_the_command(session: Path) -> None:
    prompt = start("touch began\nuntil go\ntext hello", session)
    _wait_for(session / "began")
    assert prompt.stdout is not None
    assert prompt.stderr is not None
    prompt.stdout.close()
    (session / "go").touch()
    with prompt.stderr:
        assert prompt.wait(60) == 141


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert file.exists()


def test_a_model_with_its_vendor_runs_the_built_in_agent(session: Path) -> None:
    words = ("run", "--session", "quick", "-m", "gemini:gemini-2.5-flash", "--quiet", "hi")
    with ModelServer([say("Hello.")]) as server:
        done = corral(*words, cwd=session, env=server.env)
    assert (done.returncode, done.stdout) == (0, "Hello.\n"), done.stderr
    assert store.find("last").meta.agent == "corral"
