"""Before a run spends anything: each node's agent is there, its key is set, its policy holds.

What a node can only know when it runs (a hole in the name of its model) is not looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from corral.agents import registry as agents_registry
from corral.agents.spec import InProcess
from corral.errors import CorralError
from corral.pipelines import node_kinds
from corral.pipelines.execution import agent_call, node_options
from corral.pipelines.execution.handlers import NodeContext
from corral.pipelines.execution.resources import NodeResources
from corral.pipelines.graph import Graph, Node
from corral.pipelines.scheduler.commands import RunNode
from corral.values import Json


def check(
    graph: Graph, resources: NodeResources, workspace: Path, values: Mapping[str, Json]
) -> None:
    """Raises what the node would fail with, and names the node. Nothing is started. Resources
    that simulate need nothing."""
    if resources.simulate:
        return
    seen: set[bytes] = set()
    for node in graph.of_kind(*node_kinds.LLM_KINDS):
        if any("{{" in str(value) for value in _settings(node)):
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
            _check(work, resources, seen)
        except CorralError as error:
            if not error.message.startswith(f"{node.id}:"):
                error.message = f"node {node.id!r}: {error.message}"
            raise


def _settings(node: Node) -> Iterator[object]:
    keys = ("agent", "model", "llm_model", "llm_provider", "output_schema", "policy")
    return (node.attrs.get(key, "") for key in keys)


def _check(work: NodeContext, resources: NodeResources, seen: set[bytes]) -> None:
    if node_kinds.find(work.node.kind).llm == "model":
        node_options.schema_of(work)
        _key(node_options.model_of(work.node, resources), resources)
        return
    from corral.sessions.prepare import prepare

    ask = agent_call.build_call(work, resources)
    kept = msgspec.json.encode([ask.agent, ask.options], enc_hook=str, order="sorted")
    if kept in seen:
        return
    seen.add(kept)
    prepared = prepare(ask.agent, ask.options, has_asker=resources.ask is not None)
    if isinstance(prepared.agent.transport, InProcess):
        model = prepared.run.model or ask.agent
        _key(model, resources)


def _key(model: str | None, resources: NodeResources) -> None:
    """Raises ``MissingKey``."""
    from corral.models import registry
    from corral.system import api_keys as keys

    if model is not None and agents_registry.names_a_model(model):
        keys.access(registry.split_model(model)[0], {**os.environ, **resources.env})
