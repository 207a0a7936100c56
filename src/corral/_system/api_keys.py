"""The base URL and the API key of a model provider, from the environment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from corral._models.registry import all_providers
from corral._models.spec import Provider
from corral.errors import AuthenticationFailed, ConfigError, MissingKey, NotInstalled


class Credentials(Protocol):
    """Credentials of ``google.auth``, which has no type annotations."""

    valid: bool
    token: object

    def refresh(self, request: object) -> None: ...


TokenCache: TypeAlias = dict[str, Credentials]


class ProviderAccess(msgspec.Struct, frozen=True, kw_only=True):
    """A provider, its base URL and its key."""

    provider: Provider
    base_url: str
    key: str | None
    extras: dict[str, str] = {}
    """For ``{name}`` in paths."""

    def __repr__(self) -> str:
        return f"ProviderAccess({self.provider.name!r}, {self.base_url!r})"

    @property
    def headers(self) -> dict[str, str]:
        """The provider's own headers, and the key: it is never in a URL or a log."""
        provider = self.provider
        if self.key is None:
            return dict(provider.headers)
        return {**provider.headers, provider.key_header: f"{provider.key_prefix}{self.key}"}


def has_key(provider: Provider, environ: Mapping[str, str] | None = None) -> bool:
    environ = os.environ if environ is None else environ
    if provider.credentials is not None:
        return all(environ.get(name) for name in provider.extra_env.values())
    if provider.key_optional:
        return bool(provider.base_url or _first(provider.base_url_env, environ))
    return _first(provider.key_env, environ) is not None


def keys_that_are_set() -> tuple[str, ...]:
    """The variables with a key of any vendor that the environment has."""
    names = [name for provider in all_providers() for name in provider.key_env]
    return tuple(dict.fromkeys(name for name in names if os.environ.get(name)))


def access_variables(
    provider: Provider, *, key: str | None, base_url: str | None
) -> tuple[str, ...]:
    """The variables of the environment on which the result of ``access`` depends."""
    return (
        *provider.extra_env.values(),
        *(() if base_url else provider.base_url_env),
        *(() if key else provider.key_env),
    )


def variable_values(
    names: tuple[str, ...], environ: Mapping[str, str] | None
) -> tuple[str | None, ...]:
    """The values of these variables now."""
    return tuple(map((os.environ if environ is None else environ).get, names)) if names else ()


def access(
    provider: Provider,
    environ: Mapping[str, str] | None = None,
    *,
    key: str | None = None,
    base_url: str | None = None,
) -> ProviderAccess:
    """Find the base URL and the key. Raises ``MissingKey`` with the variable's name, and
    ``ConfigError``."""
    environ = os.environ if environ is None else environ
    extras: dict[str, str] = {}
    for name, variable in provider.extra_env.items():
        value = environ.get(variable)
        if not value:
            raise ConfigError(f"{provider.title} needs {variable}", hint=f"Set {variable}.")
        extras[name] = value
    if region := extras.get("location"):
        host = "aiplatform.googleapis.com"
        extras["host"] = host if region == "global" else f"{region}-{host}"
    url = base_url or _first(provider.base_url_env, environ) or provider.base_url
    if not url:
        raise ConfigError(
            f"the base URL of {provider.title} is not set",
            hint=f"Set {' or '.join(provider.base_url_env)}, such as http://localhost:8000/v1.",
        )
    url = url.rstrip("/").removesuffix(provider.version)
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"the base URL of {provider.title} must start with http:// or https://: {url}"
        )
    for name, value in extras.items():
        url = url.replace(f"{{{name}}}", value)
    key = key or _first(provider.key_env, environ)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the API key of {provider.title} contains an invalid character")
    if key is None and not provider.key_optional and provider.credentials is None:
        raise MissingKey(
            f"there is no API key for {provider.title}",
            hint=f"Set {' or '.join(provider.key_env)}.",
            provider=provider.name,
        )
    return ProviderAccess(provider=provider, base_url=url, key=key, extras=extras)


async def with_token(found: ProviderAccess, cache: TokenCache) -> ProviderAccess:
    """For a provider that takes a token instead of a key: return a copy with a valid token. The
    credentials are stored in ``cache``."""
    if found.provider.credentials is None or found.key is not None:
        return found
    token = await asyncio.to_thread(_google_token, cache)
    return msgspec.structs.replace(found, key=token)


def _google_token(cache: TokenCache) -> str:
    try:
        import google.auth
        import google.auth.exceptions
        import google.auth.transport.requests as transport
    except ImportError as error:
        raise NotInstalled(
            f"Vertex AI needs google-auth: {error}", hint="pip install 'corral[vertex]'"
        ) from error
    auth: Any = google.auth
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    try:
        credentials = cache.get("google")
        if credentials is None:
            credentials = cache["google"] = auth.default(scopes=scopes)[0]
        if not credentials.valid:
            credentials.refresh(transport.Request())
    except google.auth.exceptions.GoogleAuthError as error:
        raise AuthenticationFailed(
            f"no valid credentials for Vertex AI: {error}",
            hint="Run: gcloud auth application-default login",
            provider="vertex",
        ) from error
    return str(credentials.token)


def _first(names: tuple[str, ...], environ: Mapping[str, str]) -> str | None:
    return next((value for name in names if (value := environ.get(name, "").strip())), None)
