"""One HTTP request to a model's API, and its response or stream of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from corral.errors import ConfigError, CorralError, InvalidRequest, StreamBroken
from corral.model_types import Failed, Finish, RateLimit, Request, Response, StreamEvent
from corral.models.catalogue import Catalogue
from corral.models.spec import Encoded, Failure, Provider, decode_or_none
from corral.protocol.response_builder import ResponseBuilder
from corral.protocol.sse import SseDecoder
from corral.system import clock
from corral.system.api_keys import Access, TokenCache, with_token
from corral.system.http.client import LARGEST_ERROR, Http, HttpResponse
from corral.system.media import load_media
from corral.values import SHORTEST_SECRET, Json, convert_to


class PendingResponse(msgspec.Struct, frozen=True):
    """A request that was sent, and whose response has started."""

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

    access: Access
    name: str
    """The vendor's name of the model."""
    catalogue: Catalogue
    variables: tuple[str, ...]
    values: tuple[str | None, ...]


async def encode(request: Request, model: ModelAccess, *, streamed: bool) -> Encoded:
    """The request in the vendor's format. Raises for an invalid request, before anything is
    sent."""
    messages = await load_media(request.messages)
    for message in messages:
        if message.role not in ("system", "developer"):
            break
    else:
        raise ConfigError("there is no prompt: pass a prompt or messages")
    provider = model.access.provider
    request = replace(request, model=model.name, messages=messages)
    return provider.wire.encode(request, provider, streamed)


async def send(
    http: Http, encoded: Encoded, model: ModelAccess, request: Request
) -> PendingResponse:
    """Send the request. Raises the error of a response whose status is not a success."""
    found, name = model.access, model.name
    provider = found.provider
    if provider.credentials is not None:
        found = await with_token(found, _tokens)
    path = encoded.path
    for extra, value in found.extras.items():
        path = path.replace(f"{{{extra}}}", value)
    try:
        body = msgspec.json.encode(encoded.body)
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise ConfigError(f"the request cannot be written as JSON: {error}") from error
    headers = found.headers
    if encoded.headers:
        headers.update(encoded.headers)
    try:
        answer = await http.post(found.base_url + path, body, headers)
    except CorralError as error:
        attach_provider(error, provider, found.key)
        raise
    if not answer.is_success:
        raise attach_provider(await _read_error(answer, provider, name), provider, found.key)
    used = (call.id for message in request.messages for call in message.tool_calls)
    parts = ResponseBuilder(provider.name, name, used)
    if encoded.warnings:
        parts.warnings += encoded.warnings
    return PendingResponse(answer, parts, provider, model, found.key)


_tokens: TokenCache = {}
"""Cached credentials, such as Google's."""


async def _read_error(answer: HttpResponse, provider: Provider, name: str) -> CorralError:
    if 300 <= answer.status < 400:
        where = answer.headers.get("Location", "somewhere")
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
    headers = {key.lower(): value for key, value in answer.headers.items()}
    answer.close()
    return provider.wire.failure(
        Failure(
            provider=provider,
            model=name,
            status=answer.status,
            body=body,
            headers=headers,
            now=clock.now(),
        )
    )


async def read_response(sent: PendingResponse, model: str) -> Response:
    """Read a response that is not streamed."""
    provider = sent.provider
    try:
        try:
            body = await sent.answer.body()
        finally:
            sent.answer.close()
        if not body.strip():
            raise StreamBroken(
                f"{provider.title} sent an empty response",
                hint="Try again; a proxy may have timed out.",
            )
        _check_not_html(sent.answer, provider, body)
        raw = provider.wire.read(body, sent.parts, provider)
        return _build_response(sent, model, raw)
    except CorralError as error:
        attach_provider(error, provider, sent.key)
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
        if sent.parts.finish is None:
            self._read_unterminated_event()
        if sent.parts.finish is None:
            _check_not_html(sent.answer, sent.provider, b"")
        self.response = _build_response(sent, self._model)
        sent.answer.close()
        reason, usage = self.response.finish_reason, self.response.usage
        return [*sent.parts.take_events(), Finish(reason, usage, self.response)]

    def _read_unterminated_event(self) -> None:
        """Read a last event without a blank line after it, for vendors whose own client does so.
        A truncated event is not read."""
        if self._sent.provider.wire.last_event_may_be_open:
            rest = self._sse.take_rest()
            complete = [data for data in rest if decode_or_none(data) is not None]
            self._translate(complete, self._sent.parts)

    def take_remaining(self) -> list[StreamEvent]:
        """The events that were read before an error in the same batch."""
        return self._sent.parts.take_events()

    def close(self) -> None:
        self._sent.answer.close()


def failed_event(error: CorralError) -> Failed:
    return Failed(error.code, error.message)


def _build_response(sent: PendingResponse, model: str, raw: Json = None) -> Response:
    response = sent.parts.response()
    usage = response.usage.plausible()
    return replace(
        response,
        usage=usage,
        cost=sent.model.catalogue.cost(model, usage, response.model),
        rate_limit=_rate_limit(sent.provider.wire.rate_limit_headers, sent.answer),
        raw=raw,
    )


def _check_not_html(answer: HttpResponse, provider: Provider, body: bytes) -> None:
    """Raise for HTML with a success status: a proxy's page, or a wrong base URL."""
    if answer.media_type == "text/html" or body[:15].lstrip()[:5].lower() in (b"<!doc", b"<html"):
        answer.close()
        raise StreamBroken(
            f"{provider.title} answered with a web page instead of its API",
            hint="Check the base URL. The sign-in page of a proxy is another possible cause.",
            retryable=False,
            provider=provider.name,
            frame=body[:200].decode("utf-8", "replace"),
        )


def _rate_limit(names: Mapping[str, str], answer: HttpResponse) -> RateLimit | None:
    if not names or not answer.headers.has_any(tuple(names.values())):
        return None
    values_by_field = {
        field: answer.headers[name] for field, name in names.items() if name in answer.headers
    }
    values: dict[str, str | int] = {}
    for field, value in values_by_field.items():
        if field.endswith("_reset"):
            values[field] = value
        elif value.strip().isdigit():
            values[field] = int(value)
    return convert_to(values, RateLimit)
