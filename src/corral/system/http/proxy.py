"""The proxy that the environment names for an address: ``HTTP_PROXY``, ``HTTPS_PROXY``,
``ALL_PROXY`` and ``NO_PROXY``, in either case. Nothing else is read, no ``.netrc``."""

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
    """None where the address is to be reached directly. Raises ``ConfigError`` for a proxy of
    a kind that is not spoken here."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]  # fmt: skip  # typeshed lacks them

    parts = urlsplit(url) if isinstance(url, str) else url
    host = parts.hostname or ""
    proxies: dict[str, str] = getproxies_environment()
    named = proxies.get(parts.scheme) or proxies.get("all")
    if not named or proxy_bypass_environment(f"{host}:{parts.port}" if parts.port else host):
        return None
    return _read(named)


def basic(user: str | None, password: str | None) -> str:
    """The value of a header that carries a name and a password of a URL."""
    pair = f"{unquote(user or '')}:{unquote(password or '')}"
    return f"Basic {b64encode(pair.encode()).decode()}"


def _read(named: str) -> Proxy:
    try:
        parts = urlsplit(named if "://" in named else f"http://{named}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _wrong("is no address") from error
    if parts.scheme != "http":
        raise _wrong(f"begins with {parts.scheme}://, which is not spoken here")
    if not host:
        raise _wrong("names no host")
    authorization = None
    if parts.username is not None:
        authorization = basic(parts.username, parts.password)
    return Proxy(host, port or 80, authorization)


def _wrong(why: str) -> ConfigError:
    """Without the address itself: a password may be in it."""
    return ConfigError(
        f"the proxy that the environment names {why}",
        hint="HTTPS_PROXY and the like read http://host:port; NO_PROXY names who needs none.",
    )
