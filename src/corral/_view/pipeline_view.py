"""Runs of pipelines, wherever they are stored (in a database, or, if they ran in memory, only in
their run folder), and how the API shows them: the graph, the path, and the events for replay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from corral._core.terminal_text import plain
from corral._pipelines import events
from corral._pipelines.events import PipelineEvent
from corral._pipelines.execution import run_dir
from corral._pipelines.execution.run_dir import EVENTS, RunDir
from corral._pipelines.graph import Graph, from_json
from corral._pipelines.render import as_svg
from corral._pipelines.scheduler.outcome import Outcome
from corral._pipelines.scheduler.state import State
from corral._runs.log_windows import PAGE, LogFile
from corral._system import clock, fs, paths
from corral._view import live_runs
from corral._view.live_runs import KnownState, LiveRuns, state_of
from corral._view.records import (
    GraphEdge,
    GraphNode,
    GraphView,
    NotFound,
    Pending,
    PipelineCheckpoint,
    PipelineDetail,
    PipelineEventInfo,
    PipelineFacts,
    Summary,
    VisitInfo,
)
from corral.errors import ConfigError
from corral.values import decode_as

if TYPE_CHECKING:
    from corral._engine.open_questions import RunQuestion
    from corral._engine.run_list import RunOverview

IDLE = "idle"
MAX_EVENTS = 5_000
"""Events of one response."""


async def detail(found: PipelineRun, db: str | None) -> PipelineDetail:
    """One run."""
    questions = await questions_of(found, db)
    steps = [*narrate(found.graph, found.events)]
    path = _path(found, steps)
    nodes = {
        node.id: GraphNode(id=node.id, label=plain(node.label, 200), kind=node.kind, state=IDLE)
        for node in found.graph.nodes.values()
    }
    for event in steps:
        node = nodes.get(event.node or "")
        if node is not None and event.state is not None:
            node.state = event.state
            if event.type == events.StepFailed.type:
                node.reason = event.text
            elif event.type == events.StepCompleted.type:
                node.notes, node.reason = event.text, ""
    for visit in path:
        node, outcome = nodes.get(visit.node), found.visits.get(visit.visit)
        if node is None:
            continue
        node.visits += 1
        node.attempts += visit.attempts
        node.visit, node.started, node.ended = visit.visit, visit.started, visit.ended
        if outcome is not None and outcome.cost_usd is not None:
            node.cost_usd = (node.cost_usd or 0.0) + outcome.cost_usd
        if outcome is not None and outcome.tokens is not None:
            node.tokens = (node.tokens or 0) + outcome.tokens
    edges = [
        GraphEdge(
            source=edge.source, target=edge.target, label=plain(edge.label or edge.condition, 200)
        )
        for edge in found.graph.edges
    ]
    for event in steps:
        for edge in event.edges:
            edges[edge].taken += 1
    facts = {name: getattr(found, name) for name in PipelineFacts.__struct_fields__}
    detail = PipelineDetail(
        **facts,
        summary=summary_of(found, len(questions), db),
        graph=GraphView(
            svg=as_svg(found.graph, embedded=True), nodes=[*nodes.values()], edges=edges
        ),
        questions=questions,
        path=path,
    )
    detail.goal, detail.reason = plain(found.goal, 20_000), plain(found.reason, 4_000)
    detail.logs = [plain(line, 1_000) for line in found.logs]
    return detail


def visit_log(found: PipelineRun, visit: str) -> Path:
    """The events of the agent of a visit. Raises ``NotFound``."""
    known = (each for each in found.events if isinstance(each, events.StepStarted))
    if visit not in {each.visit for each in known}:
        raise NotFound(f"{found.id} has no visit {plain(visit, 100)!r}")
    return RunDir(found.folder).visit_dir(visit) / EVENTS


def narrate(graph: Graph, found: Iterable[events.PipelineEvent]) -> Iterator[PipelineEventInfo]:
    """Each event with what it changes on a drawing: the state of its node, and the edges over which
    the run came there."""
    arrived: dict[str, str] = {}
    """Nodes that have ended and that the run has not left, and the labels that they preferred: the
    last nodes of branches wait at their join."""
    forks: set[str] = set()
    before = ""
    """The node that the event before ended: what starts now follows it."""
    for event in found:
        node = event.node or ""
        info = PipelineEventInfo(
            seq=event.seq,
            ts=event.ts,
            type=event.type,
            node=event.node,
            visit=getattr(event, "visit", None),
        )
        info.state, info.text = _change(event)
        ended = ""
        match event:
            case events.StepStarted():
                # After a node; as the first of a branch; or as the join of branches that ended.
                sources = forks if not before else set(arrived) if before in forks else {before}
                info.edges = _edges_to(graph, node, {name: arrived[name] for name in sources})
                forks.discard(before)
                for name in {before, *(graph.edges[edge].source for edge in info.edges)} - forks:
                    arrived.pop(name, None)
            case events.ParallelStarted():
                forks.add(node)
                arrived[node] = ""
            case events.BranchCompleted(status="fail"):
                arrived.pop(before, None)
            case events.StepCompleted() | events.StepFailed():
                arrived[node], ended = getattr(event, "preferred_label", ""), node
            case _:
                pass
        if not isinstance(event, events.CheckpointSaved):
            before = ended
        yield info


def _change(event: events.PipelineEvent) -> tuple[str | None, str]:
    """The state of the node after an event, and what the event says."""
    match event:
        case events.StepStarted():
            return "running", event.kind
        case events.StepCompleted():
            return event.status, plain(event.notes, 2_000)
        case events.StepFailed():
            return "fail", plain(event.reason, 2_000)
        case events.StepRetrying():
            return "retry", plain(event.reason, 2_000)
        case events.InterviewStarted():
            return "waiting", plain(event.question, 2_000)
        case events.InterviewCompleted():
            return "running", plain(event.answer, 2_000)
        case events.PipelineFailed():
            return None, plain(event.reason, 2_000)
        case _:
            return None, ""


def _edges_to(graph: Graph, node: str, sources: Mapping[str, str]) -> list[int]:
    """The numbers of the edges over which a run comes from these nodes, one of each: that with the
    label that the node preferred, else the first."""
    taken: dict[str, int] = {}
    for number, edge in enumerate(graph.edges):
        if edge.target == node and edge.source in sources:
            label = sources[edge.source]
            if edge.source not in taken or (label and edge.label == label):
                taken[edge.source] = number
    return [*taken.values()]


def _path(found: PipelineRun, steps: Sequence[PipelineEventInfo]) -> list[VisitInfo]:
    """The visits in the order in which they started."""
    visits: dict[str, VisitInfo] = {}
    folder = RunDir(found.folder)
    for event in steps:
        if event.visit is None or event.node is None:
            continue
        if event.type == events.StepStarted.type:
            visits[event.visit] = VisitInfo(
                visit=event.visit,
                node=event.node,
                started=event.ts,
                has_log=fs.is_file(folder.visit_dir(event.visit) / EVENTS),
            )
        elif event.visit in visits and event.state is not None:
            visit = visits[event.visit]
            visit.status = event.state
            if event.type in (events.StepCompleted.type, events.StepFailed.type):
                visit.ended = event.ts
    for known, outcome in found.visits.items():
        if known in visits:
            visits[known].attempts = outcome.attempts
    return [*visits.values()]


LISTED = 200
"""Runs in memory that are listed."""
NEW_SECONDS = 3.0
"""A run that has written this short a time ago may have a process that has not reported yet."""
MAX_FILE = 64 * 1024 * 1024
"""Bytes of a graph or checkpoint that are read."""


class PipelineRun(PipelineFacts, kw_only=True):
    """The state of a run."""

    id: str
    status: str
    graph: Graph
    events: list[PipelineEvent]
    """Those of the run itself, without those of its agents."""
    has_ended: bool = False
    visits: dict[str, Outcome] = msgspec.field(default_factory=dict[str, Outcome])
    """The outcome of visits that have ended, by their ids."""
    command: str = "pipeline"
    """The commands of ``corral`` that continue it: ``pipeline`` or ``workflow``."""
    state: State | None = None
    """What its database says; None for a run in memory."""
    cost_usd: float = 0.0
    tokens: int = 0
    created: float = 0.0
    ended: float | None = None


async def read(run: str, db: str | None, live: LiveRuns | None = None) -> PipelineRun:
    """One run. ``live`` are the running ones, with their folders. Raises ``NotFound``."""
    if db is None:
        running = None if live is None else live.runs.get(("pipeline", run))
        default = paths.home() / "runs" / run_dir.file_name(run)
        folder = Path(running.folder) if running and running.folder else default
        found = await asyncio.to_thread(read_folder, run, folder, is_live=running is not None)
        if found is not None:
            if running is not None:
                found.budgets, found.workspace = [*running.budgets], running.cwd
                found.status = running.state if running.state == "paused" else found.status
            return found
    from corral._engine.dbos.database import is_installed

    if not is_installed():
        raise NotFound(f"there is no run {plain(run, 100)!r}", hint="pip install 'corral[engine]'.")
    from corral._engine import query

    try:
        details = await query.show(run, db=db)
    except ConfigError as error:
        raise NotFound(error.message, hint=error.hint) from error
    config, output = details.run_input.config, details.output
    return PipelineRun(
        id=details.id,
        status=details.status,
        graph=details.graph,
        events=[event for event in details.events if isinstance(event, PipelineEvent)],
        folder=details.folder,
        has_ended=output is not None,
        goal=config.goal or details.graph.goal,
        workspace=details.workspace,
        branch=config.tree.branch if config.tree is not None else "",
        forked_from=details.run_input.forked_from,
        reason=output.reason if output is not None else "",
        logs=details.state.logs,
        visits=details.visits,
        budgets=[] if details.budget is None else [details.budget.as_state()],
        command="pipeline" if details.run_input.program is None else "workflow",
        state=details.state,
        cost_usd=details.state.cost_usd,
        tokens=details.state.tokens,
        created=details.created,
        ended=details.ended,
    )


def checkpoint_of(found: PipelineRun) -> PipelineCheckpoint:
    """What a run has done so far. Blocking. Raises ``NotFound``."""
    folder = RunDir(found.folder)
    try:
        if found.state is not None:
            return decode_as(folder.encode(found.state), PipelineCheckpoint)
        return decode_as(_content(folder.path / run_dir.CHECKPOINT), PipelineCheckpoint)
    except (OSError, msgspec.MsgspecError) as error:
        raise NotFound(f"{found.id} has no checkpoint") from error


async def questions_of(found: PipelineRun, db: str | None) -> list[Pending]:
    """The open questions of a run. One in memory asks where it was started."""
    if found.has_ended or not found.durable:
        return []
    from corral._engine import open_questions

    asked = await open_questions.questions(found.id, db=db)
    return [question_of(found.id, each, db) for each in asked if not each.answered]


def question_of(run: str, asked: RunQuestion, db: str | None) -> Pending:
    """An open question of a pipeline."""
    question = asked.question
    return Pending(
        kind="question",
        run_kind="pipeline",
        run_id=run,
        request_id=asked.id,
        title=question.node,
        text=plain(question.text, 20_000),
        choices=[choice.label for choice in question.choices],
        node=question.node,
        deadline=question.deadline,
        db=db,
    )


def pipeline_summary(
    run: RunOverview | PipelineRun, title: str, asks: int, db: str | None
) -> Summary:
    """A run of a pipeline in the list."""
    last = modified_at(Path(run.folder) / EVENTS)
    known = KnownState(
        status=run.status,
        questions=asks,
        live=run.status in ("running", "paused"),
        live_state=run.status if run.status in ("queued", "paused") else "",
    )
    shown_state = state_of(known, clock.now())
    return Summary(
        kind="pipeline",
        id=run.id,
        db=db,
        title=plain(title, 200),
        cwd=run.workspace or run.folder,
        state=shown_state.state,
        state_text=shown_state.text,
        created=run.created,
        updated=max(run.ended or 0.0, last, run.created),
        last_event=last or run.ended,
        tokens=run.tokens or None,
        cost_usd=run.cost_usd or None,
        cost_source="computed" if run.cost_usd else "unknown",
        live=run.status in ("running", "paused"),
        pending=asks,
    )


def summary_of(found: PipelineRun, asks: int, db: str | None) -> Summary:
    """A run in the list, with what only its details have."""
    summary = pipeline_summary(found, found.goal or found.graph.name, asks, db)
    if found.reason and summary.state != "success":
        summary.state_text = plain(f"{summary.state}: {found.reason}", 400)
    return summary


# Runs in memory. Blocking.


class _Checkpoint(msgspec.Struct, kw_only=True):
    """What is read of ``checkpoint.json``."""

    node_outcomes: dict[str, Outcome] = {}
    logs: list[str] = []
    cost_usd: float = 0.0
    tokens: int = 0


def read_folder(run: str, folder: Path, *, is_live: bool) -> PipelineRun | None:
    """The run of a folder; None if it is none of a run in memory."""
    try:
        graph = from_json(_content(folder / run_dir.GRAPH))
    except (OSError, msgspec.MsgspecError):
        return None
    found = _events(folder / run_dir.EVENTS)
    first, last = (found[0], found[-1]) if found else (None, None)
    has_ended = isinstance(last, events.PipelineCompleted | events.PipelineFailed)
    try:
        saved = decode_as(_content(folder / run_dir.CHECKPOINT), _Checkpoint)
    except (OSError, msgspec.MsgspecError):
        saved = _Checkpoint()
    # What an earlier visit of a node cost is not stored.
    visits: dict[str, Outcome] = {}
    last_visits: dict[str, str] = {}
    for event in found:
        if isinstance(event, events.StepCompleted | events.StepFailed):
            visits[event.visit] = Outcome(attempts=event.attempts)
            last_visits[event.node or ""] = event.visit
    for node, visit in last_visits.items():
        if node in saved.node_outcomes:
            visits[visit] = saved.node_outcomes[node]
    status = "running" if is_live else "interrupted"
    if isinstance(last, events.PipelineCompleted):
        status = "success"
    elif isinstance(last, events.PipelineFailed):
        status = "cancelled" if last.cancelled else "fail"
    return PipelineRun(
        id=run,
        status=status,
        graph=graph,
        events=found,
        folder=str(folder),
        durable=False,
        has_ended=has_ended,
        goal=graph.goal,
        reason=getattr(last, "reason", "") if has_ended else "",
        logs=saved.logs,
        visits=visits,
        cost_usd=saved.cost_usd,
        tokens=saved.tokens,
        created=first.ts if first is not None else 0.0,
        ended=last.ts if last is not None and has_ended else None,
    )


def _content(path: Path) -> bytes:
    """The content of a file. Raises ``OSError``, also for one that is too large."""
    with path.open("rb") as file:
        if fs.status(file.fileno()).st_size > MAX_FILE:
            raise OSError(f"{path} is too large")
        return file.read()


def _events(path: Path) -> list[PipelineEvent]:
    """The events of a run, as far as they can be read."""
    found: list[PipelineEvent] = []
    try:
        with LogFile(path) as log:
            for number in range(min(log.pages, MAX_FILE // PAGE)):
                for line in log.page(number):
                    try:
                        event = events.from_json(line.data)
                    except msgspec.MsgspecError:
                        continue
                    if isinstance(event, PipelineEvent):
                        found.append(event)
    except OSError:
        pass
    return found


def file_stamp(path: Path) -> tuple[float, float]:
    """When a file was last written, and its size; 0 if it does not exist."""
    try:
        status = fs.status(path)
    except OSError:
        return 0.0, 0.0
    return status.st_mtime, float(status.st_size)


def modified_at(path: Path) -> float:
    """When a file was last written; 0 if it does not exist."""
    return file_stamp(path)[0]


class FolderRuns:
    """The list of the runs in memory. A folder that has not changed is not read again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, bool, Summary | None]] = {}
        """Name of a folder -> when its events were last written, whether it was running, and the
        run; None: it did not run in memory."""

    def read(self, live: LiveRuns) -> list[Summary]:
        """The newest runs. Blocking."""
        home = paths.home() / "runs"
        try:
            # By the time in the name (``build-20261117-083601-689e``), not by the pipeline.
            names = sorted(
                fs.list_names(home), key=lambda name: name.rsplit("-", 3)[1:], reverse=True
            )
        except OSError:
            return []
        summaries: list[Summary] = []
        for name in names:
            running = live.runs.get(("pipeline", name))
            summary = self._read(home / name, is_live=running is not None)
            if summary is not None and running is not None:
                now = live_runs.summary_of(running, summary.pending)
                state, text = now.state, now.state_text
                summary = replace(summary, cwd=now.cwd, state=state, state_text=text)
            if summary is not None:
                summaries.append(summary)
            if len(summaries) == LISTED:
                break
        return summaries

    def _read(self, folder: Path, *, is_live: bool) -> Summary | None:
        modified = modified_at(folder / run_dir.EVENTS)
        is_live = is_live or clock.now() - modified < NEW_SECONDS
        known = self._known.get(folder.name)
        if known is not None and (known[2] is None or known[:2] == (modified, is_live)):
            return known[2]
        run = read_folder(folder.name, folder, is_live=is_live)
        summary = None
        if run is not None:
            summary = summary_of(run, 0, None)
            summary.updated = max(summary.updated, modified)
        if run is not None or modified:
            self._known[folder.name] = modified, is_live, summary
        return summary
