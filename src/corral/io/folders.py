"""Where corral keeps its own things, and the files it reads settings from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from corral.errors import ConfigError


def user_home() -> Path:
    """The person's own. Raises ``ConfigError`` where nobody knows of one."""
    try:
        return Path.home()
    except RuntimeError as error:
        raise ConfigError(
            "there is no home folder", hint="Set HOME, or CORRAL_HOME and CORRAL_CONFIG."
        ) from error


def home() -> Path:
    """``CORRAL_HOME``, or the platform's folder for state."""
    given = os.environ.get("CORRAL_HOME")
    if given:
        return Path(given).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return (Path(base) if base else user_home() / "AppData" / "Local") / "corral"
    if sys.platform == "darwin":
        return user_home() / "Library" / "Application Support" / "corral"
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else user_home() / ".local" / "state") / "corral"


def managed() -> Path:
    """Agents that ``corral agents install`` put there."""
    return home() / "agents"


def sessions() -> Path:
    return home() / "sessions"


def ledger() -> Path:
    return home() / "ledger"


def cache() -> Path:
    return home() / "cache"


def user_config() -> Path:
    """The user's ``corral.toml``."""
    if sys.platform == "win32":
        base = os.environ.get("APPDATA")
        return (Path(base) if base else user_home()) / "corral" / "corral.toml"
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else user_home() / ".config") / "corral" / "corral.toml"


def write_private(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, readable by its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
