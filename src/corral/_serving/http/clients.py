"""The clients of a server: a TOML file with a token, an expiry and limits for each.

::

    [clients.ci]
    token_sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    policy = "reads"
    max_cost = 5.0

The file has no token: either its SHA-256, or the name of a variable that has it. A token is random
(``openssl rand -hex 32``), so a plain hash is enough: there is nothing to guess.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from corral._core.lookup import check_keys
from corral._core.nesting import decode_toml
from corral._serving.allowance import Narrowing
from corral._system import clock, fs
from corral._system.environment import variable
from corral.errors import ConfigError
from corral.values import convert_to, is_object

SHORTEST = 16
"""Characters of a token."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Without a colon and a space: the label of the client's sessions is made of it."""
_HASH = re.compile(r"[0-9a-f]{64}")


class ClientSettings(Narrowing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One client of the file: its token, and what it may do less than the server permits."""

    token_sha256: str | None = None
    token_env: str | None = None
    expires: str | None = None
    """A date or a time, UTC unless it has another zone. A date ends where it begins."""
    revoked: bool = False


class ServiceClient(msgspec.Struct, frozen=True):
    """A client whose settings are complete."""

    name: str
    token_sha256: str
    settings: ClientSettings
    expires: float | None = None
    """Seconds since the epoch."""

    @property
    def is_valid(self) -> bool:
        """Whether its token is accepted now."""
        in_time = self.expires is None or clock.now() < self.expires
        return in_time and not self.settings.revoked


def one_client(token: str) -> ServiceClient:
    """The client of a server without a file: it may do all that the server permits."""
    return ServiceClient("default", hash_of(token), ClientSettings())


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def read_clients(path: Path) -> dict[str, ServiceClient]:
    """The clients by their names. Raises ``ConfigError``."""
    try:
        table = decode_toml(fs.read_text(path))
    except OSError as error:
        raise ConfigError(
            f"the file of clients cannot be read: {path}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise ConfigError(f"the file of clients is not valid: {path}: {error}") from error
    tables = table.get("clients")
    if set(table) != {"clients"} or not is_object(tables) or not tables:
        raise ConfigError(f"{path} must have a table [clients.NAME] for each client, and no other")
    clients = {name: _read_client(name, given, path) for name, given in tables.items()}
    hashes = [client.token_sha256 for client in clients.values()]
    if len({*hashes}) < len(hashes):
        raise ConfigError(f"two clients of {path} have the same token")
    return clients


def _read_client(name: str, given: object, path: Path) -> ServiceClient:
    where = f"client {name!r} of {path}"
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a name has letters, digits, '_', '.' and '-', up to 64")
    if not is_object(given):
        raise ConfigError(f"{where} must be a table")
    check_keys(f"{where}:", given, ClientSettings.__struct_fields__)
    plain = {
        key: value.isoformat() if isinstance(value, datetime.date) else value
        for key, value in given.items()
    }
    try:
        settings = convert_to(plain, ClientSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error
    return ServiceClient(name, _token_hash(settings, where), settings, _expiry(settings, where))


def _expiry(settings: ClientSettings, where: str) -> float | None:
    if settings.expires is None:
        return None
    try:
        end = datetime.datetime.fromisoformat(settings.expires)
    except ValueError as error:
        raise ConfigError(f"{where}: expires must be a date or a time: {error}") from error
    return (end if end.tzinfo else end.replace(tzinfo=datetime.UTC)).timestamp()


def _token_hash(settings: ClientSettings, where: str) -> str:
    if (settings.token_sha256 is None) == (settings.token_env is None):
        raise ConfigError(f"{where} needs token_sha256 or token_env, and not both")
    if settings.token_env is not None:
        token = variable(settings.token_env) or ""
        if len(token) < SHORTEST:
            raise ConfigError(
                f"{where}: {settings.token_env} must be set to a token of at least {SHORTEST}"
                " characters",
                hint="openssl rand -hex 32 makes one.",
            )
        return hash_of(token)
    digest = (settings.token_sha256 or "").lower()
    if not _HASH.fullmatch(digest):
        raise ConfigError(
            f"{where}: token_sha256 must have 64 hexadecimal digits",
            hint="printf %s TOKEN | sha256sum prints them.",
        )
    return digest


def find_client(clients: Mapping[str, ServiceClient], authorization: str) -> ServiceClient | None:
    """The client of an ``Authorization`` header; None if its token is unknown or not valid. Every
    client is compared, in constant time."""
    scheme, _, token = authorization.partition(" ")
    digest = hash_of(token.strip())
    found = _matching(clients.values(), digest)
    if scheme.lower() != "bearer" or found is None or not found.is_valid:
        return None
    return found


def _matching(clients: Iterable[ServiceClient], digest: str) -> ServiceClient | None:
    found = None
    for client in clients:
        if hmac.compare_digest(client.token_sha256, digest):
            found = client
    return found
