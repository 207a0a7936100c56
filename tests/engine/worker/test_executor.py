"""The engine inside a program: it uses its own event loop, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import pickle
import queue
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.descriptors import free_descriptors

from corral._engine import process_engine, query, run_list, service
from corral._engine.dbos import adapter, database, leases
from corral._engine.payloads import PipelineOutput, RunConfig, RunInput
from corral._engine.worker import executor, run_workflow
from corral._pipelines import loader
from corral._pipelines.execution import handlers
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.scheduler.outcome import Outcome
from corral._system.threads import NoThread
from corral.errors import ConfigError, CorralError, StorageFailed

pytestmark = pytest.mark.whole_program

GRAPH = """digraph one {
    start [shape=Mdiamond]; exit [shape=Msquare]; a [type="t.here"]; start -> a -> exit
}"""


@pytest.fixture(autouse=True)
def _registered() -> None:
    async def here(work: NodeContext) -> Outcome:
        return Outcome(context_updates={"thread": threading.current_thread().name})

    handlers.register("t.here", here)


def run_input(tmp_path: Path, run: str) -> RunInput:
    config = RunConfig(folder=str(tmp_path / run), workspace=str(tmp_path))
    return RunInput(run_id=run, graph=loader.load(GRAPH), config=config)


async def run_once(tmp_path: Path, run: str) -> PipelineOutput:
    await service.start(run_input(tmp_path, run), db=str(tmp_path / "x.db"))
    return await service.wait(run, db=str(tmp_path / "x.db"), timeout=60)


@pytest.mark.deep
def test_one_engine_serves_several_event_loops_in_turn(tmp_path: Path) -> None:
    try:
        for number in range(2):
            closed = asyncio.run(run_once(tmp_path, f"r{number}"))
            assert closed.status == "success"
            assert closed.context["thread"] == "corral-engine"
    finally:
        process_engine.close()


def test_the_callers_loop_keeps_its_default_executor(tmp_path: Path) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(threading.current_thread)
        before = loop._default_executor  # type: ignore[attr-defined]
        await run_once(tmp_path, "r")
        assert loop._default_executor is before  # type: ignore[attr-defined]
        await asyncio.to_thread(process_engine.close)
        assert await asyncio.to_thread(lambda: 1) == 1

    asyncio.run(scenario())


@pytest.mark.deep
def test_an_engine_that_is_started_and_stopped_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    for number in range(3):
        asyncio.run(run_once(tmp_path, f"r{number}"))
        process_engine.close()
        assert executor.running() is None
    left = [t for t in threading.enumerate() if t not in before and t.is_alive()]
    assert [t.name for t in left if "corral" in t.name or "queue" in t.name] == []


@pytest.mark.deep
def test_an_engine_is_started_and_stopped_twenty_times(tmp_path: Path) -> None:
    for number in range(20):
        asyncio.run(run_once(tmp_path, f"r{number}"))
        process_engine.close()


def test_a_second_run_with_the_same_id_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        await run_once(tmp_path, "r")
        with pytest.raises(ConfigError, match="already"):
            await run_once(tmp_path, "r")

    try:
        asyncio.run(scenario())
    finally:
        process_engine.close()


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


def test_listing_runs_decodes_no_pickle(tmp_path: Path) -> None:
    import sqlite3

    asyncio.run(run_once(tmp_path, "r"))
    process_engine.close()
    executed = tmp_path / "executed"
    pickled = base64.b64encode(pickle.dumps(Evil(str(executed)))).decode()
    with sqlite3.connect(tmp_path / "x.db") as opened:
        opened.execute("UPDATE workflow_status SET serialization = 'py_pickle'")
        opened.execute("UPDATE workflow_input SET inputs = ?", (pickled,))
        opened.execute("UPDATE workflow_output SET output = ?", (pickled,))
    opened.close()
    found = asyncio.run(run_list.list_runs(db=str(tmp_path / "x.db")))
    assert [each.id for each in found] == ["r"]
    assert not executed.exists()
    with pytest.raises(ConfigError, match="its input is damaged"):
        asyncio.run(query.show("r", db=str(tmp_path / "x.db")))
    with pytest.raises(ConfigError, match="its input is damaged"):
        asyncio.run(service.wait("r", db=str(tmp_path / "x.db"), timeout=60))
    assert not executed.exists()


@pytest.mark.parametrize(
    "statement",
    [
        "import corral; corral.run",
        "import corral.pipelines; corral.pipelines.lint",
        "import corral._engine.service, corral._engine.worker.worker;"
        " import corral._engine.agent_host.server",
        "from click.testing import CliRunner; from corral._cli.main import command;"
        " CliRunner().invoke(command, ['--help'])",
    ],
)
def test_the_library_is_imported_only_for_durable_runs(statement: str) -> None:
    code = f"import sys\ntry:\n exec({statement!r})\nexcept SystemExit: pass\n"
    code += "print([m for m in ('dbos', 'sqlalchemy', 'psycopg', 'fsspec') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


def test_a_stop_during_the_start_is_not_lost(tmp_path: Path) -> None:
    """A worker gets SIGTERM before its event loop runs."""
    here = executor.Executor(database.find(str(tmp_path / "x.db")), run_workflow.all_workflows())
    served: list[object] = []
    here.stop()
    thread = threading.Thread(target=here.run_here, args=(served.append,), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert executor.running() is None


def test_an_engine_that_cannot_start_raises_and_does_not_say_that_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    db = tmp_path / "x.db"
    here = executor.Executor(database.find(str(db)), run_workflow.all_workflows())
    served: list[object] = []
    hold = here.leases.hold

    def lose_database(name: str) -> None:
        hold(name)
        db.unlink()
        db.mkdir()

    monkeypatch.setattr(here.leases, "hold", lose_database)
    with pytest.raises(StorageFailed, match="unable to open database file"):
        here.run_here(served.append)
    assert served == []
    assert "failed to launch" not in caplog.text


def test_a_takeover_in_this_process_does_not_look_like_a_live_executor(tmp_path: Path) -> None:
    """A run that is resumed at that moment would wait for the dead executor for ever."""
    found = database.find(str(tmp_path / "x.db"))
    database.prepare(found)
    is_taking_over, is_over = threading.Event(), threading.Event()
    answers: list[bool] = []

    def take_over() -> None:
        with leases.taking_over, leases.open_leases(found).claim("dead"):
            is_taking_over.set()
            is_over.wait(60)

    def look() -> None:
        with contextlib.closing(leases.ExecutorLiveness(found, is_strict=True)) as liveness:
            answers.append(liveness.is_alive("dead"))

    threads = [threading.Thread(target=each, daemon=True) for each in (take_over, look)]
    threads[0].start()
    assert is_taking_over.wait(60)
    threads[1].start()
    threads[1].join(2)
    is_over.set()
    threads[1].join(60)
    assert answers == [False]


def test_an_engine_without_a_thread_raises_and_another_can_start_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    here = executor.Executor(database.find(str(tmp_path / "x.db")), run_workflow.all_workflows())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(NoThread):
            here.start()
    process_engine.close()
    assert executor.running() is None


def test_an_engine_without_descriptors_fails_and_its_run_is_resumed_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits: list[contextlib.AbstractContextManager[None]] = []

    async def exhaust(work: NodeContext) -> Outcome:
        if not limits:
            for engine in adapter._engines:  # pyright: ignore[reportPrivateUsage]
                engine.dispose()  # so the next write opens the database again
            limits.append(free_descriptors(0))
            limits[0].__enter__()
        return Outcome()

    handlers.register("t.here", exhaust)
    failures: queue.SimpleQueue[CorralError] = queue.SimpleQueue()
    try:
        with executor.watched(lambda _database, error: failures.put(error)):
            asyncio.run(service.start(run_input(tmp_path, "r"), db=str(tmp_path / "x.db")))
            failure = failures.get(timeout=60)
    finally:
        for each in limits:
            each.__exit__(None, None, None)
        process_engine.close()
    assert "cannot be opened: unable to open database file" in failure.message
    assert "ulimit -n" in str(failure.hint)
    assert caplog.text == ""

    async def resume() -> PipelineOutput:
        await service.resume("r", db=str(tmp_path / "x.db"))
        return await service.wait("r", db=str(tmp_path / "x.db"), timeout=60)

    try:
        assert asyncio.run(resume()).status == "success"
    finally:
        process_engine.close()
