"""Durable runs of workflows: what is continued, repeated and refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support import workflow_files
from support.workflow_files import LOGGED, logged

from corral import pipelines, runs, workflows
from corral._engine import process_engine, query, run_list, service
from corral._engine.continue_run import Changes, continue_run
from corral._engine.existing_runs import prepare_resume
from corral._engine.follow_run import FollowOptions
from corral._workflows import definition
from corral.errors import ConfigError, ReplayMismatch

ASKS = (
    LOGGED
    + """
@corral.workflow
async def asks(flow: Flow, name: str = "x") -> str:
    first = await step(flow, "first", f"echo {name}")
    reply = await flow.ask("Go on?", ["yes", "no"])
    await step(flow, "second")
    return f"{first.stdout.strip()} {reply}"
"""
)


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "engine.db")


def start(folder: Path, body: str, db: str, **options: Any) -> workflows.WorkflowResult[Any]:
    return workflow_files.run(folder, body, durable=True, db=db, **options)


def rewrite(folder: Path, *changes: tuple[str, str]) -> None:
    path = folder / "flow.py"
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_a_run_that_waits_is_answered_and_resumed(tmp_path: Path, db: str) -> None:
    messages = tmp_path / "messages"
    notify = f"cat >> {messages}; echo >> {messages}"
    waiting = start(tmp_path, ASKS, db, name="Ada", run_id="r", notify=notify)
    assert waiting.status == "waiting"
    assert [question.text for question in waiting.questions] == ["Go on?"]
    listed = asyncio.run(run_list.list_runs(db=db))
    assert [(each.id, each.kind, each.asks) for each in listed] == [("r", "workflow", 1)]
    assert runs.list_sync(kind="pipeline", db=db) == []
    runs.answer_sync("r", "no", request="ask", db=db)
    done = runs.resume_sync("r", db=db)
    assert (done.run, done.output) == ("r", "Ada no")
    assert logged(tmp_path) == ["first", "second"]
    asked, ended = map(json.loads, messages.read_text().splitlines())
    assert (asked["event"], asked["asked"]["text"]) == ("question", "Go on?")
    assert (ended["event"], ended["ended"]["text"]) == ("end", "Ada no")
    runs.resume_sync("r", db=db)
    assert len(messages.read_text().splitlines()) == 2  # it had ended already
    shown = asyncio.run(query.show("r", db=db))
    assert [*shown.graph.nodes] == ["first", "ask", "second"]
    assert [(edge.source, edge.target) for edge in shown.graph.edges] == [
        ("first", "ask"),
        ("ask", "second"),
    ]


def test_the_graph_has_parallel_steps_side_by_side_and_all_edges_of_a_join(
    tmp_path: Path, db: str
) -> None:
    body = (
        LOGGED
        + """
@corral.workflow
async def drawn(flow: Flow) -> None:
    await flow.command("true", name="plan")
    async def part() -> None:
        await flow.command("echo a", name="write")
        await flow.command("echo b")
    await flow.parallel([part() for _ in range(2)])
    await flow.now()
    await flow.parallel([flow.command("true", name="check")])
    await flow.command("true", name="end")
"""
    )
    start(tmp_path, body, db, run_id="r")
    graph = asyncio.run(query.show("r", db=db)).graph
    assert sorted((edge.source, edge.target) for edge in graph.edges) == [
        ("check", "end"),
        ("part-2.command", "check"),
        ("part-2.write", "part-2.command"),
        ("part.command", "check"),
        ("part.write", "part.command"),
        ("plan", "part-2.write"),
        ("plan", "part.write"),
    ]
    labels = {node.id: node.label for node in graph.nodes.values()}
    assert (labels["part-2.write"], labels["part.command"]) == ("write: echo a", "echo b")


@pytest.mark.deep
def test_an_edit_of_one_of_20_steps_repeats_exactly_what_depends_on_it(
    tmp_path: Path, db: str
) -> None:
    body = """
@corral.workflow
async def chain(flow: Flow) -> list[str]:
    values = []
    for n in range(20):
        parent = values[n // 2] if n else ""
        text = f"s{n}" + parent[:1]
        values.append((await flow.ask(text, name=f"s{n}")))
    return values
"""
    asked: list[str] = []

    async def answer(question: pipelines.Question) -> str:
        asked.append(question.node)
        return f"{question.text[-1]}{len(asked)}"

    interviewer = pipelines.Callback(answer)
    first = start(tmp_path, body, db, run_id="r", interviewer=interviewer)
    assert first.ok, first.reason
    assert len(asked) == 20
    assert runs.resume_sync("r", plan_only=True, db=db).has_ended
    # The values of n // 2 of a step that is asked differently start with another letter.
    rewrite(tmp_path, ('f"s{n}" + parent[:1]', '"changed z" if n == 4 else f"s{n}" + parent[:1]'))
    asked.clear()
    plan = runs.resume_sync("r", plan_only=True, db=db)
    assert plan.repeated == ["s4"]
    assert not asked
    second = runs.resume_sync("r", db=db, interviewer=interviewer)
    assert second.ok, second.reason
    # s8 and s9 read s4; s16 to s19 read those.
    assert sorted(asked) == ["s16", "s17", "s18", "s19", "s4", "s8", "s9"]
    changed = {f"s{n}" for n in range(20) if second.output[n] != first.output[n]}
    assert changed == set(asked)


@pytest.mark.deep
def test_a_step_that_may_write_repeats_the_steps_that_read_after_it(
    tmp_path: Path, db: str
) -> None:
    body = (
        LOGGED
        + """
@corral.workflow
async def writes(flow: Flow) -> str:
    await step(flow, "one")
    await step(flow, "two")
    await flow.sleep(0.01)
    await step(flow, "three")
    return str(await flow.random())
"""
    )
    first = start(tmp_path, body, db, run_id="r")
    rewrite(tmp_path, ('step(flow, "two")', 'step(flow, "two", "true  # changed")'))
    plan = runs.resume_sync("r", plan_only=True, db=db)
    assert (plan.is_new_run, plan.kept, plan.repeated) == (
        True, ["one", "sleep", "random"], ["two", "three"],
    )  # fmt: skip
    second = runs.resume_sync("r", db=db)
    assert logged(tmp_path) == ["one", "two", "three", "two", "three"]
    assert second.output == first.output
    assert second.run == "r"
    # A fork of a run that was continued has the results of all its tries.
    third = runs.fork_sync("r", db=db)
    assert third.run != "r"
    assert third.output == first.output
    assert len(logged(tmp_path)) == 5


@pytest.mark.parametrize("is_edited", [False, True])
@pytest.mark.deep
def test_what_reads_the_workspace_after_a_caught_failure_is_repeated(
    tmp_path: Path, db: str, is_edited: bool
) -> None:
    """The step that failed runs again with the same inputs, and may write something else then."""
    body = (
        LOGGED
        + """
from corral.errors import StepError

@corral.workflow
async def catches(flow: Flow) -> str:
    await step(flow, "first")
    try:
        await step(flow, "make", "test -f fixed && touch made", check=True)
    except StepError:
        pass
    look = await step(flow, "look", "ls made; true")
    await flow.sleep(0.01)
    await step(flow, "last", "test -f fixed", check=True)
    return look.stdout.split()[-1]
"""
    )
    assert start(tmp_path, body, db, run_id="r").status == "fail"
    (tmp_path / "fixed").touch()
    if is_edited:
        rewrite(tmp_path, ("return look", "return 'seen ' + look"))
    plan = runs.resume_sync("r", plan_only=True, db=db)
    assert (plan.kept, plan.repeated, plan.depends) == (
        ["first", "sleep"], ["make", "look", "last"], [],
    )  # fmt: skip
    result = runs.resume_sync("r", db=db)
    assert result.output == ("seen made" if is_edited else "made")
    assert logged(tmp_path) == ["first", "make", "look", "last", "make", "look", "last"]


@pytest.mark.deep
def test_what_reads_the_workspace_after_a_stopped_step_is_repeated(tmp_path: Path, db: str) -> None:
    """The step that was stopped may have written a part."""
    body = (
        LOGGED
        + """
import asyncio

@corral.workflow
async def stops(flow: Flow) -> str:
    work = asyncio.create_task(step(flow, "work", "sleep 60"))
    await flow.sleep(0.01)
    work.cancel()
    await asyncio.wait([work])
    await step(flow, "look")
    await step(flow, "last", "test -f fixed", check=True)
    return "done"
"""
    )
    assert start(tmp_path, body, db, run_id="r").status == "fail"
    (tmp_path / "fixed").touch()
    plan = runs.resume_sync("r", plan_only=True, db=db)
    assert "look" not in plan.kept


@pytest.mark.deep
def test_the_plan_says_nothing_of_what_only_the_run_will_know(tmp_path: Path, db: str) -> None:
    body = """
@corral.workflow
async def asks(flow: Flow) -> list[str]:
    one = await flow.ask("one?", name="one")
    await flow.random()
    return [one, await flow.ask("two?", name="two"), await flow.ask("three?", name="three")]
"""
    interviewer = pipelines.Queued(["1", "2", "3", "4"])
    start(tmp_path, body, db, run_id="r", interviewer=interviewer)
    # A changed step has its earlier result in the plan: the steps after it may depend on it.
    rewrite(tmp_path, ('"one?"', '"first?"'), (', await flow.ask("three?", name="three")', ""))
    plan = runs.resume_sync("r", plan_only=True, db=db)
    assert (plan.repeated, plan.kept, plan.depends) == (["one"], ["random"], ["two"])
    assert (plan.dropped, plan.is_partial) == (["three"], False)
    # A new step has none.
    rewrite(tmp_path, ("one = await", 'await flow.ask("new?", name="new")\n    one = await'))
    plan = runs.resume_sync("r", plan_only=True, db=db)
    assert (plan.repeated, plan.kept, plan.dropped) == (["new"], [], [])
    assert (sorted(plan.depends), plan.is_partial) == (["one", "random", "three", "two"], True)


@pytest.mark.deep
def test_a_step_that_moved_keeps_its_result(tmp_path: Path, db: str) -> None:
    body = """
@corral.workflow
async def asks(flow: Flow) -> list[str]:
    return [await flow.ask("one?"), await flow.ask("two?")]
"""
    interviewer = pipelines.Queued(["1", "2", "3"])
    start(tmp_path, body, db, run_id="r", interviewer=interviewer)
    rewrite(tmp_path, ('await flow.ask("one?")', 'await flow.ask("new?"), await flow.ask("one?")'))
    result = runs.resume_sync("r", db=db, interviewer=interviewer)
    assert result.output == ["3", "1", "2"]


def test_a_failed_run_goes_on_with_the_step_that_failed(tmp_path: Path, db: str) -> None:
    body = (
        LOGGED
        + """
@corral.workflow
async def fails(flow: Flow) -> str:
    await step(flow, "first")
    await step(flow, "second", "test -f fixed", check=True)
    return "done"
"""
    )
    failed = start(tmp_path, body, db, run_id="r")
    assert failed.status == "fail"
    assert "the step 'second' failed: `echo second" in failed.reason
    (tmp_path / "fixed").touch()
    assert runs.resume_sync("r", db=db).output == "done"
    assert logged(tmp_path) == ["first", "second", "second"]


CONTINUED = (
    LOGGED
    + """
@corral.workflow
async def fails(flow: Flow) -> str:
    await step(flow, "first", "test -f one", check=True)
    await step(flow, "second", "test -f two", check=True)
    return "done"
"""
)


@pytest.mark.parametrize(
    "database", ["db", pytest.param("new_postgres", marks=pytest.mark.postgres)]
)
@pytest.mark.deep_but_first
def test_a_run_that_was_resumed_keeps_its_id_and_what_is_finished(
    tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    db = str(request.getfixturevalue(database))
    first = start(tmp_path, CONTINUED, db, run_id="r")
    assert first.status == "fail"
    (tmp_path / "one").touch()
    second = runs.resume_sync("r", db=db)
    assert (second.run, second.status, second.folder) == ("r", "fail", first.folder)
    plan = runs.resume_sync("r", plan_only=True, db=db)
    assert (plan.run, plan.kept, plan.repeated) == ("r", ["first"], ["second"])
    (tmp_path / "two").touch()
    third = runs.resume_sync("r", db=db)
    assert (third.run, third.output) == ("r", "done")
    assert logged(tmp_path) == ["first", "first", "second", "second"]
    shown = asyncio.run(query.show("r", db=db))
    assert (shown.id, shown.tries, shown.status) == ("r", 3, "success")
    (listed,) = asyncio.run(run_list.list_runs(db=db))
    assert (listed.id, listed.tries, listed.created) == ("r", 3, shown.created)
    manifest = json.loads(Path(first.folder, "manifest.json").read_text())
    assert (manifest["run_id"], manifest["tries"]) == ("r", 3)
    events = Path(first.folder, "events.ndjson").read_text().splitlines()
    assert [json.loads(line)["run_id"] for line in events] == ["r"] * len(events)
    earlier = Path(first.folder, "events.2.ndjson").read_text()
    assert "pipeline_failed" in earlier.splitlines()[-1]


def test_a_try_that_ended_before_it_began_keeps_the_results_of_the_one_before(
    tmp_path: Path, db: str
) -> None:
    (tmp_path / "one").touch()
    assert start(tmp_path, CONTINUED, db, run_id="r").status == "fail"
    asyncio.run(workflow_files.cancel_unstarted_try("r", db, Changes()))
    (tmp_path / "two").touch()
    assert runs.resume_sync("r", db=db).output == "done"
    assert logged(tmp_path) == ["first", "second", "second"]


@pytest.mark.deep
def test_a_continuation_that_has_succeeded_is_not_repeated(tmp_path: Path, db: str) -> None:
    start(tmp_path, CONTINUED, db, run_id="r")
    (tmp_path / "one").touch()
    (tmp_path / "two").touch()
    done = runs.resume_sync("r", db=db)
    resumed = runs.resume_sync("r", db=db)
    assert (resumed.run, resumed.output) == ("r", "done")
    assert logged(tmp_path) == ["first", "first", "second"]
    assert runs.resume_sync("r", plan_only=True, db=db).has_ended
    # After an edit the continuation goes on, with its results.
    rewrite(tmp_path, ('"test -f two"', '"test -f two  # edited"'))
    third = runs.resume_sync("r", db=db)
    assert third.run == done.run
    assert logged(tmp_path) == ["first", "first", "second", "second"]


@pytest.mark.deep
def test_a_continuation_that_waits_goes_on(tmp_path: Path, db: str) -> None:
    start(tmp_path, ASKS, db, run_id="r")
    rewrite(tmp_path, ('step(flow, "second")', 'step(flow, "third")'))
    waiting = runs.resume_sync("r", db=db)
    assert waiting.status == "waiting"
    assert runs.resume_sync("r", db=db).run == waiting.run
    runs.answer_sync(waiting.run, "yes", db=db)
    assert runs.resume_sync("r", db=db).output == "x yes"
    assert logged(tmp_path) == ["first", "third"]


@pytest.mark.deep
def test_of_two_continuations_that_start_at_once_one_is_refused(tmp_path: Path, db: str) -> None:
    start(tmp_path, CONTINUED, db, run_id="r")
    late = asyncio.run(prepare_resume("r", Changes(), db=db))
    runs.resume_sync("r", db=db)
    with pytest.raises(ConfigError, match="another process has just resumed r"):
        asyncio.run(continue_run(late, FollowOptions(db=db)))
    assert logged(tmp_path) == ["first", "first"]


@pytest.mark.deep
def test_a_fork_is_no_continuation(tmp_path: Path, db: str) -> None:
    start(tmp_path, CONTINUED, db, run_id="r")
    forked = runs.fork_sync("r", "first", db=db)
    assert asyncio.run(query.show("r", db=db)).tries == 1
    assert asyncio.run(query.show(forked.run, db=db)).run_input.forked_from == "r"


@pytest.mark.deep
def test_a_fork_repeats_a_step_and_all_after_it(tmp_path: Path, db: str) -> None:
    interviewer = pipelines.Queued(["yes", "no"])
    assert start(tmp_path, ASKS, db, run_id="r", interviewer=interviewer).output == "x yes"
    forked = runs.fork_sync("r", "ask", db=db, interviewer=interviewer)
    assert forked.output == "x no"
    assert logged(tmp_path) == ["first", "second", "second"]
    assert asyncio.run(query.show("r", db=db)).status == "success"
    with pytest.raises(ConfigError, match="has no step 'nowhere'"):
        runs.fork_sync("r", "nowhere", db=db)


@pytest.mark.deep
def test_an_edit_of_a_waiting_run_ends_it_and_keeps_the_answer(tmp_path: Path, db: str) -> None:
    start(tmp_path, ASKS, db, run_id="r")
    runs.answer_sync("r", "yes", db=db)
    rewrite(tmp_path, ('step(flow, "second")', 'step(flow, "third")'))
    done = runs.resume_sync("r", db=db)
    assert done.output == "x yes"
    assert logged(tmp_path) == ["first", "third"]
    assert asyncio.run(query.show("r", db=db)).tries == 2


@pytest.mark.parametrize(
    "database", ["db", pytest.param("new_postgres", marks=pytest.mark.postgres)]
)
@pytest.mark.deep
def test_a_replay_that_takes_another_path_is_an_error_with_its_line(
    tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    """On a server a command is in the process of its run: its start and its end are one record."""
    db = str(request.getfixturevalue(database))
    (tmp_path / "helper_of_test.py").write_text("COMMAND = 'one'\n")
    body = """
from pathlib import Path

@corral.workflow
async def reads(flow: Flow) -> str:
    text = Path("NAME").read_text()
    await flow.command(f"echo {text} >> log")
    return await flow.ask("Go on?")
""".replace("NAME", str(tmp_path / "helper_of_test.py"))
    start(tmp_path, body, db, run_id="r")
    (tmp_path / "helper_of_test.py").write_text("COMMAND = 'two'\n")
    with pytest.raises(ReplayMismatch, match=r"flow.py:13 starts the step 'command' with other"):
        runs.resume_sync("r", db=db)
    assert asyncio.run(query.show("r", db=db)).status == "interrupted"
    runs.answer_sync("r", "yes", db=db)
    with pytest.raises(ReplayMismatch, match="corral runs fork r"):
        runs.resume_sync("r", db=db)
    assert runs.fork_sync("r", plan_only=True, db=db).repeated == ["command", "ask"]

    async def as_a_worker_does() -> str:
        """A worker goes on with a run without looking at its history first."""
        try:
            await service.resume("r", db=db)
            return (await service.wait("r", db=db, timeout=30)).reason
        finally:
            await asyncio.to_thread(process_engine.close)

    assert "flow.py:13 starts the step 'command' with other" in asyncio.run(as_a_worker_does())
    assert "two" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("import asyncio", "import asyncio, no_such_module", "cannot be imported: flow.py:2"),
        ("async def asks", "async def asks(", r"flow.py:\d+ is not Python"),
        ("async def asks", "async def other", "has no workflow 'asks'"),
        ('name: str = "x"', "name: str, more: int", "needs more"),
        ('name: str = "x"', "", "has no parameter name"),
        ('name: str = "x"', "name: int = 1", "the argument 'name' of asks"),
    ],
)
@pytest.mark.deep_but_first
def test_an_edit_that_cannot_run_is_refused_and_loses_nothing(
    tmp_path: Path, db: str, old: str, new: str, reason: str
) -> None:
    start(tmp_path, ASKS, db, run_id="r", name="Ada")
    text = (tmp_path / "flow.py").read_text()
    rewrite(tmp_path, (old, new))
    with pytest.raises(ConfigError, match=f"r cannot go on: .*{reason}") as refused:
        runs.resume_sync("r", db=db)
    about_arguments = "import" not in old and "async def" not in old
    assert ('started with name="Ada"' in str(refused.value.hint)) == about_arguments
    (tmp_path / "flow.py").write_text(text)
    runs.answer_sync("r", "yes", db=db)
    assert runs.resume_sync("r", db=db).output == "Ada yes"
    assert logged(tmp_path) == ["first", "second"]


def test_two_runs_with_one_id_are_refused(tmp_path: Path, db: str) -> None:
    start(tmp_path, ASKS, db, run_id="r")
    with pytest.raises(ConfigError, match="the run 'r' already exists"):
        start(tmp_path, ASKS, db, run_id="r")
    with pytest.raises(ConfigError, match="the run 'r' already exists"):
        workflow_files.run(tmp_path, ASKS, run_id="r")
    assert logged(tmp_path) == ["first"]


@pytest.mark.parametrize("run_id", ["a/b", "..", "-x", "last"])
def test_what_cannot_be_the_id_of_a_run_is_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the id of a run"):
        workflow_files.run(tmp_path, ASKS, run_id=run_id)
    assert logged(tmp_path) == []


@pytest.mark.deep
async def test_of_two_runs_that_start_at_once_with_one_id_one_is_refused(
    tmp_path: Path, db: str
) -> None:
    found = workflow_files.load(tmp_path, ASKS)
    started = [
        workflows.run(found, {"name": name}, run_id="r", db=db, cwd=tmp_path) for name in ("a", "b")
    ]
    ends = await asyncio.gather(*started, return_exceptions=True)
    refused, waiting = ends if isinstance(ends[0], ConfigError) else ends[::-1]
    assert isinstance(refused, ConfigError), refused
    assert refused.message == "the run 'r' already exists"
    assert isinstance(waiting, workflows.WorkflowResult)
    assert logged(tmp_path) == ["first"]


@pytest.mark.deep
def test_a_refused_run_does_not_change_the_limits_of_the_run_with_its_id(
    tmp_path: Path, db: str
) -> None:
    start(tmp_path, ASKS, db, run_id="r", max_calls=3)
    with pytest.raises(ConfigError, match="already exists"):
        other = tmp_path / "other"
        start(tmp_path, ASKS, db, run_id="r", run_dir=other, max_calls=100)
    budget = asyncio.run(query.show("r", db=db)).budget
    assert budget is not None
    assert budget.limits.max_calls == 3


def test_a_workflow_without_a_file_runs_only_in_memory(tmp_path: Path, db: str) -> None:
    code = compile(workflow_files.HEAD + ASKS, "<stdin>", "exec")
    names: dict[str, Any] = {"__name__": "prompt"}
    exec(code, names)
    with pytest.raises(ConfigError, match="is in no file"):
        workflows.run_sync(names["asks"], db=db, cwd=tmp_path)
    result = workflows.run_sync(
        names["asks"], durable=False, cwd=tmp_path, interviewer=pipelines.AutoApprove()
    )
    assert result.output == "x yes"


def test_the_budget_of_a_run_limits_its_steps(
    tmp_path: Path, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "no-key")
    body = """
@corral.workflow
async def spends(flow: Flow) -> str:
    return await flow.generate("gemini:gemini-2.5-flash", "hi", max_tokens=100)
"""
    result = start(tmp_path, body, db, max_calls=1, max_total_tokens=1)
    assert result.status == "fail"
    assert "max_total_tokens" in result.reason


@pytest.mark.deep
def test_showing_a_run_does_not_run_its_program(tmp_path: Path, db: str) -> None:
    start(tmp_path, ASKS, db, run_id="r")
    (tmp_path / "flow.py").write_text("raise SystemExit('it was executed')")
    shown = asyncio.run(query.show("r", db=db))
    assert [*shown.graph.nodes] == ["first", "ask"]
    assert definition.text_digest("a") != definition.text_digest("b")


@pytest.mark.deep
async def test_the_page_shows_the_steps_and_continues_the_run_with_its_own_command(
    tmp_path: Path, db: str
) -> None:
    from corral._view import pipeline_view

    await asyncio.to_thread(start, tmp_path, ASKS, db, run_id="r")
    found = await pipeline_view.read("r", db)
    assert found.command == "workflow"
    detail = await pipeline_view.detail(found, db)
    assert [(node.id, node.state) for node in detail.graph.nodes] == [
        ("first", "success"),
        ("ask", "waiting"),
    ]
    assert [each.text for each in detail.questions] == ["Go on?"]
