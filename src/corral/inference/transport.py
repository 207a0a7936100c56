"""One call of a model over the wire: a request in, a response or events out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from corral.errors import ConfigError, CorralError, InvalidRequest, StreamBroken
from corral.events import Json
from corral.model_types import Failed, Finish, RateLimit, Request, Response, StreamEvent
from corral.models.spec import Encoded, Failure, Provider
from corral.protocol.response_builder import ResponseBuilder
from corral.protocol.sse import SseDecoder
from corral.system import catalogue_overrides
from corral.system.api_keys import Access, with_token
from corral.system.http.client import LARGEST_ERROR, Http, HttpResponse
from corral.system.media import loaded


class Sent(msgspec.Struct, frozen=True):
    """A request on its way: its answer has begun."""

    answer: HttpResponse
    parts: ResponseBuilder
    provider: Provider
    key: str | None = None

    def __repr__(self) -> str:
        return f"Sent({self.provider.name!r}, {self.answer.status})"


def named(error: CorralError, provider: Provider, key: str | None) -> CorralError:
    """The error with whose it is. A server may repeat the key that it was sent: struck out."""
    error.provider = error.provider or provider.name
    if key:
        error.message = error.message.replace(key, "…")
        error.args = (error.message,)
        error.frame = error.frame.replace(key, "…") if error.frame else error.frame
    return error


async def encode(request: Request, found: Access, name: str, *, streamed: bool) -> Encoded:
    """The request in the vendor's words. Everything that is wrong with it is raised here,
    before anything is sent."""
    messages = await loaded(request.messages)
    if not any(message.role not in ("system", "developer") for message in messages):
        raise ConfigError("there is nothing to answer: give a prompt or messages")
    asked = replace(request, model=name, messages=messages)
    return found.provider.wire.encode(asked, found.provider, streamed)


async def send(http: Http, encoded: Encoded, found: Access, request: Request, name: str) -> Sent:
    """Raises the error behind any answer that is no success."""
    provider = found.provider
    found = await with_token(found, _tokens)
    path = encoded.path
    for extra, value in found.extras.items():
        path = path.replace(f"{{{extra}}}", value)
    try:
        body = msgspec.json.encode(encoded.body)
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise ConfigError(f"the request cannot be written as JSON: {error}") from error
    sent_along = {**found.headers, **encoded.headers}
    try:
        answer = await http.post(found.base_url + path, body, sent_along)
    except CorralError as error:
        named(error, provider, found.key)
        raise
    if not answer.is_success:
        raise named(await _refusal(answer, provider, name), provider, found.key)
    used = [call.id for message in request.messages for call in message.tool_calls]
    parts = ResponseBuilder(provider.name, name, used)
    parts.warnings += encoded.warnings
    return Sent(answer, parts, provider, found.key)


_tokens: dict[str, Any] = {}
"""Credentials that were got once, such as Google's."""


async def _refusal(answer: HttpResponse, provider: Provider, name: str) -> CorralError:
    if 300 <= answer.status < 400:
        where = answer.headers.get("Location", "somewhere")
        answer.close()
        return InvalidRequest(
            f"{provider.title} sends us on to {where.partition('?')[0]}; the key is not sent there",
            hint="Set the base URL to where the API really is.",
            provider=provider.name,
            http_status=answer.status,
        )
    try:
        body = await answer.head(LARGEST_ERROR)
    except CorralError:
        body = b""  # the status alone says enough
    headers = {key.lower(): value for key, value in answer.headers.items()}
    answer.close()
    return provider.wire.failure(
        Failure(provider=provider, model=name, status=answer.status, body=body, headers=headers)
    )


async def read_whole(sent: Sent, model: str) -> Response:
    """The answer that comes in one piece."""
    provider = sent.provider
    try:
        try:
            body = await sent.answer.body()
        finally:
            sent.answer.close()
        if not body.strip():
            raise StreamBroken(
                f"{provider.title} answered with nothing",
                hint="Try again; a proxy in between may have given up.",
            )
        _refuse_pages(sent.answer, provider, body)
        raw = provider.wire.read(body, sent.parts, provider)
        return _finished(sent, model, raw)
    except CorralError as error:
        named(error, provider, sent.key)
        raise


class Reading:
    """An answer that comes as events: ``batch`` until it is empty, then ``response``."""

    __slots__ = ("_model", "_sent", "_sse", "_translate", "response")

    def __init__(self, sent: Sent, model: str) -> None:
        self._sent = sent
        self._model = model
        self._sse = SseDecoder()
        self._translate = sent.provider.wire.translator(sent.provider)
        self.response: Response | None = None

    async def batch(self) -> list[StreamEvent]:
        """The next events that came together; empty at the end. Raises what the vendor
        reports, and ``StreamBroken``; then it is closed."""
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
            named(error, sent.provider, sent.key)
            raise
        except BaseException:
            self.close()
            raise
        return []

    def _end(self) -> list[StreamEvent]:
        sent = self._sent
        if sent.parts.finish is None:
            self._read_open_end()
        if sent.parts.finish is None:
            _refuse_pages(sent.answer, sent.provider, b"")
        self.response = _finished(sent, self._model)
        sent.answer.close()
        reason, usage = self.response.finish_reason, self.response.usage
        return [*sent.parts.take_events(), Finish(reason, usage, self.response)]

    def _read_open_end(self) -> None:
        """Reads the last event of a stream that ended without its blank line, where the vendor's
        own client does. One that is cut in the middle stays unread."""
        if self._sent.provider.wire.last_event_may_be_open:
            whole = [data for data in self._sse.take_rest() if _is_json(data)]
            self._translate(whole, self._sent.parts)

    def left(self) -> list[StreamEvent]:
        """What was read before an error, and came together with it."""
        return self._sent.parts.take_events()

    def close(self) -> None:
        self._sent.answer.close()


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def failed_event(error: CorralError) -> Failed:
    return Failed(error.code, error.message)


def _finished(sent: Sent, model: str, raw: Json = None) -> Response:
    response = sent.parts.response()
    usage = response.usage.plausible()
    return replace(
        response,
        usage=usage,
        cost=catalogue_overrides.catalogue().cost(model, usage, response.model),
        rate_limit=_rate_limit(sent.provider.wire.limits, sent.answer),
        raw=raw,
    )


def _refuse_pages(answer: HttpResponse, provider: Provider, body: bytes) -> None:
    """HTML with a good status is a proxy's page, or the wrong address."""
    if answer.media_type == "text/html" or body[:15].lstrip()[:5].lower() in (b"<!doc", b"<html"):
        answer.close()
        raise StreamBroken(
            f"{provider.title} answered with a web page instead of its API",
            hint="Is the base URL right? A sign-in page of a proxy looks like this too.",
            retryable=False,
            provider=provider.name,
            frame=body[:200].decode("utf-8", "replace"),
        )


def _rate_limit(names: Mapping[str, str], answer: HttpResponse) -> RateLimit | None:
    told = {field: answer.headers[name] for field, name in names.items() if name in answer.headers}
    if not told:
        return None
    values: dict[str, Any] = {}
    for field, value in told.items():
        if field.endswith("_reset"):
            values[field] = value
        elif value.strip().isdigit():
            values[field] = int(value)
    return RateLimit(**values)
