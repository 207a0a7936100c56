"""The page of ``corral view`` in a real browser: first paint, memory while scrolling, size."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import environment, view_server
from benchmarks.environment import BenchEnvironment
from benchmarks.measure import Bar, Candidate, Row, at_most, measure_rounds, ms, progress

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from corral.events import Event

FEW, MANY = 100, 100_000
ROUNDS = 12
PLACES = 60
"""Places of the log that are scrolled to."""
FLAGS = ["--no-sandbox", "--enable-precise-memory-info"]
LIMIT_KB = 300
PEERS = {"inspect view": 11_000, "harbor view": 2_300}
"""kB of the static files of other viewers, as installed."""
STATIC = Path(__file__).parents[1] / "src" / "corral" / "_view" / "static"


def view(bench: BenchEnvironment) -> list[Row]:
    """The page of a session of 100,000 events against one of 100."""
    home = _sessions()
    rows = [_size()]
    with _server(home) as (address, pid):
        client = view_server.ViewClient(address, pid)
        rows.append(view_server.items(client, FEW, MANY, bench.rounds(ROUNDS)))
        rows.append(view_server.live(client, home))
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chrome")
    if program is None:
        progress("there is no Chromium: the page is not measured\n")
        return rows
    from playwright.sync_api import sync_playwright

    with _server(home) as (address, _), sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(address)
        root = page.url.split("#")[0]
        costs = measure_rounds(
            {
                str(count): Candidate(_painter(page, root, count), bench.rounds(ROUNDS))
                for count in (MANY, FEW)
            }
        )
        ratio = costs.ratio(str(MANY), str(FEW))
        rows.append(
            Row(
                f"the page of a session of {MANY:,} events, wall until it is shown",
                ms(costs.of(str(MANY))),
                f"{FEW} events {ms(costs.of(str(FEW)))}",
                ratio,
                at_most(2, ratio),
            )
        )
        rows.append(_memory(page, root))
        browser.close()
    return rows


def _size() -> Row:
    size = sum(len(gzip.compress(path.read_bytes())) for path in STATIC.iterdir()) / 1000
    peers = ", ".join(f"{name} {kb / 1000:.1f} MB raw" for name, kb in PEERS.items())
    bar = Bar(f"≤ {LIMIT_KB} kB", size <= LIMIT_KB)
    return Row("static files of the page, compressed", f"{size:.0f} kB", peers, None, bar)


def _painter(page: Page, root: str, count: int) -> Callable[[], float]:
    def paint() -> float:
        page.goto("about:blank")
        started = time.perf_counter()
        page.goto(f"{root}#/sessions/events-{count}")
        page.wait_for_selector(".item.done", timeout=120_000)
        return time.perf_counter() - started

    return paint


def _memory(page: Page, root: str) -> Row:
    """The heap of the page after scrolling through the log, over that after a tenth of it."""
    page.goto(f"{root}#/sessions/events-{MANY}")
    page.wait_for_selector(".item.done", timeout=120_000)
    heaps: list[float] = []
    for place in range(PLACES, -1, -1):
        page.evaluate(
            """share => {
                const box = document.querySelector(".reader .scroller");
                box.scrollTop = share * (box.scrollHeight - box.clientHeight);
            }""",
            place / PLACES,
        )
        page.wait_for_timeout(60)
        page.wait_for_function("() => !document.querySelector('.page.loading')", timeout=120_000)
        if place in (PLACES * 9 // 10, 0):
            page.request_gc()
            heaps.append(float(page.evaluate("performance.memory.usedJSHeapSize")))
    ratio = heaps[1] / heaps[0]
    return Row(
        f"memory of the page after scrolling through {MANY:,} events",
        f"{heaps[1] / 1e6:.1f} MB",
        f"after a tenth {heaps[0] / 1e6:.1f} MB",
        ratio,
        at_most(1.25, ratio),
    )


@contextmanager
def _server(home: Path) -> Generator[tuple[str, int]]:
    """The address and the process id of a server."""
    with subprocess.Popen(
        [sys.executable, "-m", "corral", "view", "--no-open"],
        env={**os.environ, "CORRAL_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            words = (word for line in process.stdout for word in line.split())
            yield next(word for word in words if word.startswith("http://")), process.pid
        finally:
            process.terminate()


def _sessions() -> Path:
    """A home with a short and a long session; made once."""
    import msgspec

    from corral import events
    from corral._sessions.store import EVENTS, META, Meta

    home = environment.CACHE / "view-home"
    if home.exists():
        return home
    now = time.time()
    for count in (FEW, MANY):
        folder = home / "sessions" / f"events-{count}"
        folder.mkdir(parents=True)
        with open(folder / EVENTS, "wb") as log:
            for event in _events(count, now):
                log.write(events.to_json(event) + b"\n")
        meta = Meta(folder.name, "gemini-cli", "/", now, now, status="success", title="x", turns=1)
        (folder / META).write_bytes(msgspec.json.encode(meta))
    return home


def _events(count: int, now: float) -> Iterator[Event]:
    from corral import events

    yield events.Vendor(name="prompt", data="Go through all files", seq=1, ts=now)
    for number in range(count // 3):
        call, seq = f"call-{number}", number * 3
        file = f"src/module_{number}.py"
        yield events.ToolUse(
            call_id=call, name="read_file", kind="read", paths=(file,), seq=seq, ts=now
        )
        yield events.ToolResult(
            call_id=call, status="success", output="x " * 60, seq=seq + 1, ts=now
        )
        yield events.Text(delta=f"{file} is **done**.", message_id=call, seq=seq + 2, ts=now)
    yield events.Done(status="success", seq=count, ts=now)
