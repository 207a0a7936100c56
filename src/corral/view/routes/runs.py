"""The list of runs, and what this server is."""

from __future__ import annotations

import sys

from starlette.responses import Response

from corral.engine.dbos.database import is_installed
from corral.system import paths
from corral.version import __version__
from corral.view.calls import Call, Endpoint, Param, event_stream
from corral.view.catalog import RunQuery
from corral.view.records import PendingUpdate, RunPage, RunsUpdate, ServerInfo
from corral.view.stream import follow_runs


async def server_info(call: Call) -> ServerInfo:
    pending = await call.catalog.pending()
    return ServerInfo(
        version=__version__,
        home=str(paths.home()),
        platform=sys.platform,
        engine=is_installed(),
        pending=pending,
        open=call.services.open_at,
    )


async def list_runs(call: Call) -> RunPage:
    query = RunQuery(
        kind=call.text("kind"),
        state=call.text("state"),
        agent=call.text("agent"),
        text=call.text("q"),
        cursor=call.text("cursor"),
        limit=call.number("limit", 50),
    )
    return await call.catalog.runs(query)


async def stream_runs(call: Call) -> Response:
    return event_stream(follow_runs(call.catalog, call.services.closing))


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/api/server", "server", "About this server.", server_info, ServerInfo),
    Endpoint(
        "GET",
        "/api/runs",
        "runs",
        "All runs, the newest first.",
        list_runs,
        RunPage,
        params=(
            Param("kind", "`session`, `pipeline` or `batch`."),
            Param("state", "A state; also `live`, and `waiting` for both kinds of waiting."),
            Param("agent", "The name of an agent."),
            Param("q", "A text in a transcript, or in the name of a pipeline or batch."),
            Param("cursor", "`next` of the page before."),
            Param("limit", "Runs of a page, at most 200.", "integer"),
        ),
    ),
    Endpoint(
        "GET",
        "/api/stream",
        "stream",
        "Changes of the list of runs, and of what waits for a person.",
        stream_runs,
        media="text/event-stream",
        events=(RunsUpdate, PendingUpdate),
    ),
)
