"""One HTTP request to a model's API, and its response or stream of events; and how
often it is sent again when it fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from corral._core.durations import backoff_delay
from corral._models.catalogue import Catalogue
from corral._models.spec import FailedResponse, Provider
from corral._protocol.response_builder import ResponseBuilder
from corral._protocol.sse import SseDecoder
from corral._system import clock
from corral._system.api_keys import ProviderAccess, TokenCache, with_token
from corral._system.http.client import LARGEST_ERROR, Http, HttpResponse
from corral.errors import ConfigError, CorralError, InvalidRequest, StreamBroken
from corral.messages import Message
from corral.model_types import Failed, Finish, RateLimit, Request, Response, StreamEvent
from corral.values import SHORTEST_SECRET, convert_to, decode_or_none

if TYPE_CHECKING:
    from corral._metering.rate_limits import CallWaits


class PendingResponse(msgspec.Struct, frozen=True):
    """A streamed request that was sent, and whose response has started."""

    answer: HttpResponse
    parts: ResponseBuilder
    provider: Provider
    model: ModelAccess
    key: str | None = None

    def __repr__(self) -> str:
        return f"Sent({self.provider.name!r}, {self.answer.status})"


def attach_provider(error: CorralError, provider: Provider, key: str | None) -> CorralError:
    """Add the provider to the error, and redact the key: servers may repeat it in messages."""
    error.provider = error.provider or provider.name
    if key and len(key) >= SHORTEST_SECRET:
        error.message = error.message.replace(key, "…")
        error.args = (error.message,)
        error.frame = error.frame.replace(key, "…") if error.frame else error.frame
    return error


class ModelAccess(NamedTuple):
    """How a model is called, for these values of the environment."""

    access: ProviderAccess
    name: str
    """The vendor's name of the model."""
    catalogue: Catalogue
    variables: tuple[str, ...]
    values: tuple[str | None, ...]
    headers: dict[str, str]
    """Those of ``access``, with the key. They are the same for every request."""
    rate_limit_names: frozenset[bytes]
    """The headers of a response that say how much is left, as they are compared."""

    def __repr__(self) -> str:
        return f"ModelAccess({self.name!r})"


class EncodedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request as it is sent, also when it is sent again."""

    url: str
    body: bytes
    headers: Mapping[str, str]
    """Further headers, of this request."""
    warnings: tuple[str, ...]
    history: tuple[Message, ...]


def has_media(request: Request) -> bool:
    """Whether a message has anything but text, so that files may have to be read before it is
    encoded. Raises ``ConfigError`` if there is no prompt."""
    has_prompt, has_media = False, False
    for message in request.messages:
        has_prompt = has_prompt or message.role not in ("system", "developer")
        has_media = has_media or not message.is_only_text
    if not has_prompt:
        raise ConfigError("there is no prompt: pass a prompt or messages")
    return has_media


def encode(
    request: Request, messages: tuple[Message, ...], model: ModelAccess, *, streamed: bool
) -> EncodedRequest:
    """The request in the vendor's format, with these loaded messages. Raises for an invalid
    request, before anything is sent."""
    found = model.access
    provider = found.provider
    encoded = provider.wire.encode(
        replace(request, model=model.name, messages=messages), provider, streamed
    )
    path = encoded.path
    if found.extras:
        for extra, value in found.extras.items():
            path = path.replace(f"{{{extra}}}", value)
    try:
        body = msgspec.json.encode(encoded.body)
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise ConfigError(f"the request cannot be written as JSON: {error}") from error
    url = found.base_url + path
    return EncodedRequest(url, body, encoded.headers, encoded.warnings, request.messages)


async def send(http: Http, request: EncodedRequest, model: ModelAccess) -> PendingResponse:
    """Send a request whose response is streamed. Raises the error of a response whose status is
    not a success."""
    answer, key = await _post(http, request, model)
    return PendingResponse(answer, _builder(request, model), model.access.provider, model, key)


async def _post(
    http: Http, request: EncodedRequest, model: ModelAccess
) -> tuple[HttpResponse, str | None]:
    """The response, whose status is a success, and the key that was sent."""
    key, headers = model.access.key, model.headers
    provider = model.access.provider
    if provider.credentials is not None:  # it takes a token instead of a key
        found = await with_token(model.access, _tokens)
        key, headers = found.key, found.headers
    if request.headers:
        headers = {**headers, **request.headers}
    try:
        answer = await http.post(request.url, request.body, headers)
        if not answer.is_success:
            raise await _read_error(answer, provider, model.name)
    except CorralError as error:
        attach_provider(error, provider, key)
        raise
    return answer, key


def _builder(request: EncodedRequest, model: ModelAccess) -> ResponseBuilder:
    parts = ResponseBuilder(model.access.provider.name, model.name, request.history)
    if request.warnings:
        parts.warnings += request.warnings
    return parts


_BRACE = ord("{")
_HTML = "text/html"
_tokens: TokenCache = {}
"""Cached credentials, such as Google's."""


async def _read_error(answer: HttpResponse, provider: Provider, name: str) -> CorralError:
    if 300 <= answer.status < 400:
        where = answer.headers.get("location", "somewhere")
        answer.close()
        return InvalidRequest(
            f"{provider.title} redirects to {where.partition('?')[0]}, where no key is sent",
            hint="Set the base URL to the address of the API.",
            provider=provider.name,
            http_status=answer.status,
        )
    try:
        body = await answer.head(LARGEST_ERROR)
    except CorralError:
        body = b""  # the status is enough
    headers = answer.headers
    answer.close()
    return provider.wire.failure(
        FailedResponse(
            provider=provider,
            model=name,
            status=answer.status,
            body=body,
            headers=headers,
            now=clock.now(),
        )
    )


async def request_response(
    http: Http, request: EncodedRequest, model: ModelAccess, name: str
) -> Response:
    """Send the request and read its response, which is not streamed. ``name`` is that of the model
    with its vendor."""
    answer, key = await _post(http, request, model)
    provider = model.access.provider
    try:
        body = answer.arrived_body()
        if body is None:
            try:
                body = await answer.body()
            finally:
                answer.close()
        if not body.strip():
            raise StreamBroken(
                f"{provider.title} sent an empty response",
                hint="Try again; a proxy may have timed out.",
            )
        if body[0] != _BRACE or answer.media_type == _HTML:
            _check_not_html(answer, provider, body)
        parts = _builder(request, model)
        provider.wire.read(body, parts, provider)
        return _build_response(parts, answer, model, name, body)
    except CorralError as error:
        attach_provider(error, provider, key)
        raise


class ResponseReader:
    """A streamed response: call ``batch`` until it is empty, then read ``response``."""

    __slots__ = ("_model", "_sent", "_sse", "_translate", "response")

    def __init__(self, sent: PendingResponse, model: str) -> None:
        self._sent = sent
        self._model = model
        self._sse = SseDecoder()
        self._translate = sent.provider.wire.translator(sent.provider)
        self.response: Response | None = None

    async def batch(self) -> list[StreamEvent]:
        """The next events that came together; empty at the end. Raises the errors that the
        vendor reports, and ``StreamBroken``, and closes the connection."""
        sent, parts = self._sent, self._sent.parts
        chunk, receive, translate = sent.answer.chunk, self._sse.receive, self._translate
        try:
            while self.response is None:
                data = await chunk()
                if not data:
                    return self._end()
                translate(receive(data), parts)
                if parts.events:
                    return parts.take_events()
        except CorralError as error:
            self.close()
            attach_provider(error, sent.provider, sent.key)
            raise
        except BaseException:
            self.close()
            raise
        return []

    def _end(self) -> list[StreamEvent]:
        sent = self._sent
        if sent.parts.finish is None and sent.provider.wire.last_event_may_be_open:
            # The last event has no blank line after it, and the vendor's own client reads such
            # events too. A truncated event is not read.
            rest = self._sse.take_rest()
            complete = [data for data in rest if decode_or_none(data) is not None]
            self._translate(complete, sent.parts)
        if sent.parts.finish is None:
            _check_not_html(sent.answer, sent.provider, b"")
        self.response = _build_response(sent.parts, sent.answer, sent.model, self._model)
        sent.answer.close()
        reason, usage = self.response.finish_reason, self.response.usage
        return [*sent.parts.take_events(), Finish(reason, usage, self.response)]

    def take_remaining(self) -> list[StreamEvent]:
        """The events that were read before an error in the same batch."""
        return self._sent.parts.take_events()

    def close(self) -> None:
        self._sent.answer.close()


def failed_event(error: CorralError) -> Failed:
    return Failed(error.code, error.message)


def _build_response(
    parts: ResponseBuilder, answer: HttpResponse, model: ModelAccess, name: str, body: bytes = b""
) -> Response:
    usage = parts.usage = parts.usage.plausible()
    cost = model.catalogue.cost(name, usage, parts.model)
    names = model.rate_limit_names
    rate_limit = _rate_limit(model, answer) if names and answer.has_any(names) else None
    return parts.response(cost, rate_limit, body)


def _check_not_html(answer: HttpResponse, provider: Provider, body: bytes) -> None:
    """Raise for HTML with a success status: a proxy's page, or a wrong base URL."""
    start = body[:15]
    is_page = b"<" in start and start.lstrip()[:5].lower() in (b"<!doc", b"<html")
    if is_page or answer.media_type == _HTML:
        answer.close()
        raise StreamBroken(
            f"{provider.title} answered with a web page instead of its API",
            hint="Check the base URL. The sign-in page of a proxy is another possible cause.",
            retryable=False,
            provider=provider.name,
            frame=body[:200].decode("utf-8", "replace"),
        )


def _rate_limit(model: ModelAccess, answer: HttpResponse) -> RateLimit:
    values: dict[str, str | int] = {}
    headers = answer.headers
    for field, name in model.access.provider.wire.rate_limit_headers.items():
        value = headers.get(name.lower())
        if value is None:
            continue
        if field.endswith("_reset"):
            values[field] = value
        elif value.strip().isdigit():
            values[field] = int(value)
    return convert_to(values, RateLimit)


_log = logging.getLogger("corral.models")

T = TypeVar("T")

BASE_DELAY = 1.0
MAX_DELAY = 60.0
"""Seconds. If the vendor says to wait longer, the error is raised at once."""


def retry_delay(attempt: int, error: CorralError) -> float | None:
    """Seconds before the next attempt; None if there should be none."""
    if not error.retryable:
        return None
    if error.retry_after is not None:
        return error.retry_after if error.retry_after <= MAX_DELAY else None
    return backoff_delay(
        attempt, first=BASE_DELAY, longest=MAX_DELAY, jitter=clock.random_fraction()
    )


async def with_retries(
    work: Callable[[], Awaitable[T]],
    most: int,
    *,
    on_retry: Callable[[CorralError, float], None] | None = None,
    waits: CallWaits | None = None,
) -> T:
    """Call ``work`` until it succeeds, at most ``most`` times after the first. With ``waits``, it
    waits for a rate limit to end; that does not count as an attempt. Raises the error of a limit
    that takes too long."""
    if most < 0:
        raise ConfigError(f"retries must not be negative, got: {most}")
    attempt = 0
    while True:
        if waits is not None and (limit := await waits.before()) is not None:
            raise limit.error()
        try:
            return await work()
        except CorralError as error:
            if waits is not None and await waits.after(error) is not None:
                continue
            wait = retry_delay(attempt, error) if attempt < most else None
            if wait is None:
                raise
            attempt += 1
            _log.info("attempt %d failed, next one in %.1f s: %s", attempt, wait, error.message)
            if on_retry is not None:
                on_retry(error, wait)
            await asyncio.sleep(wait)
