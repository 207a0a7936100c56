"""Rules about attributes: their names, their values, and what the values name.

Besides plain values these are conditions, the stylesheet, node types, agents and models. Each
public function is one rule; ``linter.engine`` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain
from typing import TypeAlias, TypedDict, get_args

from corral.agents import registry as agents_registry
from corral.core.spending import LIMITS
from corral.errors import ConfigError, PipelineInvalid, UnknownProvider
from corral.models import catalogue, registry
from corral.pipelines import conditions, node_kinds, run_limits, stylesheet
from corral.pipelines.execution import handlers
from corral.pipelines.graph import Edge, Graph, Node, Value, shape_kind
from corral.pipelines.linter.contradictions import contradiction
from corral.pipelines.linter.finding import Finding, Problem, error, warning
from corral.pipelines.linter.known_attributes import EDGE, GRAPH, LAYOUT, NODE, OTHER
from corral.pipelines.linter.rules.structure import TARGETS
from corral.pipelines.linter.value_checks import CHECKED, check_value
from corral.pipelines.scheduler import human_gate
from corral.pipelines.transforms import UNKNOWN_TYPE
from corral.policy import PRESETS
from corral.system import config
from corral.values import Effort

Owner: TypeAlias = Graph | Node | Edge
"""What has attributes."""


def _owners(graph: Graph) -> Iterator[Owner]:
    return chain((graph,), graph.nodes.values(), graph.edges)


def _name(owner: Owner) -> str:
    if isinstance(owner, Node):
        return owner.id
    return _shown(owner) if isinstance(owner, Edge) else "the graph"


class _Place(TypedDict, total=False):
    node: Node
    edge: Edge


def _place(owner: Owner) -> _Place:
    """The place of a finding about this owner."""
    if isinstance(owner, Node):
        return {"node": owner}
    return {"edge": owner} if isinstance(owner, Edge) else {}


def _shown(edge: Edge) -> str:
    return f"the edge {edge.source} -> {edge.target}"


# Suggestions for unknown names.

MAX_SUGGESTIONS = 100
"""Unknown names for which a suggestion is computed, per rule. Each is compared with every known
name: a file with thousands of unknown names must still be checked quickly."""
MAX_KNOWN = 1000
LONGEST_NAME = 60


class Nearest:
    """Finds the known name that is most similar to an unknown one."""

    def __init__(self, known: Iterable[str], cutoff: float = 0.6) -> None:
        self._known = list(known)[:MAX_KNOWN]
        self._cutoff = cutoff
        self._found: dict[str, str | None] = {}

    def __call__(self, name: str) -> str | None:
        if name not in self._found:
            if len(self._found) >= MAX_SUGGESTIONS or len(name) > LONGEST_NAME:
                return None
            near = get_close_matches(name, self._known, 1, self._cutoff)
            self._found[name] = near[0] if near else None
        return self._found[name]

    def fix(self, name: str, *, listed: bool = True) -> str | None:
        """What to do about an unknown name."""
        near = self(name)
        names = f"Known: {', '.join(self._known)}." if listed else ""
        return f"Did you mean {near}? {names}".strip() if near else names or None


# Names of attributes.

KNOWN: dict[type[Owner], frozenset[str]] = {Graph: GRAPH, Node: NODE, Edge: EDGE}


def attribute_known(graph: Graph) -> Iterator[Finding]:
    """Unknown attributes are allowed, for a program's own node kinds. One that is nearly the name
    of a known attribute is probably a mistake."""
    suggestions = {kind: Nearest(sorted(known), 0.8) for kind, known in KNOWN.items()}
    for owner in _owners(graph):
        known = KNOWN[type(owner)]
        if owner.attrs.keys() <= known:
            continue
        for key in owner.attrs:
            if key in known or key in LAYOUT or key in OTHER:
                continue
            if near := suggestions[type(owner)](key.lower().replace("-", "_")):
                yield warning(
                    "attribute_known",
                    f"{key} of {_name(owner)} is unknown and has no effect",
                    fix=f"Did you mean {near}?",
                    **_place(owner),
                )


def required_attributes(graph: Graph) -> Iterator[Finding]:
    for node in graph.of_kind(*node_kinds.PUBLIC):
        for names in node_kinds.find(node.kind).required:
            if not any(_has_value(attrs, names) for attrs in (node.attrs, graph.attrs)):
                yield error(
                    "required_attributes",
                    f"{node.id} is a {node.kind} and needs {names[0]}",
                    node=node,
                    fix=f'Write {node.id} [{names[0]}="…"].',
                )
    for node in graph.of_kind(node_kinds.SET.name):
        if "key" not in node.attrs and not any(key.startswith("set.") for key in node.attrs):
            yield error(
                "required_attributes",
                f"{node.id} is a set and needs key and value",
                node=node,
                fix=f'Write {node.id} [key="…", value="…"], or set.name="…".',
            )


def _has_value(attrs: Mapping[str, Value], names: Iterable[str]) -> bool:
    """Whether one of these attributes has a value."""
    return any(attrs.get(name, "") != "" for name in names)


# Values of attributes.

FIDELITIES = ("full", "truncate", "compact", "summary:low", "summary:medium", "summary:high")
EFFORTS: tuple[str, ...] = get_args(Effort)


def attribute_value(graph: Graph) -> Iterator[Finding]:
    for owner in _owners(graph):
        if CHECKED.isdisjoint(owner.attrs):
            continue
        for key in sorted(owner.attrs.keys() & CHECKED):
            value = owner.attrs[key]
            if problem := check_value(key, type(value).__name__, value):
                yield error(
                    "attribute_value",
                    f"{key} of {_name(owner)}: {problem[0]}",
                    fix=problem[1],
                    **_place(owner),
                )
    for node in graph.nodes.values():
        effort = node.attrs.get("reasoning_effort")
        if effort is not None and effort not in EFFORTS:
            message = f"reasoning_effort of {node.id}: {effort!r} is not a known effort"
            fix = f"One of {', '.join(EFFORTS)}."
            yield warning("attribute_value", message, node=node, fix=fix)
    yield from _default_choices(graph)
    if not _mentions_limits(graph):
        return
    try:
        run_limits.check_raises(graph, run_limits.run_limits(graph))
    except PipelineInvalid as wrong:
        yield error("attribute_value", wrong.message)


def _mentions_limits(graph: Graph) -> bool:
    """Whether the graph has an attribute about what it may spend."""
    return not graph.attrs.keys().isdisjoint((*LIMITS, "on_budget")) or any(
        not edge.attrs.keys().isdisjoint(run_limits.RAISES) for edge in graph.edges
    )


def _default_choices(graph: Graph) -> Iterator[Finding]:
    """An unknown default choice would be noticed only when a question times out."""
    for node in graph.of_kind(node_kinds.WAIT_HUMAN.name):
        wanted = node.text("human.default_choice")
        offered = human_gate.choices(graph.edges_from(node.id))
        if wanted and offered and human_gate.find_choice(offered, wanted) is None:
            message = f"human.default_choice of {node.id}: {wanted!r} is not one of its choices"
            fix = f"One of {', '.join(choice.label for choice in offered)}."
            yield error("attribute_value", message, node=node, fix=fix)


def prompt_file(graph: Graph) -> Iterator[Finding]:
    """The loader replaces ``@file`` with the content of the file. If it is still there, the file
    was not found."""
    for node in graph.nodes.values():
        text = node.text("prompt").strip()
        if text.startswith("@") and text[1:] and not any(c.isspace() for c in text):
            yield error(
                "prompt_file",
                f"the prompt file {text[1:]} of {node.id} cannot be read",
                node=node,
                fix="It must be UTF-8, at most 1 MiB, beside the pipeline or in the workspace.",
            )


def fidelity_valid(graph: Graph) -> Iterator[Finding]:
    nearest = Nearest(FIDELITIES, 0.5)
    for owner in _owners(graph):
        key = "default_fidelity" if owner is graph else "fidelity"
        value = owner.attrs.get(key)
        if value is not None and value not in FIDELITIES:
            yield warning(
                "fidelity_valid",
                f"unknown {key} of {_name(owner)}: {value!r}",
                fix=nearest.fix(str(value)),
                **_place(owner),
            )


def retry_target_exists(graph: Graph) -> Iterator[Finding]:
    nearest = Nearest(graph.nodes)
    owners: Iterable[Owner] = chain((graph,), graph.nodes.values())
    for owner in owners:
        for key in TARGETS:
            name = str(owner.attrs.get(key, ""))
            if name and name not in graph.nodes:
                yield warning(
                    "retry_target_exists",
                    f"{key} of {_name(owner)}: there is no node {name}",
                    fix=nearest.fix(name, listed=False),
                    **_place(owner),
                )


def goal_gate_has_retry(graph: Graph) -> Iterator[Finding]:
    if _has_value(graph.attrs, TARGETS):
        return
    for node in graph.nodes.values():
        if node.is_true("goal_gate") and not _has_value(node.attrs, TARGETS):
            yield warning(
                "goal_gate_has_retry",
                f"{node.id} is a goal gate without a retry target: if it fails, the run fails at"
                " its exit",
                node=node,
                fix="Set retry_target to the node where the run tries again.",
            )


# Conditions.

EXAMPLE = "Write it as outcome=success && context.tests=passed."


def condition_syntax(graph: Graph) -> Iterator[Finding]:
    for edge in graph.edges:
        if "condition" in edge.attrs and (found := _syntax_error(edge.condition)):
            message = f"the condition of {_shown(edge)}: {_located(edge.condition, found)}"
            yield error("condition_syntax", message, edge=edge, fix=found.hint or EXAMPLE)
    for node in graph.nodes.values():
        text = node.attrs.get("manager.stop_condition")
        if text is not None and (found := _syntax_error(str(text))):
            message = f"manager.stop_condition of {node.id}: {_located(str(text), found)}"
            yield error("condition_syntax", message, node=node, fix=found.hint or EXAMPLE)


def _located(text: str, found: conditions.ConditionError) -> str:
    """What was expected, and the text around that place."""
    at = found.position
    place = f"{text[max(0, at - 40) : at]} ⟨here⟩ {text[at : at + 40]}".strip()
    return f"{found.wanted}: {place}"


@lru_cache(1024)
def _syntax_error(text: str) -> conditions.ConditionError | None:
    try:
        conditions.compile(text)
    except conditions.ConditionError as found:
        return found
    return None


def condition_never_true(graph: Graph) -> Iterator[Finding]:
    for edge in graph.edges:
        if "condition" not in edge.attrs and "label" not in edge.attrs:
            continue
        try:
            condition = conditions.edge_condition(graph, edge)
        except conditions.ConditionError:
            continue
        if condition is not None and (problem := contradiction(condition)):
            message = f"the condition of {_shown(edge)} is never true: {problem[0]}"
            yield warning("condition_never_true", message, edge=edge, fix=problem[1])


# The stylesheet.


def stylesheet_syntax(graph: Graph) -> Iterator[Finding]:
    text = str(graph.attrs.get("model_stylesheet", ""))
    if not text:
        return
    try:
        sheet = stylesheet.parse(text)
    except stylesheet.StylesheetError as found:
        fix = found.hint or 'Write it as "* { model: vendor:name; } .class { … } #node { … }".'
        yield error("stylesheet_syntax", found.message, fix=fix)
        return
    nearest = Nearest(stylesheet.PROPERTIES)
    for name in sheet.unknown():
        message = f"the stylesheet's property {name} is unknown and has no effect"
        yield warning("stylesheet_syntax", message, fix=nearest.fix(name))


# Node types, agents, models, prompts.


def type_known(graph: Graph) -> Iterator[Finding]:
    nearest: Nearest | None = None
    shapes = Nearest(node_kinds.SHAPES)
    for node in graph.nodes.values():
        if kind := node.text(UNKNOWN_TYPE):
            if nearest is None:  # searches the installed packages
                nearest = Nearest(handlers.registered_kinds())
            message = f"no node type is called {kind!r}: {node.id} runs as {shape_kind(node)}"
            yield warning("type_known", message, node=node, fix=nearest.fix(kind))
        elif _is_house_without_child(node):
            message = f"{node.id} names no child pipeline: it runs as a human gate"
            fix = "Write shape=hexagon, or name the child with stack.child_dotfile."
            yield warning("type_known", message, node=node, fix=fix)
        elif (
            shape := str(node.attrs.get("shape", node_kinds.CODERGEN.shape))
        ) not in node_kinds.SHAPES and not node.text("type"):
            message = f"unknown shape {shape!r}: {node.id} runs as {shape_kind(node)}"
            yield warning("type_known", message, node=node, fix=shapes.fix(shape))


def _is_house_without_child(node: Node) -> bool:
    is_house = node.text("shape") == node_kinds.MANAGER_LOOP.shape
    return is_house and node.kind == node_kinds.WAIT_HUMAN.name


def prompt_on_llm_nodes(graph: Graph) -> Iterator[Finding]:
    for node in graph.of_kind(*node_kinds.LLM_KINDS):
        if not node.attrs.get("prompt") and not node.attrs.get("label"):
            yield warning(
                "prompt_on_llm_nodes",
                f"{node.id} has no prompt: its id {node.id!r} is sent instead",
                node=node,
                fix=f'Write {node.id} [prompt="…"].',
            )


def agent_known(graph: Graph) -> Iterator[Finding]:
    checked: dict[str, ConfigError | None] = {}
    for node in graph.nodes.values():
        name = str(node.attrs.get("agent", ""))
        if not name or "{{" in name or node_kinds.find(node.kind).llm == "none":
            continue
        if name not in checked:
            checked[name] = _unknown_agent(name) if len(checked) < MAX_SUGGESTIONS else None
        if found := checked[name]:
            message = f"{node.id}: {found.message}"
            yield warning("agent_known", message, node=node, fix=found.hint)


def policy_known(graph: Graph) -> Iterator[Finding]:
    """An unknown policy is an error: nothing may run without the policy that was meant."""
    nearest = Nearest(PRESETS)
    owners: Iterable[Owner] = chain((graph,), graph.nodes.values())
    for owner in owners:
        name = owner.attrs.get("policy", "")
        if name not in ("", *PRESETS) and "{{" not in str(name):
            yield error(
                "policy_known",
                f"{_name(owner)}: no policy is called {name!r}",
                fix=nearest.fix(str(name)),
                **_place(owner),
            )


def _unknown_agent(name: str) -> ConfigError | None:
    try:
        config.find_agent(name)
    except ConfigError as found:
        return found
    return None


def model_known(graph: Graph) -> Iterator[Finding]:
    checked: dict[tuple[str, bool], Problem | None] = {}
    for node in graph.nodes.values():
        name = _model_of(node)
        if not name or "{{" in name or node_kinds.find(node.kind).llm == "none":
            continue
        asked = name, "agent" in node.attrs
        if asked not in checked:
            checked[asked] = _unknown_model(*asked) if len(checked) < MAX_SUGGESTIONS else None
        if problem := checked[asked]:
            yield warning("model_known", f"{node.id}: {problem[0]}", node=node, fix=problem[1])


def _model_of(node: Node) -> str:
    """The model that a node names, with its vendor if ``llm_provider`` names one."""
    name = node.text("model") or node.text("llm_model")
    vendor = node.text("llm_provider")
    return f"{vendor}:{name}" if vendor and name and ":" not in name else name


def _unknown_model(name: str, has_agent: bool) -> Problem | None:
    """A name without a vendor is checked by the agent that gets it. If the catalogue lists no
    models of a vendor, its models cannot be checked."""
    vendor, colon, model = name.partition(":")
    if not colon:
        ids = (entry.id for entry in catalogue.all_entries())
        known = (
            None if has_agent else next((id for id in ids if id.partition(":")[2] == name), None)
        )
        if known is None:
            return None
        return (
            f"{name} is passed to {agents_registry.DEFAULT_AGENT} unchanged",
            f"Write {known} for the model.",
        )
    try:
        provider = registry.find_provider(vendor)
    except UnknownProvider as found:
        return found.message, found.hint
    full_name, prefix = f"{provider.name}:{model}", f"{provider.name}:"
    listed = [entry.id for entry in catalogue.all_entries() if entry.id.startswith(prefix)]
    if not listed or catalogue.lookup(full_name):
        return None
    near = get_close_matches(full_name, listed, 1, 0.6)
    fix = f"Did you mean {near[0]}?" if near else None
    return f"{name} is not in the catalogue; it may be new", fix
