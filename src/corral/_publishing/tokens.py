"""One-time tokens with which a person answers one request from elsewhere.

A token says which request of which run it answers and until when, and is signed with a key that
only this user can read (``CORRAL_HOME/live/key``). It is not a secret of the run: who has it can
answer this one request, once. A used token leaves an empty file until it expires, so that it works
once even if the process that asked has been started again.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
from collections.abc import Generator
from pathlib import Path

import msgspec

from corral._publishing import records
from corral._publishing.records import Kind, LiveError, Problem
from corral._system import clock, fs, paths
from corral.values import decode_as

LIFETIME = 7 * 86400.0
"""Seconds that a token is valid if its request has no deadline."""
KEY_BYTES = 32


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """What a token says."""

    kind: Kind
    run: str
    request_id: str
    """Of a permission request, or of a question of an agent or pipeline; empty: the agent is a
    person."""
    expires: float
    key: str
    """Of the request; it is used once."""
    db: str | None = None


def new_key() -> str:
    """Identifies a request for ever."""
    return clock.random_hex(6)


def make(token: Token) -> str:
    """The token as text. Raises ``OSError`` if the key cannot be written."""
    body = msgspec.json.encode(token)
    return f"{_text(body)}.{_text(_signature(body, _key()))}"


def read(text: str) -> Token:
    """What a token says. Raises ``LiveError`` if it is not valid, has expired or was used."""
    try:
        body, signature = (
            base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
            for part in text.strip().partition(".")[::2]
        )
    except (binascii.Error, ValueError) as error:
        raise _error("this is not a token of corral") from error
    try:
        valid = hmac.compare_digest(_signature(body, _key()), signature)
    except OSError as error:
        raise _error(f"the key of the tokens cannot be read: {error}") from error
    if not valid:
        raise _error("the token is not valid")
    token = decode_as(body, Token)
    if token.expires < clock.now():
        raise _error("the token has expired")
    if fs.exists(_used(token)):
        raise _error("the token was already used", "A token answers its request once.")
    return token


@contextlib.contextmanager
def using(text: str) -> Generator[Token]:
    """Use a token inside the block. If the block fails, the token can be used again, unless another
    answer came first. Raises ``LiveError`` if it is not valid, has expired or was used."""
    token = read(text)
    file = _used(token)
    try:
        paths.make_dir(file.parent)
        _forget_expired(file.parent)
        fs.create_complete(file, b"")
    except FileExistsError as error:
        raise _error("the token was already used") from error
    except OSError as error:
        raise _error(f"the token cannot be used: {error}") from error
    try:
        yield token
    except BaseException as error:
        if not (isinstance(error, LiveError) and error.problem.code == "answered"):
            with contextlib.suppress(OSError):
                fs.remove_file(file)
        raise


def _key() -> bytes:
    """The key of this user; made when it is first needed."""
    file = records.folder() / "key"
    found = fs.read_small(file, KEY_BYTES)
    if found is None or len(found) != KEY_BYTES:
        paths.make_dir(file.parent)
        with contextlib.suppress(FileExistsError), fs.exclusive_lock(file.with_suffix(".lock")):
            found = fs.read_small(file, KEY_BYTES)
            if found is None or len(found) != KEY_BYTES:
                found = bytes.fromhex(clock.random_hex(KEY_BYTES))
                fs.write_atomically(file, found)
    return found or b""


def _used(token: Token) -> Path:
    name = hashlib.sha256(f"{token.run} {token.key}".encode()).hexdigest()[:32]
    return records.folder() / "used" / f"{int(token.expires)}-{name}"


def _forget_expired(folder: Path) -> None:
    now = clock.now()
    for name in fs.list_names(folder):
        expires = name.partition("-")[0]
        if expires.isdecimal() and int(expires) + 1 < now:
            with contextlib.suppress(OSError):
                fs.remove_file(folder / name)


def _signature(body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, body, "sha256")


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _error(message: str, hint: str | None = None) -> LiveError:
    return LiveError(Problem("token", message, hint))
