"""The engine of a process: threads and event loops share it, whichever of them ends first."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import corral
from corral import pipelines, runs
from corral._engine import query, run_list
from corral._engine.batch.results import OutputFile
from corral._engine.dbos.database import find
from corral._engine.worker import executor, run_workflow
from corral._pipelines.execution import handlers
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.nodes import item
from corral._pipelines.scheduler.outcome import Outcome
from corral.errors import ConfigError

pytestmark = pytest.mark.whole_program

GRAPH = """digraph one {
    start [shape=Mdiamond]; exit [shape=Msquare]; a [type="t.shared"]; start -> a -> exit
}"""


class Node:
    """A node that can be made to wait."""

    def __init__(self) -> None:
        self.is_open, self.has_started = threading.Event(), threading.Event()
        self.is_open.set()
        handlers.register("t.shared", self.run)

    @contextmanager
    def waits(self) -> Generator[None]:
        """Within the block it does not end."""
        self.is_open.clear()
        try:
            yield
        finally:
            self.is_open.set()

    async def run(self, work: NodeContext) -> Outcome:
        self.has_started.set()
        while not self.is_open.is_set():
            await asyncio.sleep(0.01)
        return Outcome()


@pytest.fixture
def node() -> Node:
    return Node()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def wait_for_end() -> None:
    """Until the process has no engine."""
    wait_for(lambda: executor.running() is None)


class Callers:
    """The ways in which programs call corral from their threads."""

    def __init__(self, db: str, folder: Path) -> None:
        self.run = partial(pipelines.run, GRAPH, db=db, cwd=folder)
        self.run_sync = partial(pipelines.run_sync, GRAPH, db=db, cwd=folder)
        self.batch = partial(corral.batch_sync, ["x", "y"], simulate=True, db=db, cwd=folder)

    def own_loop(self) -> bool:
        return asyncio.run(self.run()).ok

    def no_loop(self) -> bool:
        return self.run_sync().ok

    def thread_of_a_loop(self) -> bool:
        return asyncio.run(asyncio.to_thread(self.run_sync)).ok

    def inside_a_loop(self) -> bool:
        async def call() -> bool:
            return self.run_sync().ok

        return asyncio.run(call())

    def two_in_a_loop(self) -> bool:
        async def call() -> bool:
            return all(each.ok for each in await asyncio.gather(self.run(), self.run()))

        return asyncio.run(call())

    def batches(self) -> bool:
        return self.batch(name=f"b-{threading.get_ident()}-{time.monotonic_ns()}").ok

    def all(self) -> list[Callable[[], bool]]:
        runs = [self.own_loop, self.no_loop, self.thread_of_a_loop]
        return [*runs, self.inside_a_loop, self.two_in_a_loop, self.batches, *runs[:2]]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def use_from_threads(db: str, folder: Path, count: int) -> None:
    """Eight threads, each with one way to call, ``count`` times."""

    def repeat(call: Callable[[], bool]) -> int:
        return sum(call() for _ in range(count))

    ways = Callers(db, folder).all()
    with ThreadPoolExecutor(len(ways)) as pool:
        assert list(pool.map(repeat, ways)) == [count] * len(ways)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:run_sync stops the running event loop:RuntimeWarning")
def test_threads_share_the_engine(node: Node, db: str, tmp_path: Path) -> None:
    use_from_threads(db, tmp_path, 1)
    before = threading.active_count(), descriptors()
    use_from_threads(db, tmp_path, 2)
    assert executor.running() is None
    assert (threading.active_count(), descriptors()) == before
    assert len(asyncio.run(run_list.list_runs(db=db, limit=100))) == 3 * 8


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:run_sync stops the running event loop:RuntimeWarning")
def test_eight_threads_with_fifty_runs_each(node: Node, db: str, tmp_path: Path) -> None:
    use_from_threads(db, tmp_path, 1)
    before = threading.active_count(), descriptors()
    use_from_threads(db, tmp_path, 50)
    assert executor.running() is None
    assert (threading.active_count(), descriptors()) == before


@pytest.mark.deep
def test_a_run_that_starts_while_the_engine_closes_gets_another(
    node: Node, new_file: str, tmp_path: Path
) -> None:
    run = Callers(new_file, tmp_path).run_sync
    second = threading.Thread(target=lambda: results.append(run(on_start=has_started)))
    results: list[pipelines.PipelineResult] = []
    submitted = threading.Event()

    def has_started(_run: str, _folder: Path) -> None:
        submitted.set()

    def on_close() -> None:
        second.start()
        submitted.wait(0.5)  # it must not be submitted to the engine that closes

    def on_start(_run: str, _folder: Path) -> None:
        executor.current().on_close.append(on_close)

    assert run(on_start=on_start).ok
    second.join(60)
    assert [each.ok for each in results] == [True]
    assert executor.running() is None


def abandon(work: Callable[[], Awaitable[object]], node: Node) -> asyncio.Task[object]:
    """Start the work in another thread, whose loop is closed while the node runs."""
    tasks: list[asyncio.Task[object]] = []

    async def main() -> object:
        return await work()

    def body() -> None:
        loop = asyncio.new_event_loop()
        tasks.append(loop.create_task(main()))
        loop.run_until_complete(asyncio.to_thread(node.has_started.wait, 60))
        loop.close()

    node.has_started.clear()
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return tasks[0]


def test_a_run_in_a_loop_that_is_closed_goes_on_as_long_as_the_engine_does(
    node: Node, new_file: str, tmp_path: Path
) -> None:
    callers = Callers(new_file, tmp_path)
    with ThreadPoolExecutor(1) as pool:
        with node.waits():
            other = pool.submit(callers.run_sync)
            assert node.has_started.wait(60)
            left = abandon(lambda: callers.run(run_id="left"), node)
        assert other.result(60).ok
    assert not left.done()
    wait_for_end()
    assert runs.resume_sync("left", db=new_file).ok


def test_an_engine_whose_last_loop_was_closed_ends(
    node: Node, new_file: str, tmp_path: Path
) -> None:
    callers = Callers(new_file, tmp_path)
    with node.waits():
        left = abandon(lambda: callers.run(run_id="left"), node)
        wait_for_end()
    assert not left.done()
    assert asyncio.run(query.show("left", db=new_file)).output is None
    assert runs.resume_sync("left", db=new_file).ok
    assert executor.running() is None


def test_a_batch_in_a_loop_that_is_closed_is_continued_in_the_same_engine(
    node: Node, new_file: str, tmp_path: Path
) -> None:
    async def task(work: NodeContext) -> Outcome:
        await node.run(work)
        return await item.item(work)

    results = tmp_path / "out.jsonl"
    callers = Callers(new_file, tmp_path)
    batch = partial(corral.batch, ["x", "y"], simulate=True, db=new_file, cwd=tmp_path)
    handlers.register("batch.item", task)
    try:
        with ThreadPoolExecutor(1) as pool, node.waits():
            other = pool.submit(callers.run_sync)
            assert node.has_started.wait(60)
            left = abandon(lambda: batch(results=results).run_to_end(), node)
            engine = executor.running()
            wait_for(lambda: can_be_opened(results))
            assert executor.running() is engine
            node.is_open.set()
            assert callers.batch(results=results).ok
            assert other.result(60).ok
    finally:
        handlers.register("batch.item", item.item)
    assert not left.done()
    assert executor.running() is None


def can_be_opened(results: Path) -> bool:
    """Whether no batch writes to the file."""
    try:
        OutputFile(results).close()
    except ConfigError:
        return False
    return True


@pytest.mark.deep
def test_a_second_database_is_refused_until_the_first_is_not_used(
    node: Node, new_file: str, tmp_path: Path
) -> None:
    first = Callers(new_file, tmp_path)
    second = Callers(str(tmp_path / "other.db"), tmp_path)
    with ThreadPoolExecutor(1) as pool:
        with node.waits():
            running = pool.submit(first.run_sync)
            assert node.has_started.wait(60)
            with pytest.raises(ConfigError, match=r"on .*engine\.db.* on .*other\.db") as refused:
                second.run_sync()
            assert "another process" in str(refused.value.hint)
            with pytest.raises(ConfigError, match="already runs an engine"):
                second.batch()
        assert running.result(60).ok
    assert second.run_sync().ok


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.deep
def test_a_forked_process_cannot_use_the_engine_of_its_parent(
    node: Node, new_file: str, tmp_path: Path
) -> None:
    """Its threads do not exist there, and its connections are those of the parent."""
    run = Callers(new_file, tmp_path).run_sync
    read, write = os.pipe()
    with ThreadPoolExecutor(1) as pool:
        with node.waits():
            running = pool.submit(run)
            assert node.has_started.wait(60)
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                try:
                    run()
                except BaseException as error:
                    os.write(write, str(error).encode())
                finally:
                    os._exit(0)
            os.close(write)
            os.waitpid(child, 0)
            with os.fdopen(read) as pipe:
                assert "forked while its parent ran an engine" in pipe.read()
        assert running.result(60).ok


def test_code_in_a_worker_that_runs_a_pipeline_does_not_end_the_worker(
    node: Node, new_file: str, tmp_path: Path
) -> None:
    run = Callers(new_file, tmp_path).run_sync
    is_ready = threading.Event()
    workflows = run_workflow.all_workflows()
    here = executor.Executor(find(new_file), workflows, queue_names=["default"], poll=0.1)

    def on_ready(_: object) -> None:
        is_ready.set()

    thread = threading.Thread(target=here.run_here, args=(on_ready,))
    thread.start()
    try:
        assert is_ready.wait(60)
        assert run().ok
        assert not here.draining
        assert run().ok
    finally:
        here.stop()
        thread.join(60)
    assert not thread.is_alive()
