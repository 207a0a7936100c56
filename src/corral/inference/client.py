"""The client: requests to any vendor, with retries, middleware and one pool of connections.

::

    async with Client.from_env() as client:
        response = await client.complete(Request(model="gemini:gemini-2.5-flash", messages=…))
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping

from corral.errors import CorralError
from corral.inference.middleware import Middleware, around_complete, around_stream
from corral.inference.retry import attempts
from corral.inference.transport import Reading, Sent, encode, failed_event, read_whole, send
from corral.model_types import Request, Response, StreamEvent
from corral.models import registry
from corral.models.spec import Provider
from corral.system import catalogue_overrides
from corral.system.api_keys import Access, access, has_key
from corral.system.http.client import Http

RETRIES = 2


class Client:
    """Vendors and their keys, for one event loop. Close it, or use it as ``async with``."""

    def __init__(
        self,
        *,
        keys: Mapping[str, str] | None = None,
        base_urls: Mapping[str, str] | None = None,
        providers: Iterable[Provider] = (),
        middleware: Iterable[Middleware] = (),
        max_retries: int = RETRIES,
        connect_timeout: float = 15.0,
        read_timeout: float = 300.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """``keys`` and ``base_urls`` by vendor's name win over the environment; ``providers``
        are further vendors, or others of a known name. ``environ`` replaces the process's
        own environment, an empty one shuts it out."""
        self._own = {provider.name: provider for provider in providers}
        self._keys = {self._named(name): key for name, key in (keys or {}).items()}
        self._base_urls = {self._named(name): url for name, url in (base_urls or {}).items()}
        self._known: dict[str, tuple[Provider, str]] = {}
        """Models that were asked for: whose they are, and their names there."""
        self._middleware = tuple(middleware)
        self._max_retries = max_retries
        self._environ = environ
        self._http = Http(connect_timeout=connect_timeout, read_timeout=read_timeout)

    @classmethod
    def from_env(cls, *, middleware: Iterable[Middleware] = (), **options: float) -> Client:
        """The vendors whose key is in the environment now. No key at all is told by the first
        call, with the name of the variable."""
        return cls(middleware=middleware, environ=dict(os.environ), **options)  # type: ignore[arg-type]

    @property
    def providers(self) -> tuple[str, ...]:
        """The vendors that can be called: their key is known."""
        every = {provider.name: provider for provider in registry.all_providers()} | self._own
        return tuple(
            name
            for name, provider in every.items()
            if name in self._keys or has_key(provider, self._environ)
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.close()

    def check(self, model: str) -> None:
        """Raise what would keep this model from being called: an unknown vendor, no key."""
        self._access(model)

    async def complete(self, request: Request, *, max_retries: int | None = None) -> Response:
        """The whole answer. Raises ``CorralError`` of the kind that the failure is."""
        retries = self._max_retries if max_retries is None else max_retries

        if not self._middleware:
            return await self._complete(request, retries)

        async def core(request: Request) -> Response:
            return await self._complete(request, retries)

        return await around_complete(self._middleware, core)(request)

    async def _complete(self, request: Request, retries: int) -> Response:
        found, name = self._access(request.model)
        encoded = await encode(request, found, name, streamed=False)

        async def once() -> Response:
            sent = await send(self._http, encoded, found, request, name)
            return await read_whole(sent, request.model)

        return await attempts(once, retries)

    def stream(
        self,
        request: Request,
        *,
        max_retries: int | None = None,
        on_retry: Callable[[CorralError, float], None] | None = None,
    ) -> AnswerStream:
        """The events of an answer. Tried again only while none has reached the caller;
        ``on_retry`` is told of it, with the seconds until then."""
        retries = self._max_retries if max_retries is None else max_retries
        if not self._middleware:
            return AnswerStream(_Batches(self, request, retries, on_retry))

        def core(request: Request) -> AsyncIterator[StreamEvent]:
            return AnswerStream(_Batches(self, request, retries, on_retry))

        return AnswerStream(_Singly(around_stream(self._middleware, core)(request)))

    def _named(self, name: str) -> str:
        """A vendor's own name. Raises ``UnknownProvider``: a key for nobody is a slip."""
        return name if name in self._own else registry.find(name).name

    def _access(self, model: str) -> tuple[Access, str]:
        known = self._known.get(model) if isinstance(model, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        provider, name = known or self._find(model)
        key, url = self._keys.get(provider.name), self._base_urls.get(provider.name)
        return access(provider, self._environ, key=key, base_url=url), name

    def _find(self, model: str) -> tuple[Provider, str]:
        prefix, colon, name = model.partition(":") if isinstance(model, str) else ("", "", "")  # pyright: ignore[reportUnnecessaryIsInstance]
        provider = self._own.get(prefix)
        if provider is None or not colon or not name:
            provider, name = registry.split(model)
        name = catalogue_overrides.catalogue().unaliased(provider.name, name)
        self._known[model] = provider, name
        return provider, name

    async def begin(self, request: Request) -> Sent:
        """Send a request whose answer is to come as events."""
        found, name = self._access(request.model)
        encoded = await encode(request, found, name, streamed=True)
        return await send(self._http, encoded, found, request, name)


class _Batches:
    """Events in the batches they came in, with retries before the first."""

    def __init__(
        self,
        client: Client,
        request: Request,
        retries: int,
        on_retry: Callable[[CorralError, float], None] | None,
    ) -> None:
        self._client = client
        self._request = request
        self._retries = retries
        self._on_retry = on_retry
        self._reading: Reading | None = None
        self._failure: CorralError | None = None
        self._over = False

    async def batch(self) -> list[StreamEvent]:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._over = True
            raise failure
        if self._over:
            return []
        if self._reading is None:
            return await self._first()
        try:
            return await self._reading.batch()
        except CorralError as error:
            # The caller has events already: what is wrong is told as one, and raised next.
            self._failure = error
            return [*self._reading.left(), failed_event(error)]

    async def _first(self) -> list[StreamEvent]:
        async def once() -> list[StreamEvent]:
            reading = self._reading = Reading(
                await self._client.begin(self._request), self._request.model
            )
            return await reading.batch()

        try:
            return await attempts(once, self._retries, on_retry=self._on_retry)
        except CorralError:
            self._over = True
            raise

    @property
    def response(self) -> Response | None:
        return self._reading.response if self._reading is not None else None

    def close(self) -> None:
        self._over = True
        if self._reading is not None:
            self._reading.close()


class _Singly:
    """Events of an iterator that knows no batches, such as a middleware's."""

    def __init__(self, events: AsyncIterator[StreamEvent]) -> None:
        self._events = events
        self.response: Response | None = None

    async def batch(self) -> list[StreamEvent]:
        try:
            event = await anext(self._events)
        except StopAsyncIteration:
            return []
        self.response = getattr(event, "response", None) or self.response
        return [event]

    def close(self) -> None:
        close = getattr(self._events, "close", None)
        if close is not None:
            close()


class AnswerStream:
    """The events of one answer, as ``async for``. Left half-way, the connection is closed; as
    ``async with`` at once. ``response`` is the whole answer, once ``finish`` was handed out."""

    def __init__(self, source: _Batches | _Singly) -> None:
        self._source = source
        self._left: list[StreamEvent] = []

    @property
    def response(self) -> Response | None:
        return self._source.response

    def __aiter__(self) -> AsyncGenerator[StreamEvent, None]:
        return self._events()

    async def _events(self) -> AsyncGenerator[StreamEvent, None]:
        batch = self._source.batch
        try:
            while events := await batch():
                for event in events:
                    yield event
        finally:
            self._source.close()

    async def __anext__(self) -> StreamEvent:
        if not self._left:
            self._left = (await self._source.batch())[::-1]
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()

    async def batch(self) -> list[StreamEvent]:
        """The next events that came together; empty at the end."""
        return await self._source.batch()

    def close(self) -> None:
        self._source.close()

    async def __aenter__(self) -> AnswerStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._source.close()

    def __del__(self) -> None:
        self._source.close()


_clients: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, tuple[Client, AsyncGenerator[None, None]]
] = weakref.WeakKeyDictionary()


_default: Client | None = None


def set_default_client(client: Client | None) -> None:
    """Every call without ``client=`` uses this one from now on, in all loops of the process; None:
    a client of its own for each loop, as at the start. Closing it stays with the caller."""
    global _default  # noqa: PLW0603
    _default = client


async def default_client() -> Client:
    """The client that was set, else that of the running loop. The latter is closed when the loop
    ends: ``asyncio.run`` closes every generator that is left, and with this one the client."""
    if _default is not None:
        return _default
    loop = asyncio.get_running_loop()
    held = _clients.get(loop)
    if held is None:
        client = Client()
        watch = _until_the_end(client)
        await anext(watch)
        held = _clients[loop] = (client, watch)
    return held[0]


async def _until_the_end(client: Client) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await client.close()
