"""Rules about attributes: their names, their values, and what the values name.

Besides plain values these are the stylesheet, node types, agents and models. ``engine`` lists the
functions that are rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain
from typing import TypeAlias, TypedDict, get_args

from corral.agents import registry as agents_registry
from corral.core.durations import seconds
from corral.core.spending import LIMITS
from corral.errors import ConfigError, PipelineInvalid, UnknownProvider
from corral.models import catalogue, registry
from corral.pipelines import node_kinds, run_limits, stylesheet, templates
from corral.pipelines.execution import handlers
from corral.pipelines.graph import Edge, Graph, Node, Value, shape_kind
from corral.pipelines.linter.finding import Finding, Problem, error, warning
from corral.pipelines.linter.structure import TARGETS
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
    return f"the edge {owner.source} -> {owner.target}" if isinstance(owner, Edge) else "the graph"


class _FindingOwner(TypedDict, total=False):
    node: Node
    edge: Edge


def _as_owner(owner: Owner) -> _FindingOwner:
    """The owner as a finding names it."""
    if isinstance(owner, Node):
        return {"node": owner}
    return {"edge": owner} if isinstance(owner, Edge) else {}


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
        self._nearest: dict[str, str | None] = {}

    def __call__(self, name: str) -> str | None:
        if name not in self._nearest:
            if len(self._nearest) >= MAX_SUGGESTIONS or len(name) > LONGEST_NAME:
                return None
            near = get_close_matches(name, self._known, 1, self._cutoff)
            self._nearest[name] = near[0] if near else None
        return self._nearest[name]

    def fix(self, name: str, *, listed: bool = True) -> str | None:
        """What to do about an unknown name."""
        near = self(name)
        names = f"Known: {', '.join(self._known)}." if listed else ""
        return f"Did you mean {near}? {names}".strip() if near else names or None


# Names of attributes.

GRAPH = frozenset(
    (
        "goal", "label", "model_stylesheet", "default_max_retries", "default_max_retry",
        "retry_target", "fallback_retry_target", "default_fidelity", "max_visits",
        "max_node_visits", "default_max_visits", "error_policy", "verdict", "thread_id",
        "stack.child_dotfile", "stack.child_workdir", "tool_hooks.pre", "tool_hooks.post",
        *LIMITS, "on_budget",
    )
)  # fmt: skip
NODE = frozenset(
    (
        "label", "shape", "type", "prompt", "agent", "model", "llm_model", "llm_provider",
        "reasoning_effort", "max_retries", "goal_gate", "retry_target", "fallback_retry_target",
        "fidelity", "thread_id", "class", "timeout", "auto_status", "allow_partial",
        "tool_command", "join_policy", "max_parallel", "max_visits", "error_policy", "verdict",
        "human.default_choice",
        "human.timeout", "manager.poll_interval", "manager.max_cycles", "manager.stop_condition",
        "manager.actions", "stack.child_autostart", "stack.child_dotfile", "stack.child_workdir",
    )
)  # fmt: skip
EDGE = frozenset(
    (
        *("label", "condition", "weight", "fidelity", "thread_id", "loop_restart"),
        *run_limits.RAISES,
    )
)
LAYOUT = frozenset(
    (
        "bb", "bgcolor", "center", "clusterrank", "color", "colorscheme", "comment", "compound",
        "concentrate", "constraint", "decorate", "dir", "distortion", "dpi", "edgetooltip",
        "fillcolor", "fixedsize", "fontcolor", "fontname", "fontpath", "fontsize",
        "forcelabels", "gradientangle", "group", "head_lp", "headclip", "headlabel", "headport",
        "height", "href", "id", "image", "imagepos", "imagescale", "labelangle",
        "labeldistance", "labelfloat", "labelfontcolor", "labelfontname", "labelfontsize",
        "labeljust", "labelloc", "landscape", "layer", "layout", "len", "lhead", "lp", "ltail",
        "margin", "minlen", "newrank", "nodesep", "nojustify", "ordering", "orientation",
        "outputorder", "overlap", "pad", "page", "pagedir", "pencolor", "penwidth",
        "peripheries", "pos", "quantum", "rank", "rankdir", "ranksep", "ratio", "regular",
        "remincross", "rotate", "samehead", "sametail", "searchsize", "sep", "shapefile",
        "showboxes", "sides", "size", "skew", "sortv", "splines", "style", "tail_lp",
        "tailclip", "taillabel", "tailport", "target", "tooltip", "URL", "viewport", "width",
        "xdotversion", "xlabel", "z",
    )
)  # fmt: skip
"""Graphviz's own attributes. They are kept and have no effect here."""

OTHER = frozenset(
    (
        "command", "detached", "on_crash", "queue", "node_type", "handler", "script", "cmd",
        "concurrency", "system", "stdout_key", "questions", "answer_timeout",
    )
).union(*(kind.attributes for kind in node_kinds.KINDS.values()))  # fmt: skip
"""Other names of attributes, and the attributes of every node kind."""

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
                    **_as_owner(owner),
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

COUNTS = {
    "max_retries": 0,
    "default_max_retries": 0,
    "default_max_retry": 0,
    "max_visits": 1,
    "max_node_visits": 1,
    "default_max_visits": 1,
    "max_parallel": 1,
    "manager.max_cycles": 1,
}
"""Whole numbers, and the smallest value of each."""
DURATIONS = frozenset(("timeout", "human.timeout", "manager.poll_interval", "duration"))
BOOLEANS = frozenset(
    ("goal_gate", "auto_status", "allow_partial", "loop_restart", "stack.child_autostart")
)
CHOICES: dict[str, tuple[str, ...]] = {
    "join_policy": ("wait_all", "first_success"),
    "error_policy": ("fail", "continue"),
    "verdict": ("on", "off"),
    "on_crash": ("rerun", "fail", "resume"),
}
NUMBERS = frozenset(("weight",))
CHECKED = frozenset((*COUNTS, *DURATIONS, *BOOLEANS, *CHOICES, *NUMBERS))
FIDELITIES = ("full", "truncate", "compact", "summary:low", "summary:medium", "summary:high")
EFFORTS: tuple[str, ...] = get_args(Effort)


@lru_cache(4096)
def check_value(key: str, _type: str, value: Value) -> Problem | None:
    """What is wrong with the value of an attribute in ``CHECKED``, and what to do about it.
    ``_type`` keeps ``1`` and ``True`` apart in the cache."""
    if isinstance(value, str) and (name := next(templates.placeholders(value), None)):
        return f"{name} has no value", f"Set {name} when you run the pipeline."
    problem: Problem | None = None
    if key in COUNTS:
        number = _number(value, integer=True)
        if number is None:
            problem = "is not a whole number", f"Write {key}={max(1, COUNTS[key])}."
        elif number < COUNTS[key]:
            problem = "is too small", f"It is {COUNTS[key]} or more."
    elif key in DURATIONS:
        try:
            is_valid = value == "" or seconds(value) > 0 or key == "manager.poll_interval"
        except ValueError:
            is_valid = False
        if not is_valid:
            problem = "is not a duration", "Write 500ms, 30s, 15m, 2h or 1d."
    elif key in BOOLEANS and (
        value not in (True, False, "true", "false", "") or type(value) in (int, float)
    ):
        problem = "is neither true nor false", f"Write {key}=true."
    elif key in CHOICES and value not in CHOICES[key]:
        problem = "is invalid", f"One of {', '.join(CHOICES[key])}."
    elif key in NUMBERS and _number(value, integer=False) is None:
        problem = "is not a number", f"Write {key}=1."
    if problem is None:
        return None
    shown = repr(value) if isinstance(value, str) else str(value).lower()
    return f"{shown} {problem[0]}", problem[1]


def _number(value: Value, *, integer: bool) -> float | None:
    """The number that ``Node.number`` or ``Edge.weight`` will read."""
    if isinstance(value, bool) or (integer and isinstance(value, float)):
        return None
    try:
        number = int(value) if integer else float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 2**63 else None


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
                    **_as_owner(owner),
                )
    for node in graph.nodes.values():
        effort = node.attrs.get("reasoning_effort")
        if effort is not None and effort not in EFFORTS:
            message = f"reasoning_effort of {node.id}: {effort!r} is not a known effort"
            fix = f"One of {', '.join(EFFORTS)}."
            yield warning("attribute_value", message, node=node, fix=fix)
    for node in graph.of_kind(node_kinds.WAIT_HUMAN.name):
        # An unknown default choice would be noticed only when a question times out.
        wanted = node.text("human.default_choice")
        offered = human_gate.choices(graph.edges_from(node.id))
        if wanted and offered and human_gate.find_choice(offered, wanted) is None:
            message = f"human.default_choice of {node.id}: {wanted!r} is not one of its choices"
            fix = f"One of {', '.join(choice.label for choice in offered)}."
            yield error("attribute_value", message, node=node, fix=fix)
    try:
        run_limits.check_raises(graph, run_limits.run_limits(graph))
    except PipelineInvalid as wrong:
        yield error("attribute_value", wrong.message)


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
                **_as_owner(owner),
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
                    **_as_owner(owner),
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


# The stylesheet.


def stylesheet_syntax(graph: Graph) -> Iterator[Finding]:
    text = str(graph.attrs.get("model_stylesheet", ""))
    if not text:
        return
    try:
        sheet = stylesheet.parse(text)
    except stylesheet.StylesheetError as wrong:
        fix = wrong.hint or 'Write it as "* { model: vendor:name; } .class { … } #node { … }".'
        yield error("stylesheet_syntax", wrong.message, fix=fix)
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
        elif (
            node.text("shape") == node_kinds.MANAGER_LOOP.shape
            and node.kind == node_kinds.WAIT_HUMAN.name
        ):
            message = f"{node.id} names no child pipeline: it runs as a human gate"
            fix = "Write shape=hexagon, or name the child with stack.child_dotfile."
            yield warning("type_known", message, node=node, fix=fix)
        elif (
            shape := str(node.attrs.get("shape", node_kinds.CODERGEN.shape))
        ) not in node_kinds.SHAPES and not node.text("type"):
            message = f"unknown shape {shape!r}: {node.id} runs as {shape_kind(node)}"
            yield warning("type_known", message, node=node, fix=shapes.fix(shape))


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
    problems: dict[str, ConfigError] = {}
    checked: set[str] = set()
    for node in graph.nodes.values():
        name = str(node.attrs.get("agent", ""))
        if not name or "{{" in name or node_kinds.find(node.kind).llm == "none":
            continue
        if name not in checked and len(checked) < MAX_SUGGESTIONS:
            checked.add(name)
            try:
                config.find_agent(name)
            except ConfigError as wrong:
                problems[name] = wrong
        if problem := problems.get(name):
            message = f"{node.id}: {problem.message}"
            yield warning("agent_known", message, node=node, fix=problem.hint)


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
                **_as_owner(owner),
            )


def model_known(graph: Graph) -> Iterator[Finding]:
    checked: dict[tuple[str, bool], Problem | None] = {}
    for node in graph.nodes.values():
        name = node.text("model") or node.text("llm_model")
        vendor = node.text("llm_provider")
        if vendor and name and ":" not in name:
            name = f"{vendor}:{name}"
        if not name or "{{" in name or node_kinds.find(node.kind).llm == "none":
            continue
        asked = name, "agent" in node.attrs
        if asked not in checked:
            checked[asked] = _find_model_problem(*asked) if len(checked) < MAX_SUGGESTIONS else None
        if problem := checked[asked]:
            yield warning("model_known", f"{node.id}: {problem[0]}", node=node, fix=problem[1])


def _find_model_problem(name: str, has_agent: bool) -> Problem | None:
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
    except UnknownProvider as unknown:
        return unknown.message, unknown.hint
    full_name, prefix = f"{provider.name}:{model}", f"{provider.name}:"
    listed = [entry.id for entry in catalogue.all_entries() if entry.id.startswith(prefix)]
    if not listed or catalogue.lookup(full_name):
        return None
    near = get_close_matches(full_name, listed, 1, 0.6)
    fix = f"Did you mean {near[0]}?" if near else None
    return f"{name} is not in the catalogue; it may be new", fix
