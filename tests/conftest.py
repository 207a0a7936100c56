"""Fixtures and hooks of all tests: a home directory per test, no API keys, agents, selection."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import itertools
import os
import re
import shutil
import signal
import sys
import time
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support import cleanup, fast_selection
from support.costs import Costs
from support.find_browser import NO_BROWSER
from support.installed_agents import ON_DEMAND, installed, managed, mark_of
from support.real_agents import RealAgent

from corral._agents import registry
from corral.testing import ModelServer

settings.register_profile("corral", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("corral")
"""Without deadlines: a test machine can be slow."""


_numbers = itertools.count()
PASSED = pytest.StashKey[bool]()


@pytest.fixture
def tmp_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """As pytest's own fixture, which lists the folders of all earlier tests to find a number. Only
    the folder of a failed test stays."""
    name = re.sub(r"\W", "_", request.node.name)[:26]
    folder = tmp_path_factory.getbasetemp() / f"{name}{next(_numbers)}"
    folder.mkdir(mode=0o700)
    yield folder
    if request.node.stash.get(PASSED, False):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture(autouse=True)
def _isolated_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the keys, settings and home of the person who runs the tests."""
    gemini = registry.find("gemini-cli")
    for name in list(os.environ):
        if name in gemini.env_names or name.startswith(("CORRAL_", "GEMINI_", "GOOGLE_")):
            monkeypatch.delenv(name)
    # Most programs of tests are no agents, and real ones are the tested versions.
    monkeypatch.setenv("CORRAL_PROBE", "never")
    home = tmp_path / "user-home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "corral-home"))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    parser.addoption("--part", metavar="N/M", help="of the selected tests part N of 0 to M-1")
    parser.addoption("--also", metavar="TEST", action="append", default=[], help="runs first")
    parser.addoption(
        "--within", metavar="SECONDS", type=float, help="start no test after that time"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the mark ``both_loops`` twice."""
    if metafunc.definition.get_closest_marker("both_loops"):
        metafunc.parametrize("_event_loop", ["asyncio", "uvloop"], indirect=True)


@pytest.fixture(autouse=True)
def _event_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop of this process, also of code that is not async: asyncio's own, or uvloop."""
    if getattr(request, "param", request.config.getoption("--loop")) == "uvloop":
        import uvloop

        # What asyncio.run and asyncio.Runner call, also those of corral. Policies are deprecated.
        monkeypatch.setattr(asyncio.events, "new_event_loop", uvloop.new_event_loop)
        monkeypatch.setattr(asyncio, "new_event_loop", uvloop.new_event_loop)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def gemini_program() -> str:
    """The path of the real Gemini CLI."""
    return installed("gemini-cli")


@pytest.fixture(scope="session")
def model_server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="session")
def anthropic_sdk() -> None:
    """Imported before the tests, because the import alone costs a CPU second or two."""
    import anthropic  # noqa: F401


@pytest.fixture
def gemini(
    gemini_program: str, model_server: ModelServer, workspace: Path, request: pytest.FixtureRequest
) -> RealAgent:
    """For tests of other layers that need one real agent; ``real_agents/`` has its own fixture."""
    return RealAgent("gemini-cli", model_server, workspace, request.node.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an ``async def`` test in an event loop of its own; it must leave no task behind."""
    import inspect

    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    names = inspect.signature(function).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def run_test() -> None:
        await function(**arguments)
        left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task() and not t.done()]
        assert not left, f"tasks left behind: {left}"

    asyncio.run(run_test())
    return True


STDERR = pytest.StashKey[int]()
"""The descriptor of stderr that is not captured."""


def pytest_configure(config: pytest.Config) -> None:
    """Register a mark for each agent that has a program. Reset SIGINT: a process that a shell
    started in the background ignores it, and its children would as well."""
    cleanup.start_watcher()
    config.pluginmanager.register(Costs())
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled():
        config.stash[STDERR] = os.dup(2)
    os.environ["CORRAL_PROBE"] = "never"  # also for what is made once for all tests
    # `python3` of the scripted programs: a version manager would start a shell before each.
    os.environ["PATH"] = f"{Path(sys.executable).resolve().parent}{os.pathsep}{os.environ['PATH']}"
    gc.disable()  # until the tests are collected: they are many objects, and none is garbage
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for agent in registry.all_agents():
        if agent.programs:
            marked = f"{mark_of(agent.name)}: drives the real {agent.title}"
            config.addinivalue_line("markers", marked)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return fast_selection.leaves_out(collection_path, str(config.getoption("markexpr"))) or None


def pytest_collection_finish() -> None:
    """The collected tests stay until the end: keep them out of garbage collection. It is seldom:
    tests that parse all of the source spent half of their time in it."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Five for two cores: many tests wait for a process, a timer or a server."""
    return 5 * len(os.sched_getaffinity(0)) // 2


NO_TIME = "the time of --within is over"
BEGAN = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    within: float | None = item.config.getoption("within")
    if within is not None and time.monotonic() - BEGAN > within:
        pytest.skip(NO_TIME)
    fast_selection.begin(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process if a test does not end although its timeout was raised in it: a cleanup may
    wait for ever. xdist reports the test as failed, and goes on in a new process."""
    mark = item.get_closest_marker("timeout")
    seconds = mark.args[0] if mark else float(item.config.getini("timeout"))
    stderr = item.config.stash[STDERR]
    faulthandler.dump_traceback_later(3 * seconds + 60, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


LEFT_OUT = pytest.StashKey[dict[str, int]]()
"""Mark of an agent → how many of its tests were deselected because it is not installed."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of on-demand agents that are not installed."""
    for item in items:
        fast_selection.add_marks(item)
    left: dict[str, list[pytest.Item]] = {}
    for mark, name in ON_DEMAND.items():
        if not os.path.exists(managed(name)):
            left[mark] = [item for item in items if item.get_closest_marker(mark)]
    config.stash[LEFT_OUT] = {mark: len(found) for mark, found in left.items() if found}
    deselected = {item for found in left.values() for item in found}
    if config.getoption("part"):
        deselected |= select_part(config, items)
    config.hook.pytest_deselected(items=[item for item in items if item in deselected])
    items[:] = [item for item in items if item not in deselected]


LONGEST = 600
"""Seconds that a test of a part may take at most."""


def select_part(config: pytest.Config, items: list[pytest.Item]) -> set[pytest.Item]:
    """Sort the tests of ``--also`` before all others, and return those of other parts. A test stays
    in its part when others are added."""
    part, parts = map(int, config.getoption("part").split("/"))
    first = set(config.getoption("also"))
    items.sort(key=lambda item: item.nodeid not in first)
    return {
        item
        for item in items
        if item.nodeid not in first
        and (zlib.crc32(item.nodeid.encode()) % parts != part or takes_long(item))
    }


def takes_long(item: pytest.Item) -> bool:
    """Whether only ``make test-all`` has the time for it."""
    mark = item.get_closest_marker("timeout")
    return mark is not None and mark.args[0] > LONGEST


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash.get(LEFT_OUT, dict[str, int]())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Copy the counts of a worker; each worker collects all tests."""
    node.config.stash.setdefault(LEFT_OUT, {}).update(
        getattr(node, "workeroutput", {}).get("left_out", {})
    )


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    skipped_late = [
        report.nodeid
        for report in terminalreporter.stats.get("skipped", [])
        if NO_TIME in str(report.longrepr)
    ]
    assert config.cache is not None
    config.cache.set("corral/no_time", skipped_late)  # tools/run_suite.py runs them the next time
    for mark, count in config.stash.get(LEFT_OUT, dict[str, int]()).items():
        agent = registry.find(ON_DEMAND[mark])
        terminalreporter.write_line(
            f"{count} tests of the real {agent.title} ({agent.programs[0]}) did NOT run: it is"
            " not installed"
            " (make test-all)",
            yellow=True,
        )
    skipped = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if "gemini_cli" in getattr(report, "keywords", {})
    ]
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} tests of the real Gemini CLI did NOT run: Node is missing", red=True
        )
    unseen = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if "browser" in getattr(report, "keywords", {})
    ]
    if unseen:
        terminalreporter.write_line(
            f"{len(unseen)} tests of the page did NOT run: {NO_BROWSER}", red=True
        )
