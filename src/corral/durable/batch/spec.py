"""The specification of a batch: what all its tasks share, checked before anything is spent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import msgspec

from corral.agents.registry import DEFAULT_AGENT
from corral.durable.api import as_json, workspace_path
from corral.durable.batch import tasks as batch_tasks
from corral.durable.batch.runner import NODE
from corral.durable.batch.tasks import BatchTask, TaskInput
from corral.durable.payloads import RunConfig
from corral.errors import ConfigError, CorralError
from corral.options import RunKwargs
from corral.pipelines import node_kinds
from corral.pipelines.execution import preflight
from corral.pipelines.execution.resources import PROMPTS_AT_ONCE, NodeResources
from corral.pipelines.graph import Graph, Node, Value
from corral.protocol.schema.build import Schema
from corral.slug import slug
from corral.system import paths
from corral.system.git.worktree import repository_root

SINGLE_RUN_OPTIONS = (
    "resume",
    "fork",
    "prompt_file",
    "record_to",
    "replay",
    "output_schema",
    "cwd",
)
"""Options that make sense only for a single run."""


class BatchSpec(msgspec.Struct, kw_only=True):
    name: str
    tasks: dict[str, BatchTask]
    """By id, in their order."""
    graph: Graph
    agent: str
    model: str
    workspace: Path
    options: dict[str, Any]
    concurrency: int
    simulate: bool
    budget: float | None
    schema: Schema[Any] | None

    @property
    def digests(self) -> dict[str, str]:
        return {task.id: task.digest for task in self.tasks.values()}

    def resources(self) -> NodeResources:
        return NodeResources(
            simulate=self.simulate,
            agent=self.agent or DEFAULT_AGENT,
            model=self.model or None,
            options=cast("Any", self.options),
            processes=max(1, -(-self.concurrency // PROMPTS_AT_ONCE)),
        )

    def run_config(self, *, detached: bool) -> RunConfig:
        return RunConfig(
            folder=str(paths.home() / "batches" / self.name),
            workspace=str(self.workspace),
            simulate=self.simulate,
            agent=self.agent,
            model=self.model,
            options=as_json(cast("RunKwargs", self.options)),
            detached=detached and not self.simulate,
            at_once=self.concurrency,
        )


def build_spec(  # noqa: PLR0913
    tasks: Iterable[TaskInput] | str | os.PathLike[str],
    prompt: str,
    *,
    agent: str | None,
    schema: Schema[Any] | None,
    results: Path | None,
    name: str | None,
    concurrency: int,
    attempts: int,
    worktree: bool,
    patch: bool,
    simulate: bool,
    is_remote: bool,
    options: Mapping[str, Any],
) -> BatchSpec:
    """Check all arguments of a batch. Raises ``CallerError``."""
    if concurrency < 1:
        raise ConfigError(f"concurrency must be at least 1, got: {concurrency}")
    if attempts < 1:
        raise ConfigError(f"attempts must be at least 1, got: {attempts}")
    given = dict(options)
    budget = given.pop("max_budget_usd", None)
    if budget is not None and not budget > 0:
        raise ConfigError(f"max_budget_usd must be greater than 0, got: {budget}")
    model = str(given.pop("model", None) or "")
    workspace = workspace_path(given.pop("cwd", None))
    for key in SINGLE_RUN_OPTIONS:
        if given.get(key) is not None:
            raise ConfigError(f"{key} is not an option of a batch, only of a single run")
    timeout = given.pop("timeout", None)
    source = Path(tasks) if isinstance(tasks, str | os.PathLike) else None
    found = (
        batch_tasks.read_tasks(source)
        if source is not None
        else batch_tasks.make_tasks(cast("Iterable[TaskInput]", tasks))
    )
    schema_text = "" if schema is None else msgspec.json.encode(schema.json).decode()
    checked = batch_tasks.check_tasks(
        found, prompt, {"agent": agent or "", "model": model, "schema": schema_text}
    )
    attrs: dict[str, Value] = {"type": node_kinds.BATCH_ITEM.name, "prompt": prompt}
    chosen: dict[str, Any] = {"agent": agent, "timeout": timeout, "output_schema": schema_text}
    attrs |= {key: value for key, value in chosen.items() if value not in (None, "")}
    batch_name = _name(name, results, source)
    if worktree:
        root, commit = repository_root(workspace)
        attrs |= {"worktree": commit, "repository": str(root), "batch": batch_name, "patch": patch}
        workspace = workspace.resolve()
    elif patch:
        raise ConfigError("patch needs worktree", hint="Use --worktree (worktree=True) too.")
    spec = BatchSpec(
        name=batch_name,
        tasks={task.id: task for task in checked},
        graph=Graph(
            name=batch_name,
            attrs={"default_max_retries": attempts - 1},
            nodes={NODE: Node(id=NODE, attrs=attrs)},
        ),
        agent=agent or "",
        model=model,
        workspace=workspace,
        options=given,
        concurrency=concurrency,
        simulate=simulate,
        budget=budget,
        schema=schema,
    )
    if not is_remote:
        _check(spec)
    return spec


def _check(spec: BatchSpec) -> None:
    """Check the agent and its options, as for a pipeline with one agent node."""
    node = spec.graph.nodes[NODE]
    attrs = {**node.attrs, "type": node_kinds.CODERGEN.name, "prompt": "-"}
    graph = Graph(name=spec.name, nodes={NODE: Node(id=NODE, attrs=attrs)})
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
        return f"batch-{os.urandom(5).hex()}"
    full_path = os.path.realpath(path)
    stem = slug(path.stem, limit=30, default="batch")
    return f"{stem}-{blake2b(os.fsencode(full_path), digest_size=4).hexdigest()}"
