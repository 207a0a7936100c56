"""What a node asks for: which agent or model, under which policy, within which limits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import msgspec

from corral.agents import registry
from corral.agents.spec import AgentSpec
from corral.errors import ConfigError
from corral.nesting import decode_json
from corral.options import RunOptions
from corral.pipelines.execution.handlers import NodeContext
from corral.pipelines.execution.resources import NodeResources
from corral.pipelines.graph import Node
from corral.policy import PRESETS, Policy, with_tools
from corral.system import config
from corral.values import Effort, Json

Number = TypeVar("Number", int, float)

TIMEOUT = 3600.0
"""Seconds that an agent may work, where the node has no ``timeout``."""
OWN = "corral"
"""Our own agent, which runs on any model."""


def model_of(node: Node, resources: NodeResources) -> str | None:
    """``vendor:name`` of ``model``, or of ``llm_provider`` and ``llm_model``; a bare name where
    no vendor is told."""
    name = node.text("model") or node.text("llm_model")
    provider = node.text("llm_provider")
    if not name:
        return resources.model
    if provider and not registry.names_a_model(name):
        return f"{provider}:{name}"
    return name


def agent_of(work: NodeContext, resources: NodeResources) -> tuple[str, str | None]:
    """The agent, and the model as that agent names it. Raises ``ConfigError``."""
    named = work.node.text("agent") or str(work.graph.attrs.get("agent", ""))
    model = model_of(work.node, resources)
    if registry.names_a_model(named):
        return named, None
    if not named:
        # A vendor's model runs on our own agent, a bare name on the usual one.
        if model is not None and ":" in model:
            return registry.default(model), None
        named = resources.agent
    agent = config.find_agent(named)
    if agent.name == OWN or model is None:
        return named, model
    bare = model.partition(":")[2] if registry.names_a_model(model) else model
    return named, bare


def policy_of(work: NodeContext, resources: NodeResources) -> Policy | None:
    """The policy of the node, else of the resources; None if neither has one."""
    node = work.node
    name = node.text("policy") or str(work.graph.attrs.get("policy", ""))
    given = {
        key: resources.options[key]
        for key in ("policy", "approval_mode", "allowed_tools")
        if resources.options.get(key) is not None
    }
    policy = RunOptions.build(OWN, given).policy if given else None
    if name:
        if name not in PRESETS:
            raise ConfigError(
                f"{node.id}: policy must be one of {', '.join(PRESETS)}, got: {name!r}"
            )
        policy = PRESETS[name]
    if "allowed_tools" in node.attrs:
        tools = tuple(names(node.text("allowed_tools")))
        policy = with_tools(policy or Policy(), tools)
    return policy


def names(text: str) -> list[str]:
    """Of a comma list."""
    return [name for each in text.split(",") if (name := each.strip())]


def options_of(
    work: NodeContext, resources: NodeResources, agent: str
) -> tuple[dict[str, Any], list[str]]:
    """The options of ``corral.run``, and what had to be left out. Raises ``ConfigError``."""
    node = work.node
    record = config.find_agent(agent)
    options = {
        key: value
        for key, value in resources.options.items()
        if key not in ("policy", "approval_mode", "allowed_tools", "model", "cwd")
    }
    options |= {"cwd": str(work.workspace), "timeout": node.seconds("timeout") or TIMEOUT}
    if (policy := policy_of(work, resources)) is not None:
        options["policy"] = policy
    if passed := resources.pass_env(work):
        options["pass_env"] = passed
    for key in ("system_prompt", "session_mode"):
        if text := node.text(key):
            options[key] = text
    for key in ("max_turns", "max_tool_rounds"):
        if key in node.attrs:
            options[key] = number_of(node, key, int)
    if "max_budget_usd" in node.attrs:
        options["max_budget_usd"] = number_of(node, "max_budget_usd", float)
    for key in ("images", "attachments"):
        if listed := names(node.text(key)):
            options[key] = listed
    return options, _set_effort(node, record, options)


def _set_effort(node: Node, record: AgentSpec, options: dict[str, Any]) -> list[str]:
    """Set ``reasoning_effort`` if the agent has it. Returns a note if it does not: a stylesheet
    sets it for every node."""
    if effort := node.text("reasoning_effort"):
        if effort not in get_args(Effort):
            raise ConfigError(
                f"{node.id}: reasoning_effort must be one of {', '.join(get_args(Effort))},"
                f" got: {effort!r}"
            )
        if "reasoning_effort" not in record.supports:
            return [f"{record.name} has no reasoning_effort"]
        options["reasoning_effort"] = effort
    return []


def number_of(node: Node, key: str, kind: type[Number]) -> Number:
    """Raises ``ConfigError``."""
    try:
        return kind(node.attrs[key])
    except ValueError:
        raise ConfigError(f"{node.id}: {key} must be a number, got: {node.text(key)!r}") from None


def schema_of(work: NodeContext) -> dict[str, Json] | None:
    """``output_schema``: JSON in place, or a file of it in the workspace. Raises
    ``ConfigError``."""
    text = work.node.text("output_schema").strip()
    if not text:
        return None
    where = "output_schema"
    if not text.startswith("{"):
        path = Path(os.path.join(work.workspace, text))
        where = f"output_schema {path}"
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{work.node.id}: {where} cannot be read: {error}") from error
    try:
        schema: object = decode_json(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{work.node.id}: {where} is no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ConfigError(f"{work.node.id}: {where} is no JSON Schema: it must be an object")
    return cast("dict[str, Json]", schema)
