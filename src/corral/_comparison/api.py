"""``corral.compare``: the same tasks for several agents, a verdict on each attempt, and the counts.

A comparison is a batch (``corral._engine.batch``) whose tasks are attempts. It is durable by
default: attempts that have ended are never repeated, whatever crashes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, Final, Unpack

import msgspec

from corral._comparison import store, tasks
from corral._comparison.plan import (
    CompareOptions,
    ComparisonPlan,
    build,
    fingerprint,
    judging_options,
    load_plan,
    save_plan,
)
from corral._comparison.summary import ComparisonSummary, summarize
from corral._comparison.tasks import Tasks
from corral._engine.batch.api import Batch
from corral._engine.batch.results import BatchReport, BatchResult
from corral._engine.batch.spec import BatchOptions
from corral._engine.dbos import database
from corral._engine.run_options import split_options
from corral._engine.worker.executor import unpack_options
from corral._system.threads import in_thread, short_traceback_async, sync_twin
from corral.errors import ConfigError
from corral.run_kwargs import RunKwargs
from corral.values import as_object

PROMPT = "{{prompt}}"
MOST_TITLE = 120


class CompareKwargs(RunKwargs, total=False):
    """The keyword options of ``corral.compare``: of the comparison, and of ``corral.run`` for each
    attempt.

    ::

        options: corral.CompareKwargs = {"repeat": 5, "verify": "pytest -q", "policy": "edits"}
        corral.compare_sync("Fix the failing test", ["gemini", "claude"], **options)
    """

    repeat: int
    """Attempts by each agent at each task."""
    tests: str | os.PathLike[str] | None
    """A file or folder that is copied into the clean tree before ``verify`` runs, and does not
    exist while the agent works. With it, ``verify_from`` is ``after`` if not given."""
    include_uncommitted: bool
    """Agents start with the changes that are not committed."""
    trust_tasks: bool
    """The tasks are your own: their commands run without a sandbox."""
    output: object
    """A type or JSON Schema that answers must fit."""
    name: str | None
    """The same call with the same name continues the comparison; without one, each call is a new
    comparison."""
    concurrency: int
    """Attempts at once."""
    attempts: int
    """How often an attempt is started that fails temporarily (network, rate limits)."""
    retry_missing: bool
    """Run the missing attempts of a comparison again."""
    durable: bool
    """Whether a crash loses nothing: yes, if not given. What has ended is stored in any case."""
    db: str | None
    """In which database it is stored."""
    on_result: Callable[[BatchResult, BatchReport], None] | None
    """Called with each result."""


def compare(task: Tasks, agents: Iterable[str], **options: Unpack[CompareKwargs]) -> Comparison:
    """Let several agents do the same tasks, verify their work, and count: ``await`` it for the
    ``ComparisonSummary``.

    ``task``: a prompt; the path of a file of tasks (``.jsonl``, ``.csv``, ``.toml``); or a list of
    tasks (dicts with ``prompt``, ``verify``, ``tests``, ...).
    ``agents``: names; ``vendor:model`` is the built-in agent on that model, ``AGENT@MODEL`` an
    agent with a model. See ``CompareKwargs`` and ``RunKwargs`` for the ``options``. ``verify`` is
    run when the agent has ended, in a clean tree of what it left; exit code 0 passes. Without it,
    an attempt passes if the agent's turn succeeds. ``max_cost`` counts for the complete comparison.

    Each attempt works in its own git worktree at ``HEAD``, or in its own copy of the folder if it
    is in no repository; with ``include_uncommitted`` also with the changes that are not committed.
    If no agent may change files, and nothing verifies, all work in the folder itself.

    Tasks of a file may be a stranger's. Their paths must stay in its folder and lead
    through no link; their commands, and yours on their files, run in the sandbox, with the network
    only if the policy allows it; they get at most an hour, and 10 minutes for the verifier, unless
    ``timeout`` and ``verify_timeout`` say more. ``trust_tasks``: they are your own, and none of
    this applies.

    An attempt without a verdict (the agent is not installed, the network fails, a rate limit) is
    *missing*: it counts neither as passed nor as failed. Errors in the call are raised at the
    start, before anything is spent.

    ::

        found = await corral.compare(
            "Fix the failing test", ["gemini", "claude"], verify="pytest -q", policy="all", repeat=5
        )
        for agent in found.agents:
            print(agent.agent, agent.rate.value, agent.rate.low, agent.rate.high)
    """
    own, run = split_options(options, CompareKwargs)
    settings = {name: own.pop(name) for name in RUNNING if name in own}
    chosen = CompareOptions(agents=tuple(agents), **own, **judging_options(run), run=run)
    return Comparison(lambda: prepare(task, chosen), ComparisonSettings(**settings))


compare_sync: Final = sync_twin(compare)
compare_sync.__doc__ = """
    ``compare`` for code that is not async, with the same arguments: runs to the end.

    ::

        found = corral.compare_sync("Fix the bug", ["gemini", "claude"], verify="make test")
        print(found.agents[0].rate)
    """


RUNNING = ("retry_missing", "durable", "db", "on_result")
"""Options that say how a comparison is run; the others are its plan."""


class ComparisonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a comparison is run; not part of its plan."""

    retry_missing: bool = False
    durable: bool = True
    db: str | None = None
    on_result: Callable[[BatchResult, BatchReport], None] | None = None
    max_cost: float | None = None
    """Instead of that of the plan."""


def prepare(task: Tasks, options: CompareOptions) -> ComparisonPlan:
    """The stored plan with this name, or a new one. Raises ``ConfigError``. Blocks."""
    cwd = Path(options.run.get("cwd") or ".").absolute()
    found = tasks.read(task, cwd, trusted=options.trust_tasks)
    if options.name is None or not store.is_stored(options.name):
        return build(found, title_of(task), options)
    plan = load_plan(options.name)
    if plan.fingerprint != fingerprint(found, options):
        raise ConfigError(
            f"{plan.name!r} is another comparison: {plan.title}",
            hint=f"To continue it: corral runs resume {plan.name}. Else choose another name.",
        )
    return plan


def title_of(task: Tasks) -> str:
    text = os.fspath(task) if isinstance(task, str | os.PathLike) else "tasks"
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= MOST_TITLE else line[: MOST_TITLE - 1] + "…"


class Comparison:
    """A comparison; created by ``corral.compare``. Await it for its summary.

    ::

        comparison = corral.compare("Fix the bug", ["gemini", "claude"], verify="make test")
        plan = await comparison.prepare()
        print(plan.name, plan.total)
        found = await comparison
    """

    def __init__(
        self, make_plan: Callable[[], ComparisonPlan], settings: ComparisonSettings
    ) -> None:
        self._make_plan, self._settings = make_plan, settings
        self.plan: ComparisonPlan | None = None
        """Set when it has started."""
        self.batch: Batch | None = None
        self.restarts_jobs = False
        """Of ``service.resume``."""

    def __await__(self) -> Generator[Any, None, ComparisonSummary]:
        return self.run_to_end().__await__()

    async def prepare(self) -> ComparisonPlan:
        """Check everything and store the plan; nothing is started. Raises ``CallerError``."""
        if self.plan is None:
            if self._settings.durable:
                database.require(or_in_memory=True)
            plan = await in_thread(self._make_plan)
            if not store.is_stored(plan.name):
                await in_thread(save_plan, plan)
            self.plan = plan
        return self.plan

    @short_traceback_async
    async def run_to_end(self) -> ComparisonSummary:
        """Run the comparison to its end."""
        plan = await self.prepare()
        self.batch = _batch(plan, self._settings)
        self.batch.restarts_jobs = self.restarts_jobs
        await self.batch.run_to_end()
        return self.summary()

    def summary(self) -> ComparisonSummary:
        """The results so far."""
        if self.plan is None:
            raise RuntimeError("the comparison has not started")
        return summarize(self.plan, store.results(self.plan.name))


def _batch(plan: ComparisonPlan, settings: ComparisonSettings) -> Batch:
    run = unpack_options({**plan.options, "cwd": plan.cwd})
    if settings.max_cost is not None:
        run["max_cost"] = settings.max_cost
    options = BatchOptions(
        agents=plan.agents,
        output=plan.schema,
        results=store.folder_of(plan.name) / store.RESULTS,
        name=plan.name,
        concurrency=plan.concurrency,
        retry_failed=settings.retry_missing,
        attempts=plan.attempts,
        durable=settings.durable,
        db=settings.db,
        on_result=settings.on_result,
        run=run,
    )
    rows = [as_object(msgspec.to_builtins(each)) for each in plan.attempt_tasks()]
    batch: Batch = Batch(rows, PROMPT, options)
    batch.collects = False
    return batch


def resume(name: str, settings: ComparisonSettings) -> Comparison:
    """Continue a stored comparison. Raises ``ConfigError``."""
    found = store.find(name)
    return Comparison(lambda: load_plan(found), settings)
