"""The attribute names that the linter knows: of graphs, nodes and edges, and those of Graphviz."""

from __future__ import annotations

from corral.core.spending import LIMITS
from corral.pipelines import node_kinds, run_limits

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
