"""The path of corral's home. Loads nothing, for the fast start of the command line."""

from __future__ import annotations

import os
import sys


def state_folder() -> str | None:
    """``CORRAL_HOME``, or ``corral`` in the platform's folder for state. None if the user has no
    home folder."""
    given = os.environ.get("CORRAL_HOME")
    if given:
        return os.path.abspath(os.path.expanduser(given))
    if sys.platform == "win32":
        return _below("LOCALAPPDATA", "AppData", "Local")
    if sys.platform == "darwin":
        return _below("", "Library", "Application Support")
    return _below("XDG_STATE_HOME", ".local", "state")


def _below(variable: str, *parts: str) -> str | None:
    base = os.environ.get(variable) if variable else None
    if not base:
        user = os.path.expanduser("~")
        if user == "~":
            return None
        base = os.path.join(user, *parts)
    return os.path.join(base, "corral")
