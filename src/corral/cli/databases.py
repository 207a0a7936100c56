"""A database in the lines that tell people what to type next: never with its password."""

from __future__ import annotations

import re
import shlex
from urllib.parse import urlsplit

_SECRET = re.compile(r"(?i)((?:^|&)(?:ssl)?password=)[^&]*")


def option(db: str | None) -> str:
    """`` --db URL``, or nothing where none was given."""
    return f" --db {shlex.quote(harmless(db))}" if db else ""


def harmless(url: str) -> str:
    """Without the password that may stand in it."""
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    netloc = f"{name}:***@{host}" if colon else f"{user}{at}{host}"
    return parts._replace(netloc=netloc, query=_SECRET.sub(r"\1***", parts.query)).geturl()
