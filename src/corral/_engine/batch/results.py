"""The results of a batch: one result per task, a report on all of them, and the file of results."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias

import msgspec

from corral._core.display import Card, Displayed, spent
from corral._core.nesting import decode_json
from corral._engine.batch.task_scheduler import BatchTask
from corral._engine.payloads import unpack
from corral._pipelines.attempts import AttemptRecord
from corral._pipelines.scheduler.outcome import TASK_RESULT, Outcome
from corral._system import fs, paths
from corral.errors import ConfigError, CorralError, StorageFailed, from_event
from corral.events import Error
from corral.receipt import VERDICTS, Verdict
from corral.values import (
    Cost,
    Json,
    T_co,
    Usage,
    as_object,
    as_objects,
    as_text,
    as_texts,
    decode_as,
    is_object,
    number_or_none,
)

SLOWEST = 3


class BatchError(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    """A code of ``corral.errors``, or one of the batch itself (``dead_letter``, ``engine`` …)."""
    message: str


class BatchResult(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True, omit_defaults=True):
    """The result of one task: a line of the file of results. A batch with ``output=Review`` has
    ``BatchResult[Review]``, one without ``output`` has ``BatchResult[None]``.

    ::

        for result in corral.batch_sync("tasks.jsonl", "Summarize {{task}}").results:
            print(result.id, result.status, result.text)
    """

    id: str
    status: Literal["success", "failed"]
    text: str = ""
    """The answer of the agent."""
    _output: Any = msgspec.field(default=None, name="output")
    error: BatchError | None = None
    files: tuple[str, ...] = ()
    """Changed files. With ``worktree`` they are relative to the repository."""
    files_complete: bool = True
    """False if more files may have changed: tasks that share a folder list only what their own
    tools reported, not what their shell commands changed."""
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
    verdict: Verdict | Literal[""] = ""
    """With ``verify``: whether the work is verified."""
    gaps: tuple[str, ...] = ()
    """What is missing for ``verified``."""
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
    values = as_object(outcome.context_updates.get(TASK_RESULT))
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
        files_complete=not values.get("files_incomplete"),
        denied=tuple(as_texts(values.get("denied"))),
        branch=as_text(values.get("branch")),
        commit=as_text(values.get("commit")),
        patch=as_text(values.get("patch")),
        agent=as_text(values.get("agent")),
        model=as_text(values.get("model")),
        label=as_text(values.get("label")),
        verdict=_verdict(values.get("verdict")),
        gaps=tuple(as_texts(values.get("gaps"))),
        seconds=number_or_none(values.get("seconds")) or 0.0,
        attempts=outcome.attempts,
        cost_usd=outcome.cost_usd,
        tokens=outcome.tokens,
        attempt=unpack(record, AttemptRecord) if record else None,
        digest=task.digest,
        round=round,
    )


def _verdict(value: object) -> Verdict | Literal[""]:
    for verdict in VERDICTS:
        if verdict == value:
            return verdict
    return ""


def _plain(value: object) -> object:
    """A value of the caller's type, such as a model of pydantic, as what it consists of."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)


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
    """The report of a batch.

    ::

        report = corral.batch_sync("tasks.jsonl", "Summarize {{task}}")
        print(report.succeeded, report.failed, report.cost_usd)
    """

    name: str
    total: int
    succeeded: int
    failed: int
    left: int = 0
    """Tasks not done: the budget was spent, or the batch was interrupted."""
    earlier: int = 0
    """How many of the finished tasks were finished before this call."""
    stopped: Literal["", "budget"] = ""
    verified: int = 0
    """With ``verify``: tasks whose work is verified."""
    gaps: int = 0
    """Tasks whose work was checked and is not verified."""
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
            *((f"{self.verified} verified",) if self.verified or self.gaps else ()),
            *spent(Usage(input=self.tokens or None), Cost(usd=self.cost_usd or None), self.seconds),
        )
        lines = (f"{each.count} × {each.code}: {each.message}" for each in self.failures)
        return Card(f"BatchReport {self.name}", facts, "\n".join(lines))

    def _repr_html_(self) -> str:
        return msgspec.structs.replace(self._card(), rows=self.rows()).html()

    def to_dicts(self) -> list[dict[str, Json]]:
        """The results as the file of results has them, for JSON.

        ::

            json.dumps(report.to_dicts())
        """
        return as_objects(decode_json(msgspec.json.encode(self.results, enc_hook=_plain)))

    def rows(self) -> list[dict[str, Json]]:
        """One flat row per task, for tables such as those of pandas. The fields of an output that
        is an object are columns of their own.

        ::

            import pandas

            frame = pandas.DataFrame(report.rows())
        """
        rows: list[dict[str, Json]] = []
        for result in self.to_dicts():
            row = {name: result.get(name) for name in ("id", "status", "text")}
            output = result.get("output")
            if is_object(output):
                row |= {f"output.{name}": value for name, value in output.items()}
            elif output is not None:
                row["output"] = output
            row["error"] = as_object(result.get("error")).get("message")
            row["files"] = ", ".join(as_texts(result.get("files")))
            rows.append(
                row | {name: result.get(name) for name in ("seconds", "cost_usd", "tokens")}
            )
        return rows

    @property
    def ok(self) -> bool:
        """Whether every task has succeeded."""
        return self.succeeded == self.total


BatchStatus: TypeAlias = Literal[
    "running", "paused", "interrupted", "success", "fail", "budget", "cancelled"
]
"""``paused``: it goes on when its budget is raised. ``interrupted``: no process runs it;
``budget``: the budget was spent. The command that started it continues it in both cases."""


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


class BatchTally:
    """Counts results; gives a report at any time."""

    def __init__(self, name: str, total: int) -> None:
        self.name: str = name
        self.total: int = total
        self.succeeded: int = 0
        self.failed: int = 0
        self.earlier: int = 0
        self.unpriced: int = 0
        self.tokens: int = 0
        self.verified: int = 0
        self.gaps: int = 0
        self.cost: float = 0.0
        self._slowest: list[tuple[str, float]] = []
        self._failures: dict[str, list[BatchResult]] = {}
        self._counts: dict[str, int] = {}

    @property
    def done(self) -> int:
        return self.succeeded + self.failed

    def add(self, result: BatchResult, *, earlier: bool = False) -> None:
        self.earlier += earlier
        self.verified += result.verdict == "verified"
        self.gaps += result.verdict == "gaps"
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
            verified=self.verified,
            gaps=self.gaps,
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


class OutputFile:
    """The file of a batch's results: one line per result, on disk before the result counts. A
    killed process leaves at most an incomplete last line, which the next one removes. A complete
    line is never written twice, and a result without a line never counts as done. While the file is
    open, no other process can write to it.

    It is opened when it is created. Raises ``ConfigError`` if it cannot be written, contains other
    data, or another process writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(
                f"the results cannot be written to {path}: {error.strerror}",
                hint="Choose another file with --output.",
            ) from error
        self._fds = [fd]
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError(f"the results cannot be written to {path}: it is not a file")
            paths.announce(path)
            self._lock(fd)
            if not os.path.samestat(os.fstat(fd), os.stat(path)):
                raise ConfigError(f"another process has just written {path}", hint="Try again.")
            self.known: dict[str, BatchResult[Any]] = self._read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def _lock(self, fd: int) -> None:
        if not fs.try_lock(fd):
            raise ConfigError(
                f"another process is writing to {self.path}",
                hint="It runs this batch: wait for it, or stop it.",
            ) from None

    def _read(self) -> dict[str, BatchResult]:
        """The results in the file by task id; an incomplete last line is removed."""
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from error
        end = data.rfind(b"\n") + 1
        known: dict[str, BatchResult] = {}
        for number, line in enumerate(data[:end].splitlines(), 1):
            try:
                result = decode_as(line, BatchResult)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"{self.path} line {number} is not a batch result: {error}",
                    hint="Choose another file with --output; this one is not changed.",
                ) from error
            known[result.id] = result
        if end < len(data):
            head = b'{"id":"'  # of each line
            if not end and not data.startswith(head) and not head.startswith(data):
                raise ConfigError(
                    f"{self.path} does not contain batch results",
                    hint="Choose another file with --output; this one is not changed.",
                )
            os.ftruncate(self._fds[-1], end)
            os.fsync(self._fds[-1])
        return known

    def write(self, results: Iterable[BatchResult]) -> None:
        """Append results; they are on disk when it returns. Raises ``StorageFailed`` and leaves the
        file unchanged."""
        data = b"".join(line_of(each) for each in results)
        if not data:
            return
        fd = self._fds[-1]
        size = os.fstat(fd).st_size
        try:
            fs.write_all(fd, data)
            os.fsync(fd)
        except OSError as error:
            os.ftruncate(fd, size)
            raise StorageFailed(
                f"the results cannot be written to {self.path}: {error.strerror}",
                hint="Free some disk space and run the same command again; results are kept.",
            ) from error

    def replace(self, results: Mapping[str, BatchResult]) -> None:
        """Replace all lines atomically, in this order. Raises ``StorageFailed``."""
        fd, draft = None, None
        try:
            fd, draft = fs.create_draft(self.path, mode=0o666)
            os.fchmod(fd, os.fstat(self._fds[-1]).st_mode & 0o7777)
            # Locked before it is renamed: the next process that opens it finds it locked.
            self._lock(fd)
            for each in results.values():
                fs.write_all(fd, line_of(each))
            os.fsync(fd)
            fs.move_into_place(draft, self.path, sync=True)
        except OSError as error:
            if fd is not None:
                os.close(fd)
            if draft is not None:
                Path(draft).unlink(missing_ok=True)
            raise StorageFailed(
                f"the results cannot be written to {self.path}: {error.strerror}"
            ) from error
        self._fds.append(fd)
