"""The server of ``corral view``: requests to a long log, and its CPU time beside a live run."""

from __future__ import annotations

import os
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmarks.measure import Bar, Candidate, Row, measure_rounds, ms

if TYPE_CHECKING:
    from corral.events import Event

LIVE_SECONDS = 10.0
EVENTS_PER_SECOND = 20
"""Of the live run: about what a model writes."""
LIMIT = 0.05
"""CPU seconds of the server in a second of a live run."""


class ViewClient:
    """Requests to a running server."""

    def __init__(self, address: str, pid: int) -> None:
        parts = urlsplit(address)
        self.base = f"http://{parts.netloc}"
        self._token = parts.query.removeprefix("token=")
        self._pid = pid

    def open(self, path: str) -> HTTPResponse:
        request = urllib.request.Request(self.base + path)
        request.add_header("Authorization", f"Bearer {self._token}")
        response: HTTPResponse = urllib.request.urlopen(request, timeout=60)
        return response

    def seconds(self, path: str) -> float:
        """How long a request takes."""
        started = time.perf_counter()
        with self.open(path) as response:
            response.read()
        return time.perf_counter() - started

    @property
    def cpu(self) -> float:
        """CPU seconds of the server so far."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def items(client: ViewClient, few: int, many: int, rounds: int) -> Row:
    """A complete page of the conversation of a long log against the only, shorter page of a short
    one. The bar is that of the first paint."""

    def asks(count: int) -> Callable[[], float]:
        # The last page of the short log is its only one; that of the long one is a complete page.
        page = "last" if count == few else "3"
        return lambda: client.seconds(f"/api/sessions/events-{count}/items?page={page}")

    costs = measure_rounds({str(count): Candidate(asks(count), rounds) for count in (many, few)})
    ratio = costs.ratio(str(many), str(few))
    return Row(
        f"a complete page of items of {many:,} events, wall",
        ms(costs.of(str(many))),
        f"{few} events {ms(costs.of(str(few)))}",
        ratio,
    )


def live(client: ViewClient, home: Path) -> Row:
    """CPU time of the server while it shows a run that is being written."""
    from corral import events
    from corral._sessions.store import EVENTS

    folder = home / "sessions" / f"live-{os.getpid()}"
    folder.mkdir(parents=True)
    readers = [
        threading.Thread(target=_read_all, args=(client, path), daemon=True)
        for path in ("/api/stream", f"/api/sessions/{folder.name}/stream?after=0")
    ]
    started = time.monotonic()
    with open(folder / EVENTS, "wb", buffering=0) as log:
        log.write(events.to_json(events.Init(agent="gemini-cli", ts=time.time())) + b"\n")
        for reader in readers:
            reader.start()
        time.sleep(1.0)
        before, began = client.cpu, time.monotonic()
        number = 0
        while time.monotonic() - started < LIVE_SECONDS:
            number += 1
            log.write(events.to_json(_event(number)) + b"\n")
            time.sleep(1 / EVENTS_PER_SECOND)
        share = (client.cpu - before) / (time.monotonic() - began)
    shutil.rmtree(folder)
    return Row(
        f"CPU of the server beside a live run of {EVENTS_PER_SECOND} events a second",
        f"{share:.1%} of a core",
        "a page that shows it",
        None,
        Bar(f"≤ {LIMIT:.0%}", share <= LIMIT),
    )


def _event(number: int) -> Event:
    from corral import events

    if number % 40 == 0:
        return events.ToolUse(f"call-{number}", "shell", title="ls", ts=time.time())
    return events.Text(f"word {number} of **the** answer ", ts=time.time())


def _read_all(client: ViewClient, path: str) -> None:
    with client.open(path) as response:
        while response.readline():
            pass
