"""The client of ``corral acp``, as its sessions need it."""

from __future__ import annotations

from typing import Protocol

from corral._protocol.acp.frames import FileSystemCapabilities
from corral.values import Json


class ClientError(Exception):
    """The error with which the client has answered a request."""

    def __init__(self, code: float, message: str) -> None:
        super().__init__(message)
        self.code = code


class EditorClient(Protocol):
    @property
    def files(self) -> FileSystemCapabilities:
        """What the client does with files."""
        ...

    async def send(self, data: bytes) -> None:
        """Send, and wait until the client has taken it."""
        ...

    async def request(self, method: str, session_id: str, params: object) -> Json:
        """Call a method of the client. Raises ``ClientError``."""
        ...
