"""The node resources of a process: one set per configuration, opened when it is first needed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, cast

import msgspec

from corral.agents.registry import DEFAULT_AGENT
from corral.durable.payloads import RunConfig
from corral.pipelines.execution.resources import PROMPTS_AT_ONCE, NodeResources
from corral.policy import Policy


def open_resources(config: RunConfig) -> NodeResources:
    """The resources for nodes with this configuration, not entered yet."""
    options: dict[str, Any] = dict(config.options)
    if isinstance(options.get("policy"), dict):
        options["policy"] = msgspec.convert(options["policy"], Policy)
    return NodeResources(
        simulate=config.simulate,
        model=config.model or None,
        options=cast("Any", options),
        agent=config.agent or DEFAULT_AGENT,
        processes=max(1, -(-config.at_once // PROMPTS_AT_ONCE)),
    )


class ResourceCache:
    def __init__(self) -> None:
        self._open: dict[bytes, NodeResources] = {}
        self._stack = AsyncExitStack()

    async def find(self, config: RunConfig) -> NodeResources:
        key = msgspec.json.encode(
            [config.simulate, config.agent, config.model, config.options, config.at_once],
            order="sorted",
        )
        resources = self._open.get(key)
        if resources is None:
            resources = self._open[key] = open_resources(config)
            await self._stack.enter_async_context(resources)
        return resources

    async def close(self) -> None:
        self._open.clear()
        await self._stack.aclose()
