"""``http``: one request. ``url``, ``method`` (GET), ``headers``, ``json`` or ``body``,
``bearer_env``, ``expect``, ``timeout``.

A value in the ``url`` is percent-encoded, so that it can only be one part of the address. A
placeholder at the very beginning is the address itself and is not encoded. Placeholders in ``json``
are filled after it was parsed; a string that is only a placeholder becomes the value itself.
``headers`` is a JSON object, or lines of ``Name: value``. ``bearer_env`` names the variable that
has a token: it is sent, but never written to a file. Redirects are not followed. ``response_key``
and ``status_key`` are further keys for the body and the status.
"""

from __future__ import annotations

import asyncio
import re
from urllib.parse import quote

import msgspec

from corral._core.nesting import decode_json
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.nodes.codergen import MAX_RESPONSE
from corral._pipelines.nodes.data import value_of
from corral._pipelines.scheduler.outcome import Outcome
from corral._pipelines.templates import PLACEHOLDER, as_text, fill, find
from corral._system import environment
from corral._system.environment import SecretRedactor
from corral._system.http.client import Http, HttpResponse
from corral.errors import ConfigError
from corral.values import Json, JsonObject

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
TIMEOUT = 60.0
"""Seconds, if the node has no ``timeout``."""
MAX_BODY = 512 * 1024
"""Bytes of a response: it goes into the context."""
TRANSIENT = (408, 425, 429)
"""Statuses that may change at the next attempt; those from 500 on may, too."""
FINAL = (400, 401, 403)


async def http(work: NodeContext) -> Outcome:
    """Success for 2xx, or for the statuses in ``expect``. ``<node>.output`` is the body, parsed if
    it is JSON; ``<node>.status`` is the number."""
    node = work.node
    method = (node.text("method") or "GET").upper()
    if method not in METHODS:
        raise ConfigError(f"{node.id}: method must be one of {', '.join(METHODS)}, got: {method}")
    url = url_of(work)
    body, headers = _body(work), _headers(work)
    if "json" in node.attrs:
        headers.setdefault("Content-Type", "application/json")
    seconds = node.seconds("timeout") or TIMEOUT
    limit = asyncio.timeout(seconds)
    try:
        async with Http(read_timeout=seconds) as client, limit:
            response = await client.send(method, url, body, headers)
            raw = await response.head(MAX_BODY + 1)
    except TimeoutError:
        if not limit.expired():
            raise
        return Outcome(
            status="fail",
            failure_reason=f"{node.id}: no response within {seconds:g}s",
            retryable=True,
        )
    return _outcome(work, method, response, raw)


def url_of(work: NodeContext) -> str:
    def replacement(match: re.Match[str]) -> str:
        value = find(work.context, match[1])
        if value is None and match[1] not in work.context:
            raise ConfigError(f"{work.node.id}: url: there is no {match[1]!r} in the context")
        return as_text(value) if match.start() == 0 else quote(as_text(value), safe="")

    return PLACEHOLDER.sub(replacement, work.node.text("url").strip())


def _body(work: NodeContext) -> bytes:
    node = work.node
    if "json" in node.attrs and "body" in node.attrs:
        raise ConfigError(f"{node.id}: json and body cannot both be given")
    if "json" in node.attrs:
        try:
            parsed: Json = decode_json(node.text("json"))
        except msgspec.DecodeError as error:
            value = value_of(work, node.text("json"))
            if isinstance(value, str):
                raise ConfigError(f"{node.id}: json is not JSON: {error}") from error
            return msgspec.json.encode(value)
        return msgspec.json.encode(_filled(work, parsed))
    return fill(node.text("body"), work.context, work.graph.goal).encode("utf-8", "replace")


def _filled(work: NodeContext, value: Json) -> Json:
    """The value with the placeholders in its strings filled."""
    if isinstance(value, dict):
        return {key: _filled(work, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(work, item) for item in value]
    return value_of(work, value)


def _headers(work: NodeContext) -> dict[str, str]:
    node = work.node
    text = node.text("headers").strip()
    headers: dict[str, str] = {}
    if text.startswith("{"):
        try:
            headers = decode_json(text, dict[str, str])
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ConfigError(f"{node.id}: headers: {error}") from error
    else:
        for line in filter(None, map(str.strip, text.splitlines())):
            name, colon, value = line.partition(":")
            if not colon:
                raise ConfigError(f"{node.id}: headers: not 'Name: value': {line[:80]!r}")
            headers[name.strip()] = value.strip()
    headers = {name: fill(value, work.context) for name, value in headers.items()}
    if variable := node.text("bearer_env"):
        headers["Authorization"] = f"Bearer {_token(work, variable)}"
    return headers


def _token(work: NodeContext, variable: str) -> str:
    token = environment.variable(variable, work.resources.env)
    if not token:
        raise ConfigError(f"{work.node.id}: the environment has no {variable}")
    return token


def _outcome(work: NodeContext, method: str, response: HttpResponse, raw: bytes) -> Outcome:
    node, status = work.node, response.status
    # The text of a response with secrets redacted. Some servers send the token back.
    is_cut = len(raw) > MAX_BODY
    data = work.resources.redactor.clean_part(raw[:MAX_BODY], end_cut=is_cut)
    if variable := work.node.text("bearer_env"):
        token = SecretRedactor({variable: _token(work, variable)})
        data = token.clean_part(data, end_cut=is_cut)
    text = data.decode("utf-8", "replace")
    work.write_file("response.md", text)
    updates: JsonObject = {f"{node.id}.status": status, "last_response": text[:MAX_RESPONSE]}
    problem = ""
    if len(raw) > MAX_BODY:
        problem = f"the response has over {MAX_BODY:,} bytes: too large for the context"
    elif "json" in response.media_type and text.strip():
        try:
            updates[f"{node.id}.output"] = decode_json(text)
        except msgspec.DecodeError as error:
            problem = f"the response is not JSON: {error}"
    else:
        updates[f"{node.id}.output"] = text
    if key := node.text("status_key"):
        updates[key] = status
    if key := node.text("response_key"):
        updates[key] = updates.get(f"{node.id}.output", text)
    expected = node.names("expect")
    retryable: bool | None = None
    if not (str(status) in expected if expected else response.is_success):
        problem = f"{method} was answered with {status}: {text.strip()[:500]}"
        if status in TRANSIENT or status >= 500:
            retryable = True
        elif status in FINAL:
            retryable = False
    if not problem:
        return Outcome(context_updates=updates)
    return Outcome(
        status="fail",
        failure_reason=f"{node.id}: {problem}",
        context_updates=updates,
        retryable=retryable,
    )
