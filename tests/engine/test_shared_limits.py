"""Workers of one database share the rate limits of a credential."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.durable_processes import DurableProcesses, wait_until

from corral._engine import limits, service
from corral._engine.dbos import database, own_tables
from corral._engine.dbos.client import DatabaseClient
from corral._engine.dbos.database import Database
from corral._engine.payloads import NODE_WORKFLOW, RunConfig, RunInput
from corral._metering.rate_limits import LimitState, LimitWaits, credential_id
from corral._pipelines import loader
from corral._system import clock
from corral.errors import RateLimited
from corral.testing import Lane, ModelServer, Turn, fail, say

KEY = "canary-key-of-the-shared-limits"
LONG = 3600.0
GRAPH = (
    "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> a -> exit;"
    ' a [prompt="Which colour?", on_limit=wait, timeout="60s"] }'
)


@pytest.fixture
def lane(model_server: ModelServer, request: pytest.FixtureRequest) -> Lane:
    script: list[Turn] = [fail(429, "slow down", retry_after=LONG), say("it is green")]
    return model_server.lane(request.node.name, script)


def _worker(processes: DurableProcesses, lane: Lane, queue: str) -> int:
    """A worker in whose environment the key is: the database must not have it."""
    given = {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": lane.url}
    env = {key: os.environ[key] for key in ("HOME", "CORRAL_HOME")}
    return processes.worker(queue, env={**env, **given})


def _submit(processes: DurableProcesses, run: str, **request: Any) -> None:
    async def start() -> None:
        config = RunConfig(
            folder=str(processes.folder / run),
            workspace=str(processes.workspace),
            model="gemini:gemini-2.5-flash",
            options={"retries": 0},
            **request,
        )
        run_input = RunInput(run_id=run, graph=loader.load(GRAPH), config=config)
        await service.start(run_input, db=processes.db, queue=f"queue-{run}")

    asyncio.run(start())


def _state(processes: DurableProcesses, run: str) -> str:
    client = DatabaseClient(database.find(processes.db).url)
    try:
        found = client.list_workflows(prefix=f"{run}/", name=NODE_WORKFLOW)
    finally:
        client.close()
    return found[0].state if found else ""


def _wait_for_limit(processes: DurableProcesses, run: str) -> None:
    wait_until(lambda: _state(processes, run) == "delayed", f"{run}: {processes.output()}")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("detached", [False, None], ids=["worker", "default"])
def test_another_worker_waits_without_a_call_also_after_a_kill(
    processes: DurableProcesses, lane: Lane, *, detached: bool | None
) -> None:
    first = _worker(processes, lane, "queue-one")
    _submit(processes, "one", detached=detached)
    _wait_for_limit(processes, "one")
    assert len(lane.requests) == 1
    processes.kill(first)
    _worker(processes, lane, "queue-two")
    _submit(processes, "two", detached=detached)
    _wait_for_limit(processes, "two")
    assert len(lane.requests) == 1, "the second worker has met the limit itself"
    stored = own_tables.exchange_limits(database.find(processes.db), {})
    assert len(stored) == 1
    path = database.find(processes.db).path
    if path is not None:
        for file in path.parent.glob(f"{path.name}*"):
            assert not file.is_file() or KEY.encode() not in file.read_bytes(), file


@pytest.fixture
def prepared(new_file: str) -> Iterator[Database]:
    found = database.find(new_file)
    database.prepare(found)
    limits.join_limits(found)
    yield found
    limits.leave_limits()


async def test_a_call_knows_a_limit_that_another_process_met_meanwhile(prepared: Database) -> None:
    credential = credential_id("service", "key-met-meanwhile", "m")
    call = LimitWaits(10.0).call(credential)
    assert await call.before() is None
    until = clock.now() + LONG
    own_tables.exchange_limits(prepared, {credential: LimitState(until, "")})
    await asyncio.sleep(limits.FRESH)
    found = await call.before()
    assert found is not None
    assert (found.until, found.message) == (until, own_tables.LIMIT_MESSAGE)


async def test_a_process_that_joins_a_second_database_knows_the_limits_there(
    prepared: Database, tmp_path: Path
) -> None:
    second = database.find(str(tmp_path / "second.db"))
    database.prepare(second)
    credential = credential_id("service", "key-of-the-second", "m")
    until = clock.now() + LONG
    own_tables.exchange_limits(second, {credential: LimitState(until, "")})
    call = LimitWaits(10.0).call(credential)
    assert await call.before() is None
    limits.join_limits(second)
    found = await call.before()
    assert found is not None
    assert found.until == until
    assert await call.after(RateLimited("slow down", retry_after=2 * LONG)) is None
    assert own_tables.exchange_limits(second, {})[credential].until > until
    assert credential not in own_tables.exchange_limits(prepared, {})


async def test_joining_the_same_database_again_reads_nothing_again(
    prepared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FRESH", LONG)
    credential = credential_id("service", "key-joined-again", "m")
    call = LimitWaits(10.0).call(credential)
    assert await call.before() is None
    own_tables.exchange_limits(prepared, {credential: LimitState(clock.now() + LONG, "")})
    limits.join_limits(prepared)
    assert await call.before() is None


async def test_a_met_limit_is_stored_at_once(prepared: Database) -> None:
    credential = credential_id("service", "key-stored-at-once", "m")
    call = LimitWaits(10.0).call(credential)
    assert await call.before() is None
    assert await call.after(RateLimited("slow down", retry_after=LONG)) is None
    assert credential in own_tables.exchange_limits(prepared, {})


async def test_a_database_that_is_gone_does_not_stop_a_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "gone.db"
    limits.join_limits(Database(f"sqlite:///{file}", file))
    try:
        assert await LimitWaits(1.0).call(credential_id("s", "key-gone", "m")).before() is None
    finally:
        limits.leave_limits()
    assert "rate limits are not shared" in caplog.text
