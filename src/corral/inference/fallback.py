"""The models of one call: if the first is not available, the next one answers."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from corral.errors import (
    AccessDenied,
    AuthenticationFailed,
    ConfigError,
    CorralError,
    ModelNotFound,
    QuotaSpent,
)
from corral.events import Error
from corral.models.registry import canonical

_log = logging.getLogger("corral.models")

_UNAVAILABLE = (QuotaSpent, ModelNotFound, AuthenticationFailed, AccessDenied)
"""Besides retryable errors: another model can answer, this one cannot."""


class Fallback(msgspec.Struct, frozen=True):
    """A model that failed, so that the next one was called."""

    model: str
    error: Error

    def __str__(self) -> str:
        return f"{self.model} failed ({self.error.code}): {self.error.message}"


class ModelChoice:
    """The model that is called now, those that may follow, and those that failed."""

    __slots__ = ("all", "failed")

    def __init__(self, given: str | Sequence[str]) -> None:
        """Raises ``ConfigError`` if there is no model."""
        self.all = (canonical(given),) if isinstance(given, str) else tuple(map(canonical, given))
        if not self.all:
            raise ConfigError("the list of models is empty")
        self.failed: tuple[Fallback, ...] = ()

    @property
    def current(self) -> str:
        return self.all[len(self.failed)]

    def fall_back(self, error: CorralError) -> bool:
        """Choose the next model. False if there is none, or if the error is not one of
        availability: a refused or invalid request is the same for every model."""
        if not error.retryable and not isinstance(error, _UNAVAILABLE):
            return False
        if len(self.failed) + 1 == len(self.all):
            for each in self.failed:
                error.add_note(f"before: {each}")
            return False
        self.failed = (*self.failed, Fallback(self.current, error.event()))
        _log.warning("%s; now calling %s", self.failed[-1], self.current)
        return True
