"""The results of a batch: one result per task, and a report on all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeAlias

import msgspec

from corral.core.display import Card, Displayed, spent
from corral.engine.batch.tasks import BatchTask
from corral.engine.payloads import unpack
from corral.errors import CorralError, from_event
from corral.events import Error
from corral.pipelines.attempts import AttemptRecord
from corral.pipelines.nodes.item import UPDATE
from corral.pipelines.scheduler.outcome import Outcome
from corral.values import (
    Cost,
    Json,
    T_co,
    Usage,
    as_object,
    as_text,
    as_texts,
    number_or_none,
)

SLOWEST = 3


class BatchError(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    """A code of ``corral.errors``, or one of the batch itself (``dead_letter``, ``engine`` …)."""
    message: str


class BatchResult(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True, omit_defaults=True):
    """The result of one task: a line of the file of results. A batch with ``output=Review`` has
    ``BatchResult[Review]``, one without ``output`` has ``BatchResult[None]``."""

    id: str
    status: Literal["success", "failed"]
    text: str = ""
    """The answer of the agent."""
    _output: Any = msgspec.field(default=None, name="output")
    error: BatchError | None = None
    files: tuple[str, ...] = ()
    """Changed files."""
    denied: tuple[str, ...] = ()
    """Tools that the policy denied."""
    branch: str = ""
    commit: str = ""
    patch: str = ""
    """With ``worktree``: branch, commit and patch of the task's changes."""
    agent: str = ""
    model: str = ""
    label: str = ""
    """The option ``label``."""
    seconds: float = 0.0
    """Duration of the last attempt."""
    attempts: int = 1
    cost_usd: float | None = None
    tokens: int | None = None
    attempt: AttemptRecord | None = None
    """Of a comparison: the verdict, and what is known of the attempt."""
    digest: str = ""
    """Digest of the task and its prompt: a result with another digest does not count."""
    round: int = 1
    """The round in which it ran: failed tasks are retried in another round."""

    @property
    def code(self) -> str:
        """The code of the error; empty if there is none."""
        return "" if self.error is None else self.error.code

    @property
    def ok(self) -> bool:
        return self.status == "success"

    @property
    def output(self) -> T_co:
        """With ``output``: the value, of the caller's type; a success always has one that fits. Of
        a task that failed it raises the task's error."""
        if self._output is msgspec.UNSET:
            raise self._failure()
        value: T_co = self._output
        return value

    def raise_for_status(self) -> BatchResult[T_co]:
        """This result if it is a success. Otherwise raises its error."""
        if self.ok:
            return self
        raise self._failure()

    def _failure(self) -> CorralError:
        error = self.error or BatchError(code="error", message="it failed without a message")
        return from_event(Error(code=error.code, message=f"task {self.id}: {error.message}"))


def result_of(task: BatchTask, outcome: Outcome, round: int = 1) -> BatchResult:
    values = as_object(outcome.context_updates.get(UPDATE))
    record = as_object(values.get("attempt"))
    error = None
    if not outcome.ok:
        error = BatchError(
            code=str(values.get("code") or "failed"),
            message=outcome.failure_reason or outcome.notes or "it failed without a message",
        )
    return BatchResult(
        id=task.id,
        status="success" if outcome.ok else "failed",
        text=as_text(values.get("text")),
        _output=values.get("output"),
        error=error,
        files=tuple(as_texts(values.get("files"))),
        denied=tuple(as_texts(values.get("denied"))),
        branch=as_text(values.get("branch")),
        commit=as_text(values.get("commit")),
        patch=as_text(values.get("patch")),
        agent=as_text(values.get("agent")),
        model=as_text(values.get("model")),
        label=as_text(values.get("label")),
        seconds=number_or_none(values.get("seconds")) or 0.0,
        attempts=outcome.attempts,
        cost_usd=outcome.cost_usd,
        tokens=outcome.tokens,
        attempt=unpack(record, AttemptRecord) if record else None,
        digest=task.digest,
        round=round,
    )


def line_of(result: BatchResult) -> bytes:
    return msgspec.json.encode(result, enc_hook=str) + b"\n"


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """The failures with one error code."""

    code: str
    count: int
    tasks: tuple[str, ...]
    """The ids of the first few."""
    message: str
    """The message of the first."""


class BatchReport(Displayed, msgspec.Struct, Generic[T_co], frozen=True, kw_only=True):
    """The report of a batch."""

    name: str
    total: int
    succeeded: int
    failed: int
    left: int = 0
    """Tasks not done: the budget was spent, or the batch was interrupted."""
    earlier: int = 0
    """How many of the finished tasks were finished before this call."""
    stopped: Literal["", "budget"] = ""
    cost_usd: float = 0.0
    unpriced: int = 0
    """Tasks with unknown cost: they count neither in the sum nor against the budget."""
    tokens: int = 0
    seconds: float = 0.0
    """Duration of this call."""
    slowest: tuple[tuple[str, float], ...] = ()
    failures: tuple[Failures, ...] = ()
    """By code, the most frequent first."""
    results: tuple[BatchResult[T_co], ...] = ()
    """In the order of the tasks, if they were collected."""

    def _card(self) -> Card:
        """What a Python prompt and a notebook show of the report."""
        facts = (
            f"{self.succeeded} of {self.total} succeeded",
            *((f"{self.failed} failed",) if self.failed else ()),
            *((f"{self.left} left",) if self.left else ()),
            *spent(Usage(input=self.tokens or None), Cost(usd=self.cost_usd or None), self.seconds),
        )
        lines = (f"{each.count} × {each.code}: {each.message}" for each in self.failures)
        return Card(f"BatchReport {self.name}", facts, "\n".join(lines))

    @property
    def ok(self) -> bool:
        """Whether every task has succeeded."""
        return self.succeeded == self.total


BatchStatus: TypeAlias = Literal["running", "interrupted", "success", "fail", "budget", "cancelled"]
"""``interrupted``: no process runs it; ``budget``: the budget was spent. The command that started
it continues it in both cases."""


BatchKind: TypeAlias = Literal["batch", "compare"]
"""``compare``: a comparison of agents (``corral compare``)."""


class BatchSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The stored summary of a batch that has ended, for lists."""

    status: BatchStatus
    total: int
    succeeded: int
    failed: int
    cost_usd: float
    at: float | None = None
    """Seconds since the epoch; None if it has not ended."""


class Tally:
    """Counts results; gives a report at any time."""

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
    """The report as JSON, without the results."""
    fields = as_object(msgspec.to_builtins(msgspec.structs.replace(report, results=())))
    del fields["results"]
    return fields
