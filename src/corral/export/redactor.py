"""Redacts what must not leave the machine: secrets, and the user's home folder.

Logs are redacted when they are written, with the secrets of that run. An export redacts again: with
the secrets of corral's environment now, and by the form of common keys, because an agent may have
printed a key that no variable had.
"""

from __future__ import annotations

import re

from corral.system import paths
from corral.system.environment import SecretRedactor, own_secrets

MARK = b"[key redacted]"
_KEY_FORMS = re.compile(
    rb"\b(?:"
    rb"sk-[A-Za-z0-9_-]{16,}"
    rb"|AIza[0-9A-Za-z_-]{30,}"
    rb"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    rb"|xox[abprs]-[A-Za-z0-9-]{10,}"
    rb"|AKIA[0-9A-Z]{16}"
    rb"|ya29\.[A-Za-z0-9_-]{16,}"
    rb"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"
    rb")"
    rb"|(?<=Bearer )[A-Za-z0-9._~+/=-]{16,}"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
    re.DOTALL,
)
_KEY_STARTS = (
    *(b"sk-", b"AIza", b"gh", b"glpat-", b"xox", b"AKIA", b"ya29.", b"eyJ"),
    *(b"Bearer ", b"-----BEGIN"),
)


class ExportRedactor:
    """Redacts bytes that leave the machine. ``hide_home``: the home folder becomes ``~``."""

    def __init__(self, *, hide_home: bool = False) -> None:
        self._secrets = SecretRedactor(own_secrets())
        home = str(paths.user_home()) if hide_home else ""
        self._home = home.encode() if len(home) > 1 else b""

    def clean(self, data: bytes) -> bytes:
        data = self._secrets.clean(data)
        if any(start in data for start in _KEY_STARTS):
            data = _KEY_FORMS.sub(MARK, data)
        if self._home:
            data = re.sub(re.escape(self._home) + rb"(?![\w.-])", b"~", data)
        return data

    def clean_text(self, text: str) -> str:
        return self.clean(text.encode("utf-8", "replace")).decode("utf-8", "replace")
