"""``http``: one request. ``url``, ``method`` (GET), ``headers``, ``json`` or ``body``,
``bearer_env``, ``expect``, ``timeout``.

A hole in the ``url`` is percent-encoded, so that a value can be a word of the address and
nothing more; one at its very beginning stands for an address and is taken as it is. Holes of
``json`` are filled in its strings, after it was parsed; one that is all of a string is the
value itself. ``headers`` is a JSON object, or lines of ``Name: value``. ``bearer_env`` names the
variable that holds a token: it is sent, and written nowhere. A redirect is not followed.
``response_key`` and ``status_key`` name further keys for the body and the status.
"""

from __future__ import annotations

import asyncio
import os
import re
from urllib.parse import quote

import msgspec

from corral.errors import ConfigError
from corral.nesting import decode_json
from corral.pipelines.execution import resources as node_resources
from corral.pipelines.execution.handlers import Handler, NodeContext
from corral.pipelines.execution.node_options import names
from corral.pipelines.nodes.codergen import RESPONSE
from corral.pipelines.nodes.data import value_of
from corral.pipelines.scheduler.outcome import Outcome
from corral.pipelines.templates import as_text, fill, find
from corral.system.environment import SecretRedactor
from corral.system.http.client import Http, HttpResponse
from corral.values import Json

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
TIMEOUT = 60.0
"""Seconds, where the node has none."""
LARGEST = 512 * 1024
"""Bytes of an answer: it goes into the context."""
PASSING = (408, 425, 429)
"""Refusals that may be none the next time; those from 500 on too."""
FINAL = (400, 401, 403)

_HOLE = re.compile(r"\{\{\s*\.?([A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*)\s*\}\}")


async def http(work: NodeContext) -> Outcome:
    """Success for 2xx, or for what ``expect`` lists. ``<node>.output`` is the body, parsed where
    it is JSON; ``<node>.status`` the number."""
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
            answer = await client.send(method, url, body, headers)
            raw = await answer.head(LARGEST + 1)
    except TimeoutError:
        if not limit.expired():
            raise
        return Outcome(
            status="fail",
            failure_reason=f"{node.id}: no answer within {seconds:g}s",
            retryable=True,
        )
    return _told(work, method, answer, raw)


def url_of(work: NodeContext) -> str:
    text = work.node.text("url")
    if not text.strip():
        raise ConfigError(f"the http node {work.node.id} has no url")

    def filled(hole: re.Match[str]) -> str:
        value = find(work.context, hole[1])
        if value is None and hole[1] not in work.context:
            raise ConfigError(f"{work.node.id}: url: there is no {hole[1]!r} in the context")
        return as_text(value) if hole.start() == 0 else quote(as_text(value), safe="")

    return _HOLE.sub(filled, text.strip())


def _body(work: NodeContext) -> bytes:
    node = work.node
    if "json" in node.attrs and "body" in node.attrs:
        raise ConfigError(f"{node.id}: json and body both given")
    if "json" in node.attrs:
        try:
            parsed: Json = decode_json(node.text("json"))
        except msgspec.DecodeError as error:
            whole = value_of(work, node.text("json"))
            if isinstance(whole, str):
                raise ConfigError(f"{node.id}: json is no JSON: {error}") from error
            return msgspec.json.encode(whole)
        return msgspec.json.encode(_leaves(work, parsed))
    return fill(node.text("body"), work.context, work.graph.goal).encode("utf-8", "replace")


def _leaves(work: NodeContext, value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _leaves(work, held) for key, held in value.items()}
    if isinstance(value, list):
        return [_leaves(work, held) for held in value]
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
                raise ConfigError(f"{node.id}: headers: no 'Name: value': {line[:80]!r}")
            headers[name.strip()] = value.strip()
    headers = {name: fill(value, work.context) for name, value in headers.items()}
    if variable := node.text("bearer_env"):
        headers["Authorization"] = f"Bearer {_token(work, variable)}"
    return headers


def _token(work: NodeContext, variable: str) -> str:
    token = node_resources.resources_of(work).env.get(variable) or os.environ.get(variable)
    if not token:
        raise ConfigError(f"{work.node.id}: the environment has no {variable}")
    return token


def _told(work: NodeContext, method: str, answer: HttpResponse, raw: bytes) -> Outcome:
    node = work.node
    is_cut = len(raw) > LARGEST
    raw_text = node_resources.resources_of(work).redactor.clean_part(raw[:LARGEST], end_cut=is_cut)
    if variable := node.text("bearer_env"):  # whatever its name: some servers send it back
        token = SecretRedactor({variable: _token(work, variable)})
        raw_text = token.clean_part(raw_text, end_cut=is_cut)
    text = raw_text.decode("utf-8", "replace")
    node_resources.write_node_file(work, "response.md", text)
    updates: dict[str, Json] = {f"{node.id}.status": answer.status}
    wrong = ""
    if is_cut:
        wrong = f"the answer has over {LARGEST:,} bytes: too large for the context"
    elif "json" in answer.media_type and text.strip():
        try:
            updates[f"{node.id}.output"] = decode_json(text)
        except msgspec.DecodeError as error:
            wrong = f"the answer is no JSON: {error}"
    else:
        updates[f"{node.id}.output"] = text
    updates["last_response"] = text[:RESPONSE]
    if key := node.text("status_key"):
        updates[key] = answer.status
    if key := node.text("response_key"):
        updates[key] = updates.get(f"{node.id}.output", text)
    expected = names(node.text("expect"))
    fine = str(answer.status) in expected if expected else answer.is_success
    if fine and not wrong:
        return Outcome(context_updates=updates)
    retryable: bool | None = None
    if not fine:
        wrong = f"{method} was answered with {answer.status}: {text.strip()[:500]}"
        passing = answer.status in PASSING or answer.status >= 500
        retryable = True if passing else False if answer.status in FINAL else None
    return Outcome(
        status="fail",
        failure_reason=f"{node.id}: {wrong}",
        context_updates=updates,
        retryable=retryable,
    )


HANDLERS: dict[str, Handler] = {"http": http}
