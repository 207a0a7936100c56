"""The model client: requests to any vendor, with retries, middleware and one connection pool.

::

    async with Client.from_env() as client:
        response = await client.complete(Request(model="gemini:gemini-2.5-flash", messages=…))

Theory of operation
===================

A ``Client`` belongs to one event loop. It resolves ``vendor:model`` to a provider, a key and a base
URL, encodes the request and sends it (``transport``). Two ways lead to a response:

- ``complete``: middleware → retries → one HTTP request → ``Response``;
- ``stream``: middleware → ``ResponseStream``, which yields the events of the response.

States of a ``ResponseStream``:

- *not started*: nothing was sent. The first read sends the request. If that fails with a
  retryable error before any event came, the request is sent again, at most ``retries`` times;
- *reading*: the caller has events. There is no retry any more, as events cannot be taken back. An
  error ends the stream: first a ``Failed`` event, then the exception on the next read;
- *finished*: the ``Finish`` event was emitted, and ``response`` is the complete response;
- *closed*: ``close`` was called, the iteration was left, or an error was raised. The connection
  is closed, and no more events come.

Guarantees:

- An invalid request, an unknown vendor and a missing key raise before anything is sent.
- Errors are ``CorralError`` with the provider's name. The API key never appears in them.
- Only retryable errors are retried. A vendor's ``retry-after`` is respected up to ``MAX_DELAY``.
- With ``waits``, a call that meets a rate limit waits until it ends, and so do all others with the
  same key and model.
- A stream that is dropped without being closed closes its connection when it is collected.

Who calls: ``inference.api`` and ``inference.structured``, the built-in agent, and pipeline nodes.
Without ``client=`` they use ``default_client``: one client per event loop, closed with the loop.

On a crash nothing is left: the client has no state on disk. A request that was sent may still be
processed and billed by the vendor.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
)
from copy import copy
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from urllib.parse import urlsplit

from corral._inference.transport import (
    EncodedRequest,
    ModelAccess,
    PendingResponse,
    ResponseReader,
    encode,
    failed_event,
    has_media,
    request_response,
    send,
    with_retries,
)
from corral._metering import prices
from corral._models import registry
from corral._models.spec import Provider
from corral._system.api_keys import access, access_variables, has_key, variable_values
from corral._system.environment import variables
from corral._system.http.client import Http, wire_names
from corral._system.media import load_media
from corral.errors import ConfigError, CorralError
from corral.model_types import Request, Response, StreamEvent

if TYPE_CHECKING:
    from corral._metering.rate_limits import CallWaits, LimitWaits


RETRIES = 2
AccessOption: TypeAlias = str | Mapping[str, str] | None
"""A key or a base URL, of the only vendor or by vendor."""


class Client:
    """Vendors and their keys, for one event loop. Close it, or use ``async with``.

    ::

        async with models.Client(keys={"gemini": "…"}, retries=5) as client:
            answer = await models.generate("gemini:gemini-2.5-flash", "Say hello", client=client)
    """

    def __init__(
        self,
        *,
        keys: Mapping[str, str] | None = None,
        base_urls: Mapping[str, str] | None = None,
        providers: Iterable[Provider] = (),
        middleware: Iterable[Middleware] = (),
        retries: int = RETRIES,
        connect_timeout: float = 15.0,
        read_timeout: float = 300.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """``keys`` and ``base_urls`` by vendor name win over the environment. ``providers`` are
        further vendors, or replace those with the same name. ``environ`` replaces the
        environment of the process; an empty one disables it."""
        self._extra_providers = {provider.name: provider for provider in providers}
        self._keys = {self._provider_name(name): key for name, key in (keys or {}).items()}
        self._base_urls = {
            self._provider_name(name): url for name, url in (base_urls or {}).items()
        }
        self._resolved_models: dict[str, tuple[Provider, str]] = {}
        """Models that were used: their provider, and the vendor's name for them."""
        self._accesses: dict[str, ModelAccess] = {}
        self._middleware = tuple(middleware)
        self._retries = retries
        self._environ = environ
        self._http = Http(connect_timeout=connect_timeout, read_timeout=read_timeout)

    @classmethod
    def from_env(cls, *, middleware: Iterable[Middleware] = (), **options: float) -> Client:
        """A client with the keys that are in the environment now. A missing key is reported by
        the first call, with the name of its variable."""
        return cls(middleware=middleware, environ=variables(), **options)  # type: ignore[arg-type]

    @property
    def providers(self) -> tuple[str, ...]:
        """The names of the vendors whose key is known."""
        every = {
            provider.name: provider for provider in registry.all_providers()
        } | self._extra_providers
        return tuple(
            name
            for name, provider in every.items()
            if name in self._keys or has_key(provider, self._environ)
        )

    def with_middleware(self, layer: Middleware) -> Client:
        """A client with a further, innermost middleware. It shares the connections of this one,
        which must be closed instead of it."""
        copied = copy(self)
        copied._middleware = (*self._middleware, layer)
        return copied

    def with_access(
        self, models: Iterable[str], api_key: AccessOption, base_url: AccessOption
    ) -> Client:
        """A client for these models with other keys and base URLs. It shares the connections of
        this one, which must be closed instead of it. Raises ``ConfigError`` if one text is given
        for models of several vendors."""
        if api_key is None and base_url is None:
            return self
        vendors = sorted({self._find(model)[0].name for model in models})
        copied = copy(self)
        copied._accesses = {}
        copied._keys = {**self._keys, **self._by_vendor("api_key", api_key, vendors)}
        copied._base_urls = {**self._base_urls, **self._by_vendor("base_url", base_url, vendors)}
        return copied

    def _by_vendor(self, name: str, given: AccessOption, vendors: list[str]) -> dict[str, str]:
        if given is None:
            return {}
        if isinstance(given, Mapping):
            return {self._provider_name(vendor): text for vendor, text in given.items()}
        if len(vendors) > 1:
            shown = ", ".join(f"{vendor!r}: '…'" for vendor in vendors)
            raise ConfigError(
                f"one {name} cannot be for several vendors", hint=f"Pass {name}={{{shown}}}."
            )
        return {vendors[0]: given}

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.close()

    def check(self, model: str) -> str:
        """The base URL at which this model is called. Raises if it cannot be called: unknown vendor
        or missing key."""
        return self._access(model).access.base_url

    def complete(
        self, request: Request, *, retries: int | None = None, waits: LimitWaits | None = None
    ) -> Awaitable[Response]:
        """The complete response. With ``waits``, it waits for rate limits to end. Raises a
        ``CorralError`` if the call fails."""
        limit = self._retries if retries is None else retries

        async def core(request: Request) -> Response:
            encoded, model = await self._encode(request, streamed=False)
            return await with_retries(
                lambda: request_response(self._http, encoded, model, request.model),
                limit,
                waits=self.call_waits(request, waits),
            )

        call: Complete = core
        for layer in reversed(self._middleware):
            call = _around(layer.complete, call)
        return call(request)

    def call_waits(self, request: Request, waits: LimitWaits | None) -> CallWaits | None:
        """The waits of a call with this request."""
        if waits is None:
            return None
        from corral._metering.rate_limits import credential_id

        model = self._access(request.model)
        host = urlsplit(model.access.base_url).netloc
        return waits.call(credential_id(host, model.access.key or "", model.name))

    def stream(
        self,
        request: Request,
        *,
        retries: int | None = None,
        on_retry: Callable[[CorralError, float], None] | None = None,
        waits: LimitWaits | None = None,
    ) -> ResponseStream:
        """The events of a response. Retried only while the caller has no events; ``on_retry`` is
        called with the error and the seconds until the retry. With ``waits``, it waits for rate
        limits to end."""
        limit = self._retries if retries is None else retries

        def core(request: Request) -> ResponseStream:
            return ResponseStream(_RetriedEvents(self, request, limit, on_retry, waits))

        if not self._middleware:
            return core(request)
        call: Streamed = core
        for layer in reversed(self._middleware):
            call = _around(layer.stream, call)
        return ResponseStream(_IteratorEvents(call(request)))

    def _provider_name(self, name: str) -> str:
        """The vendor's own name. Raises ``UnknownProvider``: a key for an unknown vendor is a
        mistake."""
        return name if name in self._extra_providers else registry.find_provider(name).name

    def _access(self, model: str) -> ModelAccess:
        known = self._accesses.get(model) if isinstance(model, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        if known is not None:
            names = known.variables
            if not names or known.values == variable_values(names, self._environ):
                return known
        provider, name = self._resolved_models.get(model) or self._find(model)
        key, url = self._keys.get(provider.name), self._base_urls.get(provider.name)
        names = access_variables(provider, key=key, base_url=url)
        values = variable_values(names, self._environ)
        found = access(provider, self._environ, key=key, base_url=url)
        catalogue = prices.catalogue()
        known = self._accesses[model] = ModelAccess(
            found,
            name,
            catalogue,
            names,
            values,
            found.headers,
            wire_names(provider.wire.rate_limit_headers.values()),
        )
        return known

    def _find(self, model: str) -> tuple[Provider, str]:
        prefix, colon, name = model.partition(":") if isinstance(model, str) else ("", "", "")  # pyright: ignore[reportUnnecessaryIsInstance]
        provider = self._extra_providers.get(prefix)
        if provider is None or not colon or not name:
            provider, name = registry.split_model(model)
        name = prices.catalogue().unaliased(provider.name, name)
        self._resolved_models[model] = provider, name
        return provider, name

    async def send_streaming(self, request: Request) -> PendingResponse:
        """Send a request whose response is streamed."""
        return await send(self._http, *await self._encode(request, streamed=True))

    async def _encode(
        self, request: Request, *, streamed: bool
    ) -> tuple[EncodedRequest, ModelAccess]:
        model = self._access(request.model)
        messages = await load_media(request.messages) if has_media(request) else request.messages
        return encode(request, messages, model, streamed=streamed), model


class _RetriedEvents:
    """Events in the batches in which they came, with retries before the first."""

    def __init__(
        self,
        client: Client,
        request: Request,
        retries: int,
        on_retry: Callable[[CorralError, float], None] | None,
        waits: LimitWaits | None,
    ) -> None:
        self._waits = waits
        self._client = client
        self._request = request
        self._retries = retries
        self._on_retry = on_retry
        self._reader: ResponseReader | None = None
        self._failure: CorralError | None = None
        self._is_over = False

    async def batch(self) -> list[StreamEvent]:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._is_over = True
            raise failure
        if self._is_over:
            return []
        if self._reader is None:
            return await self._first_batch()
        try:
            return await self._reader.batch()
        except CorralError as error:
            # The caller has events already: report the error as an event, and raise it next.
            self._failure = error
            return [*self._reader.take_remaining(), failed_event(error)]

    async def _first_batch(self) -> list[StreamEvent]:
        async def once() -> list[StreamEvent]:
            reading = self._reader = ResponseReader(
                await self._client.send_streaming(self._request), self._request.model
            )
            return await reading.batch()

        try:
            waits = self._client.call_waits(self._request, self._waits)
            return await with_retries(once, self._retries, on_retry=self._on_retry, waits=waits)
        except CorralError:
            self._is_over = True
            raise

    @property
    def response(self) -> Response | None:
        return self._reader.response if self._reader is not None else None

    def close(self) -> None:
        self._is_over = True
        if self._reader is not None:
            self._reader.close()


class _IteratorEvents:
    """The events of an iterator without batches, such as that of a middleware."""

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


class ResponseStream:
    """The events of one response, for ``async for``. If the iteration is left early, the
    connection is closed; with ``async with`` at once. ``response`` is the complete response after
    ``finish``.

    ::

        async with client.stream(request) as stream:
            async for event in stream:
                print(event.type)
        print(stream.response)
    """

    def __init__(self, source: _RetriedEvents | _IteratorEvents) -> None:
        self._source = source
        self._pending: list[StreamEvent] = []

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
        if not self._pending:
            self._pending = (await self._source.batch())[::-1]
        if not self._pending:
            raise StopAsyncIteration
        return self._pending.pop()

    async def batch(self) -> list[StreamEvent]:
        """The next events that came together; empty at the end."""
        return await self._source.batch()

    def close(self) -> None:
        self._source.close()

    async def __aenter__(self) -> ResponseStream:
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
    """Use this client for every call without ``client=``, in all event loops of the process. None
    restores the default: one client per loop. The caller must close the client.

    ::

        models.set_default_client(models.Client(retries=5))
    """
    global _default  # noqa: PLW0603
    _default = client


async def default_client() -> Client:
    """The client that was set, otherwise that of the running loop. The latter is closed with the
    loop: ``asyncio.run`` closes all remaining generators, and this one closes the client."""
    if _default is not None:
        return _default
    loop = asyncio.get_running_loop()
    entry = _clients.get(loop)
    if entry is None:
        client = Client()
        watch = _close_with_loop(client)
        await anext(watch)
        entry = _clients[loop] = (client, watch)
    return entry[0]


async def _close_with_loop(client: Client) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await client.close()


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


R = TypeVar("R")


def _around(
    layer: Callable[[Request, Callable[[Request], R]], R], inner: Callable[[Request], R]
) -> Callable[[Request], R]:
    return lambda request: layer(request, inner)
