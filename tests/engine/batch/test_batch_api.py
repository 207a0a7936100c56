"""``corral.batch``, durable and in memory, with the built-in agent."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.batches import MODEL, CountingModel, results_of

import corral
from corral._engine.worker import executor
from corral._system import paths
from corral.errors import ConfigError, SchemaNotMet
from corral.testing import Call, ModelServer, Request, Turn, fail, hang, say

pytestmark = pytest.mark.whole_program

TASKS = [{"id": f"t{n}", "n": n} for n in range(6)]
PROMPT = "task {{id}}"
BOTH = pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])


@pytest.fixture
def model(
    model_server: ModelServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> CountingModel:
    made = CountingModel(model_server, request.node.nodeid)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    return made


def begin(workspace: Path, tasks: Any = TASKS, prompt: str = PROMPT, **given: Any) -> corral.Batch:
    options: dict[str, Any] = {"model": MODEL, "cwd": workspace, **given}
    batch: Callable[..., corral.Batch] = corral.batch
    return batch(tasks, prompt, **options)


@BOTH
async def test_every_task_has_a_result(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    file = workspace / "r.jsonl"
    report = await begin(workspace, durable=durable, results=file, label="night")
    assert report.ok
    assert {each.label for each in report.results} == {"night"}
    assert [each.id for each in report.results] == [task["id"] for task in TASKS]
    assert [each.text for each in report.results] == [f"did {task['id']}" for task in TASKS]
    assert model.counts == {str(task["id"]): 1 for task in TASKS}
    assert {key: line["text"] for key, line in results_of(file).items()} == {
        each.id: each.text for each in report.results
    }
    assert report.tokens > 0
    assert executor.running() is None
    repeated = await begin(workspace, durable=durable, results=file, label="night")
    assert (repeated.earlier, repeated.succeeded) == (6, 6)
    assert model.counts.total() == 6


@BOTH
@pytest.mark.deep_but_first
async def test_results_are_read_one_by_one_and_leaving_early_stops_the_engine(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    file = workspace / "r.jsonl"
    async with begin(workspace, durable=durable, results=file, concurrency=1) as batch:
        async for result in batch:
            assert result.ok
            break
    assert executor.running() is None
    assert 1 <= batch.report.succeeded < 6
    async with begin(workspace, durable=durable, results=file) as batch:
        seen = [result.id async for result in batch]
    assert sorted(seen) == sorted(str(task["id"]) for task in TASKS)
    assert batch.report.ok
    assert set(results_of(file)) == set(seen)


def test_batch_sync_needs_no_event_loop(model: CountingModel, workspace: Path) -> None:
    report = corral.batch_sync(["task a", "task b"], model=MODEL, cwd=workspace, durable=False)
    assert [(each.id, each.text) for each in report.results] == [("1", "did a"), ("2", "did b")]


@BOTH
@pytest.mark.deep_but_first
async def test_each_output_fits_the_type_or_the_task_fails(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    class Found(msgspec.Struct):
        number: int

    model.special = lambda task, _request: say('{"number": 7}' if task != "t3" else "no JSON")
    report = await begin(workspace, durable=durable, output=Found)
    failed = next(each for each in report.results if each.id == "t3")
    with pytest.raises(SchemaNotMet, match="task t3"):
        assert failed.output
    values = {each.id: each.output for each in report.results if each.ok}
    assert len(values) == len(report.results) - 1
    assert set(map(type, values.values())) == {Found}
    assert [(each.code, each.tasks) for each in report.failures] == [("schema_not_met", ("t3",))]


@BOTH
@pytest.mark.deep_but_first
async def test_retry_failed_repeats_only_failed_tasks(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    bad = {"t1", "t4"}

    def special(task: str, _request: Request) -> Turn | None:
        return fail(400, "no") if task in bad else None

    model.special = special
    file = workspace / "r.jsonl"
    first = await begin(workspace, durable=durable, results=file, retries=0)
    assert (first.succeeded, first.failed) == (4, 2)
    assert first.failures[0].count == 2
    bad.clear()
    same = await begin(workspace, durable=durable, results=file)
    assert same.failed == 2
    asked = model.counts.copy()
    second = await begin(workspace, durable=durable, results=file, retry_failed=True)
    assert second.ok
    assert model.counts - asked == {"t1": 1, "t4": 1}
    assert all(line["status"] == "success" for line in results_of(file).values())
    assert len(results_of(file)) == 6
    third = await begin(workspace, durable=durable, results=file, retry_failed=True)
    assert third.ok
    assert third.earlier == 6


@pytest.mark.deep
async def test_an_interrupted_retry_continues_in_the_same_round(
    model: CountingModel, workspace: Path
) -> None:
    bad = {"t1", "t2", "t4"}
    model.special = lambda task, _request: fail(400, "no") if task in bad else None
    file = workspace / "r.jsonl"
    options: dict[str, Any] = {"results": file, "retries": 0, "concurrency": 1}
    assert (await begin(workspace, **options)).failed == 3
    bad = {"t1"}
    first: list[str] = []
    before = file.read_bytes()

    def on_result(result: corral.BatchResult, report: corral.BatchReport) -> None:
        if report.succeeded + report.failed > 3:
            first.append(result.id)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await begin(workspace, retry_failed=True, on_result=on_result, **options)
    assert first == ["t1"]
    file.write_bytes(before)  # as if it had been killed before it removed the old lines
    second = await begin(workspace, retry_failed=True, **options)
    assert (second.succeeded, second.failed) == (5, 1)
    # It failed in this round: only another command starts the next round.
    assert (model.counts["t1"], model.counts["t2"], model.counts["t4"]) == (2, 2, 2)
    bad.clear()
    assert (await begin(workspace, retry_failed=True, **options)).ok
    assert len(results_of(file)) == 6


async def test_a_batch_that_continues_in_another_round_closes_all_agent_hosts(
    model: CountingModel, workspace: Path
) -> None:
    bad = {"t1"}
    model.special = lambda task, _request: fail(400, "no") if task in bad else None
    options: dict[str, Any] = {"results": workspace / "r.jsonl", "retries": 0}

    def on_result(_result: corral.BatchResult, report: corral.BatchReport) -> None:
        raise ZeroDivisionError  # as a full disk: the first round has not ended

    with pytest.raises(ZeroDivisionError):
        await begin(workspace, on_result=on_result, concurrency=1, **options)
    hosts = paths.home() / "hosts"
    assert any(hosts.iterdir())
    assert (await begin(workspace, retry_failed=True, **options)).failed == 1
    bad.clear()
    assert (await begin(workspace, retry_failed=True, **options)).ok
    async with asyncio.timeout(60):
        while any(hosts.iterdir()):
            await asyncio.sleep(0.01)


@BOTH
@pytest.mark.deep_but_first
async def test_a_temporary_failure_is_retried(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    def special(task: str, _request: Request) -> Turn | None:
        return fail(503, "later") if task == "t2" and model.counts[task] == 1 else None

    model.special = special
    report = await begin(workspace, durable=durable, retries=0, attempts=2)
    assert report.ok
    assert {each.id: each.attempts for each in report.results}["t2"] == 2


@BOTH
@pytest.mark.deep_but_first
async def test_in_order_writes_results_in_the_order_of_the_tasks(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    def special(task: str, _request: Request) -> Turn | None:
        return Turn(text=f"did {task}", delay=0.5) if task in ("t0", "t3") else None

    model.special = special
    file = workspace / "r.jsonl"
    async with begin(workspace, durable=durable, results=file, in_order=True) as batch:
        seen = [result.id async for result in batch]
    assert seen == [task["id"] for task in TASKS] == list(results_of(file))


@BOTH
@pytest.mark.deep_but_first
async def test_changed_tasks_are_refused_unless_accepted(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    file = workspace / "r.jsonl"
    await begin(workspace, durable=durable, results=file)
    with pytest.raises(ConfigError, match="6 tasks are changed"):
        await begin(workspace, prompt="Please: task {{id}}", durable=durable, results=file)
    tasks = [*TASKS[:5], {"id": "t9", "n": 9}]
    with pytest.raises(ConfigError, match=r"1 task is (gone|new)"):
        await begin(workspace, tasks, durable=durable, results=file)
    assert model.counts.total() == 6
    report = await begin(workspace, tasks, durable=durable, results=file, accept_changed=True)
    assert report.ok
    assert model.counts["t9"] == 1
    assert model.counts.total() == 7
    assert set(results_of(file)) == {task["id"] for task in tasks}


@BOTH
@pytest.mark.deep_but_first
async def test_a_spent_budget_starts_no_more_tasks_and_a_larger_one_continues(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    model.special = lambda task, _request: Turn(
        text=f"did {task}", usage={"input": 1_000_000, "output": 0}
    )
    file = workspace / "r.jsonl"
    options: dict[str, Any] = {"durable": durable, "results": file, "concurrency": 1}
    first = await begin(workspace, max_cost=0.5, **options)
    assert first.stopped == "budget"
    assert not first.ok
    assert 0 < first.succeeded < 6
    assert first.left == 6 - first.succeeded
    assert first.cost_usd >= 0.5
    assert model.counts.total() == first.succeeded
    second = await begin(workspace, max_cost=50, **options)
    assert second.ok
    assert second.stopped == ""
    assert model.counts.total() == 6


@BOTH
@pytest.mark.deep_but_first
async def test_concurrency_limits_the_tasks_that_run_at_once(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    starts: list[float] = []

    def special(task: str, _request: Request) -> Turn | None:
        starts.append(time.monotonic())
        return Turn(text="done", delay=0.4)

    model.special = special
    assert (await begin(workspace, durable=durable, concurrency=2)).ok
    assert len(starts) == 6
    # A request that is younger than the delay has no answer yet.
    assert max(sum(0 <= at - other < 0.4 for other in starts) for at in starts) <= 2


@BOTH
@pytest.mark.deep_but_first
async def test_a_timeout_ends_a_task_that_hangs(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    model.special = lambda task, _request: hang() if task == "t0" else None
    report = await begin(workspace, durable=durable, timeout=4.0, attempts=1)
    assert report.succeeded == 5
    assert [(each.code, each.tasks) for each in report.failures] == [("total_timeout", ("t0",))]


async def check_files(
    model: CountingModel, workspace: Path, count: int, *, durable: bool, worktree: bool
) -> None:
    """Each of the tasks, which run at the same time, lists exactly the file that it wrote."""

    def git(*words: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *name, *words], cwd=workspace, check=True)

    git("init", "-q", "-b", "main")
    git("commit", "-qm", "first", "--allow-empty")

    def special(task: str, request: Request) -> Turn:
        if request.tool_results:
            return Turn(text="done", delay=0.3)
        written = {"file_path": f"{task}.txt", "content": task}
        return Turn(calls=[Call("write_file", written)], delay=0.3)

    model.special = special
    report = await begin(
        workspace,
        [{"id": f"t{n}"} for n in range(count)],
        durable=durable,
        results=workspace / "results.jsonl",
        concurrency=8,
        worktree=worktree,
        policy="edits",
    )
    assert report.ok, report.failures
    root = Path() if worktree else workspace
    files = {each.id: each.files for each in report.results}
    assert files == {f"t{n}": (str(root / f"t{n}.txt"),) for n in range(count)}
    assert {each.files_complete for each in report.results[:8]} == {worktree}


@BOTH
@pytest.mark.deep_but_first
async def test_each_parallel_task_lists_exactly_its_own_files(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    await check_files(model, workspace, 8, durable=durable, worktree=False)


@pytest.mark.deep
@pytest.mark.parametrize("worktree", [True, False], ids=["worktrees", "one_folder"])
@BOTH
async def test_each_of_200_parallel_tasks_lists_exactly_its_own_files(
    model: CountingModel, workspace: Path, durable: bool, worktree: bool
) -> None:
    await check_files(model, workspace, 200, durable=durable, worktree=worktree)


async def test_the_file_of_results_is_not_a_changed_file(
    model: CountingModel, workspace: Path
) -> None:
    """One task after the other: what a shell command changed is listed, too."""
    command = Call("shell", {"command": "touch made.txt"})
    model.special = lambda task, request: (
        say("done") if request.tool_results or task != "t1" else Turn(calls=[command])
    )
    file = workspace / "results.jsonl"
    report = await begin(
        workspace, TASKS[:3], durable=False, results=file, concurrency=1, policy="all"
    )
    assert [each.files for each in report.results] == [(), (str(workspace / "made.txt"),), ()]
    assert all(each.files_complete for each in report.results)


@BOTH
@pytest.mark.deep_but_first
async def test_each_task_gets_a_worktree_and_its_changes_become_a_branch(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
            cwd=workspace,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    git("init", "-q", "-b", "main")
    (workspace / "sub").mkdir()
    (workspace / "sub" / "a.txt").write_text("a\n")
    git("add", ".")
    git("commit", "-qm", "first")
    (workspace / "sub" / "a.txt").write_text("not committed\n")

    def special(task: str, request: Request) -> Turn | None:
        if task in ("t1", "t2") and not request.tool_results:
            path = {"file_path": "new.txt", "content": f"of {task}\n"}
            return Turn(calls=[Call("write_file", path)])
        return say("done")

    model.special = special
    report = await begin(
        workspace / "sub",
        TASKS[:3],
        durable=durable,
        name="mend",
        worktree=True,
        patch=True,
        policy="edits",
    )
    assert report.ok, report.failures
    results = {each.id: each for each in report.results}
    assert results["t0"].branch == ""
    for name in ("t1", "t2"):
        assert results[name].branch == f"corral/mend/{name}"
        assert results[name].files == ("sub/new.txt",)
        assert f"+of {name}" in results[name].patch
        assert git("show", f"corral/mend/{name}:sub/new.txt") == f"of {name}\n"
        assert git("show", f"corral/mend/{name}:sub/a.txt") == "a\n"
    assert git("status", "--porcelain") == " M sub/a.txt\n"
    assert git("worktree", "list").count("\n") == 1
    assert git("branch", "--show-current") == "main\n"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"max_cost": 0.0}, "max_cost must be more than 0"),
        ({"resume": "last"}, "resume is not an option of a batch"),
        ({"name": "a/b"}, "not a valid batch name"),
        ({"worktree": True}, "needs a git repository"),
        ({"patch": True}, "patch needs worktree"),
        ({"cwd": "/nowhere"}, "is not a directory"),
        ({"model": "nobody:x"}, "nobody"),
        ({"durable": False, "queue": "q"}, "durable batch"),
        ({"output": {"type": "nonsense"}}, "nonsense"),
        ({"policy": "everything"}, "everything"),
        ({"results": "/proc/r.jsonl"}, "cannot be written"),
        ({"prompt": "{{nothing}}"}, "has no field 'nothing'"),
    ],
)
async def test_invalid_arguments_are_reported_before_anything_is_spent(
    model: CountingModel, workspace: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(corral.CorralError) as raised:
        await begin(workspace, **given)
    assert message in str(raised.value)
    with pytest.raises(corral.CorralError):
        async with begin(workspace, **given):
            raise AssertionError("it was started")
    assert model.counts.total() == 0


async def test_a_missing_api_key_is_reported_before_a_task_starts(workspace: Path) -> None:
    with pytest.raises(corral.errors.MissingKey):
        await begin(workspace, durable=False)


async def test_a_cancelled_batch_can_be_continued(model: CountingModel, workspace: Path) -> None:
    has_result = asyncio.Event()
    file = workspace / "r.jsonl"

    def on_result(_result: corral.BatchResult, _report: corral.BatchReport) -> None:
        has_result.set()

    batch = begin(workspace, results=file, concurrency=1, on_result=on_result)
    running = asyncio.ensure_future(batch.run_to_end())
    async with asyncio.timeout(60):
        await has_result.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert executor.running() is None
    report = await begin(workspace, results=file)
    assert report.ok
    assert report.earlier >= 1
    assert model.counts == {str(task["id"]): 1 for task in TASKS}


async def test_a_hook_decides_about_the_tool_calls_of_all_tasks(
    model: CountingModel, workspace: Path
) -> None:
    def write(task: str, request: Request) -> Turn | None:
        given = {"file_path": f"{task}.txt", "content": "x"}
        return None if request.tool_results else Turn(calls=[Call("write_file", given)])

    def decide(request: corral.ToolRequest) -> corral.Deny | None:
        return corral.Deny("not this one") if "t1" in str(request.paths) else None

    model.special = write
    hooked = begin(workspace, TASKS[:2], policy="edits", durable=False, on_tool_call=decide)
    assert (await hooked).succeeded == 2
    assert [(workspace / f"t{n}.txt").exists() for n in range(2)] == [True, False]
    with pytest.raises(ConfigError, match="on_tool_call needs durable=False"):
        await begin(workspace, on_tool_call=decide)
