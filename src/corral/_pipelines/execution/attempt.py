"""One attempt of a node: call its handler within its time limit, and write its files.

Whatever a handler does, ``attempt`` returns an ``Outcome`` of JSON values. It raises only if the
attempt itself is cancelled. ``scheduler.retry`` decides whether there is another attempt.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from asyncio import tasks
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from corral._pipelines import node_kinds
from corral._pipelines.execution import handlers, run_dir, simulated_nodes, verdict
from corral._pipelines.execution.handlers import Handler, NodeContext
from corral._pipelines.scheduler.outcome import Outcome, failed, is_dict, not_json, outcome_of_error
from corral._system.environment import SecretRedactor
from corral.errors import ConfigError, CorralError, StorageFailed
from corral.events import Error, Event, from_json, to_json
from corral.values import convert_to, decode_as

STOP_TIMEOUT = 10.0
"""Seconds that a cancelled handler has to stop. After that it is abandoned."""
MAX_OUTCOME = 1024 * 1024
"""Bytes of an outcome: it is written to the journal and passed to every later node."""
AUTO_STATUS = "auto-status: handler completed without writing status"

T = TypeVar("T")
_log = logging.getLogger("corral.pipelines")


async def attempt(work: NodeContext) -> Outcome:
    """Run the node once."""
    work.resources.add_secrets_of(work.graph)
    redactor = work.resources.redactor
    emit_to_run = work.emit
    log = run_dir.AgentEventLog(work.folder) if work.writes_files else None

    def emit(event: Event) -> None:
        line = to_json(event)
        clean = redactor.clean(line)
        if log is not None:
            log.add(clean)
        emit_to_run(event if clean is line or clean == line else from_json(clean))

    try:
        handler = simulated_nodes.handler_of(work, handlers.for_node(work.node))
        limit = _time_limit(work)
        # A program may run a graph that was not linted.
        for names in node_kinds.find(work.node.kind).required:
            if not any(work.node.text(name) for name in names):
                missing = f"no {names[0]}" if len(names) == 1 else f"neither {' nor '.join(names)}"
                raise ConfigError(f"the {work.node.kind} node {work.node.id} has {missing}")
        if work.writes_files:
            run_dir.clear_node_dir(work.folder)
    except CorralError as error:
        return outcome_of_error(error)
    except ValueError as error:
        return failed(f"timeout: {error}", retryable=False)
    except OSError as error:
        return failed(f"the node's folder cannot be written: {error}")
    work = msgspec.structs.replace(work, emit=emit)
    try:
        returned = await invoke_handler(handler, work, limit)
    finally:
        if log is not None:
            log.close()
    outcome = _validate_outcome(returned, work.node.kind)
    if work.writes_files and (outcome.ok or outcome.verdict_by):
        outcome = _with_reported_status(work, outcome)
    outcome = _check_size(work, _with_label_checked(work, emit, outcome), redactor)
    if work.writes_files:
        try:
            run_dir.write_status(work.folder, outcome)
        except OSError as error:
            # The node has done its work, which may have cost money: a full disk must not undo it.
            return _with_note(outcome, f"status.json could not be written: {error.strerror}")
    return outcome


def _time_limit(work: NodeContext) -> float | None:
    """Seconds for the handler. An agent that waits for rate limits has only its own time limit, for
    which the waits do not count. Raises ``ValueError`` and ``ConfigError``."""
    limit = work.node.seconds("timeout")
    if limit is None or work.resources.simulate or node_kinds.find(work.node.kind).llm != "agent":
        return limit  # without loading what starts agents
    from corral._pipelines.execution.node_options import node_rule, verify_seconds

    rule = node_rule(work)
    if rule is not None and rule.on_limit == "wait":
        return None
    return limit + verify_seconds(work)


# Calling the handler.


async def invoke_handler(handler: Handler, work: NodeContext, limit: float | None) -> object:
    """What the handler returns. An exception of the handler becomes an outcome. Raises only
    ``CancelledError``, if this attempt was cancelled."""
    try:
        if limit is None:
            return await _call_handler(handler, work)
        return await _call_with_timeout(_call_handler(handler, work), limit, work)
    except asyncio.CancelledError:
        _raise_if_cancelled()
        return failed(f"the handler of {work.node.kind!r} cancelled itself")


async def _call_handler(handler: Handler, work: NodeContext) -> object:
    """Catches everything: ``SystemExit`` in a task would end the loop and all other runs. Only
    ``KeyboardInterrupt`` in the main thread passes: that is the user's Ctrl-C."""
    try:
        return await handler(work)
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except CorralError as error:
        return outcome_of_error(error)
    except BaseException as error:
        in_main = threading.current_thread() is threading.main_thread()
        if isinstance(error, KeyboardInterrupt) and in_main:
            raise
        with suppress(StorageFailed):  # the outcome has the reason, too
            work.write_file("error.txt", traceback.format_exc())
        raised = f"{type(error).__name__}: {error}".removesuffix(": ")
        return failed(f"the handler of {work.node.kind!r} raised {raised}")


async def _call_with_timeout(running: Awaitable[object], limit: float, work: NodeContext) -> object:
    """Run it as its own task: a handler that ignores cancellation must not block the run."""
    margin = node_kinds.find(work.node.kind).timeout_margin
    task = asyncio.ensure_future(running)
    try:
        done, _ = await asyncio.wait({task}, timeout=limit + margin)
    except asyncio.CancelledError:
        task.cancel()
        await wait_stopped(task, work.node.id, work.run_id)
        raise
    if done:
        return task.result()
    task.cancel()
    has_stopped = await _wait_cancelled(task, STOP_TIMEOUT)
    _raise_if_cancelled()
    abandoned = "" if has_stopped else "; it did not stop and was abandoned"
    return failed(
        f"{work.node.id} did not end within its timeout of {limit:g}s{abandoned}",
        failure_class="timeout",
    )


async def run_bounded(running: Awaitable[T], node: str, run_id: str) -> T:
    """Run as its own task, so that this call returns after a cancellation in any case."""
    task = asyncio.ensure_future(running)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            if not task.cancelling():  # a second cancellation would interrupt its cleanup
                task.cancel()
            await wait_stopped(task, node, run_id)
        raise


async def wait_stopped(
    task: asyncio.Task[object], node: str, run_id: str, seconds: float | None = None
) -> str:
    """Wait for a cancelled task. One that does not stop is abandoned; returns a message with the
    node and the run."""
    seconds = STOP_TIMEOUT if seconds is None else seconds
    if await _wait_cancelled(task, seconds):
        return ""
    message = (
        f"node {node!r} of {run_id} did not stop within {seconds:g} s of being cancelled and was"
        " abandoned: its code must let CancelledError pass"
    )
    _log.warning(message)
    return message


async def _wait_cancelled(task: asyncio.Task[object], seconds: float) -> bool:
    """Whether a cancelled task stops in time. One that does not is closed where it waits, because
    a closing loop would wait for it forever."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while not task.done() and (left := until - loop.time()) > 0:
        with suppress(asyncio.CancelledError):  # after a second cancellation, too, it has this time
            await asyncio.wait({task}, timeout=left)
    if task.done():
        _retrieve_exception(task)
        return True
    task.add_done_callback(_retrieve_exception)
    with suppress(RuntimeError):  # it ignores GeneratorExit as well
        task.get_coro().close()
    task.cancel()
    for _ in range(3):  # the loop needs a few iterations to notice
        await asyncio.sleep(0)
    if not task.done():
        tasks._unregister_task(task)
    return False


def _raise_if_cancelled() -> None:
    """Raises ``CancelledError`` if the current task was cancelled."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _retrieve_exception(task: asyncio.Task[object]) -> None:
    if not task.cancelled():
        task.exception()  # otherwise the loop logs that it was never retrieved


# The outcome.


def _validate_outcome(returned: object, kind: str) -> Outcome:
    """The outcome if its types are right, else a failed one with the reason."""
    if returned is None:
        return Outcome()
    if not isinstance(returned, Outcome):
        return failed(
            f"the handler of {kind!r} returned a {type(returned).__name__}, not an Outcome",
            retryable=False,
        )
    if wrong := _invalid_updates(returned.context_updates):
        return failed(f"the handler of {kind!r}: {wrong}", retryable=False)
    try:
        return convert_to(msgspec.to_builtins(returned), Outcome)
    except (msgspec.ValidationError, TypeError) as error:
        message = f"the handler of {kind!r} returned an invalid outcome: {error}"
        return failed(message, retryable=False)


def _invalid_updates(updates: object) -> str:
    """What is wrong with the context updates of a handler, which Python does not check."""
    if not is_dict(updates):
        return f"context_updates is a {type(updates).__name__}, not a dict"
    for key, value in updates.items():
        if not isinstance(key, str):
            return f"a context key is not text: {key!r}"
        if wrong := not_json(value):
            return f"the context value {key!r} is not JSON: it {wrong}"
    return ""


def _with_reported_status(work: NodeContext, outcome: Outcome) -> Outcome:
    """Apply the ``status.json`` that the node's agent or command wrote, unless it reported by the
    tool."""
    if outcome.verdict_by == "tool":
        return outcome
    try:
        reported = run_dir.read_status(work.folder)
    except ValueError as error:
        return failed(f"{work.node.id} wrote an invalid status: {error}")
    if reported is None:
        if work.node.is_true("auto_status") and not outcome.notes:
            return msgspec.structs.replace(outcome, notes=AUTO_STATUS)
        return outcome
    return verdict.apply_verdict(outcome, reported, work.node.id, "file")


def _with_label_checked(
    work: NodeContext, emit: Callable[[Event], None], outcome: Outcome
) -> Outcome:
    """Warn in the events and the notes about a reported label that no edge has: the report then
    selects no edge."""
    wrong = outcome.verdict_by and verdict.unknown_label(
        work.graph, work.node, outcome.preferred_label
    )
    if not wrong:
        return outcome
    emit(Error("unknown_label", f"{work.node.id}: {wrong}", recoverable=True, level="warning"))
    return _with_note(outcome, wrong)


def _with_note(outcome: Outcome, note: str) -> Outcome:
    notes = f"{outcome.notes}; {note}" if outcome.notes else note
    return msgspec.structs.replace(outcome, notes=notes)


def _check_size(work: NodeContext, outcome: Outcome, redactor: SecretRedactor) -> Outcome:
    """The outcome with secrets redacted, or a failed one if it is too large."""
    data = msgspec.json.encode(outcome)
    if len(data) > MAX_OUTCOME:
        updates = outcome.context_updates
        largest = max(
            updates, key=lambda key: len(msgspec.json.encode(updates[key])), default="notes"
        )
        return failed(
            f"the outcome of {work.node.id} has {len(data):,} bytes, over {MAX_OUTCOME:,}:"
            f" most of it in {largest!r}; put it into a file and its name into the context",
            retryable=False,
        )
    clean = redactor.clean(data)
    return outcome if clean == data else decode_as(clean, Outcome)
