"""The state of a server of runs: its clients, their runs, what is counted, and how it ends.

Theory of operation
-------------------
*open* -> *draining* -> *closed*. While it is open, each client has its own ``CallerRuns``, within
those of the server. The file of clients is looked at once a second: a client that is new may start
runs; one that is gone, revoked or expired is refused from then on, its streams end and its runs are
cancelled. The limits of a client that is known stay those of its first use.

``drain`` begins the end: ``/ready`` fails, no run is started, everything else is served. Runs get
the given time to end by themselves; then they are cancelled, in bounded time. When the block is
left, no run and no task is left.

An HTTP client does not stay connected: its runs go on without it, until their time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from corral._serving.allowance import Allowance
from corral._serving.caller_runs import CallerRun, CallerRuns
from corral._serving.http.clients import ServiceClient, find_client, read_clients
from corral._system import fs
from corral._system.http.asgi_server import most_requests
from corral._view.records import ServedConflict, Unavailable
from corral.errors import CorralError

LOOK = 1.0
"""Seconds between two looks at the file of clients."""
STREAM_SECONDS = 5.0
"""For streams of runs that have ended to send the rest, before the server ends."""
KEPT_KEYS = 1000
"""Idempotency keys of a client that are remembered."""
_log = logging.getLogger("corral.serving")


class ClientRuns:
    """The runs of one client."""

    def __init__(self, runs: CallerRuns) -> None:
        self.runs = runs
        self.closing: asyncio.Event = asyncio.Event()
        """Its streams end."""
        self.open_requests: int = 0
        """With its streams."""
        self._started: dict[str, tuple[bytes, asyncio.Future[str]]] = {}

    @contextlib.contextmanager
    def open_request(self) -> Generator[None]:
        self.open_requests += 1
        try:
            yield
        finally:
            self.open_requests -= 1

    async def start_once(
        self, key: str, request: msgspec.Struct, start: Callable[[], Awaitable[CallerRun]]
    ) -> str:
        """Start a run, and return its id; an equal request with the same key gets the same one,
        also while it starts. A start that failed is tried again. Raises ``ServedConflict`` for
        another request."""

        async def start_run() -> str:
            return (await start()).id  # not the run: what it holds would stay as long as the key

        if not key:
            return await start_run()
        content = type(request).__name__.encode() + msgspec.json.encode(request)
        digest = hashlib.sha256(content).digest()
        if key not in self._started:
            task = asyncio.ensure_future(start_run())
            task.add_done_callback(lambda _: self._forget_failed(key, task))
            self._started[key] = digest, task
            while len(self._started) > KEPT_KEYS:
                del self._started[next(iter(self._started))]
        known, found = self._started[key]
        if known != digest:
            raise ServedConflict(
                "this Idempotency-Key was used for another request",
                hint="Use a new key for each run.",
            )
        return await asyncio.shield(found)

    def _forget_failed(self, key: str, task: asyncio.Future[str]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._started.pop(key, None)

    def revoke(self) -> None:
        """End its streams and its runs, also those that are starting."""
        self.closing.set()
        self.runs.revoke()


class RunServer:
    """A server of runs, while its block is open."""

    def __init__(
        self, allowance: Allowance, clients: dict[str, ServiceClient], file: Path | None = None
    ) -> None:
        """``file``: where the clients come from; it is read again when it changes. Raises
        ``NotPermitted`` for a client that would get more than the allowance."""
        for client in clients.values():
            allowance.narrowed(client.settings, client.name)
        self.counts: Counter[tuple[str, str]] = Counter()
        """(metric, label) -> number."""
        self.is_open: bool = False
        """Whether runs can be started."""
        self.is_entered: bool = False
        self._allowance = allowance
        self._clients = clients
        self._file = file
        self._seen = None if file is None else _version(file)
        self._runs = CallerRuns(allowance)
        self._of_clients: dict[str, ClientRuns] = {}
        self._stack = AsyncExitStack()
        self._watch: asyncio.Task[None] | None = None
        self._no_streams = asyncio.Event()

    async def __aenter__(self) -> RunServer:
        await self._stack.enter_async_context(self._runs)
        if self._file is not None:
            self._watch = asyncio.create_task(self._watch_clients(), name="corral-serve-clients")
        self.is_open = self.is_entered = True
        self._no_streams.set()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.is_open = False
        try:
            if self._watch is not None:
                self._watch.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._watch
        finally:
            self.end_streams()
            await self._stack.aclose()
            self.is_entered = False

    async def client(self, authorization: str) -> ClientRuns | None:
        """The client of a request; None if its token is not valid."""
        found = find_client(self._clients, authorization)
        if found is None:
            return None
        if found.name not in self._of_clients:
            runs = self._runs.for_client(found.name, found.settings)
            self._of_clients[found.name] = ClientRuns(runs)
            await self._stack.enter_async_context(runs)
        return self._of_clients[found.name]

    async def start(self, begin: Callable[[], Awaitable[CallerRun]]) -> CallerRun:
        """Start a run, and count it. Raises ``Unavailable`` if the server ends."""
        if not self.is_open:
            raise Unavailable("the server ends: it starts no more runs")
        run = await begin()
        self.counts["started", ""] += 1

        def count_end() -> None:
            if run.outcome is not None:
                self.counts["ended", run.outcome.status] += 1
                remove()

        remove = run.on_change(count_end)
        count_end()
        return run

    @property
    def running(self) -> int:
        """Runs that have not ended."""
        return self.counts["started", ""] - sum(
            number for (name, _), number in self.counts.items() if name == "ended"
        )

    @property
    def most_requests(self) -> int:
        """Requests of one client that may be open: it leaves half of them to the others."""
        most = most_requests()
        return most if len(self._clients) == 1 else most // 2

    async def counted_stream(
        self, client: ClientRuns, source: AsyncGenerator[bytes]
    ) -> AsyncGenerator[bytes]:
        """A stream, counted while it is open."""
        self.counts["streams", ""] += 1
        self._no_streams.clear()
        try:
            with client.open_request():
                async with contextlib.aclosing(source):
                    async for piece in source:
                        yield piece
        finally:
            self.counts["streams", ""] -= 1
            if not self.counts["streams", ""]:
                self._no_streams.set()

    async def drain(self, seconds: float) -> None:
        """Start no more runs; wait for those that there are, then cancel them. Streams get a moment
        to send their last events."""
        self.is_open = False
        async with asyncio.TaskGroup() as waits:
            for each in self._of_clients.values():
                waits.create_task(_end(each.runs, seconds))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STREAM_SECONDS):
                await self._no_streams.wait()

    def end_streams(self) -> None:
        for each in self._of_clients.values():
            each.closing.set()

    async def _watch_clients(self) -> None:
        """Read the file of clients when it has changed; end what is no longer permitted."""
        while True:
            await asyncio.sleep(LOOK)
            if self._file is not None and (now := _version(self._file)) != self._seen:
                self._seen = now
                try:
                    clients = await asyncio.to_thread(read_clients, self._file)
                    for client in clients.values():
                        self._allowance.narrowed(client.settings, client.name)
                    self._clients = clients
                except CorralError as error:  # what was valid stays in force
                    _log.error("the file of clients is not used: %s", error)
                except Exception:  # else no later change would be seen, not even a revoked token
                    _log.exception("the file of clients is not used")
            for name in [*self._of_clients]:
                known = self._clients.get(name)
                if known is None or not known.is_valid:
                    # Its block stays open until the end: its runs need a moment to end.
                    self._of_clients.pop(name).revoke()


def _version(file: Path) -> tuple[int, ...] | None:
    try:
        about = fs.status(file)
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


async def _end(runs: CallerRuns, seconds: float) -> None:
    await runs.settle(seconds)
    await runs.end(keeps=False)
