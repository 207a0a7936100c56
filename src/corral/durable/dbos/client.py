"""Asking the database, beside the loop; and which executors live."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from corral.durable.dbos import adapter, queues
from corral.durable.dbos.database import Database, spoken_of
from corral.durable.dbos.leases import open_leases
from corral.durable.payloads import RunOutput, unpack
from corral.durable.worker import executor
from corral.errors import ConfigError

if TYPE_CHECKING:
    from dbos import DBOSClient

T = TypeVar("T")


async def with_client(database: Database, question: Callable[[DBOSClient], T]) -> T:
    def whole() -> T:
        with spoken_of(database), queues.queue_client(database) as client:
            return question(client)

    return await asyncio.to_thread(whole)


@asynccontextmanager
async def open_client(database: Database) -> AsyncGenerator[DBOSClient]:
    """To the database, for many questions. A thread makes it, which goes on where its caller
    is cancelled meanwhile: then it closes it again."""
    turn = threading.Lock()
    made: DBOSClient | None = None
    left = False

    def enter() -> DBOSClient:
        nonlocal made
        client = adapter.connect(database.url)
        with turn:
            made = client
        if left:
            leave()
        return client

    def leave() -> None:
        nonlocal made
        with turn:
            client, made = made, None
        if client is not None:
            adapter.disconnect(client)

    try:
        yield await asyncio.to_thread(enter)
    finally:
        left = True
        await asyncio.to_thread(leave)


def missing(run: str) -> ConfigError:
    hint = "corral pipeline runs lists them; --db or CORRAL_DB names another database."
    return ConfigError(f"there is no run {run!r}", hint=hint)


def closed(client: DBOSClient, run: str) -> RunOutput | None:
    """What the run came to; None while it has not ended. Raises ``ConfigError``. Blocking."""
    states = adapter.list_workflows(client, ids=[run])
    if not states:
        raise missing(run)
    if states[0].status not in adapter.ENDED:
        return None
    if states[0].status == "CANCELLED":
        said = (states[0].attributes or {}).get("reason")
        return RunOutput(status="cancelled", reason=str(said or "cancelled"))
    whole = adapter.get_workflow(client, run)
    if whole is None or whole.output is None:
        return RunOutput(status="fail", reason=f"the engine failed: {whole and whole.error}")
    return unpack(whole.output, RunOutput)


def answer_key(question: str) -> str:
    """Of the one answer to it that counts."""
    return f"answered {question}"


class ExecutorLiveness:
    """Which executors live. A lease that is held may be held by somebody who just takes a
    dead one's work over, and lets it go at once: so where something hangs on it (``surely``), it is
    looked at more than once."""

    def __init__(self, database: Database, *, surely: bool = False) -> None:
        self._looks = (0.0, 0.1, 0.3, 0.6) if surely else (0.0,)
        self._leases = open_leases(database)
        self._known: dict[str, bool] = {}
        here = executor.running()
        if here is not None:
            self._known[here.id] = True

    def __call__(self, name: str | None) -> bool:
        if not name:
            return False
        if name not in self._known:
            self._known[name] = all(self._is_held(name, pause) for pause in self._looks)
        return self._known[name]

    def _is_held(self, name: str, pause: float) -> bool:
        time.sleep(pause)
        with self._leases.claim(name) as gone:
            return not gone

    def close(self) -> None:
        self._leases.release()
