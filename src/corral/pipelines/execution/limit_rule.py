"""What a node's agent does at a rate limit: by the node, the run's options or ``corral.toml``."""

from __future__ import annotations

import msgspec

from corral.options import RunOptions
from corral.pipelines import node_kinds
from corral.pipelines.execution.handlers import NodeContext
from corral.pipelines.graph import Node
from corral.run_kwargs import RunKwargs
from corral.system import config


class LimitRule(msgspec.Struct, frozen=True):
    on_limit: str
    max_wait: float


def limit_rule(node: Node, options: RunKwargs, agent: str) -> LimitRule:
    """The rule of a node with this agent; ``options`` are those of the run. Raises
    ``ConfigError``."""
    spec = config.find_agent(agent)
    given: dict[str, object] = {
        "on_limit": node.text("on_limit") or options.get("on_limit"),
        "max_wait": node.text("max_wait") or options.get("max_wait"),
    }
    given = {name: value for name, value in given.items() if value is not None}
    run = RunOptions.build(spec.name, given, config.load(spec.name), "corral.toml")
    return LimitRule(run.on_limit, run.max_wait)


def node_rule(work: NodeContext) -> LimitRule | None:
    """The same; None if the node runs no agent. Raises ``ConfigError``."""
    if work.resources.simulate or node_kinds.find(work.node.kind).llm != "agent":
        return None
    from corral.pipelines.execution.agent_call import agent_of

    return limit_rule(work.node, work.resources.options, agent_of(work)[0])
