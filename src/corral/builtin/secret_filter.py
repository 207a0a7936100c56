"""Redacts secrets in text that comes in chunks."""

from __future__ import annotations

from corral.system.environment import SecretRedactor
from corral.system.redaction import StreamRedactor


class SecretFilter(SecretRedactor):
    """A redactor that also finds a secret that is split over several chunks."""

    def pieces(self) -> StreamRedactor:
        """A redactor for one text that comes in chunks."""
        return StreamRedactor(self)
