"""A connection of a session's own. Apart, as a stream agent needs nothing of the protocol."""

from __future__ import annotations

from corral.errors import ConfigError
from corral.io.environment import Eraser
from corral.sessions.chat import Chat
from corral.sessions.connection import Connection
from corral.sessions.prepare import Prepared
from corral.sessions.prompt_options import needs_new_process
from corral.sessions.store import Kept


class OwnLine:
    """A connection of the session's own, opened when first needed and again after a crash."""

    def __init__(self, prepared: Prepared, kept: Kept) -> None:
        self.chat: Chat | None = None
        self._prepared = prepared
        """What the process was started for."""
        self._kept = kept
        self._open: Connection | None = None

    async def connection(self, prepared: Prepared) -> Connection:
        """A process that ``prepared`` can be prompted with: the one that runs, or a new one.
        Raises ``ConfigError`` where a new one would lose the conversation."""
        if self._open is not None and self._open.dead is not None:
            await self.give_up(self._open)
        if self._open is not None and needs_new_process(prepared, self._prepared):
            self._check_loadable(self._open)
            await self.close()
        if self._open is None:
            self.chat = None
            eraser = Eraser(prepared.environment.redacted)
            self._open = await Connection.open(prepared, self._kept, eraser)
            self._prepared = prepared
        return self._open

    def _check_loadable(self, connection: Connection) -> None:
        begun = self._kept.meta.session_id is not None
        if begun and not connection.can_load:
            raise ConfigError(
                f"{self._prepared.agent.name} cannot change its model or policy for one prompt:"
                " they are fixed when its process starts, and it cannot load the conversation"
                " again",
                hint="Start another session with the other model or policy.",
            )

    async def give_up(self, connection: Connection) -> None:
        if self._open is connection:
            self._open, self.chat = None, None
        await connection.close(0.0)

    async def close(self) -> None:
        if self._open is not None:
            connection, self._open = self._open, None
            await connection.close(self._prepared.run.grace)
