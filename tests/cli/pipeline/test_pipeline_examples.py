"""The examples run: simulated, against scripted models, and one with the real Gemini CLI."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.pipeline_command import EXAMPLES, corral, lines_of, pipeline

from corral.testing import Call, ModelServer, Request, Turn, say

ALL = sorted(EXAMPLES.glob("*.dot"))
MODEL = ("--model", "gemini:gemini-2.5-flash")


def run(
    name: str, *words: str, cwd: Path, server: ModelServer, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    file = str(EXAMPLES / f"{name}.dot")
    return pipeline("run", file, *words, cwd=cwd, env=server.env, timeout=timeout)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param((), id="durable", marks=pytest.mark.deep),
        pytest.param(("--no-durable",), id="in-memory"),
    ],
)
@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_every_example_runs_simulated_without_a_key(
    path: Path, way: tuple[str, ...], workspace: Path
) -> None:
    words = ("--simulate", "--auto-approve", "--json", *way)
    done = pipeline("run", str(path), *words, cwd=workspace)
    assert done.returncode == 0, done.stderr
    result = lines_of(done)[-1]
    assert result["status"] == "success"
    assert not [node for node, end in result["outcomes"].items() if end["status"] == "fail"]


def test_one_gemini_turn(workspace: Path) -> None:
    with ModelServer([say("Hello there.")]) as server:
        done = run("gemini", "--goal", "Greet me", cwd=workspace, server=server)
        assert (done.returncode, done.stdout) == (0, "Hello there.\n"), done.stderr
        assert [request.model for request in server.requests] == ["gemini-2.5-flash"]
        assert server.requests[0].last_text == "Greet me"


@pytest.mark.deep
def test_three_providers_pass_a_text_on(workspace: Path) -> None:
    def answer(request: Request) -> Turn:
        return say(f"<{request.model.split('-')[0]}>")

    with ModelServer(answer) as server:
        done = run("three-providers", cwd=workspace, server=server)
        assert (done.returncode, done.stdout) == (0, "<gpt>\n"), done.stderr
        asked = [request for request in server.requests if not request.aside]
        assert [request.model.split("-")[0] for request in asked] == ["gemini", "claude", "gpt"]
        assert asked[1].last_text.endswith("<gemini>")
        assert "<claude>" in asked[2].last_text


@pytest.mark.deep
def test_the_tool_example_calls_its_tool(workspace: Path) -> None:
    (workspace / "a.txt").write_text("apples\n")

    def answer(request: Request) -> Turn:
        if "good listing" in request.last_text:
            return say("It is good.")
        if not request.tool_results:
            return Turn(calls=[Call("read_file", {"file_path": "a.txt"})])
        if len(request.tool_results) == 1:
            listing = {"file_path": "LISTING.md", "content": "a.txt: apples\n"}
            return Turn(calls=[Call("write_file", listing)])
        return say("Written.")

    with ModelServer(answer) as server:
        done = run("tool-round-trip", "--approve", "edits", cwd=workspace, server=server)
        assert (done.returncode, done.stdout) == (0, "It is good.\n"), done.stderr
        assert (workspace / "LISTING.md").read_text() == "a.txt: apples\n"
        assert "a.txt" in server.requests[0].last_text
        assert "apples" in str(server.requests[1].tool_results)
        assert "a.txt: apples" in server.requests[-1].last_text


class Author:
    """A model that plans, writes, finds one problem, and fixes it."""

    def __init__(self) -> None:
        self.reviews = 0

    def __call__(self, request: Request) -> Turn:
        task = request.last_text
        if request.tool_results:
            return say("Done.")
        if "Review what was made" in task:
            self.reviews += 1
            verdict = "CHANGES\nToo short." if self.reviews == 1 else "OK"
            return Turn(calls=[Call("write_file", {"file_path": "REVIEW.md", "content": verdict})])
        if "Carry out the plan" in task:
            return Turn(calls=[Call("write_file", {"file_path": "HELLO.md", "content": "Hi"})])
        if "Fix what" in task:
            return Turn(calls=[Call("write_file", {"file_path": "HELLO.md", "content": "Hello!"})])
        return say("First this, then that.")


@pytest.mark.deep
def test_plan_review_repeats_until_the_review_passes(workspace: Path) -> None:
    with ModelServer(Author()) as server:
        words = (*MODEL, "--approve", "edits", "--json")
        done = run("plan-review", *words, cwd=workspace, server=server)
        assert done.returncode == 10, done.stderr
        asked = lines_of(done)[-1]
        assert "First this, then that." in asked["questions"][0]["text"]
        name = asked["run"]

        def answer(choice: str, *more: str) -> subprocess.CompletedProcess[str]:
            given = corral("runs", "answer", name, choice, *more, cwd=workspace)
            assert given.returncode == 0, given.stderr
            return corral("runs", "resume", name, "--json", cwd=workspace, env=server.env)

        assert answer("revise the plan").returncode == 10
        assert answer("approve").returncode == 10
        assert (workspace / "HELLO.md").read_text() == "Hello!"
        last = answer("A", "--text", "well done")
    assert last.returncode == 0, last.stderr
    assert lines_of(last)[-1]["completed"] == [
        "start", "plan", "approve", "plan", "approve", "generate", "review", "verdict",
        "revise", "review", "verdict", "accept", "done",
    ]  # fmt: skip


@pytest.mark.deep
def test_parallel_reviewers_are_joined(workspace: Path) -> None:
    def answer(request: Request) -> Turn:
        return say("The report." if "short report" in request.last_text else "Looked.")

    with ModelServer(answer) as server:
        done = run("parallel-review", *MODEL, "--json", cwd=workspace, server=server)
        assert done.returncode == 0, done.stderr
        asked = [request.last_text for request in server.requests if not request.aside]
    assert {text for text in asked if "look for" in text} == {
        "Review this project: look for security holes only.",
        "Review this project: look for what is hard to read only.",
        "Review this project: look for what is not tested only.",
    }
    result = lines_of(done)[-1]
    assert result["context"]["parallel.fan_in.best_id"] in {"security", "style", "tests"}
    assert "best was" in asked[-1]


@pytest.mark.deep
def test_a_manager_supervises_its_child_pipeline(workspace: Path) -> None:
    with ModelServer(lambda request: say(f"Heard: {request.last_text[-30:]}")) as server:
        done = run("manager", *MODEL, "--json", cwd=workspace, server=server)
        assert done.returncode == 0, done.stderr
        asked = [request.last_text for request in server.requests if not request.aside]
    assert [text.rpartition("\n")[2] for text in asked[:1]] == ["Say one."]
    assert "after two" in asked[1]
    assert "completed" in asked[2]


@pytest.mark.gemini_cli
@pytest.mark.timeout(240)
@pytest.mark.deep
def test_all_kinds_of_nodes_with_the_real_gemini_cli(
    gemini_program: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "a.txt").write_text("apples\n")
    monkeypatch.setenv("PATH", f"{Path(gemini_program).parent}:/usr/bin:/bin", prepend=":")

    def answer(request: Request) -> Turn:
        if "A title" in request.last_text:
            return say("On apples")
        if "Read NOTES.md" in request.last_text:
            if not request.tool_results:
                return Turn(calls=[Call("read_file", {"file_path": "NOTES.md"})])
            return say("It is right.")
        if not request.tool_results:
            notes = {"file_path": "NOTES.md", "content": "All about apples.\n"}
            return Turn(calls=[Call("write_file", notes)])
        return say("Written.")

    with ModelServer(answer) as server:
        words = ("--approve", "edits", "--json")
        done = run("mixed", *words, cwd=workspace, server=server, timeout=110)
        assert done.returncode == 10, done.stderr
        asked = lines_of(done)[-1]
        assert asked["questions"][0]["text"] == "Keep NOTES.md, with the title On apples?"
        assert corral("runs", "answer", asked["run"], "keep", cwd=workspace).returncode == 0
        words = ("resume", asked["run"], "--json")
        last = corral("runs", *words, cwd=workspace, env=server.env, timeout=110)
    assert last.returncode == 0, last.stderr
    result = lines_of(last)[-1]
    assert result["completed"] == [
        "start", "look", "write", "check", "title", "agree", "keep", "done",
    ]  # fmt: skip
    assert (workspace / "NOTES.md").read_text() == "All about apples.\n"
    assert "NOTES.md" in result["context"]["tool.output"]
