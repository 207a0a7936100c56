"""The operations of the HTTP API for services. Each is carried out for one client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar, cast, get_args

import msgspec
from starlette.responses import PlainTextResponse, Response

from corral._serving.allowance import (
    MAX_PROMPT,
    PipelineRequest,
    RunAnswer,
    RunRequest,
    read_request,
)
from corral._serving.caller_runs import CallerRun, RunView
from corral._serving.http.event_stream import follow_events
from corral._serving.http.server import ClientRuns, RunServer
from corral._system.http.asgi_server import decode_body
from corral._view.calls import Endpoints, HttpCall, Param, event_stream
from corral._view.records import NotFound
from corral.errors import ConfigError
from corral.events import Event

T = TypeVar("T")
LONGEST_WAIT = 300
"""Seconds that a request waits for a run."""
WAIT = Param(
    "wait",
    f"Seconds to wait until the run has ended or asks something, at most {LONGEST_WAIT}.",
    "integer",
    minimum=0,
)
LONGEST_KEY = 200
ENDPOINTS = Endpoints()


class RunList(msgspec.Struct):
    """The runs of the client that this server has started, the newest first."""

    runs: list[RunView]


@dataclass(frozen=True)
class ServiceCall(HttpCall):
    """One request of a client."""

    client: ClientRuns
    service: RunServer
    max_body: ClassVar[int] = 2 * MAX_PROMPT
    """A prompt of the largest size, and its escapes in JSON."""

    async def body(self, kind: type[T]) -> T:
        try:
            given = await decode_body(await self.data() or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"the body is not valid: {error}") from error
        set_by = self.client.runs.allowance.set_by
        if not issubclass(kind, msgspec.Struct):
            raise TypeError(f"{kind} is no record")
        return cast("T", read_request(given, kind, set_by=set_by))

    @property
    def run(self) -> str:
        return self.path("run")

    @property
    def seconds(self) -> int:
        seconds = self.number("wait", 0)
        if seconds < 0:  # the number of the last page
            raise ConfigError("wait must be a whole number")
        return min(LONGEST_WAIT, seconds)

    async def start(
        self, request: msgspec.Struct, begin: Callable[[], Awaitable[CallerRun]]
    ) -> RunView:
        """Start a run, or find the one that an equal request with the same key has started. Raises
        as ``CallerRuns.start``, and ``ServedConflict``."""
        key = self.request.headers.get("idempotency-key", "")
        if len(key) > LONGEST_KEY:
            raise ConfigError(f"Idempotency-Key has more than {LONGEST_KEY} characters")
        return await self.wait(
            await self.client.start_once(key, request, lambda: self.service.start(begin))
        )

    async def wait(self, run: str) -> RunView:
        seconds, runs = self.seconds, self.client.runs
        return await (runs.wait(run, seconds) if seconds else runs.view(run))


@ENDPOINTS.post(
    "/v1/runs",
    "Start a run of an agent, or go on with one. With the header `Idempotency-Key`, a repeated"
    " request gets the same run.",
    WAIT,
)
async def start_run(call: ServiceCall, body: RunRequest) -> RunView:
    return await call.start(body, lambda: call.client.runs.start(body))


@ENDPOINTS.post(
    "/v1/pipelines",
    "Start a pipeline that the server names. With the header `Idempotency-Key`, a repeated request"
    " gets the same run.",
    WAIT,
)
async def start_pipeline(call: ServiceCall, body: PipelineRequest) -> RunView:
    return await call.start(body, lambda: call.client.runs.start_pipeline(body))


@ENDPOINTS.get("/v1/runs", "The runs that the client has started on this server.")
async def list_runs(call: ServiceCall) -> RunList:
    return RunList(call.client.runs.list())


@ENDPOINTS.get("/v1/runs/{run}", "A run: its state, what it asks, its outcome.", WAIT)
async def run(call: ServiceCall) -> RunView:
    return await call.wait(call.run)


@ENDPOINTS.get(
    "/v1/runs/{run}/events",
    "The events of a run as they happen, each as in the page Events and results, named by its type;"
    " `end` is the last one, with the run.",
    Param("after", "The id of the last event that is known, as `Last-Event-ID`."),
    events=(*get_args(Event), RunView),
)
async def run_events(call: ServiceCall) -> Response:
    runs = call.client.runs
    view = await runs.view(call.run)
    if view.kind != "session":
        raise NotFound("a pipeline has no stream of events here: wait for it")
    log = await asyncio.to_thread(runs.log, call.run)
    source = follow_events(runs, call.run, log, call.cursor or 0, call.client.closing)
    return event_stream(call.service.counted_stream(call.client, source))


@ENDPOINTS.get(
    "/v1/runs/{run}/diff",
    "How the last prompt changed files, as a patch; empty if it changed none.",
    media="text/plain",
)
async def run_diff(call: ServiceCall) -> Response:
    def read() -> str:
        record = call.client.runs.own_session(call.run)
        return record.diff(record.meta.turns)

    return PlainTextResponse(await asyncio.to_thread(read))


@ENDPOINTS.post("/v1/runs/{run}/answer", "Answer what a run asks. The first answer counts.")
async def answer_run(call: ServiceCall, body: RunAnswer) -> RunView:
    found = call.client.runs.find(call.run)
    found.answer(body)
    return found.view


@ENDPOINTS.post("/v1/runs/{run}/cancel", "Cancel a run. One that has ended stays as it is.", WAIT)
async def cancel_run(call: ServiceCall) -> RunView:
    view = await call.client.runs.view(call.run)
    if view.state != "ended":
        call.client.runs.find(call.run).cancel()
    return await call.wait(call.run)
