"""The screen that a person sees, compared with golden files: run, chat, pipeline and batch."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.goldens import check_golden
from support.pipeline_command import GATE
from support.screens import Screen, masked, screen

from corral.testing import Call, ModelServer, Request, Turn, hang, say

GOLDENS = Path(__file__).parent / "screens"
MODEL = ("--model", "gemini:gemini-2.5-flash")
SIZES = pytest.mark.parametrize("columns", [80, 120])
ANSWER = """\
# Result

The function `add` in **a.py** was wrong: it subtracted its second argument from the first one. I \
have changed the sign, and *nothing else*. See [the docs](https://docs.example/add).

1. read the file
2. change one line, which is the one that returns the value, because all the other lines were right
   - [x] tested
   - [ ] released

```python
def add(a, b):
    return a + b
```

| name | what it does |
|---|---|
| add | adds **two** numbers |
| 加 | the same in another language |

> Small steps.
"""


@contextmanager
def corral(
    *words: str, cwd: Path, env: dict[str, str], columns: int, color: bool = True
) -> Generator[Screen]:
    env = {**env, **({} if color else {"NO_COLOR": "1"})}
    with screen(*words, cwd=cwd, env=env, size=(60, columns), term="xterm-256color") as shown:
        yield shown


def check(name: str, columns: int, shown: Screen) -> None:
    check_golden(GOLDENS / f"{name}-{columns}.txt", masked(shown.shown))


def pieces(text: str, size: int = 7) -> list[str]:
    """The text in small chunks, as a model sends it."""
    return [text[at : at + size] for at in range(0, len(text), size)]


@SIZES
def test_a_run_shows_its_tool_calls_and_the_answer_as_markdown(
    workspace: Path, columns: int
) -> None:
    (workspace / "a.py").write_text("def add(a, b):\n    return a - b\n")
    edit = {"file_path": "a.py", "old_string": "a - b", "new_string": "a + b"}
    script = [
        Turn(
            text=pieces("I read the file first."), calls=[Call("read_file", {"file_path": "a.py"})]
        ),
        Turn(calls=[Call("edit_file", edit), Call("shell", {"command": "rm -rf build"})]),
        Turn(text=pieces(ANSWER), usage={"input": 1200, "output": 345}),
    ]
    run = ("run", *MODEL, "--approve", "edits", "--deny-tool", "shell", "Fix add")
    with (
        ModelServer(script) as server,
        corral(*run, cwd=workspace, env=server.env, columns=columns) as shown,
    ):
        assert shown.end() == 0, shown.shown
    check("run", columns, shown)


@SIZES
def test_unfinished_text_and_the_status_line_are_on_the_screen_together(
    workspace: Path, columns: int
) -> None:
    """The first chunk of an answer is the one that a status line would erase."""
    with (
        ModelServer([hang("Once upon a time, **there")]) as server,
        corral("run", *MODEL, "Go", cwd=workspace, env=server.env, columns=columns) as shown,
    ):
        shown.until_true(lambda: "Once upon" in shown.shown and "answering" in shown.shown)
        for _ in range(10):  # several frames of the status line
            shown.read()
        shown.until_true(lambda: "answering" in shown.shown)
        check("unfinished", columns, shown)
        shown.interrupt()
        assert shown.end() == 130
    check("interrupted", columns, shown)


@SIZES
@pytest.mark.deep_but_first
def test_a_chat_keeps_questions_and_answers_on_the_screen(workspace: Path, columns: int) -> None:
    (workspace / "notes.txt").write_text("one\ntwo\nthree\n")
    edit = {"file_path": "notes.txt", "old_string": "two", "new_string": "2"}
    script = [
        say("Hello. What can I do?"),
        Turn(calls=[Call("edit_file", edit)]),
        Turn(text=pieces("I have changed `notes.txt`.")),
        Turn(calls=[Call("shell", {"command": "make\nmake test"})]),
        say("Then I do not run it."),
    ]
    with (
        ModelServer(script) as server,
        corral("chat", *MODEL, cwd=workspace, env=server.env, columns=columns) as shown,
    ):
        shown.until_true(lambda: shown.lines[-1:] == [">"])
        shown.type("hi\n")
        shown.until_shown("What can I do?")
        shown.until_true(lambda: shown.lines[-1:] == [">"])
        shown.type("change two\n")
        shown.until_shown("allow once (y)")
        shown.type("y")
        shown.until_shown("I have changed")
        shown.until_true(lambda: shown.lines[-1:] == [">"])
        shown.type("make it\n")
        shown.until_true(lambda: shown.shown.count("allow once (y)") == 2)
        shown.type("n")
        shown.until_shown("Then I do not")
        shown.until_true(lambda: shown.lines[-1:] == [">"])
        shown.type("/exit\n")
        assert shown.end() == 0
    assert (workspace / "notes.txt").read_text() == "one\n2\nthree\n"
    check("chat", columns, shown)


@pytest.mark.deep
@SIZES
def test_a_pipeline_prints_each_node_once_and_keeps_the_text_of_its_gate(
    workspace: Path, columns: int
) -> None:
    question = "Ship it?\\n\\nThe tests pass.\\nThe docs are updated."
    graph = GATE.replace('label="Ship it?"', f'label="{question}"')
    graph = graph.replace("start -> ask", 'build [shape=parallelogram, tool_command="echo built"]\n'
                          "start -> build -> ask")  # fmt: skip
    (workspace / "gate.dot").write_text(graph)
    run = ("pipeline", "run", "gate.dot", "--run-dir", "out")
    with corral(*run, cwd=workspace, env={}, columns=columns) as shown:
        shown.until_shown("[N] No")
        shown.type("y\n")
        assert shown.end() == 0, shown.shown
    check("pipeline", columns, shown)


@pytest.mark.deep
@SIZES
def test_a_batch_prints_failures_above_its_bar(workspace: Path, columns: int) -> None:
    tasks = "".join(json.dumps({"id": f"t{n}", "n": n}) + "\n" for n in range(3))
    (workspace / "tasks.jsonl").write_text(tasks)
    script = [
        Turn(text="ok", match="n=0"),
        Turn(status=400, message="bad request", match="n=1", repeat="forever"),
        hang(
            "",
        ),
    ]
    words = ("batch", "tasks.jsonl", *MODEL, "-p", "n={{n}}", "-o", "out.jsonl", "--name", "b")
    with (
        ModelServer(script) as server,
        corral(*words, "-n", "1", cwd=workspace, env=server.env, columns=columns) as shown,
    ):
        shown.until_shown("2/3")
        check("batch-running", columns, shown)
        shown.interrupt()
        assert shown.end() == 130
    check("batch-interrupted", columns, shown)


@SIZES
def test_a_comparison_shows_each_agent_until_it_has_answered(workspace: Path, columns: int) -> None:
    agents = ("gemini:gemini-2.5-flash", "gemini:gemini-2.5-pro")

    def answer(request: Request) -> Turn:
        return say("It is **small**.") if request.model == "gemini-2.5-flash" else hang("It")

    words = (
        "compare",
        "What is it?",
        "--agent",
        ",".join(agents),
        "--name",
        "two",
        "--no-durable",
    )
    with (
        ModelServer(answer) as server,
        corral(*words, cwd=workspace, env=server.env, columns=columns) as shown,
    ):
        shown.until_true(lambda: "small" in shown.shown and "1/2" in shown.lines[-1])
        check("compare-running", columns, shown)
        shown.interrupt()
        assert shown.end() == 130
