"""Checks a request: what its target means, and where the real key is sent.

The agent has a dummy key. In the places where the vendor's API expects a key (``KeyPlace``: a
header, a parameter of the query), a dummy key that is the complete value is replaced by the real
one, once. Nothing else with a dummy key is sent: a vendor that repeats a part of a request in its
response would hand the key to the agent. What else stands in such a place is not sent either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from corral.metering.proxy.client_requests import (
    AgentRequest,
    BadRequest,
    BadTarget,
    Header,
    ReceivedRequest,
    RequestTarget,
    parse_target,
)
from corral.models.spec import Provider

_OTHER_REQUEST = ("$", "_method")
"""How parameters begin that turn a request into another one: ``$httpMethod`` of Google's APIs,
``_method`` of web frameworks."""


class RequestCheck:
    """Checks the requests of one run."""

    def __init__(self, keys: Mapping[str, str], providers: Sequence[Provider]) -> None:
        """``keys``: dummy → real."""
        self._keys = keys
        self._headers: dict[str, list[str]] = {}
        """Name in lower case → what may stand before a key."""
        self._parameters: dict[str, list[str]] = {}
        for place in (place for provider in providers for place in provider.key_places):
            names = self._headers if place.header else self._parameters
            name = place.header.lower() or place.parameter
            names.setdefault(name, []).append(place.prefix)

    def check(self, received: ReceivedRequest, base: str) -> AgentRequest:
        """The request that is judged and sent, with the real key. ``base`` is the path of the
        vendor's base URL. Raises ``BadRequest``."""
        try:
            target = parse_target(received.target, base)
        except BadTarget as bad:
            raise BadRequest(400, f"the target of the request is refused: {bad}") from bad
        if self._has_dummy(target.path):
            raise BadRequest(400, "the path of the request contains the key of this run")
        if any(name.lower().startswith(_OTHER_REQUEST) for name, _ in target.query):
            raise BadRequest(400, "a parameter of the request would make another request of it")
        unused = dict(self._keys)
        headers = tuple(self._sent_headers(received.headers, unused))
        query = tuple(self._sent_query(target, unused))
        real = next((key for dummy, key in self._keys.items() if dummy not in unused), None)
        if real is None:
            raise BadRequest(401, "the request does not have the key of this run")
        return AgentRequest(
            method=received.method,
            target=RequestTarget(target.path, query),
            headers=headers,
            body=received.plain_body(),
            keeps_open=received.keeps_open,
            key=real,
        )

    def _sent_headers(self, headers: Sequence[Header], unused: dict[str, str]) -> Iterator[Header]:
        for name, value in headers:
            lower, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
            sent = self._sent(self._headers.get(lower), text, unused)
            if sent is not None and not self._has_dummy(lower):
                yield name, value if sent == text else sent.encode("latin-1")

    def _sent_query(
        self, target: RequestTarget, unused: dict[str, str]
    ) -> Iterator[tuple[str, str]]:
        for name, value in target.query:
            sent = self._sent(self._parameters.get(name), value, unused)
            if sent is not None and not self._has_dummy(name):
                yield name, sent

    def _sent(self, prefixes: list[str] | None, text: str, unused: dict[str, str]) -> str | None:
        """What is sent of a header or parameter; None if it is left out. ``prefixes`` are those of
        a key, if it is a place for keys; ``unused`` are the keys that have no place yet."""
        if prefixes is None:
            return None if self._has_dummy(text) else text
        for prefix in prefixes:
            before, dummy = text[: len(prefix)], text[len(prefix) :]
            if before.lower() == prefix.lower() and dummy in unused:
                return prefix + unused.pop(dummy)
        return None

    def _has_dummy(self, text: str) -> bool:
        return any(dummy in text for dummy in self._keys)
