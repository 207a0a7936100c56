"""A model writes a workflow or a pipeline; what is wrong with it goes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.model_scripts import ModelClient, Script
from support.pipeline_command import corral
from support.real_agents import KEY
from support.sandbox import needs_sandbox

from corral._workflows import drafting
from corral._workflows.drafted import Bounds, find_bounds
from corral.errors import ConfigError, SchemaNotMet
from corral.testing import ModelServer, Request, Turn, say

MODEL = "gemini:gemini-2.5-flash"
BOUNDS = Bounds(agents=(MODEL,), steps=4, runs=2, cost=1.0)
WORKFLOW = f'''\
import corral
from corral.workflows import Flow


@corral.workflow
async def note(flow: Flow, text: str = "hi") -> str:
    """Write a note."""
    made = await flow.command("echo written > note", name="write")
    answer = await flow.generate("{MODEL}", f"Describe {{text}}")
    return f"{{answer}} {{made.ok}}"
'''
PIPELINE = f"""\
digraph note {{
    goal = "Write a note"
    max_cost = 1
    max_visits = 2
    start [shape=Mdiamond]
    work  [model="{MODEL}", policy=edits, prompt="$goal"]
    check [shape=parallelogram, tool_command="test -s note", sandbox=require]
    done  [shape=Msquare]
    start -> work -> check
    check -> done [condition="outcome=success"]
    check -> work [condition="outcome=fail"]
}}
"""


class Writer:
    """The scripted model of one test. ``prompts``: what it was sent."""

    def __init__(self, server: ModelServer, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self._client = ModelClient(server, f"draft-{name}")
        self._monkeypatch = monkeypatch
        self.prompts: list[str] = []

    def answers(self, *texts: str) -> None:
        left = [*texts]

        def answer(request: Request) -> Turn:
            self.prompts.append(request.last_text)
            return say(left.pop(0) if len(left) > 1 else left[0])

        script: Script = answer
        self._monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", self._client.add_lane(script).url)
        self._monkeypatch.setenv("GEMINI_API_KEY", KEY)


@pytest.fixture
def writer(
    model_server: ModelServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Writer:
    return Writer(model_server, monkeypatch, request.node.name)


def fenced(text: str, language: str = "python") -> str:
    return f"Here it is:\n\n```{language}\n{text}```\n\nIt does what you want."


@needs_sandbox
def test_a_drafted_workflow_is_shown_written_and_run(writer: Writer, workspace: Path) -> None:
    writer.answers(fenced(WORKFLOW))
    done = corral(
        "workflow", "draft", "Write a note", "-m", MODEL, "--out", "note.py", cwd=workspace
    )
    assert (done.returncode, done.stdout) == (0, "note.py\n"), done.stderr
    for shown in (
        WORKFLOW.splitlines()[-1],
        "note(text: str): Write a note.",
        ": command 'echo written > note'",
        f": generate '{MODEL}'",
        f"at most 30 steps, 12 runs of {MODEL}, $5",
    ):
        assert shown in done.stderr, shown
    assert not (workspace / "note").exists()
    text = (workspace / "note.py").read_text()
    assert find_bounds(text) == Bounds(agents=(MODEL,), steps=30, runs=12, cost=5.0)
    writer.answers("A note.")
    run = corral("workflow", "run", "note.py", "--no-durable", "-q", cwd=workspace)
    assert (run.returncode, run.stdout.strip()) == (0, "A note. True"), run.stderr
    assert (workspace / "note").read_text() == "written\n"


def test_a_draft_overwrites_no_file_and_spends_nothing_then(
    writer: Writer, workspace: Path
) -> None:
    writer.answers(fenced(WORKFLOW))
    (workspace / "mine.py").write_text("mine")
    words = ("workflow", "draft", "Write a note", "-m", MODEL, "--out", "mine.py")
    done = corral(*words, cwd=workspace)
    assert done.returncode == 2
    assert "already exists" in done.stderr
    assert (workspace / "mine.py").read_text() == "mine"
    assert writer.prompts == []


def test_a_drafted_pipeline_is_printed_and_passes_lint(writer: Writer, workspace: Path) -> None:
    writer.answers(fenced(PIPELINE, "dot"))
    done = corral("pipeline", "draft", "Write a note", "-m", MODEL, "--json", cwd=workspace)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert (made["kind"], made["name"], made["file"]) == ("pipeline", "note", None)
    assert made["text"] == PIPELINE
    (workspace / "note.dot").write_text(made["text"])
    assert corral("pipeline", "lint", "note.dot", cwd=workspace).returncode == 0


def test_problems_go_back_to_the_model(writer: Writer) -> None:
    bad = WORKFLOW.replace("import corral\n", "import corral\nimport os\n")
    writer.answers(fenced(bad), fenced(WORKFLOW))
    made = drafting.draft("workflow", "Write a note", BOUNDS, options={"model": MODEL})
    assert (made.name, made.answers) == ("note", 2)
    assert "import os is not allowed" in writer.prompts[1]
    assert "Write a note" in writer.prompts[0]
    assert MODEL in writer.prompts[0]


def test_a_draft_that_stays_wrong_is_an_error_after_the_rounds(writer: Writer) -> None:
    writer.answers(fenced("import os\n"))
    with pytest.raises(SchemaNotMet, match=r"no draft of 2 answers .* import os is not allowed"):
        drafting.draft("workflow", "Write a note", BOUNDS, rounds=1, options={"model": MODEL})
    assert len(writer.prompts) == 2


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("max_cost = 1\n", "", "needs max_cost = 1"),
        ("max_cost = 1\n", "max_cost = 9\n", "needs max_cost = 1"),
        ("max_visits = 2", "max_visits = 50", "needs max_visits = 2"),
        (", sandbox=require", "", "needs sandbox=require"),
        (", sandbox=require", ", sandbox=off", "needs sandbox=require"),
        ("policy=edits", "policy=all", "policy is reads or edits"),
        (f'model="{MODEL}"', 'model="openai:x"', "it needs agent, one of"),
        (f'model="{MODEL}"', f'model="{MODEL}", agent="codex"', "it needs agent, one of"),
        (f'model="{MODEL}", ', "", "it needs agent, one of"),
        ('prompt="$goal"', 'prompt="@/etc/passwd"', "a text, not a file"),
        ("policy=edits", 'policy=edits, pass_env="TOKEN"', "cannot have: pass_env"),
        ("max_cost = 1", 'max_cost = 1\n"tool_hooks.pre" = "id"', "cannot have: tool_hooks.pre"),
        ("shape=parallelogram", "shape=house", "is not allowed; allowed"),
        ("-> work [", "-> nowhere [", "nowhere"),
        ("digraph", "digraf", "line 1"),
    ],
)
def test_a_drafted_pipeline_has_bounds(old: str, new: str, problem: str) -> None:
    assert drafting.pipeline_problems(PIPELINE, BOUNDS) == []
    assert old in PIPELINE
    found = drafting.pipeline_problems(PIPELINE.replace(old, new), BOUNDS)
    assert any(problem in each for each in found), found


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("    await flow.now()\n" * 3, "it has 5 steps, and 4 are allowed"),
        (f"    await flow.generate('{MODEL}', 'a')\n" * 2, "in 3 places, and 2 runs"),
        ("    await flow.run('codex', 'a')\n", "'codex' is not allowed"),
    ],
)
def test_a_drafted_workflow_has_bounds(change: str, problem: str) -> None:
    assert drafting.workflow_problems(WORKFLOW, BOUNDS) == []
    text = WORKFLOW.replace("    made =", f"{change}    made =")
    assert any(problem in each for each in drafting.workflow_problems(text, BOUNDS))


def test_a_goal_and_bounds_are_needed_before_anything_is_spent(writer: Writer) -> None:
    writer.answers("x")
    with pytest.raises(ConfigError, match="needs a goal"):
        drafting.draft("workflow", " ", BOUNDS, options={"model": MODEL})
    with pytest.raises(ConfigError, match="one word"):
        drafting.draft("workflow", "a", Bounds(agents=("sh -c id",)), options={"model": MODEL})
    assert writer.prompts == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("```sh\nb\n```\n```python\na\n```\n```sh\nc\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("a = 1\n", "a = 1\n"),
    ],
)
def test_the_code_is_the_last_block_of_its_language(text: str, code: str) -> None:
    assert drafting.code_block(text, "python") == code


def test_the_examples_of_the_prompts_pass_the_checks() -> None:
    bounds = Bounds(agents=("gemini-cli",))
    prompt = drafting.prompt_for("workflow", "a goal", bounds)
    assert drafting.workflow_problems(drafting.code_block(prompt, "python"), bounds) == []
    for name in ("gemini-cli", MODEL):
        bounds = Bounds(agents=(name,))
        prompt = drafting.prompt_for("pipeline", "a goal", bounds)
        assert drafting.pipeline_problems(drafting.code_block(prompt, "dot"), bounds) == []
