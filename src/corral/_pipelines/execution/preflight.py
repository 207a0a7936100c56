"""Checks before a run costs anything: each node's agent is installed, its key is set, and its
policy can be enforced.

An attribute with a placeholder (``model="{{model}}"``) cannot be checked before the run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from corral._agents import registry as agents_registry
from corral._agents.spec import InProcess
from corral._metering.budget import memory_budget
from corral._pipelines import node_kinds
from corral._pipelines.execution import agent_call, node_options
from corral._pipelines.execution.handlers import NodeContext, NodeResources
from corral._pipelines.execution.node_options import command_sandbox
from corral._pipelines.graph import Graph
from corral._pipelines.run_limits import run_limits
from corral._pipelines.scheduler.commands import RunNode
from corral._system import fs
from corral._system.environment import variables
from corral.errors import ConfigError, CorralError
from corral.values import Json

SETTINGS = ("agent", "model", "llm_model", "llm_provider", "output_schema", "policy")


def check(
    graph: Graph, resources: NodeResources, workspace: Path, values: Mapping[str, Json]
) -> None:
    """Raises the error with which a node would fail, with the name of the node. Starts nothing."""
    checked: set[bytes] = set()
    checked_kinds = (node_kinds.TOOL.name, node_kinds.SCENARIOS.name)
    for node in graph.of_kind(*node_kinds.LLM_KINDS, *checked_kinds):
        if any("{{" in node.text(key) for key in SETTINGS):
            continue
        work = NodeContext(
            run_id="",
            graph=graph,
            node=node,
            visit=RunNode(id="", node=node.id, number=0, context=dict(values)),
            attempt=0,
            folder=workspace,
            run_folder=workspace,
            workspace=workspace,
            resources=resources,
        )
        try:
            _check_node(work, checked)
        except CorralError as error:
            if not error.message.startswith(f"{node.id}:"):
                error.message = f"node {node.id!r}: {error.message}"
            raise


def _check_node(work: NodeContext, checked: set[bytes]) -> None:
    """``checked``: the calls that were checked already."""
    if work.node.kind == node_kinds.TOOL.name:
        command_sandbox(work)
        return
    if work.node.kind == node_kinds.SCENARIOS.name:
        _check_scenarios(work)
        return
    if node_kinds.find(work.node.kind).llm == "model":
        node_options.read_output_schema(work)
        _check_key(node_options.model_of(work.node, work.resources), work.resources)
        return
    from corral._sessions.prepare import prepare

    call = agent_call.build_call(work)
    key = msgspec.json.encode([call.agent, call.options], enc_hook=str, order="sorted")
    if key in checked:
        return
    checked.add(key)
    budget = memory_budget(run_limits(work.graph), None) if work.graph.has_limits else None
    prepared = prepare(
        call.agent,
        {**call.options},
        has_asker=work.resources.ask is not None,
        on_tool_call=work.resources.on_tool_call,
        budget=budget,
    )
    if isinstance(prepared.agent.transport, InProcess):
        _check_key(prepared.run.model or call.agent, work.resources)


def _check_scenarios(work: NodeContext) -> None:
    node_options.scenario_check(work).check_judge()
    node_options.scenario_sandbox(work)
    folder = node_options.scenario_folder(work.node, work.workspace)
    given = [os.fspath(path) for path in work.resources.options.get("hidden") or ()]
    children = [*work.graph.of_kind(*node_kinds.CHILD_KINDS)]
    if children and not any(fs.real_path(path) == fs.real_path(folder) for path in given):
        raise ConfigError(
            f"{children[0].id} runs another pipeline, whose agents could read the scenarios",
            hint=f"Hide them from all nodes: --hide {folder}",
        )


def _check_key(model: str | None, resources: NodeResources) -> None:
    """Raises ``MissingKey``."""
    from corral._models import registry
    from corral._system import api_keys

    if model is not None and agents_registry.names_a_model(model):
        api_keys.access(registry.split_model(model)[0], variables(resources.env))
