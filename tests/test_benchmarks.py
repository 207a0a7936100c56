"""The programs of ``benchmarks/`` run, with little input. Their figures are not checked, except
that everything was read. Programs that need a package which is not installed here are left out."""

from __future__ import annotations

import json
import os
import platform
import re
import sqlite3
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "benchmarks" / "programs"
sys.path.append(str(ROOT))

from benchmarks import environment, page, runner  # noqa: E402
from benchmarks.areas import AREAS  # noqa: E402
from benchmarks.durable import Engine, running_workers  # noqa: E402
from benchmarks.environment import BenchEnvironment  # noqa: E402
from benchmarks.measure import Point, Row, at_most, program_cpu  # noqa: E402
from benchmarks.plots import write_plots  # noqa: E402

pytestmark = pytest.mark.whole_program


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BenchEnvironment:
    monkeypatch.setattr(environment, "CACHE", tmp_path / "bench")
    return BenchEnvironment(quick=True)


def figures(bench: BenchEnvironment, program: str, *words: str | Path) -> dict[str, float]:
    """What a program prints: one JSON object."""
    done = subprocess.run(
        [sys.executable, PROGRAMS / program, *words],
        cwd=bench.project,
        env={**bench.env, "PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("way", ["corral", "recorded", "readline", "memory", "ready-lines"])
def test_a_stream_of_lines_is_read(bench: BenchEnvironment, way: str) -> None:
    assert figures(bench, "stream.py", way, bench.stream(50, tools=True))["count"] == 50


@pytest.mark.parametrize("way", ["corral", "wire"])
def test_the_updates_of_an_acp_agent_are_read(bench: BenchEnvironment, way: str) -> None:
    assert figures(bench, "acp_updates.py", way, bench.updates(20))["count"] == 20


@pytest.mark.parametrize("way", ["session", "pool"])
@pytest.mark.deep_but_first
def test_an_acp_agent_answers_many_prompts(bench: BenchEnvironment, way: str) -> None:
    assert figures(bench, "acp_updates.py", way, bench.updates(20), "10")["count"] == 10


@pytest.mark.deep
def test_the_updates_of_an_acp_agent_are_read_by_the_official_sdk(bench: BenchEnvironment) -> None:
    assert figures(bench, "acp_sdk.py", bench.updates(20))["count"] == 20


@pytest.mark.parametrize("way", ["corral", "corral-lint", "pydot"])
@pytest.mark.deep_but_first
def test_a_pipeline_is_parsed(bench: BenchEnvironment, way: str) -> None:
    assert figures(bench, "dot.py", way, bench.pipeline(30))["count"] >= 30


@pytest.mark.parametrize("way", ["corral", "folder", "branches", "scheduler", "tasks"])
def test_a_chain_of_nodes_runs(bench: BenchEnvironment, way: str) -> None:
    assert figures(bench, "nodes.py", way, "5")["seconds"] > 0


@pytest.mark.parametrize("way", ["corral", "asyncio"])
def test_agents_at_the_same_moment_run(bench: BenchEnvironment, way: str) -> None:
    found = figures(bench, "many_agents.py", way, "3", bench.stream(10), bench.project)
    assert found["cpu"] > 0
    assert found["threads"] < 8


@pytest.mark.parametrize("way", ["corral", "asyncio"])
def test_concurrent_agents_run(bench: BenchEnvironment, way: str) -> None:
    found = figures(bench, "concurrent_agents.py", way, "2", bench.stream(10), bench.project)
    assert found["threads"] >= 1


@pytest.mark.parametrize("kind", ["plain", "setsid", "double-fork", "ignores-TERM"])
def test_corral_leaves_no_process_of_a_tree(bench: BenchEnvironment, kind: str) -> None:
    assert figures(bench, "process_trees.py", "corral", kind, "1")["survived"] == 0


@pytest.mark.parametrize("way", ["asyncio", "killpg"])
def test_other_ways_to_end_a_tree_run(bench: BenchEnvironment, way: str) -> None:
    assert "survived" in figures(bench, "process_trees.py", way, "plain", "1")


@pytest.fixture(scope="module")
def model_port() -> Iterator[str]:
    argv = [sys.executable, str(PROGRAMS / "model_server.py")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        yield server.stdout.readline().strip()
        server.kill()


@pytest.mark.parametrize(
    ("way", "wire", "what", "count"),
    [
        *(
            (way, wire, "packed", 20)
            for way in ("corral", "limit")
            for wire in ("gemini", "anthropic", "openai", "chat")
        ),
        *(
            (way, "gemini", what, count)
            for way in ("corral", "limit")
            for what, count in (("framed", 20), ("singly", 10), ("concurrent", 100))
        ),
        ("google-genai", "gemini", "packed", 20),
        pytest.param("anthropic", "anthropic", "packed", 20, marks=pytest.mark.deep),
        pytest.param("openai", "openai", "packed", 20, marks=pytest.mark.deep),
        ("openai", "chat", "concurrent", 100),
    ],
)
@pytest.mark.deep_but_first
def test_a_model_is_called(
    bench: BenchEnvironment, model_port: str, way: str, wire: str, what: str, count: int
) -> None:
    found = figures(bench, "model_calls.py", way, model_port, f"{wire}:{what}:{count}")
    assert found[f"{wire}:{what}"] > 0


@pytest.mark.parametrize("way", ["corral", "limit"])
def test_a_model_is_called_through_a_proxy(
    bench: BenchEnvironment, model_port: str, way: str
) -> None:
    argv = [
        sys.executable,
        str(PROGRAMS / "model_proxies.py"),
        way,
        f"http://127.0.0.1:{model_port}",
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=bench.env) as proxy:
        assert proxy.stdin
        assert proxy.stdout
        given = json.loads(proxy.stdout.readline())
        route = f"{way}={given['url']}={given['key']}"
        found = figures(bench, "first_bytes.py", "3", "20", route)
        proxy.stdin.write("\n")
        proxy.stdin.close()
        assert float(proxy.stdout.readline()) > 0
    assert found["count"] == 3


@pytest.mark.parametrize(
    ("form", "way"),
    [
        ("wide", "corral"),
        ("chain", "bare"),
        pytest.param("wide", "bare", marks=pytest.mark.deep),
        pytest.param("chain", "corral", marks=pytest.mark.deep),
    ],
)
@pytest.mark.deep
def test_durable_nodes_run(bench: BenchEnvironment, way: str, form: str) -> None:
    if way == "bare" and sys.version_info >= (3, 12) and sqlite3.sqlite_version_info < (3, 42):
        pytest.skip("from Python 3.12 on the library alone needs SQLite 3.42")
    assert figures(bench, "durable.py", way, "2", form)["cpu"] > 0


@pytest.mark.deep
def test_runs_wait_for_a_person(bench: BenchEnvironment, tmp_path: Path) -> None:
    assert figures(bench, "waiting_runs.py", tmp_path / "x.db", "2")["waiting"] == 2


@pytest.mark.deep
def test_workers_run_submitted_nodes(bench: BenchEnvironment, tmp_path: Path) -> None:
    db, log = str(tmp_path / "x.db"), tmp_path / "log"
    engine = Engine(bench, sys.executable, bench.env)
    with running_workers(engine, db, 2, concurrency=1) as workers:
        assert engine.figures("durable_submit.py", db, 3, 0, log)["seconds"] > 0
        assert len(log.read_text().splitlines()) == 3
    assert all(worker.returncode for worker in workers)


@pytest.mark.deep
def test_the_structure_of_the_source_is_measured(bench: BenchEnvironment) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "structure.py", "--list"],
        env=bench.env,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert "one ACP prompt:" in done.stdout
    assert "one durable simulated node:" in done.stdout
    assert "private functions called once:" in done.stdout


def test_every_program_is_named_by_a_benchmark() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "benchmarks").rglob("*.py"))
    unused = {path.name for path in PROGRAMS.iterdir() if path.is_file()}
    assert {name for name in unused if f'"{name}"' not in sources} == {"model_limit.py"}


def test_a_chart_has_two_bars_for_each_ratio(tmp_path: Path) -> None:
    rows = [
        Row("start, CPU", "10 ms", "<bare> 5 ms", 2.0, at_most(1.5, 2.0)),
        Row("CPU per event, peer ÷ corral", "1 µs", "peer 4 µs", 4.0),
        Row("threads", "4", ""),
    ]
    [file] = write_plots({"startup": rows, "nothing": rows[2:]}, tmp_path / "plots")
    assert file.name == "startup.svg"
    drawn = ET.fromstring(file.read_text(encoding="utf-8"))
    bars = [
        (bar.get("class"), float(bar.attrib["width"]))
        for bar in drawn.iter("{http://www.w3.org/2000/svg}rect")
    ]
    full = max(width for _, width in bars)
    assert bars == [
        ("missed", full),
        ("other", full / 2),
        ("corral", full / 4),
        ("other", full),
    ]


def test_a_chart_of_growth_has_every_point(tmp_path: Path) -> None:
    points = (Point(10, 0.01), Point(100, 0.02), Point(1_000, 0.1))
    [file] = write_plots({"growth": [Row("sizes", "size^0.7", "", points=points)]}, tmp_path)
    drawn = ET.fromstring(file.read_text(encoding="utf-8"))
    circles = list(drawn.iter("{http://www.w3.org/2000/svg}circle"))
    heights = [float(circle.attrib["cy"]) for circle in circles]
    assert len(heights) == len(points)
    assert heights == sorted(heights, reverse=True)


def test_the_page_has_a_place_for_each_area_and_a_chart_that_exists() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert re.findall(r"<!-- bench (.*) -->", text) == [*AREAS]
    for chart in re.findall(r"\]\((.*\.svg)\)", text):
        assert (page.PAGE.parent / chart).exists(), chart


ROWS = [Row("start, CPU", "10 ms", "bare 5 ms", 2.0, at_most(1.5, 2.0))]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A page with places for two areas."""
    file = tmp_path / "performance.md"
    places = "<!-- bench {0} -->\nold {0}\n<!-- end -->\n"
    file.write_text("".join(places.format(name) for name in ("start", "models")))
    return file


def test_the_tables_of_the_page_are_replaced(copy: Path) -> None:
    page.update(copy, "start", ROWS, page.footer([], 0.0))
    text = copy.read_text()
    assert "old start" not in text
    assert "old models" in text
    assert "| start, CPU | 10 ms" in text
    assert (copy.parent / "images/benchmarks/start.svg").exists()
    page.update(copy, "start", ROWS, page.footer([], 0.0))
    assert copy.read_text() == text
    with pytest.raises(ValueError, match="no place for view"):
        page.update(copy, "view", ROWS, "")
    assert copy.read_text() == text


def test_the_page_says_where_and_under_what_load_a_table_was_measured() -> None:
    quiet = page.footer([], 0.02)
    assert platform.machine() in quiet
    assert quiet.endswith(".")
    assert "load" not in quiet
    assert page.footer([], 0.5).endswith("**under load**: other programs used 50% of the cores.")
    assert page.footer(["a", "b"], 0.5).endswith("cores. Failed, and not in the table: a, b.")
    assert page.footer(["a"], 0.0) == f"{quiet} Failed, and not in the table: a."


def test_a_benchmark_that_fails_costs_no_figures_of_others(
    bench: BenchEnvironment, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts: list[str] = []

    def works(_bench: BenchEnvironment) -> list[Row]:
        return ROWS

    def fails(_bench: BenchEnvironment) -> list[Row]:
        texts.append(copy.read_text() + capsys.readouterr().out)
        raise RuntimeError("no such program")

    areas: runner.Areas = {"start": {"help": works}, "models": {"bad": fails, "good": works}}
    assert runner.main(["--page"], areas, copy) == 1
    [before] = texts
    assert "old start" not in before
    assert before.count("| start, CPU | 10 ms") == 2, "in the page and printed"
    printed = capsys.readouterr()
    assert "old models" not in copy.read_text()
    assert "Failed, and not in the table: bad." in copy.read_text()
    assert "| models: bad (failed) | 0 " in printed.out
    assert "| models: good         | 0 " in printed.out
    assert "Failed: bad." in printed.out
    assert "no such program" in printed.err
    assert runner.main(["start"], areas, copy) == 0


def test_an_area_without_figures_keeps_those_of_the_page(
    bench: BenchEnvironment, copy: Path
) -> None:
    text = copy.read_text()

    def fails(_bench: BenchEnvironment) -> list[Row]:
        raise RuntimeError("no such program")

    assert runner.main(["--page", "start"], {"start": {"help": fails}}, copy) == 1
    assert copy.read_text() == text
    with pytest.raises(ValueError, match="no place for view"):
        runner.main(["--page"], {"view": {"view": lambda _: ROWS}}, copy)


def test_a_benchmark_that_hangs_is_stopped(bench: BenchEnvironment) -> None:
    def hangs(bench: BenchEnvironment) -> list[Row]:
        program_cpu(["sleep", "60"], bench.env, bench.project)
        return ROWS

    result = runner.run_area("start", {"help": hangs, "import": lambda _: ROWS}, bench, 0.1)
    assert result.failed == ["help"]
    assert result.rows == ROWS
