"""The ready workflows of ``corral workflow new``, each run to its end with a scripted model.

Each check takes the agent, and a function that makes the options of a run whose model answers with
the given function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.repositories import git

from corral import pipelines, workflows
from corral._cli.starters import find_starters
from corral._workflows import definition
from corral.run_kwargs import RunKwargs
from corral.testing import Request, Turn, call, say

Connect = Callable[[Callable[[Request], Turn]], RunKwargs]
FINDING = '{"file": "add.py", "line": 1, "problem": "It subtracts"}'


def new_starter(folder: Path, name: str) -> workflows.Workflow[..., Any]:
    starter = find_starters("corral._workflows", ".py")[name]
    path = folder / starter.file
    path.write_text(starter.text)
    return definition.load_text(str(path), starter.text)


def make_project(folder: Path) -> Path:
    """A repository with a wrong function and its test."""
    folder.mkdir()
    (folder / "add.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "check.py").write_text("from add import add\nassert add(1, 2) == 3\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "t")
    git(folder, "config", "user.email", "t@localhost")
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def run_starter(
    folder: Path,
    name: str,
    options: RunKwargs,
    answers: Sequence[pipelines.Answer | str] = (),
    **args: object,
) -> workflows.WorkflowResult[Any]:
    given: RunKwargs = {**options, "cwd": folder}
    return workflows.run_sync(
        new_starter(folder.parent, name),
        args,
        **given,
        durable=False,
        interviewer=pipelines.Queued(answers),
    )


def prompt_of(request: Request) -> str:
    return request.last_text


def worked(request: Request) -> bool:
    """Whether the model has called a tool since the last prompt."""
    for message in reversed(request.history):
        if message.results:
            return True
        if message.role == "user" and message.texts:
            return False
    return False


def fix(request: Request, text: str = "def add(a, b):\n    return a + b\n") -> Turn:
    if worked(request):
        return say("Fixed.")
    return call("write_file", path="add.py", content=text)


def check_plan_review(folder: Path, agent: str, connect: Connect) -> None:
    reviews = ['{"ok": false, "problems": "It returns None"}', '{"ok": true}', '{"ok": true}']

    def answer(request: Request) -> Turn:
        prompt = prompt_of(request)
        if prompt.startswith("Plan this"):
            return say("1. Add, instead of subtracting.")
        if "Review what was changed" in prompt:
            return say(reviews.pop(0))
        if "Carry out the plan" in prompt and "carefully" in "\n".join(request.texts):
            return fix(request, "def add(a, b):\n    a + b\n")
        return fix(request, f"def add(a, b):  # {'returned' in prompt}\n    return a + b\n")

    project = make_project(folder / "project")
    result = run_starter(
        project,
        "plan-review",
        connect(answer),
        [
            pipelines.Answer(value="yes", text="carefully"),
            pipelines.Answer(value="change", text="say what is returned"),
            "yes",
        ],
        task="add(1, 2) must be 3",
        agent=agent,
    )
    assert result.output == "accepted", result.reason
    assert result.steps == [
        *("plan", "approve_plan", "implement", "review", "implement-2", "review-2"),
        *("accept", "implement-3", "review-3", "accept-2"),
    ]
    assert (project / "add.py").read_text() == "def add(a, b):  # True\n    return a + b\n"


def check_fix_test(folder: Path, agent: str, connect: Connect) -> None:
    wrong = ["def add(a, b):\n    return 2\n"]

    def answer(request: Request) -> Turn:
        if worked(request):
            if wrong:
                wrong.pop()
            return say("Fixed.")
        return fix(request, *wrong)

    project = make_project(folder / "project")
    result = run_starter(
        project, "fix-test", connect(answer), test="python3 -B check.py", all_tests="true",
        agent=agent,
    )  # fmt: skip
    assert result.output == "Fixed.", result.reason
    assert result.steps == ["before", "fix", "check"]
    assert not wrong
    second = run_starter(
        project, "fix-test", connect(answer), test="python3 -B check.py", agent=agent
    )
    assert (second.output, second.steps) == ("the test does not fail", ["before"])


def check_migrate_files(folder: Path, agent: str, connect: Connect) -> None:
    def answer(request: Request) -> Turn:
        found = re.search(r"in the file (\w+\.txt)", "\n".join(request.texts))
        name = found[1] if found else ""
        if name == "same.txt" or worked(request):
            return say("Done.")
        return call("write_file", path=name, content="BAD" if name == "bad.txt" else "new\n")

    project = make_project(folder / "project")
    for name in ("one", "two", "bad", "same"):
        (project / f"{name}.txt").write_text("old\n")
    git(project, "add", "--all")
    git(project, "commit", "-q", "-m", "files")
    result = run_starter(
        project, "migrate-files", connect(answer), task="Say new", files="*.txt",
        gate="! grep -q BAD *.txt", agent=agent,
    )  # fmt: skip
    found = result.output
    assert sorted(found.changed) == ["bad.txt", "one.txt", "two.txt"], found
    assert (found.unchanged, found.failed) == (["same.txt"], [])
    first, reason = found.merged.split("\n")
    assert first == "2 merged into main, 1 not", found.merged
    assert "failed: the gate failed" in reason
    texts = {path.stem: path.read_text() for path in project.glob("*.txt")}
    assert texts == {"one": "new\n", "two": "new\n", "bad": "old\n", "same": "old\n"}


def check_review_pull_request(folder: Path, agent: str, connect: Connect) -> None:
    seen = set[str]()

    def answer(request: Request) -> Turn:
        asked = [text for each in request.history if each.role == "user" for text in each.texts]
        prompt = "\n".join(asked)
        if "Check each" in prompt:
            assert prompt.count("It subtracts") == 3
            return say(f'{{"findings": [{FINDING}]}}')
        seen.update(re.findall(r"Look only at (\w+)", prompt))
        assert "+    return a - b  # sub" in prompt
        return say(f'{{"findings": [{FINDING}]}}')

    project = make_project(folder / "project")
    (project / "add.py").write_text("def add(a, b):\n    return a - b  # subtracts\n")
    git(project, "commit", "-q", "-a", "-m", "second")
    result = run_starter(
        project, "review-pull-request", connect(answer), base="main~1",
        agents=[agent],
    )  # fmt: skip
    assert [each.problem for each in result.output.findings] == ["It subtracts"]
    assert sorted(seen) == ["correctness", "security", "tests"]


def check_upgrade_dependency(folder: Path, agent: str, connect: Connect) -> None:
    project = make_project(folder / "project")
    (project / "add.py").write_text("def add(a, b):\n    return a + b\n")
    git(project, "commit", "-q", "-a", "-m", "right")

    def answer(request: Request) -> Turn:
        if worked(request):
            return say("Fixed.")
        assert "calc was upgraded" in "\n".join(request.texts)
        return call("write_file", path="add.py", content="def add(a, b, c=0):\n    return a + b\n")

    upgrade = "echo 'from add import add; assert add(1, 2, 0) == 3' > check.py"
    args = {"package": "calc", "upgrade": upgrade, "test": "python3 -B check.py", "agent": agent}
    result = run_starter(project, "upgrade-dependency", connect(answer), ["yes"], **args)
    assert result.output == "upgraded and committed", result.reason
    assert "fix" in result.steps
    assert git(project, "log", "-1", "--format=%s") == "Upgrade calc"
    assert git(project, "status", "--porcelain") == ""


CHECKS = {
    "plan-review": check_plan_review,
    "fix-test": check_fix_test,
    "migrate-files": check_migrate_files,
    "review-pull-request": check_review_pull_request,
    "upgrade-dependency": check_upgrade_dependency,
}
