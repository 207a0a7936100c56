"""One attempt of a node: its handler, its time, its files, and always an outcome.

Whatever a handler does, ``attempt`` returns an ``Outcome`` that is JSON all through; only a
cancellation of the attempt itself passes. Whether there is another attempt is not decided
here.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import cast

import msgspec

from corral.errors import CorralError
from corral.events import Error, Event, Json, from_json, to_json
from corral.io.environment import Eraser
from corral.pipelines import calling, handlers, stage, verdict
from corral.pipelines.desk import Desk
from corral.pipelines.failures import outcome_of
from corral.pipelines.handlers import Work
from corral.pipelines.json_values import not_json
from corral.pipelines.outcome import Outcome, failed

LARGEST = 1024 * 1024
"""Bytes of an outcome: it is journalled, and goes along with every later node."""
AUTO_STATUS = "auto-status: handler completed without writing status"

_NO_SECRETS = Eraser({})


async def attempt(work: Work) -> Outcome:
    """Run the node once. See the module for what is promised."""
    eraser = _NO_SECRETS
    if isinstance(work.desk, Desk):
        work.desk.know(work.graph)
        eraser = work.desk.eraser
    work = dataclasses.replace(work, emit=_redacting(work.emit, eraser))
    try:
        handler = handlers.for_node(work.node)
        limit = work.node.seconds("timeout")
        if work.keeps:
            stage.clear(work.folder)
    except CorralError as error:
        return outcome_of(error)
    except ValueError as error:
        return failed(f"timeout: {error}", retryable=False)
    except OSError as error:
        return failed(f"the node's folder cannot be written: {error}")
    if not work.keeps:
        told = await calling.told(handler, work, limit)
        outcome = _with_label_checked(work, _checked(told, work.node.kind))
        return _small(work, outcome, eraser)
    diary = stage.Diary(work.folder, eraser, work.emit)
    try:
        told = await calling.told(handler, dataclasses.replace(work, emit=diary.emit), limit)
    finally:
        diary.close()
    outcome = _checked(told, work.node.kind)
    if outcome.ok or outcome.verdict_by:
        outcome = _with_label_checked(work, _with_its_own_status(work, outcome))
    return _written(work, _small(work, outcome, eraser))


def _redacting(emit: Callable[[Event], None], eraser: Eraser) -> Callable[[Event], None]:
    """``emit``, which never hears of a secret."""

    def redacted(event: Event) -> None:
        line = to_json(event)
        clean = eraser.clean(line)
        emit(event if clean is line or clean == line else from_json(clean))

    return redacted


def _checked(told: object, kind: str) -> Outcome:
    """An outcome of the right types, or a failed one that says what is wrong with it."""
    if told is None:
        return Outcome()
    if not isinstance(told, Outcome):
        return failed(
            f"the handler of {kind!r} returned a {type(told).__name__}, not an Outcome",
            retryable=False,
        )
    updates = cast("object", told.context_updates)
    if not isinstance(updates, dict):
        return failed(
            f"the handler of {kind!r}: context_updates is a {type(updates).__name__}, no dict",
            retryable=False,
        )
    for key, value in cast("dict[object, object]", updates).items():
        if not isinstance(key, str):
            return failed(f"the handler of {kind!r}: a context key is no text: {key!r}")
        if wrong := not_json(value):
            return failed(
                f"the handler of {kind!r} put into the context what is no JSON: {key!r} {wrong}",
                retryable=False,
            )
    try:
        return msgspec.convert(msgspec.to_builtins(told), Outcome)
    except (msgspec.ValidationError, TypeError) as error:
        return failed(f"the handler of {kind!r} returned no outcome: {error}", retryable=False)


def _with_its_own_status(work: Work, outcome: Outcome) -> Outcome:
    """What the node's agent or command wrote into ``status.json`` is its report, unless it made
    one by the tool."""
    if outcome.verdict_by == "tool":
        return outcome
    try:
        reported = stage.read_status(work.folder)
    except ValueError as error:
        return failed(f"{work.node.id} wrote no valid status: {error}")
    if reported is None:
        if work.node.is_true("auto_status") and not outcome.notes:
            return msgspec.structs.replace(outcome, notes=AUTO_STATUS)
        return outcome
    return verdict.applied(outcome, reported, work.node.id, "file")


def _with_label_checked(work: Work, outcome: Outcome) -> Outcome:
    """A label that no edge has is a warning in the events and the notes: it must not pass for a
    choice that was made."""
    wrong = outcome.verdict_by and verdict.unknown_label(
        work.graph, work.node, outcome.preferred_label
    )
    if not wrong:
        return outcome
    work.emit(Error("unknown_label", f"{work.node.id}: {wrong}", recoverable=True, level="warning"))
    notes = f"{outcome.notes}; {wrong}" if outcome.notes else wrong
    return msgspec.structs.replace(outcome, notes=notes)


def _small(work: Work, outcome: Outcome, eraser: Eraser) -> Outcome:
    """The outcome, cleaned of secrets; a failed one in place of one that is too large."""
    whole = msgspec.json.encode(outcome)
    if len(whole) > LARGEST:
        sizes: dict[str, Json] = outcome.context_updates
        most = max(sizes, key=lambda key: len(msgspec.json.encode(sizes[key])), default="notes")
        return failed(
            f"the outcome of {work.node.id} has {len(whole):,} bytes, over {LARGEST:,}:"
            f" most of it in {most!r}; put it into a file and its name into the context",
            retryable=False,
        )
    clean = eraser.clean(whole)
    return outcome if clean == whole else msgspec.json.decode(clean, type=Outcome)


def _written(work: Work, outcome: Outcome) -> Outcome:
    """The outcome, and beside it ``status.json``."""
    try:
        data = msgspec.json.format(msgspec.json.encode(stage.status_of(outcome)), indent=2)
        stage.put(f"{work.folder}{os.sep}{stage.STATUS}", data)
    except OSError as error:
        # What the node did is done, and paid for: a full disk must not undo it.
        said = f"status.json could not be written: {error.strerror}"
        notes = f"{outcome.notes}; {said}" if outcome.notes else said
        return msgspec.structs.replace(outcome, notes=notes)
    return outcome
