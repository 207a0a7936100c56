"""The queue of events between the agent loop and the reader of a turn."""

from __future__ import annotations

import asyncio

from corral.protocol.ndjson import RawEvent

FULL = 1000
"""Items in the queue at which reading from the model stops."""


class EventQueue:
    """Events that the reader has not taken yet."""

    def __init__(self) -> None:
        self._items: list[RawEvent] = []
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    def put(self, item: RawEvent) -> None:
        self._items.append(item)
        self._filled.set()

    async def wait_for_room(self) -> None:
        """Wait while the queue is full: a slow reader slows the agent, and memory stays bounded."""
        while len(self._items) > FULL:
            self._emptied.clear()
            await self._emptied.wait()

    def take(self) -> list[RawEvent]:
        items, self._items = self._items, []
        self._filled.clear()
        self._emptied.set()
        return items

    async def wait(self) -> None:
        await self._filled.wait()

    def wake(self) -> None:
        self._filled.set()
