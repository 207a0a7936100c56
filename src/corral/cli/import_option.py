"""``--import MODULE``: import user code that registers node types."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module

from corral.errors import ConfigError


def import_modules(modules: Iterable[str]) -> None:
    """Import each module; like ``python -m``, the current directory is on the path. Raises
    ``ConfigError``."""
    for name in modules:
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
        try:
            import_module(name)
        except Exception as error:  # user code may raise anything on import
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"the module {name!r} cannot be imported: {reason}") from error
