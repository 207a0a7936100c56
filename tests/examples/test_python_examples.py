"""The Python examples run with a scripted model, and are shorter than the peer's version."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import answering_gemini
from support.example_lines import COUNTS, code_lines
from support.installed_agents import installed
from support.real_agents import KEY

from corral.testing import Call, ModelServer, Request, Turn, fail, hang

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RUN_NOTEBOOK = ROOT / "tests" / "programs" / "run_notebook.py"
COMPARED = sorted(
    path.name
    for path in EXAMPLES.iterdir()
    if path.is_file() and path.name != "README.md" and COUNTS.search(path.read_text("utf-8"))
)


def test_ten_jobs_or_more_are_compared_with_a_peer() -> None:
    assert len(COMPARED) >= 10


@pytest.mark.parametrize("name", COMPARED)
def test_an_example_has_fewer_lines_than_the_version_of_the_peer(name: str) -> None:
    for counted in COUNTS.finditer((EXAMPLES / name).read_text("utf-8")):
        ours, peer = code_lines(EXAMPLES / name), code_lines(EXAMPLES / counted[4])
        assert (ours, peer) == (int(counted[1]), int(counted[3]))
        assert ours < peer


def answer(request: Request) -> Turn:
    """A model that has an answer for every example."""
    text = request.last_text
    if "blank after login" in text:
        return Turn(text='{"title": "blank page", "severity": 4}')
    if "Never answer" in text:
        return hang("started")
    if "It is a small project." in text:
        return Turn(text='{"summary": "small", "problems": ["a typo"]}')
    return Turn(text="It is a small project.", usage={"input": 10, "output": 5})


@pytest.fixture
def project(workspace: Path) -> Path:
    (workspace / "README.md").write_text("# A smal project\n")
    return workspace


def environment(server: ModelServer, workspace: Path, agent: str = "") -> dict[str, str]:
    """The variables of a user who has a key and, with ``agent``, that agent on the path; otherwise
    a program like the Gemini CLI, which only answers."""
    lane = server.lane(f"examples-{workspace.parent.name}", answer)
    answering = answering_gemini.folder_for_path
    path = [str(Path(installed(agent)).parent) if agent else answering(workspace.parent)]
    return {
        **os.environ,
        **lane.env,
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": lane.url,
        "PATH": os.pathsep.join([*path, os.environ["PATH"]]),
        "PYTHONWARNINGS": "error",
    }


def run(env: dict[str, str], cwd: Path, *argv: str) -> str:
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_the_litellm_script_runs(model_server: ModelServer, project: Path) -> None:
    env = environment(model_server, project)
    script = str(EXAMPLES / "migrate_litellm.py")
    shown = run(env, project, script, "The page is blank after login")
    assert shown.startswith("Ticket(title='blank page', severity=4)")
    assert shown.endswith("It is a small project.")


@pytest.mark.deep
@pytest.mark.parametrize(
    "agent",
    [
        pytest.param("gemini-cli", marks=pytest.mark.gemini_cli),
        pytest.param("claude-cli", marks=pytest.mark.claude),
    ],
)
def test_the_claude_agent_sdk_script_runs_with_two_agents(
    agent: str, model_server: ModelServer, project: Path
) -> None:
    env = environment(model_server, project, agent)
    script = str(EXAMPLES / "migrate_claude_agent_sdk.py")
    shown = run(env, project, script, agent)
    assert shown.count("It is a small project.\n") == 2
    assert len(re.findall(r"^\d+ ms, \d+ tokens$", shown, re.MULTILINE)) == 2


@pytest.mark.deep
def test_the_notebook_runs_and_shows_its_results(model_server: ModelServer, project: Path) -> None:
    env = environment(model_server, project)
    shown = run(env, project, str(RUN_NOTEBOOK), str(EXAMPLES / "notebook.ipynb"))
    assert "OUT <div><b>Result success</b>" in shown
    assert shown.count("It is a small project.") == 2
    assert "OUT Review(summary='small', problems=['a typo'])" in shown


@pytest.mark.deep
@pytest.mark.gemini_cli
def test_the_gemini_cli_calls_the_python_function(model_server: ModelServer, project: Path) -> None:
    env = environment(model_server, project, "gemini-cli")
    ask = Call("mcp_corral_service_status", {"name": "queue"})

    def model(request: Request) -> Turn:
        results = [str(result) for message in request.history for result in message.results]
        if not any("degraded since 09:40" in result for result in results):
            return Turn(calls=[ask])
        return Turn(text="The queue.", usage={"input": 10, "output": 5})

    env["GOOGLE_GEMINI_BASE_URL"] = model_server.lane(f"tool-{project.parent.name}", model).url
    shown = run(env, project, str(EXAMPLES / "python_tool.py"), "Which service is not healthy?")
    assert re.fullmatch(r"The queue\.\n\d+ tokens\n", shown)


def budget_script(
    server: ModelServer, project: Path, script: list[Turn]
) -> subprocess.CompletedProcess[str]:
    env = environment(server, project)
    env["GOOGLE_GEMINI_BASE_URL"] = server.lane(f"budget-{project.parent.name}", script).url
    argv = [sys.executable, str(EXAMPLES / "budget_and_limit.py"), "first", "second"]
    return subprocess.run(
        argv, cwd=project, env=env, capture_output=True, text=True, timeout=110, check=False
    )


def test_the_budget_example_waits_at_a_limit_and_continues(
    model_server: ModelServer, project: Path
) -> None:
    busy = fail(429, "Too many requests", retry_after=0.1)
    script = [*[busy] * 3, Turn(text="one", usage={"input": 10, "output": 5}), Turn(text="two")]
    done = budget_script(model_server, project, script)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"first: one\nsecond: two\n\$0\.000\d spent, 0 prompts left\n", done.stdout)
    assert done.stderr.count("waiting: ") == 1


def test_the_budget_example_stops_at_the_budget(model_server: ModelServer, project: Path) -> None:
    expensive = Turn(calls=[Call("list_dir")], usage={"input": 10, "output": 30_000})
    done = budget_script(model_server, project, [expensive, Turn(text="never")])
    assert done.returncode == 1
    assert "max_cost=0.05" in done.stderr
    assert re.search(r"corral run --resume \S+ continues", done.stderr)


@contextmanager
def served(
    env: dict[str, str], cwd: Path, app: Path = EXAMPLES / "web_streaming.py"
) -> Generator[tuple[int, http.client.HTTPConnection]]:
    """An application behind uvicorn with uvloop: its process, and a connection to it."""
    options = ["--port", "0", "--loop", "uvloop", "--app-dir", str(app.parent)]
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", f"{app.stem}:app", *options],
        cwd=cwd,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            pytest.fail("uvicorn did not start")
        yield process.pid, http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=100)
    finally:
        process.terminate()
        process.wait(60)
        process.stderr.close()


def ask(connection: http.client.HTTPConnection, prompt: str) -> http.client.HTTPResponse:
    connection.request("GET", f"/ask?prompt={prompt}")
    return connection.getresponse()


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def wait_for_no_children(pid: int) -> None:
    deadline = time.monotonic() + 60
    while children(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children(pid) == []


@pytest.mark.deep
@pytest.mark.gemini_cli
def test_the_web_server_streams_events_and_ends_the_agent_of_a_client_that_leaves(
    model_server: ModelServer, project: Path
) -> None:
    env = environment(model_server, project, "gemini-cli")
    with served(env, project) as (pid, connection):
        response = ask(connection, "What+is+it")
        body = response.read().decode()
        kinds = re.findall(r"^event: (\w+)$", body, re.MULTILINE)
        assert response.headers["content-type"].startswith("text/event-stream")
        assert (kinds[0], kinds[-1]) == ("init", "done")
        done = json.loads(body.strip().rpartition("data: ")[2])
        assert (done["type"], done["status"]) == ("done", "success")
        wait_for_no_children(pid)

        response = ask(connection, "Never+answer")
        while b"event: text" not in response.readline():
            pass
        assert children(pid)
        response.close()
        connection.close()
        wait_for_no_children(pid)


@pytest.mark.deep
@pytest.mark.gemini_cli
def test_a_request_to_a_web_server_runs_the_built_in_agent_and_one_that_is_metered(
    model_server: ModelServer, project: Path
) -> None:
    env = environment(model_server, project, "gemini-cli")
    with served(env, project, ROOT / "tests" / "programs" / "web_runs.py") as (pid, connection):
        for query in ("agent=corral&model=gemini:gemini-2.5-flash", "agent=gemini-acp"):
            connection.request("GET", f"/?{query}")
            assert connection.getresponse().read() == b"uvloop success It is a small project."
        connection.close()
        wait_for_no_children(pid)
