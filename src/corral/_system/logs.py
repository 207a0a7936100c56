"""Where the log messages of the command line go: ``--verbose`` and ``CORRAL_LOG``.

As a library corral only writes to the loggers below ``corral``; the program decides what happens
with them. Messages that may contain secrets of a run are redacted before they are logged; here the
secrets in corral's own environment are redacted as well.
"""

from __future__ import annotations

import logging
import os
import sys

from corral._system.environment import SecretRedactor, named_secrets, variables
from corral.errors import ConfigError

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to_stderr(level: int) -> None:
    """Log messages of this level and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name(_STDERR)
    _add(handler, level)


def follow_environment() -> None:
    """Log as ``CORRAL_LOG`` says, if it is set. Raises ``ConfigError``."""
    if wanted := os.environ.get("CORRAL_LOG"):
        level, path = follow_variable(wanted)
        if path:  # corral's background processes have another directory, and log to the same file
            name = logging.getLevelName(level).lower()
            os.environ["CORRAL_LOG"] = f"{name}:{os.path.abspath(path)}"


def follow_variable(wanted: str) -> tuple[int, str]:
    """Log as ``CORRAL_LOG`` says: a level logs to stderr, a file gets everything, and with
    ``LEVEL:FILE`` the file gets the messages of this level and above. Returns the level and the
    file. Raises ``ConfigError``."""
    first, colon, rest = wanted.partition(":")
    if first.lower() in LEVELS:
        level, path = LEVELS[first.lower()], rest
    elif not colon and wanted.isalnum():
        from difflib import get_close_matches

        near = get_close_matches(wanted.lower(), LEVELS, 1)
        raise ConfigError(
            f"CORRAL_LOG: no level is called {wanted!r}",
            hint=(f"Did you mean {near[0]}? " if near else "")
            + f"Write {', '.join(LEVELS)}, a file (./corral.log) or LEVEL:FILE.",
        )
    else:
        level, path = logging.DEBUG, wanted
    if path:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
            handler = logging.FileHandler(path, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"CORRAL_LOG: {path}: {error.strerror}") from error
        _add(handler, level)
    else:
        log_to_stderr(level)
    return level, path


_STDERR = "corral: stderr"


def _add(handler: logging.Handler, level: int) -> None:
    logger = logging.getLogger("corral")
    for old in [
        each for each in logger.handlers if each.get_name() == _STDERR == handler.get_name()
    ]:
        level = min(level, old.level)
        logger.removeHandler(old)
    handler.setLevel(level)
    handler.setFormatter(_Redacting(SecretRedactor(named_secrets(variables()))))
    logger.addHandler(handler)
    logger.setLevel(min(each.level for each in logger.handlers))
    logger.propagate = False


class _Redacting(logging.Formatter):
    """One line per message, without the secrets."""

    def __init__(self, redactor: SecretRedactor) -> None:
        super().__init__(FORMAT)
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.clean_text(super().format(record))
