"""The desks of a process: one for each manner of running agents, opened when first needed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, cast

import msgspec

from corral.agents.registry import DEFAULT_AGENT
from corral.durable.payloads import RunConfig
from corral.pipelines.execution.resources import PROMPTS_AT_ONCE, NodeResources
from corral.policy import Policy


def open_desk(setting: RunConfig) -> NodeResources:
    """Not entered yet."""
    options: dict[str, Any] = dict(setting.options)
    if isinstance(options.get("policy"), dict):
        options["policy"] = msgspec.convert(options["policy"], Policy)
    return NodeResources(
        simulate=setting.simulate,
        model=setting.model or None,
        options=cast("Any", options),
        agent=setting.agent or DEFAULT_AGENT,
        processes=max(1, -(-setting.at_once // PROMPTS_AT_ONCE)),
    )


class Desks:
    def __init__(self) -> None:
        self._open: dict[bytes, NodeResources] = {}
        self._stack = AsyncExitStack()

    async def find(self, setting: RunConfig) -> NodeResources:
        key = msgspec.json.encode(
            [setting.simulate, setting.agent, setting.model, setting.options, setting.at_once],
            order="sorted",
        )
        desk = self._open.get(key)
        if desk is None:
            desk = self._open[key] = open_desk(setting)
            await self._stack.enter_async_context(desk)
        return desk

    async def close(self) -> None:
        self._open.clear()
        await self._stack.aclose()
