"""What a request goes to and how its head reads: nothing that could be smuggled in is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from corral.errors import ConfigError
from corral.system.http.proxy import Proxy, basic, proxy_for

_NOT_IN_URL = re.compile(r"[\x00-\x20\x7f]")
_NOT_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]").search
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch
_KEPT = "/%:@!$&'()*+,;=~-._?[]|"
"""Characters of a path and a query that are written as they are."""
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "te", "upgrade"})
"""Headers that frame a message, and are the client's alone."""
_USUAL = {"user-agent": "corral", "accept": "*/*", "accept-encoding": "identity"}
"""Unless a caller has them otherwise. A compressor would hold events back."""
_USUAL_LINES = "".join(f"{name}: {value}\r\n" for name, value in _USUAL.items())


class Origin(NamedTuple):
    """Whom a connection leads to."""

    host: str
    port: int
    secure: bool
    proxy: Proxy | None
    said: str
    """Host and port for people and for ``Host``. Never the URL: it may carry what nobody
    should read."""


class Target(NamedTuple):
    origin: Origin
    path: str
    """As the first line of a request has it."""
    given: dict[str, str]
    """Headers that come of the address: credentials."""

    def __repr__(self) -> str:
        return f"Target({self.origin.said!r})"


def target_of(url: str) -> Target:
    """Raises ``ConfigError`` for what is no address of the web."""
    if _NOT_IN_URL.search(url):  # urlsplit would drop some of them silently
        raise _no_url(url)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError(url)
        if not host.isascii():
            host = host.encode("idna").decode("ascii")
    except ValueError as error:  # UnicodeError is one
        raise _no_url(url) from error
    if not all(0 < len(label) < 64 for label in host.removesuffix(".").split(".")):
        raise _no_url(url)
    secure = parts.scheme == "https"
    usual = 443 if secure else 80
    shown = f"[{host}]" if ":" in host else host
    said = shown if port in (None, usual) else f"{shown}:{port}"
    proxy = proxy_for(parts)
    path = quote(parts.path or "/", safe=_KEPT)
    if parts.query:
        path += f"?{quote(parts.query, safe=_KEPT)}"
    given: dict[str, str] = {}
    if parts.username is not None:
        given["authorization"] = basic(parts.username, parts.password)
    if proxy is not None and not secure:
        path = f"http://{said}{path}"
        if proxy.authorization:
            given["proxy-authorization"] = proxy.authorization
    return Target(Origin(host, port or usual, secure, proxy, said), path, given)


def head_of(
    method: str, target: Target, headers: Mapping[str, str], length: int | None = None
) -> bytes:
    """A request up to its body. Raises ``ConfigError`` for a header that cannot be written."""
    origin, path, given = target
    names: set[str] = set()
    text = f"{method} {path} HTTP/1.1\r\nHost: {origin.said}\r\n"
    for name, value in headers.items():
        if _NOT_IN_VALUE(value) or not _NAME(name):
            raise ConfigError(f"the header {name!r} holds a character that no header has")
        names.add(name.lower())
        text += f"{name}: {value}\r\n"
    if not names.isdisjoint(_OURS):
        raise ConfigError(f"the header {min(names & _OURS)!r} cannot be set")
    if names.isdisjoint(_USUAL):
        text += _USUAL_LINES
    else:
        given = {**_USUAL, **given}
    for name, value in given.items():
        if name not in names:
            text += f"{name}: {value}\r\n"
    text += "\r\n" if length is None else f"content-length: {length}\r\n\r\n"
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the request to {origin.said} cannot be written: a header holds "
            f"{error.object[error.start : error.end]!r}"
        ) from error


def _no_url(url: str) -> ConfigError:
    return ConfigError(f"not a URL: {url[:200]!r}", hint="A base URL reads https://host/path.")
