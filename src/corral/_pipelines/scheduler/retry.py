"""Whether and when a node is tried again. A pure rule: no clock, no random numbers.

A node has ``max_retries`` + 1 attempts. ``retry`` and transient errors (network, 429, 5xx) are
tried again; ``fail`` only if the node itself sets ``max_retries``; errors that another attempt
cannot fix (``retryable=False``: bad configuration, 401, denied permission) never. After the last
attempt the node failed, or with ``allow_partial`` partially succeeded.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from corral._core.durations import backoff_delay
from corral._pipelines.attribute_definitions import find_written
from corral._pipelines.graph import Graph, Node
from corral._pipelines.scheduler.outcome import Outcome

FIRST_DELAY = 0.2
"""Seconds before the second attempt; doubled with each."""
MAX_DELAY = 60.0


class Pause(msgspec.Struct, frozen=True):
    seconds: float


def retries(graph: Graph, node: Node) -> int:
    """How many times the node is tried again at most. Raises ``ValueError``."""
    written = find_written(node.attrs, "max_retries") or find_written(
        graph.attrs, "default_max_retries"
    )
    if written is None:
        return 0
    key, value = written
    try:
        return max(0, int(value))
    except ValueError:
        raise ValueError(f"{key}={value} is not a number") from None


def after(graph: Graph, node: Node, outcome: Outcome, attempt: int, seed: str) -> Outcome | Pause:
    """The node's outcome after this attempt (the first is 1), or a pause before another attempt.
    The same ``seed`` (the visit) gives the same pauses."""
    if outcome.status not in ("retry", "fail"):
        return _final(outcome, attempt)
    may_help = (
        outcome.status == "retry" or outcome.retryable is True or "max_retries" in node.attrs
    ) and outcome.retryable is not False
    if not may_help:
        return _final(_failed(outcome), attempt)
    try:
        limit = retries(graph, node)
    except ValueError as error:
        return _final(Outcome(status="fail", failure_reason=str(error)), attempt)
    if attempt <= limit:
        return Pause(delay(attempt, f"{seed}/{node.id}"))
    if node.is_true("allow_partial"):
        reason = outcome.failure_reason
        notes = outcome.notes or (f"retries exhausted: {reason}" if reason else "retries exhausted")
        partial = msgspec.structs.replace(outcome, status="partial_success", notes=notes)
        return _final(partial, attempt)
    return _final(_failed(outcome), attempt)


def delay(attempt: int, seed: str) -> float:
    """200 ms × 2^(n-1), at most 60 s, × (0.5 … 1.5); the factor depends on the seed."""
    digest = blake2b(f"{seed}#{attempt}".encode(), digest_size=8).digest()
    share = int.from_bytes(digest) / 2**64
    return backoff_delay(attempt - 1, first=FIRST_DELAY, longest=MAX_DELAY, jitter=share)


def with_earlier_cost(outcome: Outcome, earlier: Outcome | None) -> Outcome:
    """The outcome of the last attempt, with the cost of the attempt before added."""
    if earlier is None or (earlier.cost_usd is None and earlier.tokens is None):
        return outcome
    cost, tokens = outcome.cost_usd, outcome.tokens
    if earlier.cost_usd is not None:
        cost = (cost or 0.0) + earlier.cost_usd
    if earlier.tokens is not None:
        tokens = (tokens or 0) + earlier.tokens
    return msgspec.structs.replace(outcome, cost_usd=cost, tokens=tokens)


def _final(outcome: Outcome, attempt: int) -> Outcome:
    if outcome.attempts == attempt:
        return outcome
    return msgspec.structs.replace(outcome, attempts=attempt)


def _failed(outcome: Outcome) -> Outcome:
    if outcome.status == "fail":
        return outcome
    reason = outcome.failure_reason or "the node asked for a retry, but no attempt is left"
    return msgspec.structs.replace(outcome, status="fail", failure_reason=reason)
