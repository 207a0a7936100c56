"""Every attribute of a graph, a node or an edge, described once.

The linter, the transforms and the loader read these records. Attributes that only some node kinds
have are listed in ``node_kinds``; those with a type, an alias or a limit have a record here too. An
option of ``corral.run`` with the trait ``node`` is an attribute of every node that calls an agent
or a model. Unknown attributes are kept: a program's own node kinds may use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal, TypeAlias

import msgspec

from corral._core.spending import LIMITS
from corral._pipelines import node_kinds, run_limits
from corral._pipelines.graph import Value

OwnerName: TypeAlias = Literal["graph", "node", "edge"]
ValueType: TypeAlias = Literal["text", "count", "duration", "boolean", "number", "choice"]


class Attribute(msgspec.Struct, frozen=True):
    name: str
    owners: tuple[OwnerName, ...] = ()
    """What has it. Empty: nodes of the kinds that list it."""
    type: ValueType = "text"
    least: int = 0
    """The smallest value of a ``count``."""
    choices: tuple[str, ...] = ()
    """The values of a ``choice``."""
    synonyms: tuple[tuple[str, str], ...] = ()
    """Values of other pipeline runners, and the value here."""
    aliases: tuple[str, ...] = ()
    """Names in other pipeline runners. The name here wins."""
    is_limit: bool = False
    """Whether a misspelled name is an error: the run would have no such limit."""
    is_setting: bool = False
    """Whether it is read before a node runs, and filled from the values of the run."""


_ALL: tuple[OwnerName, ...] = ("graph", "node", "edge")
_GRAPH: tuple[OwnerName, ...] = ("graph",)
_NODE: tuple[OwnerName, ...] = ("node",)
_EDGE: tuple[OwnerName, ...] = ("edge",)
_BOTH: tuple[OwnerName, ...] = ("graph", "node")

DEFINITIONS = (
    Attribute("label", _ALL),
    Attribute("goal", _GRAPH),
    Attribute("model_stylesheet", _GRAPH),
    Attribute("default_max_retries", _GRAPH, "count", aliases=("default_max_retry",)),
    Attribute("default_fidelity", _GRAPH),
    Attribute("on_budget", _GRAPH, is_limit=True),
    *(Attribute(name, _GRAPH, is_limit=True) for name in LIMITS),
    Attribute(
        "max_visits",
        _BOTH,
        "count",
        1,
        aliases=("max_node_visits", "default_max_visits"),
        is_limit=True,
    ),
    Attribute("retry_target", _BOTH),
    Attribute("fallback_retry_target", _BOTH),
    Attribute(
        "error_policy",
        _BOTH,
        "choice",
        choices=("fail", "continue"),
        synonyms=(("fail_fast", "fail"), ("ignore", "continue")),
    ),
    Attribute("verdict", _BOTH, "choice", choices=("on", "off")),
    Attribute("agent", _BOTH, is_setting=True),
    Attribute("policy", _BOTH, is_limit=True),
    Attribute("pass_env", _BOTH),
    Attribute("tool_hooks.pre", _BOTH),
    Attribute("tool_hooks.post", _BOTH),
    Attribute(
        "stack.child_dotfile", _BOTH, aliases=("stack.child_workflow",), is_setting=True
    ),
    Attribute("stack.child_workdir", _BOTH, is_setting=True),
    Attribute("thread_id", _ALL, is_setting=True),
    Attribute("fidelity", ("node", "edge"), is_setting=True),
    Attribute("shape", _NODE),
    Attribute("type", _NODE, aliases=("node_type", "handler")),
    Attribute("class", _NODE, is_setting=True),
    Attribute("model", _NODE, is_setting=True),
    Attribute("llm_model", _NODE, is_setting=True),
    Attribute("llm_provider", _NODE, is_setting=True),
    Attribute("reasoning_effort", _NODE, is_setting=True),
    Attribute("max_retries", _NODE, "count", is_setting=True),
    Attribute("goal_gate", _NODE, "boolean"),
    Attribute("auto_status", _NODE, "boolean"),
    Attribute("allow_partial", _NODE, "boolean"),
    Attribute("timeout", _NODE, "duration", is_limit=True, is_setting=True),
    Attribute("on_crash", _NODE, "choice", choices=("rerun", "fail", "resume")),
    Attribute("queue", _NODE),
    Attribute("detached", _NODE),
    Attribute("condition", _EDGE),
    Attribute("weight", _EDGE, "number"),
    Attribute("loop_restart", _EDGE, "boolean"),
    *(Attribute(name, _EDGE) for name in run_limits.RAISES),
    # Of some node kinds.
    Attribute("prompt", aliases=("llm_prompt",)),
    Attribute("tool_command", aliases=("script", "command", "cmd")),
    Attribute("system_prompt", aliases=("system",)),
    Attribute("output_key", aliases=("stdout_key",)),
    Attribute("max_parallel", (), "count", 1, aliases=("concurrency",), is_setting=True),
    Attribute(
        "join_policy", (), "choice", choices=("wait_all", "first_success"), is_setting=True
    ),
    Attribute("worktree", (), "choice", choices=("shared", "branch")),
    Attribute("on_conflict", (), "choice", choices=("fail", "first", "ask")),
    Attribute("human.default_choice", is_setting=True),
    Attribute("human.timeout", (), "duration", is_limit=True, is_setting=True),
    Attribute("manager.poll_interval", (), "duration", is_setting=True),
    Attribute("manager.max_cycles", (), "count", 1, is_setting=True),
    Attribute("stack.child_autostart", (), "boolean"),
    Attribute("duration", (), "duration"),
    Attribute("item_timeout", (), "duration", is_limit=True),
    Attribute("answer_timeout", (), "duration", is_limit=True),
    Attribute("threshold", (), "number", is_limit=True),
    Attribute("keep_best", (), "boolean"),
    Attribute("sandbox", is_limit=True),
    Attribute("allowed_tools", is_limit=True),
)  # fmt: skip
BY_NAME = {attribute.name: attribute for attribute in DEFINITIONS}
LIMIT_NAMES = frozenset(each.name for each in DEFINITIONS if each.is_limit)
SETTINGS = frozenset(each.name for each in DEFINITIONS if each.is_setting)
"""Attributes that are read before a node runs."""
ALIASES = {alias: attribute.name for attribute in DEFINITIONS for alias in attribute.aliases}
"""Name in another pipeline runner -> the name here."""
SYNONYMS = {each.name: dict(each.synonyms) for each in DEFINITIONS if each.synonyms}
"""Attribute -> value in another pipeline runner -> the value here."""
PROMPT_FILE = "prompt_file"
"""In other runners: the file that ``prompt="@file"`` names here."""
TYPED = frozenset(attribute.name for attribute in DEFINITIONS if attribute.type != "text")


@cache
def names_of(owner: OwnerName, kind: str = "") -> frozenset[str]:
    """The attributes of a graph, of an edge, or of a node of this kind; without a kind, of nodes of
    any kind. Aliases are not among them."""
    own = frozenset(each.name for each in DEFINITIONS if owner in each.owners)
    if owner != "node":
        return own
    return own | node_kinds.attributes_of(kind)


def find_written(attrs: Mapping[str, Value], name: str) -> tuple[str, Value] | None:
    """An attribute under its name, else under one of its aliases: the name as written, and its
    value. None: it has no value."""
    for key in (name, *BY_NAME[name].aliases):
        if (value := attrs.get(key)) not in (None, ""):
            return key, value
    return None
