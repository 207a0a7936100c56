"""Drafted workflows run in the sandbox, and their steps are checked outside."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.batches import CountingModel
from support.sandbox import needs_sandbox
from support.workflow_files import HEAD as UNCHECKED

from corral import pipelines, workflows
from corral._pipelines.graph import Node
from corral._workflows import definition
from corral._workflows.drafted import Bounds, with_mark
from corral._workflows.program_turn import ProgramTurn, Step, StoredProgram
from corral._workflows.sandboxed_program import NotAllowed, SandboxedProgram, StepChecks
from corral.errors import ConfigError
from corral.testing import ModelServer

MODEL = "gemini:gemini-2.5-flash"
BOUNDS = Bounds(agents=(MODEL,), steps=6, runs=2, cost=1.0)
HEAD = """
import corral
from dataclasses import dataclass
from corral.errors import StepError
from corral.workflows import Flow
"""


@pytest.fixture
def model(
    model_server: ModelServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> CountingModel:
    found = CountingModel(model_server, request.node.name)
    for name, value in found.env.items():
        monkeypatch.setenv(name, value)
    return found


def drafted(folder: Path, body: str, bounds: Bounds = BOUNDS) -> workflows.Workflow[..., object]:
    path = folder / "drafted.py"
    path.write_text(with_mark(HEAD + textwrap.dedent(body), bounds))
    return definition.load_text(str(path), path.read_text())


WORKS = f"""
@dataclass
class Answer:
    text: str


@corral.workflow
async def works(flow: Flow, name: str = "Ada") -> Answer:
    texts = await flow.parallel([flow.run("{MODEL}", f"task {{n}}") for n in range(2)])
    made = await flow.command("id > made; cat made")
    reply = await flow.ask("Keep it?", ["yes", "no"])
    return Answer(f"{{name}} {{[each.text for each in texts]}} {{made.ok}} {{reply}}")
"""


@needs_sandbox
def test_a_drafted_workflow_runs_in_the_sandbox(
    tmp_path: Path, workspace: Path, model: CountingModel
) -> None:
    result = workflows.run_sync(
        drafted(tmp_path, WORKS),
        name="Bob",
        cwd=workspace,
        durable=False,
        interviewer=pipelines.Queued(["yes"]),
    )
    assert result.output.text == "Bob ['did 0', 'did 1'] True yes", result.reason  # type: ignore[attr-defined]
    assert (workspace / "made").exists()


@needs_sandbox
def test_a_durable_run_continues_in_the_sandbox(
    tmp_path: Path, workspace: Path, model: CountingModel
) -> None:
    db = str(tmp_path / "engine.db")
    waiting = workflows.run_sync(drafted(tmp_path, WORKS), cwd=workspace, db=db, run_id="r")
    assert waiting.status == "waiting"
    workflows.answer_sync("r", "no", gate="ask", db=db)
    done = workflows.resume_sync("r", db=db)
    assert done.output.text.endswith("no"), done.reason
    assert model.counts == {"0": 1, "1": 1}


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("for n in range(9):\n        await flow.command('true')", "more than 6 steps"),
        (f"for n in range(9):\n        await flow.generate('{MODEL}', 'task 1')", "than 2 times"),
        ("await flow.run(other, 'task 1')", "uses 'codex'; allowed: gemini:"),
        ("return [0] * 10_000_000_000", "MemoryError"),
        ("return 1 / 0", "drafted.py:12: ZeroDivisionError"),
    ],
)
def test_its_bounds_end_it(code: str, reason: str, workspace: Path, model: CountingModel) -> None:
    body = f"""
@corral.workflow
async def bad(flow: Flow, other: str = "{MODEL}") -> object:
    {code}
"""
    args = {"other": "codex"} if "other," in code else {}
    result = workflows.run_sync(drafted(workspace, body), args=args, cwd=workspace, durable=False)
    assert result.status == "fail"
    assert reason in result.reason


@needs_sandbox
def test_its_commands_cannot_leave_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    secret = tmp_path / "secret"
    secret.write_text("canary")
    body = f"""
@corral.workflow
async def reads(flow: Flow) -> str:
    found = await flow.command("cat {secret}; touch {tmp_path}/made; echo ended")
    return found.stdout
"""
    result = workflows.run_sync(drafted(tmp_path, body), cwd=tmp_path / "work", durable=False)
    assert result.output == "ended\n", result.reason
    assert not (tmp_path / "made").exists()


async def first_turn(body: str, folder: Path) -> ProgramTurn:
    """Of a program whose text is not checked, as if an attempt to get out had succeeded."""
    text = UNCHECKED + textwrap.dedent(body)
    stored = StoredProgram(path=str(folder / "bad.py"), name="bad", text=text)
    program = SandboxedProgram(stored, BOUNDS, "r")
    try:
        return await program.advance([])
    finally:
        await program.close()


HOSTILE = """
import os, pathlib, socket

def attempt(do):
    try:
        return str(do())
    except Exception as error:
        return type(error).__name__

@corral.workflow
async def bad(flow: Flow) -> list[str]:
    attempt(lambda: pathlib.Path({made!r}).write_text("x"))  # its own folder for temporary files
    return [
        attempt(lambda: pathlib.Path({secret!r}).read_text()),
        attempt(lambda: os.environ["SECRET_OF_THE_USER"]),
        attempt(lambda: socket.create_connection(("127.0.0.1", {port}), 1)),
        attempt(lambda: len(os.listdir("/proc")) > 200),
    ]
"""


@needs_sandbox
async def test_code_that_passed_the_check_reaches_nothing(
    tmp_path: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary")
    monkeypatch.setenv("SECRET_OF_THE_USER", "canary")
    port = int(model_server.url.rpartition(":")[2].partition("/")[0])
    body = HOSTILE.format(secret=str(secret), made=str(tmp_path / "made"), port=port)
    turn = await first_turn(body, tmp_path)
    assert turn.end is not None
    found = turn.end.result
    assert isinstance(found, list), turn.end.reason
    assert "canary" not in found
    assert found == ["FileNotFoundError", "KeyError", "ConnectionRefusedError", "False"]
    assert not (tmp_path / "made").exists()


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("await flow.run('codex', 'hi')", "uses 'codex'"),
        (f"await flow.run('{MODEL}', 'hi', policy='all')", "a policy that is not"),
        (f"await flow.run('{MODEL}', 'hi', max_retries=9)", "more than 2 times"),
        (f"await flow.run('{MODEL}', 'hi', env={{'A': 'b'}})", "uses env"),
        (f"await flow.run('{MODEL}', 'hi', until='id')", "uses until"),
        ("await flow.command('id', cwd='/')", "has a folder or variables"),
        ("await flow.command('id', env={'LD_PRELOAD': 'x'})", "has a folder or variables"),
        ("await flow.command('id', sandbox='off')", "uses sandbox"),
        ("await flow.command('id', policy='all')", "uses policy"),
        ("await flow.merge(['a'], into='main', gates=['id'])", "of the kind 'workflow.merge'"),
        ("os._exit(3)", "its process has ended"),
        ("os.write(4, b'{}\\n[]\\n'); os.write(5, b'[]\\n'); os._exit(1)", "drafted workflow bad"),
        (f"flow._threads['t'] = {{'id': 'x'}}; await flow.run('{MODEL}', 'hi', thread_id='t')",
         "the session of another run"),
    ],
)  # fmt: skip
async def test_a_step_that_is_not_allowed_ends_the_run(
    code: str, reason: str, tmp_path: Path
) -> None:
    body = f"import os\n@corral.workflow\nasync def bad(flow: Flow) -> object:\n    {code}\n"
    turn = await first_turn(body, tmp_path)
    assert turn.steps == []
    assert turn.end is not None
    assert not turn.end.ok
    assert reason in turn.end.reason


ATTRS = {"type": "workflow.command", "label": "id"}
GOOD_STEP = Step(id="a.1", node=Node(id="a", attrs={**ATTRS}),
                 inputs={"command": "id", "cwd": "", "env": {}, "check": False})  # fmt: skip


@pytest.mark.parametrize(
    "step",
    [
        replace(GOOD_STEP, id="../../x.1"),
        replace(GOOD_STEP, id="a.2"),
        replace(GOOD_STEP, id="b.1"),
        replace(GOOD_STEP, node=None),
        replace(GOOD_STEP, node=Node(id="a", attrs={"type": "tool", "tool_command": "id"})),
        replace(GOOD_STEP, node=Node(id="a", attrs={**ATTRS, "env": "A=b"})),
        replace(GOOD_STEP, inputs={**GOOD_STEP.inputs, "internal.x": 1}),
        replace(GOOD_STEP, inputs={**GOOD_STEP.inputs, "internal.thread.a": {"id": "x"}}),
        replace(GOOD_STEP, kind="ask"),
        replace(GOOD_STEP, kind="sleep", seconds=-1.0),
        replace(GOOD_STEP, value=1),
        replace(GOOD_STEP, worktrees=("../x",)),
        replace(GOOD_STEP, merges=("a",)),
    ],
)
def test_what_no_step_of_a_drafted_workflow_is_is_refused(step: Step) -> None:
    checks = StepChecks(BOUNDS)
    with pytest.raises(NotAllowed):
        checks.check(ProgramTurn(steps=[step]))


def test_a_command_gets_the_sandbox_whatever_it_says() -> None:
    checks = StepChecks(BOUNDS)
    (step,) = checks.check(ProgramTurn(steps=[GOOD_STEP])).steps
    assert step.node is not None
    assert step.node.attrs["sandbox"] == "require"
    with pytest.raises(NotAllowed):
        checks.check(ProgramTurn(steps=[GOOD_STEP]))


@pytest.mark.parametrize("imports", ["import drafted", "from package.drafted import works"])
def test_a_workflow_cannot_import_a_drafted_file(tmp_path: Path, imports: str) -> None:
    """Imported, it would run without its bounds, and outside of the sandbox."""
    folder = tmp_path / "package" if "package" in imports else tmp_path
    folder.mkdir(exist_ok=True)
    file = folder / "drafted.py"
    file.write_text(f'open({str(tmp_path / "ran")!r}, "w")\n' + with_mark(HEAD, BOUNDS))
    text = f"{UNCHECKED}{imports}\n\n@corral.workflow\nasync def mine(flow: Flow) -> None: ...\n"
    with pytest.raises(ConfigError, match=r"mine.py:7: drafted.py was drafted by a model"):
        definition.load_text(str(tmp_path / "mine.py"), text)
    assert not (tmp_path / "ran").exists()
    file.write_text("def works() -> None: ...\n")
    assert definition.load_text(str(tmp_path / "mine.py"), text).name == "mine"
    sys.modules.pop("drafted", None)
    sys.modules.pop("package.drafted", None)
