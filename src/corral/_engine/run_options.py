"""The options of a run of a pipeline or a workflow, and what is stored of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from corral._core.lookup import nearest
from corral._system import fs
from corral.errors import ConfigError
from corral.options import KNOWN
from corral.run_kwargs import RunKwargs
from corral.values import Json, as_object, is_sequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from corral._core.spending import LimitKwargs
    from corral._engine.follow_run import OnEvent, OnStart
    from corral._metering.budget import Budget
    from corral._pipelines.execution.interviewers import Interviewer
    from corral._pipelines.linter.finding import Rule
    from corral._pipelines.simulation import Script, SimulateMode
    from corral._pipelines.transforms import Transform
    from corral._sessions.permissions import Asker


class WorkflowKwargs(RunKwargs, total=False):
    """The keyword options of ``corral.workflows.run``: how the run is executed, and the options of
    ``corral.run`` for each of its agents. The limits among those are for all model calls of the run
    together, as the attributes of a graph: the smaller one holds.

    ::

        options: workflows.WorkflowKwargs = {"policy": "edits", "task": {"max_cost": 0.5}}
        workflows.run_sync(fix, {"issue": "The login fails"}, **options)
    """

    agent: str | None
    """The default agent of its nodes or steps."""
    task: LimitKwargs
    """The limits of each node or step, within those of the run."""
    repository: str | os.PathLike[str] | None
    """A directory, a bare repository or a URL: the run works in its own worktree, and its changes
    become a branch there (``result.branch``)."""
    commit: str | None
    """Where that worktree starts."""
    artifacts: str
    """A URL of any fsspec file system, to which the run's ``artifacts/`` are uploaded."""
    run_id: str | None
    """The id of the run, a new one (letters, digits, ``.``, ``_`` and ``-``)."""
    run_dir: str | os.PathLike[str] | None
    """The run directory, new or empty."""
    simulate: SimulateMode
    """No agent is started; ``"all"``: no command runs, no request is sent and no file is used
    either, and gates take their default or first choice."""
    durable: bool
    """Whether the run is stored, and can be resumed: yes, if not given."""
    db: str | None
    """In which database it is stored."""
    queue: str | None
    """The workers of this queue execute the run."""
    imports: Sequence[str]
    """Modules that register node kinds."""
    interviewer: Interviewer | None
    """Answers human gates; without it a durable run that reaches one returns as ``waiting``."""
    ask: Asker | None
    """Answers permission requests of agents, only in memory."""
    on_event: OnEvent | None
    """Called with each event."""
    on_start: OnStart | None
    """Called with the run's id and directory."""
    budget: Budget | None
    """A ``Budget`` that other runs share; only in memory."""
    check: bool
    """Whether any result but a success raises ``ProcessFailed``."""


class PipelineKwargs(WorkflowKwargs, total=False):
    """The keyword options of ``corral.pipelines.run``.

    ::

        options: pipelines.PipelineKwargs = {"goal": "Version 2.4", "max_cost": 2.0}
        pipelines.run_sync("release.dot", **options)
    """

    goal: str | None
    """The goal of the pipeline, instead of its own."""
    values: Mapping[str, Json] | None
    """Values of its context."""
    script: Script | None
    """What the visits of nodes give in a simulation: an object or a JSON file, see
    ``pipelines.simulation``."""
    source: str
    """The pipeline's file, if a text or a graph is given."""
    transforms: Iterable[Transform]
    """Additional transforms."""
    rules: Iterable[Rule]
    """Additional lint rules."""


def split_options(options: RunKwargs, kind: type[RunKwargs]) -> tuple[dict[str, Any], RunKwargs]:
    """The options that this kind of call has of its own, and those of each of its runs."""
    names = kind.__annotations__.keys() - RunKwargs.__annotations__.keys()
    own = {name: value for name, value in options.items() if name in names}
    run = {name: value for name, value in options.items() if name not in names}
    return own, cast("RunKwargs", run)


def check_names(options: WorkflowKwargs, kind: type[WorkflowKwargs]) -> None:
    """Raises ``ConfigError`` for an option that this kind of run does not have."""
    for name in sorted(options.keys() - kind.__annotations__.keys()):
        advice = nearest(name, kind.__annotations__, "`corral docs configuration` lists all")
        raise ConfigError(f"unknown option {name!r}: {advice}")


def options_of_agents(options: WorkflowKwargs) -> RunKwargs:
    """The options of ``corral.run`` among those of a run."""
    given = {key: value for key, value in options.items() if key in KNOWN and value is not None}
    return cast("RunKwargs", given)


def workspace_path(cwd: str | os.PathLike[str] | None) -> Path:
    """The directory in which agents and commands work. Raises ``ConfigError``."""
    place = Path(cwd or ".").absolute()
    if not fs.is_dir(place):
        raise ConfigError(f"the workspace {str(place)!r} is not a directory")
    return place


def with_active_span(options: RunKwargs) -> RunKwargs:
    """The options, which name the caller's active span if spans are sent: the nodes and tasks may
    run in other processes."""
    if options.get("otel") is not None:
        from corral._telemetry import trace_context

        options["env"] = trace_context.with_parent(options.get("env") or {})
    return options


def as_json(options: RunKwargs | None) -> dict[str, Json]:
    """The options as JSON, to store them with the run. Raises ``ConfigError``."""
    given: dict[str, object] = {**(options or {})}
    verify = given.get("verify") or ()
    if not all(isinstance(each, str) for each in (verify if is_sequence(verify) else (verify,))):
        raise ConfigError(
            "a durable run can be verified with commands only",
            hint="Give them as text: verify='pytest -q'.",
        )
    try:
        return as_object(msgspec.to_builtins(options or {}, enc_hook=os.fspath))
    except (TypeError, NotImplementedError) as error:
        raise ConfigError(f"a durable run cannot store this option: {error}") from error
