"""Redacts secrets in text that comes in chunks."""

from __future__ import annotations

from corral.system.environment import SecretRedactor
from corral.system.redaction import Pieces


class SecretFilter(SecretRedactor):
    """A redactor that also finds a secret that is split over several chunks."""

    def pieces(self) -> Pieces:
        """A redactor for one text that comes in chunks."""
        return Pieces(self)
