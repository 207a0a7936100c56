"""The steps of a workflow, in memory."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from support import workflow_files
from support.batches import CountingModel
from support.workflow_files import LOGGED, logged

from corral import pipelines, workflows
from corral.errors import ConfigError, ProcessFailed
from corral.testing import Call, ModelServer, Request, Turn, say

MODEL = "gemini:gemini-2.5-flash"


@pytest.fixture
def model(
    model_server: ModelServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> CountingModel:
    found = CountingModel(model_server, request.node.name)
    for name, value in found.env.items():
        monkeypatch.setenv(name, value)
    return found


def test_steps_run_in_the_order_of_the_program(tmp_path: Path) -> None:
    result = workflow_files.run(
        tmp_path,
        LOGGED
        + """
@corral.workflow
async def two(flow: Flow, name: str) -> str:
    first = await step(flow, "first", f"echo {name}")
    assert first.ok
    second = await step(flow, "second", "exit 3")
    return f"{first.stdout.strip()} {second.exit_code}"
""",
        name="Ada",
    )
    assert result.output == "Ada 3"
    assert result.steps == logged(tmp_path) == ["first", "second"]


def test_parallel_runs_at_most_so_many_at_once_and_keeps_the_order(tmp_path: Path) -> None:
    result = workflow_files.run(
        tmp_path,
        """
@corral.workflow
async def many(flow: Flow) -> list[str]:
    work = "mkdir d$N; ls -d d* | wc -l; sleep 0.2; rmdir d$N"
    parts = [flow.command(work, env={"N": str(n)}, name="part") for n in range(6)]
    return [part.stdout.strip() for part in await flow.parallel(parts, max_parallel=2)]
""",
    )
    assert len(result.output) == 6
    assert max(map(int, result.output)) <= 2
    assert sorted(result.steps) == ["part", *(f"part-{n}" for n in range(2, 7))]


@pytest.mark.parametrize(("max_retries", "runs"), [(0, 1), (1, 2)])
def test_a_command_is_tried_again_as_often_as_the_step_says(
    tmp_path: Path, max_retries: int, runs: int
) -> None:
    body = f"""
@corral.workflow
async def tries(flow: Flow) -> str:
    command = "echo x >> tries; test $(wc -l < tries) -ge 2"
    return (await flow.command(command, check=True, max_retries={max_retries})).stdout
"""
    result = workflow_files.run(tmp_path, body)
    assert result.ok is (max_retries > 0), result.reason
    assert len((tmp_path / "tries").read_text().splitlines()) == runs


def test_a_failure_stops_the_other_parallel_steps(tmp_path: Path) -> None:
    result = workflow_files.run(
        tmp_path,
        """
@corral.workflow
async def many(flow: Flow) -> str:
    try:
        await flow.parallel([
            flow.command("sleep 60", name="long"),
            flow.command("exit 1", name="bad", check=True),
            flow.command("echo", name="later"),
        ], max_parallel=2)
    except corral.errors.StepError as error:
        return f"{error.step}: {error.message}"
    return "no error"
""",
    )
    assert "bad" in result.output
    assert {name: each.status for name, each in result.outcomes.items()} == {
        "long": "skipped",
        "bad": "fail",
    }


def test_paths_do_not_depend_on_which_step_ends_first(tmp_path: Path) -> None:
    body = """
async def twice(flow, name, first, second):
    await flow.command(f"sleep {first}; echo {name}", name="a")
    return (await flow.command(f"sleep {second}; echo {name}", name="b")).stdout.strip()


@corral.workflow
async def check(flow: Flow, slow: str) -> str:
    return (await flow.command(f"echo {slow}")).stdout.strip()


@corral.workflow
async def both(flow: Flow, slow: float) -> list[str]:
    return await asyncio.gather(
        twice(flow, "one", slow, 0), twice(flow, "two", 0.3 - slow, 0), check(flow, "x"),
        check(flow, "y"),
    )
"""
    found: list[list[str]] = []
    for slow in (0.0, 0.3):
        path = tmp_path / "flow.py"
        path.write_text(workflow_files.HEAD + body)
        from corral._workflows import definition

        both = definition.load_text(str(path), path.read_text(), "both")
        result = workflows.run_sync(both, {"slow": slow}, durable=False, cwd=tmp_path)
        assert result.output == ["one", "two", "x", "y"]
        found.append(sorted(result.steps))
    assert found[0] == found[1]
    assert found[0] == [
        "check-2.command", "check.command", "twice-2.a", "twice-2.b", "twice.a", "twice.b",
    ]  # fmt: skip


def test_a_person_answers_with_a_choice_a_text_or_the_default(tmp_path: Path) -> None:
    async def answer(question: pipelines.Question) -> str:
        if question.text == "Late?":
            await asyncio.sleep(60)
        return "a" if question.choices else "because"

    result = workflow_files.run(
        tmp_path,
        """
@corral.workflow
async def asks(flow: Flow) -> list[str]:
    one = await flow.ask("Which?", ["[A] first", "second"])
    two = await flow.ask("Why?")
    three = await flow.ask("Late?", ["yes", "no"], default="no", timeout=0.05)
    return [one, one.comment, two, three]
""",
        interviewer=pipelines.Callback(answer),
    )
    assert result.output == ["[A] first", "", "because", "no"]


def test_an_event_is_a_text_or_a_value_of_a_type(tmp_path: Path) -> None:
    result = workflow_files.run(
        tmp_path,
        """
@dataclasses.dataclass
class Deployed:
    sha: str

@corral.workflow
async def waits(flow: Flow) -> list[str]:
    text = await flow.event("ready")
    return [text, (await flow.event("deployed", output=Deployed)).sha]
""",
        interviewer=pipelines.Queued(["now", '{"sha": "abc"}']),
    )
    assert result.output == ["now", "abc"]


def test_an_agent_gives_its_text_and_a_model_a_typed_value(
    tmp_path: Path, model: CountingModel
) -> None:
    def special(task: str, request: Request) -> Turn | None:
        return say('{"tasks": ["a", "b"]}') if task == "p" else None

    model.special = special
    result = workflow_files.run(
        tmp_path,
        f"""
@dataclasses.dataclass
class Plan:
    tasks: list[str]

@corral.workflow
async def works(flow: Flow) -> list[str]:
    plan = await flow.generate("{MODEL}", "task p: plan {{{{x}}}}", output=Plan)
    done = await flow.run("{MODEL}", "task 7: $goal {{{{graph.name}}}}")
    return [*plan.tasks, done.text]
""",
    )
    assert result.output == ["a", "b", "did 7"]
    assert result.tokens > 0


def test_the_text_of_a_prompt_is_sent_as_it_is(tmp_path: Path, model: CountingModel) -> None:
    seen: list[str] = []

    def special(_task: str, request: Request) -> Turn | None:
        seen.extend(request.texts)
        return None

    model.special = special
    result = workflow_files.run(
        tmp_path,
        f"""
@corral.workflow
async def works(flow: Flow) -> str:
    await flow.command("true")
    return (await flow.run("{MODEL}", "task 7: $goal {{{{graph.name}}}} @x")).text
""",
    )
    assert result.output == "did 7"
    assert "task 7: $goal {{graph.name}} @x" in seen


def test_an_agent_works_in_its_own_worktree(tmp_path: Path, model: CountingModel) -> None:
    def special(task: str, request: Request) -> Turn:
        if request.tool_results:
            return say("done")
        return Turn(calls=[Call("write_file", {"file_path": "new.txt", "content": task})])

    model.special = special
    for words in (("init", "-q"), ("commit", "-qm", "first", "--allow-empty")):
        name = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *name, *words], cwd=tmp_path, check=True)
    result = workflow_files.run(
        tmp_path,
        f"""
@corral.workflow
async def works(flow: Flow) -> list[str]:
    part = await flow.run("{MODEL}", "task t1", policy="edits", worktree=True)
    shown = await flow.command(f"git show {{part.branch}}:new.txt", check=True)
    return [shown.stdout, *part.files]
""",
    )
    assert result.output == ["t1", "new.txt"]
    assert not (tmp_path / "new.txt").exists()


def test_a_thread_continues_the_session_of_an_earlier_step(
    tmp_path: Path, model: CountingModel
) -> None:
    seen: list[list[str]] = []

    def special(_task: str, request: Request) -> Turn | None:
        seen.append([*request.texts])
        return None

    model.special = special
    result = workflow_files.run(
        tmp_path,
        f"""
@corral.workflow
async def works(flow: Flow) -> str:
    await flow.run("{MODEL}", "task 1", thread_id="t")
    return (await flow.run("{MODEL}", "task 2", thread_id="t")).text
""",
    )
    assert result.ok, result.reason
    assert "task 1" in "\n".join(seen[-1])
    assert "did 1" in "\n".join(seen[-1])


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("await asyncio.sleep(1)", "used a timer"),
        ("await asyncio.to_thread(print)", "used a thread"),
        ("await asyncio.create_subprocess_exec('true')", "used a "),
        ("await asyncio.open_connection('127.0.0.1', 9)", "used a "),
        ("await asyncio.Event().wait()", "waits for something that no step brings"),
        ("1 / 0", "flow.py:10: ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("await flow.command('x', name='a b')", "cannot be the name of a step"),
        ("await flow.ask('?', ['a'], default='b')", "is not one of the choices"),
        ("await flow.command('x', timeout='soon')", "is not a duration"),
        ("await flow.generate('x:y', object())", "flow.py:10: an argument of the step 'generate'"),
        ("await flow.run('no-such-agent', 'hi')", "no-such-agent"),
        ("await flow.command('exit 4', check=True)", "the step 'command' failed"),
        ("return object()", "flow.py:8: the result of bad contains a value of the type object"),
        ("flow.command('x')", "flow.py:10: the step 'command' did not run: write await"),
        ("flow.command('x').stdout", "flow.py:10: the step 'command' did not run: write await"),
        ("bad(flow)", "flow.py:10: the workflow 'bad' did not run: write await"),
        ("await bad(3)", "flow.py:10: the workflow 'bad' was called with 3 instead of a flow"),
        ("return {1: float('nan')}", "the result of bad is not JSON"),
        (
            "await flow.command(['ls'])",
            "the text of the step 'command' must be a text, got: ['ls']",
        ),
        ("await flow.command('x', env={'A': 1})", "env['A'] must be a text, got: 1"),
        ("await flow.command('x', name='')", "'' cannot be the name of a step"),
        ("await flow.ask('?', 'yes')", "choices must be a list of texts, got: 'yes'"),
        ("await flow.merge([None], into='a', gates=['b'])", "branches must be a list of texts"),
        (
            "corral.run_sync('corral', 'hi', model='x:y')",
            "flow.py:10: the code between the steps of a workflow used a thread",
        ),
    ],
)
def test_what_goes_wrong_is_one_clear_reason(tmp_path: Path, code: str, reason: str) -> None:
    result = workflow_files.run(
        tmp_path,
        f"""
@corral.workflow
async def bad(flow: Flow):
    {code}
""",
    )
    assert result.status == "fail"
    assert reason in result.reason
    assert result.reason.count("flow.py:") <= 1
    with pytest.raises(ProcessFailed, match="ended as fail"):
        print(result.output)


def test_a_result_of_another_type_fails_the_run(tmp_path: Path) -> None:
    body = """
@corral.workflow
async def wrong(flow: Flow) -> {kind}:
    await flow.command("echo >> log")
    return "text"
"""
    result = workflow_files.run(tmp_path, body.format(kind="int"))
    assert result.status == "fail"
    assert result.reason.startswith("flow.py:8: the result of wrong: the value does not fit int")
    (tmp_path / "log").unlink()
    with pytest.raises(ConfigError, match=r"flow.py:8: the result of wrong: complex cannot be"):
        workflow_files.run(tmp_path, body.format(kind="complex"))
    assert not (tmp_path / "log").exists()


def test_cancelled_code_can_clean_up(tmp_path: Path) -> None:
    result = workflow_files.run(
        tmp_path,
        """
@corral.workflow
async def races(flow: Flow) -> list[str]:
    notes = []
    async def slow():
        try:
            await flow.command("sleep 60", name="slow")
        finally:
            notes.append("stopped")
    task = asyncio.create_task(slow())
    await flow.command("true", name="fast")
    task.cancel()
    await asyncio.wait([task])
    return notes
""",
    )
    assert result.output == ["stopped"]
    assert result.outcomes["slow.slow"].status == "skipped"


def test_a_step_outside_of_a_run_is_refused(tmp_path: Path) -> None:
    found = workflow_files.load(
        tmp_path,
        """
import contextvars, threading
kept = []

@corral.workflow
async def keeps(flow: Flow, use: bool = False) -> str:
    kept.append(flow)
    if not use:
        return ""
    errors = []
    def call(own):
        try:
            own.command("true")
        except corral.errors.ConfigError as error:
            errors.append(error.message)
    call(kept[0])
    async def in_its_loop():
        call(flow)
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(asyncio.run, in_its_loop()))
    thread.start()
    thread.join()
    return "; ".join(errors)
""",
    )
    workflows.run_sync(found, durable=False, cwd=tmp_path)
    flow = found.function.__globals__["kept"][0]
    for call in (lambda: flow.command("true"), lambda: found(flow)):
        with pytest.raises(ConfigError, match="outside of a run"):
            call()
    result = workflows.run_sync(found, {"use": True}, durable=False, cwd=tmp_path)
    assert result.output == (
        f"the step 'command' is called on the flow of another run, {flow.run_id};"
        " the step 'command' is called in another event loop"
    )
