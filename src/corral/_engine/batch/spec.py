"""The specification of a batch: what all its tasks share, checked before anything is spent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral._core.spending import LIMITS, BudgetLimits, LimitKwargs
from corral._engine.batch import tasks as batch_tasks
from corral._engine.batch.results import BatchReport, BatchResult
from corral._engine.batch.task_scheduler import NODE, BatchTask
from corral._engine.batch.tasks import TaskInput
from corral._engine.payloads import RunConfig
from corral._engine.run_options import as_json, with_active_span, workspace_path
from corral._option_definitions import with_trait
from corral._pipelines import node_kinds
from corral._pipelines.execution import preflight
from corral._pipelines.execution.handlers import PROMPTS_AT_ONCE, NodeResources
from corral._pipelines.graph import Graph, Node, Value
from corral._pipelines.run_limits import run_limits, take_limits
from corral._protocol.schema import Schema
from corral._sessions.tools.hooks import Before
from corral._system import config, fs, paths
from corral._system.clock import random_hex
from corral._system.git.worktree import repository_root
from corral.errors import ConfigError, CorralError
from corral.run_kwargs import RunKwargs
from corral.values import slug


class AgentChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent of a comparison."""

    name: str
    """As it was given."""
    backend: str
    """The agent, without its model."""
    model: str = ""


class BatchKwargs(RunKwargs, total=False):
    """The keyword options of ``corral.batch``, and of ``corral.run`` for each task.

    ::

        options: corral.BatchKwargs = {"results": "results.jsonl", "task": {"max_cost": 0.5}}
        corral.batch_sync("tasks.jsonl", "Summarize {{task}}", **options)
    """

    agent: str | None
    results: str | os.PathLike[str] | None
    """A file with one line per result. The same call continues after a crash, by this file or by
    ``name``."""
    name: str | None
    concurrency: int
    """Tasks that run at once."""
    in_order: bool
    """Write results in the order of the tasks."""
    retry_failed: bool
    """Run failed tasks again."""
    accept_changed: bool
    """Accept changed tasks."""
    attempts: int
    """Attempts for a task whose failure may be temporary."""
    worktree: bool
    """Each task gets a git worktree at HEAD, and its changes become a branch."""
    patch: bool
    """Put the patch of that branch into the result."""
    simulate: bool
    """Simulate the answers: nothing is spent."""
    durable: bool
    """Whether the batch is stored: yes, if not given."""
    db: str | None
    """In which database it is stored."""
    queue: str | None
    """The workers of this queue run the tasks."""
    task: LimitKwargs
    """The limits of each task, within those of the batch."""
    on_tool_call: Before | None
    """As in ``corral.run``; it needs ``durable=False``, because the tasks of a durable batch run in
    other processes."""


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The options of a batch, with their defaults; ``BatchKwargs`` documents them."""

    agent: str | None = None
    output: object = None
    results: str | os.PathLike[str] | None = None
    name: str | None = None
    concurrency: int = 4
    in_order: bool = False
    retry_failed: bool = False
    accept_changed: bool = False
    attempts: int = 3
    worktree: bool = False
    patch: bool = False
    simulate: bool = False
    durable: bool = True
    db: str | None = None
    queue: str | None = None
    task: LimitKwargs = field(default_factory=LimitKwargs)
    on_tool_call: Before | None = None
    on_result: Callable[[BatchResult, BatchReport], None] | None = None
    agents: tuple[AgentChoice, ...] = ()
    """If given, the tasks are attempts of these agents (``AttemptTask``): a comparison."""
    run: RunKwargs = field(default_factory=RunKwargs)
    """The options of ``corral.run``, for every task."""


class BatchSpec(msgspec.Struct, kw_only=True):
    """What all tasks of a batch share; the arguments are checked."""

    name: str
    tasks: dict[str, BatchTask]
    """By id, in their order."""
    graph: Graph
    agent: str
    model: str
    workspace: Path
    options: RunKwargs
    concurrency: int
    simulate: bool
    limits: BudgetLimits
    """Of the complete batch."""
    schema: Schema[object] | None
    on_tool_call: Before | None = None

    @property
    def digests(self) -> dict[str, str]:
        return {task.id: task.digest for task in self.tasks.values()}

    def resources(self) -> NodeResources:
        return NodeResources(
            simulate=self.simulate,
            agent=self.agent or config.default_agent(),
            model=self.model or None,
            options=self.options,
            on_tool_call=self.on_tool_call,
            processes=max(1, -(-self.concurrency // PROMPTS_AT_ONCE)),
        )

    @property
    def graph_of_run(self) -> Graph:
        """The graph without the limits: all rounds of the batch share one budget."""
        attrs = {name: value for name, value in self.graph.attrs.items() if name not in LIMITS}
        return msgspec.structs.replace(self.graph, attrs=attrs)

    def run_config(self, run: str, budgets: tuple[str, ...], *, detached: bool) -> RunConfig:
        return RunConfig(
            budgets=budgets,
            folder=str(paths.home() / "batches" / run),
            workspace=str(self.workspace),
            simulate=self.simulate,
            agent=self.agent or config.default_agent(),
            model=self.model,
            options=as_json(self.options),
            detached=detached and not self.simulate,
            concurrency=self.concurrency,
        )


def build_spec(
    tasks: Iterable[TaskInput] | str | os.PathLike[str], prompt: str, options: BatchOptions
) -> BatchSpec:
    """Check all arguments of a batch. Raises ``CallerError``."""
    from corral._sessions.structured_output import answer_schema

    _check_options(options)
    run = with_active_span(options.run.copy())
    # The attempts of a comparison have their own limits but for the cost.
    limits = take_limits(
        run,
        options.task,
        ("max_cost",) if options.agents else LIMITS,
    )
    model = run.pop("model", None) or ""
    workspace = workspace_path(run.pop("cwd", None))
    schema = None if options.output is None else answer_schema(options.output)
    schema_text = "" if schema is None else msgspec.json.encode(schema.json).decode()
    source: Path | None = None
    if isinstance(tasks, str | os.PathLike):
        source = Path(tasks)
        made = batch_tasks.read_tasks(source)
    else:
        made = batch_tasks.make_tasks(tasks)
    checked = batch_tasks.check_tasks(
        made,
        prompt,
        {"agent": options.agent or "", "model": model, "schema": schema_text},
        all_fields=bool(options.agents),
    )
    kind = node_kinds.COMPARE_ATTEMPT if options.agents else node_kinds.BATCH_ITEM
    attrs: dict[str, Value] = {"type": kind.name, "prompt": prompt}
    if options.agent:
        attrs["agent"] = options.agent
    # The limit of a comparison is for the agent only: its verifier has its own.
    if not options.agents and (timeout := run.pop("timeout", None)) is not None:
        attrs["timeout"] = timeout
    if schema_text:
        attrs["output_schema"] = schema_text
    name = _name(options.name, Path(options.results) if options.results else None, source)
    if options.worktree:
        root, commit = repository_root(workspace)
        attrs |= {
            "worktree": commit,
            "repository": str(root),
            "batch": name,
            "patch": options.patch,
        }
        workspace = workspace.resolve()
    spec = BatchSpec(
        name=name,
        tasks={task.id: task for task in checked},
        graph=Graph(
            name=name,
            attrs={"default_max_retries": options.attempts - 1, **limits},
            nodes={NODE: Node(id=NODE, attrs=attrs)},
        ),
        agent=options.agent or "",
        model=model,
        workspace=workspace,
        options=run,
        concurrency=options.concurrency,
        simulate=options.simulate,
        limits=run_limits(Graph(name=name, attrs=limits)),
        schema=schema,
        on_tool_call=options.on_tool_call,
    )
    if options.queue is None and not options.simulate:
        for choice in options.agents or (None,):
            _check(spec, choice)
    return spec


def _check_options(options: BatchOptions) -> None:
    for name, count in (("concurrency", options.concurrency), ("attempts", options.attempts)):
        if count < 1:
            raise ConfigError(f"{name} must be at least 1, got: {count}")
    for key in sorted(with_trait("one_run")):
        if options.run.get(key) is not None:
            raise ConfigError(f"{key} is not an option of a batch, only of a single run")
    if options.on_tool_call is not None and options.durable:
        raise ConfigError(
            "on_tool_call needs durable=False: the tasks of a durable batch run in other processes",
            hint="With results= the same call still continues where it stopped.",
        )
    if options.patch and not options.worktree:
        raise ConfigError("patch needs worktree", hint="Use --worktree (worktree=True) too.")


def _check(spec: BatchSpec, choice: AgentChoice | None) -> None:
    """Check the agent and its options, as for a pipeline with one agent node."""
    node = spec.graph.nodes[NODE]
    attrs = {**node.attrs, "type": node_kinds.CODERGEN.name, "prompt": "-"}
    if choice is not None:
        attrs |= {"agent": choice.backend, **({"model": choice.model} if choice.model else {})}
    graph = Graph(name=spec.name, attrs=spec.graph.attrs, nodes={NODE: Node(id=NODE, attrs=attrs)})
    try:
        preflight.check(graph, spec.resources(), spec.workspace, {})
    except CorralError as error:
        for prefix in (f"node {NODE!r}: ", f"{NODE}: "):
            error.message = error.message.removeprefix(prefix)
        raise


def _name(given: str | None, results: Path | None, source: Path | None) -> str:
    """The name by which the batch is resumed: as given, else from the results file, else from the
    tasks file."""
    if given is not None:
        fit = given and len(given) <= 80 and all(c.isalnum() or c in "._-" for c in given)
        if not fit or given.startswith((".", "-")):
            raise ConfigError(
                f"{given!r} is not a valid batch name",
                hint="Use letters, digits, dots, underscores and hyphens.",
            )
        return given
    path = results or source
    if path is None:
        return f"batch-{random_hex(5)}"
    full_path = fs.real_path(path)
    stem = slug(path.stem, limit=30, default="batch")
    return f"{stem}-{blake2b(os.fsencode(full_path), digest_size=4).hexdigest()}"
