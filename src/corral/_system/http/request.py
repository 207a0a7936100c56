"""Parse the URL of a request, find its proxy in the environment, and encode its head.

URLs and headers are checked, so that no value can add a header or a second request.

Of the environment ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` are read, in
upper and lower case. Nothing else is read, also no ``.netrc``.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit

from corral.errors import ConfigError


class Proxy(NamedTuple):
    host: str
    port: int
    authorization: str | None = None
    """The value of ``Proxy-Authorization``."""

    def __repr__(self) -> str:
        return f"Proxy({self.host!r}, {self.port})"


def proxy_for(url: str | SplitResult) -> Proxy | None:
    """Return the proxy for a URL, or None to connect directly. Raises ``ConfigError`` if the
    proxy's kind is not supported."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]  # fmt: skip  # typeshed lacks them

    parts = urlsplit(url) if isinstance(url, str) else url
    host = parts.hostname or ""
    proxies: dict[str, str] = getproxies_environment()
    named = proxies.get(parts.scheme) or proxies.get("all")
    if not named or proxy_bypass_environment(f"{host}:{parts.port}" if parts.port else host):
        return None
    try:
        parts = urlsplit(named if "://" in named else f"http://{named}")
        proxy_host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _proxy_error("is not a URL") from error
    if parts.scheme != "http":
        raise _proxy_error(f"starts with {parts.scheme}://, which is not supported")
    if not proxy_host:
        raise _proxy_error("has no host")
    has_login = parts.username is not None
    authorization = basic(parts.username, parts.password) if has_login else None
    return Proxy(proxy_host, port or 80, authorization)


def basic(user: str | None, password: str | None) -> str:
    """Return the header value for the user name and password of a URL."""
    pair = f"{unquote(user or '')}:{unquote(password or '')}"
    return f"Basic {b64encode(pair.encode()).decode()}"


def authority(host: str, port: int, default: int | None = None) -> str:
    """Host and port, as in a URL. The port ``default`` is left out."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port == default else f"{shown}:{port}"


def _proxy_error(why: str) -> ConfigError:
    """The error does not show the URL: it may contain a password."""
    return ConfigError(
        f"the proxy that the environment names {why}",
        hint="HTTPS_PROXY looks like http://host:port; NO_PROXY lists hosts without a proxy.",
    )


_NOT_IN_URL = re.compile(r"[\x00-\x20\x7f]")
_NOT_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]").search
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch
_UNESCAPED = "/%:@!$&'()*+,;=~-._?[]|"
"""Characters of a path and a query that are not escaped."""
_FRAMING_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "te", "upgrade"}
)
"""Headers that delimit a message. Only the client sets them."""
_DEFAULT_HEADERS = {"user-agent": "corral", "accept": "*/*", "accept-encoding": "identity"}
"""Used unless the caller gives them. Compression would delay events."""
_DEFAULT_LINES = "".join(f"{name}: {value}\r\n" for name, value in _DEFAULT_HEADERS.items())


class Origin(NamedTuple):
    """Where a connection goes to."""

    host: str
    port: int
    secure: bool
    proxy: Proxy | None
    authority: str
    """Host and port, for errors and for ``Host``. Never the URL, which may contain secrets."""


class Target(NamedTuple):
    origin: Origin
    path: str
    """As in the first line of a request."""
    given: dict[str, str]
    """Headers that come from the URL: credentials."""

    def __repr__(self) -> str:
        return f"Target({self.origin.authority!r})"


def parse_url(url: str) -> Target:
    """Parse the URL of a request. Raises ``ConfigError`` if it is not an HTTP URL."""
    parts, host, port = _split_url(url)
    secure = parts.scheme == "https"
    default_port = 443 if secure else 80
    where = authority(host, port or default_port, default_port)
    proxy = proxy_for(parts)
    path = quote(parts.path or "/", safe=_UNESCAPED)
    if parts.query:
        path += f"?{quote(parts.query, safe=_UNESCAPED)}"
    given: dict[str, str] = {}
    if parts.username is not None:
        given["authorization"] = basic(parts.username, parts.password)
    if proxy is not None and not secure:
        path = f"http://{where}{path}"
        if proxy.authorization:
            given["proxy-authorization"] = proxy.authorization
    return Target(Origin(host, port or default_port, secure, proxy, where), path, given)


def _split_url(url: str) -> tuple[SplitResult, str, int | None]:
    """The parts of an HTTP URL, its host in ASCII and its port. Raises ``ConfigError``."""
    if _NOT_IN_URL.search(url):  # urlsplit would remove some of them silently
        raise _url_error(url)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError(url)
        if not host.isascii():
            host = host.encode("idna").decode("ascii")
    except ValueError as error:  # includes UnicodeError
        raise _url_error(url) from error
    if not all(0 < len(label) < 64 for label in host.removesuffix(".").split(".")):
        raise _url_error(url)
    return parts, host, port


def encode_head(
    method: str, target: Target, headers: Mapping[str, str], length: int | None = None
) -> bytes:
    """Return a request up to its body. Raises ``ConfigError`` for an invalid header."""
    origin, path, given = target
    names: set[str] = set()
    text = f"{method} {path} HTTP/1.1\r\nHost: {origin.authority}\r\n"
    for name, value in headers.items():
        if _NOT_IN_VALUE(value) or not _NAME(name):
            raise ConfigError(f"the header {name!r} contains an invalid character")
        names.add(name.lower())
        text += f"{name}: {value}\r\n"
    if not names.isdisjoint(_FRAMING_HEADERS):
        raise ConfigError(f"the header {min(names & _FRAMING_HEADERS)!r} cannot be set")
    if names.isdisjoint(_DEFAULT_HEADERS):
        text += _DEFAULT_LINES
    else:
        given = {**_DEFAULT_HEADERS, **given}
    for name, value in given.items():
        if name not in names:
            text += f"{name}: {value}\r\n"
    text += "\r\n" if length is None else f"content-length: {length}\r\n\r\n"
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the request to {origin.authority} cannot be written: a header contains "
            f"{error.object[error.start : error.end]!r}"
        ) from error


def _url_error(url: str) -> ConfigError:
    return ConfigError(f"not a URL: {url[:200]!r}", hint="A base URL looks like https://host/path.")
