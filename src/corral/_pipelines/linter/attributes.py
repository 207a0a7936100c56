"""Rules about attributes: their names, their values, and what the values name.

Besides plain values these are the stylesheet, node types, agents and models. ``engine`` lists the
functions that are rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import SequenceMatcher, get_close_matches
from functools import cache, lru_cache
from itertools import chain, islice
from typing import get_args

from corral._agents import registry as agents_registry
from corral._core.durations import seconds
from corral._models import catalogue, registry
from corral._pipelines import node_kinds, run_limits, stylesheet, templates
from corral._pipelines.attribute_definitions import (
    ALIASES,
    BY_NAME,
    LIMIT_NAMES,
    PROMPT_FILE,
    TYPED,
    Attribute,
    OwnerName,
    names_of,
)
from corral._pipelines.execution import handlers
from corral._pipelines.graph import Edge, Graph, Node, Value, named_prompt_file, shape_kind
from corral._pipelines.linter.finding import Owner, Problem
from corral._pipelines.linter.structure import TARGETS
from corral._pipelines.scheduler import human_gate
from corral._pipelines.transforms import UNKNOWN_TYPE, UNREAD_PROMPT
from corral._system import config
from corral.errors import ConfigError, PipelineInvalid, UnknownProvider
from corral.policy import PRESETS
from corral.values import Effort

MessageAndFix = tuple[str, str | None]
"""What is wrong, and what to do about it."""


def _owners(graph: Graph) -> Iterator[Owner]:
    return chain((graph,), graph.nodes.values(), graph.edges)


def _name(owner: Owner) -> str:
    if isinstance(owner, Node):
        return owner.id
    return f"the edge {owner.source} -> {owner.target}" if isinstance(owner, Edge) else "the graph"


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

OWNER_NAMES: dict[type[Owner], OwnerName] = {Graph: "graph", Node: "node", Edge: "edge"}
CLOSE = 0.8
"""How similar an unknown name must be to a known one (``difflib``), to be a probable mistake."""
SURE = 0.85
"""The same for the name of a limit, where it is an error."""


def attribute_known(graph: Graph) -> Iterator[Problem]:
    """Unknown attributes are allowed, for a program's own node kinds. One that is nearly the name
    of a known attribute is probably a mistake, and so is one that belongs to something else, or to
    nodes of other kinds. If the name of a limit is misspelled, it is an error: the run would have
    no limit."""
    unknown: dict[tuple[OwnerName, str, str], list[Owner]] = {}
    for owner in _owners(graph):
        name = OWNER_NAMES[type(owner)]
        kind = owner.kind if isinstance(owner, Node) else ""
        if owner.attrs.keys() <= _accepted(name, kind):
            continue
        for key in owner.attrs:
            if key not in _accepted(name, kind) and not key.startswith(("set.", "internal.")):
                # One finding for all kinds that do not have an attribute of other kinds.
                group = "" if key in names_of(name) else kind
                unknown.setdefault((name, group, key), []).append(owner)
    for (name, kind, key), owners in islice(unknown.items(), MAX_SUGGESTIONS):
        if name == "node" and key in names_of(name) and _is_default(graph, key, owners):
            continue
        if problem := _find_attribute_problem(name, kind, key):
            message, fix, is_error = problem
            # The transform has added the name here to an attribute under another name.
            others = (*BY_NAME[key].aliases, PROMPT_FILE) if key in BY_NAME else ()
            written = next((other for other in others if other in owners[0].attrs), key)
            message = f"{written} of {list_names([_name(owner) for owner in owners])} {message}"
            yield Problem(owners[0], message, fix, "error" if is_error else None)


def _is_default(graph: Graph, key: str, owners: list[Owner]) -> bool:
    """Whether a node that uses this attribute has the same value: then it was probably written for
    all nodes (``node [max_parallel=4]``)."""
    value = owners[0].attrs[key]
    return any(
        node.attrs.get(key) == value and key in names_of("node", node.kind)
        for node in graph.nodes.values()
    )


@cache
def _accepted(name: OwnerName, kind: str) -> frozenset[str]:
    """What is not reported: what has an effect there, and what is for Graphviz."""
    return names_of(name, kind) | LAYOUT | ALIASES.keys() | {PROMPT_FILE}


def _find_attribute_problem(name: OwnerName, kind: str, key: str) -> tuple[str, str, bool] | None:
    """What is wrong, what to do about it, and whether it is an error."""
    elsewhere = [other for other in ("node", "graph", "edge") if key in names_of(other)]
    if name == "graph" and "node" in elsewhere:
        return "has no effect: nodes have it", f"Write node [{key}=…].", False
    if name == "node" and elsewhere == ["graph"]:
        return "has no effect: the graph has it", f"Write graph [{key}=…].", False
    if name == "node" and "node" in elsewhere:
        kinds = [other for other in node_kinds.PUBLIC if key in node_kinds.attributes_of(other)]
        message = f"has no effect there: nodes of type {list_names(kinds)} have it"
        return message, f"Write type={kinds[0]}, or remove it.", False
    if elsewhere:
        return None
    plain = key.lower().replace("-", "_")
    known = names_of(name, kind)
    similar = get_close_matches(plain, known, 1, CLOSE)
    near = similar[0] if similar else _with_another_word(plain, known)
    if near is None:
        return None
    longer = abs(len(near) - len(plain))
    is_misspelled = SequenceMatcher(None, plain, near).ratio() >= SURE
    is_misspelled = is_misspelled and longer <= (2 if len(near) >= 10 else 1)
    is_error = near in LIMIT_NAMES and is_misspelled
    return "is unknown and has no effect", f"Did you mean {near}?", is_error


def _with_another_word(name: str, known: Iterable[str]) -> str | None:
    """The known name that has one word more (``retries``, ``max_retries``) or, if it has several,
    one word less (``max_agent_turns``, ``max_turns``)."""
    words = {*re.split(r"[._]", name)}
    for other in sorted(known):
        of_other = {*re.split(r"[._]", other)}
        if (words < of_other and len(of_other - words) == 1) or (
            len(of_other) > 1 and of_other < words and len(words - of_other) == 1
        ):
            return other
    return None


def list_names(names: list[str]) -> str:
    """The first three names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def required_attributes(graph: Graph) -> Iterator[Problem]:
    """A node has the attributes that its type needs."""
    for node in graph.of_kind(*node_kinds.PUBLIC):
        for names in node_kinds.find(node.kind).required:
            if not any(_has_value(attrs, names) for attrs in (node.attrs, graph.attrs)):
                message = f"{node.id} is a {node.kind} and needs {names[0]}"
                yield Problem(node, message, f'Write {node.id} [{names[0]}="…"].')
    for node in graph.of_kind(node_kinds.SET.name):
        if "key" not in node.attrs and not any(key.startswith("set.") for key in node.attrs):
            fix = f'Write {node.id} [key="…", value="…"], or set.name="…".'
            yield Problem(node, f"{node.id} is a set and needs key and value", fix)


def _has_value(attrs: Mapping[str, Value], names: Iterable[str]) -> bool:
    """Whether one of these attributes has a value."""
    return any(attrs.get(name, "") != "" for name in names)


# Values of attributes.

FIDELITIES = ("full", "truncate", "compact", "summary:low", "summary:medium", "summary:high")
EFFORTS: tuple[str, ...] = get_args(Effort)


@lru_cache(4096)
def check_value(key: str, _type: str, value: Value) -> MessageAndFix | None:
    """What is wrong with the value of an attribute in ``TYPED``, and what to do about it.
    ``_type`` keeps ``1`` and ``True`` apart in the cache."""
    if isinstance(value, str) and (name := next(templates.placeholders(value), None)):
        return f"{name} has no value", f"Set {name} when you run the pipeline."
    if (problem := _find_type_problem(BY_NAME[key], value)) is None:
        return None
    shown = repr(value) if isinstance(value, str) else str(value).lower()
    return f"{shown} {problem[0]}", problem[1]


def _find_type_problem(attribute: Attribute, value: Value) -> MessageAndFix | None:
    name, least = attribute.name, attribute.least
    match attribute.type:
        case "count":
            number = _number(value, integer=True)
            if number is None:
                return "is not a whole number", f"Write {name}={max(1, least)}."
            if number < least:
                return "is too small", f"It is {least} or more."
        case "number" if _number(value, integer=False) is None:
            return "is not a number", f"Write {name}=1."
        case "boolean" if value not in (True, False, "true", "false", "") or (
            type(value) in (int, float)
        ):
            return "is neither true nor false", f"Write {name}=true."
        case "duration" if not _is_duration(value, zero=name == "manager.poll_interval"):
            return "is not a duration", "Write 500ms, 30s, 15m, 2h or 1d."
        case "choice" if value in dict(attribute.synonyms):
            # Only of a parallel node: elsewhere it was replaced.
            return "is not supported for branches: all of them run to their end", (
                "Write error_policy=fail, and after the join an edge with"
                ' condition="parallel.fail_count=0" to the node that needs every branch.'
            )
        case "choice" if value not in attribute.choices:
            return "is invalid", f"One of {', '.join(attribute.choices)}."
        case _:
            pass
    return None


def _is_duration(value: Value, *, zero: bool) -> bool:
    try:
        return value == "" or seconds(value) > 0 or zero
    except ValueError:
        return False


def _number(value: Value, *, integer: bool) -> float | None:
    """The number that ``Node.number`` or ``Edge.weight`` will read."""
    if isinstance(value, bool) or (integer and isinstance(value, float)):
        return None
    try:
        number = int(value) if integer else float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 2**63 else None


def attribute_value(graph: Graph) -> Iterator[Problem]:
    """A number, a duration, a boolean or a choice has a valid value."""
    for owner in _owners(graph):
        if TYPED.isdisjoint(owner.attrs):
            continue
        for key in sorted(owner.attrs.keys() & TYPED):
            value = owner.attrs[key]
            if problem := check_value(key, type(value).__name__, value):
                yield Problem(owner, f"{key} of {_name(owner)}: {problem[0]}", problem[1])
    for node in graph.nodes.values():
        effort = node.attrs.get("reasoning_effort")
        if effort is not None and effort not in EFFORTS:
            message = f"reasoning_effort of {node.id}: {effort!r} is not a known effort"
            fix = f"One of {', '.join(EFFORTS)}."
            yield Problem(node, message, fix, "warning")
    for node in graph.of_kind(node_kinds.STRING_TRANSFORM.name):
        for name in node.names("ops"):
            if name not in node_kinds.TEXT_OPS and not templates.PLACEHOLDER.search(name):
                message = f"ops of {node.id}: no op is called {name!r}"
                yield Problem(node, message, f"One of {', '.join(node_kinds.TEXT_OPS)}.")
    for node in graph.of_kind(node_kinds.WAIT_HUMAN.name):
        # An unknown default choice would be noticed only when a question times out.
        wanted = node.text("human.default_choice")
        offered = human_gate.choices(graph.edges_from(node.id))
        if wanted and offered and human_gate.find_choice(offered, wanted) is None:
            message = f"human.default_choice of {node.id}: {wanted!r} is not one of its choices"
            fix = f"One of {', '.join(choice.label for choice in offered)}."
            yield Problem(node, message, fix)
    try:
        run_limits.check_raises(graph, run_limits.run_limits(graph))
    except PipelineInvalid as wrong:
        yield Problem(graph, wrong.message)


def prompt_file(graph: Graph) -> Iterator[Problem]:
    """The file of a prompt could be read: the loader puts its content in place of its name."""
    for node in graph.nodes.values():
        if file := named_prompt_file(node):
            reason = node.text(UNREAD_PROMPT) or "was not read"
            yield Problem(
                node,
                f"the prompt file {file} of {node.id} {reason}",
                "It must be UTF-8, at most 1 MiB, in the folder of the pipeline or in the"
                " workspace.",
            )


def fidelity_valid(graph: Graph) -> Iterator[Problem]:
    """A fidelity is one of those that exist."""
    nearest = Nearest(FIDELITIES, 0.5)
    for owner in _owners(graph):
        key = "default_fidelity" if owner is graph else "fidelity"
        value = owner.attrs.get(key)
        if value is not None and value not in FIDELITIES:
            message = f"unknown {key} of {_name(owner)}: {value!r}"
            yield Problem(owner, message, nearest.fix(str(value)))


def retry_target_exists(graph: Graph) -> Iterator[Problem]:
    """A retry target is a node of the graph."""
    nearest = Nearest(graph.nodes)
    owners: Iterable[Owner] = chain((graph,), graph.nodes.values())
    for owner in owners:
        for key in TARGETS:
            name = str(owner.attrs.get(key, ""))
            if name and name not in graph.nodes:
                message = f"{key} of {_name(owner)}: there is no node {name}"
                yield Problem(owner, message, nearest.fix(name, listed=False))


def goal_gate_has_retry(graph: Graph) -> Iterator[Problem]:
    """A goal gate has a retry target: otherwise the run fails where it is not satisfied."""
    if _has_value(graph.attrs, TARGETS):
        return
    for node in graph.nodes.values():
        if node.is_true("goal_gate") and not _has_value(node.attrs, TARGETS):
            yield Problem(
                node,
                f"{node.id} is a goal gate without a retry target: if it fails, the run fails at"
                " its exit",
                "Set retry_target to the node where the run tries again.",
            )


def allow_partial_has_retries(graph: Graph) -> Iterator[Problem]:
    """A node with ``allow_partial`` has ``max_retries``: without it, a failure stays one, because
    it is not tried again."""
    for node in graph.nodes.values():
        if node.is_true("allow_partial") and "max_retries" not in node.attrs:
            yield Problem(
                node,
                f"allow_partial of {node.id} does not count for a failure: it has no max_retries",
                "Write max_retries=0 or more at the node.",
            )


# The stylesheet.


def stylesheet_syntax(graph: Graph) -> Iterator[Problem]:
    """The stylesheet can be read."""
    text = str(graph.attrs.get("model_stylesheet", ""))
    if not text:
        return
    try:
        sheet = stylesheet.parse(text)
    except stylesheet.StylesheetError as wrong:
        fix = wrong.hint or 'Write it as "* { model: vendor:name; } .class { … } #node { … }".'
        yield Problem(graph, wrong.message, fix)
        return
    nearest = Nearest(stylesheet.PROPERTIES)
    for name in sheet.unknown():
        message = f"the stylesheet's property {name} is unknown and has no effect"
        yield Problem(graph, message, nearest.fix(name), "warning")


# Node types, agents, models, prompts.


def type_known(graph: Graph) -> Iterator[Problem]:
    """A type or a shape is known: otherwise the node is of the type of its shape, or a box."""
    unknown: dict[tuple[str, str], list[Node]] = {}
    shapes = Nearest(node_kinds.SHAPES)
    for node in graph.nodes.values():
        shape = str(node.attrs.get("shape", node_kinds.CODERGEN.shape))
        if kind := node.text(UNKNOWN_TYPE):
            unknown.setdefault((kind, shape_kind(node)), []).append(node)
        elif shape == node_kinds.MANAGER_LOOP.shape and node.kind == node_kinds.WAIT_HUMAN.name:
            message = f"{node.id} names no child pipeline: it runs as a human gate"
            fix = "Write shape=hexagon, or name the child with stack.child_dotfile."
            yield Problem(node, message, fix)
        elif shape not in node_kinds.SHAPES and not node.text("type"):
            message = f"unknown shape {shape!r}: {node.id} runs as {shape_kind(node)}"
            yield Problem(node, message, shapes.fix(shape))
    nearest = Nearest(handlers.registered_kinds() if unknown else ())  # searches the packages
    for (kind, other), nodes in unknown.items():
        names = list_names([node.id for node in nodes])
        message = f"no node type is called {kind!r}: {names} run as {other}"
        if len(nodes) == 1:
            message = message.replace(" run as", " runs as")
        fix = f"{nearest.fix(kind)} For your own: --import MODULE."
        yield Problem(nodes[0], message, fix)


def prompt_on_llm_nodes(graph: Graph) -> Iterator[Problem]:
    """A node with an agent or a model has a prompt or a label: otherwise its id is sent."""
    for node in graph.of_kind(*node_kinds.LLM_KINDS):
        if not node.attrs.get("prompt") and not node.attrs.get("label"):
            message = f"{node.id} has no prompt: its id {node.id!r} is sent instead"
            yield Problem(node, message, f'Write {node.id} [prompt="…"].')


def agent_known(graph: Graph) -> Iterator[Problem]:
    """An agent is known."""
    return _once_per_name(graph, lambda node: node.text("agent"), _find_agent_problem)


def _once_per_name(
    graph: Graph,
    read_name: Callable[[Node], str],
    find_problem: Callable[[str, bool], MessageAndFix | None],
) -> Iterator[Problem]:
    """One problem per name of an agent or a model, with the nodes that have it. The second argument
    of ``find_problem`` is whether the node names an agent."""
    users: dict[tuple[str, bool], list[Node]] = {}
    for node in graph.nodes.values():
        name = read_name(node) if node_kinds.find(node.kind).llm != "none" else ""
        if name and "{{" not in name:
            users.setdefault((name, "agent" in node.attrs), []).append(node)
    for asked, nodes in islice(users.items(), MAX_SUGGESTIONS):
        if problem := find_problem(*asked):
            message = f"{list_names([node.id for node in nodes])}: {problem[0]}"
            yield Problem(nodes[0], message, problem[1])


def _find_agent_problem(name: str, _has_agent: bool) -> MessageAndFix | None:
    try:
        config.find_agent(name)
    except ConfigError as wrong:
        return wrong.message, wrong.hint
    return None


def policy_known(graph: Graph) -> Iterator[Problem]:
    """An unknown policy is an error: nothing may run without the policy that was meant."""
    nearest = Nearest(PRESETS)
    owners: Iterable[Owner] = chain((graph,), graph.nodes.values())
    for owner in owners:
        name = owner.attrs.get("policy", "")
        if name not in ("", *PRESETS) and "{{" not in str(name):
            message = f"{_name(owner)}: no policy is called {name!r}"
            yield Problem(owner, message, nearest.fix(str(name)))


def model_known(graph: Graph) -> Iterator[Problem]:
    """A model is in the catalogue of its vendor, if it lists models of it. A name without a vendor
    is checked by the agent that gets it."""

    def full_name(node: Node) -> str:
        name = node.text("model") or node.text("llm_model")
        vendor = node.text("llm_provider")
        return f"{vendor}:{name}" if vendor and name and ":" not in name else name

    return _once_per_name(graph, full_name, _find_model_problem)


def _find_model_problem(name: str, has_agent: bool) -> MessageAndFix | None:
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
