"""``corral.pipelines.run`` and its kin: a pipeline from its file to its end.

Durable unless told otherwise: what is done is never done twice, whatever dies meanwhile.
In memory (``durable=False``) nothing but the run folder is left, and no engine is needed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

import msgspec

from corral.agents import DEFAULT_AGENT
from corral.errors import ConfigError, ProcessFailed
from corral.events import Json
from corral.io import folders
from corral.keywords import Options
from corral.pipelines import loading, nested, preflight
from corral.pipelines.desk import Desk
from corral.pipelines.events import RunEvent
from corral.pipelines.graph import Graph
from corral.pipelines.linting import Rule
from corral.pipelines.orders import Answer, Question
from corral.pipelines.outcome import Outcome
from corral.pipelines.people import Interviewer
from corral.pipelines.transforms import Transform

if TYPE_CHECKING:
    from corral.engine.journal import Closed
    from corral.engine.looking import Overview, Shown
    from corral.sessions.broker import Asker

Pipeline = str | os.PathLike[str] | Graph


class PipelineResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    run: str
    """Its id."""
    status: Literal["success", "fail", "cancelled", "waiting"]
    """``waiting``: for people, and there was nobody to ask; it can be answered and resumed."""
    reason: str = ""
    context: dict[str, Json] = {}
    completed: list[str] = []
    """Nodes, in the order of their ends."""
    outcomes: dict[str, Outcome] = {}
    questions: list[Question] = []
    """Where it waits."""
    cost_usd: float = 0.0
    tokens: int = 0
    folder: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "success"

    @property
    def text(self) -> str:
        """The last answer of an agent or a model, whole where the run folder is at hand."""
        for node in reversed(self.completed):
            try:
                return (Path(self.folder) / node / "response.md").read_text("utf-8")
            except (OSError, UnicodeDecodeError):
                continue
        return str(self.context.get("last_response", ""))


def prepare(
    pipeline: Pipeline,
    *,
    values: Mapping[str, Json] | None = None,
    goal: str | None = None,
    model: str | None = None,
    workspace: Path,
    transforms: Iterable[Transform] = (),
    rules: Iterable[Rule] = (),
) -> Graph:
    """The graph that would run: read, transformed, linted, its children found and linted.
    Raises ``ConfigError``."""
    if isinstance(pipeline, Graph):
        graph = pipeline  # as it is: its maker has seen to it
    else:
        graph = loading.load(
            pipeline, values=values, goal=goal, model=model, transforms=transforms, rules=rules
        )
        if not (isinstance(pipeline, str) and "{" in pipeline):
            graph = nested.beside(graph, Path(pipeline).parent)
    if not workspace.is_dir():
        raise ConfigError(f"the workspace {str(workspace)!r} is no folder")
    nested.check(graph, workspace)
    return graph


async def run(
    pipeline: Pipeline,
    *,
    goal: str | None = None,
    values: Mapping[str, Json] | None = None,
    agent: str | None = None,
    model: str | None = None,
    workspace: str | os.PathLike[str] | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    simulate: bool = False,
    people: Interviewer | None = None,
    ask: Asker | None = None,
    on_event: Callable[[RunEvent], None] | None = None,
    on_start: Callable[[str, Path], None] | None = None,
    durable: bool = True,
    db: str | None = None,
    queue: str | None = None,
    imports: Sequence[str] = (),
    source: str = "",
    transforms: Iterable[Transform] = (),
    rules: Iterable[Rule] = (),
    check: bool = False,
    **options: Unpack[Options],
) -> PipelineResult:
    """Run a pipeline (a file, a text, a graph) to its end, or to where it waits for people.

    ``people`` answers the gates; without anybody a durable run that comes to one returns as
    ``waiting``. ``queue`` leaves the work to the workers of that queue. ``options`` are those
    of ``corral.run``, for every agent in it; ``ask`` answers their questions, in memory only.
    ``on_start`` is told the run's id and folder. With ``check`` anything but a success is
    raised. What is wrong with the call or the pipeline is raised in any case, before anything
    is spent.
    """
    place = Path(workspace or ".").absolute()
    graph = prepare(
        pipeline,
        values=values,
        goal=goal,
        model=model,
        workspace=place,
        transforms=transforms,
        rules=rules,
    )
    desk = Desk(
        simulate=simulate, agent=agent or DEFAULT_AGENT, model=model, options=options, ask=ask
    )
    if queue is None:
        preflight.check(graph, desk, place, values or {})
    name = new_id(graph.name)
    folder = Path(run_dir).absolute() if run_dir is not None else folders.home() / "runs" / name
    _free(folder)
    if durable:
        if ask is not None:
            raise ConfigError("ask= answers only where the run is in memory: durable=False")
        adapter.require()
        setting = Setting(
            folder=str(folder),
            workspace=str(place),
            simulate=simulate,
            agent=agent or "",
            model=model or "",
            options=_as_json(options),
            imports=tuple(imports),
        )
        result = await kept.begin(...)
    else:
        result = await _in_memory(...)
    if check and not result.ok:
        raise ProcessFailed(f"the run {result.run} ended as {result.status}: {result.reason}")
    return result
