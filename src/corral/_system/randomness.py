"""Random values: names that do not collide, secrets, and pauses that differ."""

from __future__ import annotations

import os
import random
import secrets


def random_hex(size: int) -> str:
    """``size`` random bytes, as twice as many hexadecimal digits."""
    return os.urandom(size).hex()


def new_secret() -> str:
    """For a URL or a header."""
    return secrets.token_urlsafe(32)


def fraction() -> float:
    """From 0 to below 1: for pauses that must not be the same for all."""
    return random.random()
