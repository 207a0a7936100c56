"""Checks of arguments that Python takes and means otherwise: a text is a sequence of letters."""

from __future__ import annotations

from collections.abc import Iterable

from corral.errors import ConfigError


def check_text(what: str, value: object) -> None:
    """Raises ``ConfigError``, which names ``what``, unless the value is a text."""
    if not isinstance(value, str):
        raise ConfigError(f"{what} must be a text, got: {value!r}")


def check_texts(what: str, values: Iterable[object]) -> None:
    """Raises ``ConfigError`` unless the values are a list of texts, and not one text."""
    if isinstance(values, str) or not all(isinstance(each, str) for each in values):
        raise ConfigError(f"{what} must be a list of texts, got: {values!r}")
