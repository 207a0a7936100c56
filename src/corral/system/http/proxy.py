"""Find the proxy for a URL in the environment.

``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` are read, in upper and lower case.
Nothing else is read, also no ``.netrc``.
"""

from __future__ import annotations

import os
from base64 import b64encode
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

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
    return _parse_proxy(named)


def basic(user: str | None, password: str | None) -> str:
    """Return the header value for the user name and password of a URL."""
    pair = f"{unquote(user or '')}:{unquote(password or '')}"
    return f"Basic {b64encode(pair.encode()).decode()}"


def authority(host: str, port: int) -> str:
    """Host and port, as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parse_proxy(named: str) -> Proxy:
    try:
        parts = urlsplit(named if "://" in named else f"http://{named}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _proxy_error("is not a URL") from error
    if parts.scheme != "http":
        raise _proxy_error(f"starts with {parts.scheme}://, which is not supported")
    if not host:
        raise _proxy_error("has no host")
    authorization = None
    if parts.username is not None:
        authorization = basic(parts.username, parts.password)
    return Proxy(host, port or 80, authorization)


def _proxy_error(why: str) -> ConfigError:
    """The error does not show the URL: it may contain a password."""
    return ConfigError(
        f"the proxy that the environment names {why}",
        hint="HTTPS_PROXY looks like http://host:port; NO_PROXY lists hosts without a proxy.",
    )
