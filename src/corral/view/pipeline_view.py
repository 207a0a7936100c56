"""Runs of pipelines as the API shows them: the graph, the path, and the events for replay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from corral.pipelines import events
from corral.pipelines.execution.run_dir import EVENTS, RunDir
from corral.pipelines.graph import Graph
from corral.pipelines.render.svg import as_svg
from corral.pipelines.scheduler.outcome import Outcome
from corral.terminal_text import plain
from corral.view.pipeline_runs import PipelineRun, questions_of, summary_of
from corral.view.records import (
    GraphEdge,
    GraphNode,
    GraphView,
    NotFound,
    PipelineDetail,
    PipelineEventInfo,
    VisitInfo,
)

IDLE = "idle"
MAX_EVENTS = 5_000
"""Events of one response."""


async def detail(found: PipelineRun, db: str | None) -> PipelineDetail:
    """One run."""
    questions = await questions_of(found, db)
    steps = [*narrate(found.graph, found.events)]
    path = _path(found, steps)
    edges = [
        GraphEdge(
            source=edge.source, target=edge.target, label=plain(edge.label or edge.condition, 200)
        )
        for edge in found.graph.edges
    ]
    for event in steps:
        if event.edge is not None:
            edges[event.edge].taken += 1
    return PipelineDetail(
        summary=summary_of(found, len(questions), db),
        graph=GraphView(
            svg=as_svg(found.graph, embedded=True),
            nodes=_nodes(found, steps, path),
            edges=edges,
        ),
        questions=questions,
        path=path,
        durable=found.durable,
        goal=plain(found.goal, 20_000),
        folder=found.folder,
        workspace=found.workspace,
        branch=found.branch,
        forked_from=found.forked_from,
        reason=plain(found.reason, 4_000),
        logs=[plain(line, 1_000) for line in found.logs],
    )


def visit_log(found: PipelineRun, visit: str) -> Path:
    """The events of the agent of a visit. Raises ``NotFound``."""
    known = (each for each in found.events if isinstance(each, events.StepStarted))
    if visit not in {each.visit for each in known}:
        raise NotFound(f"{found.id} has no visit {plain(visit, 100)!r}")
    return RunDir(found.folder).visit_dir(visit) / EVENTS


def narrate(graph: Graph, found: Iterable[events.PipelineEvent]) -> Iterator[PipelineEventInfo]:
    """Each event with what it changes on a drawing: the state of its node, and the edge that led
    there."""
    ended: dict[str, tuple[int, str]] = {}
    """Node -> when it last ended, and the label that it preferred."""
    for number, event in enumerate(found):
        info = PipelineEventInfo(
            seq=event.seq,
            ts=event.ts,
            type=event.type,
            node=event.node,
            visit=getattr(event, "visit", None),
        )
        match event:
            case events.StepStarted():
                info.state, info.text = "running", event.kind
                info.edge = _edge_to(graph, event.node or "", ended)
            case events.StepCompleted():
                info.state, info.text = event.status, plain(event.notes, 2_000)
                ended[event.node or ""] = number, event.preferred_label
            case events.StepFailed():
                info.state, info.text = "fail", plain(event.reason, 2_000)
                ended[event.node or ""] = number, ""
            case events.StepRetrying():
                info.state, info.text = "retry", plain(event.reason, 2_000)
            case events.InterviewStarted():
                info.state, info.text = "waiting", plain(event.question, 2_000)
            case events.InterviewCompleted():
                info.state, info.text = "running", plain(event.answer, 2_000)
            case events.PipelineFailed():
                info.text = plain(event.reason, 2_000)
            case _:
                pass
        yield info


def _edge_to(graph: Graph, node: str, ended: dict[str, tuple[int, str]]) -> int | None:
    """The number of the edge over which a run came to a node: from the node before it that ended
    last, over the edge with the label that this one preferred."""
    best: tuple[int, bool] | None = None
    found: int | None = None
    for number, edge in enumerate(graph.edges):
        if edge.target != node or edge.source not in ended:
            continue
        at, label = ended[edge.source]
        rank = at, bool(label) and edge.label == label
        if best is None or rank > best:
            best, found = rank, number
    return found


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
                has_log=(folder.visit_dir(event.visit) / EVENTS).is_file(),
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


def _nodes(
    found: PipelineRun, steps: Sequence[PipelineEventInfo], path: Sequence[VisitInfo]
) -> list[GraphNode]:
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
        if visit.node in nodes:
            _add_visit(nodes[visit.node], visit, found.visits.get(visit.visit))
    return [*nodes.values()]


def _add_visit(node: GraphNode, visit: VisitInfo, outcome: Outcome | None) -> None:
    node.visits += 1
    node.attempts += visit.attempts
    node.visit, node.started, node.ended = visit.visit, visit.started, visit.ended
    if outcome is not None and outcome.cost_usd is not None:
        node.cost_usd = (node.cost_usd or 0.0) + outcome.cost_usd
    if outcome is not None and outcome.tokens is not None:
        node.tokens = (node.tokens or 0) + outcome.tokens
