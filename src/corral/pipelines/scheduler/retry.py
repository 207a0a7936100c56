"""Whether a node is tried again, and when: a rule, without a clock and without chance.

``max_retries`` + 1 attempts. ``retry`` and errors that may pass (network, 429, 5xx) are
tried again; ``fail`` only where the node itself says ``max_retries``; what cannot help
(``retryable=False``: bad configuration, 401, refused permission) never. Exhausted:
``allow_partial`` makes it a partial success, else it failed.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from corral.backoff import backoff_delay
from corral.pipelines.graph import Graph, Node
from corral.pipelines.scheduler.outcome import Outcome

FIRST = 0.2
"""Seconds before the second attempt; doubled with each."""
LONGEST = 60.0


class Pause(msgspec.Struct, frozen=True):
    seconds: float


def retries(graph: Graph, node: Node) -> int:
    """How many times the node is tried again at most. Raises ``ValueError``."""
    for attrs, key in (
        (node.attrs, "max_retries"),
        (graph.attrs, "default_max_retries"),
        (graph.attrs, "default_max_retry"),
    ):
        if (given := attrs.get(key)) not in (None, ""):
            try:
                return max(0, int(given))
            except ValueError:
                raise ValueError(f"{key}={given} is no number") from None
    return 0


def after(graph: Graph, node: Node, outcome: Outcome, attempt: int, seed: str) -> Outcome | Pause:
    """What follows from this attempt (the first is 1): the node's outcome, or a pause and
    another attempt. ``seed`` is the visit's: the same one gives the same pauses."""
    if outcome.status not in ("retry", "fail"):
        return _final(outcome, attempt)
    helps = (
        outcome.status == "retry" or outcome.retryable is True or "max_retries" in node.attrs
    ) and outcome.retryable is not False
    if not helps:
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
    """200 ms × 2^(n-1), at most 60 s, × (0.5 … 1.5), which the seed decides."""
    digest = blake2b(f"{seed}#{attempt}".encode(), digest_size=8).digest()
    share = int.from_bytes(digest) / 2**64
    return backoff_delay(attempt - 1, first=FIRST, longest=LONGEST, jitter=share)


def with_spent(outcome: Outcome, earlier: Outcome | None) -> Outcome:
    """The outcome of the last attempt with what the one before it spent, added up."""
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
    reason = outcome.failure_reason or "it asked to be tried again, and no attempt is left"
    return msgspec.structs.replace(outcome, status="fail", failure_reason=reason)
