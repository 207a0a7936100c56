"""The results of a comparison, counted: what the table, ``--json`` and ``/api/compare/{id}`` show.

``summary`` reads the stored plan and results, and blocks. It works while the comparison runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Literal, TypeAlias, TypeVar

import msgspec

from corral._comparison import statistics, store
from corral._comparison.plan import ComparisonPlan, SkippedRow, load_plan
from corral._comparison.statistics import Difference, Rate
from corral._core.display import Card, Displayed
from corral._core.intervals import LEVEL
from corral._engine.batch.results import BatchResult
from corral._pipelines.attempts import AttemptRecord, AttemptTask
from corral.values import Usage

Number = TypeVar("Number", int, float)
AttemptState: TypeAlias = Literal["passed", "failed", "missing", "pending"]
MOST_TEXT = 20_000
"""Characters of an answer in a row. ``answer.md`` in its folder has all of it."""


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt. One that has not ended is ``pending``."""

    id: str
    task: str
    agent: str
    repeat: int
    verdict: AttemptState
    reason: str = ""
    """Why it failed or is missing."""
    code: str = ""
    """Of a missing attempt: the error's code."""
    status: str = ""
    """Of the agent's turn."""
    text: str = ""
    """The agent's answer."""
    exit_code: int | None = None
    """Of the verifier."""
    model: str = ""
    """The model that was used."""
    agent_version: str = ""
    session: str = ""
    """The id of its stored session."""
    sandbox: str = ""
    files: tuple[str, ...] = ()
    commit: str = ""
    folder: str = ""
    usage: Usage = Usage()
    tokens: int | None = None
    cost_usd: float | None = None
    seconds: float | None = None
    """Of the agent's turn."""
    verifier_seconds: float = 0.0
    started: float = 0.0
    tries: int = 1
    """Times that it was started, after failures that may be temporary."""


class AgentRow(msgspec.Struct, frozen=True, kw_only=True):
    """All attempts of one agent. Costs, tokens and times are of attempts with a verdict."""

    agent: str
    rate: Rate
    missing: int = 0
    pending: int = 0
    models: tuple[str, ...] = ()
    """The models that were used. More than one: the attempts are not all comparable."""
    versions: tuple[str, ...] = ()
    cost_usd: float | None = None
    """The sum; None if no attempt reports its cost."""
    unpriced: int = 0
    """Attempts with unknown cost: they are not in the sum."""
    tokens: int | None = None
    """The sum."""
    mean_cost_usd: float | None = None
    mean_tokens: float | None = None
    median_seconds: float | None = None


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    prompt: str
    verify: str = ""
    attempts: tuple[AttemptRow, ...] = ()


class MissingRow(msgspec.Struct, frozen=True, kw_only=True):
    """The missing attempts with one error code."""

    code: str
    count: int
    attempts: tuple[str, ...]
    """The ids of the first few."""
    reason: str
    """That of the first."""


class ComparisonSummary(Displayed, msgspec.Struct, frozen=True, kw_only=True):
    """A comparison and its results so far.

    ::

        found = await corral.compare("Fix the bug", ["gemini", "claude"], verify="make test")
        print(found.is_complete, found.agents[0].rate.value, found.differences[0].value)
    """

    id: str
    title: str
    created: float
    cwd: str
    repeat: int
    total: int
    """Attempts."""
    done: int
    """Attempts with a verdict."""
    agents: tuple[AgentRow, ...]
    differences: tuple[Difference, ...]
    """Of every two agents."""
    tasks: tuple[TaskRow, ...]
    missing: tuple[MissingRow, ...] = ()
    skipped: tuple[SkippedRow, ...] = ()
    """Tasks that cannot be run on this machine."""
    notes: tuple[str, ...] = ()
    level: float = LEVEL
    """Of all intervals."""

    @property
    def is_complete(self) -> bool:
        """Whether every attempt has a verdict."""
        return self.done == self.total

    @property
    def attempts(self) -> list[AttemptRow]:
        return [attempt for task in self.tasks for attempt in task.attempts]

    def _card(self) -> Card:
        """What a Python prompt and a notebook show of the comparison."""
        facts = (f"{self.done} of {self.total} attempts",)
        lines = [f"{each.agent}: {rate_text(each.rate)}" for each in self.agents]
        return Card(f"ComparisonSummary {self.id}", facts, "\n".join(lines))


def summary(name: str) -> ComparisonSummary:
    """The results of a stored comparison so far. ``name``: its name, a unique beginning of it, or
    ``last``. Raises ``ConfigError``. Blocks."""
    found = store.find(name)
    return summarize(load_plan(found), store.results(found))


def summarize(plan: ComparisonPlan, results: Mapping[str, BatchResult]) -> ComparisonSummary:
    """Count the results of a plan."""
    rows = [_row(task, results.get(task.id)) for task in plan.attempt_tasks()]
    by_agent = {
        agent.name: [row for row in rows if row.agent == agent.name] for agent in plan.agents
    }
    by_task: dict[str, list[AttemptRow]] = {task.id: [] for task in plan.tasks}
    for row in rows:
        by_task[row.task].append(row)
    agents = [_agent(name, own) for name, own in by_agent.items()]
    return ComparisonSummary(
        id=plan.name,
        title=plan.title,
        created=plan.created,
        cwd=plan.cwd,
        repeat=plan.repeat,
        total=len(rows),
        done=sum(row.verdict in ("passed", "failed") for row in rows),
        agents=tuple(agents),
        differences=tuple(
            statistics.differences({name: _verdicts(own) for name, own in by_agent.items()})
        ),
        tasks=tuple(
            TaskRow(
                task=task.id,
                prompt=task.prompt[:MOST_TEXT],
                verify=task.verifier.command,
                attempts=tuple(by_task[task.id]),
            )
            for task in plan.tasks
        ),
        missing=tuple(_missing(rows)),
        skipped=plan.skipped,
        notes=(*plan.notes, *_notes(plan, agents)),
    )


def _notes(plan: ComparisonPlan, agents: Iterable[AgentRow]) -> Iterator[str]:
    """What makes attempts not comparable."""
    for agent, choice in zip(agents, plan.agents, strict=True):
        other = [model for model in agent.models if choice.model and model != choice.model]
        if other:
            yield f"{agent.agent} was asked for {choice.model} and used {', '.join(other)}"
        for what, values in (("models", agent.models), ("versions", agent.versions)):
            if len(values) > 1:
                yield f"{agent.agent} ran with several {what}: {', '.join(values)}"


def _row(task: AttemptTask, result: BatchResult | None) -> AttemptRow:
    row = AttemptRow(
        id=task.id, task=task.task, agent=task.agent, repeat=task.repeat, verdict="pending"
    )
    if result is None:
        return row
    # Without a record the engine ended it: its process died, or it was cancelled.
    record = result.attempt or AttemptRecord(
        task=task.task, agent=task.agent, repeat=task.repeat, verdict="missing"
    )
    error = result.error
    names = [name for name in AttemptRow.__struct_fields__ if hasattr(record, name)]
    return msgspec.structs.replace(
        row,
        **{name: getattr(record, name) for name in names}
        | {
            "reason": record.reason or (error.message if error else ""),
            "code": error.code if error else "",
            "text": result.text[:MOST_TEXT],
            "model": result.model or task.model,
            "files": result.files,
            "folder": task.folder,
            "tokens": result.tokens,
            "cost_usd": result.cost_usd,
            "seconds": record.agent_seconds,
            "tries": result.attempts,
        },
    )


def _verdicts(rows: Iterable[AttemptRow]) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = {}
    for row in rows:
        if row.verdict in ("passed", "failed"):
            found.setdefault(row.task, []).append(row.verdict == "passed")
    return found


def _agent(name: str, rows: Sequence[AttemptRow]) -> AgentRow:
    judged = [row for row in rows if row.verdict in ("passed", "failed")]
    counts = Counter(row.verdict for row in rows)
    costs = _reported(row.cost_usd for row in judged)
    tokens = _reported(row.tokens for row in judged)
    seconds = _reported(row.seconds for row in judged)
    return AgentRow(
        agent=name,
        rate=statistics.pass_rate(_verdicts(rows)),
        missing=counts["missing"],
        pending=counts["pending"],
        models=tuple(sorted({row.model for row in judged} - {""})),
        versions=tuple(sorted({row.agent_version for row in judged} - {""})),
        cost_usd=round(sum(costs), 6) if costs else None,
        unpriced=len(judged) - len(costs),
        tokens=sum(tokens) if tokens else None,
        mean_cost_usd=fmean(costs) if costs else None,
        mean_tokens=fmean(tokens) if tokens else None,
        median_seconds=median(seconds) if seconds else None,
    )


def _reported(values: Iterable[Number | None]) -> list[Number]:
    return [value for value in values if value is not None]


def _missing(rows: Iterable[AttemptRow]) -> list[MissingRow]:
    by_code: dict[str, list[AttemptRow]] = {}
    for row in rows:
        if row.verdict == "missing":
            by_code.setdefault(row.code or "error", []).append(row)
    return [
        MissingRow(
            code=code,
            count=len(found),
            attempts=tuple(row.id for row in found[:3]),
            reason=found[0].reason,
        )
        for code, found in sorted(by_code.items(), key=lambda each: -len(each[1]))
    ]


def rate_text(rate: Rate) -> str:
    """``67 % (30–90)``."""
    if rate.value is None or rate.low is None or rate.high is None:
        return "–"
    return f"{rate.value:.0%} ({rate.low * 100:.0f}–{rate.high * 100:.0f})".replace("%", " %")


def difference_text(difference: Difference) -> str:
    """``+12 points (-5 to +30)``."""
    value, low, high = difference.value, difference.low, difference.high
    if value is None or low is None or high is None:
        return "no task has a verdict for both"
    return f"{value * 100:+.0f} points ({low * 100:+.0f} to {high * 100:+.0f})"
