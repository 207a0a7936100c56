"""The files of a session that the client reads and writes itself (``fs/*``)."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import msgspec

from corral._protocol.acp.frames import ReadFileParams, ReadFileReply, WriteFileParams
from corral._protocol.jsonrpc import RESOURCE_NOT_FOUND
from corral._serving.acp.editor_client import ClientError, EditorClient
from corral._sessions.prepared_run import EditorError, EditorTimeout
from corral._system import fs
from corral._system.paths import is_inside
from corral.values import Json, convert_to

if TYPE_CHECKING:
    from corral._sessions.session import Session

FILE_TIMEOUT = 30.0
"""Seconds that the client gets to read or write a file. It may ask a person before it writes."""


class ClientFiles:
    """See ``corral._sessions.prepared_run``. Files outside of the session's folder belong to no
    project of the client, which would refuse them."""

    def __init__(self, client: EditorClient) -> None:
        self._client = client
        self._session_id = ""
        self._cwd = self._named_cwd = ""
        self._timeout = FILE_TIMEOUT

    def open(self, session: Session, named_cwd: str) -> None:
        """``named_cwd`` is the folder as the client has named it, perhaps through a link: it knows
        its files by this name."""
        self._session_id = session.id
        self._cwd, self._named_cwd = session.prepared.cwd, named_cwd
        self._timeout = min(FILE_TIMEOUT, session.prepared.run.answer_timeout)

    def reads(self, path: str) -> bool:
        return self._client.files.read_text_file and is_inside(path, self._cwd)

    def writes(self, path: str) -> bool:
        return self._client.files.write_text_file and is_inside(path, self._cwd)

    async def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        params = ReadFileParams(self._session_id, self._named(path), line=line, limit=limit)
        try:
            result = await self._request("fs/read_text_file", params)
            return convert_to(result, ReadFileReply).content
        except msgspec.ValidationError as error:
            raise EditorError(f"its reply is not valid: {error}") from error
        except ClientError as error:
            # Clients report a file that does not exist as they like.
            missing = error.code == RESOURCE_NOT_FOUND or not fs.exists(path)
            raise EditorError(str(error), is_missing=missing) from error

    async def write(self, path: str, content: str) -> None:
        params = WriteFileParams(self._session_id, self._named(path), content)
        try:
            await self._request("fs/write_text_file", params)
        except ClientError as error:
            raise EditorError(str(error)) from error

    def _named(self, path: str) -> str:
        return os.path.join(self._named_cwd, os.path.relpath(path, self._cwd))

    async def _request(self, method: str, params: ReadFileParams | WriteFileParams) -> Json:
        """Raises ``ClientError`` and ``EditorTimeout``."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._client.request(method, self._session_id, params)
        except TimeoutError as error:
            raise EditorTimeout(f"it did not answer within {self._timeout:g} s") from error
