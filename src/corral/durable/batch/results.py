"""What came of the tasks of a batch: a result each, and a report on all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, cast

import msgspec

from corral.durable.batch.tasks import BatchTask
from corral.events import Json
from corral.pipelines.nodes.item import UPDATE
from corral.pipelines.scheduler.outcome import Outcome

SLOWEST = 3


class BatchError(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    """As of ``corral.errors``, where it is one of those."""
    message: str


class BatchResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of one task: a line of the results."""

    id: str
    status: Literal["success", "failed"]
    text: str = ""
    """The answer."""
    output: Any = None
    """The value, where a schema was asked for: then a success has one that fits."""
    error: BatchError | None = None
    files: tuple[str, ...] = ()
    """That changed."""
    denied: tuple[str, ...] = ()
    """Tools that the policy refused."""
    branch: str = ""
    commit: str = ""
    patch: str = ""
    """Of what was done in the task's own worktree."""
    agent: str = ""
    model: str = ""
    label: str = ""
    """The option ``label``."""
    seconds: float = 0.0
    """Of the last attempt."""
    attempts: int = 1
    cost_usd: float | None = None
    tokens: int | None = None
    digest: str = ""
    """Of the question: results of another are not taken for this one's."""
    round: int = 1
    """In which it was done: those that failed are tried again in a second."""

    @property
    def ok(self) -> bool:
        return self.status == "success"


def result_of(task: BatchTask, outcome: Outcome, round: int = 1) -> BatchResult:
    held = outcome.context_updates.get(UPDATE)
    told = cast("dict[str, Any]", held) if isinstance(held, dict) else dict[str, Any]()
    error = None
    if not outcome.ok:
        error = BatchError(
            code=str(told.get("code") or "failed"),
            message=outcome.failure_reason or outcome.notes or "it failed without a message",
        )
    return BatchResult(
        id=task.id,
        status="success" if outcome.ok else "failed",
        text=str(told.get("text", "")),
        output=told.get("output"),
        error=error,
        files=tuple(told.get("files", ())),
        denied=tuple(told.get("denied", ())),
        branch=str(told.get("branch", "")),
        commit=str(told.get("commit", "")),
        patch=str(told.get("patch", "")),
        agent=str(told.get("agent", "")),
        model=str(told.get("model", "")),
        label=str(told.get("label", "")),
        seconds=float(told.get("seconds", 0.0)),
        attempts=outcome.attempts,
        cost_usd=outcome.cost_usd,
        tokens=outcome.tokens,
        digest=task.digest,
        round=round,
    )


def line_of(result: BatchResult) -> bytes:
    return msgspec.json.encode(result, enc_hook=str) + b"\n"


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """Those of one code."""

    code: str
    count: int
    tasks: tuple[str, ...]
    """The first few."""
    message: str
    """Of the first."""


class BatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch came to."""

    name: str
    total: int
    succeeded: int
    failed: int
    left: int = 0
    """Not done: there was no money left, or it was interrupted."""
    earlier: int = 0
    """Of those done, how many were when it was taken up again."""
    stopped: Literal["", "budget"] = ""
    cost_usd: float = 0.0
    unpriced: int = 0
    """Tasks whose cost nobody told: it is in no sum, and no budget."""
    tokens: int = 0
    seconds: float = 0.0
    """Since it was begun, or taken up again."""
    slowest: tuple[tuple[str, float], ...] = ()
    failures: tuple[Failures, ...] = ()
    """By code, the most frequent first."""
    results: tuple[BatchResult, ...] = ()
    """In the order of the tasks, where they were to be collected."""

    @property
    def ok(self) -> bool:
        """Whether every task is done, and well."""
        return self.succeeded == self.total


BatchStatus: TypeAlias = Literal["running", "interrupted", "success", "fail", "budget", "cancelled"]
"""``interrupted``: nobody gives it tasks; ``budget``: there was no money left. The command that
began it goes on with either."""


class BatchClosed(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch had come to when it ended, for lists."""

    status: BatchStatus
    total: int
    succeeded: int
    failed: int
    cost_usd: float
    at: float | None = None
    """Seconds since the epoch; None where it has not ended."""


class Tally:
    """Counts results as they come; the report at any moment."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total = name, total
        self.succeeded = self.failed = self.earlier = self.unpriced = self.tokens = 0
        self.cost = 0.0
        self._slowest: list[tuple[str, float]] = []
        self._failures: dict[str, list[BatchResult]] = {}
        self._counts: dict[str, int] = {}

    @property
    def done(self) -> int:
        return self.succeeded + self.failed

    def add(self, result: BatchResult, *, earlier: bool = False) -> None:
        self.earlier += earlier
        self.tokens += result.tokens or 0
        self.cost += result.cost_usd or 0.0
        self.unpriced += result.cost_usd is None
        slow = [*self._slowest, (result.id, result.seconds)]
        self._slowest = sorted(slow, key=lambda each: -each[1])[:SLOWEST]
        if result.ok:
            self.succeeded += 1
            return
        self.failed += 1
        code = result.error.code if result.error else "failed"
        self._counts[code] = self._counts.get(code, 0) + 1
        first = self._failures.setdefault(code, [])
        if len(first) < SLOWEST:
            first.append(result)

    def report(
        self,
        *,
        seconds: float,
        stopped: Literal["", "budget"] = "",
        results: Mapping[str, BatchResult] | None = None,
    ) -> BatchReport:
        return BatchReport(
            name=self.name,
            total=self.total,
            succeeded=self.succeeded,
            failed=self.failed,
            left=self.total - self.done,
            earlier=self.earlier,
            stopped=stopped,
            cost_usd=round(self.cost, 6),
            unpriced=self.unpriced,
            tokens=self.tokens,
            seconds=round(seconds, 3),
            slowest=tuple(self._slowest),
            failures=tuple(
                Failures(
                    code=code,
                    count=count,
                    tasks=tuple(each.id for each in self._failures[code]),
                    message=error.message if (error := self._failures[code][0].error) else "",
                )
                for code, count in sorted(self._counts.items(), key=lambda each: -each[1])
            ),
            results=tuple((results or {}).values()),
        )


def as_json(report: BatchReport) -> dict[str, Json]:
    """Without the results."""
    whole = cast(
        "dict[str, Json]", msgspec.to_builtins(msgspec.structs.replace(report, results=()))
    )
    del whole["results"]
    return whole
