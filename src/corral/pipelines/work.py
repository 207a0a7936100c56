"""One attempt of a node: its handler, its time, its files, and always an outcome.

Whatever a handler does, ``attempt`` returns an ``Outcome`` that is JSON all through; only a
cancellation of the attempt itself passes. Whether there is another attempt is not decided
here.
"""

from __future__ import annotations

import dataclasses
import os
from typing import cast

import msgspec

from corral.errors import CorralError
from corral.events import Json
from corral.io.environment import Eraser
from corral.pipelines import calling, handlers, stage
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
    eraser = work.desk.eraser if isinstance(work.desk, Desk) else _NO_SECRETS
    try:
        handler = handlers.find(work.node.kind)
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
        return _small(work, _checked(told, work.node.kind), eraser)
    diary = stage.Diary(work.folder, eraser, work.emit)
    try:
        told = await calling.told(handler, dataclasses.replace(work, emit=diary.emit), limit)
    finally:
        diary.close()
    outcome = _checked(told, work.node.kind)
    if outcome.ok:
        outcome = _with_its_own_status(work, outcome)
    return _written(work, _small(work, outcome, eraser))


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
    """What the node's agent or command wrote as ``status.json`` is its word on how it went."""
    try:
        told = stage.read_status(work.folder)
    except ValueError as error:
        return failed(f"{work.node.id} wrote no valid status: {error}")
    if told is None:
        if work.node.is_true("auto_status") and not outcome.notes:
            return msgspec.structs.replace(outcome, notes=AUTO_STATUS)
        return outcome
    for key, value in told.context_updates.items():
        if wrong := not_json(value):
            return failed(f"status.json: {key!r} {wrong}")
    reason = told.failure_reason
    if not told.ok and not reason:
        reason = told.notes or f"{work.node.id} wrote outcome={told.status} into its status.json"
    return msgspec.structs.replace(
        outcome,
        status=told.status,
        preferred_label=told.preferred_label or outcome.preferred_label,
        suggested_next_ids=told.suggested_next_ids or outcome.suggested_next_ids,
        context_updates={**outcome.context_updates, **told.context_updates},
        notes=told.notes or outcome.notes,
        failure_reason=reason,
    )


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
