"""Diagnostic bundles of runs, to download."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from starlette.responses import Response, StreamingResponse

from corral.export import bundle
from corral.runs import stored_run
from corral.values import slug
from corral.view.calls import Call, Endpoint, Param
from corral.view.session_view import open_session

PIECE = 256 * 1024
"""Bytes that are sent at once."""


async def session_bundle(call: Call) -> Response:
    id = call.path("id")
    return await _respond(id, lambda: stored_run.of_session(open_session(id)))


async def pipeline_bundle(call: Call) -> Response:
    from corral.view import pipeline_runs

    id, db = call.path("id"), await call.database()
    found = await pipeline_runs.read(id, db, await call.catalog.live())
    folder = Path(found.folder)
    return await _respond(id, lambda: stored_run.at(folder))


async def _respond(id: str, find: Callable[[], stored_run.StoredRun]) -> Response:
    """Write the bundle to a file without a name, which is gone when it was sent."""

    def write() -> IO[bytes]:
        file = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            bundle.write(find(), file.write)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    file = await asyncio.to_thread(write)
    name = slug(id, limit=100, allowed="_-.", default="run")
    headers = {"Content-Disposition": f'attachment; filename="corral-{name}.zip"'}
    return StreamingResponse(_pieces(file), media_type="application/zip", headers=headers)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while data := file.read(PIECE):
            yield data


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET",
        "/api/sessions/{id}/bundle",
        "session_bundle",
        "A diagnostic bundle without secrets, as `corral export --format bundle` writes it.",
        session_bundle,
        media="application/zip",
    ),
    Endpoint(
        "GET",
        "/api/pipelines/{id}/bundle",
        "pipeline_bundle",
        "A diagnostic bundle without secrets, as `corral export --format bundle` writes it.",
        pipeline_bundle,
        media="application/zip",
        params=(Param("db", "The database, if it is not the default one."),),
    ),
)
