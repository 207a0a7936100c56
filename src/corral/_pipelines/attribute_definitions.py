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
    text: str = ""
    """What users read about it, as Markdown; empty: its node kinds say it."""
    default: str = ""
    """What applies without it, if that can be said in a few words."""


_ALL: tuple[OwnerName, ...] = ("graph", "node", "edge")
_GRAPH: tuple[OwnerName, ...] = ("graph",)
_NODE: tuple[OwnerName, ...] = ("node",)
_EDGE: tuple[OwnerName, ...] = ("edge",)
_BOTH: tuple[OwnerName, ...] = ("graph", "node")

DEFINITIONS = (
    Attribute("label", _ALL, text="The name that is shown. A choice of a gate `[K] Keep`,"
              " `K) Keep` or `K - Keep` has the key K."),
    Attribute("goal", _GRAPH, text="`$goal` in texts; `--goal` sets it."),
    Attribute("model_stylesheet", _GRAPH,
              text="`* { model: …; } .class { … } #node { agent: …; }`"),
    Attribute("default_max_retries", _GRAPH, "count", aliases=("default_max_retry",), default="0",
              text="For nodes without `max_retries`."),
    Attribute("default_fidelity", _GRAPH, default="compact",
              text="How much an agent is given of the run so far."),
    Attribute("on_budget", _GRAPH, is_limit=True, default="stop",
              text="`pause`: at a limit of the run, model calls wait until it is raised."),
    *(
        Attribute(name, _GRAPH, is_limit=True,
                  text="The most that all model calls of the run may use.")
        for name in LIMITS
    ),
    Attribute("max_visits", _BOTH, "count", 1, default="50",
              aliases=("max_node_visits", "default_max_visits"), is_limit=True,
              text="How often a node may be visited, in all branches together, against endless"
              " loops."),
    Attribute("retry_target", _BOTH,
              text="Where to go if the node fails, or its goal gate does. That of the graph does"
              " not count in branches."),
    Attribute("fallback_retry_target", _BOTH, text="The same, after `retry_target`."),
    Attribute("error_policy", _BOTH, "choice", choices=("fail", "continue"), default="fail",
              synonyms=(("fail_fast", "fail"), ("ignore", "continue")),
              text="`continue`: follow a plain edge after a failure."),
    Attribute("verdict", _BOTH, "choice", choices=("on", "off"), default="on",
              text="`off`: do not ask the agent to report an outcome."),
    Attribute("agent", _BOTH, is_setting=True, default="`--agent`",
              text="Any of `corral agents list`, or a command that speaks ACP."),
    Attribute("policy", _BOTH, is_limit=True, default="`--approve`",
              text="What its agent, or the command of a `tool`, may do: `reads`, `edits`, `all`."),
    Attribute("pass_env", _BOTH, text="Variables that commands see, with commas."),
    Attribute("tool_hooks.pre", _BOTH, text="A command before each tool call of an agent."),
    Attribute("tool_hooks.post", _BOTH, text="A command after each tool call of an agent."),
    Attribute("stack.child_dotfile", _BOTH, aliases=("stack.child_workflow",), is_setting=True,
              text="The pipeline of managers: next to this file, or in the workspace."),
    Attribute("stack.child_workdir", _BOTH, is_setting=True, text="The folder of that pipeline."),
    Attribute("thread_id", _ALL, is_setting=True,
              text="The thread whose session `fidelity=full` continues."),
    Attribute("fidelity", ("node", "edge"), is_setting=True,
              text="`full`: the agent continues the session of its thread."),
    Attribute("shape", _NODE, default="box", text="Selects the type."),
    Attribute("type", _NODE, aliases=("node_type", "handler"), text="Wins over the shape."),
    Attribute("class", _NODE, is_setting=True, text="For the stylesheet."),
    Attribute("model", _NODE, is_setting=True, default="`--model`",
              text="`vendor:model` runs the built-in agent on it."),
    Attribute("llm_model", _NODE, is_setting=True, text="The model, without its vendor."),
    Attribute("llm_provider", _NODE, is_setting=True, text="Its vendor."),
    Attribute("reasoning_effort", _NODE, is_setting=True,
              text="The reasoning effort of the model."),
    Attribute("max_retries", _NODE, "count", is_setting=True, default="that of the graph",
              text="Attempts after the first."),
    Attribute("goal_gate", _NODE, "boolean", default="false",
              text="It must have succeeded when the run reaches the exit."),
    Attribute("auto_status", _NODE, "boolean", default="false",
              text="It has succeeded if no `status.json` was written."),
    Attribute("allow_partial", _NODE, "boolean", default="false",
              text="After the last attempt: `partial_success` instead of `fail`. A failure needs"
              " `max_retries` at the node, which may be 0."),
    Attribute("timeout", _NODE, "duration", is_limit=True, is_setting=True, default="1h",
              text="Time for the node."),
    Attribute("on_crash", _NODE, "choice", choices=("rerun", "fail", "resume"), default="rerun",
              text="If its process died: start again, fail, or continue the agent's session."),
    Attribute("queue", _NODE, text="A name whose limit of `corral worker --limit` it counts for."),
    Attribute("detached", _NODE, default="true on one machine",
              text="`false`: its work ends with the process that runs it."),
    Attribute("condition", _EDGE, text="`outcome=success && context.tests != red`; also `||`,"
              " `!`, parentheses, `contains`, `matches` (a regular expression), `!contains`,"
              " `!matches`, and `< <= > >=` on numbers. `key=` is true if the key is empty."),
    Attribute("weight", _EDGE, "number", default="0", text="The highest first."),
    Attribute("loop_restart", _EDGE, "boolean", default="false",
              text="The run restarts at its target, with a new folder."),
    *(
        Attribute(name, _EDGE, text=f"Of a choice of a human gate: raises `{raised}` of the run.")
        for name, raised in run_limits.RAISES.items()
    ),
    # Of some node kinds.
    Attribute("prompt", aliases=("llm_prompt",), default="the label",
              text="What the agent or model gets. `@plan.md`, or `prompt_file=\"plan.md\"`, reads a"
              " file next to the pipeline, otherwise in the workspace, and no other file."),
    Attribute("tool_command", aliases=("script", "command", "cmd"), text="A command, in a shell."),
    Attribute("system_prompt", aliases=("system",),
              text="A text that is added to the agent's system prompt."),
    Attribute("output_key", aliases=("stdout_key",), text="A key for the complete output."),
    Attribute("max_parallel", (), "count", 1, aliases=("concurrency",), is_setting=True,
              default="4", text="How many at once."),
    Attribute("join_policy", (), "choice", choices=("wait_all", "first_success"),
              is_setting=True, default="wait_all",
              text="`wait_all` needs one branch that did not fail; `first_success` cancels"
              " the others."),
    Attribute("worktree", (), "choice", choices=("shared", "branch"), default="shared",
              text="`branch`: each branch or item has its own git worktree."),
    Attribute("on_conflict", (), "choice", choices=("fail", "first", "ask", "resume"),
              default="fail",
              text="If two branches changed the same lines."),
    Attribute("merge", (), "boolean", default="true",
              text="`false`: the branches are kept for a node `merge`."),
    Attribute("into", text="The branch that others are merged into."),
    Attribute("gate", text="The command that must succeed first; without placeholders."),
    Attribute("gate_timeout", (), "duration", is_limit=True, default="30m",
              text="Time for the gate."),
    Attribute("gate_sandbox", (), "choice", choices=("auto", "require"), is_limit=True,
              text="The gate runs in the [sandbox](sandbox.md), without a network."),
    Attribute("human.default_choice", is_setting=True,
              text="The choice if no one answers in time."),
    Attribute("human.timeout", (), "duration", is_limit=True, is_setting=True,
              text="The time for an answer; without it the gate waits for ever."),
    Attribute("manager.poll_interval", (), "duration", is_setting=True, default="45s",
              text="How often it looks at its child."),
    Attribute("manager.max_cycles", (), "count", 1, is_setting=True, default="1000",
              text="How many times."),
    Attribute("stack.child_autostart", (), "boolean", text="`false`: it does not start its child."),
    Attribute("duration", (), "duration", text="How long it sleeps."),
    Attribute("item_timeout", (), "duration", is_limit=True, text="Time for each item."),
    Attribute("answer_timeout", (), "duration", is_limit=True, default="24h",
              text="How long its agent waits for an answer."),
    Attribute("threshold", (), "number", is_limit=True, default="0.9",
              text="The fraction of the scenarios that must be satisfied."),
    Attribute("keep_best", (), "boolean", default="true",
              text="Put the files back to the best state so far if they are worse."),
    Attribute("sandbox", is_limit=True, default="that of the run",
              text="[Corral's sandbox](sandbox.md), for its agent or command."),
    Attribute("allowed_tools", is_limit=True, text="The only tools that its agent may use."),
    Attribute("credential", text="Counts for the limit `AGENT@CREDENTIAL` of workers."),
    Attribute("output_schema", text="A JSON Schema; the value is `<node>.output`."),
    Attribute("until", text="A command that must succeed before the agent is done."),
    Attribute("rounds",
              text="How often `until` sends the agent back, or the session of a branch is asked."),
    Attribute("questions", default="false", text="Its agent may ask the person of the run."),
    Attribute("temperature", text="Of a model call."),
    Attribute("max_tokens", text="The most tokens of the answer of a model call."),
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
