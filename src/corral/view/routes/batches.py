"""Batches: progress, failures, and what a person does to them."""

from __future__ import annotations

from corral.errors import ConfigError
from corral.view.calls import Call, Endpoint, Param
from corral.view.records import BatchDetail, Done

DB = Param("db", "The database, if it is not the default one.")


async def show_batch(call: Call) -> BatchDetail:
    from corral.view import batch_view

    return await batch_view.detail(
        call.path("id"),
        await call.database(),
        start=max(0, call.number("cursor", 0)),
        only_failed=call.text("failed") is not None,
    )


async def retry(call: Call) -> Done:
    """Run the tasks again that have no success: those that failed, and those that were left."""
    from corral.engine.batch import query
    from corral.view import batch_view

    name, db = call.path("id"), await call.database()
    await call.body(Done)
    found = await batch_view.read(name, db)
    if found.overview.status == "running":
        raise ConfigError(f"{name} is running")
    if found.command is None:
        raise ConfigError(
            f"{name} was not started by a command", hint="Run the program that started it again."
        )
    options = ["--retry-failed"] if found.overview.status in query.ENDED else []
    database = [] if db is None else ["--db", db]
    await call.start_command("batches", "resume", name, *database, "--", *options)
    return Done(message="the batch goes on in the background", id=name)


async def cancel(call: Call) -> Done:
    from corral.engine.batch import query
    from corral.view import batch_view

    name, db = call.path("id"), await call.database()
    await call.body(Done)
    found = await batch_view.read(name, db)
    if found.overview.status in query.ENDED:
        raise ConfigError(f"{name} has already ended: {found.overview.status}")
    count = await query.cancel_batch(name, db=db)
    return Done(message=f"cancelled, with {count:,} tasks", id=name)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET",
        "/api/batches/{id}",
        "batch",
        "A batch: its progress, its failures, and a page of its tasks.",
        show_batch,
        BatchDetail,
        params=(
            Param("cursor", "`next` of the page before.", "integer"),
            Param("failed", "Any value: only tasks that failed."),
            DB,
        ),
    ),
    Endpoint(
        "POST",
        "/api/batches/{id}/retry",
        "retry_batch",
        "Run the tasks again that failed, and those that were left.",
        retry,
        Done,
        params=(DB,),
    ),
    Endpoint(
        "POST",
        "/api/batches/{id}/cancel",
        "cancel_batch",
        "Cancel the tasks that have not ended.",
        cancel,
        Done,
        params=(DB,),
    ),
)
