"""Secrets redacted from what comes in pieces."""

from __future__ import annotations

from corral.system.environment import SecretRedactor
from corral.system.redaction import Pieces


class SecretFilter(SecretRedactor):
    """An eraser that also finds a secret which is cut in two."""

    def pieces(self) -> Pieces:
        """For one text that comes bit by bit."""
        return Pieces(self)
