"""Middleware around every model call: logging, caching, budgets, changes of the request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeAlias

from corral.model_types import Request, Response, StreamEvent

Complete: TypeAlias = Callable[[Request], Awaitable[Response]]
Streamed: TypeAlias = Callable[[Request], AsyncIterator[StreamEvent]]


class Middleware:
    """Override either method or both. The first middleware of a client is the outermost; retries
    happen inside all of them.

    ::

        class Logged(models.Middleware):
            async def complete(self, request, call):
                response = await call(request)
                print(request.model, response.usage)
                return response

        client = models.Client(middleware=[Logged()])
    """

    async def complete(self, request: Request, call: Complete) -> Response:
        return await call(request)

    def stream(self, request: Request, call: Streamed) -> AsyncIterator[StreamEvent]:
        return call(request)


def around_complete(layers: Sequence[Middleware], core: Complete) -> Complete:
    for layer in reversed(layers):
        core = _complete(layer, core)
    return core


def around_stream(layers: Sequence[Middleware], core: Streamed) -> Streamed:
    for layer in reversed(layers):
        core = _stream(layer, core)
    return core


def _complete(layer: Middleware, inner: Complete) -> Complete:
    async def call(request: Request) -> Response:
        return await layer.complete(request, inner)

    return call


def _stream(layer: Middleware, inner: Streamed) -> Streamed:
    def call(request: Request) -> AsyncIterator[StreamEvent]:
        return layer.stream(request, inner)

    return call
