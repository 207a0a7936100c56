"""Which paths a run of a graph can take, and which nodes no path reaches.

A node is tried with every outcome, label and value that its edges, or those of the decisions behind
it, ask about. The scheduler's own routing says where each of them leads. So a path is what a run
does, and its ``script`` makes a simulated run take it (``pipelines.simulation``).

The number of all paths can grow exponentially, and loops have no end. So the paths are those that
together take every step: each is the shortest one for a step that no earlier path takes. A path
goes through one branch of a parallel node; the other branches of that run succeed. Failures that
end the run are not paths: they are listed as ``fatal``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from corral._pipelines import conditions, node_kinds
from corral._pipelines.conditions import Clause
from corral._pipelines.graph import Edge, Graph, Node
from corral._pipelines.scheduler import human_gate
from corral._pipelines.scheduler.joins import Joins
from corral._pipelines.scheduler.outcome import normalize_status
from corral._pipelines.scheduler.routing import Route, Routes, is_decision
from corral._pipelines.simulation import ScriptedVisit
from corral.values import Json

MAX_PLACES = 20_000
"""Nodes, each with the goal gates that have failed before: their number can grow exponentially."""
REPORTED = ("outcome", "preferred_label", "failure_class")
"""Keys that a node sets by its report, not by its context updates."""
OF_ENGINE = ("graph.", "internal.", "last_stage", "current_node")
"""Keys that only the engine sets."""


class Step(NamedTuple):
    """One way to go on from a node."""

    source: str
    visit: ScriptedVisit
    nodes: tuple[str, ...]
    """The decisions on the way, and the next node."""

    @property
    def key(self) -> tuple[str, ...]:
        return (self.source, self.visit.outcome, *self.nodes)

    @property
    def shown(self) -> str:
        """What makes the run go this way."""
        outcome = "" if self.visit.outcome == "success" else self.visit.outcome
        values = (f"{key}={value}" for key, value in self.visit.context.items() if value != "")
        return ", ".join(part for part in (outcome, self.visit.label, *values) if part)


class Path(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    nodes: tuple[str, ...]
    end: str = "success"
    """``success``, or ``fail`` if a goal gate is not satisfied at the exit."""
    text: str = ""
    """The nodes, with what makes the run go on from them."""
    script: dict[str, tuple[ScriptedVisit, ...]] = {}
    """The script of a simulated run that takes this path."""
    values: dict[str, Json] = {}
    """Values that the run must be given (``--set``)."""


class GraphPaths(msgspec.Struct, frozen=True, kw_only=True):
    paths: list[Path]
    complete: bool
    """False: there are more paths."""
    unreached: list[str]
    """Nodes that no path reaches."""
    fatal: list[str]
    """Nodes whose failure ends the run."""
    stuck: list[str]
    """Nodes from which no edge leads on if none of the conditions is true: the run fails."""


def find_paths(graph: Graph) -> GraphPaths:
    """Raises ``ConditionError`` if a condition is invalid. The graph must have one start."""
    finder = _Finder(graph)
    start = next(node.id for node in graph.of_kind(node_kinds.START.name))
    reached, todo = {start}, [start]
    while todo:
        for step in finder.steps(todo.pop()):
            todo += {step.nodes[-1]} - reached
            reached |= {*step.nodes}
        if not todo:  # from an exit, unsatisfied goal gates may lead back
            targets = {finder.gate_target(name) for name in reached} - {""}
            todo, reached = [*(targets - reached)], reached | targets
    reached |= finder.passed
    paths, complete = finder.find_shortest(start)
    return GraphPaths(
        paths=paths,
        complete=complete,
        unreached=[name for name in graph.nodes if name not in reached],
        fatal=[name for name in graph.nodes if name in finder.fatal],
        stuck=[name for name in graph.nodes if name in finder.stuck],
    )


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._routes = Routes(graph)
        self._steps: dict[str, list[Step]] = {}
        self._in_branch = _nodes_in_branches(graph)
        self.passed: set[str] = set()
        """Decisions from which no edge leads on."""
        self.fatal: set[str] = set()
        self.stuck: set[str] = set()

    def steps(self, name: str) -> list[Step]:
        if name not in self._steps:
            self._steps[name] = list(self._find_steps(self._graph.nodes[name]))
        return self._steps[name]

    def gate_target(self, name: str) -> str:
        """Where an exit leads back to if this goal gate is not satisfied."""
        node = self._graph.nodes[name]
        return self._routes.retry_target(node) if node.is_true("goal_gate") else ""

    def _find_steps(self, node: Node) -> Iterator[Step]:
        if node.kind == node_kinds.EXIT.name:
            return
        if node.kind == node_kinds.PARALLEL.name:
            for edge in self._graph.edges_from(node.id):
                yield Step(node.id, ScriptedVisit(), (edge.target,))
            return
        found: set[tuple[tuple[str, ...], bool]] = set()
        is_gate = node.is_true("goal_gate")  # then a failure matters at the exit
        for visit in self._visits(node):
            nodes = self._follow(node, visit)
            way = nodes, is_gate and visit.outcome == "fail"
            if nodes and way not in found:
                found.add(way)
                yield Step(node.id, visit, nodes)

    def _follow(self, node: Node, visit: ScriptedVisit) -> tuple[str, ...]:
        """The nodes that follow until one that does something. Empty: the run ends."""
        context: dict[str, Json] = {
            **{f"graph.{key}": value for key, value in self._graph.attrs.items()},
            **visit.context,
            "outcome": visit.outcome,
            "preferred_label": visit.label,
            "failure_class": visit.failure_class,
            "last_stage": node.id if node_kinds.find(node.kind).works else "",
        }
        has_failed, label = visit.outcome == "fail", visit.label
        suggested: tuple[str, ...] = ()
        if node.kind == node_kinds.WAIT_HUMAN.name and visit.label:
            offered = human_gate.choices(self._graph.edges_from(node.id))
            if choice := human_gate.find_choice(offered, visit.label):
                suggested = (choice.target,)
                context |= human_gate.outcome_of_choice(choice).context_updates
        nodes: list[str] = []
        while True:
            route: Route | None
            if has_failed and not is_decision(node):
                route = self._routes.choose_failed(
                    node, context, label, suggested, in_branch=node.id in self._in_branch
                )
            else:
                edge = self._routes.choose(node, context, label, suggested)
                route = None if edge is None else Route(edge.target, edge)
            if route is None or route.target in nodes:
                if not has_failed and self._graph.edges_from(node.id):
                    self.stuck.add(node.id)
                elif has_failed and node.id not in self._in_branch:  # there it ends the branch
                    self.fatal.add(node.id)
                self.passed.update(nodes)
                return ()
            nodes.append(route.target)
            if route.edge is not None and route.edge.restarts:
                context, has_failed, label = {}, False, ""
            node = self._graph.nodes[route.target]
            if not is_decision(node):
                return tuple(nodes)

    def _visits(self, node: Node) -> Iterator[ScriptedVisit]:
        """What a visit of the node can give, as far as edges ask about it."""
        edges = self._edges_behind(node)
        compiled = [
            condition
            for edge in edges
            if (condition := conditions.edge_condition(self._graph, edge)) is not None
        ]
        keys = (
            clause.key for condition in compiled for clause in conditions.clauses(condition.tree)
        )
        names = {key.removeprefix("context.") for key in keys}
        names -= {*REPORTED, *(name for name in names if name.startswith(OF_ENGINE))}
        blank: dict[str, Json] = dict.fromkeys(sorted(names), "")
        if node.kind == node_kinds.WAIT_HUMAN.name:
            for choice in human_gate.choices(self._graph.edges_from(node.id)):
                yield ScriptedVisit(label=choice.label)
            return
        yield ScriptedVisit(context=blank)
        has_report = node.kind != node_kinds.START.name
        labels = dict.fromkeys(edge.label for edge in edges if edge.label and not edge.condition)
        for label in labels if has_report else ():
            yield ScriptedVisit(label=label, context=blank)
        for condition in compiled:
            for clauses in conditions.alternatives(condition.tree):
                visit = _visit_for(clauses, blank)
                if has_report or (visit.outcome, visit.label) == ("success", ""):
                    yield visit
        if has_report:
            yield ScriptedVisit(outcome="fail", context=blank)

    def _edges_behind(self, node: Node) -> list[Edge]:
        """The edges of a node, and of the decisions that follow it."""
        edges = list(self._graph.edges_from(node.id))
        decisions: set[str] = set()
        for edge in edges:  # the list grows in the loop
            target = self._graph.nodes.get(edge.target)
            if target is not None and is_decision(target) and target.id not in decisions:
                decisions.add(target.id)
                edges += self._graph.edges_from(target.id)
        return edges

    def find_shortest(self, start: str) -> tuple[list[Path], bool]:
        """Paths that take every step from which the run can end, and whether these are all."""
        first = _Place(start, ())
        ways: dict[_Place, list[tuple[Step, _Place]]] = {}
        before: _Links = {first: None}
        todo = deque([first])
        while todo and len(before) < MAX_PLACES:
            place = todo.popleft()
            ways[place] = [(step, _after(self._graph, place, step)) for step in self._leave(place)]
            for step, following in ways[place]:
                if following not in before:
                    before[following] = place, step
                    todo.append(following)
        ends = [
            place
            for place in ways
            if not self._graph.edges_from(place.node) and not self._leave(place)
        ]
        to_end = _steps_to_end(ways, ends)
        paths: list[Path] = []
        covered: set[tuple[str, ...]] = set()
        for place, leaving in ways.items():
            for step, following in leaving:
                if step.key not in covered and following in to_end:
                    taken = [*_chain(before, place)[::-1], step, *_chain(to_end, following)]
                    covered.update(each.key for each in taken)
                    paths.append(_path_of(start, taken, _end_of(self._graph, taken)))
        return paths, not todo

    def _leave(self, place: _Place) -> list[Step]:
        """The steps from a place; from an exit, back to what an unsatisfied goal gate names."""
        if self._graph.nodes[place.node].kind == node_kinds.EXIT.name and place.unsatisfied:
            target = self.gate_target(place.unsatisfied[0])
            return [Step(place.node, ScriptedVisit(), (target,))] if target else []
        return self.steps(place.node)


class _Place(NamedTuple):
    """Where a run is, and which goal gates have failed so far."""

    node: str
    unsatisfied: tuple[str, ...]


def _after(graph: Graph, place: _Place, step: Step) -> _Place:
    unsatisfied = place.unsatisfied
    if graph.nodes[step.source].is_true("goal_gate"):
        others = tuple(name for name in unsatisfied if name != step.source)
        unsatisfied = (*others, step.source) if step.visit.outcome == "fail" else others
    return _Place(step.nodes[-1], unsatisfied)


_Links: TypeAlias = dict[_Place, tuple[_Place, Step] | None]
"""Place -> the next place on the way to the start or to an end, and the step between them."""


def _chain(links: _Links, place: _Place) -> list[Step]:
    steps: list[Step] = []
    while (link := links[place]) is not None:
        place = link[0]
        steps.append(link[1])
    return steps


def _steps_to_end(ways: dict[_Place, list[tuple[Step, _Place]]], ends: list[_Place]) -> _Links:
    """The shortest way from each place to the end of a run."""
    into: dict[_Place, list[tuple[_Place, Step]]] = {}
    for place, steps in ways.items():
        for step, following in steps:
            into.setdefault(following, []).append((place, step))
    to_end: _Links = dict.fromkeys(ends)
    todo = deque(to_end)
    while todo:
        following = todo.popleft()
        for place, step in into.get(following, ()):
            if place not in to_end:
                to_end[place] = following, step
                todo.append(place)
    return to_end


def _nodes_in_branches(graph: Graph) -> set[str]:
    inside: set[str] = set()
    joins = Joins(graph)
    for node in graph.of_kind(node_kinds.PARALLEL.name):
        heads = [edge.target for edge in graph.edges_from(node.id)]
        behind = joins.section(node.id, heads, frozenset()).behind
        todo = [head for head in heads if head not in behind]
        while todo:
            name = todo.pop()
            if name not in inside:
                inside.add(name)
                todo += [
                    edge.target for edge in graph.edges_from(name) if edge.target not in behind
                ]
    return inside


def _visit_for(clauses: tuple[Clause, ...], blank: dict[str, Json]) -> ScriptedVisit:
    """A visit after which these clauses are true, if that is possible."""
    values: dict[str, Json] = {}
    for clause in clauses:
        values.setdefault(clause.key.removeprefix("context."), _value_for(clause))
    outcome, label, failure_class = (str(values.pop(key, "")) for key in REPORTED)
    values = {key: value for key, value in values.items() if key in blank}
    outcome = normalize_status(outcome) or "success"
    if failure_class or outcome == "retry":  # after its retries it has failed
        outcome = "fail"
    return ScriptedVisit(
        outcome=outcome, label=label, context={**blank, **values}, failure_class=failure_class
    )


def _value_for(clause: Clause) -> Json:
    """A value of its key for which the clause is true."""
    key, literal = clause.key.removeprefix("context."), clause.literal
    if literal is None:
        return "" if clause.negated else "true"
    if clause.operator in ("<", "<=", ">", ">="):
        try:
            number = float(literal)
        except ValueError:
            return ""
        is_less = (clause.operator[0] == "<") is not clause.negated
        return number - 1 if is_less else number + 1
    if not clause.negated:
        return literal
    if key == "outcome":
        return "success" if literal != "success" else "fail"
    return "" if literal else "other"


def _end_of(graph: Graph, taken: list[Step]) -> str:
    """How a run ends: at the exit no goal gate may have failed."""
    place = _Place("", ())
    for step in taken:
        place = _after(graph, place, step)
    is_exit = graph.nodes[place.node].kind == node_kinds.EXIT.name
    return "fail" if is_exit and place.unsatisfied else "success"


def _path_of(start: str, taken: list[Step], end: str) -> Path:
    nodes: list[str] = [start]
    texts: list[str] = []
    script: dict[str, list[ScriptedVisit]] = {}
    for step in taken:
        shown = step.shown
        texts.append(f"{step.source} [{shown}]" if shown else step.source)
        texts += step.nodes[:-1]
        nodes += step.nodes
        script.setdefault(step.source, []).append(step.visit)
    values = {key: value for key, value in script[start][0].context.items() if value != ""}
    plain = ScriptedVisit()
    return Path(
        nodes=tuple(nodes),
        end=end,
        text=" → ".join([*texts, nodes[-1]]),
        script={
            name: tuple(visits)
            for name, visits in script.items()
            if name != start and any(visit != plain for visit in visits)
        },
        values=values,
    )
