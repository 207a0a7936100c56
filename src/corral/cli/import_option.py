"""``--import MODULE``: a person's own code, which registers node types."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module

from corral.errors import ConfigError


def imported(modules: Iterable[str]) -> None:
    """Import each, as ``python -m`` would find it: what lies here counts. Raises
    ``ConfigError``."""
    for name in modules:
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
        try:
            import_module(name)
        except Exception as error:  # whatever somebody's module does when it is imported
            said = f"{type(error).__name__}: {error}"
            raise ConfigError(f"the module {name!r} cannot be imported: {said}") from error
