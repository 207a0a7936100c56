"""A connection of a session's own. Apart, as a stream agent needs nothing of the protocol."""

from __future__ import annotations

from corral.io.environment import Eraser
from corral.sessions.chat import Chat
from corral.sessions.connection import Connection
from corral.sessions.prepare import Prepared
from corral.sessions.store import Kept


class OwnLine:
    """A connection of the session's own, opened when first needed and again after a crash."""

    def __init__(self, prepared: Prepared, kept: Kept, eraser: Eraser) -> None:
        self.chat: Chat | None = None
        self._prepared = prepared
        self._kept = kept
        self._eraser = eraser
        self._open: Connection | None = None

    async def connection(self) -> Connection:
        if self._open is not None and self._open.dead is not None:
            await self.give_up(self._open)
        if self._open is None:
            self.chat = None
            self._open = await Connection.open(self._prepared, self._kept, self._eraser)
        return self._open

    async def give_up(self, connection: Connection) -> None:
        if self._open is connection:
            self._open, self.chat = None, None
        await connection.close(0.0)

    async def close(self) -> None:
        if self._open is not None:
            connection, self._open = self._open, None
            await connection.close(self._prepared.run.grace)
