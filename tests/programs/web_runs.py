"""A web application that runs the agent of the query in a request, without a framework (ASGI)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import corral

Message = MutableMapping[str, Any]


async def app(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    """Responds with the package of the event loop, the status and the text."""
    query = dict(parse_qsl(scope["query_string"].decode()))
    result = await corral.run(query["agent"], "What is it", model=query.get("model"))
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    body = f"{loop} {result.status} {result.text}".encode()
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": body})
