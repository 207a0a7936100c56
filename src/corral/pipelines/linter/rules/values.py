"""Rules about attributes: that their values can be used, and that their names are meant."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from functools import lru_cache
from typing import get_args

from corral.pipelines import node_kinds, templates
from corral.pipelines.graph import Edge, Graph, Node, Value, seconds
from corral.pipelines.linter.finding import Finding, error, warning
from corral.pipelines.linter.rules.near import Nearest
from corral.pipelines.linter.rules.structure import TARGETS
from corral.pipelines.scheduler import human_gate
from corral.values import Effort

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
"""Whole numbers, and the least of each."""
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

GRAPH = frozenset(
    (
        "goal", "label", "model_stylesheet", "default_max_retries", "default_max_retry",
        "retry_target", "fallback_retry_target", "default_fidelity", "max_visits",
        "max_node_visits", "default_max_visits", "error_policy", "verdict", "thread_id",
        "stack.child_dotfile", "stack.child_workdir", "tool_hooks.pre", "tool_hooks.post",
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
EDGE = frozenset(("label", "condition", "weight", "fidelity", "thread_id", "loop_restart"))
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
"""Graphviz's own, which are kept and mean nothing here."""

OTHER = frozenset(
    (
        "command", "detached", "on_crash", "queue", "node_type", "handler", "script", "cmd",
        "concurrency", "system", "stdout_key",
    )
).union(*(kind.attributes for kind in node_kinds.KINDS.values()))  # fmt: skip
"""Other names of attributes, and those of every node kind."""


def required_attributes(graph: Graph) -> Iterator[Finding]:
    for node in graph.of_kind(*node_kinds.PUBLIC):
        for names in node_kinds.find(node.kind).required:
            if not any(_given(name, node.attrs) or _given(name, graph.attrs) for name in names):
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


def prompt_file(graph: Graph) -> Iterator[Finding]:
    """A prompt that still names its file: loading did not find it."""
    for node in graph.nodes.values():
        text = node.text("prompt").strip()
        if text.startswith("@") and text[1:] and not any(c.isspace() for c in text):
            yield error(
                "prompt_file",
                f"the prompt file {text[1:]} of {node.id} cannot be read",
                node=node,
                fix="It is UTF-8 of at most 1 MiB, beside the pipeline or in the workspace.",
            )


def _given(name: str, attrs: Mapping[str, Value]) -> bool:
    return attrs.get(name, "") != ""


def attribute_value(graph: Graph) -> Iterator[Finding]:
    for key in graph.attrs.keys() & CHECKED:
        if found := _unfit(key, graph.attrs[key]):
            yield error("attribute_value", f"{key} of the graph: {found[0]}", fix=found[1])
    for node in graph.nodes.values():
        for key in sorted(node.attrs.keys() & CHECKED):
            if found := _unfit(key, node.attrs[key]):
                message = f"{key} of {node.id}: {found[0]}"
                yield error("attribute_value", message, node=node, fix=found[1])
        effort = node.attrs.get("reasoning_effort")
        if effort is not None and effort not in EFFORTS:
            message = f"reasoning_effort of {node.id}: {effort!r} is not a known type"
            fix = f"One of {', '.join(EFFORTS)}."
            yield warning("attribute_value", message, node=node, fix=fix)
    yield from _default_choices(graph)
    for edge in graph.edges:
        for key in sorted(edge.attrs.keys() & CHECKED):
            if found := _unfit(key, edge.attrs[key]):
                message = f"{key} of the edge {edge.source} -> {edge.target}: {found[0]}"
                yield error("attribute_value", message, edge=edge, fix=found[1])


def _default_choices(graph: Graph) -> Iterator[Finding]:
    """One that is none would be found out when nobody has answered in time."""
    for node in graph.of_kind(node_kinds.WAIT_HUMAN.name):
        wanted = node.text("human.default_choice")
        offered = human_gate.choices(graph.edges_from(node.id))
        if wanted and offered and human_gate.find_choice(offered, wanted) is None:
            message = f"human.default_choice of {node.id}: {wanted!r} is no choice of it"
            fix = f"One of {', '.join(choice.label for choice in offered)}."
            yield error("attribute_value", message, node=node, fix=fix)


def _unfit(key: str, value: Value) -> tuple[str, str] | None:
    """What is wrong with it, and what to do."""
    return _judged(key, type(value).__name__, value)


@lru_cache(4096)
def _judged(key: str, _type: str, value: Value) -> tuple[str, str] | None:
    if isinstance(value, str) and (hole := next(templates.holes(value), None)):
        return f"nobody has given {hole} a value", f"Give {hole} one when it is run."
    shown = repr(value) if isinstance(value, str) else str(value).lower()
    check = next(check for keys, check in _CHECKS if key in keys)
    found = check(key, value)
    return None if found is None else (f"{shown} {found[0]}", found[1])


def _check_count(key: str, value: Value) -> tuple[str, str] | None:
    number = _number(value, whole=True)
    if number is None:
        return "is not a whole number", f"Write {key}={max(1, COUNTS[key])}."
    return None if number >= COUNTS[key] else ("is too small", f"It is {COUNTS[key]} or more.")


def _check_duration(key: str, value: Value) -> tuple[str, str] | None:
    try:
        is_valid = value == "" or seconds(value) > 0 or key == "manager.poll_interval"
    except ValueError:
        is_valid = False
    return None if is_valid else ("is not a duration", "Write 500ms, 30s, 15m, 2h or 1d.")


def _check_boolean(key: str, value: Value) -> tuple[str, str] | None:
    if value not in (True, False, "true", "false", "") or type(value) in (int, float):
        return "is neither true nor false", f"Write {key}=true."
    return None


def _check_choice(key: str, value: Value) -> tuple[str, str] | None:
    choices = CHOICES[key]
    return None if value in choices else ("is invalid", f"One of {', '.join(choices)}.")


def _check_number(key: str, value: Value) -> tuple[str, str] | None:
    if _number(value, whole=False) is None:
        return "is not a number", f"Write {key}=1."
    return None


_CHECKS: tuple[tuple[Container[str], Callable[[str, Value], tuple[str, str] | None]], ...] = (
    (COUNTS, _check_count),
    (DURATIONS, _check_duration),
    (BOOLEANS, _check_boolean),
    (CHOICES, _check_choice),
    (NUMBERS, _check_number),
)


def _number(value: Value, *, whole: bool) -> float | None:
    """As ``Node.number`` and ``Edge.weight`` will read it."""
    if isinstance(value, bool) or (whole and isinstance(value, float)):
        return None
    try:
        number = int(value) if whole else float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 2**63 else None


def attribute_known(graph: Graph) -> Iterator[Finding]:
    """Unknown attributes are kept, for nodes of one's own; one that is nearly ours is a slip."""
    for key, near in _slips(graph.attrs, GRAPH, Nearest(sorted(GRAPH), 0.8)):
        yield warning("attribute_known", f"{key} means nothing", fix=f"Did you mean {near}?")
    nearest = Nearest(sorted(NODE), 0.8)
    for node in graph.nodes.values():
        if not node.attrs.keys() <= NODE:
            for key, near in _slips(node.attrs, NODE, nearest):
                message, fix = f"{key} of {node.id} means nothing", f"Did you mean {near}?"
                yield warning("attribute_known", message, node=node, fix=fix)
    nearest = Nearest(sorted(EDGE), 0.8)
    for edge in graph.edges:
        if not edge.attrs.keys() <= EDGE:
            for key, near in _slips(edge.attrs, EDGE, nearest):
                message = f"{key} of the edge {edge.source} -> {edge.target} means nothing"
                yield warning("attribute_known", message, edge=edge, fix=f"Did you mean {near}?")


def _slips(
    attrs: Mapping[str, Value], known: frozenset[str], nearest: Nearest
) -> Iterator[tuple[str, str]]:
    for key in attrs:
        strange = key not in known and key not in LAYOUT and key not in OTHER
        if strange and (near := nearest(key.lower().replace("-", "_"))):
            yield key, near


def fidelity_valid(graph: Graph) -> Iterator[Finding]:
    places: tuple[tuple[str, Mapping[str, Value], Node | None, Edge | None], ...] = (
        ("default_fidelity", graph.attrs, None, None),
        *(("fidelity", n.attrs, n, None) for n in graph.nodes.values() if "fidelity" in n.attrs),
        *(("fidelity", e.attrs, None, e) for e in graph.edges if "fidelity" in e.attrs),
    )
    nearest = Nearest(FIDELITIES, 0.5)
    for key, attrs, node, edge in places:
        value = attrs.get(key)
        if value is not None and value not in FIDELITIES:
            fix = nearest.fix(str(value))
            message = f"no {key} is called {value!r}"
            yield warning("fidelity_valid", message, node=node, edge=edge, fix=fix)


def retry_target_exists(graph: Graph) -> Iterator[Finding]:
    nearest = Nearest(graph.nodes)
    for key in TARGETS:
        name = str(graph.attrs.get(key, ""))
        if name and name not in graph.nodes:
            message = f"{key} of the graph: no node is called {name}"
            yield warning("retry_target_exists", message, fix=nearest.fix(name, listed=False))
    for node in graph.nodes.values():
        for key in TARGETS:
            name = str(node.attrs.get(key, ""))
            if name and name not in graph.nodes:
                message = f"{key} of {node.id}: no node is called {name}"
                fix = nearest.fix(name, listed=False)
                yield warning("retry_target_exists", message, node=node, fix=fix)


def goal_gate_has_retry(graph: Graph) -> Iterator[Finding]:
    if any(graph.attrs.get(key) for key in TARGETS):
        return
    for node in graph.nodes.values():
        if node.is_true("goal_gate") and not any(node.attrs.get(key) for key in TARGETS):
            yield warning(
                "goal_gate_has_retry",
                f"{node.id} is a goal gate: where it fails, the run fails at its exit",
                node=node,
                fix="Say where to try again: retry_target=…",
            )
